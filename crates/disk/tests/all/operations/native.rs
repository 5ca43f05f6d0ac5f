//! Random operations on native file systems: metadata in the regions, everything reserved and sealed at the end.

use std::collections::BTreeMap;

use floe_blockdev::{MemDevice, ReadBlocks, WriteBlocks};
use floe_check::{CheckOptions, Problem, check};
use floe_disk::mkfs::{self, Fresh, FsType, Options, Plan};
use floe_disk::ops::{Caller, NewInode, Step};
use floe_disk::volume::{Volume, seal};
use floe_ext4::files::Files;
use floe_ext4::fs::FileSystem;
use floe_ext4::inode_table::desc_place;
use floe_ext4::map::file;
use floe_ext4::tx::{DirectTx, Tx};
use floe_format::ext::inode::FileType;
use floe_format::native::identity::Identity;
use floe_format::native::lot::LotRecord;
use floe_format::{BlockNr, BlockRun, GroupNr, InodeNr, LogicalBlock};
use floe_testkit::{Profile, tool, tree};

use super::model::{Model, time};
use super::{image_of, judge};

pub(super) fn native(mib: u64, options: &[(char, &str)]) -> MemDevice {
    let mut all = Options::of_type(FsType::Native);
    for (letter, value) in options {
        all.set(*letter, value).unwrap();
    }
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now: time(1_600_000_000) };
    let params = all.params(mib << 20, None, &fresh).unwrap();
    let device = MemDevice::new(vec![0; (mib << 20) as usize]);
    mkfs::write(&Plan::new(&params).unwrap(), &device).unwrap();
    device
}

/// The records of all lots, which the backups of the descriptors have, too, as far as they were copied.
fn records(device: &MemDevice) -> Vec<LotRecord> {
    let fs = FileSystem::open(device).unwrap();
    let geo = fs.geometry();
    let lots = (0..geo.group_count).step_by((geo.block_size / geo.desc_size) as usize);
    lots.map(|first| {
        let (block, at) = desc_place(GroupNr(first), geo);
        let mut raw = vec![0; geo.desc_size as usize];
        device.read_at(geo.offset_bytes(block) + at as u64, &mut raw).unwrap();
        LotRecord::of(&raw).unwrap()
    })
    .collect()
}

#[test]
fn random_operations_on_native_file_systems() {
    if tool::missing() {
        return;
    }
    let kinds: [(u64, &[(char, &str)]); 3] = [
        (40, &[('E', "lot_size=8m"), ('N', "2000")]),
        // Regions of 4 blocks fill up, and metadata goes elsewhere.
        (40, &[('E', "lot_size=4m,region_size=16k"), ('N', "2000")]),
        (64, &[]),
    ];
    for (seed, (mib, options)) in (10..).zip(kinds) {
        let what = format!("{mib} MiB {options:?}, seed {seed}");
        let device = native(mib, options);
        for round in 0..3 {
            let mut model = Model::new(&device, Profile::Ext4, seed + round);
            for _ in 0..if round == 0 { 400 } else { 0 } {
                model.step();
            }
            model.leave();
            seal(&device).unwrap();
            let superblock = FileSystem::open(&device).unwrap().superblock;
            assert!(Identity::is_sealed(&superblock), "{what}");
            assert_eq!(Identity::of(&superblock).unwrap().epoch, 2 + round, "{what}");
            let image = image_of(&device);
            judge(&image, &what);
            let report = check(&device, &CheckOptions::default()).unwrap();
            assert!(report.found.is_empty(), "{what}: {:?}", report.found);
            let (known, unknown) = judge_backpointers(&device, &what);
            assert!(known > 20 && unknown < known, "{what}: {known} known, {unknown} not");
            if round == 0 {
                model.compare(&tree::stored(&image).unwrap());
                let records = records(&device);
                assert!(records.iter().any(|record| record.epoch == 2), "{what}: {records:?}");
            }
        }
    }
}

/// A mount that frees metadata and takes none reserves what it freed, too.
#[test]
fn freed_metadata_is_reserved_again() {
    let device = native(40, &[('E', "lot_size=8m"), ('N', "2000")]);
    let caller = Caller::system(time(1));
    for round in 0..2 {
        let mut volume = Volume::open(&device).unwrap();
        let mut tx = DirectTx::new(&device, volume.geometry().clone());
        volume.begin_writing(&mut tx, time(1)).unwrap();
        for at in 0..10 {
            let name = format!("d{at}");
            let (name, new) = (name.as_bytes(), NewInode::directory(0o755));
            if round == 0 {
                volume.create(&mut tx, &caller, InodeNr::ROOT, name, &new).unwrap();
            } else {
                let removed = volume.rmdir(&mut tx, &caller, InodeNr::ROOT, name).unwrap();
                let inode = removed.inode;
                let step = volume.finish_orphan(&mut tx, &device, &caller, inode).unwrap();
                assert_eq!(step, Step::Done);
            }
        }
        let epoch = volume.end_epoch();
        tx.commit().unwrap();
        volume.durable(epoch);
        for lot in volume.lots_to_reserve() {
            volume.reserve_lot(&mut tx, time(1), lot).unwrap();
        }
        volume.end_writing(&mut tx, time(1)).unwrap();
        tx.commit().unwrap();
        seal(&device).unwrap();
        let report = check(&device, &CheckOptions::default()).unwrap();
        assert!(report.found.is_empty(), "round {round}: {:?}", report.found);
    }
}

/// A lot whose region a crash left full, and its reservation file empty: there is nothing to reserve, and its records say so.
#[test]
fn a_region_that_a_crash_left_full_is_sealed() {
    let device = native(40, &[('E', "lot_size=4m,region_size=16k"), ('N', "2000")]);
    let caller = Caller::system(time(1));
    for round in 0..3 {
        let mut volume = Volume::open(&device).unwrap();
        let mut tx = DirectTx::new(&device, volume.geometry().clone());
        volume.begin_writing(&mut tx, time(1)).unwrap();
        if round == 0 {
            for at in 0..100 {
                let (name, new) = (format!("d{at}"), NewInode::directory(0o755));
                volume.create(&mut tx, &caller, InodeNr::ROOT, name.as_bytes(), &new).unwrap();
            }
            tx.commit().unwrap();
            continue;
        }
        for lot in volume.lots_to_reserve() {
            volume.reserve_lot(&mut tx, time(1), lot).unwrap();
        }
        volume.end_writing(&mut tx, time(1)).unwrap();
        tx.commit().unwrap();
        seal(&device).unwrap();
        let mut found = check(&device, &CheckOptions::default()).unwrap().found;
        // No journal says that the first round ended.
        found.retain(|problem| !matches!(problem, Problem::NotCleanlyUnmounted { .. }));
        assert!(found.is_empty(), "round {round}: {found:?}");
    }
}

/// Free blocks of a region in five runs, one more than an inode holds: none is left out of the reservation file, whose tree needs
/// a node then; not even where all runs are single blocks.
#[test]
fn all_runs_of_a_region_are_reserved() {
    for removed in
        [[1, 3, 5, 7, 9].as_slice(), &[1, 3, 5, 7, 20, 21, 22, 23], &[2, 4, 6, 8, 10, 12]]
    {
        let device = native(40, &[('E', "lot_size=8m"), ('N', "2000")]);
        let caller = Caller::system(time(1));
        // The second round empties what the first one reserved.
        for round in 0..2 {
            let mut volume = Volume::open(&device).unwrap();
            let mut tx = DirectTx::new(&device, volume.geometry().clone());
            volume.begin_writing(&mut tx, time(1)).unwrap();
            let new = NewInode::directory(0o755);
            let name = format!("d{round}");
            let dir =
                volume.create(&mut tx, &caller, InodeNr::ROOT, name.as_bytes(), &new).unwrap();
            let target = NewInode::symlink(&[b'x'; 100]);
            let names: Vec<String> = (0..31).map(|at| format!("s{at}")).collect();
            let mut links = Vec::new();
            for name in &names {
                let link = volume.create(&mut tx, &caller, dir, name.as_bytes(), &target);
                links.push(link.unwrap());
            }
            for at in removed {
                let name: &String = &names[*at];
                volume.unlink(&mut tx, &caller, dir, name.as_bytes()).unwrap();
                let step = volume.finish_orphan(&mut tx, &device, &caller, links[*at]).unwrap();
                assert_eq!(step, Step::Done);
            }
            let epoch = volume.end_epoch();
            tx.commit().unwrap();
            volume.durable(epoch);
            for lot in volume.lots_to_reserve() {
                volume.reserve_lot(&mut tx, time(1), lot).unwrap();
            }
            volume.end_writing(&mut tx, time(1)).unwrap();
            tx.commit().unwrap();
            seal(&device).unwrap();
            let found = check(&device, &CheckOptions::default()).unwrap().found;
            assert!(found.is_empty(), "{removed:?}, round {round}: {found:?}");
            judge(&image_of(&device), &format!("{removed:?}, round {round}"));
        }
    }
}

/// Compares the backpointer of each inode with its names: how many are known, and how many are not, which only files that
/// lost one of several names may be.
fn judge_backpointers(device: &MemDevice, what: &str) -> (u32, u32) {
    let fs = FileSystem::open(device).unwrap();
    let (geo, groups) = (fs.geometry().clone(), fs.space.groups.descs().to_vec());
    let files = Files::new(device, fs.superblock.clone(), geo, groups);
    let mut names: BTreeMap<InodeNr, Vec<(InodeNr, Vec<u8>)>> = BTreeMap::new();
    let mut queue = vec![InodeNr::ROOT];
    while let Some(dir) = queue.pop() {
        let listing = files.list(&files.node(dir).unwrap()).unwrap();
        for entry in listing.entries {
            if entry.file_type == Some(FileType::Directory) {
                queue.push(entry.inode);
            }
            names.entry(entry.inode).or_default().push((dir, entry.name));
        }
    }
    let (mut known, mut unknown) = (0, 0);
    let mut tx = DirectTx::new(device, fs.geometry().clone());
    for (inode, names) in names {
        let stored = fs.inode(&mut tx, inode).unwrap();
        match stored.backpointer() {
            Some(own) => {
                let is_right = names.iter().any(|(dir, name)| own.fits(*dir, name));
                assert!(is_right, "{what}: {inode}, {names:?}: {own:?}");
                known += 1;
            }
            // One of several names was taken away.
            None => {
                let is_dir = stored.file_type() == Some(FileType::Directory);
                assert!(!is_dir, "{what}: {inode}, {names:?}");
                unknown += 1;
            }
        }
    }
    (known, unknown)
}

/// Where the blocks of a file or directory lie.
fn blocks_of(fs: &FileSystem, tx: &mut dyn Tx, inode: InodeNr) -> Vec<BlockRun> {
    let inode = fs.inode(tx, inode).unwrap();
    let look = file::look(fs, &inode);
    let (mut runs, mut from) = (Vec::new(), 0);
    while let Some(extent) = look.next(tx, LogicalBlock(from)).unwrap() {
        from = extent.logical.0 + extent.run.len_blocks;
        runs.push(extent.run);
    }
    runs
}

/// Directories lie in the region of their lot, data outside of all regions and in the lot of their inode, even when the
/// file system becomes full.
#[test]
fn metadata_lies_in_regions_and_data_does_not() {
    let device = native(40, &[('E', "lot_size=8m,region_size=512k"), ('N', "2000")]);
    let mut volume = Volume::open(&device).unwrap();
    let mut tx = DirectTx::new(&device, volume.geometry().clone());
    let caller = Caller::system(time(1));
    volume.begin_writing(&mut tx, time(1)).unwrap();
    let (mut dirs, mut files) = (Vec::new(), Vec::new());
    for at in 0..12 {
        let name = format!("d{at}");
        let new = NewInode::directory(0o755);
        let dir = volume.create(&mut tx, &caller, InodeNr::ROOT, name.as_bytes(), &new).unwrap();
        for file in 0..30 {
            let name = format!("{file}{}", "n".repeat(200));
            let new = NewInode::regular(0o644);
            let file = volume.create(&mut tx, &caller, dir, name.as_bytes(), &new).unwrap();
            volume.write(&mut tx, &device, &caller, file, 0, &[7; 9000]).unwrap();
            files.push(file);
        }
        dirs.push(dir);
    }
    let new = NewInode::regular(0o644);
    let all = volume.create(&mut tx, &caller, InodeNr::ROOT, b"all", &new).unwrap();
    let mut size = 0;
    while volume.write(&mut tx, &device, &caller, all, size, &[1; 400_000]).is_ok() {
        size += 400_000;
    }
    assert!(size > 10_000_000);
    tx.commit().unwrap();
    let (fs, records) = (FileSystem::open(&device).unwrap(), records(&device));
    let geo = fs.geometry();
    let lot_of = |group: GroupNr| &records[(group.0 / 4) as usize];
    let home = |inode| lot_of(geo.place_of(inode).unwrap().0);
    let region = |record: &LotRecord| {
        BlockRun::new(BlockNr(record.region_start), u64::from(record.region_blocks))
    };
    for &dir in &dirs {
        let runs = blocks_of(&fs, &mut tx, dir);
        assert!(runs.iter().map(|run| run.len_blocks).sum::<u64>() > 1);
        assert!(runs.iter().all(|run| region(home(dir)).contains(run.start)), "{dir}: {runs:?}");
    }
    for &one in files.iter().chain([&all]) {
        for run in blocks_of(&fs, &mut tx, one) {
            let inside = |record: &LotRecord| {
                region(record).start < run.end() && run.start < region(record).end()
            };
            assert!(!records.iter().any(inside), "{one}: {run:?}");
            let lot = lot_of(geo.group_of(run.start).unwrap()).lot;
            assert!(one == all || lot == home(one).lot, "{one}: {run:?}");
        }
    }
}

/// A block bitmap with a wrong checksum keeps neither writing nor the unmount from succeeding: the region of its lot is left
/// alone, the file system is not sealed, and nothing else is wrong with it.
#[test]
fn a_damaged_bitmap_does_not_keep_from_unmounting() {
    // Lot 1 is read for the first time at the unmount, because another program has written; lot 0 is used before.
    for (group, is_sealed) in [(0, true), (0, false), (4, true), (4, false)] {
        let device = native(40, &[('E', "lot_size=8m"), ('N', "2000")]);
        let fs = FileSystem::open(&device).unwrap();
        if !is_sealed {
            let mut bytes = [0; 1024];
            device.read_at(1024, &mut bytes).unwrap();
            let mut superblock = fs.superblock.clone();
            superblock.wtime += 1;
            superblock.encode_with_checksum(&mut bytes);
            device.write_at(1024, &bytes).unwrap();
        }
        let bitmap = fs.space.groups.descs()[group as usize].block_bitmap;
        let inside = fs.geometry().offset_bytes(bitmap) + 40;
        device.write_at(inside, &[0x55]).unwrap();
        let mut volume = Volume::open(&device).unwrap();
        let mut tx = DirectTx::new(&device, volume.geometry().clone());
        let caller = Caller::system(time(1));
        volume.begin_writing(&mut tx, time(1)).unwrap();
        for at in 0..40 {
            let (name, new) = (format!("d{at}"), NewInode::directory(0o755));
            volume.create(&mut tx, &caller, InodeNr::ROOT, name.as_bytes(), &new).unwrap();
        }
        // Its block lies in the region of lot 0, where no directory goes: the journal fills the lot.
        let target = NewInode::symlink(&[b'x'; 100]);
        volume.create(&mut tx, &caller, InodeNr::ROOT, b"link", &target).unwrap();
        assert!(volume.damaged_groups().contains(&GroupNr(group)));
        for lot in volume.lots_to_reserve() {
            volume.reserve_lot(&mut tx, time(1), lot).unwrap();
        }
        volume.end_writing(&mut tx, time(1)).unwrap();
        tx.commit().unwrap();
        seal(&device).unwrap();
        let superblock = FileSystem::open(&device).unwrap().superblock;
        assert!(!Identity::is_sealed(&superblock), "group {group}, sealed {is_sealed}");
        let found = check(&device, &CheckOptions::default()).unwrap().found;
        let of_bitmap = |problem: &Problem| problem.row().id.contains("bitmap");
        let others: Vec<_> = found.iter().filter(|problem| !of_bitmap(problem)).collect();
        assert!(!found.is_empty() && others.is_empty(), "{others:?}");
    }
}
