//! After another system has put blocks of files into other cubes: a repair moves them back, whatever Linux did, and records which
//! cubes still share files.

use std::fs as host;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::*;
use floe_format::native::identity::{FLAG_COUPLED, FLAG_COUPLES_KNOWN};
use floe_repair::policy::{Decision, Policy, Preen};
use floe_testkit::kernel;

/// An image of [`cubes_in`], in a file.
pub(super) fn image_of(device: &MemDevice) -> Image {
    Image::of(device).unwrap()
}

fn flags(device: &dyn ReadBlocks) -> u16 {
    Identity::of(&fs(device).superblock).unwrap().flags & (FLAG_COUPLED | FLAG_COUPLES_KNOWN)
}

/// The files of an image as the small reader of the testkit sees them, but for Floe's own.
pub(super) fn files(image: &Image) -> tree::Tree {
    let mut all = tree::stored(image).unwrap();
    all.retain(|path, _| !path.starts_with(b"/.cubes"));
    all
}

/// Whether all is the same but for numbers of inodes, and hard links are the same files.
pub(super) fn same(one: &tree::Tree, other: &tree::Tree) -> bool {
    let mut numbers = BTreeMap::new();
    let plain = |node: &tree::Node| tree::Node { inode: InodeNr(0), ..node.clone() };
    one.len() == other.len()
        && one.iter().zip(other).all(|((path, one), (other_path, other))| {
            let known = *numbers.entry(one.inode).or_insert(other.inode);
            path == other_path && plain(one) == plain(other) && known == other.inode
        })
}

/// A second repair finds nothing to do.
fn is_done(image: &Image) {
    let again = judged::program(image.path()).unwrap();
    assert_eq!(again.exit, Some(0), "{}", again.text);
}

/// How many entangled files and names there are.
pub(super) fn entangled(device: &dyn ReadBlocks) -> (usize, usize) {
    let all = found(device);
    assert!(all.iter().all(|problem| problem.row().weight == Weight::Remark), "{all:?}");
    let of = |id| all.iter().filter(|problem| problem.row().id == id).count();
    (of("cube-entangled-blocks"), of("cube-entangled-name"))
}

/// As Linux leaves it after it has filled directories of all cubes: many files, large ones, appends, attributes, directories in
/// directories, links and renames across cubes. `names`: it also lets names lead from one cube into another.
pub(super) fn relay(image: &Image, seed: u64, names: bool) {
    let mut random = Rng::new(seed);
    let theirs = kernel::Mounted::new(image.path(), "").unwrap();
    let tops = ["above/c1", "c2", "c3"].map(|top| theirs.path().join(top));
    let old: Vec<_> =
        tops.iter().flat_map(|top| [top.join("dir0/file0"), top.join("dir0/file8")]).collect();
    for (at, path) in (0u64..).zip(&old) {
        let file = host::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(&vec![at as u8 + 1; 300_000 + at as usize * 4096], 5000).unwrap();
    }
    for (at, top) in (0u8..).zip(&tops) {
        for number in 0..30u8 {
            let len = 1 + random.below(60_000) as usize;
            let file = top.join(format!("dir0/linux{number}"));
            host::write(&file, vec![at * 30 + number; len]).unwrap();
            if number % 3 == 0 {
                let value = vec![b'a' + number; 600 + random.below(3000) as usize];
                set_attribute(&file, &value[..value.len().min(3500)]);
            }
            if number % 7 == 0 {
                // Holes, so that the map gets nodes.
                let sparse = host::OpenOptions::new().write(true).open(&file).unwrap();
                for part in 0..40u64 {
                    sparse.write_all_at(b"part", (part * 3 + 20) * BLOCK).unwrap();
                }
            }
        }
        host::write(top.join("dir0/large"), vec![at; 800_000]).unwrap();
        // A directory of several blocks, with an index.
        for number in 0..60 {
            host::write(top.join(format!("dir16/{}{number}", "n".repeat(200))), "").unwrap();
        }
    }
    if names {
        host::hard_link(tops[0].join("dir0/linux1"), tops[1].join("linked")).unwrap();
        host::rename(tops[1].join("dir0/linux2"), tops[2].join("renamed")).unwrap();
        host::rename(tops[2].join("dir16"), tops[0].join("moved")).unwrap();
        for (at, top) in tops.iter().enumerate() {
            host::create_dir_all(top.join("new/below")).unwrap();
            host::write(top.join("new/below/file"), vec![9; 70_000]).unwrap();
            host::hard_link(top.join("new/below/file"), top.join("new/second")).unwrap();
            std::os::unix::fs::symlink("x".repeat(200), top.join("new/below/link")).unwrap();
            // With a directory in it whose parent gets another number.
            host::rename(top.join("new"), tops[(at + 1) % 3].join(format!("from{at}"))).unwrap();
        }
    }
    theirs.unmount().unwrap();
}

fn set_attribute(path: &Path, value: &[u8]) {
    rustix::fs::setxattr(path, "user.linux", value, rustix::fs::XattrFlags::empty()).unwrap();
}

pub(super) fn can_mount() -> bool {
    let can = !tool::missing() && kernel::mount_available().is_ok();
    if !can {
        eprintln!("skipped: no mounts here");
    }
    can
}

#[test]
fn what_linux_put_into_other_cubes_moves_back() {
    if !can_mount() {
        return;
    }
    for seed in 0..3 {
        let image = image_of(&cubes_in(24, 3, 24));
        relay(&image, seed, false);
        let (blocks, names) = entangled(&image);
        assert!(blocks > 0, "seed {seed}: Linux stayed in the cubes: {blocks} {names}");
        let (before, bytes) = (files(&image), host::read(image.path()).unwrap());
        let repaired = judged::program(image.path()).unwrap();
        assert_eq!(repaired.exit, Some(1), "{}", repaired.text);
        assert!(found(&image).is_empty(), "seed {seed}: {names} names, {:?}", found(&image));
        assert_eq!(flags(&image), 0, "seed {seed}");
        assert!(same(&files(&image), &before), "seed {seed}");
        let judged = oracle::e2fsck(&image).unwrap();
        assert!(judged.clean(), "seed {seed}: {}", judged.text);
        is_done(&image);
        // The same is planned each time, and a dry run writes nothing.
        let device = MemDevice::new(bytes);
        let plan = || {
            let planned = repair(&device, &RepairOptions::default(), &mut Yes).unwrap();
            let deeds = planned.deeds.iter().map(|deed| format!("{:?}", deed.edit));
            (deeds.collect::<Vec<_>>(), planned.staged.staged_ranges())
        };
        assert_eq!(plan(), plan());
    }
}

#[test]
fn cubes_whose_names_linux_mixed_are_coupled_by_a_repair() {
    if !can_mount() {
        return;
    }
    let image = image_of(&cubes_in(24, 3, 24));
    relay(&image, 7, true);
    let before = files(&image);
    let (blocks, names) = entangled(&image);
    assert!(blocks > 0 && names >= 3, "{blocks} {names}");
    let repaired = judged::program(image.path()).unwrap();
    assert_eq!(repaired.exit, Some(1), "{}", repaired.text);
    // A file with names in two cubes is all that is left.
    let left = found(&image);
    assert!(matches!(left[..], [Problem::CubeEntangledName { cube: 2, other: 1, .. }]), "{left:?}");
    assert_eq!(flags(&image), FLAG_COUPLED | FLAG_COUPLES_KNOWN);
    let coupled = |cube| sub(&image, copies(&image, cube)[0]).unwrap().coupled;
    assert_eq!([1, 2, 3].map(coupled), [Some(1), Some(1), None]);
    assert!(same(&files(&image), &before));
    assert!(oracle::e2fsck(&image).unwrap().clean());
    is_done(&image);
}

/// A name in the cube of its inode keeps it there, whatever other names lead to it, and in whatever direction others are linked.
#[test]
fn files_with_names_in_several_cubes_keep_their_numbers() {
    if !can_mount() {
        return;
    }
    let image = image_of(&cubes_in(24, 3, 24));
    let theirs = kernel::Mounted::new(image.path(), "").unwrap();
    let tops = ["above/c1", "c2", "c3"].map(|top| theirs.path().join(top));
    for (name, from, to) in [("x", 2, &[0, 1][..]), ("f", 0, &[1]), ("g", 1, &[0])] {
        host::write(tops[from].join(name), name).unwrap();
        for other in to {
            host::hard_link(tops[from].join(name), tops[*other].join(name)).unwrap();
        }
    }
    theirs.unmount().unwrap();
    let before = files(&image);
    assert_eq!(entangled(&image).1, 4);
    let repaired = judged::program(image.path()).unwrap();
    assert_eq!(repaired.exit, Some(1), "{}", repaired.text);
    assert!(files(&image) == before, "{}", repaired.text);
    assert_eq!(entangled(&image).1, 4);
    assert_eq!(flags(&image), FLAG_COUPLED | FLAG_COUPLES_KNOWN);
    let coupled = |cube| sub(&image, copies(&image, cube)[0]).unwrap().coupled;
    assert_eq!([1, 2, 3].map(coupled), [Some(1); 3]);
    is_done(&image);
}

/// Swaps content and attributes of the same files in two cubes, as if Linux had put them there.
pub(super) fn swap(device: &MemDevice) {
    let scopes = [1, 2].map(|cube| scope_of(device, cube));
    let [mut own, mut other] = scopes.map(|scope| outside::inodes(device, &scope, 5000));
    for (one, other) in own.iter_mut().zip(&mut other) {
        std::mem::swap(&mut one.base.block, &mut other.base.block);
        std::mem::swap(&mut one.base.file_acl_lo, &mut other.base.file_acl_lo);
        outside::put(device, one);
        outside::put(device, other);
    }
    outside::visit(device);
}

#[test]
fn moved_blocks_go_back_with_the_undo_file() {
    let device = cubes(2, 24);
    swap(&device);
    let before = device.to_vec();
    assert!(entangled(&device).0 >= 6, "{:?}", found(&device));
    let options = RepairOptions::default();
    let planned = repair(&device, &options, &mut Yes).unwrap();
    assert!(planned.deeds.iter().all(|deed| deed.fate().is_none()), "{:?}", planned.deeds);
    let folder = tempfile::tempdir().unwrap();
    let (seen, path) = (Seen::of(&device), folder.path().join("undo"));
    let options = CommitOptions {
        undo: Some(UndoTarget { path: &path, fs_offset_bytes: 0 }),
        ..CommitOptions::of(&seen)
    };
    planned.commit(&device, &options).unwrap();
    drop(planned);
    assert!(found(&device).is_empty(), "{:?}", found(&device));
    assert_eq!(flags(&device), 0);
    floe_repair::undo::undo(&UndoFile::open(&path).unwrap(), &device).unwrap();
    assert!(device.holds(&before));
}

/// Whoever is not asked moves nothing, and records nothing of it: the next mount does.
#[test]
fn refused_moves_are_left_to_the_next_mount() {
    struct No;
    impl Policy for No {
        fn decide(&mut self, problems: &[Problem], _: &floe_check::Report) -> Decision {
            Decision::Each(vec![false; problems.len()])
        }
    }
    let device = cubes(2, 24);
    swap(&device);
    let options = RepairOptions::default();
    let policies: [&mut dyn Policy; 2] = [&mut No, &mut Preen];
    for policy in policies {
        let planned = repair(&device, &options, policy).unwrap();
        assert!(planned.deeds.is_empty() && planned.left.is_empty(), "{:?}", planned.deeds);
        assert_eq!(planned.halted, None);
        assert_eq!(flags(&planned.staged), FLAG_COUPLED);
        assert!(entangled(&planned.staged).0 >= 6);
    }
}

/// An image whose first cube has no free block, and may not grow.
fn full() -> MemDevice {
    let device = cubes_in(8, 3, 24);
    let mut volume = Volume::open(&device).unwrap();
    let mut tx = DirectTx::new(&device, volume.geometry().clone());
    let caller = Caller::system(NOW);
    volume.begin_writing(&mut tx, NOW).unwrap();
    let full = Policies { limit_blocks: 1024, ..Policies::default() };
    volume.set_cube(&mut tx, &caller, 1, full).unwrap();
    let top = scope_of(&device, 1).top();
    let new = NewInode::regular(0o644);
    let file = volume.create(&mut tx, &caller, top, b"filler", &new).unwrap();
    let mut at = 0;
    while volume.write(&mut tx, &device, &caller, file, at, &[7; 4096]).is_ok() {
        at += BLOCK;
    }
    for lot in volume.lots_to_reserve() {
        volume.reserve_lot(&mut tx, NOW, lot).unwrap();
    }
    volume.end_writing(&mut tx, NOW).unwrap();
    tx.commit().unwrap();
    volume.back_up_descriptors(&device, &(0..8).collect::<Vec<u32>>()).unwrap();
    seal(&device).unwrap();
    assert!(found(&device).is_empty(), "{:?}", found(&device));
    device
}

/// Files of full cubes that hold each other's blocks change places, as far as one of them has room.
#[test]
fn blocks_move_into_room_that_others_leave() {
    let device = full();
    swap(&device);
    assert!(entangled(&device).0 >= 6, "{:?}", found(&device));
    let planned = repair(&device, &RepairOptions::default(), &mut Yes).unwrap();
    assert!(found(&planned.staged).is_empty(), "{:?}", found(&planned.staged));
}

/// Files of a full cube stay where they are, and the repair says so.
#[test]
fn a_cube_without_room_is_coupled_with_what_holds_its_files() {
    if !can_mount() {
        return;
    }
    let image = image_of(&full());
    let theirs = kernel::Mounted::new(image.path(), "").unwrap();
    for number in [0, 8] {
        let path = theirs.path().join(format!("above/c1/dir0/file{number}"));
        let file = host::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(&vec![number; 300_000], 5000).unwrap();
    }
    theirs.unmount().unwrap();
    let before = files(&image);
    let (blocks, names) = entangled(&image);
    assert!(blocks >= 2 && names == 0, "{blocks} {names}");
    let planned = repair(&image, &RepairOptions::default(), &mut Yes).unwrap();
    let text: Vec<_> = planned.deeds.iter().flat_map(|deed| deed.notes.clone()).collect();
    assert!(text.contains(&"2 files of cube 1 keep blocks in other cubes".to_owned()), "{text:?}");
    drop(planned);
    let repaired = judged::program(image.path()).unwrap();
    assert_eq!(repaired.exit, Some(1), "{}", repaired.text);
    assert!(entangled(&image).0 >= 2);
    assert_eq!(flags(&image), FLAG_COUPLED | FLAG_COUPLES_KNOWN);
    assert!(sub(&image, copies(&image, 1)[1]).unwrap().coupled.is_some());
    assert!(files(&image) == before);
    assert!(oracle::e2fsck(&image).unwrap().clean());
    is_done(&image);
}
