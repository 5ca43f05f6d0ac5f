//! Cubes of a file system in use: whatever fails in one stays there, while another one and the root serve reads and writes with
//! unchanged results; a cube is checked and repaired while the others are served.

use floe_blockdev::{MemDevice, ReadBlocks, WriteBlocks};
use floe_check::cube::{CubeName, CubeScope, Cubes};
use floe_check::problem::Weight;
use floe_check::{CheckOptions, check};
use floe_ext4::alloc::Space as _;
use floe_ext4::fs::FileSystem as Layout;
use floe_ext4::inode_table::{inode_place, read_inode};
use floe_format::ext::inode::{Inode, OwnedInode};
use floe_format::native::cube::{OnError, Policies, Recovery, State};
use floe_format::{BlockNr, InodeNr};
use floe_fs::{
    Caller, CubeCall, FileSystem, FsError, Mode, NewInode, OpKind, Place, Settings, Store, Which,
};
use floe_sync::atomic::{AtomicBool, Ordering};
use floe_sync::thread;
use floe_testkit::rng::Rng;

mod above;
mod counts;
mod coupled;
mod descriptors;
mod faults;
mod journals;
mod modes;
mod online_random;
mod policies;
mod several;
mod states;
pub(crate) mod struck;
pub(crate) mod superblocks;
mod waiting;
pub(crate) mod weighed;
mod weighed_random;

use faults::structures;
use struck::{BLOCK, MIB, Tenants, find, image, laid_out, load, make, op, read, used, write};

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
                    let call =
                        CubeCall::Check { cube: Which::Of(a), repairs: true, undo: Some(path) };
                    fs.cube_call(&call).unwrap();
                }
                fs.tend().unwrap();
                done.store(true, Ordering::SeqCst);
                others.join().unwrap();
            });
            let report =
                String::from_utf8(fs.cube_call(&CubeCall::Report(Which::Of(a))).unwrap()).unwrap();
            assert!(report.starts_with("state: repaired"), "{report}");
            assert!(report.contains("(/a/file3"), "the path of the file: {report}");
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
    let policies = Policies { on_error: OnError::Crash, ..Policies::default() };
    let device = MemDevice::new(laid_out(Tenants::Apart, policies));
    let block = structures(&device, Tenants::Apart)
        .iter()
        .find(|(what, _)| *what == "attribute block")
        .unwrap()
        .1;
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
        fs.cube_call(&CubeCall::Check { cube: Which::Of(a), repairs: true, undo: None }).unwrap();
        fs.tend().unwrap();
        let report = fs.cube_call(&CubeCall::Report(Which::Of(a))).unwrap();
        let report = String::from_utf8(report).unwrap();
        // The record of the failure was not written into the cube.
        assert!(report.starts_with("state: repaired\nfinding: cube-copy-damaged"), "{report}");
        assert_eq!(report.lines().count(), 3, "{report}");
        let failed = load(fs, a, 1);
        assert!(failed.is_empty(), "{failed:?}");
    });
    closed.unwrap();
    assert_eq!(scope(&device).sub.state, State::Sound);
    assert!(check(&device, &CheckOptions::default()).unwrap().found.is_empty());
}

#[test]
fn files_that_are_open_without_a_name_outlive_the_removal_of_a_cube() {
    let device = MemDevice::new(image(Policies::default()));
    let ((), closed) = used(&device, |fs| {
        let top = find(fs, InodeNr::ROOT, "a").unwrap();
        let held = [InodeNr::ROOT, top].map(|directory| {
            let file = make(fs, directory, "held", NewInode::regular(0o644)).unwrap();
            write(fs, file, 0, &[1; 5000]).unwrap();
            fs.hold(directory, file).unwrap();
            fs.apply(&op(OpKind::Unlink(Place { directory, name: b"held" }))).unwrap();
            fs.sync().unwrap();
            file
        });
        let (parent, settings) = (InodeNr::ROOT, Settings::default());
        fs.cube_call(&CubeCall::Create { parent, name: b"new", settings }).unwrap();
        fs.cube_call(&CubeCall::Remove { parent, name: b"new", keep_files: false }).unwrap();
        for file in held {
            assert_eq!(read(fs, file, 5000).unwrap(), [1; 5000]);
            write(fs, file, 4000, &[2; 3000]).unwrap();
            fs.sync_inode(file, None).unwrap();
            let other = make(fs, InodeNr::ROOT, &format!("other-{file}"), NewInode::regular(0o644));
            assert_ne!(other.unwrap(), file, "its number is in use");
            fs.forget(file, 1).unwrap();
        }
    });
    closed.unwrap();
    let found = check(&device, &CheckOptions::default()).unwrap().found;
    assert!(found.is_empty(), "{found:?}");
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
        // While it waits, with what its map may take.
        assert!((256..280).contains(&used), "{used} blocks");
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

/// The inode of a cube's own directory is repaired while others are served, by its checksum, its bytes, or the name that leads to it.
#[test]
fn the_own_directory_of_a_cube_is_repaired_online() {
    let made = image(Policies { recovery: Recovery::Online, ..Policies::default() });
    let top = scope(&MemDevice::new(made.clone())).top();
    for (bytes, is_mended) in [(1, true), (256, false)] {
        let device = MemDevice::new(made.clone());
        let layout = Layout::open(&device).unwrap();
        let descs = layout.space.groups().descs();
        let (block, at) = inode_place(top, layout.geometry(), descs).unwrap();
        let place = layout.geometry().offset_bytes(block) + at as u64;
        let mut raw = vec![0; bytes];
        device.read_at(place, &mut raw).unwrap();
        let flipped = raw[0] ^ 0x21;
        raw.fill(0);
        raw[0] = if is_mended { flipped } else { 0 };
        device.write_at(place, &raw).unwrap();
        let ((), closed) = used(&device, |fs| {
            assert!(matches!(find(fs, InodeNr::ROOT, "a"), Err(FsError::Damaged { .. })));
            let gates = fs.store().gates().unwrap();
            assert_eq!(gates.state(1).0, Mode::ReadOnly);
            fs.tend().unwrap();
            let report = fs.cube_call(&CubeCall::Report(Which::Number(1))).unwrap();
            let report = String::from_utf8(report).unwrap();
            assert!(report.starts_with("state: repaired"), "{report}");
            assert_eq!(gates.state(1).0, Mode::Serving);
            if is_mended {
                let failed = load(fs, find(fs, InodeNr::ROOT, "a").unwrap(), 1);
                assert!(failed.is_empty(), "{failed:?}");
            }
            let failed = load(fs, find(fs, InodeNr::ROOT, "b").unwrap(), 1);
            assert!(failed.is_empty(), "{failed:?}");
        });
        closed.unwrap();
        // One that was lost is made anew below the directory whose name leads to it; its names are in the cube's `lost+found`.
        let found = check(&device, &CheckOptions::default()).unwrap().found;
        assert!(found.iter().all(|problem| problem.row().weight == Weight::Remark), "{found:?}");
    }
}

/// A node of an extent tree in another cube is not followed, although its checksum, which depends on the file alone, is right.
#[test]
fn nodes_of_maps_in_another_cube_are_refused() {
    let device = MemDevice::new(image(Policies::default()));
    let ((spread, victim), closed) = used(&device, |fs| {
        let tops = ["a", "b"].map(|name| find(fs, InodeNr::ROOT, name).unwrap());
        let file = make(fs, tops[1], "victim", NewInode::regular(0o644)).unwrap();
        write(fs, file, 0, &[9; 4096]).unwrap();
        (find(fs, tops[0], "spread").unwrap(), file)
    });
    closed.unwrap();
    let node = structures(&device, Tenants::Shared);
    let node = node.iter().find(|(what, _)| *what == "extent node").unwrap().1;
    let foreign = blocks(&device, victim)[0].1;
    let mut bytes = vec![0; BLOCK as usize];
    device.read_at(node * BLOCK, &mut bytes).unwrap();
    device.write_at(foreign * BLOCK, &bytes).unwrap();
    edit(&device, spread, |inode| {
        inode.base.block[16..20].copy_from_slice(&(foreign as u32).to_le_bytes());
    });
    let problems = check(&device, &CheckOptions::default()).unwrap().found;
    let outside = |problem: &floe_check::Problem| {
        let id = problem.row().id;
        id == "cube-blocks-outside" && problem.inode() == Some(spread)
    };
    assert!(problems.iter().any(outside), "{problems:?}");
    let ((), closed) = used(&device.clone(), |fs| {
        let gates = fs.store().gates().unwrap();
        let fails = |failed: Result<(), FsError>| {
            assert!(
                matches!(failed, Err(FsError::Damaged { .. } | FsError::ReadOnly)),
                "{failed:?}"
            );
        };
        fails(read(fs, spread, 100).map(drop));
        assert_eq!((gates.state(1).0, gates.state(2).0), (Mode::ReadOnly, Mode::Serving));
        fails(write(fs, spread, 0, &[1; 100]));
        assert_eq!(read(fs, victim, 4096).unwrap(), bytes);
    });
    closed.unwrap();
    // The same where nothing was read before.
    let ((), closed) = used(&device, |fs| {
        let failed = write(fs, spread, 0, &[1; 100]);
        assert!(matches!(failed, Err(FsError::Damaged { .. })), "{failed:?}");
        assert_eq!(read(fs, victim, 4096).unwrap(), bytes);
    });
    closed.unwrap();
}

/// Content of cubes is written before the changes that map it, by plans of which each knows the file as it was: none may spoil what
/// another one wrote. Beside a model, with sizes in the middle of blocks, gaps and repeated writes.
#[test]
fn content_that_is_written_ahead_is_that_of_all_writes_in_their_order() {
    for layout in [Tenants::Shared, Tenants::Apart] {
        let device = MemDevice::new(laid_out(layout, Policies::default()));
        let (mut rng, mut models) = (Rng::new(11), Vec::new());
        let ((), closed) = used(&device, |fs| {
            for nr in 0..120 {
                let top = find(fs, InodeNr::ROOT, ["a", "b"][nr % 2]).unwrap();
                let file = make(fs, top, &format!("model{nr}"), NewInode::regular(0o644)).unwrap();
                let mut model: Vec<u8> = Vec::new();
                for turn in 0..4usize {
                    // Pages, as the kernel sends them.
                    let len = *rng.pick(&[1, 1809, 2500, 4096]).unwrap();
                    let at = if turn == 0 { 0 } else { rng.index(5) * 4096 };
                    let bytes = vec![(turn * 60 + nr) as u8; len];
                    write(fs, file, at as u64, &bytes).unwrap();
                    model.resize(model.len().max(at + len), 0);
                    model[at..at + len].copy_from_slice(&bytes);
                    if [0, 3].contains(&turn) || rng.chance(6) {
                        fs.sync_inode(file, None).unwrap();
                    }
                }
                models.push(model);
            }
        });
        closed.unwrap();
        let ((), closed) = used(&device, |fs| {
            for (nr, model) in models.iter().enumerate() {
                let top = find(fs, InodeNr::ROOT, ["a", "b"][nr % 2]).unwrap();
                let file = find(fs, top, &format!("model{nr}")).unwrap();
                let found = read(fs, file, 30_000).unwrap();
                let differs = found.iter().zip(model).position(|(one, other)| one != other);
                assert_eq!((found.len(), differs), (model.len(), None), "{layout:?}, file {nr}");
            }
        });
        closed.unwrap();
    }
}
