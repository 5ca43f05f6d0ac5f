//! Native file systems: damage of their private bytes and of reservation files is repaired, other repairs leave both alone,
//! and e2fsck approves the result.

use floe_blockdev::{MemDevice, ReadBlocks, WriteBlocks};
use floe_check::{CheckOptions, check};
use floe_disk::mkfs::{self, Fresh, FsType, Options, Plan};
use floe_disk::ops::{Caller, NewInode};
use floe_disk::volume::{Volume, seal};
use floe_ext4::fs::FileSystem;
use floe_ext4::inode_table::{desc_place, inode_place};
use floe_ext4::map::edit::TreeEditor;
use floe_ext4::tx::DirectTx;
use floe_format::ext::dirent::DirTail;
use floe_format::ext::group_desc::{DescChecksum, GroupDesc};
use floe_format::ext::inode::{InodeFlags, OwnedInode, Timestamp};
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::native::backpointer::Backpointer;
use floe_format::native::identity::{Identity, OFFSET};
use floe_format::native::lot::LotRecord;
use floe_format::{GroupNr, InodeNr};
use floe_testkit::compare::{ReadBy, Terms, judge};
use floe_testkit::{Image, damage, oracle, tool, tree};

use crate::judged;

mod directories;

const NOW: Timestamp = Timestamp { seconds: tool::NOW as i64, nanoseconds: 0 };
const SIZE_BYTES: u64 = 40 << 20;

/// Five lots of 8 MiB, with directories that use their regions, sealed.
fn native() -> MemDevice {
    let mut options = Options::of_type(FsType::Native);
    for (letter, value) in [('E', "lot_size=8m,region_size=256k"), ('N', "2000")] {
        options.set(letter, value).unwrap();
    }
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now: NOW };
    let params = options.params(SIZE_BYTES, None, &fresh).unwrap();
    let device = MemDevice::new(vec![0; SIZE_BYTES as usize]);
    mkfs::write(&Plan::new(&params).unwrap(), &device).unwrap();
    let mut volume = Volume::open(&device).unwrap();
    let mut tx = DirectTx::new(&device, volume.geometry().clone());
    let caller = Caller::system(NOW);
    volume.begin_writing(&mut tx, NOW).unwrap();
    for at in 0..20 {
        let (name, new) = (format!("dir{at}"), NewInode::directory(0o755));
        let dir = volume.create(&mut tx, &caller, InodeNr::ROOT, name.as_bytes(), &new).unwrap();
        for file in 0..20 {
            let name = format!("{file}{}", "n".repeat(200));
            let new = NewInode::regular(0o644);
            let file = volume.create(&mut tx, &caller, dir, name.as_bytes(), &new).unwrap();
            volume.write(&mut tx, &device, &caller, file, 0, &[at; 5000]).unwrap();
        }
    }
    for lot in volume.lots_to_reserve() {
        volume.reserve_lot(&mut tx, NOW, lot).unwrap();
    }
    volume.end_writing(&mut tx, NOW).unwrap();
    let lots = volume.lots_to_reserve();
    tx.commit().unwrap();
    assert!(lots.is_empty());
    volume.back_up_descriptors(&device, &[0, 1, 2, 3, 4]).unwrap();
    seal(&device).unwrap();
    assert!(Identity::is_sealed(&superblock(&device)));
    device
}

fn superblock(device: &dyn ReadBlocks) -> Superblock {
    let mut bytes = [0; 1024];
    device.read_at(OFFSET_BYTES, &mut bytes).unwrap();
    Superblock::decode(&bytes)
}

/// Changes bytes of the superblock in the places given, and its checksum.
fn edit_superblocks(device: &dyn WriteBlocks, places: &[u64], edit: impl Fn(&mut Superblock)) {
    for &place in places {
        let mut bytes = [0; 1024];
        device.read_at(place, &mut bytes).unwrap();
        let mut superblock = Superblock::decode(&bytes);
        edit(&mut superblock);
        superblock.encode_with_checksum(&mut bytes);
        device.write_at(place, &bytes).unwrap();
    }
}

/// The primary superblock and its backups.
fn superblocks(device: &dyn ReadBlocks) -> Vec<u64> {
    let fs = FileSystem::open(device).unwrap();
    let geo = fs.geometry();
    let backups = (1..geo.group_count).filter_map(|group| geo.superblock_of(GroupNr(group)));
    [OFFSET_BYTES].into_iter().chain(backups.map(|block| geo.offset_bytes(block))).collect()
}

/// Changes the private bytes of descriptors, and their checksums, in the copies of the groups given: 0 is the primary one.
fn edit_descriptors(
    device: &dyn WriteBlocks,
    groups: impl IntoIterator<Item = u32>,
    copies: &[usize],
    edit: impl Fn(&mut [u8]),
) {
    let fs = FileSystem::open(device).unwrap();
    let geo = fs.geometry();
    let checksum = DescChecksum::of(&fs.superblock);
    for group in groups.into_iter().map(GroupNr) {
        let (primary, at) = desc_place(group, geo);
        let first = group.0 / 4 * 4;
        let backup = |at: u32| geo.group_desc_run(GroupNr(first + at)).start;
        let places = [primary, backup(1), backup(3)];
        for place in copies.iter().map(|copy| places[*copy]) {
            let offset = geo.offset_bytes(place) + at as u64;
            let mut raw = vec![0; 1024];
            device.read_at(offset, &mut raw).unwrap();
            edit(&mut raw[64..]);
            let mut desc = GroupDesc::of(&raw);
            desc.seal(&mut raw, group, checksum);
            device.write_at(offset, &raw).unwrap();
        }
    }
}

fn records(device: &dyn ReadBlocks) -> Vec<LotRecord> {
    let fs = FileSystem::open(device).unwrap();
    let geo = fs.geometry();
    let record = |group| {
        let (block, at) = desc_place(GroupNr(group), geo);
        let mut raw = vec![0; 1024];
        device.read_at(geo.offset_bytes(block) + at as u64, &mut raw).unwrap();
        LotRecord::of(&raw).unwrap_or_else(|| panic!("group {group} has no record"))
    };
    (0..geo.group_count).map(record).collect()
}

fn edit_inode(device: &dyn WriteBlocks, number: u32, edit: impl Fn(&mut OwnedInode)) {
    let fs = FileSystem::open(device).unwrap();
    let (block, at) = inode_place(InodeNr(number), fs.geometry(), fs.space.groups.descs()).unwrap();
    let offset = fs.geometry().offset_bytes(block) + at as u64;
    let mut raw = vec![0; 256];
    device.read_at(offset, &mut raw).unwrap();
    let mut inode = OwnedInode::of(InodeNr(number), raw).unwrap();
    edit(&mut inode);
    device.write_at(offset, inode.seal(Some(fs.superblock.seed()))).unwrap();
}

fn found(device: &dyn ReadBlocks) -> Vec<&'static str> {
    let report = check(device, &CheckOptions::default()).unwrap();
    let mut ids: Vec<_> = report.found.iter().map(|problem| problem.row().id).collect();
    ids.dedup();
    ids
}

/// Damages a native file system, repairs it, and lets Floe and e2fsck judge: no file has changed, all records are what they
/// were but for the seal's number, and all regions are usable and reserved. `expected`: ids of findings that the damage causes.
fn repaired(expected: &[&str], damage: impl Fn(&MemDevice)) -> Image {
    let device = native();
    let before = records(&device);
    let image = Image::empty(SIZE_BYTES).unwrap();
    image.write(0, &device.to_vec()).unwrap();
    let files = tree::stored(&image).unwrap();
    assert!(found(&device).is_empty());
    damage(&device);
    let of_damage = found(&device);
    let finds = |id: &&str| of_damage.contains(id);
    assert!(expected.iter().all(finds), "{expected:?}: {of_damage:?}");
    image.write(0, &device.to_vec()).unwrap();
    let repaired = judged::program(image.path()).unwrap();
    assert_eq!(repaired.exit, Some(1), "{expected:?}: {}", repaired.text);
    assert!(found(&image).is_empty(), "{:?}", found(&image));
    let judged = oracle::e2fsck(&image).unwrap();
    assert!(judged.clean(), "{}", judged.text);
    let all = |tree: &tree::Tree| -> Vec<(Vec<u8>, String)> {
        let files = tree.iter().filter(|(path, _)| !path.starts_with(b"/.cubes/c0/"));
        files.map(|(path, node)| (path.clone(), node.content.clone())).collect()
    };
    assert_eq!(all(&files), all(&tree::stored(&image).unwrap()));
    let after = records(&image);
    let region = |record: &LotRecord| (record.lot, record.region_start, record.region_blocks);
    let regions = |records: &[LotRecord]| records.iter().map(region).collect::<Vec<_>>();
    assert_eq!(regions(&before), regions(&after));
    usable(&image);
    image
}

/// Floe finds a use for every region, fills it again, and seals the file system.
fn usable(image: &Image) {
    let device = MemDevice::new(image.to_vec().unwrap());
    let mut volume = Volume::open(&device).unwrap();
    let mut tx = DirectTx::new(&device, volume.geometry().clone());
    volume.begin_writing(&mut tx, NOW).unwrap();
    for lot in 0..5 {
        volume.reserve_lot(&mut tx, NOW, lot).unwrap();
    }
    volume.end_writing(&mut tx, NOW).unwrap();
    tx.commit().unwrap();
    seal(&device).unwrap();
    assert!(Identity::is_sealed(&superblock(&device)));
    assert!(found(&device).is_empty(), "{:?}", found(&device));
}

#[test]
fn repairs_of_descriptors_keep_the_records_of_lots() {
    if tool::missing() {
        return;
    }
    repaired(&["group-free-inode-count-wrong"], |device| {
        let fs = FileSystem::open(device).unwrap();
        let checksum = DescChecksum::of(&fs.superblock);
        let (block, at) = desc_place(GroupNr(6), fs.geometry());
        let offset = fs.geometry().offset_bytes(block) + at as u64;
        let mut raw = vec![0; 1024];
        device.read_at(offset, &mut raw).unwrap();
        let mut desc = GroupDesc::of(&raw);
        desc.free_inodes_count -= 3;
        desc.seal(&mut raw, GroupNr(6), checksum);
        device.write_at(offset, &raw).unwrap();
    });
}

/// As Linux leaves it when it renames a file: the inode says its old name.
#[test]
fn backpointers_are_compared_with_names_and_stored_again() {
    if tool::missing() {
        return;
    }
    let of = |device: &dyn ReadBlocks, path: &str| {
        let image = Image::empty(SIZE_BYTES).unwrap();
        let mut bytes = vec![0; SIZE_BYTES as usize];
        device.read_at(0, &mut bytes).unwrap();
        image.write(0, &bytes).unwrap();
        floe_testkit::Volume::open(&image).unwrap().lookup(path).unwrap()
    };
    let image = repaired(&["backpointers-wrong"], |device| {
        for (path, own) in [
            ("/dir1", Some(Backpointer::new(InodeNr::ROOT, b"old"))),
            ("/dir2", Some(Backpointer::new(InodeNr(12), b"dir2"))),
            // Linux made it.
            ("/dir3", None),
        ] {
            let inode = of(device, path).0;
            edit_inode(device, inode, |inode| inode.set_backpointer(own.as_ref()));
        }
    });
    for (path, name) in [("/dir1", "dir1"), ("/dir2", "dir2"), ("/dir3", "dir3")] {
        let volume = floe_testkit::Volume::open(&image).unwrap();
        let raw = volume.inode_bytes(volume.lookup(path).unwrap()).unwrap();
        let own = Backpointer::of(&raw).unwrap();
        assert!(own.fits(InodeNr::ROOT, name.as_bytes()), "{path}: {own:?}");
    }
}

#[test]
fn records_are_repaired_from_neighbours_backups_and_the_layout() {
    if tool::missing() {
        return;
    }
    let zero = |raw: &mut [u8]| raw.fill(0);
    repaired(&["lot-record-wrong"], |device| edit_descriptors(device, [5], &[0], zero));
    repaired(&["lot-record-wrong"], |device| edit_descriptors(device, 4..8, &[0], zero));
    repaired(&["lot-record-wrong"], |device| edit_descriptors(device, 0..20, &[0, 1, 2], zero));
    repaired(&["lot-record-wrong"], |device| {
        let elsewhere = |raw: &mut [u8]| raw[16..24].fill(9);
        edit_descriptors(device, 8..12, &[0], elsewhere);
    });
    repaired(&["lot-record-wrong"], |device| {
        // Another inode, and so no file of the file system's own.
        let other = |raw: &mut [u8]| raw[28..32].copy_from_slice(&100u32.to_le_bytes());
        edit_descriptors(device, 8..12, &[0, 1, 2], other);
    });
}

#[test]
fn identities_are_repaired_from_backups_and_records() {
    if tool::missing() {
        return;
    }
    let zero = |superblock: &mut Superblock| {
        let mut bytes = [0; 1024];
        superblock.encode_into(&mut bytes);
        bytes[OFFSET..OFFSET + 76].fill(0);
        *superblock = Superblock::decode(&bytes);
    };
    let expected = ["native-identity-wrong"];
    let image = repaired(&expected, |device| edit_superblocks(device, &[OFFSET_BYTES], zero));
    assert_eq!(Identity::of(&superblock(&image)).unwrap().region_blocks, 64);
    let image = repaired(&expected, |device| {
        edit_superblocks(device, &superblocks(device), zero);
    });
    assert_eq!(Identity::of(&superblock(&image)).unwrap().region_blocks, 64);
    for home in [1, 13, u32::MAX] {
        let image = repaired(&expected, |device| {
            edit_superblocks(device, &[OFFSET_BYTES], |superblock| {
                let identity = Identity::of(superblock).unwrap();
                Identity { home_inode: home, ..identity }.put_sealed(superblock);
            });
        });
        assert_eq!(Identity::of(&superblock(&image)).unwrap().home_inode, 12);
    }
}

/// Each field by which the layout is found is wrong in the primary copy alone, with a right checksum: the copies and what lies on the disk say
/// so, and nothing right is written over.
#[test]
fn fields_of_the_layout_that_copies_contradict_are_mended_and_not_copied() {
    type Edit = fn(&mut Superblock);
    type RecordEdit<'e> = &'e dyn Fn(&mut [u8]);
    if tool::missing() {
        return;
    }
    let of_superblock: [(&str, Edit); 3] = [
        ("native-identity-wrong", |superblock| {
            let identity = Identity::of(superblock).unwrap();
            Identity { region_blocks: 32, ..identity }.put(superblock);
        }),
        ("native-identity-wrong", |superblock| {
            let identity = Identity::of(superblock).unwrap();
            Identity { region_blocks: 512, ..identity }.put_sealed(superblock);
        }),
        ("native-identity-wrong", |superblock| {
            let identity = Identity::of(superblock).unwrap();
            Identity { version: 2, ..identity }.put(superblock);
        }),
    ];
    for (expected, edit) in of_superblock {
        let image = repaired(&[expected], |device| edit_superblocks(device, &[OFFSET_BYTES], edit));
        let identity = Identity::of(&superblock(&image)).unwrap();
        assert_eq!(identity.region_blocks, 64, "{expected}");
    }
    // Records: all groups of a lot agree, in the primary descriptors.
    let put = |raw: &mut [u8], at: usize, value: u32| {
        raw[at..at + 4].copy_from_slice(&value.to_le_bytes());
    };
    let get = |raw: &[u8], at: usize| u32::from_le_bytes(*raw[at..].first_chunk().unwrap());
    let of_record: [RecordEdit<'_>; 5] = [
        &|raw| put(raw, 0x18, 63),
        &|raw| put(raw, 0x18, 200),
        &|raw| put(raw, 0x10, get(raw, 0x10) + 1),
        &|raw| put(raw, 0x10, get(raw, 0x10) - 3),
        &|raw| put(raw, 0x08, 1),
    ];
    for edit in of_record {
        repaired(&["lot-record-wrong"], |device| edit_descriptors(device, 8..12, &[0], edit));
    }
}

#[test]
fn reservation_files_are_rebuilt() {
    if tool::missing() {
        return;
    }
    let region_file = |device: &MemDevice, lot: usize| records(device)[lot * 4].region_inode;
    // Its flag is gone.
    repaired(&["reservation-file-wrong"], |device| {
        edit_inode(device, region_file(device, 2), |inode| {
            inode.base.flags &= !InodeFlags::IMMUTABLE.bits();
        });
    });
    // It holds data: its first extent is written.
    repaired(&["reservation-file-wrong"], |device| {
        edit_inode(device, region_file(device, 2), |inode| {
            let len = u16::from_le_bytes([inode.base.block[16], inode.base.block[17]]);
            inode.base.block[16..18].copy_from_slice(&(len - 0x8000).to_le_bytes());
        });
    });
    // It is empty, and its blocks belong to nobody.
    repaired(&["region-not-reserved"], |device| {
        edit_inode(device, region_file(device, 1), |inode| {
            inode.base.block = TreeEditor::EMPTY;
        });
    });
}

#[test]
fn a_reservation_file_that_is_gone_is_made_again() {
    if tool::missing() {
        return;
    }
    // The name leads nowhere, and is removed; then there is no file.
    for lot in [1, 3] {
        repaired(&["dirent-inode-unused"], |device| {
            let fs = FileSystem::open(device).unwrap();
            let number = InodeNr(records(device)[lot * 4].region_inode);
            let (block, at) = inode_place(number, fs.geometry(), fs.space.groups.descs()).unwrap();
            let offset = fs.geometry().offset_bytes(block) + at as u64;
            device.write_at(offset, &[0; 256]).unwrap();
        });
    }
}

/// The name of a reservation file leads elsewhere: to no inode, to one that is not in use, or to somebody's file, which keeps its
/// content. The file gets its name back.
#[test]
fn a_wrong_name_costs_neither_the_reservation_file_nor_another() {
    if tool::missing() {
        return;
    }
    for lot in [1, 2] {
        for target in [0xffff, 1999, user_file(&native(), lot)] {
            let image = repaired(&["reservation-file-unnamed"], |device| {
                let file = records(device)[lot as usize * 4].region_inode;
                edit_name(device, &format!("region.{lot}"), target);
                assert_ne!(file, target);
            });
            let record = records(&image)[lot as usize * 4].clone();
            assert_eq!(record.region_inode, records(&native())[lot as usize * 4].region_inode);
            let left = tree::stored(&image).unwrap();
            let found = left.keys().find(|path| path.starts_with(b"/lost+found/"));
            assert_eq!(found, None, "lot {lot}, {target}");
        }
    }
}

/// A file with content in a lot.
fn user_file(device: &MemDevice, lot: u32) -> u32 {
    let fs = FileSystem::open(device).unwrap();
    let is_file = |number: &u32| {
        let place = inode_place(InodeNr(*number), fs.geometry(), fs.space.groups.descs());
        let Some((block, at)) = place else { return false };
        let mut raw = vec![0; 256];
        device.read_at(fs.geometry().offset_bytes(block) + at as u64, &mut raw).unwrap();
        let inode = OwnedInode::of(InodeNr(*number), raw).unwrap();
        inode.base.mode == 0o100_644 && inode.base.size_lo == 5000
    };
    let first = fs.geometry().inode_at(GroupNr(lot * 4), 0).0;
    (first..first + 300).find(is_file).unwrap()
}

/// Lets a name in `/.cubes/c0` lead to another inode, with the checksum of its block.
fn edit_name(device: &MemDevice, name: &str, inode: u32) {
    let fs = FileSystem::open(device).unwrap();
    let bytes = device.to_vec();
    let is_entry = |at: &usize| bytes[*at - 2] as usize == name.len() && bytes[*at - 1] == 1;
    let mut places =
        (8..bytes.len()).filter(|at| bytes[*at..].starts_with(name.as_bytes())).filter(is_entry);
    let at = places.next().unwrap() - 8;
    assert_eq!(places.next(), None);
    let start = at / 4096 * 4096;
    let mut block = bytes[start..start + 4096].to_vec();
    block[at - start..at - start + 4].copy_from_slice(&inode.to_le_bytes());
    let dir = u32::from_le_bytes(*block.first_chunk().unwrap());
    DirTail::write(fs.superblock.seed().of_inode(InodeNr(dir), 0), &mut block);
    device.write_at(start as u64, &block).unwrap();
}

#[test]
fn a_region_on_blocks_of_another_file_system_part_is_not_believed() {
    if tool::missing() {
        return;
    }
    // Its extent leads outside the region.
    repaired(&["reservation-file-wrong"], |device| {
        let number = records(device)[8].region_inode;
        edit_inode(device, number, |inode| {
            let start = u32::from_le_bytes(*inode.base.block[20..24].first_chunk().unwrap());
            inode.base.block[20..24].copy_from_slice(&(start + 500).to_le_bytes());
        });
    });
}

/// Random damage: everything that e2fsck's repair saves is there after Floe's, and e2fsck finds nothing left.
#[test]
fn random_damage_is_repaired() {
    if tool::missing() {
        return;
    }
    let original = Image::empty(SIZE_BYTES).unwrap();
    original.write(0, &native().to_vec()).unwrap();
    let first = std::env::var("FLOE_SEED").map_or(0, |seed| seed.parse().unwrap());
    let mut faults = Vec::new();
    for seed in first..first + 30 {
        let image = original.copy().unwrap();
        let damage = damage::damage(&image, seed).unwrap();
        let terms = Terms { read_by: ReadBy::Testkit, original: Some(&original) };
        let judged = judge(&image, &terms, &judged::program).unwrap();
        faults.extend(judged.faults.iter().map(|fault| format!("{damage}: {fault}")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
