//! Cubes: damage of sub-superblocks and of owners of lots is found and repaired; what leads out of a cube is remarked; the check
//! of one cube finds what the whole check finds of it and reads its lots alone; its repair changes nothing else.

use std::collections::BTreeMap;

use floe_blockdev::{Counted, MemDevice, Overlay, ReadBlocks, UndoFile, WriteBlocks};
use floe_check::cube::{CubeName, CubeScope, Cubes, check_cube};
use floe_check::problem::Weight;
use floe_check::{CheckOptions, Problem, check};
use floe_disk::mkfs::{self, Fresh, FsType, Options, Plan};
use floe_disk::ops::{Caller, NewCube, NewInode, SetMode};
use floe_disk::volume::{Volume, seal};
use floe_ext4::fs::FileSystem;
use floe_ext4::inode_table::{desc_place, inode_place};
use floe_ext4::tx::DirectTx;
use floe_format::ext::group_desc::{DescChecksum, GroupDesc};
use floe_format::ext::inode::{Inode, OwnedInode, Timestamp};
use floe_format::native::cube::{Policies, Recovery, SubSuperblock};
use floe_format::native::identity::Identity;
use floe_format::native::lot::LotRecord;
use floe_format::{BlockNr, GroupNr, InodeNr};
use floe_repair::commit::{CommitOptions, Seen, UndoTarget, commit};
use floe_repair::cube::{changes, repair_cube};
use floe_repair::failure::Failure;
use floe_repair::policy::Yes;
use floe_repair::{RepairError, RepairOptions, repair};
use floe_testkit::rng::Rng;
use floe_testkit::{Image, build, oracle, tool, tree};

use crate::judged;

mod clean;
mod hints;
mod home;
mod lost_home;
mod lost_top;
mod moved;
mod outside;

const NOW: Timestamp = Timestamp { seconds: tool::NOW as i64, nanoseconds: 0 };
const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

/// Cubes `/c1`, `/c2`, ... of one lot of 4 MiB each, or one in `/above`, with directories, files and attribute blocks.
fn cubes(count: u32, files: u32) -> MemDevice {
    cubes_in(count + 3, count, files)
}

/// The same, in as many lots.
fn cubes_in(lots: u32, count: u32, files: u32) -> MemDevice {
    cubes_with(0, lots, count, files)
}

/// The same, each with a journal of its own of as many blocks; 0: without.
fn cubes_with(journal_blocks: u32, lots: u32, count: u32, files: u32) -> MemDevice {
    let bytes = u64::from(lots) * 4 * MIB;
    let inodes = (files + 60) * lots;
    let mut options = Options::of_type(FsType::Native);
    let inodes = inodes.to_string();
    for (letter, value) in [('E', "lot_size=4m"), ('J', "size=4"), ('N', &inodes)] {
        options.set(letter, value).unwrap();
    }
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now: NOW };
    let params = options.params(bytes, None, &fresh).unwrap();
    let device = MemDevice::new(vec![0; bytes as usize]);
    mkfs::write(&Plan::new(&params).unwrap(), &device).unwrap();
    let mut volume = Volume::open(&device).unwrap();
    let mut tx = DirectTx::new(&device, volume.geometry().clone());
    let caller = Caller::system(NOW);
    volume.begin_writing(&mut tx, NOW).unwrap();
    let new = NewInode::directory(0o755);
    let above = volume.create(&mut tx, &caller, InodeNr::ROOT, b"above", &new).unwrap();
    for cube in 1..=count {
        let (parent, path) = match cube {
            1 => (above, "/above/c1".to_owned()),
            _ => (InodeNr::ROOT, format!("/c{cube}")),
        };
        let name = path.rsplit('/').next().unwrap();
        let policies = Policies { recovery: Recovery::Offline, ..Policies::default() };
        let (name, path) = (name.as_bytes(), path.as_bytes());
        let made = NewCube { parent, name, path, permissions: 0o755, journal_blocks, policies };
        assert_eq!(volume.create_cube(&mut tx, &caller, &made).unwrap(), cube);
        let top = volume.lookup(&mut tx, parent, name).unwrap().unwrap().inode;
        fill(&mut volume, &mut tx, &device, top, files);
    }
    for lot in volume.lots_to_reserve() {
        volume.reserve_lot(&mut tx, NOW, lot).unwrap();
    }
    volume.end_writing(&mut tx, NOW).unwrap();
    tx.commit().unwrap();
    let lots: Vec<u32> = (0..lots).collect();
    volume.back_up_descriptors(&device, &lots).unwrap();
    seal(&device).unwrap();
    device
}

fn fill(
    volume: &mut Volume,
    tx: &mut DirectTx<'_, MemDevice>,
    device: &MemDevice,
    top: InodeNr,
    files: u32,
) {
    let caller = Caller::system(NOW);
    let (mut dir, regular) = (top, NewInode::regular(0o644));
    for at in 0..files {
        if at % 16 == 0 {
            let name = format!("dir{at}");
            let new = NewInode::directory(0o755);
            dir = volume.create(tx, &caller, top, name.as_bytes(), &new).unwrap();
        }
        let name = format!("file{at}");
        let file = volume.create(tx, &caller, dir, name.as_bytes(), &regular).unwrap();
        if at % 8 == 0 {
            volume.write(tx, device, &caller, file, 0, &[at as u8; 5000]).unwrap();
        }
        let mut value = vec![b'v'; 1000];
        value[..4].copy_from_slice(&at.to_le_bytes());
        volume.set_attribute(tx, &caller, file, b"user.long", &value, SetMode::Create).unwrap();
    }
}

fn found(device: &dyn ReadBlocks) -> Vec<Problem> {
    check(device, &CheckOptions::default()).unwrap().found
}

fn ids(found: &[Problem]) -> Vec<&'static str> {
    let mut ids: Vec<_> = found.iter().map(|problem| problem.row().id).collect();
    ids.dedup();
    ids
}

fn fs(device: &dyn ReadBlocks) -> FileSystem {
    FileSystem::open(device).unwrap()
}

/// The blocks of both copies of a cube's sub-superblock.
fn copies(device: &dyn ReadBlocks, cube: u32) -> [u64; 2] {
    let fs = fs(device);
    let file = InodeNr(Identity::of(&fs.superblock).unwrap().super_inode);
    let inode = floe_ext4::inode_table::read_inode(file, device, fs.geometry(), descs(&fs));
    let inode = inode.unwrap();
    let inode = Inode::decode(&inode).unwrap();
    let map = floe_ext4::map::runs::BlockMap::of(&inode, device, fs.geometry(), u64::MAX).unwrap();
    SubSuperblock::places(cube).map(|place| map.block(place).unwrap().0)
}

fn descs(fs: &FileSystem) -> &[GroupDesc] {
    floe_ext4::alloc::Space::groups(&fs.space).descs()
}

fn sub(device: &dyn ReadBlocks, block: u64) -> Option<SubSuperblock> {
    let mut bytes = [0; BLOCK as usize];
    device.read_at(block * BLOCK, &mut bytes).unwrap();
    SubSuperblock::decode(&bytes)
}

/// Changes the owner in the records of a lot.
fn give_lot(device: &dyn WriteBlocks, lot: u32, cube: u32) {
    change_records(device, lot, |record| record.cube = cube);
}

/// Changes the records of a lot, in the descriptors and their backup.
fn change_records(device: &dyn WriteBlocks, lot: u32, change: impl Fn(&mut LotRecord)) {
    let fs = fs(device);
    let geo = fs.geometry();
    let checksum = DescChecksum::of(&fs.superblock);
    for group in (lot * 4..lot * 4 + 4).map(GroupNr) {
        let (block, at) = desc_place(group, geo);
        for place in [block, geo.group_desc_run(GroupNr(lot * 4 + 1)).start] {
            let offset = geo.offset_bytes(place) + at as u64;
            let mut raw = vec![0; 1024];
            device.read_at(offset, &mut raw).unwrap();
            let mut record = LotRecord::of(&raw).unwrap();
            change(&mut record);
            record.put(&mut raw);
            GroupDesc::of(&raw).seal(&mut raw, group, checksum);
            device.write_at(offset, &raw).unwrap();
        }
    }
}

fn scope_of(device: &dyn ReadBlocks, cube: u32) -> CubeScope {
    let options = CheckOptions::default();
    Cubes::of(device, &options).unwrap().find(&CubeName::Number(cube)).unwrap()
}

/// Damages, repairs all, and returns what was found. Nothing is left after it, also by e2fsck.
fn repaired(device: &MemDevice, damage: impl Fn(&MemDevice)) -> Vec<&'static str> {
    damage(device);
    let before = ids(&found(device));
    let seen = Seen::of(device);
    let planned = repair(device, &RepairOptions::default(), &mut Yes).unwrap();
    assert!(planned.left.is_empty(), "{:?}", planned.left);
    let options = CommitOptions::of(&seen);
    planned.commit(device, &options).unwrap();
    drop(planned);
    let left = found(device);
    assert!(left.iter().all(|problem| problem.row().weight == Weight::Remark), "{left:?}");
    let image = Image::empty(0).unwrap();
    std::fs::write(image.path(), device.to_vec()).unwrap();
    let judged = oracle::e2fsck(&image).unwrap();
    assert!(judged.clean(), "{before:?}: {}", judged.text);
    before
}

#[test]
fn sub_superblocks_are_repaired_from_the_other_copy_and_from_records() {
    if tool::missing() {
        return;
    }
    let made = cubes(2, 40);
    assert!(found(&made).is_empty(), "{:?}", found(&made));
    let bytes = made.to_vec();
    let fresh = || MemDevice::new(bytes.clone());
    let before = sub(&made, copies(&made, 1)[0]).unwrap();
    for copy in 0..2 {
        let device = fresh();
        let ids = repaired(&device, |device| {
            device.write_at(copies(device, 1)[copy] * BLOCK + 200, b"damage").unwrap();
        });
        assert_eq!(ids, ["cube-copy-damaged"]);
        assert_eq!(
            copies(&device, 1).map(|block| sub(&device, block)),
            [Some(before.clone()), Some(before.clone())]
        );
    }
    // Both: directory and lots by the tree and the records; limits and policies are those of a new cube.
    let device = fresh();
    let ids = repaired(&device, |device| {
        for block in copies(device, 1) {
            device.write_at(block * BLOCK, &[0; 4096]).unwrap();
        }
    });
    assert_eq!(ids, ["cube-superblock-lost"]);
    let rebuilt = sub(&device, copies(&device, 1)[1]).unwrap();
    assert_eq!((rebuilt.top_inode, &rebuilt.path), (before.top_inode, &before.path));
    assert_eq!((rebuilt.lots, rebuilt.policies), (before.lots.clone(), Policies::default()));
    // Another inode as the directory.
    let device = fresh();
    let ids = repaired(&device, |device| {
        for block in copies(device, 1) {
            let wrong = SubSuperblock { top_inode: before.top_inode + 3, ..before.clone() };
            device.write_at(block * BLOCK, &wrong.encode()[..]).unwrap();
        }
    });
    assert_eq!(ids[0], "cube-top-wrong");
    assert_eq!(sub(&device, copies(&device, 1)[0]).unwrap().top_inode, before.top_inode);
}

#[test]
fn the_file_of_sub_superblocks_is_made_again() {
    if tool::missing() {
        return;
    }
    let device = cubes(2, 24);
    let before = sub(&device, copies(&device, 2)[1]).unwrap();
    repaired(&device, |device| {
        let fs = fs(device);
        let file = InodeNr(Identity::of(&fs.superblock).unwrap().super_inode);
        let (block, at) = inode_place(file, fs.geometry(), descs(&fs)).unwrap();
        device.write_at(fs.geometry().offset_bytes(block) + at as u64, &[0; 256]).unwrap();
    });
    for cube in [1, 2] {
        let [first, second] = copies(&device, cube).map(|block| sub(&device, block).unwrap());
        // The policies come from a copy in the cube's lot that nothing led to any more.
        assert_eq!((first.policies.recovery, &first), (Recovery::Offline, &second));
    }
    assert_eq!(sub(&device, copies(&device, 2)[0]).unwrap().path, before.path);
}

#[test]
fn owners_of_lots_are_repaired_from_lists() {
    if tool::missing() {
        return;
    }
    let device = cubes(2, 24);
    let scope = scope_of(&device, 2);
    let lot = scope.sub.lots[0];
    let ids = repaired(&device, |device| give_lot(device, lot, 0));
    assert!(ids.contains(&"cube-without-lot"), "{ids:?}");
    assert_eq!(scope_of(&device, 2).sub.lots, [lot]);
    assert!(found(&device).is_empty(), "{:?}", found(&device));
}

/// A record that names another inode as its reservation file is wrong, and not the name of that file.
#[test]
fn a_record_with_another_reservation_file_is_mended_alone() {
    if tool::missing() {
        return;
    }
    let device = cubes(2, 24);
    let before = device.to_vec();
    let lot = scope_of(&device, 1).sub.lots[0];
    let ids = repaired(&device, |device| {
        change_records(device, lot, |record| record.region_inode = 2);
    });
    assert!(ids.iter().all(|id| *id == "lot-record-wrong"), "{ids:?}");
    assert!(!ids.is_empty() && found(&device).is_empty(), "{:?}", found(&device));
    let geometry = fs(&device).geometry().clone();
    let (after, fs) = (device.to_vec(), fs(&device));
    for inode in (1..=geometry.inodes_count).map(InodeNr) {
        let (block, at) = inode_place(inode, &geometry, descs(&fs)).unwrap();
        let at = (geometry.offset_bytes(block) + at as u64) as usize;
        let range = at..at + geometry.inode_size as usize;
        assert!(before[range.clone()] == after[range], "{inode} was changed");
    }
}

#[test]
fn what_leads_out_of_a_cube_is_remarked() {
    let device = cubes(3, 24);
    let lot = scope_of(&device, 3).sub.lots[0];
    // All in the lot of cube 3 lies in cube 2 now, but for the path to it.
    give_lot(&device, lot, 2);
    let found = found(&device);
    let of = |id: &str| found.iter().filter(|problem| problem.row().id == id).count();
    assert_eq!(of("cube-entangled-name"), 1, "{:?}", ids(&found));
    assert!(
        found.iter().all(|problem| problem.row().weight == Weight::Remark
            || problem.row().id == "cube-without-lot")
    );
}

#[test]
fn the_check_of_a_cube_reads_its_lots_alone() {
    let device = cubes(20, 160);
    let counted = Counted::new(&device);
    let options = CheckOptions::default();
    assert!(check(&counted, &options).unwrap().found.is_empty());
    let whole = counted.counts().bytes / BLOCK;
    for name in [CubeName::Number(7), CubeName::of(b"/c9"), CubeName::of(b"/above/c1/")] {
        let counted = Counted::new(&device);
        let (report, scope) = check_cube(&counted, &options, &name).unwrap();
        assert!(report.found.is_empty(), "{:?}", report.found);
        let read = counted.counts().bytes / BLOCK;
        println!("{name:?}: {read} of {whole} blocks");
        assert!(read <= whole / 20 + whole / 100, "{name:?} reads {read} of {whole} blocks");
        // All files, their directories, and the reservation file.
        assert_eq!(report.totals.inodes_used, 160 + 10 + 2, "cube {}", scope.sub.cube);
    }
    let none = check_cube(&device, &options, &CubeName::of(b"/c21"));
    assert!(none.is_err());
}

#[test]
fn a_cube_is_checked_although_everything_above_is_destroyed() {
    let device = cubes(2, 24);
    let fs = fs(&device);
    // The inode table of lot 0: root, /.cubes, /.cubes/super, /above.
    for group in 0..4 {
        let table = descs(&fs)[group].inode_table.0 * BLOCK;
        let bytes = fs.geometry().inode_table_blocks as usize * BLOCK as usize;
        device.write_at(table, &vec![0xa5; bytes]).unwrap();
    }
    let (report, _) =
        check_cube(&device, &CheckOptions::default(), &CubeName::of(b"/above/c1")).unwrap();
    assert!(report.found.is_empty(), "{:?}", report.found);
    assert_eq!(report.totals.inodes_used, 24 + 2 + 2);
}

/// Blocks of a cube that hold metadata, without the descriptors of its lot.
fn metadata(device: &dyn ReadBlocks, scope: &CubeScope) -> Vec<BlockNr> {
    let fs = fs(device);
    let geo = fs.geometry();
    let first = scope.groups().next().unwrap();
    let desc = descs(&fs)[first.0 as usize];
    let from = desc.block_bitmap.0;
    let end = desc.inode_table.0 + u64::from(geo.inode_table_blocks) * 4 + 64;
    (from..end).map(BlockNr).filter(|block| scope.holds_block(*block)).collect()
}

/// Changes some bytes or bits in blocks of a cube.
fn damage(device: &MemDevice, blocks: &[BlockNr], seed: u64) {
    let mut random = Rng::new(seed);
    for _ in 0..1 + random.below(6) {
        let block = blocks[random.below(blocks.len() as u64) as usize];
        let at = block.0 * BLOCK + random.below(BLOCK - 8);
        match random.below(4) {
            0 => device.write_at(block.0 * BLOCK, &[0; BLOCK as usize]).unwrap(),
            1 => device.write_at(at, &random.next_u64().to_le_bytes()).unwrap(),
            _ => {
                let mut byte = [0];
                device.read_at(at, &mut byte).unwrap();
                byte[0] ^= 1 << random.below(8);
                device.write_at(at, &byte).unwrap();
            }
        }
    }
}

/// Whether something of a cube leads into another, so that findings depend on what lies there.
fn is_entangled(found: &[Problem], cube: u32) -> bool {
    found.iter().any(|problem| match problem {
        Problem::CubeEntangledBlocks { cube: one, other, .. }
        | Problem::CubeEntangledName { cube: one, other, .. } => *one == cube || *other == cube,
        _ => false,
    })
}

#[test]
fn the_check_of_a_cube_finds_what_the_whole_check_finds_of_it() {
    let bytes = cubes(3, 48).to_vec();
    let first = std::env::var("FLOE_SEED").map_or(0, |seed| seed.parse().unwrap());
    let (mut compared, mut findings) = (0, 0);
    for seed in first..first + 60 {
        let device = MemDevice::new(bytes.clone());
        let cube = 1 + (seed % 3) as u32;
        let scope = scope_of(&device, cube);
        damage(&device, &metadata(&device, &scope), seed);
        let options = CheckOptions::default();
        let mut whole = found(&device);
        if is_entangled(&whole, cube) {
            continue;
        }
        whole.retain(|problem| scope.concerns(problem));
        let (report, _) = check_cube(&device, &options, &CubeName::Number(cube)).unwrap();
        assert_eq!(report.found, whole, "seed {seed}, cube {cube}");
        (compared, findings) = (compared + 1, findings + whole.len());
        for other in (1..=3).filter(|other| *other != cube) {
            let (report, _) = check_cube(&device, &options, &CubeName::Number(other)).unwrap();
            assert!(report.found.is_empty(), "seed {seed}, cube {other}: {:?}", report.found);
        }
    }
    assert!(compared > 40 && findings > 100, "{compared} images, {findings} findings");
}

/// The bytes of all blocks that do not belong to a cube, but for the totals and the checksum of the superblock.
fn others(device: &MemDevice, scope: &CubeScope, keep: &[u64]) -> BTreeMap<u64, Vec<u8>> {
    let bytes = device.to_vec();
    let blocks = (0..).zip(bytes.chunks(BLOCK as usize));
    let outside = blocks.filter(|(block, _)| {
        !scope.holds_block(BlockNr(*block)) && *block != 0 && !keep.contains(block)
    });
    outside.map(|(block, bytes)| (block, bytes.to_vec())).collect()
}

#[test]
fn the_repair_of_a_cube_changes_that_cube_alone() {
    if tool::missing() {
        return;
    }
    let bytes = cubes(3, 48).to_vec();
    let folder = tempfile::tempdir().unwrap();
    let first = std::env::var("FLOE_SEED").map_or(0, |seed| seed.parse().unwrap());
    let mut repaired = 0;
    for seed in first..first + 24 {
        let device = MemDevice::new(bytes.clone());
        let cube = 1 + (seed % 3) as u32;
        let blocks = metadata(&device, &scope_of(&device, cube));
        damage(&device, &blocks, seed);
        let own = copies(&device, cube);
        device.write_at(own[(seed % 2) as usize] * BLOCK + 99, b"wrong").unwrap();
        let damaged = device.to_vec();
        if is_entangled(&found(&device), cube) {
            continue;
        }
        let options = RepairOptions::default();
        let cubes = Cubes::of(&device, &options.check).unwrap();
        // Where the other copy was damaged, too, only the whole repair helps.
        let Ok(scope) = cubes.find(&CubeName::Number(cube)) else { continue };
        let shown = cubes.device(&scope);
        let planned = match repair_cube(&shown, &scope, &options, &mut Yes) {
            // Nobody inside the cube knows what its own directory was.
            Err(RepairError::Stage(Failure::NotNow(_))) => continue,
            planned => planned.unwrap(),
        };
        assert!(planned.left.is_empty(), "seed {seed}: {:?}", planned.left);
        let onto = Overlay::new(&device, BLOCK as u32);
        changes(&planned, &scope, &onto).unwrap();
        let before = others(&device, &scope, &own);
        let (seen, path) = (Seen::of(&device), folder.path().join(format!("undo{seed}")));
        let undo = Some(UndoTarget { path: &path, fs_offset_bytes: 0 });
        let options = CommitOptions { undo, ..CommitOptions::of(&seen) };
        let committed = commit(&onto, &device, &options).unwrap();
        assert!(committed.bytes > 0);
        assert_eq!(others(&device, &scope, &own), before, "seed {seed}");
        // The name of a reservation file lies outside, so it is not repaired here.
        let of_reservation = |problem: &Problem| {
            let id = problem.row().id;
            id == "dirent-inode-unused"
                || id.starts_with("reservation-")
                || id == "region-not-reserved"
        };
        let left = found(&device);
        assert!(left.iter().all(of_reservation), "seed {seed}: {left:?}");
        if left.is_empty() {
            let image = Image::empty(0).unwrap();
            std::fs::write(image.path(), device.to_vec()).unwrap();
            let judged = oracle::e2fsck(&image).unwrap();
            assert!(judged.clean(), "seed {seed}: {}", judged.text);
        }
        floe_repair::undo::undo(&UndoFile::open(&path).unwrap(), &device).unwrap();
        assert!(
            device.to_vec() == damaged,
            "seed {seed}: the undo file does not bring everything back"
        );
        repaired += 1;
    }
    assert!(repaired > 10, "{repaired}");
}

/// The name of the file of sub-superblocks leads to somebody's file, or there is none: no file is written over, and the file
/// gets its name back.
#[test]
fn a_wrong_name_of_the_sub_superblocks_costs_no_file() {
    if tool::missing() {
        return;
    }
    let device = cubes(2, 16);
    let unlink = "unlink /.cubes/super\n";
    let link = "ln /c2/dir0/file8 /.cubes/super\nsif /c2/dir0/file8 links_count ";
    for script in [unlink.to_owned(), format!("{unlink}{link}1"), format!("{unlink}{link}2")] {
        let image = Image::of(&device).unwrap();
        let before = tree::stored(&image).unwrap();
        build::debugfs(&image, &script).unwrap();
        let repaired = judged::program(image.path()).unwrap();
        assert_eq!(repaired.exit, Some(1), "{script}: {}", repaired.text);
        assert_eq!(ids(&found(&image)), Vec::<&str>::new(), "{script}");
        let verdict = oracle::e2fsck(&image).unwrap();
        assert!(verdict.clean(), "{script}: {}", verdict.text);
        let after = tree::stored(&image).unwrap();
        let contents = |tree: &tree::Tree| -> Vec<(Vec<u8>, String)> {
            tree.iter().map(|(path, node)| (path.clone(), node.content.clone())).collect()
        };
        assert_eq!(contents(&before), contents(&after), "{script}");
    }
}
