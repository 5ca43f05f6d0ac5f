//! Cubes of a file system in use: whatever fails in one stays there, while another one and the root serve reads and writes with
//! unchanged results; a cube is checked and repaired while the others are served.

use floe_blockdev::{MemDevice, ReadBlocks, WriteBlocks};
use floe_check::cube::{CubeName, CubeScope, Cubes, check_cube};
use floe_check::problem::Weight;
use floe_check::{CheckOptions, check};
use floe_disk::recovery::recover;
use floe_ext4::alloc::Space as _;
use floe_ext4::fs::FileSystem as Layout;
use floe_ext4::inode_table::{inode_place, read_inode};
use floe_format::ext::inode::{Inode, InodeFlags, OwnedInode};
use floe_format::native::cube::{OnError, Policies, Recovery, State, SubSuperblock};
use floe_format::native::identity::Identity;
use floe_format::{BlockNr, GroupNr, InodeNr};
use floe_fs::{
    Caller, CubeCall, FileSystem, FsError, Mode, NewInode, OpKind, Place, Settings, Store,
};
use floe_sync::atomic::{AtomicBool, Ordering};
use floe_sync::thread;

mod struck;

use struck::{BLOCK, MIB, Strike, Struck, find, image, load, make, op, read, used, write};

/// The blocks of cube `/a` by the structure that they hold.
fn structures(device: &dyn ReadBlocks) -> Vec<(&'static str, u64)> {
    let layout = Layout::open(device).unwrap();
    let geo = layout.geometry();
    let descs = layout.space.groups().descs();
    let scope = scope(device);
    let mut all: Vec<(&str, u64)> = Vec::new();
    let file = InodeNr(Identity::of(&layout.superblock).unwrap().super_inode);
    all.extend(blocks(device, file).into_iter().filter_map(|(logical, block)| {
        SubSuperblock::places(1).contains(&logical).then_some(("sub-superblock", block))
    }));
    let groups: Vec<GroupNr> = scope.groups().collect();
    all.push(("descriptors", geo.primary_desc_block(groups[0].0 / 4).0));
    for group in groups {
        let desc = descs[group.0 as usize];
        all.push(("block bitmap", desc.block_bitmap.0));
        all.push(("inode bitmap", desc.inode_bitmap.0));
        all.extend(
            (0..u64::from(geo.inode_table_blocks))
                .map(|at| ("inode table", desc.inode_table.0 + at)),
        );
        all.extend(geo.superblock_of(group).map(|block| ("superblock copy", block.0)));
        for index in 0..geo.inodes_per_group {
            let number = geo.inode_at(group, index);
            let Some(raw) = read_inode(number, device, geo, descs) else { continue };
            let inode = Inode::decode(&raw).unwrap();
            if inode.base.links_count == 0 || inode.flags().contains(InodeFlags::IMMUTABLE) {
                continue;
            }
            let is_dir = inode.base.mode & 0o170_000 == 0o040_000;
            let what = if is_dir { "directory block" } else { "data" };
            all.extend(blocks(device, number).into_iter().take(40).map(|(_, block)| (what, block)));
            if inode.base.file_acl_lo > 0 {
                all.push(("attribute block", u64::from(inode.base.file_acl_lo)));
            }
            // The root of a tree names its node.
            if inode.base.block[6] > 0 {
                let node = u32::from_le_bytes(*inode.base.block[16..20].first_chunk().unwrap());
                all.push(("extent node", u64::from(node)));
            }
        }
    }
    all
}

fn blocks(device: &dyn ReadBlocks, inode: InodeNr) -> Vec<(u64, u64)> {
    let layout = Layout::open(device).unwrap();
    let raw = read_inode(inode, device, layout.geometry(), layout.space.groups().descs()).unwrap();
    let inode = Inode::decode(&raw).unwrap();
    let map = floe_ext4::map::runs::BlockMap::of(&inode, device, layout.geometry(), u64::MAX);
    let runs = map.unwrap().runs().to_vec();
    let each = runs.iter().flat_map(|extent| {
        (0..extent.run.len_blocks).map(|at| (extent.logical.0 + at, extent.run.start.0 + at))
    });
    each.collect()
}

fn scope(device: &dyn ReadBlocks) -> CubeScope {
    let cubes = Cubes::of(device, &CheckOptions::default()).unwrap();
    cubes.find(&CubeName::of(b"/a")).unwrap()
}

/// What one fault did.
#[derive(Debug, Default)]
struct Outcome {
    is_hit: bool,
    /// The cube said so: a call failed, or it is not served as before.
    is_noticed: bool,
}

/// Lets a fault happen in cube `/a` while `/a`, `/b` and the root are used in turns.
fn strike(bytes: &[u8], what: &str, block: u64, strike: Strike) -> Outcome {
    let device = Struck::new(bytes.to_vec(), strike);
    let context = format!("{strike:?} of {what} in block {block}");
    let (outcome, closed) = used(&device, |fs| {
        let top = |name| find(fs, InodeNr::ROOT, name).unwrap();
        let (a, b) = (top("a"), top("b"));
        device.arm(block);
        let mut errors = Vec::new();
        for turn in 0..3 {
            errors.extend(load(fs, a, turn));
            for (name, other) in [("b", b), ("root", InodeNr::ROOT)] {
                let failed = load(fs, other, turn);
                assert!(failed.is_empty(), "{context}: {name} failed, too: {failed:?}");
            }
        }
        assert_eq!(fs.store().gates().unwrap().state(2).0, Mode::Serving, "{context}");
        assert!(!fs.is_read_only(), "{context}: all is read-only");
        let mode = fs.store().gates().unwrap().state(1).0;
        let is_noticed = !errors.is_empty() || mode != Mode::Serving;
        let synced = fs.sync();
        // Blocks go home from the journal, which belongs to all, when it is closed.
        assert!(synced.is_ok() || strike == Strike::WriteError, "{context}: {synced:?}");
        if strike == Strike::Panic {
            // A bug that is met again when the mount ends leaves a journal to recover, as a crash does.
            device.disarm();
        }
        Outcome { is_hit: device.hits.load(Ordering::SeqCst) > 0, is_noticed }
    });
    assert!(closed.is_ok() || strike != Strike::Panic, "{context}: {closed:?}");
    // On a sound medium everything of the others is there.
    recover(&device.base).unwrap();
    let options = CheckOptions::default();
    let (report, _) = check_cube(&device.base, &options, &CubeName::of(b"/b")).unwrap();
    assert!(report.found.is_empty(), "{context}: {:?}", report.found);
    Outcome { is_hit: outcome.is_hit || device.hits.load(Ordering::SeqCst) > 0, ..outcome }
}

/// One of each kind.
#[test]
fn faults_stay_in_their_cube() {
    let (faults, hit, noticed) = strike_all(1);
    assert!(faults >= 45 && hit >= 35 && noticed >= 20, "{faults}, {hit} met, {noticed} noticed");
}

/// Lets faults of all kinds happen in all structures, at most so many of each kind: how many there were, how many were met, and
/// how many were noticed.
fn strike_all(most: u32) -> (u32, u32, u32) {
    let _quiet = quiet();
    let ro = image(Policies::default());
    let crash = image(Policies { on_error: OnError::Crash, ..Policies::default() });
    let mut by_kind = std::collections::BTreeMap::new();
    let (mut faults, mut noticed, mut hit) = (0, 0, 0);
    for (number, (what, block)) in structures(&MemDevice::new(ro.clone())).into_iter().enumerate() {
        for kind in
            [Strike::ReadError, Strike::WriteError, Strike::Flipped, Strike::Zeroed, Strike::Panic]
        {
            // Data have no checksums: nobody can notice other bytes.
            if what == "data" && matches!(kind, Strike::Flipped | Strike::Zeroed) {
                continue;
            }
            let count = by_kind.entry((what, format!("{kind:?}"))).or_insert(0);
            *count += 1;
            if *count > most {
                continue;
            }
            let outcome = strike(if number % 2 == 0 { &ro } else { &crash }, what, block, kind);
            faults += 1;
            hit += u32::from(outcome.is_hit);
            noticed += u32::from(outcome.is_noticed);
        }
    }
    (faults, hit, noticed)
}

/// Messages of panics that are wanted are left out.
fn quiet() -> impl Drop {
    struct Loud;
    impl Drop for Loud {
        fn drop(&mut self) {
            if !thread::panicking() {
                let _ = std::panic::take_hook();
            }
        }
    }
    std::panic::set_hook(Box::new(|info| {
        if info.payload().downcast_ref::<&str>() != Some(&"a bug, as wanted") {
            eprintln!("{info}");
        }
    }));
    Loud
}

/// Changes an inode of a device with the right checksum.
fn edit(device: &dyn WriteBlocks, number: InodeNr, edit: impl FnOnce(&mut OwnedInode)) {
    let layout = Layout::open(device).unwrap();
    let descs = layout.space.groups().descs();
    let (block, at) = inode_place(number, layout.geometry(), descs).unwrap();
    let raw = read_inode(number, device, layout.geometry(), descs).unwrap();
    let mut inode = OwnedInode::of(number, raw).unwrap();
    edit(&mut inode);
    let seal = inode.seal(Some(layout.superblock.seed())).to_vec();
    device.write_at(layout.geometry().offset_bytes(block) + at as u64, &seal).unwrap();
}

fn names<S: Store>(fs: &FileSystem<S>, dir: InodeNr) -> Vec<String> {
    let mut names = Vec::new();
    let _ = fs.list(&Caller::Judged, dir, 0, |listed| {
        names.push(String::from_utf8_lossy(listed.name).into_owned());
        true
    });
    names
}

/// A wrong map and a directory with damaged names, found and repaired while `/b` is used all the time.
#[test]
fn a_cube_is_checked_and_repaired_while_the_others_are_served() {
    for recovery in [Recovery::Manual, Recovery::Online] {
        let device = MemDevice::new(image(Policies { recovery, ..Policies::default() }));
        let (dir_block, file) = {
            let layout = Layout::open(&device).unwrap();
            drop(layout);
            let ((top, file), closed) = used(&device, |fs| {
                let top = find(fs, InodeNr::ROOT, "a").unwrap();
                (top, find(fs, top, &format!("file3{}", "-".repeat(180))).unwrap())
            });
            closed.unwrap();
            (blocks(&device, top)[1].1, file)
        };
        device.write_at(dir_block * BLOCK + 100, b"damage").unwrap();
        // A map that leads behind the end of the file system.
        edit(&device, file, |inode| inode.base.block[20..24].fill(0x7f));
        let undo = tempfile::tempdir().unwrap();
        let ((), closed) = used(&device, |fs| {
            let (a, b) =
                (find(fs, InodeNr::ROOT, "a").unwrap(), find(fs, InodeNr::ROOT, "b").unwrap());
            let gates = fs.store().gates().unwrap();
            assert!(!load(fs, a, 0).is_empty());
            assert_eq!(gates.state(1).0, Mode::ReadOnly);
            assert!(matches!(make(fs, a, "x", NewInode::regular(0o644)), Err(FsError::ReadOnly)));
            assert!(gates.failures()[0].2.contains("damaged"), "{:?}", gates.failures());
            let done = AtomicBool::new(false);
            thread::scope(|scope| {
                let others = scope.spawn(|| {
                    let mut turn = 0;
                    while turn < 3 || !done.load(Ordering::SeqCst) {
                        let failed = load(fs, b, turn);
                        assert!(failed.is_empty(), "{failed:?}");
                        turn += 1;
                    }
                });
                if recovery == Recovery::Manual {
                    let path = undo.path().join("undo");
                    let call = CubeCall::Check { inode: a, repairs: true, undo: Some(path) };
                    fs.cube_call(&call).unwrap();
                }
                fs.tend().unwrap();
                done.store(true, Ordering::SeqCst);
                others.join().unwrap();
            });
            let report = String::from_utf8(fs.cube_call(&CubeCall::Report(a)).unwrap()).unwrap();
            assert!(report.starts_with("state: repaired"), "{report}");
            assert_eq!(gates.state(1), (Mode::Serving, None));
            // The repair dropped the map that led nowhere, and with it the content.
            write(fs, file, 0, &[3; 3000]).unwrap();
            let left = load(fs, a, 1);
            assert!(left.iter().all(|error| matches!(error, FsError::NotFound)), "{left:?}");
            make(fs, a, "afterwards", NewInode::regular(0o644)).unwrap();
            assert!(names(fs, a).contains(&"afterwards".to_owned()));
            assert_eq!(fs.take_stale(), [(InodeNr::ROOT, b"a".to_vec())]);
        });
        closed.unwrap();
        let found = check(&device, &CheckOptions::default()).unwrap().found;
        assert!(found.iter().all(|problem| problem.row().weight == Weight::Remark), "{found:?}");
        assert_eq!(recovery == Recovery::Manual, undo.path().join("undo").exists());
    }
}

#[test]
fn a_failure_is_recorded_and_the_next_mount_knows_it() {
    let device =
        MemDevice::new(image(Policies { on_error: OnError::Crash, ..Policies::default() }));
    let block = structures(&device).iter().find(|(what, _)| *what == "attribute block").unwrap().1;
    let mut kept = vec![0; BLOCK as usize];
    device.read_at(block * BLOCK, &mut kept).unwrap();
    device.write_at(block * BLOCK + 40, b"damage").unwrap();
    let ((), closed) = used(&device, |fs| {
        let a = find(fs, InodeNr::ROOT, "a").unwrap();
        assert!(!load(fs, a, 0).is_empty());
        assert_eq!(fs.store().gates().unwrap().state(1).0, Mode::Failed);
        assert!(matches!(fs.attributes(a), Err(FsError::CubeFailed { cube: 1 })));
    });
    closed.unwrap();
    let found = check(&device, &CheckOptions::default()).unwrap().found;
    assert!(found.iter().any(|problem| problem.row().id == "cube-failure-recorded"), "{found:?}");
    assert_eq!(scope(&device).sub.state, State::Failed);
    // The damage is gone, but nobody has checked that.
    device.write_at(block * BLOCK, &kept).unwrap();
    let ((), closed) = used(&device, |fs| {
        let a = find(fs, InodeNr::ROOT, "a").unwrap();
        assert!(matches!(read(fs, a, 1), Err(FsError::CubeFailed { cube: 1 })));
        fs.cube_call(&CubeCall::Check { inode: a, repairs: false, undo: None }).unwrap();
        fs.tend().unwrap();
        let report = fs.cube_call(&CubeCall::Report(a)).unwrap();
        assert_eq!(String::from_utf8(report).unwrap(), "state: sound\n");
        let failed = load(fs, a, 1);
        assert!(failed.is_empty(), "{failed:?}");
    });
    closed.unwrap();
    assert_eq!(scope(&device).sub.state, State::Sound);
    assert!(check(&device, &CheckOptions::default()).unwrap().found.is_empty());
}

#[test]
fn cubes_are_made_changed_and_removed_while_the_file_system_is_used() {
    let device = MemDevice::new(image(Policies::default()));
    let ((), closed) = used(&device, |fs| {
        let dir = make(fs, InodeNr::ROOT, "dir", NewInode::directory(0o755)).unwrap();
        let settings = Settings::parse("max_size=8388608 on_error=repair").unwrap();
        let call = CubeCall::Create { parent: dir, name: b"new", settings };
        assert_eq!(fs.cube_call(&call).unwrap(), b"3");
        let top = find(fs, dir, "new").unwrap();
        assert_eq!(fs.take_stale(), [(dir, b"new".to_vec())]);
        let show =
            |inode| String::from_utf8(fs.cube_call(&CubeCall::Show(inode)).unwrap()).unwrap();
        assert!(show(top).starts_with("cube=3\tpath=/dir/new\t"), "{}", show(top));
        assert!(
            show(top).contains("\ton_error=ro\trecovery=online\tmode=serving"),
            "{}",
            show(top)
        );
        let space = fs.space_of(top);
        assert_eq!(space.blocks, 8 * MIB / BLOCK);
        assert!(fs.space_of(dir).blocks > space.blocks);
        let file = make(fs, top, "file", NewInode::regular(0o644)).unwrap();
        write(fs, file, 0, &vec![1; 1 << 20]).unwrap();
        let used = space.free_blocks - fs.space_of(file).free_blocks;
        assert!((256..260).contains(&used), "{used} blocks");
        fs.cube_call(&CubeCall::Set(file, Settings::parse("max_size=none").unwrap())).unwrap();
        assert!(show(top).contains("max_size_bytes=0"));
        let again = fs.cube_call(&call);
        assert!(matches!(again, Err(FsError::Exists)), "{again:?}");
        let inner = fs.cube_call(&CubeCall::Create { parent: top, name: b"x", settings });
        assert!(matches!(inner, Err(FsError::Unsupported(_))), "{inner:?}");
        let remove = CubeCall::Remove { parent: dir, name: b"new", keep_files: false };
        assert!(matches!(fs.cube_call(&remove), Err(FsError::NotEmpty)));
        fs.apply(&op(OpKind::Unlink(Place { directory: top, name: b"file" }))).unwrap();
        fs.sync().unwrap();
        fs.cube_call(&remove).unwrap();
        assert!(matches!(find(fs, dir, "new"), Err(FsError::NotFound)));
        assert_eq!(fs.cube_call(&CubeCall::List).unwrap(), b"1 2");
        assert!(matches!(fs.cube_call(&CubeCall::Show(dir)), Err(FsError::NoAttribute)));
    });
    closed.unwrap();
    let found = check(&device, &CheckOptions::default()).unwrap().found;
    assert!(found.is_empty(), "{found:?}");
}

/// The first lot of a cube holds no block of another one.
#[test]
fn lists_of_lots_are_renewed_when_writing_ends() {
    let device = MemDevice::new(image(Policies::default()));
    let ((), closed) = used(&device, |fs| {
        let a = find(fs, InodeNr::ROOT, "a").unwrap();
        let big = make(fs, a, "big", NewInode::regular(0o644)).unwrap();
        write(fs, big, 0, &vec![3; 5 << 20]).unwrap();
    });
    closed.unwrap();
    let scope = scope(&device);
    assert!(
        scope.sub.lots.len() > 1 && scope.holds_block(BlockNr(blocks(&device, scope.top())[0].1))
    );
    let found = check(&device, &CheckOptions::default()).unwrap().found;
    assert!(found.is_empty(), "{found:?}");
}
