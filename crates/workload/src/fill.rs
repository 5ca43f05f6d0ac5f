//! Builds large ext4 images fast, without the kernel: mke2fs makes the empty file system, then
//! inode tables, directory blocks, bitmaps, descriptors and totals are written directly.
//!
//! The shapes are those that the papers on fast checkers measure: *file-intensive* (99 files of one
//! block in each directory) and *directory-intensive* (one file in each). File contents are holes
//! in the image file, because no checker reads them.

pub mod aged;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use floe_format::crc::Seed;
use floe_format::ext::bitmap;
use floe_format::ext::dirent::{DirTail, TAIL_SIZE, needed_rec_len, write_entry};
use floe_format::ext::extent::{ExtentHeader, MAGIC, RawExtent};
use floe_format::ext::group_desc::{FLAG_BLOCK_UNINIT, FLAG_INODE_UNINIT};
use floe_format::ext::inode::{FileType, Inode, InodeBase, InodeExtra, InodeFlags};
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::features::Incompat;
use floe_format::{BlockNr, Geometry, GroupNr, InodeNr};

use floe_testkit::build;
use floe_testkit::image::Image;
use floe_testkit::tool::NOW;
use floe_testkit::volume::Volume;

/// Directories in the root; all others are distributed among them.
const TOP_DIRS: u32 = 64;
/// First inode that mke2fs leaves free: lost+found has 11.
const FIRST_FREE: u32 = 12;

/// Shape of a large image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Directories, in addition to the 64 in the root.
    pub dirs: u32,
    /// Files in each.
    pub files_per_dir: u32,
    /// Blocks of each file, in one extent.
    pub file_blocks: u16,
    /// Bytes of the image.
    pub size_bytes: u64,
}

impl Shape {
    /// 99 files per directory, about `inodes` inodes in total.
    pub const fn file_intensive(inodes: u32) -> Self {
        Self {
            dirs: inodes / 99,
            files_per_dir: 99,
            file_blocks: 1,
            size_bytes: image_size(inodes),
        }
    }

    /// One file per directory, about `inodes` inodes in total.
    pub const fn directory_intensive(inodes: u32) -> Self {
        Self { dirs: inodes / 2, files_per_dir: 1, file_blocks: 1, size_bytes: image_size(inodes) }
    }

    /// Inodes in addition to those of an empty file system.
    pub fn inodes(&self) -> Result<u32> {
        self.dirs
            .checked_mul(1 + self.files_per_dir)
            .and_then(|inodes| inodes.checked_add(TOP_DIRS))
            .context("more inodes than 32 bits can count")
    }
}

/// 32 GiB for up to a million inodes (like the papers' images), then 16 KiB per inode plus half of
/// that.
const fn image_size(inodes: u32) -> u64 {
    let grown = (inodes as u64 * 24576).next_multiple_of(1 << 27);
    if grown > 32 << 30 { grown } else { 32 << 30 }
}

/// Creates or replaces the image file `path` and returns it.
///
/// # Errors
/// mke2fs is missing, the shape does not fit, or there is no space.
pub fn fill(path: &Path, shape: Shape) -> Result<Image> {
    // Twice the inodes, like the papers' images: tables are half empty.
    fill_of(path, shape, u64::from(shape.inodes()?) * 2)
}

/// As [`fill`], in a file system with room for about `inodes` inodes.
///
/// # Errors
/// As [`fill`].
pub fn fill_of(path: &Path, shape: Shape, inodes: u64) -> Result<Image> {
    let file = std::fs::File::create(path).with_context(|| path.display().to_string())?;
    file.set_len(shape.size_bytes)?;
    drop(file);
    let inodes = inodes.to_string();
    let lazy = "lazy_itable_init=1,lazy_journal_init=1";
    build::mke2fs(path, &["-t", "ext4", "-b", "4096", "-I", "256", "-N", &inodes, "-E", lazy])?;
    let image = Image::open(path)?;
    let volume = Volume::open(&image)?;
    let mut filler = Filler::new(&volume)?;
    ensure!(filler.geometry.features.incompat.contains(Incompat::EXTENTS), "plain ext4");
    filler.write_tree(shape)?;
    filler.settle()?;
    Ok(image)
}

/// Creates the image file `path` with an empty file system of any size, without a journal. Only a
/// few of its blocks are written; the rest are holes.
///
/// # Errors
/// mke2fs is missing, or the underlying file system does not support files of that size.
pub fn empty(path: &Path, size_bytes: u64) -> Result<Image> {
    let file = std::fs::File::create(path).with_context(|| path.display().to_string())?;
    file.set_len(size_bytes)?;
    drop(file);
    let features = "^has_journal,^resize_inode,sparse_super2";
    let extended = "lazy_itable_init=1,num_backup_sb=1";
    build::mke2fs(path, &["-t", "ext4", "-b", "4096", "-O", features, "-E", extended])?;
    Image::open(path)
}

/// Makes the first extent of file `other` start at that of file `one`, like a stray pointer, and
/// updates the inode checksum. Returns the first block that both claim.
///
/// # Errors
/// One of them has no block.
pub fn share_block(image: &Image, one: InodeNr, other: InodeNr) -> Result<BlockNr> {
    /// `ee_start_hi` and `ee_start_lo` of the first extent in an inode.
    const START: std::ops::Range<usize> = 0x28 + 12 + 6..0x28 + 12 + 12;
    let volume = Volume::open(image)?;
    let (from, mut to) = (volume.inode_bytes(one)?, volume.inode_bytes(other)?);
    to[START].copy_from_slice(&from[START]);
    volume.put_inode(other, &to)?;
    volume.fix_inode(other)?;
    let map = volume.map(one)?;
    let block = map.data.values().next().context("a file without blocks")?;
    ensure!(volume.map(other)?.data.values().next() == Some(block), "a file without extents");
    Ok(BlockNr(block.0))
}

struct Filler<'a> {
    volume: &'a Volume<'a>,
    geometry: &'a Geometry,
    seed: Seed,
    /// The block bitmap of each group.
    blocks: Vec<Vec<u8>>,
    /// Groups with an allocated block.
    touched: Vec<bool>,
    /// New directories of each group.
    dirs: Vec<u32>,
    /// The next inode to be written; inodes are written in order.
    next_inode: InodeNr,
    /// Start of the search for free blocks.
    next_block: BlockNr,
    /// Inodes of the current group that are not written yet, and the number of the first.
    table: Vec<u8>,
    table_start: InodeNr,
}

impl<'a> Filler<'a> {
    fn new(volume: &'a Volume<'a>) -> Result<Self> {
        let geometry = &volume.geometry;
        ensure!(geometry.cluster_bits == 0, "no clusters");
        let groups = geometry.group_count as usize;
        let mut filler = Self {
            volume,
            geometry,
            seed: volume.superblock.seed(),
            blocks: Vec::with_capacity(groups),
            touched: vec![false; groups],
            dirs: vec![0; groups],
            next_inode: InodeNr(FIRST_FREE),
            next_block: geometry.first_data_block,
            table: Vec::new(),
            table_start: InodeNr(FIRST_FREE),
        };
        filler.load_bitmaps()?;
        Ok(filler)
    }

    /// Loads the block bitmaps; uninitialised ones are computed from the metadata locations.
    fn load_bitmaps(&mut self) -> Result<()> {
        let bits = self.geometry.block_size * 8;
        for group in (0..self.geometry.group_count).map(GroupNr) {
            let desc = self.volume.desc(group)?;
            let mut map = if desc.block_uninit() {
                vec![0; self.volume.block_bytes()]
            } else {
                self.volume.block(desc.block_bitmap)?
            };
            bitmap::fill(&mut map, self.geometry.clusters_of(group)..bits, true);
            self.blocks.push(map);
        }
        for group in (0..self.geometry.group_count).map(GroupNr) {
            let desc = self.volume.desc(group)?;
            let descs = self.geometry.group_desc_run(group);
            let reserved = self.geometry.reserved_gdt_run(group);
            let table = (desc.inode_table, u64::from(self.geometry.inode_table_blocks));
            let mut runs = vec![
                (desc.block_bitmap, 1),
                (desc.inode_bitmap, 1),
                table,
                (descs.start, descs.len_blocks),
                (reserved.start, reserved.len_blocks),
            ];
            runs.extend(self.geometry.superblock_of(group).map(|block| (block, 1)));
            for (start, len) in runs {
                for block in start.0..start.0 + len {
                    self.take(BlockNr(block))?;
                }
            }
        }
        Ok(())
    }

    fn place(&self, block: BlockNr) -> Result<(usize, u32)> {
        let group = self.geometry.group_of(block).context("a block outside the file system")?;
        Ok((group.0 as usize, (block.0 - self.geometry.group_start(group).0) as u32))
    }

    fn take(&mut self, block: BlockNr) -> Result<()> {
        let (group, bit) = self.place(block)?;
        bitmap::fill(&mut self.blocks[group], bit..bit + 1, true);
        Ok(())
    }

    /// Allocates `len` contiguous blocks in one group.
    fn allocate(&mut self, len: u32) -> Result<BlockNr> {
        // Near the inode, like the kernel does.
        let (home, _) = self.geometry.place_of(self.next_inode).context("too few inodes")?;
        self.next_block = self.next_block.max(self.geometry.group_start(home));
        loop {
            let (group, bit) = self.place(self.next_block).context("the image is full")?;
            let map = &mut self.blocks[group];
            let end = self.geometry.clusters_of(GroupNr(group as u32));
            let start = bitmap::first_clear(map, bit..end).unwrap_or(end);
            if start + len <= end && bitmap::count(map, start..start + len) == 0 {
                bitmap::fill(map, start..start + len, true);
                self.touched[group] = true;
                let first = self.geometry.group_start(GroupNr(group as u32)).0 + u64::from(start);
                self.next_block = BlockNr(first + u64::from(len));
                return Ok(BlockNr(first));
            }
            let group_start = self.geometry.group_start(GroupNr(group as u32)).0;
            self.next_block = BlockNr(group_start + u64::from((start + 1).min(end)));
        }
    }

    fn write_tree(&mut self, shape: Shape) -> Result<()> {
        let first_dir = FIRST_FREE + TOP_DIRS;
        let inode_of_dir = |dir: u32| InodeNr(first_dir + dir * (1 + shape.files_per_dir));
        for top in 0..TOP_DIRS {
            let children: Vec<Name> = (top..shape.dirs)
                .step_by(TOP_DIRS as usize)
                .map(|dir| Name::new(inode_of_dir(dir), FileType::Directory, format!("d{dir:07}")))
                .collect();
            let links = u16::try_from(children.len() + 2).ok().filter(|&links| links <= 65000);
            // With dir_nlink, more than 65,000 subdirectories are stored as link count 1.
            self.write_dir(InodeNr::ROOT, &children, links.unwrap_or(1))?;
        }
        for dir in 0..shape.dirs {
            let parent = InodeNr(FIRST_FREE + dir % TOP_DIRS);
            let own = inode_of_dir(dir);
            let files: Vec<Name> = (0..shape.files_per_dir)
                .map(|file| {
                    let mark =
                        (dir.wrapping_mul(2_654_435_761) ^ file.wrapping_mul(40503)) & 0xff_ffff;
                    let name = format!("file_{file:08}_{mark:06x}");
                    Name::new(InodeNr(own.0 + 1 + file), FileType::Regular, name)
                })
                .collect();
            self.write_dir(parent, &files, 2)?;
            for _ in 0..shape.files_per_dir {
                let start = self.allocate(u32::from(shape.file_blocks))?;
                self.write_inode(0o100_644, 1, start, shape.file_blocks)?;
            }
        }
        self.flush_table()?;
        self.write_root()
    }

    /// Writes the next inode as a directory with these entries.
    fn write_dir(&mut self, parent: InodeNr, names: &[Name], links: u16) -> Result<()> {
        let own = self.next_inode;
        let len = u16::try_from(self.dir_blocks(own, parent, names)?.len())?;
        let start = self.allocate(u32::from(len))?;
        // Block numbers of the image have 32 bits.
        self.put_dir(parent, names, links, (start.0 as u32, len))
    }

    /// As [`Self::write_dir`], for blocks that are already allocated.
    fn put_dir(
        &mut self,
        parent: InodeNr,
        names: &[Name],
        links: u16,
        (start, len): (u32, u16),
    ) -> Result<()> {
        let own = self.next_inode;
        let start = BlockNr(start.into());
        let blocks = self.dir_blocks(own, parent, names)?;
        ensure!(blocks.len() == usize::from(len), "another number of blocks");
        for (block, bytes) in (start.0..).zip(&blocks) {
            self.volume.put_block(BlockNr(block), bytes)?;
        }
        let (group, _) = self.geometry.place_of(own).context("too few inodes")?;
        self.dirs[group.0 as usize] += 1;
        self.write_inode(0o040_755, links, start, len)
    }

    /// The blocks of a directory: `.`, `..`, then the names in order.
    fn dir_blocks(&self, own: InodeNr, parent: InodeNr, names: &[Name]) -> Result<Vec<Vec<u8>>> {
        let size = self.volume.block_bytes();
        let end = if self.checksums() { size - TAIL_SIZE } else { size };
        let seed = self.seed.of_inode(own, generation(own));
        let dots = [
            Name::new(own, FileType::Directory, ".".to_owned()),
            Name::new(parent, FileType::Directory, "..".to_owned()),
        ];
        let (mut done, mut block, mut at, mut last) = (Vec::new(), vec![0; size], 0, 0);
        let needs = |name: &Name| needed_rec_len(name.name.len(), false) as usize;
        for name in dots.iter().chain(names) {
            if at + needs(name) > end {
                close_block(&mut block, last, end, seed);
                done.push(std::mem::replace(&mut block, vec![0; size]));
                at = 0;
            }
            let (text, kind) = (name.name.as_bytes(), name.kind as u8);
            write_entry(&mut block[at..], name.inode, needs(name) as u32, text, kind, size)
                .context("an entry that fits")?;
            last = at;
            at += needs(name);
        }
        close_block(&mut block, last, end, seed);
        done.push(block);
        Ok(done)
    }

    /// Whether metadata have checksums.
    fn checksums(&self) -> bool {
        self.geometry.features.metadata_csum()
    }

    /// Writes the next inode, with `len` blocks starting at `start`.
    fn write_inode(&mut self, mode: u16, links: u16, start: BlockNr, len: u16) -> Result<()> {
        if self.geometry.features.incompat.contains(Incompat::EXTENTS) {
            let root = extent_root(start, len);
            let blocks = (u32::from(len), u32::from(len));
            return self.put_inode(mode, links, blocks, InodeFlags::EXTENTS.bits(), root);
        }
        ensure!(len <= 12, "direct blocks");
        let mut root = [0; 60];
        for (slot, block) in root.chunks_exact_mut(4).zip(start.0..start.0 + u64::from(len)) {
            slot.copy_from_slice(&(block as u32).to_le_bytes());
        }
        self.put_inode(mode, links, (u32::from(len), u32::from(len)), 0, root)
    }

    /// Writes the next inode, with `blocks` blocks including those of its map; `root` is the map's
    /// root.
    fn put_inode(
        &mut self,
        mode: u16,
        links: u16,
        (blocks, used): (u32, u32),
        flags: u32,
        root: [u8; 60],
    ) -> Result<()> {
        let own = self.next_inode;
        let (group, _) = self.geometry.place_of(own).context("too few inodes")?;
        if self.geometry.place_of(self.table_start).map(|(group, _)| group) != Some(group) {
            self.flush_table()?;
        }
        let block_size = self.geometry.block_size;
        let mut raw = [0; 256];
        let (base_bytes, extra_bytes) = raw.split_at_mut(128);
        let mut base = InodeBase::decode(&[0; 128]);
        base.mode = mode;
        base.size_lo = blocks * block_size;
        (base.atime, base.ctime, base.mtime) = (NOW, NOW, NOW);
        base.links_count = links;
        base.blocks_lo = used * (block_size / 512);
        base.flags = flags;
        base.generation = generation(own);
        base.block = root;
        base.encode_into(base_bytes.first_chunk_mut().context("128 bytes")?);
        let extra_bytes = extra_bytes.first_chunk_mut().context("32 bytes")?;
        let mut extra = InodeExtra::decode(extra_bytes);
        (extra.extra_isize, extra.crtime) = (32, NOW);
        extra.encode_into(extra_bytes);
        if self.checksums() {
            let crc = Inode::decode(&raw).context("an inode")?.compute_checksum(self.seed, own);
            raw[0x7c..0x7e].copy_from_slice(&crc.to_le_bytes()[..2]);
            raw[0x82..0x84].copy_from_slice(&crc.to_le_bytes()[2..]);
        }
        self.table.extend_from_slice(&raw);
        self.next_inode = InodeNr(own.0 + 1);
        Ok(())
    }

    /// Writes the collected inodes to their table.
    fn flush_table(&mut self) -> Result<()> {
        if !self.table.is_empty() {
            let at = self.volume.inode_offset(self.table_start)?;
            self.volume.image.write(at, &self.table)?;
            self.table.clear();
        }
        self.table_start = self.next_inode;
        Ok(())
    }

    /// Adds the directories below the root to it.
    fn write_root(&mut self) -> Result<()> {
        let mut names = vec![Name::new(InodeNr(11), FileType::Directory, "lost+found".to_owned())];
        names.extend((0..TOP_DIRS).map(|top| {
            Name::new(InodeNr(FIRST_FREE + top), FileType::Directory, format!("{top:02}"))
        }));
        let map = self.volume.map(InodeNr::ROOT)?;
        let block = *map.data.values().next().context("an empty root")?;
        let blocks = self.dir_blocks(InodeNr::ROOT, InodeNr::ROOT, &names)?;
        ensure!(blocks.len() == 1, "the root fits a block");
        self.volume.put_block(block, &blocks[0])?;
        // mke2fs gave the root a different generation.
        self.volume.fix_dir_block(InodeNr::ROOT, block)?;
        let mut bytes = self.volume.inode_bytes(InodeNr::ROOT)?;
        let base_bytes = bytes.first_chunk_mut().context("an inode has 128 bytes")?;
        let mut base = InodeBase::decode(base_bytes);
        base.links_count += TOP_DIRS as u16;
        base.encode_into(base_bytes);
        self.volume.put_inode(InodeNr::ROOT, &bytes)?;
        self.volume.fix_inode(InodeNr::ROOT)
    }

    /// Writes bitmaps, descriptors and totals.
    fn settle(&self) -> Result<()> {
        let per_group = self.geometry.inodes_per_group;
        let bits = self.geometry.block_size * 8;
        let (mut free_blocks, mut free_inodes) = (0, 0);
        for group in (0..self.geometry.group_count).map(GroupNr) {
            let mut desc = self.volume.desc(group)?;
            let first = u64::from(group.0) * u64::from(per_group);
            let used = (u64::from(self.next_inode.0) - 1).saturating_sub(first);
            let used = used.min(u64::from(per_group)) as u32;
            let at = group.0 as usize;
            if used > 0 || self.touched[at] {
                let clusters = self.geometry.clusters_of(group);
                desc.free_blocks_count = clusters - bitmap::count(&self.blocks[at], 0..clusters);
                desc.free_inodes_count = per_group - used;
                if self.geometry.features.group_desc_csum() {
                    desc.itable_unused = per_group - used;
                }
                desc.used_dirs_count += self.dirs[at];
                desc.flags &= !(FLAG_BLOCK_UNINIT | FLAG_INODE_UNINIT);
                let mut inodes = vec![0; self.volume.block_bytes()];
                bitmap::fill(&mut inodes, 0..used, true);
                bitmap::fill(&mut inodes, per_group..bits, true);
                self.volume.put_block(desc.block_bitmap, &self.blocks[at])?;
                self.volume.put_block(desc.inode_bitmap, &inodes)?;
                self.volume.put_desc(group, &desc)?;
                self.volume.fix_bitmaps(group)?;
            }
            free_blocks += u64::from(desc.free_blocks_count);
            free_inodes += desc.free_inodes_count;
        }
        let mut bytes = [0; 1024];
        self.volume.image.read(OFFSET_BYTES, &mut bytes)?;
        let mut superblock = Superblock::decode(&bytes);
        superblock.free_blocks_count_lo = (free_blocks & 0xffff_ffff) as u32;
        superblock.free_blocks_count_hi = (free_blocks >> 32) as u32;
        superblock.free_inodes_count = free_inodes;
        superblock.encode_into(&mut bytes);
        self.volume.image.write(OFFSET_BYTES, &bytes)?;
        self.volume.fix_superblock()
    }
}

/// A directory entry to write.
struct Name {
    inode: InodeNr,
    kind: FileType,
    name: String,
}

impl Name {
    fn new(inode: InodeNr, kind: FileType, name: String) -> Self {
        Self { inode, kind, name }
    }
}

/// A generation that differs between inodes, so that their checksums do too.
fn generation(inode: InodeNr) -> u32 {
    inode.0.wrapping_mul(2_654_435_761)
}

/// Extends the entry at `last` to the end of the block, and writes the checksum tail.
fn close_block(block: &mut [u8], last: usize, end: usize, seed: u32) {
    // At most a 4 KiB block.
    let rec_len = (end - last) as u16;
    block[last + 4..last + 6].copy_from_slice(&rec_len.to_le_bytes());
    if end < block.len() {
        DirTail::write(seed, block);
    }
}

/// An extent root with one extent.
fn extent_root(start: BlockNr, len: u16) -> [u8; 60] {
    let mut root = [0; 60];
    let (header, rest) = root.split_at_mut(12);
    let entries = u16::from(len > 0);
    if let (Some(header), Some(extent)) = (header.first_chunk_mut(), rest.first_chunk_mut()) {
        ExtentHeader { magic: MAGIC, entries, max: 4, depth: 0, generation: 0 }.encode_into(header);
        RawExtent {
            block: 0,
            len,
            start_hi: (start.0 >> 32) as u16,
            start_lo: (start.0 & 0xffff_ffff) as u32,
        }
        .encode_into(extent);
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_testkit::{oracle, tool};

    #[test]
    fn filled_images_are_clean() {
        if tool::missing() {
            return;
        }
        let folder = tool::scratch("floe-fill-").expect("a folder");
        let path = folder.path().join("image");
        for shape in [
            Shape { size_bytes: 1 << 30, ..Shape::file_intensive(30_000) },
            Shape { size_bytes: 1 << 30, ..Shape::directory_intensive(30_000) },
            Shape { size_bytes: 1 << 30, file_blocks: 9, ..Shape::file_intensive(500) },
        ] {
            let image = fill(&path, shape).expect("a filled image");
            let verdict = oracle::e2fsck(&image).expect("e2fsck runs");
            assert!(verdict.clean(), "{shape:?}: {}", verdict.text);
            let volume = Volume::open(&image).expect("a superblock");
            let free = volume.superblock.free_inodes_count;
            assert_eq!(volume.geometry.inodes_count - free, 11 + shape.inodes().expect("few"));
        }
    }
}
