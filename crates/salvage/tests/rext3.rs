//! rext3: headers of indirect blocks say whose files they are, when inodes and pointers are gone.

#![allow(clippy::unwrap_used)] // a test may

use std::collections::BTreeMap;

use floe_blockdev::{MemDevice, WriteBlocks};
use floe_disk::mkfs::{self, Fresh, FsType, Options as DiskOptions, Plan};
use floe_disk::ops::{Caller, NewInode};
use floe_disk::volume::Volume;
use floe_ext4::fs::FileSystem;
use floe_ext4::inode_table::inode_place;
use floe_ext4::tx::DirectTx;
use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, Timestamp};
use floe_salvage::{Options, Summary, salvage};

const SIZE_BYTES: u64 = 40 << 20;
const BLOCK: usize = 1024;
/// Blocks of a file that only its inode names.
const DIRECT: usize = 12;

/// Names in the large directory, about four in a block.
const NAMES: usize = 150;

/// Blocks of a file that tell their file and their place.
fn content(file: usize, blocks: usize) -> Vec<u8> {
    let block = |at: usize| [file as u8 + 1, at as u8, (at >> 8) as u8, 7].repeat(BLOCK / 4);
    (0..blocks).flat_map(block).collect()
}

/// Sizes in blocks: maps without indirect blocks, with one, and with two levels.
const BLOCKS: [usize; 6] = [5, 13, 100, 266, 500, 900];

/// A file system with files in a directory of one block, and a directory of many blocks without files.
fn rext3() -> (MemDevice, BTreeMap<String, (InodeNr, Vec<u8>)>) {
    let now = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
    let mut options = DiskOptions::of_type(FsType::Rext3);
    for (letter, value) in [('b', "1024"), ('g', "4096"), ('N', "2000"), ('J', "size=1")] {
        options.set(letter, value).unwrap();
    }
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now };
    let device = MemDevice::new(vec![0; SIZE_BYTES as usize]);
    let params = options.params(SIZE_BYTES, None, &fresh).unwrap();
    mkfs::write(&Plan::new(&params).unwrap(), &device).unwrap();
    let mut volume = Volume::open_rext3(&device).unwrap();
    let mut tx = DirectTx::new(&device, volume.geometry().clone());
    let caller = Caller::system(now);
    volume.begin_writing(&mut tx, now).unwrap();
    let new = NewInode::directory(0o755);
    let dir = volume.create(&mut tx, &caller, InodeNr::ROOT, b"dir", &new).unwrap();
    let mut files = BTreeMap::new();
    for at in 0..60 {
        let name = format!("f{at}");
        let new = NewInode::regular(0o644);
        let file = volume.create(&mut tx, &caller, dir, name.as_bytes(), &new).unwrap();
        let bytes = content(at, BLOCKS[at % BLOCKS.len()]);
        volume.write(&mut tx, &device, &caller, file, 0, &bytes).unwrap();
        files.insert(format!("dir/{name}"), (file, bytes));
    }
    let new = NewInode::directory(0o755);
    let big = volume.create(&mut tx, &caller, InodeNr::ROOT, b"big", &new).unwrap();
    for at in 0..NAMES {
        let name = format!("{at}{}", "n".repeat(200));
        volume.create(&mut tx, &caller, big, name.as_bytes(), &NewInode::regular(0o644)).unwrap();
    }
    volume.end_writing(&mut tx, now).unwrap();
    tx.commit().unwrap();
    (device, files)
}

/// The contents of all regular files by path, and how many names the large directory has.
fn salvaged(device: &MemDevice) -> (BTreeMap<String, Vec<u8>>, usize, Summary) {
    salvage(device, &Options::default(), |found| {
        let (mut paths, mut names) = (Vec::new(), 0);
        found.inventory(|object| {
            names += usize::from(object.path.starts_with(b"big/"));
            let is_file = object.file_type == Some(FileType::Regular);
            paths.extend(object.inode.filter(|_| is_file).map(|inode| (object.path, inode)));
        });
        let content = |(path, inode): (Vec<u8>, InodeNr)| {
            let node = found.files.node(inode).unwrap();
            let content = found.files.content(&node).unwrap().0;
            let mut bytes = vec![0; content.size_bytes() as usize];
            content.read_at(0, &mut bytes, &mut Vec::new());
            (String::from_utf8(path).unwrap(), bytes)
        };
        (paths.into_iter().map(content).collect(), names, found.summary.clone())
    })
    .unwrap()
}

#[test]
fn files_of_lost_inode_tables_come_back_by_their_headers() {
    let (device, files) = rext3();
    let (before, names, _) = salvaged(&device);
    assert_eq!(names, NAMES);
    assert!(files.iter().all(|(path, (_, bytes))| before[path] == *bytes));
    let fs = FileSystem::open(&device).unwrap();
    let blocks = fs.geometry().inode_table_blocks as usize;
    for desc in fs.space.groups.descs() {
        let at = fs.geometry().offset_bytes(desc.inode_table);
        device.write_at(at, &vec![0; blocks * BLOCK]).unwrap();
    }
    let (after, names, summary) = salvaged(&device);
    // Blocks 1 to 11 of the directory were named by its inode alone; the first names it, and the header of its indirect block the
    // others.
    assert!((NAMES - 60..NAMES).contains(&names), "{names}");
    let mut back = 0;
    for (path, (_, bytes)) in &files {
        if bytes.len() <= DIRECT * BLOCK {
            // Nothing but the inode named its blocks.
            continue;
        }
        let found = after.get(path).unwrap_or_else(|| panic!("no {path}: {:?}", after.keys()));
        assert_eq!(found.len(), bytes.len(), "{path}");
        assert!(found[DIRECT * BLOCK..] == bytes[DIRECT * BLOCK..], "{path}");
        assert!(found[..DIRECT * BLOCK].iter().all(|byte| *byte == 0), "{path}");
        back += 1;
    }
    assert_eq!((back, summary.files_from_extents, summary.files_numbered), (50, 50, 50));
}

/// A pointer of an inode that leads out of the file system: the indirect block is known by its header, and the file is whole.
#[test]
fn a_wrong_pointer_of_an_inode_is_mended() {
    let (device, files) = rext3();
    let fs = FileSystem::open(&device).unwrap();
    let mut damaged = 0;
    for (number, bytes) in files.values() {
        let (block, at) = inode_place(*number, fs.geometry(), fs.space.groups.descs()).unwrap();
        let words = if bytes.len() > 300 * BLOCK { 12..14 } else { 12..13 };
        for word in words.filter(|_| bytes.len() > DIRECT * BLOCK) {
            let place = fs.geometry().offset_bytes(block) + at as u64 + 0x28 + word * 4;
            device.write_at(place, &0x7fff_0000u32.to_le_bytes()).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 50, "{damaged}");
    let (after, _, summary) = salvaged(&device);
    for (path, (_, bytes)) in &files {
        assert!(after[path] == *bytes, "{path}");
    }
    assert_eq!(summary.maps_rebuilt, 50);
}
