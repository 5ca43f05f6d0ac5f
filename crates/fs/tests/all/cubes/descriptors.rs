//! Damaged group descriptors of lots of one cube, of each kind: that cube is shut, everything else is served for writes, and a repair
//! brings all back.

use std::collections::BTreeSet;

use floe_blockdev::{Fault, Faulty, MemDevice, Overlay, ReadBlocks, WriteBlocks};
use floe_check::cube::{CubeName, Cubes};
use floe_disk::volume::Volume;
use floe_ext4::fs::read_superblock;
use floe_ext4::inode_table::desc_place;
use floe_format::ext::group_desc::{DescChecksum, GroupDesc};
use floe_format::ext::superblock::STATE_VALID;
use floe_format::native::cube::Policies;
use floe_format::native::identity::Identity;
use floe_format::{BlockNr, GroupNr, InodeNr};
use floe_fs::{CubeCall, Disk, FileSystem, Live, MemFs, Mode, NewInode, Store, Which, now};
use floe_repair::RepairOptions;
use floe_repair::cube::{changes, repair_cube};
use floe_repair::policy::Yes;
use floe_testkit::{Image, oracle, tool};

use super::edit;
use super::journals::{damage, repaired};
use super::struck::{BLOCK, MIB, Tenants, find, laid_out, load, make, read, used, write};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One bit of a count.
    Count,
    /// One bit of a checksum.
    Sum,
    /// The whole block.
    Zeroed,
    /// The block cannot be read.
    Unread,
}

const ALL: [Kind; 4] = [Kind::Count, Kind::Sum, Kind::Zeroed, Kind::Unread];

/// Both cubes with files, the first one with two lots.
fn two_lots(layout: Tenants) -> Vec<u8> {
    let device = MemDevice::new(laid_out(layout, Policies::default()));
    let ((), closed) = used(&device, |fs| {
        let a = find(fs, InodeNr::ROOT, "a").unwrap();
        let large = make(fs, a, "large", NewInode::regular(0o644)).unwrap();
        write(fs, large, 0, &vec![5; 4 * MIB as usize]).unwrap();
        fs.sync_inode(large, None).unwrap();
    });
    closed.unwrap();
    assert!(damage(&device).is_empty());
    device.to_vec()
}

fn lots_of_a(device: &dyn ReadBlocks) -> Vec<u32> {
    let owners = Volume::open(device).unwrap().lot_owners();
    owners.iter().filter(|(_, cube)| **cube == 1).map(|(lot, _)| *lot).collect()
}

fn desc_block(device: &dyn ReadBlocks, lot: u32) -> BlockNr {
    let (_, geometry) = read_superblock(device).unwrap();
    desc_place(GroupNr(lot * geometry.descs_per_block()), &geometry).0
}

/// Damages the descriptor of the second group of a lot.
fn hurt(device: &MemDevice, lot: u32, kind: Kind) {
    hurt_group(device, lot, 1, kind);
}

/// Damages the descriptor of a group of a lot.
fn hurt_group(device: &MemDevice, lot: u32, at: u32, kind: Kind) {
    let (_, geometry) = read_superblock(device).unwrap();
    let group = GroupNr(lot * geometry.descs_per_block() + at);
    let (block, at) = desc_place(group, &geometry);
    let mut bytes = vec![0; BLOCK as usize];
    device.read_at(block.0 * BLOCK, &mut bytes).unwrap();
    let raw = &mut bytes[at..at + geometry.desc_size as usize];
    match kind {
        Kind::Count => raw[0x0c] ^= 4,
        Kind::Sum => raw[0x1e] ^= 0x10,
        Kind::Zeroed => bytes.fill(0),
        Kind::Unread => {}
    }
    device.write_at(block.0 * BLOCK, &bytes).unwrap();
}

/// All blocks of lots but copies of the superblock.
fn bytes_of(device: &MemDevice, lots: &[u32]) -> Vec<u8> {
    let (_, geometry) = read_superblock(device).unwrap();
    let (all, per_lot) = (device.to_vec(), geometry.descs_per_block());
    let groups = lots.iter().flat_map(|lot| lot * per_lot..(lot + 1) * per_lot);
    let groups = groups.filter(|group| *group < geometry.group_count).map(GroupNr);
    let blocks = groups.flat_map(|group| {
        let (run, copy) = (geometry.blocks_of(group), geometry.superblock_of(group));
        (run.start.0..run.end().0).filter(move |block| copy != Some(BlockNr(*block)))
    });
    blocks.flat_map(|block| &all[(block * BLOCK) as usize..][..BLOCK as usize]).copied().collect()
}

/// `/a` is shut, and all else is served.
fn serves_others<S: Store>(fs: &FileSystem<S>, turn: u32, what: &str) {
    let gates = fs.store().gates().unwrap();
    let (mode, why) = gates.state(1);
    assert_eq!((mode, gates.state(2).0), (Mode::Failed, Mode::Serving), "{what}: {why:?}");
    assert!(why.is_some_and(|why| why.contains("group descriptors of its lot")), "{what}");
    let a = find(fs, InodeNr::ROOT, "a");
    assert!(a.and_then(|a| make(fs, a, "new", NewInode::regular(0o644))).is_err(), "{what}");
    let b = find(fs, InodeNr::ROOT, "b").unwrap();
    for top in [b, InodeNr::ROOT] {
        let failed = load(fs, top, turn);
        assert!(failed.is_empty(), "{what}: {failed:?}");
        let name = format!("synced{turn}");
        let file = make(fs, top, &name, NewInode::regular(0o644)).unwrap();
        write(fs, file, 0, name.as_bytes()).unwrap();
        fs.sync_inode(file, None).unwrap();
        fs.sync_inode(top, None).unwrap();
    }
}

/// Serves the others, and then the same after an unmount and after a crash. Nothing of `/a` is written.
fn stays_apart<D: WriteBlocks>(
    device: &D,
    base: &MemDevice,
    (lots, unsound): (&[u32], bool),
    what: &str,
) {
    let before = bytes_of(base, lots);
    for turn in 0..2 {
        let ((), closed) = used(device, |fs| serves_others(fs, turn, what));
        closed.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(bytes_of(base, lots) == before, "{what}, unmount {turn}");
        let (superblock, _) = read_superblock(base).unwrap();
        assert_eq!(superblock.state & STATE_VALID, 0, "{what}");
        assert!(!Identity::is_sealed(&superblock) && !Identity::is_coupled(&superblock), "{what}");
        assert!(!unsound || !damage(base).is_empty(), "{what}");
    }
    {
        let (disk, volume) = Disk::open(device).unwrap();
        let files = disk.files().unwrap();
        let live = Live::new(&disk, &files, volume, now()).unwrap();
        let fs = FileSystem::new(MemFs::new(live, Default::default()));
        serves_others(&fs, 2, what);
        // Neither unmounted nor closed.
    }
    let ((), closed) = used(device, |fs| {
        serves_others(fs, 3, what);
        for turn in 0..3 {
            for top in [InodeNr::ROOT, find(fs, InodeNr::ROOT, "b").unwrap()] {
                let name = format!("synced{turn}");
                let file = find(fs, top, &name).unwrap();
                assert_eq!(read(fs, file, 90).unwrap(), name.as_bytes(), "{what}");
            }
        }
    });
    closed.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(bytes_of(base, lots) == before, "{what}, after a crash");
}

/// Everything is there and served, and approved by all.
fn is_whole(device: &MemDevice, what: &str) {
    let ((), closed) = used(device, |fs| {
        for name in ["a", "b"] {
            let top = find(fs, InodeNr::ROOT, name).unwrap();
            let failed = load(fs, top, 7);
            assert!(failed.is_empty(), "{what}: {name}: {failed:?}");
        }
        let a = find(fs, InodeNr::ROOT, "a").unwrap();
        let large = find(fs, a, "large").unwrap();
        let content = read(fs, large, 4 * MIB as usize).unwrap();
        assert!(content == vec![5; 4 * MIB as usize], "{what}");
    });
    closed.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(damage(device).is_empty(), "{what}: {:?}", damage(device));
    let (superblock, _) = read_superblock(device).unwrap();
    assert!(Identity::is_sealed(&superblock), "{what}");
    if tool::missing() {
        return;
    }
    let image = Image::of(&device).unwrap();
    let judged = oracle::e2fsck(&image).unwrap();
    assert!(judged.clean(), "{what}: {}", judged.text);
}

/// Repairs `/a` alone, or says why not.
fn repaired_alone(device: &MemDevice) -> Result<(), String> {
    let options = RepairOptions::default();
    let onto = Overlay::new(device, BLOCK as u32);
    {
        let cubes = Cubes::of(device, &options.check).unwrap();
        let scope = cubes.find(&CubeName::Number(1)).map_err(|error| error.to_string())?;
        let shown = cubes.device(&scope);
        let repair = repair_cube(&shown, &scope, &options, &mut Yes);
        let repair = repair.map_err(|error| error.to_string())?;
        if !repair.left.is_empty() {
            return Err(format!("{:?}", repair.left));
        }
        changes(&repair, &scope, &onto).unwrap();
    }
    onto.copy_to(device).unwrap();
    Ok(())
}

fn each_kind(layout: Tenants) {
    let base = two_lots(layout);
    let lots = lots_of_a(&MemDevice::new(base.clone()));
    assert_eq!(lots.len(), 2);
    for kind in ALL {
        let hits: &[&[u32]] = match kind {
            Kind::Count | Kind::Sum => &[&lots[..1]],
            _ => &[&lots[..1], &lots[1..], &lots],
        };
        for hit in hits {
            let what = format!("{layout:?} {kind:?} {hit:?}");
            let device = MemDevice::new(base.clone());
            hit.iter().for_each(|lot| hurt(&device, *lot, kind));
            if kind == Kind::Unread {
                let blocks: BTreeSet<BlockNr> =
                    hit.iter().map(|lot| desc_block(&device, *lot)).collect();
                let copy = MemDevice::new(base.clone());
                let faults = blocks.into_iter().map(|block| (block, Fault::Unreadable));
                let faulty = Faulty::new(&copy, BLOCK as u32, faults);
                // It may be read the next time.
                assert!(Disk::open(&faulty).is_err(), "{what}");
                assert!(copy.holds(&base), "{what}");
                continue;
            }
            stays_apart(&device, &device, (&lots, true), &what);
            let alone = device.clone();
            repaired(&device);
            is_whole(&device, &what);
            match repaired_alone(&alone) {
                Ok(()) => is_whole(&alone, &format!("{what}, repaired alone")),
                // Nothing in the lot says any more that it is the cube's.
                Err(why) => {
                    let is_told = why.contains("floe repair") || why.contains("no such cube");
                    assert!(kind == Kind::Zeroed && is_told, "{what}: {why}");
                }
            }
        }
    }
}

#[test]
fn damaged_descriptors_of_a_cube_are_felt_by_no_other() {
    each_kind(Tenants::Shared);
}

#[test]
fn damaged_descriptors_of_a_cube_with_a_journal_are_felt_by_no_other() {
    each_kind(Tenants::Apart);
}

/// Descriptors that a log holds are written by recovery, before anybody judges those in their place.
#[test]
fn recovery_heals_damaged_descriptors() {
    for layout in [Tenants::Shared, Tenants::Apart] {
        let base = MemDevice::new(two_lots(layout));
        let lots = lots_of_a(&base);
        {
            let (disk, volume) = Disk::open(&base).unwrap();
            let files = disk.files().unwrap();
            let live = Live::new(&disk, &files, volume, now()).unwrap();
            let fs = FileSystem::new(MemFs::new(live, Default::default()));
            let a = find(&fs, InodeNr::ROOT, "a").unwrap();
            for at in 0..60 {
                // Inodes of all groups.
                make(&fs, a, &format!("many{at}"), NewInode::regular(0o644)).unwrap();
            }
            fs.sync_inode(a, None).unwrap();
        }
        for kind in [Kind::Count, Kind::Sum, Kind::Zeroed] {
            let what = format!("{layout:?} {kind:?}");
            let device = base.clone();
            hurt(&device, lots[0], kind);
            let ((), closed) = used(&device, |fs| {
                let a = find(fs, InodeNr::ROOT, "a").unwrap();
                assert!(find(fs, a, "many59").is_ok(), "{what}");
            });
            closed.unwrap();
            is_whole(&device, &what);
        }
    }
}

/// Backups of descriptors from before the cube got the lot, as a crash leaves them: only the other groups know whose it is.
#[test]
fn a_repair_of_descriptors_keeps_the_record_of_the_lot() {
    for layout in [Tenants::Shared, Tenants::Apart] {
        let earlier = MemDevice::new(laid_out(layout, Policies::default()));
        let base = MemDevice::new(two_lots(layout));
        let had = lots_of_a(&earlier);
        let lot = lots_of_a(&base).into_iter().find(|lot| !had.contains(lot)).unwrap();
        let (_, geometry) = read_superblock(&base).unwrap();
        let per_lot = geometry.descs_per_block();
        for at in [1, per_lot - 1] {
            let backup = geometry.group_desc_run(GroupNr(lot * per_lot + at)).start;
            let mut bytes = vec![0; BLOCK as usize];
            earlier.read_at(backup.0 * BLOCK, &mut bytes).unwrap();
            base.write_at(backup.0 * BLOCK, &bytes).unwrap();
        }
        for at in 0..per_lot {
            let what = format!("{layout:?} {at}");
            let device = base.clone();
            hurt_group(&device, lot, at, Kind::Count);
            let alone = device.clone();
            repaired_alone(&alone).unwrap_or_else(|why| panic!("{what}: {why}"));
            assert!(damage(&alone).is_empty(), "{what}: {:?}", damage(&alone));
            is_whole(&alone, &what);
            repaired(&device);
            is_whole(&device, &what);
        }
    }
}

/// Lets the inode table of the second group of a lot lie beyond the file system, with a right or a wrong checksum.
fn lead_astray(device: &dyn WriteBlocks, lot: u32, has_checksum: bool) {
    let (superblock, geometry) = read_superblock(device).unwrap();
    let group = GroupNr(lot * geometry.descs_per_block() + 1);
    let (block, at) = desc_place(group, &geometry);
    let offset = block.0 * BLOCK + at as u64;
    let mut raw = vec![0; geometry.desc_size as usize];
    device.read_at(offset, &mut raw).unwrap();
    let mut desc = GroupDesc::of(&raw);
    desc.inode_table.0 |= 1 << 40;
    desc.seal(&mut raw, group, DescChecksum::of(&superblock));
    raw[0x1e] ^= u8::from(!has_checksum);
    device.write_at(offset, &raw).unwrap();
}

/// Descriptors of any lot that lead nowhere, with a right checksum or a wrong one, stand in nobody's way, while a cube with a journal of its
/// own is repaired online: the copies of the superblock in its lots say that journals are in use, and others write on.
#[test]
fn a_cube_is_repaired_online_beside_descriptors_that_lead_nowhere() {
    let base = two_lots(Tenants::Apart);
    let lots = lots_of_a(&MemDevice::new(base.clone()));
    let last = read_superblock(&MemDevice::new(base.clone())).unwrap().1.desc_blocks - 1;
    let of_b = Volume::open(&MemDevice::new(base.clone())).unwrap().lot_owners();
    let of_b = *of_b.iter().find(|(_, cube)| **cube == 2).unwrap().0;
    for lot in [0, lots[0], lots[1], of_b, last] {
        for has_checksum in [true, false] {
            let what = format!("lot {lot}, {has_checksum}");
            if !has_checksum && [lots[1], last].contains(&lot) {
                // As the first lot of `a`, and as that of `b`.
                continue;
            }
            let device = MemDevice::new(base.clone());
            let (report, closed) = used(&device, |fs| {
                let a = find(fs, InodeNr::ROOT, "a").unwrap();
                let large = find(fs, a, "large").unwrap();
                let b = find(fs, InodeNr::ROOT, "b").unwrap();
                let file = make(fs, b, "synced", NewInode::regular(0o644)).unwrap();
                fs.sync_inode(file, None).unwrap();
                fs.tend().unwrap();
                edit(&device, large, |inode| inode.base.links_count = 7);
                lead_astray(&device, lot, has_checksum);
                let call = CubeCall::Check { cube: Which::Number(1), repairs: true, undo: None };
                fs.cube_call(&call).unwrap();
                fs.tend().unwrap();
                let report = fs.cube_call(&CubeCall::Report(Which::Number(1))).unwrap();
                if has_checksum || ![of_b, 0].contains(&lot) {
                    let after = make(fs, b, "after", NewInode::regular(0o644)).unwrap();
                    write(fs, after, 0, &[3; 5000]).unwrap();
                    fs.sync_inode(after, None).unwrap_or_else(|error| panic!("{what}: {error}"));
                }
                String::from_utf8(report).unwrap()
            });
            if has_checksum || lots.contains(&lot) {
                closed.unwrap_or_else(|error| panic!("{what}: {error}"));
            } else if let Err(error) = closed {
                // The unmount cannot change what is damaged.
                assert!(
                    error.contains("the checksum of a group descriptor is wrong"),
                    "{what}: {error}"
                );
            }
            assert!(report.starts_with("state: repaired"), "{what}: {report}");
            assert!(report.contains("link-count-wrong"), "{what}: {report}");
            repaired(&device);
            // The unmount has not copied what it found there to the backups.
            is_whole(&device, &what);
        }
    }
}
