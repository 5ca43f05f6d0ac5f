//! Every checksum of images that mke2fs and debugfs filled fits, and none fits after one bit of the
//! bytes it covers was changed.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use floe_format::crc::Seed;
use floe_format::ext::dirent::{DirCursor, DirTail, TailState, tail_state};
use floe_format::ext::extent::ExtentNode;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::htree::DxBlock;
use floe_format::ext::inode::{FileType, Inode, InodeFlags};
use floe_format::ext::superblock::Superblock;
use floe_format::ext::xattr::{self, Chars, XattrArea, XattrHeader};
use floe_format::ext::{bitmap, indirect};
use floe_format::features::RoCompat;
use floe_format::geometry::Strictness;
use floe_format::{BlockNr, Geometry, GroupNr, InodeNr};

use crate::support;

/// Name, mke2fs arguments, size.
const PROFILES: &[(&str, &str, &str)] = &[
    (
        "4k",
        "-b 4096 -I 256 -O extent,64bit,flex_bg,metadata_csum,sparse_super,dir_index,filetype,ext_attr",
        "64M",
    ),
    ("1k, short descriptors", "-b 1024 -g 1024 -O extent,metadata_csum,dir_index,ext_attr", "48M"),
    (
        "1k, seed",
        "-b 1024 -O extent,64bit,metadata_csum,metadata_csum_seed,dir_index,ext_attr",
        "48M",
    ),
    ("128-byte inodes", "-b 1024 -I 128 -O extent,metadata_csum,dir_index,ext_attr", "48M"),
    ("block maps", "-b 1024 -O ^extent,metadata_csum,dir_index,ext_attr", "48M"),
    (
        "inline data",
        "-b 4096 -I 512 -O extent,64bit,metadata_csum,inline_data,dir_index,ext_attr",
        "64M",
    ),
    (
        "bigalloc",
        "-b 4096 -C 16384 -O extent,64bit,metadata_csum,bigalloc,dir_index,ext_attr",
        "128M",
    ),
    ("crc16", "-b 1024 -g 1024 -O extent,uninit_bg,dir_index,ext_attr", "48M"),
    ("crc16, 64bit", "-b 1024 -g 1024 -O extent,64bit,uninit_bg,dir_index,ext_attr", "48M"),
    ("64k", "-b 65536 -O extent,64bit,metadata_csum,dir_index,ext_attr", "80M"),
];

/// Folders with many entries, a fragmented file, links, attributes in inodes and in a block.
fn fill(debugfs: &Path, image: &Path, folder: &Path) {
    let source = folder.join("source");
    std::fs::write(&source, vec![b'x'; 300_000]).unwrap();
    let value = folder.join("value");
    std::fs::write(&value, vec![b'v'; 700]).unwrap();
    let mut script = String::from("mkdir many\ncd many\n");
    for at in 0..700 {
        script +=
            &format!("write {} a-file-with-a-rather-long-name-{at:05}-{at:05}\n", "/dev/null");
    }
    script += "cd /\n";
    // Appending to several files in turn fragments them, which makes their extent trees deep.
    for at in 0..8 {
        script += &format!("write {} big{at}\n", source.display());
        script += &format!("punch big{at} {} {}\n", at + 1, at + 1);
    }
    for at in (0..280).step_by(2) {
        script += &format!("punch big0 {at} {at}\n");
    }
    script += "symlink slow a/very/long/target/that/does/not/fit/into/the/inode/itself/really\n";
    script += "ea_set big1 user.small tiny\nea_set big1 user.h\u{e4}rter umlaut\n";
    script += &format!("ea_set -f {} big2 user.large\n", value.display());
    support::debugfs(debugfs, image, script.as_bytes());
}

/// An image and the values needed to find its structures.
struct Image {
    bytes: Vec<u8>,
    sb: Superblock,
    geo: Geometry,
    seed: Seed,
    /// How many checksums of each kind were compared.
    seen: BTreeMap<&'static str, u32>,
}

impl Image {
    fn open(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let sb = Superblock::decode(bytes[1024..].first_chunk().unwrap());
        let geo = Geometry::new(&sb, Strictness::Strict).unwrap();
        let seed = sb.seed();
        Self { bytes, sb, geo, seed, seen: BTreeMap::new() }
    }

    fn block(&self, block: u64) -> Vec<u8> {
        let at = self.geo.offset_bytes(BlockNr(block)) as usize;
        self.bytes[at..at + self.geo.block_size as usize].to_vec()
    }

    /// The checksum fits, and no longer fits after the bit at `damage` (a byte of `bytes`) changed.
    fn fits(
        &mut self,
        what: &'static str,
        bytes: &[u8],
        damage: usize,
        ok: impl Fn(&[u8]) -> bool,
    ) {
        assert!(ok(bytes), "{what} does not fit");
        let mut damaged = bytes.to_vec();
        damaged[damage] ^= 0x10;
        assert!(!ok(&damaged), "{what} fits although byte {damage} changed");
        *self.seen.entry(what).or_default() += 1;
    }

    fn check_superblock(&mut self) {
        let bytes = self.bytes[1024..2048].to_vec();
        let ok = |bytes: &[u8]| Superblock::checksum_ok(bytes.first_chunk().unwrap());
        self.fits("superblock", &bytes, 0x90, ok);
    }

    fn check_group(&mut self, group: GroupNr) {
        let geo = self.geo.clone();
        let per_block = geo.block_size / geo.desc_size;
        let at = geo.offset_bytes(geo.primary_desc_block(group.0 / per_block)) as usize
            + (group.0 % per_block * geo.desc_size) as usize;
        let bytes = self.bytes[at..at + geo.desc_size as usize].to_vec();
        let decode = |bytes: &[u8]| {
            let high = bytes.get(32..).and_then(|rest| rest.first_chunk());
            GroupDesc::decode(bytes.first_chunk().unwrap(), high)
        };
        let desc = decode(&bytes);
        let (seed, uuid) = (self.seed, self.sb.uuid);
        for damage in [3, 0x13, bytes.len() - 1] {
            if !geo.features.metadata_csum() {
                self.fits("descriptor, crc16", &bytes, damage, |bytes| {
                    decode(bytes).checksum == GroupDesc::crc16(&uuid, group, bytes)
                });
                continue;
            }
            // The last bytes of a short descriptor are its checksum.
            self.fits("descriptor, crc32c", &bytes, damage, |bytes| {
                decode(bytes).checksum == GroupDesc::crc32c(seed, group, bytes)
            });
        }
        if !geo.features.metadata_csum() {
            return;
        }
        if !desc.block_uninit() {
            let block = self.block(desc.block_bitmap.0);
            self.fits("block bitmap", &block, 5, |block| {
                let sum = bitmap::checksum(seed, block, geo.clusters_per_group);
                bitmap::checksum_fits(desc.block_bitmap_csum, sum, geo.desc_size)
            });
            assert_eq!(bitmap::first_clear_padding(&block, geo.clusters_of(group)), None);
            let free = geo.clusters_of(group) - bitmap::count(&block, 0..geo.clusters_of(group));
            assert_eq!(free, desc.free_blocks_count, "free clusters of {group}");
        }
        if !desc.inode_uninit() {
            let block = self.block(desc.inode_bitmap.0);
            self.fits("inode bitmap", &block, 1, |block| {
                let sum = bitmap::checksum(seed, block, geo.inodes_per_group);
                bitmap::checksum_fits(desc.inode_bitmap_csum, sum, geo.desc_size)
            });
            assert_eq!(bitmap::first_clear_padding(&block, geo.inodes_per_group), None);
        }
        if !desc.inode_uninit() {
            let used = geo.inodes_per_group - desc.itable_unused;
            for index in 0..used {
                self.check_inode(desc.inode_table, geo.inode_at(group, index), index);
            }
        }
    }

    fn check_inode(&mut self, table: BlockNr, nr: InodeNr, index: u32) {
        let size = self.geo.inode_size as usize;
        let at = self.geo.offset_bytes(table) as usize + index as usize * size;
        let raw = self.bytes[at..at + size].to_vec();
        let inode = Inode::decode(&raw).unwrap();
        if inode.base.links_count == 0 {
            return;
        }
        let seed = self.seed;
        self.fits("inode", &raw, size - 1, |raw| Inode::decode(raw).unwrap().checksum_ok(seed, nr));
        self.fits("inode", &raw, 0x0d, |raw| Inode::decode(raw).unwrap().checksum_ok(seed, nr));
        if let Some(area) = XattrArea::of_inode(inode.xattr_area()) {
            self.check_attributes("attribute in inode", area);
        }
        if inode.file_acl(true) != 0 {
            self.check_xattr_block(BlockNr(inode.file_acl(true)));
        }
        let flags = inode.flags();
        if flags.contains(InodeFlags::INLINE_DATA) {
            return;
        }
        let inode_seed = seed.of_inode(nr, inode.base.generation);
        let mut blocks = Vec::new();
        if flags.contains(InodeFlags::EXTENTS) {
            self.walk_extents(&inode.base.block, inode_seed, false, &mut blocks);
        } else if inode.file_type() == Some(FileType::Directory) {
            self.walk_map(&inode, &mut blocks);
        }
        if inode.file_type() == Some(FileType::Directory) {
            for block in blocks {
                self.check_directory_block(inode_seed, block);
            }
        }
    }

    fn walk_extents(&mut self, node: &[u8], inode_seed: u32, in_block: bool, out: &mut Vec<u64>) {
        if in_block {
            self.fits("extent node", node, 13, |bytes| {
                let node = ExtentNode::new(bytes).unwrap();
                node.stored_checksum() == Some(node.compute_checksum(inode_seed))
            });
        }
        let node = ExtentNode::new(node).unwrap();
        assert!(node.header_ok());
        let header = node.header();
        for at in 0..header.entries {
            if header.depth == 0 {
                let run = node.extent(at).run;
                out.extend(run.start.0..run.end().0);
            } else {
                let below = self.block(node.index(at).node.0);
                self.walk_extents(&below, inode_seed, true, out);
            }
        }
    }

    fn walk_map(&self, inode: &Inode<'_>, out: &mut Vec<u64>) {
        let words = (0..12).filter_map(|at| inode.block_word(at));
        out.extend(words.filter(|&word| word != 0).map(u64::from));
        let single = inode.block_word(indirect::SINGLE).unwrap();
        if single != 0 {
            let block = self.block(u64::from(single));
            out.extend(indirect::pointers(&block).filter(|&word| word != 0).map(u64::from));
        }
    }

    fn check_directory_block(&mut self, inode_seed: u32, block: u64) {
        let bytes = self.block(block);
        if tail_state(&bytes) == TailState::Present {
            self.fits("directory block", &bytes, 8, |bytes| {
                DirTail::checksum_ok(inode_seed, bytes) == Some(true)
            });
            assert!(DirCursor::new(&bytes).without_tail().all(|entry| entry.is_ok()));
            return;
        }
        let (_, index) = DxBlock::detect(&bytes).unwrap();
        assert_eq!(index.limit(), index.expected_limit(true));
        let last = index.count_offset() + usize::from(index.count()) * 8 - 1;
        for damage in [last, index.count_offset() + usize::from(index.limit()) * 8] {
            self.fits("index block", &bytes, damage, |bytes| {
                DxBlock::detect(bytes).is_some_and(|(_, index)| index.checksum_ok(inode_seed))
            });
        }
    }

    fn check_attributes(&mut self, what: &'static str, area: XattrArea<'_>) {
        area.check().unwrap();
        for entry in area.entries().map(Result::unwrap) {
            let value = area.value(&entry).unwrap();
            let hash = xattr::entry_hash(entry.name, value, Chars::Unsigned);
            let signed = xattr::entry_hash(entry.name, value, Chars::Signed);
            assert!([hash, signed].contains(&entry.hash) || entry.hash == 0, "{what}: {entry:?}");
            *self.seen.entry(what).or_default() += 1;
        }
    }

    fn check_xattr_block(&mut self, nr: BlockNr) {
        let (seed, block) = (self.seed, self.block(nr.0));
        self.fits("attribute block", &block, 0x24, |block| {
            xattr::block_checksum_ok(seed, nr, block)
        });
        let area = XattrArea::of_block(&block).unwrap();
        let header = XattrHeader::decode(block.first_chunk().unwrap());
        // libext2fs leaves the hash of the block 0; the kernel sets it.
        let hash = xattr::block_hash(area.entries().map(|entry| entry.unwrap().hash));
        assert!([0, hash].contains(&header.hash), "hash of the attribute block");
        self.check_attributes("attribute in block", area);
    }
}

#[test]
fn checksums_of_filled_images_fit() {
    let tools = ["mke2fs", "debugfs", "e2fsck"].map(support::tool);
    let [Some(mke2fs), Some(debugfs), Some(e2fsck)] = tools else { return };
    for (name, args, size) in PROFILES {
        eprintln!("profile: {name}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        support::mke2fs(&mke2fs, &path, args, size);
        fill(&debugfs, &path, folder.path());
        // Makes e2fsck build indexes and write the fields that debugfs leaves unset; exit code 1
        // means that it changed the image.
        let status = Command::new(&e2fsck).arg("-fyD").arg(&path).output().unwrap().status;
        assert!(status.code() <= Some(1), "{name}: e2fsck {status}");
        let mut image = Image::open(&path);
        if image.geo.features.ro_compat.contains(RoCompat::METADATA_CSUM) {
            image.check_superblock();
        }
        for group in 0..image.geo.group_count {
            image.check_group(GroupNr(group));
        }
        eprintln!("  compared: {:?}", image.seen);
        if !image.geo.features.metadata_csum() {
            assert!(image.seen["descriptor, crc16"] >= 1);
            continue;
        }
        for kind in ["superblock", "descriptor, crc32c", "block bitmap", "inode bitmap", "inode"] {
            assert!(image.seen.contains_key(kind), "{name}: no {kind}");
        }
        for kind in ["directory block", "attribute block"] {
            assert!(image.seen.contains_key(kind) || *name == "inline data", "{name}: no {kind}");
        }
        let extents = !args.contains("^extent");
        assert!(
            !extents || *name == "64k" || image.seen.contains_key("extent node"),
            "{name}: no extent node"
        );
        assert!(image.seen.contains_key("index block") || *name == "64k", "{name}: no index");
    }
}
