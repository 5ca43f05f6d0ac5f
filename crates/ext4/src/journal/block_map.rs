//! Which blocks a file's first blocks lie in: extents or the block map of ext2.
//!
//! Used for journal, orphan file and fast commits, before any inode was judged; so it trusts
//! nothing, and visits each node of the map at most once. What a node below the root says of its depth
//! does not count, as for the examination of inodes (`checks/extents.rs`) and for e2fsck: a journal is
//! not dropped for that.

use std::collections::HashSet;

use floe_blockdev::ReadBlocks;
use floe_format::ext::extent::{ExtentNode, MAX_DEPTH};
use floe_format::ext::indirect;
use floe_format::ext::inode::{Inode, InodeFlags};
use floe_format::{BlockNr, BlockRun, Geometry, InodeNr};

use floe_format::ext::group_desc::GroupDesc;

/// A map with a node that is unreadable, damaged, outside the file system or met twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamagedMap;

/// Physical places of the logical blocks of a file, ascending and not overlapping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockMap {
    runs: Vec<(u64, BlockRun)>,
    /// Blocks of the map itself.
    pub nodes: Vec<BlockNr>,
}

impl BlockMap {
    /// Reads the map of an inode, up to logical block `limit_blocks`.
    pub fn of(
        inode: &Inode<'_>,
        device: &dyn ReadBlocks,
        geo: &Geometry,
        limit_blocks: u64,
    ) -> Result<Self, DamagedMap> {
        Self::of_words(&inode.base.block, inode.flags(), device, geo, limit_blocks)
    }

    /// The same for the 60 bytes of `i_block`.
    pub fn of_words(
        words: &[u8; 60],
        flags: InodeFlags,
        device: &dyn ReadBlocks,
        geo: &Geometry,
        limit_blocks: u64,
    ) -> Result<Self, DamagedMap> {
        let mut reader =
            Reader { device, geo, limit_blocks, map: Self::default(), seen: HashSet::new() };
        if flags.contains(InodeFlags::EXTENTS) {
            let root = ExtentNode::new(words).ok_or(DamagedMap)?;
            reader.extents(root, root.header().depth)?;
        } else {
            for (index, word) in indirect::pointers(words).enumerate() {
                let Some((logical, level)) = indirect::root_slot(geo.block_size, index) else {
                    break;
                };
                reader.pointer(u64::from(word), logical.0, level)?;
            }
        }
        Ok(reader.map)
    }

    /// Adds a run behind the last one; joins them if they touch.
    fn push(&mut self, logical: u64, run: BlockRun) {
        if let Some((last, last_run)) = self.runs.last_mut()
            && *last + last_run.len_blocks == logical
            && last_run.end() == run.start
        {
            last_run.len_blocks += run.len_blocks;
            return;
        }
        self.runs.push((logical, run));
    }

    /// Where a logical block lies.
    pub fn block(&self, logical: u64) -> Option<BlockNr> {
        let at = self.runs.partition_point(|(start, _)| *start <= logical).checked_sub(1)?;
        let (start, run) = self.runs.get(at)?;
        let offset = logical - start;
        (offset < run.len_blocks).then(|| BlockNr(run.start.0 + offset))
    }

    /// Number of logical blocks from 0 on that are mapped without a hole.
    pub fn blocks_without_hole(&self) -> u64 {
        let mut end = 0;
        for (logical, run) in &self.runs {
            if *logical != end {
                break;
            }
            end += run.len_blocks;
        }
        end
    }
}

struct Reader<'a> {
    device: &'a dyn ReadBlocks,
    geo: &'a Geometry,
    limit_blocks: u64,
    map: BlockMap,
    seen: HashSet<u64>,
}

impl Reader<'_> {
    /// Reads a node of the map, once.
    fn node(&mut self, block: BlockNr) -> Result<Vec<u8>, DamagedMap> {
        if !self.geo.contains(block) || !self.seen.insert(block.0) {
            return Err(DamagedMap);
        }
        self.map.nodes.push(block);
        let mut bytes = vec![0; self.geo.block_size as usize];
        let read = self.device.read_at(self.geo.offset_bytes(block), &mut bytes);
        read.map(|()| bytes).map_err(|_| DamagedMap)
    }

    fn data(&mut self, logical: u64, run: BlockRun) -> Result<(), DamagedMap> {
        let inside = self.geo.contains(run.start) && run.end().0 <= self.geo.blocks_count;
        let after = self.map.runs.last().is_none_or(|(at, last)| at + last.len_blocks <= logical);
        if !inside || !after {
            return Err(DamagedMap);
        }
        let len_blocks = run.len_blocks.min(self.limit_blocks.saturating_sub(logical));
        if len_blocks > 0 {
            self.map.push(logical, BlockRun::new(run.start, len_blocks));
        }
        Ok(())
    }

    /// Depth is at most [`MAX_DEPTH`], and falls with each call.
    fn extents(&mut self, node: ExtentNode<'_>, depth: u16) -> Result<(), DamagedMap> {
        if !node.header_ok() || depth > MAX_DEPTH {
            return Err(DamagedMap);
        }
        for at in 0..node.header().entries {
            if depth == 0 {
                let extent = node.extent(at);
                if extent.logical.0 < self.limit_blocks && extent.run.len_blocks > 0 {
                    self.data(extent.logical.0, extent.run)?;
                }
                continue;
            }
            let index = node.index(at);
            if index.logical.0 >= self.limit_blocks {
                break;
            }
            let bytes = self.node(index.node)?;
            let below = ExtentNode::new(&bytes).ok_or(DamagedMap)?;
            self.extents(below, depth - 1)?;
        }
        Ok(())
    }

    /// Level is at most 3, and falls with each call.
    fn pointer(&mut self, block: u64, logical: u64, level: u32) -> Result<(), DamagedMap> {
        if block == 0 || logical >= self.limit_blocks {
            return Ok(());
        }
        if level == 0 {
            return self.data(logical, BlockRun::new(BlockNr(block), 1));
        }
        let bytes = self.node(BlockNr(block))?;
        let span = indirect::span_blocks(self.geo.block_size, level - 1);
        for (index, word) in indirect::pointers(&bytes).enumerate() {
            self.pointer(u64::from(word), logical + index as u64 * span, level - 1)?;
        }
        Ok(())
    }
}

/// The bytes of an inode; `None` if its number or table is out of range or it cannot be read.
pub fn read_inode(
    inode: InodeNr,
    device: &dyn ReadBlocks,
    geo: &Geometry,
    groups: &[GroupDesc],
) -> Option<Vec<u8>> {
    let offset = inode_offset(inode, geo, groups)?;
    let mut raw = vec![0; geo.inode_size as usize];
    device.read_at(offset, &mut raw).ok().map(|()| raw)
}

/// Byte of the device at which an inode starts.
pub fn inode_offset(inode: InodeNr, geo: &Geometry, groups: &[GroupDesc]) -> Option<u64> {
    let (group, index) = geo.place_of(inode)?;
    let table = groups.get(usize::try_from(group.0).ok()?)?.inode_table;
    let last = BlockNr(table.0.checked_add(u64::from(geo.inode_table_blocks))?.checked_sub(1)?);
    if !geo.contains(table) || !geo.contains(last) {
        return None;
    }
    Some(geo.offset_bytes(table) + u64::from(index) * u64::from(geo.inode_size))
}
