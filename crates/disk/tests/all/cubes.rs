//! Cubes: what belongs to one lies in its lots alone, also when a cube or the file system is full, and a crash while one is
//! made or removed leaves it whole or not there.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use floe_blockdev::{MemDevice, ReadBlocks, Recorder, WriteBlocks};
use floe_check::{CheckOptions, check};
use floe_disk::journal::Journal;
use floe_disk::mkfs::{self, Fresh, FsType, Options, Plan};
use floe_disk::ops::{Caller, NewCube, NewInode, OpError, RenameMode, Step};
use floe_disk::recovery::recover;
use floe_disk::volume::{Volume, cubes, seal};
use floe_ext4::cubes::stored;
use floe_ext4::fs::FileSystem;
use floe_ext4::map::file;
use floe_ext4::tx::{DirectTx, Tx};
use floe_format::ext::inode::Timestamp;
use floe_format::native::cube::{Policies, SubSuperblock};
use floe_format::native::identity::Identity;
use floe_format::{InodeNr, LogicalBlock};
use floe_testkit::crash::{Effort, each_state, tears};
use floe_testkit::{Image, oracle, tool};

const NOW: Timestamp = Timestamp { seconds: 1_700_000_000, nanoseconds: 5 };
const MIB: u64 = 1 << 20;
/// Groups of a lot.
const LOT_GROUPS: u32 = 4;

/// Lots of 4 MiB, with metadata regions.
fn native(mib: u64) -> MemDevice {
    let mut options = Options::of_type(FsType::Native);
    for (letter, value) in [('E', "lot_size=4m"), ('J', "size=4"), ('N', "1000")] {
        options.set(letter, value).unwrap();
    }
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now: NOW };
    let params = options.params(mib * MIB, None, &fresh).unwrap();
    let device = MemDevice::new(vec![0; (mib * MIB) as usize]);
    mkfs::write(&Plan::new(&params).unwrap(), &device).unwrap();
    device
}

fn new_cube(name: &'static str, limit_blocks: u64) -> NewCube<'static> {
    let path = name.as_bytes();
    let policies = Policies { limit_blocks, ..Policies::default() };
    NewCube {
        parent: InodeNr::ROOT,
        name: &path[1..],
        path,
        permissions: 0o755,
        journal_blocks: 0,
        policies,
    }
}

/// Owners of lots, and the cubes.
fn state(device: &dyn ReadBlocks) -> (BTreeMap<u32, u32>, BTreeMap<u32, SubSuperblock>) {
    let fs = FileSystem::open(device).unwrap();
    let (geometry, descs) = (fs.geometry(), fs.space.groups.descs());
    let subs = stored(device, &fs.superblock, geometry, descs, None);
    (cubes::owners(device, &fs.superblock, geometry, descs), subs)
}

fn leave(volume: &mut Volume, tx: &mut dyn Tx) {
    let epoch = volume.end_epoch();
    volume.durable(epoch);
    for lot in volume.lots_to_reserve() {
        volume.reserve_lot(tx, NOW, lot).unwrap();
    }
    volume.end_writing(tx, NOW).unwrap();
}

fn judge(device: &MemDevice, what: &str) {
    let report = check(device, &CheckOptions::default()).unwrap();
    assert!(report.found.is_empty(), "{what}: {:?}", report.found);
    let image = Image::empty(0).unwrap();
    std::fs::write(image.path(), device.to_vec()).unwrap();
    let verdict = oracle::e2fsck(&image).unwrap();
    assert!(verdict.clean() && verdict.problems.is_empty(), "{what}: {}", verdict.text);
}

/// Lots of all blocks of a file, and that of its inode.
fn lots_of(fs: &FileSystem, tx: &mut dyn Tx, inode: InodeNr) -> Vec<u32> {
    let geo = fs.geometry();
    let mut groups = vec![geo.place_of(inode).unwrap().0];
    let inode = fs.inode(tx, inode).unwrap();
    let (look, mut from) = (file::look(fs, &inode), 0);
    while let Some(extent) = look.next(tx, LogicalBlock(from)).unwrap() {
        from = extent.logical.0 + extent.run.len_blocks;
        groups.push(geo.group_of(extent.run.start).unwrap());
    }
    groups.into_iter().map(|group| group.0 / LOT_GROUPS).collect()
}

/// Writes to a file until nothing is left; returns the bytes.
fn fill(volume: &mut Volume, tx: &mut dyn Tx, device: &MemDevice, file: InodeNr) -> u64 {
    let caller = Caller::system(NOW);
    let mut size = 0;
    loop {
        match volume.write(tx, device, &caller, file, size, &[7; 100_000]) {
            Ok(()) => size += 100_000,
            Err(OpError::NoSpace) => return size,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_cube_grows_to_its_limit_and_stays_in_its_lots() {
    if tool::missing() {
        return;
    }
    let device = native(40);
    let mut volume = Volume::open(&device).unwrap();
    let mut tx = DirectTx::new(&device, volume.geometry().clone());
    let caller = Caller::system(NOW);
    volume.begin_writing(&mut tx, NOW).unwrap();
    let mut tops = Vec::new();
    for (name, limit) in [("/a", 3 * 1024), ("/b", 0)] {
        volume.create_cube(&mut tx, &caller, &new_cube(name, limit)).unwrap();
        let named = volume.lookup(&mut tx, InodeNr::ROOT, &name.as_bytes()[1..]).unwrap();
        tops.push(named.unwrap().inode);
    }
    let regular = NewInode::regular(0o644);
    let mut files = Vec::new();
    for (cube, dir) in [(0, InodeNr::ROOT), (1, tops[0]), (2, tops[1])] {
        for at in 0..5 {
            let name = format!("dir{at}");
            let new = NewInode::directory(0o755);
            let sub = volume.create(&mut tx, &caller, dir, name.as_bytes(), &new).unwrap();
            let file = volume.create(&mut tx, &caller, sub, b"file", &regular).unwrap();
            volume.write(&mut tx, &device, &caller, file, 0, &[7; 9000]).unwrap();
            files.extend([(cube, sub), (cube, file)]);
        }
    }
    let all = volume.create(&mut tx, &caller, tops[0], b"all", &regular).unwrap();
    let in_limited = fill(&mut volume, &mut tx, &device, all);
    assert!((8 * MIB..12 * MIB).contains(&in_limited), "three lots of 4 MiB: {in_limited}");
    let other = volume.create(&mut tx, &caller, tops[1], b"all", &regular).unwrap();
    assert!(fill(&mut volume, &mut tx, &device, other) > 10 * MIB);
    let root = volume.create(&mut tx, &caller, InodeNr::ROOT, b"all", &regular).unwrap();
    fill(&mut volume, &mut tx, &device, root);
    files.extend([(1, all), (2, other), (0, root)]);
    leave(&mut volume, &mut tx);
    tx.commit().unwrap();
    seal(&device).unwrap();
    judge(&device, "filled");
    let (owners, subs) = state(&device);
    assert_eq!(owners.values().filter(|cube| **cube == 1).count(), 3, "{owners:?}");
    assert_eq!(subs[&1].path, b"/a");
    let fs = FileSystem::open(&device).unwrap();
    for (cube, file) in files {
        for lot in lots_of(&fs, &mut tx, file) {
            assert_eq!(
                owners.get(&lot).copied().unwrap_or(0),
                cube,
                "{file} in lot {lot}: {owners:?}"
            );
        }
    }
}

#[test]
fn names_do_not_cross_cubes_and_refusals_change_nothing() {
    let device = native(24);
    let mut volume = Volume::open(&device).unwrap();
    let mut tx = DirectTx::new(&device, volume.geometry().clone());
    let caller = Caller::system(NOW);
    volume.begin_writing(&mut tx, NOW).unwrap();
    let root = InodeNr::ROOT;
    let low = volume.create_cube(&mut tx, &caller, &new_cube("/a", 1));
    assert!(matches!(low, Err(OpError::Invalid(_))), "{low:?}");
    let missing = volume.set_cube(&mut tx, &caller, 1, Policies::default());
    assert!(matches!(missing, Err(OpError::NotFound(_))), "{missing:?}");
    assert_eq!(volume.create_cube(&mut tx, &caller, &new_cube("/a", 0)).unwrap(), 1);
    let again = volume.create_cube(&mut tx, &caller, &new_cube("/a", 0));
    assert!(matches!(again, Err(OpError::Exists)), "{again:?}");
    let top = volume.lookup(&mut tx, root, b"a").unwrap().unwrap().inode;
    let inside = NewCube { parent: top, ..new_cube("/a", 0) };
    let nested = volume.create_cube(&mut tx, &caller, &inside);
    assert!(matches!(nested, Err(OpError::Unsupported(_))), "{nested:?}");
    let regular = NewInode::regular(0o644);
    let file = volume.create(&mut tx, &caller, root, b"file", &regular).unwrap();
    volume.create(&mut tx, &caller, top, b"own", &regular).unwrap();
    let linked = volume.link(&mut tx, &caller, file, top, b"link");
    assert!(matches!(linked, Err(OpError::CrossCube)), "{linked:?}");
    for (from, to) in
        [((root, &b"file"[..]), (top, &b"x"[..])), ((top, &b"own"[..]), (root, &b"x"[..]))]
    {
        let moved = volume.rename(&mut tx, &caller, from, to, RenameMode::Replace);
        assert!(matches!(moved, Err(OpError::CrossCube)), "{from:?}: {moved:?}");
    }
    let own = volume.rename(&mut tx, &caller, (root, b"a"), (root, b"x"), RenameMode::Replace);
    assert!(matches!(own, Err(OpError::NotPermitted(_))), "{own:?}");
    let over = ((top, &b"own"[..]), (top, &b"other"[..]));
    volume.rename(&mut tx, &caller, over.0, over.1, RenameMode::Replace).unwrap();
    let gone = volume.rmdir(&mut tx, &caller, root, b"a");
    assert!(matches!(gone, Err(OpError::NotPermitted(_))), "{gone:?}");
    let full = volume.remove_cube(&mut tx, &caller, 1, Some((root, b"a")));
    assert!(matches!(full, Err(OpError::NotEmpty)), "{full:?}");
    let mut made = 1;
    let names = ["/b", "/c", "/d", "/e", "/f"];
    let refused = names.into_iter().find(|name| {
        made += 1;
        volume.create_cube(&mut tx, &caller, &new_cube(name, 0)).is_err()
    });
    assert!(refused.is_some() && made > 3, "24 MiB have six lots");
    volume.remove_cube(&mut tx, &caller, 1, None).unwrap();
    volume.rename(&mut tx, &caller, (root, b"a"), (root, b"x"), RenameMode::Replace).unwrap();
    leave(&mut volume, &mut tx);
    tx.commit().unwrap();
    seal(&device).unwrap();
    let (owners, subs) = state(&device);
    assert!(!subs.contains_key(&1) && !owners.values().any(|cube| *cube == 1), "{owners:?}");
    if !tool::missing() {
        judge(&device, "refusals");
    }
}

/// A crash leaves all of a change or nothing.
fn crash(before: &MemDevice, change: fn(&mut Volume, &mut dyn Tx)) {
    let base = before.to_vec();
    let recorder = Recorder::new(MemDevice::new(base.clone()));
    let states = {
        let journal = Journal::open(&recorder).unwrap();
        let mut volume = Volume::open_journaled(&journal).unwrap();
        let mut run = |change: &dyn Fn(&mut Volume, &mut dyn Tx)| {
            let mut tx = journal.begin(60).unwrap();
            change(&mut volume, &mut tx);
            let epoch = volume.end_epoch();
            tx.finish().unwrap();
            journal.sync().unwrap();
            volume.durable(epoch);
        };
        run(&|volume, tx| volume.begin_writing(tx, NOW).unwrap());
        let states = vec![state(&journal)];
        run(&|volume, tx| change(volume, tx));
        let states = [states, vec![state(&journal)]].concat();
        run(&|volume, tx| leave(volume, tx));
        seal(&journal.close().unwrap()).unwrap();
        states
    };
    assert_ne!(states[0], states[1]);
    let trace = recorder.trace();
    let effort = Effort { random_per_epoch: 3, seed: 1 };
    let (mut seen, mut count) = ([false; 2], 0);
    let explored = each_state(&trace, &base, effort, |device, crash| -> Result<()> {
        let torn = crash.torn_bytes.is_some_and(|bytes| bytes % 512 != 0);
        if torn || tears(&trace, crash, 1024..2048) {
            return Ok(());
        }
        recover(&device)?;
        let found = state(&device);
        let index = states.iter().position(|state| *state == found);
        ensure!(index.is_some(), "{found:?} is neither of {states:?}");
        seen[index.unwrap_or(0)] = true;
        let report = check(&device, &CheckOptions { threads: 1, ..CheckOptions::default() })?;
        let orphans = |id: &str| id.contains("orphan");
        let others = report.found.iter().filter(|problem| !orphans(problem.row().id));
        ensure!(others.count() == 0, "{:?}", report.found);
        count += 1;
        Ok(())
    });
    explored.unwrap();
    assert!(seen == [true; 2] && count > 20, "{seen:?}, {count} states");
}

fn create(volume: &mut Volume, tx: &mut dyn Tx) {
    volume.create_cube(tx, &Caller::system(NOW), &new_cube("/a", 0)).unwrap();
}

#[test]
fn a_crash_leaves_a_cube_whole_or_not_there() {
    let device = native(16);
    crash(&device, create);
    let mut volume = Volume::open(&device).unwrap();
    let mut tx = DirectTx::new(&device, volume.geometry().clone());
    volume.begin_writing(&mut tx, NOW).unwrap();
    create(&mut volume, &mut tx);
    leave(&mut volume, &mut tx);
    tx.commit().unwrap();
    seal(&device).unwrap();
    assert!(Identity::is_sealed(&FileSystem::open(&device).unwrap().superblock));
    crash(&device, |volume, tx| {
        let policies = Policies { limit_blocks: 2048, ..Policies::default() };
        volume.set_cube(tx, &Caller::system(NOW), 1, policies).unwrap();
    });
    crash(&device, |volume, tx| {
        let caller = Caller::system(NOW);
        let place = Some((InodeNr::ROOT, &b"a"[..]));
        let removed = volume.remove_cube(tx, &caller, 1, place).unwrap().unwrap();
        let none = MemDevice::new(Vec::new());
        let step = volume.finish_orphan(tx, &none, &caller, removed.inode).unwrap();
        assert_eq!(step, Step::Done);
    });
}

/// Either copy of a sub-superblock is enough.
#[test]
fn a_cube_is_known_by_either_copy() {
    let device = native(16);
    let mut volume = Volume::open(&device).unwrap();
    let mut tx = DirectTx::new(&device, volume.geometry().clone());
    volume.begin_writing(&mut tx, NOW).unwrap();
    create(&mut volume, &mut tx);
    leave(&mut volume, &mut tx);
    tx.commit().unwrap();
    seal(&device).unwrap();
    let before = state(&device);
    let bytes = device.to_vec();
    let copies: Vec<usize> = (0..bytes.len() / 4096)
        .filter(|at| {
            let block: &[u8; 4096] = bytes[at * 4096..][..4096].try_into().unwrap();
            SubSuperblock::decode(block).is_some() && !is_in_journal(&device, *at as u64)
        })
        .collect();
    assert_eq!(copies.len(), 2);
    for copy in &copies {
        let damaged = MemDevice::new(bytes.clone());
        damaged.write_at(*copy as u64 * 4096 + 200, &[1]).unwrap();
        assert_eq!(state(&damaged), before);
    }
    let lost = MemDevice::new(bytes);
    copies.iter().for_each(|copy| lost.write_at(*copy as u64 * 4096 + 200, &[1]).unwrap());
    assert_eq!((state(&lost).0, state(&lost).1.len()), (before.0, 0));
}

fn is_in_journal(device: &MemDevice, block: u64) -> bool {
    let fs = FileSystem::open(device).unwrap();
    let mut tx = DirectTx::new(device, fs.geometry().clone());
    let inode = fs.inode(&mut tx, InodeNr(8)).unwrap();
    let extent = file::look(&fs, &inode).next(&mut tx, LogicalBlock(0)).unwrap().unwrap();
    (extent.run.start.0..extent.run.end().0).contains(&block)
}
