//! Power fails at each write of a move into a cube: nothing is lost, and the same command again finishes or begins anew.

use std::collections::{BTreeMap, BTreeSet};

use floe_blockdev::{Crash, MemDevice, ReadBlocks, Recorder, SECTOR_BYTES, WriteBlocks};
use floe_check::{CheckOptions, check};
use floe_disk::mkfs::{self, Fresh, FsType, Options, Plan};
use floe_disk::ops::NewCube;
use floe_format::InodeNr;
use floe_format::native::cube::Policies;
use floe_fs::{Caller, Disk, FileSystem, Live, MemFs, NewInode, Op, OpKind, Place, SetMode, now};
use floe_testkit::crash::{Effort, crashes, one_in, tears};

use super::image::run;
use super::{MARK, Moved};

use crate::message::message;

type Calls<'a, 'f, 'd, D> = &'a FileSystem<MemFs<Live<'f, 'd, D>>>;

/// Content of files and targets of links by path; directories are empty.
type Files = BTreeMap<String, Vec<u8>>;

fn op(kind: OpKind<'_>) -> Op<'_> {
    Op { uid: 0, gid: 0, time: now(), kind }
}

/// Mounts a device, lets `work` use it, and unmounts it.
fn used<D: WriteBlocks, T>(device: D, work: impl FnOnce(Calls<'_, '_, '_, D>) -> T) -> T {
    let (disk, volume) = Disk::open(device).unwrap();
    let done = {
        let files = disk.files().unwrap();
        let live = Live::new(&disk, &files, volume, now()).unwrap();
        let fs = FileSystem::new(MemFs::new(live, Default::default()));
        let done = work(&fs);
        let (live, lost) = fs.into_store().finish().unwrap();
        live.finish(now()).unwrap();
        lost.unwrap();
        done
    };
    disk.close().unwrap();
    done
}

fn make<D: WriteBlocks>(
    fs: Calls<'_, '_, '_, D>,
    directory: InodeNr,
    name: &str,
    new: NewInode<'_>,
) -> InodeNr {
    let place = Place { directory, name: name.as_bytes() };
    let made = fs.apply(&op(OpKind::Create { place, new })).unwrap().unwrap().inode;
    fs.forget(made, 1).unwrap();
    made
}

fn write<D: WriteBlocks>(fs: Calls<'_, '_, '_, D>, inode: InodeNr, at: u64, bytes: &[u8]) {
    fs.apply(&op(OpKind::Write { inode, offset_bytes: at, bytes })).unwrap();
}

/// Files below a directory.
fn below<D: WriteBlocks>(
    fs: Calls<'_, '_, '_, D>,
    directory: InodeNr,
    path: &str,
    all: &mut Files,
) {
    let mut names = Vec::new();
    let list = |listed: floe_fs::Listed<'_>| {
        if !matches!(listed.name, b"." | b"..") {
            names.push((String::from_utf8_lossy(listed.name).into_owned(), listed.inode));
        }
        true
    };
    fs.list(&Caller::Judged, directory, 0, list).unwrap();
    for (name, inode) in names {
        let path = format!("{path}/{name}");
        let of = fs.attributes(inode).unwrap();
        let content = match of.kind {
            floe_format::ext::inode::FileType::Directory => {
                below(fs, inode, &path, all);
                Vec::new()
            }
            floe_format::ext::inode::FileType::Symlink => fs.target(inode).unwrap(),
            _ => {
                let mut bytes = vec![0; of.size_bytes as usize];
                let read = fs.read(inode, 0, &mut bytes).unwrap();
                bytes.truncate(read);
                bytes
            }
        };
        all.insert(path, content);
    }
}

/// Files of the source, and of its copy; whether the copy has its mark, and what else is in the cube.
fn found<D: WriteBlocks>(fs: Calls<'_, '_, '_, D>) -> (Files, Files, bool, Vec<String>) {
    let mut all = Files::new();
    below(fs, InodeNr::ROOT, "", &mut all);
    let part = |prefix: &str| {
        let own = all.iter().filter(|(path, _)| path.starts_with(prefix));
        own.map(|(path, content)| (path[prefix.len()..].to_owned(), content.clone())).collect()
    };
    let (source, copy): (Files, Files) = (part("/src"), part("/c/src"));
    let top = fs.find_path(&Caller::Judged, b"/c/src", floe_fs::Follow::Last);
    let is_marked = top.is_ok_and(|(inode, _)| fs.extended_attribute(inode, MARK).is_ok());
    let own = |path: &&String| path.starts_with("/c/") && !path.starts_with("/c/src");
    (source, copy, is_marked, all.keys().filter(own).cloned().collect())
}

/// A file system with a cube `/c` and a tree `/src`.
fn base() -> (Vec<u8>, Files) {
    let mut options = Options::of_type(FsType::Native);
    for (letter, value) in [('E', "lot_size=4m"), ('J', "size=4"), ('N', "1000")] {
        options.set(letter, value).unwrap();
    }
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now: now() };
    let device = MemDevice::new(vec![0; 20 << 20]);
    let params = options.params(device.size_bytes(), None, &fresh).unwrap();
    mkfs::write(&Plan::new(&params).unwrap(), &device).unwrap();
    {
        let (disk, volume) = Disk::open(&device).unwrap();
        {
            let files = disk.files().unwrap();
            let live = Live::new(&disk, &files, volume, now()).unwrap();
            let new = NewCube {
                parent: InodeNr::ROOT,
                name: b"c",
                path: b"/c",
                permissions: 0o755,
                journal_blocks: 0,
                policies: Policies::default(),
            };
            live.create_cube(&floe_disk::ops::Caller::system(now()), &new).unwrap();
            live.finish(now()).unwrap();
        }
        disk.close().unwrap();
    }
    let files = used(&device, |fs| {
        let source = make(fs, InodeNr::ROOT, "src", NewInode::directory(0o750));
        let dir = make(fs, source, "dir", NewInode::directory(0o755));
        let file = make(fs, source, "file", NewInode::regular(0o640));
        write(fs, file, 0, &[b'f'; 9000]);
        let name = b"user.kept";
        let kind = OpKind::SetAttribute { inode: file, name, value: b"1", mode: SetMode::Any };
        fs.apply(&op(kind)).unwrap();
        let place = Place { directory: dir, name: b"same" };
        fs.apply(&op(OpKind::Link { inode: file, place })).unwrap();
        let sparse = make(fs, dir, "sparse", NewInode::regular(0o644));
        write(fs, sparse, 60_000, b"end");
        make(fs, dir, "link", NewInode::symlink(b"../file"));
        found(fs).0
    });
    (device.to_vec(), files)
}

/// Moves the tree.
fn moved<D: WriteBlocks>(device: D) -> anyhow::Result<Moved> {
    let (disk, volume) = Disk::open(device)?;
    let done = {
        let files = disk.files()?;
        let live = Live::new(&disk, &files, volume, now())?;
        run(live, b"/src", b"/c", &BTreeSet::new())
    };
    disk.close()?;
    done
}

fn judge(device: &dyn ReadBlocks, what: &str) {
    let found = check(&device, &CheckOptions::default()).unwrap().found;
    assert!(found.is_empty(), "{what}: {found:?}");
}

/// Every state of which `wanted` takes one; how many were tried.
fn power_fails(wanted: usize) -> usize {
    let (base, files) = base();
    let recorder = Recorder::new(MemDevice::new(base.clone()));
    moved(&recorder).unwrap();
    let trace = recorder.trace();
    let all = crashes(&trace, Effort::default()).into_iter();
    // No device is expected to tear a sector, or the superblock (docs/journal.md).
    let torn_sector =
        |crash: &Crash| crash.torn_bytes.is_some_and(|bytes| !bytes.is_multiple_of(SECTOR_BYTES));
    let sound = all.filter(|crash| !torn_sector(crash) && !tears(&trace, crash, 1024..2048));
    let all: Vec<Crash> = sound.step_by(wanted).collect();
    for crash in &all {
        let device = MemDevice::new(base.clone());
        trace.replay(crash, &device).unwrap();
        let what = format!("{crash:?}");
        let (source, copy, is_marked, _) = used(&device, found);
        judge(&device, &what);
        // The name is there with all of the copy, and the source goes only then.
        assert!(copy.is_empty() || copy == files, "{what}: {:?}", copy.keys());
        assert!(source == files || copy == files, "{what}: {:?}", source.keys());
        match moved(&device) {
            Ok(_) => {}
            // All was done but for saying so.
            Err(error) => assert!(source.is_empty() && !is_marked, "{what}: {error:#}"),
        }
        let (source, copy, is_marked, others) = used(&device, found);
        assert!(source.is_empty() && copy == files && !is_marked, "{what}: again");
        assert!(others.is_empty(), "{what}: {others:?} left in the cube");
        judge(&device, &what);
    }
    all.len()
}

#[test]
fn power_fails_while_a_tree_moves_into_a_cube() {
    let states = power_fails(61);
    assert!(states > 3, "{states}");
}

#[test]
#[ignore = "all states; `cargo xtask crash` runs it"]
fn power_fails_in_all_states_of_a_move_into_a_cube() {
    message!("{} states", power_fails(one_in()));
}
