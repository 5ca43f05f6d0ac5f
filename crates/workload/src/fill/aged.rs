//! Aged file systems: random creation, appending, truncation and removal of files, in a model of
//! block allocation, until files and free space are fragmented. The file system can be written to
//! an image at any age. (Figure 11 of the ffsck paper.)
//!
//! Allocation is first fit, starting after the last block of the file or in the group of its inode,
//! in as many extents as needed. Map blocks are allocated when they are needed, in between.
//! Directories do not change: names and inodes do not age.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use floe_format::ext::bitmap;
use floe_format::ext::extent::{self, Extent, ExtentHeader, Index, MAGIC};
use floe_format::ext::indirect::IndirectForm;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::{BlockNr, BlockRun, GroupNr, InodeNr, LogicalBlock};

use super::{FIRST_FREE, Filler, Name, TOP_DIRS, generation};
use floe_testkit::build;
use floe_testkit::image::Image;
use floe_testkit::rng::Rng;
use floe_testkit::volume::Volume;

/// Bytes of a block.
const BLOCK: u64 = 4096;
const FILES_PER_DIR: u32 = 99;
/// Extents in an inode, and in a tree node with a checksum.
const IN_INODE: usize = 4;
const IN_NODE: usize = 340;
/// A file never has more extents than a tree of one level holds, nor more blocks than one double
/// indirect block maps.
const MOST_PIECES: usize = IN_INODE * IN_NODE - 16;
const MOST_BLOCKS: u32 = 4000;
/// Range of the share of used blocks, in percent, in which creations and removals balance.
const USE: (u64, u64) = (65, 80);

/// Block mapping of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    /// Extents, with checksums (ext4).
    Extents,
    /// Direct and indirect pointers, no checksums (ext3).
    Indirect,
}

/// A file: its extents in order, and the blocks of its map.
#[derive(Clone, Debug, Default)]
struct File {
    pieces: Vec<(u32, u32)>,
    blocks: u32,
    nodes: Vec<u32>,
}

/// A file system under ageing.
#[derive(Clone, Debug)]
pub struct Aged {
    map: Map,
    size_bytes: u64,
    dirs: u32,
    files: Vec<File>,
    dir_blocks: Vec<(u32, u16)>,
    space: Space,
    rng: Rng,
}

/// Block bitmaps of all groups.
#[derive(Clone, Debug)]
struct Space {
    maps: Vec<Vec<u8>>,
    free: Vec<u32>,
    per_group: u32,
    all: u64,
}

impl Space {
    fn used_percent(&self) -> u64 {
        let free: u64 = self.free.iter().map(|&free| u64::from(free)).sum();
        (self.all - free) * 100 / self.all
    }

    fn bits(&self, group: usize) -> u32 {
        let left = self.all - group as u64 * u64::from(self.per_group);
        left.min(u64::from(self.per_group)) as u32
    }

    /// Allocates up to `most` contiguous blocks, the first free ones from `goal` on.
    fn take(&mut self, goal: u64, most: u32) -> Result<(u32, u32)> {
        let groups = self.maps.len();
        let goal = goal.min(self.all - 1);
        let home = (goal / u64::from(self.per_group)) as usize;
        for step in 0..=groups {
            let group = (home + step) % groups;
            if self.free[group] == 0 {
                continue;
            }
            let (map, bits) = (&self.maps[group], self.bits(group));
            let from = if step == 0 { (goal % u64::from(self.per_group)) as u32 } else { 0 };
            let Some(first) = bitmap::first_clear(map, from..bits) else { continue };
            let is_free = |bit: u32| map[bit as usize / 8] >> (bit % 8) & 1 == 0;
            let len = (first..bits.min(first + most)).take_while(|bit| is_free(*bit)).count();
            let block = group as u64 * u64::from(self.per_group) + u64::from(first);
            self.set(block as u32, len as u32, true);
            return Ok((block as u32, len as u32));
        }
        anyhow::bail!("no space is left")
    }

    /// Marks a run inside one group as used or free.
    fn set(&mut self, block: u32, len: u32, used: bool) {
        let (mut at, mut left) = (block, len);
        while left > 0 {
            let (group, bit) = ((at / self.per_group) as usize, at % self.per_group);
            let here = left.min(self.per_group - bit);
            bitmap::fill(&mut self.maps[group], bit..bit + here, used);
            let free = &mut self.free[group];
            *free = if used { *free - here } else { *free + here };
            (at, left) = (at + here, left - here);
        }
    }
}

impl Aged {
    /// A new file system with about `inodes` inodes, in which each file was written at once.
    /// `scratch` is a file to overwrite, used to read the layout of an empty file system of that
    /// size.
    ///
    /// # Errors
    /// mke2fs is missing, or there is no space.
    pub fn new(map: Map, inodes: u32, seed: u64, scratch: &Path) -> Result<Self> {
        let dirs = inodes / (FILES_PER_DIR + 1);
        // 29 blocks per file, plus a third.
        let size_bytes = (u64::from(inodes) * 29 * BLOCK * 4 / 3).next_multiple_of(1 << 27);
        let mut aged = Self {
            map,
            size_bytes,
            dirs,
            files: vec![File::default(); (dirs * FILES_PER_DIR) as usize],
            dir_blocks: Vec::new(),
            space: Space { maps: Vec::new(), free: Vec::new(), per_group: 1, all: 0 },
            rng: Rng::new(seed),
        };
        let image = aged.empty(scratch)?;
        let volume = Volume::open(&image)?;
        let filler = Filler::new(&volume)?;
        let geometry = filler.geometry;
        ensure!(geometry.first_data_block == BlockNr(0), "blocks of 4 KiB");
        let groups = 0..geometry.group_count;
        let free = |group: u32| {
            let bits = geometry.clusters_of(GroupNr(group));
            bits - bitmap::count(&filler.blocks[group as usize], 0..bits)
        };
        aged.space = Space {
            free: groups.map(free).collect(),
            per_group: geometry.clusters_per_group,
            all: geometry.blocks_count,
            maps: filler.blocks.clone(),
        };
        let tables = u64::from(geometry.inodes_per_group);
        for top in 0..TOP_DIRS {
            let blocks =
                filler.dir_blocks(InodeNr(FIRST_FREE + top), InodeNr::ROOT, &aged.tops(top))?;
            aged.take_dir(FIRST_FREE + top, blocks.len(), tables)?;
        }
        for dir in 0..dirs {
            aged.take_dir(aged.inode_of_dir(dir).0, 1, tables)?;
            for at in 0..FILES_PER_DIR {
                let file = (dir * FILES_PER_DIR + at) as usize;
                let blocks = aged.size();
                aged.append(file, blocks)?;
            }
        }
        Ok(aged)
    }

    fn take_dir(&mut self, inode: u32, blocks: usize, inodes_per_group: u64) -> Result<()> {
        let group = u64::from(inode - 1) / inodes_per_group;
        let (start, len) =
            self.space.take(group * u64::from(self.space.per_group), u32::try_from(blocks)?)?;
        ensure!(len as usize == blocks, "a directory in pieces");
        self.dir_blocks.push((start, len as u16));
        Ok(())
    }

    /// An empty file system.
    fn empty(&self, path: &Path) -> Result<Image> {
        let file = std::fs::File::create(path).with_context(|| path.display().to_string())?;
        file.set_len(self.size_bytes)?;
        drop(file);
        let inodes = (u64::from(self.dirs) * u64::from(FILES_PER_DIR + 1) * 11 / 10).to_string();
        let kind = if self.map == Map::Extents { "ext4" } else { "ext3" };
        let lazy = "lazy_itable_init=1,lazy_journal_init=1";
        build::mke2fs(path, &["-t", kind, "-b", "4096", "-I", "256", "-N", &inodes, "-E", lazy])?;
        Image::open(path)
    }

    fn inode_of_dir(&self, dir: u32) -> InodeNr {
        InodeNr(FIRST_FREE + TOP_DIRS + dir * (1 + FILES_PER_DIR))
    }

    /// The directories in one top-level directory.
    fn tops(&self, top: u32) -> Vec<Name> {
        let dirs = (top..self.dirs).step_by(TOP_DIRS as usize);
        dirs.map(|dir| Name::new(self.inode_of_dir(dir), FileType::Directory, format!("d{dir:07}")))
            .collect()
    }

    /// A random size in blocks for a new file: mostly small, sometimes hundreds; 29 on average.
    fn size(&mut self) -> u32 {
        let most = match self.rng.below(20) {
            0 => 600,
            1..=5 => 64,
            _ => 8,
        };
        1 + self.rng.below(most) as u32
    }

    /// Goal of the next block of a file.
    fn goal(&self, file: usize) -> u64 {
        let last = self.files[file].pieces.last();
        last.map_or_else(
            || {
                // Near its inode.
                let share = file as u64 * self.space.maps.len() as u64 / self.files.len() as u64;
                share * u64::from(self.space.per_group)
            },
            |&(start, len)| u64::from(start) + u64::from(len),
        )
    }

    fn append(&mut self, file: usize, blocks: u32) -> Result<()> {
        let mut left = blocks.min(MOST_BLOCKS - self.files[file].blocks);
        while left > 0 && self.files[file].pieces.len() < MOST_PIECES {
            // At most up to the next map block, which is allocated in between.
            self.fit_nodes(file)?;
            let (start, len) = self.space.take(self.goal(file), left.min(64))?;
            let of_file = &mut self.files[file];
            match of_file.pieces.last_mut() {
                Some((first, before)) if *first + *before == start => *before += len,
                _ => of_file.pieces.push((start, len)),
            }
            of_file.blocks += len;
            left -= len;
        }
        self.fit_nodes(file)
    }

    fn truncate(&mut self, file: usize, keep: u32) -> Result<()> {
        while self.files[file].blocks > keep {
            let of_file = &mut self.files[file];
            let cut = of_file.blocks - keep;
            let Some((start, len)) = of_file.pieces.last_mut() else { break };
            let gone = cut.min(*len);
            *len -= gone;
            let first = *start + *len;
            if *len == 0 {
                of_file.pieces.pop();
            }
            of_file.blocks -= gone;
            self.space.set(first, gone, false);
        }
        self.fit_nodes(file)
    }

    /// Blocks that the map of a file needs.
    fn nodes_needed(&self, file: &File) -> usize {
        match self.map {
            Map::Extents if file.pieces.len() <= IN_INODE => 0,
            Map::Extents => file.pieces.len().div_ceil(IN_NODE),
            Map::Indirect => {
                let pointers = IndirectForm::plain(BLOCK as u32).pointers_per_block() as u32;
                match file.blocks.saturating_sub(12) {
                    0 => 0,
                    behind if behind <= pointers => 1,
                    behind => 2 + (behind - pointers).div_ceil(pointers) as usize,
                }
            }
        }
    }

    fn fit_nodes(&mut self, file: usize) -> Result<()> {
        let needed = self.nodes_needed(&self.files[file]);
        while self.files[file].nodes.len() < needed {
            let (node, _) = self.space.take(self.goal(file), 1)?;
            self.files[file].nodes.push(node);
        }
        while self.files[file].nodes.len() > needed {
            if let Some(node) = self.files[file].nodes.pop() {
                self.space.set(node, 1, false);
            }
        }
        Ok(())
    }

    /// Performs `operations` operations on files.
    ///
    /// # Errors
    /// The file system is full, which must never happen.
    pub fn age(&mut self, operations: u64) -> Result<()> {
        for _ in 0..operations {
            let file = self.rng.index(self.files.len());
            let used = self.space.used_percent();
            let what = match (used < USE.0, used >= USE.1) {
                (true, _) => 0,
                (_, true) => 5,
                _ => self.rng.below(10),
            };
            let blocks = self.files[file].blocks;
            match what {
                0..=4 => {
                    let more = 1 + self.rng.below(24) as u32;
                    self.append(file, more)?;
                }
                5..=6 => {
                    let keep = self.rng.below(u64::from(blocks) + 1) as u32;
                    self.truncate(file, keep)?;
                }
                _ => {
                    self.truncate(file, 0)?;
                    let blocks = self.size();
                    self.append(file, blocks)?;
                }
            }
        }
        Ok(())
    }

    /// Number of files, extents, and map blocks.
    pub fn counts(&self) -> (usize, usize, usize) {
        let pieces = self.files.iter().map(|file| file.pieces.len()).sum();
        (self.files.len(), pieces, self.files.iter().map(|file| file.nodes.len()).sum())
    }

    /// Writes the file system in its current state to an image file.
    ///
    /// # Errors
    /// There is no space.
    pub fn write(&self, path: &Path) -> Result<Image> {
        let image = self.empty(path)?;
        let volume = Volume::open(&image)?;
        let mut filler = Filler::new(&volume)?;
        filler.blocks.clone_from(&self.space.maps);
        filler.touched.iter_mut().for_each(|touched| *touched = true);
        let mut dir_blocks = self.dir_blocks.iter();
        let mut place = || dir_blocks.next().copied().context("a directory without blocks");
        for top in 0..TOP_DIRS {
            let children = self.tops(top);
            let links = u16::try_from(children.len() + 2)?;
            filler.put_dir(InodeNr::ROOT, &children, links, place()?)?;
        }
        for dir in 0..self.dirs {
            let own = self.inode_of_dir(dir);
            let names: Vec<Name> = (0..FILES_PER_DIR)
                .map(|at| {
                    Name::new(InodeNr(own.0 + 1 + at), FileType::Regular, format!("file{at:06}"))
                })
                .collect();
            filler.put_dir(InodeNr(FIRST_FREE + dir % TOP_DIRS), &names, 2, place()?)?;
            for at in 0..FILES_PER_DIR {
                self.write_file(&self.files[(dir * FILES_PER_DIR + at) as usize], &mut filler)?;
            }
        }
        filler.flush_table()?;
        filler.write_root()?;
        filler.settle()?;
        Ok(image)
    }

    fn write_file(&self, file: &File, filler: &mut Filler<'_>) -> Result<()> {
        let (flags, root) = match self.map {
            Map::Extents => (InodeFlags::EXTENTS.bits(), extents(file, filler)?),
            Map::Indirect => (0, pointers(file, filler)?),
        };
        let used = file.blocks + file.nodes.len() as u32;
        filler.put_inode(0o100_644, 1, (file.blocks, used), flags, root)
    }
}

/// Writes the nodes of an extent tree; returns its root.
fn extents(file: &File, filler: &Filler<'_>) -> Result<[u8; 60]> {
    let mut logical = 0;
    let mut entries = Vec::with_capacity(file.pieces.len());
    for &(start, len) in &file.pieces {
        let run = BlockRun::new(BlockNr(start.into()), len.into());
        let extent = Extent { logical: LogicalBlock(logical), run, unwritten: false };
        let mut bytes = [0; 12];
        extent.to_raw().context("an extent")?.encode_into(&mut bytes);
        entries.push((logical, bytes));
        logical += u64::from(len);
    }
    let mut depth = 0;
    if entries.len() > IN_INODE {
        depth = 1;
        let seed = filler.seed.of_inode(filler.next_inode, generation(filler.next_inode));
        let mut above = Vec::new();
        for (part, &node) in entries.chunks(IN_NODE).zip(&file.nodes) {
            let mut block = vec![0; BLOCK as usize];
            put_node(&mut block, part, IN_NODE as u16, 0)?;
            extent::write_checksum(seed, &mut block).context("room for a checksum")?;
            let node = BlockNr(node.into());
            filler.volume.put_block(node, &block)?;
            let logical = part.first().map_or(0, |first| first.0);
            let index = Index { logical: LogicalBlock(logical), node };
            let mut bytes = [0; 12];
            index.to_raw().context("an index")?.encode_into(&mut bytes);
            above.push((logical, bytes));
        }
        entries = above;
    }
    let mut root = [0; 60];
    put_node(&mut root, &entries, IN_INODE as u16, depth)?;
    Ok(root)
}

fn put_node(bytes: &mut [u8], entries: &[(u64, [u8; 12])], max: u16, depth: u16) -> Result<()> {
    let count = u16::try_from(entries.len())?;
    let header = ExtentHeader { magic: MAGIC, entries: count, max, depth, generation: 0 };
    header.encode_into(bytes.first_chunk_mut().context("room for a header")?);
    for (slot, (_, entry)) in bytes[12..].chunks_exact_mut(12).zip(entries) {
        slot.copy_from_slice(entry);
    }
    Ok(())
}

/// Writes indirect blocks; returns the pointers of the inode.
fn pointers(file: &File, filler: &Filler<'_>) -> Result<[u8; 60]> {
    let blocks: Vec<u32> =
        file.pieces.iter().flat_map(|&(start, len)| start..start + len).collect();
    let mut root = [0; 60];
    let put = |bytes: &mut [u8], at: usize, block: u32| {
        bytes[at * 4..at * 4 + 4].copy_from_slice(&block.to_le_bytes());
    };
    let (direct, behind) = blocks.split_at(blocks.len().min(12));
    direct.iter().enumerate().for_each(|(at, &block)| put(&mut root, at, block));
    let per_block = IndirectForm::plain(BLOCK as u32).pointers_per_block() as usize;
    let leaf = |node: u32, of: &[u32]| {
        let mut block = vec![0; BLOCK as usize];
        of.iter().enumerate().for_each(|(at, &of)| put(&mut block, at, of));
        filler.volume.put_block(BlockNr(node.into()), &block)
    };
    let mut nodes = file.nodes.iter().copied();
    let mut parts = behind.chunks(per_block);
    if let Some(part) = parts.next() {
        let node = nodes.next().context("an indirect block")?;
        put(&mut root, 12, node);
        leaf(node, part)?;
    }
    if parts.len() > 0 {
        let node = nodes.next().context("a double indirect block")?;
        put(&mut root, 13, node);
        let below: Vec<u32> = nodes.by_ref().take(parts.len()).collect();
        leaf(node, &below)?;
        for (part, &node) in parts.zip(&below) {
            leaf(node, part)?;
        }
    }
    Ok(root)
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_testkit::{oracle, tool};

    #[test]
    fn aged_images_are_clean_and_in_pieces() {
        if tool::missing() {
            return;
        }
        let folder = tool::scratch("floe-aged-").expect("a folder");
        let path = folder.path().join("image");
        for map in [Map::Extents, Map::Indirect] {
            let mut aged = Aged::new(map, 3000, 7, &path).expect("a young one");
            let mut before = 0;
            for age in 0..3 {
                let image = aged.write(&path).expect("an image");
                let verdict = oracle::e2fsck(&image).expect("e2fsck runs");
                assert!(verdict.clean(), "{map:?} {age}: {}", verdict.text);
                let (files, pieces, nodes) = aged.counts();
                assert!(
                    pieces > before && (nodes > 0 || before == 0),
                    "{map:?} {age}: {files} {pieces} {nodes}"
                );
                before = pieces;
                aged.age(6000).expect("space enough");
            }
        }
    }
}
