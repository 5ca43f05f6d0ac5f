//! Lost content is never called whole.

#![allow(clippy::unwrap_used)] // a test may
#![allow(clippy::single_range_in_vec_init)] // a file may miss a single range

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use floe_blockdev::{Fault, Faulty, MemDevice, ReadBlocks};
use floe_disk::mkfs::{self, Fresh, FsType, Options as DiskOptions, Plan};
use floe_disk::ops::{Caller, NewInode};
use floe_disk::volume::Volume as DiskVolume;
use floe_ext4::tx::DirectTx;
use floe_format::ext::inode::Timestamp;
use floe_format::{InodeNr, LogicalBlock};
use floe_salvage::{Object, ObjectState, Options, Summary, salvage};
use floe_testkit::volume::Volume;
use floe_testkit::{Image, build, tool};

const BLOCK: u64 = 4096;

/// An image with `dir/x`, which is also `y`; `sparse` of 12 blocks with holes between them and an
/// extent block; and `flat`, whose 8 blocks follow each other.
fn image(folder: &Path) -> Image {
    let (tree, path) = (folder.join("tree"), folder.join("image"));
    fs::create_dir_all(tree.join("dir")).unwrap();
    fs::write(tree.join("dir/x"), "content").unwrap();
    fs::hard_link(tree.join("dir/x"), tree.join("y")).unwrap();
    let file = fs::File::create(tree.join("sparse")).unwrap();
    for at in 0..12 {
        file.write_all_at(&[7; BLOCK as usize], at * 2 * BLOCK).unwrap();
    }
    fs::write(tree.join("flat"), [9; 8 * BLOCK as usize]).unwrap();
    fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
    let tree = tree.to_str().unwrap();
    build::mke2fs(&path, &["-t", "ext4", "-b", "4096", "-d", tree]).unwrap();
    let image = Image::empty(64 << 20).unwrap();
    fs::copy(&path, image.path()).unwrap();
    image
}

/// The objects of the rebuilt tree by their paths, and the summary.
fn objects(device: &dyn ReadBlocks) -> (BTreeMap<String, Object>, Summary) {
    let options = Options { threads: 2, ..Options::default() };
    salvage(device, &options, |found| {
        let mut all = BTreeMap::new();
        found.inventory(|object| {
            all.insert(String::from_utf8(object.path.clone()).unwrap(), object);
        });
        (all, found.summary.clone())
    })
    .unwrap()
}

fn objects_of(image: &Image) -> (BTreeMap<String, Object>, Summary) {
    objects(&MemDevice::new(image.to_vec().unwrap()))
}

fn zero_block(image: &Image, path: &str, logical: u64) {
    let volume = Volume::open(image).unwrap();
    let inode = volume.lookup(path).unwrap();
    let block = volume.map(inode).unwrap().data[&LogicalBlock(logical)];
    volume.put_block(block, &[0; BLOCK as usize]).unwrap();
}

/// Without checksums, nothing but the blocks that it leads to tells whose map a node is of.
#[test]
fn the_map_of_a_directory_in_use_is_no_file() {
    if tool::missing() {
        return;
    }
    for features in ["^metadata_csum", "metadata_csum"] {
        let folder = tool::scratch("floe-losses-").unwrap();
        let (tree, path) = (folder.path().join("tree"), folder.path().join("image"));
        fs::create_dir_all(tree.join("large")).unwrap();
        // Blocks of files lie between those of the directory, so that it has more extents than its inode holds.
        for at in 0..400 {
            fs::write(tree.join(format!("large/empty-{at}-{}", "x".repeat(50))), "").unwrap();
            fs::write(tree.join(format!("large/file-{at}")), at.to_string()).unwrap();
        }
        fs::File::create(&path).unwrap().set_len(20 << 20).unwrap();
        let tree = tree.to_str().unwrap();
        build::mke2fs(&path, &["-t", "ext4", "-b", "1024", "-O", features, "-d", tree]).unwrap();
        let image = Image::open(&path).unwrap();
        let volume = Volume::open(&image).unwrap();
        let map = volume.map(volume.lookup("/large").unwrap()).unwrap();
        assert!(!map.nodes.is_empty(), "the directory has a node of extents");
        let (all, summary) = objects_of(&image);
        assert!(all.values().all(|object| object.state == ObjectState::Whole), "{features}");
        assert_eq!(summary.files_from_extents, 0, "{features}");
        assert_eq!(all.len(), 802, "{features}");
    }
}

#[test]
fn a_directory_whose_only_block_is_destroyed_is_partial() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-losses-").unwrap();
    let image = image(folder.path());
    let (before, summary) = objects_of(&image);
    assert!(before.values().all(|object| object.state == ObjectState::Whole), "{before:?}");
    assert!(summary.losses.partial_directories.is_empty());
    zero_block(&image, "/dir", 0);
    let (after, summary) = objects_of(&image);
    assert_eq!(after["dir"].state, ObjectState::Partial);
    assert_eq!(after["y"].state, ObjectState::Whole);
    assert_eq!(summary.losses.partial_directories.len(), 1);
}

/// The root is no object of its own, so the summary counts it.
#[test]
fn a_lost_block_of_the_root_is_counted() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-losses-").unwrap();
    let image = image(folder.path());
    zero_block(&image, "/", 0);
    assert!(objects_of(&image).1.losses.partial_directories.contains(&InodeNr::ROOT));
}

#[test]
fn a_directory_without_any_blocks_is_partial() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-losses-").unwrap();
    let image = image(folder.path());
    build::debugfs(&image, "sif /dir size 0\n").unwrap();
    assert_eq!(objects_of(&image).0["dir"].state, ObjectState::Partial);
}

#[test]
fn an_image_that_was_cut_off_is_said_to_be_short() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-losses-").unwrap();
    let image = image(folder.path());
    let bytes = image.to_vec().unwrap();
    let volume = Volume::open(&image).unwrap();
    let flat = volume.lookup("/flat").unwrap();
    let third = volume.map(flat).unwrap().data[&LogicalBlock(3)].0;
    // Inside the data of a file, and before the first inode table.
    let table = volume.desc(floe_format::GroupNr(0)).unwrap().inode_table.0;
    for (end, blocks_lost) in
        [(third * BLOCK, Some(5)), (third * BLOCK + 100, Some(5)), (table * BLOCK, None)]
    {
        let cut = MemDevice::new(bytes[..end as usize].to_vec());
        let (found, summary) = objects(&cut);
        assert_eq!(summary.losses.missing_bytes, bytes.len() as u64 - end);
        match blocks_lost {
            Some(blocks) => {
                assert_eq!(found["flat"].state, ObjectState::Partial);
                assert_eq!(found["flat"].missing, [3 * BLOCK..(3 + blocks) * BLOCK]);
            }
            None => assert!(found.values().all(|object| object.state != ObjectState::Whole)),
        }
    }
}

#[test]
fn sizes_that_no_map_can_hold_are_not_believed() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-losses-").unwrap();
    for (with_checksum, size) in [(true, 140u64 << 40), (false, 140 << 40), (false, 1 << 40)] {
        let image = image(folder.path());
        fs::remove_dir_all(folder.path().join("tree")).unwrap();
        let volume = Volume::open(&image).unwrap();
        let inode = volume.lookup("/y").unwrap();
        let mut bytes = volume.inode_bytes(inode).unwrap();
        bytes[4..8].copy_from_slice(&((size & 0xffff_ffff) as u32).to_le_bytes());
        bytes[0x6c..0x70].copy_from_slice(&((size >> 32) as u32).to_le_bytes());
        volume.put_inode(inode, &bytes).unwrap();
        if with_checksum {
            volume.fix_inode(inode).unwrap();
        }
        drop(volume);
        let device = MemDevice::new(image.to_vec().unwrap());
        let (found, summary) = objects(&device);
        assert_eq!((found["y"].state, summary.inodes.sizes_corrected), (ObjectState::Unsure, 1));
        let size = salvage(&device, &Options::default(), |found| {
            found.files.node(inode).unwrap().size_bytes()
        });
        assert_eq!(size.unwrap(), 7, "the bytes of \"content\"");
    }
}

/// A sparse file with a right checksum keeps its size.
#[test]
fn a_size_within_the_reach_of_the_map_stays() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-losses-").unwrap();
    let image = image(folder.path());
    build::debugfs(&image, "sif /y size 10000000000000\n").unwrap();
    let (found, summary) = objects_of(&image);
    assert_eq!((found["y"].state, summary.inodes.sizes_corrected), (ObjectState::Whole, 0));
}

#[test]
fn a_wrong_checksum_makes_a_file_unsure() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-losses-").unwrap();
    let image = image(folder.path());
    let volume = Volume::open(&image).unwrap();
    let inode = volume.lookup("/flat").unwrap();
    let mut bytes = volume.inode_bytes(inode).unwrap();
    bytes[0x10] ^= 1;
    volume.put_inode(inode, &bytes).unwrap();
    drop(volume);
    assert_eq!(objects_of(&image).0["flat"].state, ObjectState::Unsure);
}

#[test]
fn unreadable_blocks_are_missing_ranges() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-losses-").unwrap();
    let image = image(folder.path());
    let volume = Volume::open(&image).unwrap();
    let at = |path: &str, logical: u64| {
        let map = volume.map(volume.lookup(path).unwrap()).unwrap();
        (map.data[&LogicalBlock(logical)], Fault::Unreadable)
    };
    let faults = [at("/flat", 2), at("/flat", 3), at("/sparse", 6)];
    let device = Faulty::new(MemDevice::new(image.to_vec().unwrap()), BLOCK as u32, faults);
    let (found, summary) = objects(&device);
    assert_eq!(summary.losses.unreadable_blocks, 3);
    assert_eq!(found["flat"].missing, [2 * BLOCK..4 * BLOCK]);
    assert_eq!(found["sparse"].missing, [6 * BLOCK..7 * BLOCK]);
    assert_eq!(found["y"].state, ObjectState::Whole);
}

/// A native file system with 120 files in `/dir`, whose names need several blocks.
fn native() -> Image {
    const SIZE: u64 = 40 << 20;
    let now = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
    let mut options = DiskOptions::of_type(FsType::Native);
    for (letter, value) in [('E', "lot_size=8m"), ('N', "2000")] {
        options.set(letter, value).unwrap();
    }
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now };
    let device = MemDevice::new(vec![0; SIZE as usize]);
    mkfs::write(&Plan::new(&options.params(SIZE, None, &fresh).unwrap()).unwrap(), &device)
        .unwrap();
    let mut volume = DiskVolume::open(&device).unwrap();
    let mut tx = DirectTx::new(&device, volume.geometry().clone());
    let caller = Caller::system(now);
    volume.begin_writing(&mut tx, now).unwrap();
    let new = NewInode::directory(0o755);
    let dir = volume.create(&mut tx, &caller, InodeNr::ROOT, b"dir", &new).unwrap();
    for at in 0..120u8 {
        let name = name_of(at);
        let new = NewInode::regular(0o644);
        let file = volume.create(&mut tx, &caller, dir, name.as_bytes(), &new).unwrap();
        volume.write(&mut tx, &device, &caller, file, 0, &[at; 100]).unwrap();
    }
    volume.end_writing(&mut tx, now).unwrap();
    tx.commit().unwrap();
    let image = Image::empty(SIZE).unwrap();
    image.write(0, &device.to_vec()).unwrap();
    image
}

fn name_of(at: u8) -> String {
    format!("{at}{}", "n".repeat(120))
}

/// Inodes of native file systems say which directory names them, and which name it was: blocks of a lost directory are
/// recognised by the names in them, and files whose names are lost come back into their directory.
#[test]
fn backpointers_bring_files_back_into_a_lost_directory() {
    for keep in [2, 0] {
        let image = native();
        let volume = Volume::open(&image).unwrap();
        let dir = volume.lookup("/dir").unwrap();
        let blocks: Vec<_> = volume.map(dir).unwrap().data.into_values().collect();
        assert!(blocks.len() > 3, "{blocks:?}");
        // With the inode and the first block, all that says whose the other blocks are is lost.
        for block in &blocks[..blocks.len() - keep] {
            volume.put_block(*block, &[0; BLOCK as usize]).unwrap();
        }
        volume.put_inode(dir, &[0; 256]).unwrap();
        let (after, summary) = objects_of(&image);
        let named = (0..120).filter(|at| after.contains_key(&format!("dir/{}", name_of(*at))));
        let named = named.count();
        let placed = after.keys().filter(|path| path.starts_with("dir/#")).count();
        assert_eq!(named + placed, 120, "{after:?}");
        assert_eq!(named > 20, keep > 0, "{named}");
        assert_eq!(summary.inodes.placed_by_hints, placed as u64);
    }
}

/// Pointers of a block map that lead out of the file system, at every level: what they map is missing, and nobody calls the file whole.
#[test]
fn a_file_whose_pointers_leave_the_file_system_is_partial() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-losses-").unwrap();
    let (tree, path) = (folder.path().join("tree"), folder.path().join("image"));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), vec![3; 600 << 10]).unwrap();
    fs::File::create(&path).unwrap().set_len(16 << 20).unwrap();
    build::mke2fs(&path, &["-t", "ext3", "-b", "1024", "-d", tree.to_str().unwrap()]).unwrap();
    let whole = Image::empty(16 << 20).unwrap();
    fs::copy(&path, whole.path()).unwrap();
    assert_eq!(objects_of(&whole).0["file"].state, ObjectState::Whole);
    // A data block, the indirect block, the double indirect block.
    for (word, lost) in [(3, 3..4), (12, 12..268), (13, 268..600)] {
        let image = whole.copy().unwrap();
        let volume = Volume::open(&image).unwrap();
        let number = volume.lookup("/file").unwrap();
        let mut raw = volume.inode_bytes(number).unwrap();
        raw[40 + 4 * word..44 + 4 * word].copy_from_slice(&4_000_000_000_u32.to_le_bytes());
        volume.put_inode(number, &raw).unwrap();
        let file = &objects_of(&image).0["file"];
        assert_eq!(file.state, ObjectState::Partial, "word {word}");
        assert_eq!(file.missing, [lost.start * 1024..lost.end * 1024], "word {word}");
    }
}

/// Paths, contents and states of all files.
fn contents(device: &dyn ReadBlocks) -> (BTreeMap<String, (Vec<u8>, ObjectState)>, Summary) {
    salvage(device, &Options::default(), |found| {
        let mut all = BTreeMap::new();
        found.inventory(|object| {
            let node = object.inode.and_then(|inode| found.files.node(inode).ok());
            let content = node.as_ref().and_then(|node| found.files.content(node).ok());
            if let (Some(node), Some((content, _))) = (&node, content) {
                let mut bytes = vec![0; node.size_bytes() as usize];
                content.read_at(0, &mut bytes, &mut Vec::new());
                all.insert(String::from_utf8(object.path).unwrap(), (bytes, object.state));
            }
        });
        (all, found.summary.clone())
    })
    .unwrap()
}

/// Everything behind a piece that an image lost from its middle lies too early: it is read where it lies, and no file that has bytes of
/// others is called whole.
#[test]
fn files_behind_a_missing_piece_come_back() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-losses-").unwrap();
    let tree = folder.path().join("tree");
    for dir in 0..30u8 {
        let dir_path = tree.join(format!("dir{dir}"));
        fs::create_dir_all(&dir_path).unwrap();
        for file in 0..4u8 {
            let bytes: Vec<u8> =
                (0..60_000u32).map(|at| (at / 1024) as u8 ^ dir ^ file << 6).collect();
            fs::write(dir_path.join(format!("file{file}")), bytes).unwrap();
        }
    }
    for (options, cut, len) in [
        (&["-t", "ext4"][..], 4 << 20, 1 << 20),
        (&["-t", "ext4"], 3 << 20, 777 * 512),
        (&["-t", "ext2"], (6 << 20) + 4096, 8 << 10),
    ] {
        let path = folder.path().join("image");
        fs::File::create(&path).unwrap().set_len(16 << 20).unwrap();
        let source = ["-F", "-b", "1024", "-d", tree.to_str().unwrap()];
        build::mke2fs(&path, &[options, &source].concat()).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let (whole, summary) = contents(&MemDevice::new(bytes.clone()));
        assert_eq!((whole.len(), summary.losses.cut), (120, None));
        bytes.drain(cut..cut + len);
        let (after, summary) = contents(&MemDevice::new(bytes));
        let found = summary.losses.cut.unwrap();
        let what = format!("{options:?}, {cut}, {len}: {found:?}");
        assert_eq!(found.missing_bytes, len as u64, "{what}");
        assert!(found.begins_behind_bytes <= cut as u64, "{what}");
        assert!(found.ends_before_bytes >= (cut + len) as u64, "{what}");
        let mut right = 0;
        for (path, (content, state)) in &after {
            let is_right = whole.get(path).is_some_and(|(other, _)| other == content);
            assert!(is_right || *state != ObjectState::Whole, "{what}: {path}");
            right += usize::from(is_right && *state == ObjectState::Whole);
        }
        assert!(right > 85, "{what}: {right} of {}", after.len());
    }
}
