//! The 15 corruptions of the paper on ffsck and rext3 (Table II), by their names there, on file systems of rext3 itself, of ext3,
//! of ext4 and native ones: each is found and repaired, and e2fsck, which refuses rext3, has nothing to say afterwards.

use floe_blockdev::MemDevice;
use floe_check::{CheckOptions, check};
use floe_disk::mkfs::{self, Fresh, FsType, Options, Plan};
use floe_disk::ops::{Caller, NewInode};
use floe_disk::volume::Volume as DiskVolume;
use floe_ext4::tx::DirectTx;
use floe_format::ext::indirect::Header;
use floe_format::ext::inode::Timestamp;
use floe_format::{BlockNr, GroupNr, InodeNr, LogicalBlock};
use floe_testkit::{Image, Volume, oracle, tool};

use crate::judged;

const NOW: Timestamp = Timestamp { seconds: tool::NOW as i64, nanoseconds: 0 };
const BLOCK: u64 = 4096;
const FILE: &str = "/file";
const OTHER: &str = "/other";
/// A block outside of the file system.
const OUTSIDE: u32 = 0x7fff_0000;

/// An empty file system of several groups.
pub(crate) fn made(kind: FsType) -> MemDevice {
    let mut options = Options::of_type(kind);
    // The usual geometry, so that copies of the superblock are where they are sought: several groups.
    let (block, size_bytes) =
        if kind == FsType::Native { ("4096", 160 << 20) } else { ("1024", 40 << 20) };
    for (letter, value) in [('N', "2000"), ('b', block)] {
        options.set(letter, value).unwrap();
    }
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now: NOW };
    let params = options.params(size_bytes, None, &fresh).unwrap();
    let device = MemDevice::new(vec![0; size_bytes as usize]);
    mkfs::write(&Plan::new(&params).unwrap(), &device).unwrap();
    device
}

/// A file system with two files, each of 30 blocks with holes between them: with a leaf of an extent tree, or an indirect
/// block.
fn image(kind: FsType) -> Image {
    let device = made(kind);
    let mut volume = match kind {
        FsType::Rext3 => DiskVolume::open_rext3(&device).unwrap(),
        _ => DiskVolume::open(&device).unwrap(),
    };
    let mut tx = DirectTx::new(&device, volume.geometry().clone());
    let caller = Caller::system(NOW);
    volume.begin_writing(&mut tx, NOW).unwrap();
    for path in [FILE, OTHER] {
        let (name, new) = (path.trim_start_matches('/'), NewInode::regular(0o644));
        let file = volume.create(&mut tx, &caller, InodeNr::ROOT, name.as_bytes(), &new).unwrap();
        for at in 0..30 {
            let bytes = [at as u8 + 1; BLOCK as usize];
            volume.write(&mut tx, &device, &caller, file, at * 2 * BLOCK, &bytes).unwrap();
        }
    }
    for lot in volume.lots_to_reserve() {
        volume.reserve_lot(&mut tx, NOW, lot).unwrap();
    }
    volume.end_writing(&mut tx, NOW).unwrap();
    tx.commit().unwrap();
    Image::of(&device).unwrap()
}

/// An image with these bytes, and holes for zeroes.
pub(crate) fn image_with(bytes: &[u8]) -> Image {
    Image::of(&MemDevice::new(bytes.to_vec())).unwrap()
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Changes a field of the primary superblock.
fn superblock(volume: &Volume<'_>, at: usize, value: &[u8]) {
    volume.image.write(1024 + at as u64, value).unwrap();
    if at != 0x38 {
        volume.fix_superblock().unwrap();
    }
}

/// Changes a field of the descriptor of a group.
fn descriptor(volume: &Volume<'_>, at: usize, value: u32) {
    let group = GroupNr(1);
    let offset = volume.desc_offset(group) + at as u64;
    volume.image.write(offset, &value.to_le_bytes()).unwrap();
    volume.fix_desc(group).unwrap();
}

/// Changes the inode of the file.
fn inode(volume: &Volume<'_>, change: impl Fn(&mut [u8])) {
    let number = volume.lookup(FILE).unwrap();
    let mut bytes = volume.inode_bytes(number).unwrap();
    change(&mut bytes);
    volume.put_inode(number, &bytes).unwrap();
    volume.fix_inode(number).unwrap();
}

/// Changes the block that the map of the file leads through, but for its header in rext3, and says whether it is a node of extents.
fn node(volume: &Volume<'_>, change: impl Fn(&mut [u8], bool)) {
    let number = volume.lookup(FILE).unwrap();
    let block = volume.map(number).unwrap().nodes[0].block;
    let has_extents = volume.inode_bytes(number).unwrap()[0x22] & 0x08 != 0;
    let mut bytes = volume.block(block).unwrap();
    change(volume.geometry.indirect().body_mut(&mut bytes), has_extents);
    volume.put_block(block, &bytes).unwrap();
    if has_extents {
        volume.fix_extent_node(number, block).unwrap();
    }
}

/// The byte of the inode that holds the first block that it names: of data, or of a node.
fn pointer_of_inode(bytes: &[u8]) -> usize {
    // An index entry has its block at byte 4, behind a header of 12 bytes.
    if bytes[0x22] & 0x08 != 0 { 0x28 + 12 + 4 } else { 0x28 }
}

/// The byte of a node that holds the first block that it names.
const fn pointer_of_node(has_extents: bool) -> usize {
    if has_extents { 12 + 8 } else { 0 }
}

fn block_of_other(volume: &Volume<'_>, logical: u64) -> BlockNr {
    let map = volume.map(volume.lookup(OTHER).unwrap()).unwrap();
    map.data[&LogicalBlock(logical)]
}

/// The node of the other file, which its inode names.
fn node_of_other(volume: &Volume<'_>) -> BlockNr {
    volume.map(volume.lookup(OTHER).unwrap()).unwrap().nodes[0].block
}

/// The indirect blocks of both files name their inodes.
fn judge_headers(volume: &Volume<'_>, what: &str) {
    for path in [FILE, OTHER] {
        let Ok(number) = volume.lookup(path) else { continue };
        for node in volume.map(number).unwrap().nodes {
            let header = volume.geometry.indirect().header(&volume.block(node.block).unwrap());
            assert_eq!(header, Some(Header { inode: number.0, level: 1 }), "{what}: {path}");
        }
    }
}

type Corruption = (&'static str, fn(&Volume<'_>));

const TABLE: [Corruption; 15] = [
    ("superblock: magicNum", |volume| superblock(volume, 0x38, &[0, 0])),
    ("superblock: inodeSize", |volume| superblock(volume, 0x58, &100u16.to_le_bytes())),
    ("superblock: inodeNum", |volume| superblock(volume, 0x00, &1_000_003u32.to_le_bytes())),
    ("superblock: blockNum", |volume| superblock(volume, 0x04, &OUTSIDE.to_le_bytes())),
    ("group descriptor: inodeBitmapAddr", |volume| descriptor(volume, 0x04, OUTSIDE)),
    ("group descriptor: blockBitmapAddr", |volume| descriptor(volume, 0x00, OUTSIDE)),
    ("group descriptor: inodeTableAddr", |volume| descriptor(volume, 0x08, OUTSIDE)),
    ("inode: linkCount", |volume| {
        inode(volume, |bytes| bytes[0x1a..0x1c].copy_from_slice(&77u16.to_le_bytes()));
    }),
    ("inode: blockNumber", |volume| inode(volume, |bytes| put(bytes, 0x1c, 12_344))),
    ("inode: fileSize", |volume| inode(volume, |bytes| put(bytes, 0x04, 5))),
    ("inode: pointerRange", |volume| {
        inode(volume, |bytes| put(bytes, pointer_of_inode(bytes), OUTSIDE));
    }),
    ("inode: multiply-allocated block", |volume| {
        let number = volume.lookup(FILE).unwrap();
        let has_extents = volume.inode_bytes(number).unwrap()[0x22] & 0x08 != 0;
        let to = if has_extents { node_of_other(volume) } else { block_of_other(volume, 0) };
        inode(volume, |bytes| put(bytes, pointer_of_inode(bytes), to.0 as u32));
    }),
    ("indirect block: pointerRange", |volume| {
        node(volume, |bytes, has_extents| put(bytes, pointer_of_node(has_extents), OUTSIDE));
    }),
    ("indirect block: blockNumber", |volume| {
        node(volume, |bytes, has_extents| match has_extents {
            // The last extent is gone, or the last pointer.
            true => bytes[2] -= 1,
            false => {
                let used = |word: &usize| bytes[word * 4..word * 4 + 4] != [0; 4];
                let last = (0..bytes.len() / 4).rev().find(used).unwrap();
                put(bytes, last * 4, 0);
            }
        });
    }),
    ("indirect block: multiply-allocated block", |volume| {
        let to = block_of_other(volume, 2).0 as u32;
        node(volume, |bytes, has_extents| put(bytes, pointer_of_node(has_extents), to));
    }),
];

#[test]
fn the_corruptions_of_the_paper_are_found_and_repaired() {
    if tool::missing() {
        return;
    }
    for kind in [FsType::Ext3, FsType::Rext3, FsType::Ext4, FsType::Native] {
        let whole = image(kind);
        let found = |image: &Image| {
            let options =
                CheckOptions { now_seconds: i64::from(tool::NOW), ..CheckOptions::default() };
            check(image, &options).map(|report| report.found)
        };
        assert_eq!(found(&whole).unwrap(), [], "{kind:?}");
        let has_oracle = kind != FsType::Rext3;
        assert_eq!(oracle::e2fsck(&whole).unwrap().clean(), has_oracle, "{kind:?}");
        let bytes = whole.to_vec().unwrap();
        for (name, corrupt) in TABLE {
            let what = format!("{kind:?}, {name}");
            let image = image_with(&bytes);
            corrupt(&Volume::open(&image).unwrap());
            let damage = found(&image).unwrap();
            assert!(!damage.is_empty(), "{what}");
            let repaired = judged::program(image.path()).unwrap();
            assert_eq!(repaired.exit, Some(1), "{what}: {damage:?}: {}", repaired.text);
            assert_eq!(found(&image).unwrap(), [], "{what}");
            let judged = oracle::e2fsck(&image).unwrap();
            assert_eq!(judged.clean(), has_oracle, "{what}: {}", judged.text);
            if !has_oracle {
                // Headers follow the map, whatever was repaired.
                judge_headers(&Volume::open(&image).unwrap(), &what);
            }
        }
    }
}
