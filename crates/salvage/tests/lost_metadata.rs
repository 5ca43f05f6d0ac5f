//! Files come back after metadata were destroyed: names, contents, and nothing that was not there.

#![allow(clippy::unwrap_used)] // a test may

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use floe_blockdev::MemDevice;
use floe_ext4::files::Step;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::inode::FileType;
use floe_format::ext::superblock::{MAGIC, OFFSET_BYTES, Superblock};
use floe_format::geometry::Strictness;
use floe_format::{BlockNr, Geometry, GroupNr, InodeNr};
use floe_salvage::{ObjectState, Options, Origin, Summary, salvage};
use floe_testkit::{build, kernel, tool};

const BLOCK: u64 = 4096;
const FOLDERS: usize = 6;

/// Contents of regular files and targets of links, by path.
type Contents = BTreeMap<String, Vec<u8>>;

/// An image with its geometry.
#[derive(Clone)]
struct Image {
    bytes: Vec<u8>,
    superblock: Superblock,
    geometry: Geometry,
    groups: Vec<GroupDesc>,
}

impl Image {
    /// An image that mke2fs filled with small files, links, and files with extent blocks.
    fn new(folder: &Path, options: &[&str]) -> Self {
        let (tree, path) = (folder.join("tree"), folder.join("image"));
        for at in 0..FOLDERS {
            fill(&tree.join(format!("folder-{at}")), at);
        }
        fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
        let tree = tree.to_str().unwrap();
        let common = ["-t", "ext4", "-b", "4096", "-d", tree];
        build::mke2fs(&path, &[&common[..], options].concat()).unwrap();
        Self::read(&path)
    }

    fn read(path: &Path) -> Self {
        let bytes = fs::read(path).unwrap();
        let superblock = Superblock::decode(bytes[OFFSET_BYTES as usize..].first_chunk().unwrap());
        let geometry = Geometry::new(&superblock, Strictness::Strict).unwrap();
        let table = &bytes[geometry.offset_bytes(geometry.primary_desc_block(0)) as usize..];
        let groups = table.chunks(geometry.desc_size as usize).map(GroupDesc::of);
        let groups = groups.take(geometry.group_count as usize).collect();
        Self { bytes, superblock, geometry, groups }
    }

    fn blocks(&mut self, first: BlockNr, count: u64) -> &mut [u8] {
        let start = (first.0 * BLOCK) as usize;
        &mut self.bytes[start..start + (count * BLOCK) as usize]
    }

    fn tables(&self) -> Vec<(BlockNr, u64)> {
        let len = u64::from(self.geometry.inode_table_blocks);
        self.groups.iter().map(|desc| (desc.inode_table, len)).collect()
    }

    fn without_tables(mut self) -> Self {
        for (first, count) in self.tables() {
            self.blocks(first, count).fill(0);
        }
        self
    }

    /// Zeroes every superblock, and the descriptors behind them.
    fn without_superblocks(mut self) -> Self {
        for group in 0..self.geometry.group_count {
            if let Some(block) = self.geometry.superblock_of(GroupNr(group)) {
                let blocks = 1 + u64::from(self.geometry.desc_blocks);
                self.blocks(block, blocks).fill(0);
            }
        }
        assert!(!self.bytes.chunks(1024).any(|kib| kib[0x38..0x3a] == MAGIC.to_le_bytes()));
        self
    }

    fn salvaged(&self, threads: usize) -> (Contents, Summary, BTreeMap<String, ObjectState>) {
        let device = MemDevice::new(self.bytes.clone());
        let options = Options { threads, ..Options::default() };
        salvage(&device, &options, |found| {
            let mut states = BTreeMap::new();
            found.inventory(|object| {
                states.insert(String::from_utf8(object.path).unwrap(), object.state);
            });
            let root = found.files.node(InodeNr::ROOT).unwrap();
            let mut contents = Contents::new();
            for step in found.files.walk(root) {
                let Step::Visit(visit) = step else { continue };
                if !matches!(visit.node.file_type(), Some(FileType::Regular | FileType::Symlink)) {
                    continue;
                }
                let (content, _) = found.files.content(&visit.node).unwrap();
                let mut bytes = vec![0; content.size_bytes() as usize];
                content.read_at(0, &mut bytes, &mut Vec::new());
                contents.insert(String::from_utf8(visit.path).unwrap(), bytes);
            }
            (contents, found.summary.clone(), states)
        })
        .unwrap()
    }
}

/// Bytes that differ from file to file and never end in zeroes.
fn bytes_of(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(seed * 2 + 3) >> 3) as u8 | 1).collect()
}

fn fill(folder: &Path, seed: usize) {
    fs::create_dir_all(folder.join("below")).unwrap();
    for at in 0..4 {
        fs::write(folder.join(format!("small-{at}")), bytes_of(seed * 10 + at, 700)).unwrap();
    }
    symlink("small-0", folder.join("link")).unwrap();
    for at in 0..2 {
        // Every other block is a hole, so that the map needs an extent block.
        let file = fs::File::create(folder.join(format!("below/extents-{at}"))).unwrap();
        for piece in 0..12 {
            let bytes = bytes_of(seed * 100 + at * 20 + piece, 4000 + at);
            file.write_all_at(&bytes, piece as u64 * 2 * BLOCK).unwrap();
        }
    }
}

fn whole(image: &Image) -> Contents {
    let (contents, summary, states) = image.salvaged(2);
    assert_eq!(contents.len(), FOLDERS * 7);
    assert!(summary.provenance.is_empty(), "{:?}", summary.provenance);
    assert!(states.values().all(|state| *state == ObjectState::Whole), "{states:?}");
    contents
}

#[test]
fn files_with_extent_blocks_survive_their_inodes() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-salvage-").unwrap();
    let image = Image::new(folder.path(), &[]);
    let before = whole(&image);
    let (after, summary, states) = image.without_tables().salvaged(2);
    let expected: Contents =
        before.into_iter().filter(|(path, _)| path.contains("extents")).collect();
    assert_eq!(after, expected);
    assert_eq!(summary.files_numbered, 2 * FOLDERS as u64);
    assert_eq!(states["folder-3/small-1"], ObjectState::NameOnly);
    assert_eq!(states["folder-3/below/extents-1"], ObjectState::Unsure);
}

#[test]
fn everything_survives_the_superblocks() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-salvage-").unwrap();
    let image = Image::new(folder.path(), &[]);
    let before = whole(&image);
    let (after, summary, _) = image.without_superblocks().salvaged(2);
    assert_eq!(summary.origin, Origin::Guessed);
    assert_eq!(after, before);
}

#[test]
fn an_empty_lost_and_found_and_the_root_are_enough_without_superblocks() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-salvage-").unwrap();
    for block_bytes in ["1024", "2048", "4096", "65536"] {
        let path = folder.path().join(block_bytes);
        fs::File::create(&path).unwrap().set_len(48 << 20).unwrap();
        build::mke2fs(&path, &["-t", "ext4", "-b", block_bytes]).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        for kib in bytes.chunks_mut(1024) {
            if kib[0x38..0x3a] == MAGIC.to_le_bytes() {
                kib.fill(0);
            }
        }
        let device = MemDevice::new(bytes);
        let found = salvage(&device, &Options::default(), |found| {
            (found.summary.origin, found.files.geometry().block_size.to_string())
        });
        assert_eq!(found.unwrap(), (Origin::Guessed, block_bytes.to_owned()));
    }
}

#[test]
fn random_bytes_in_inode_tables_are_no_inodes_without_checksums() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-salvage-").unwrap();
    for options in [
        &["-O", "^metadata_csum,^extents,^64bit,^flex_bg", "-I", "128"][..],
        &["-O", "^metadata_csum"],
    ] {
        fs::remove_dir_all(folder.path().join("tree")).unwrap_or_default();
        let mut image = Image::new(folder.path(), options);
        let mut bits = 0x9e37_79b9_7f4a_7c15_u64;
        for (first, count) in image.tables() {
            for bytes in image.blocks(first, count).chunks_mut(8) {
                // xorshift: every field is a random one.
                bits ^= bits << 13;
                bits ^= bits >> 7;
                bits ^= bits << 17;
                bytes.copy_from_slice(&bits.to_le_bytes());
            }
        }
        let (_, summary, _) = image.salvaged(2);
        assert_eq!(summary.inodes.in_place, 0, "{options:?}");
    }
}

#[test]
fn content_survives_the_directories() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-salvage-").unwrap();
    for options in [&[][..], &["-O", "^metadata_csum"]] {
        fs::remove_dir_all(folder.path().join("tree")).unwrap_or_default();
        let mut image = Image::new(folder.path(), options);
        let before = whole(&image);
        // The root and every folder of the first level, of which the second level remains.
        let top: Vec<usize> = (0..image.bytes.len() / 4096)
            .filter(|at| {
                let block = &image.bytes[at * 4096..];
                block[8..12] == *b".\0\0\0" && block[20..23] == *b"..\0" && block[12] == 2
            })
            .collect();
        assert_eq!(top.len(), FOLDERS + 2, "the root, lost+found and the folders");
        for at in top {
            image.blocks(BlockNr(at as u64), 1).fill(0);
        }
        let (after, summary, _) = image.salvaged(2);
        let sorted = |contents: &Contents| {
            let mut contents: Vec<_> = contents.values().cloned().collect();
            contents.sort();
            contents
        };
        assert_eq!(sorted(&after), sorted(&before));
        assert!(after.keys().filter(|path| path.ends_with("/extents-1")).count() == FOLDERS);
        assert!(summary.unnamed >= 5 * FOLDERS as u64);
    }
}

/// Linux fills a file system without metadata_csum, whose log names the inodes.
#[test]
fn the_log_tells_inodes_without_checksums() {
    if let Err(reason) = tool::available().and_then(|()| kernel::mount_available()) {
        eprintln!("skipped: {reason}");
        return;
    }
    let folder = tool::scratch("floe-salvage-").unwrap();
    for options in [
        &["-O", "^metadata_csum,^extents,^64bit,^flex_bg", "-I", "128"][..],
        &["-O", "^metadata_csum"],
        &["-I", "128"],
    ] {
        let path = folder.path().join("image");
        fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
        build::mke2fs(&path, &[&["-t", "ext4", "-b", "4096"], options].concat()).unwrap();
        let mounted = kernel::Mounted::new(&path, "rw").unwrap();
        for at in 0..FOLDERS {
            fill(&mounted.path().join(format!("folder-{at}")), at);
        }
        fs::write(mounted.path().join("old"), "old").unwrap();
        fs::remove_file(mounted.path().join("old")).unwrap();
        mounted.unmount().unwrap();
        let image = Image::read(&path);
        let before = whole(&image);
        let (after, summary, _) = image.without_tables().salvaged(2);
        assert_eq!(after, before, "{options:?}");
        assert!(summary.inodes.from_copies >= 7 * FOLDERS as u64, "{options:?}");
    }
}

#[test]
fn old_copies_of_inodes_are_used() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-salvage-").unwrap();
    let mut image = Image::new(folder.path(), &[]);
    let before = whole(&image);
    // Copies at the end of the device, as the journal would hold them.
    let used = u64::from(image.superblock.inodes_count - image.superblock.free_inodes_count);
    let table = image.groups[0].inode_table;
    let count = (used + 8) / 16 + 1;
    let copy = image.blocks(table, count).to_vec();
    let place = BlockNr(image.geometry.blocks_count - count - 9);
    image.blocks(place, count).copy_from_slice(&copy);
    let (after, summary, states) = image.without_tables().salvaged(2);
    assert_eq!(after, before);
    assert!(summary.inodes.from_copies >= before.len() as u64);
    assert_eq!(summary.files_from_extents, 0);
    // The root, too.
    assert_eq!(states.get("."), Some(&ObjectState::Unsure));
}

#[test]
fn the_number_of_threads_changes_nothing() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-salvage-").unwrap();
    let image = Image::new(folder.path(), &[]);
    whole(&image);
    for seed in 0..6u64 {
        let mut damaged = image.clone();
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        // Metadata lie at the start: flip bytes there, and zero or move whole blocks.
        for _ in 0..200 {
            let at = next(8 << 20);
            damaged.bytes[at] ^= 1 << next(8);
        }
        for _ in 0..40 {
            let (from, to) = (next(2048) * 4096, next(2048) * 4096);
            let block = damaged.bytes[from..from + 4096].to_vec();
            damaged.bytes[to..to + 4096].copy_from_slice(&block);
            damaged.bytes[next(2048) * 4096..][..4096].fill(0);
        }
        let device = |threads| {
            let caught = std::panic::AssertUnwindSafe(|| damaged.salvaged_or_nothing(threads));
            std::panic::catch_unwind(caught).unwrap_or_else(|_| panic!("seed {seed}"))
        };
        assert_eq!(device(1), device(3), "seed {seed}");
    }
}

impl Image {
    /// Names, inodes and sizes; `None` if nothing can be opened.
    fn salvaged_or_nothing(&self, threads: usize) -> Option<Vec<String>> {
        let device = MemDevice::new(self.bytes.clone());
        let options = Options { threads, ..Options::default() };
        let all = salvage(&device, &options, |found| {
            let mut all = Vec::new();
            found.inventory(|object| all.push(format!("{object:?}")));
            all.push(format!("{:?}", found.summary));
            all
        });
        all.ok()
    }
}
