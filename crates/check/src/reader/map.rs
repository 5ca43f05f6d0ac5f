//! Where the blocks of a file are: extent trees and block maps.

use std::collections::HashSet;

use floe_format::ext::extent::{Extent, ExtentNode, MAX_DEPTH};
use floe_format::ext::indirect;
use floe_format::ext::inode::{FileType, Inode, InodeFlags};
use floe_format::{BlockNr, BlockRun, LogicalBlock};

use super::Reader;

/// Map nodes visited in one file at most: enough for 16 TiB in single blocks.
const MAX_NODES: usize = 1 << 22;

/// The mapping of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Mapped runs, in the order of the map.
    pub extents: Vec<Extent>,
    /// Blocks of the map itself: interior nodes, leaves, indirect blocks.
    pub nodes: Vec<MapNode>,
    /// What could not be followed.
    pub faults: Vec<String>,
}

/// A block of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapNode {
    /// Where it lies.
    pub block: BlockNr,
    /// Levels below it, data blocks not counted: 0 for a leaf of an extent tree, 1 and more for an
    /// indirect block.
    pub level: u16,
    /// First logical block below it.
    pub logical: LogicalBlock,
}

impl Mapping {
    /// The physical block of a logical one.
    pub fn find(&self, logical: LogicalBlock) -> Option<BlockNr> {
        self.extents.iter().find_map(|extent| {
            let offset = logical.0.checked_sub(extent.logical.0)?;
            (offset < extent.run.len_blocks).then(|| BlockNr(extent.run.start.0 + offset))
        })
    }

    /// Blocks that are mapped.
    pub fn blocks(&self) -> u64 {
        self.extents.iter().fold(0, |sum, extent| sum.saturating_add(extent.run.len_blocks))
    }

    fn push_block(&mut self, logical: LogicalBlock, block: BlockNr) {
        if let Some(last) = self.extents.last_mut() {
            let run = &mut last.run;
            if last.logical.0 + run.len_blocks == logical.0 && run.end() == block {
                run.len_blocks += 1;
                return;
            }
        }
        self.extents.push(Extent { logical, run: BlockRun::new(block, 1), unwritten: false });
    }
}

impl Reader<'_> {
    /// Follows the map of an inode, of either kind. Inodes that have none (inline data, fast
    /// symbolic links, devices) have an empty mapping.
    pub fn map(&self, inode: &Inode<'_>) -> Mapping {
        let mut mapping = Mapping::default();
        if !self.has_map(inode) {
            return mapping;
        }
        let mut seen = HashSet::new();
        if inode.flags().contains(InodeFlags::EXTENTS) {
            self.extent_node(&inode.base.block, LogicalBlock(0), None, &mut seen, &mut mapping);
        } else {
            self.block_map(inode, &mut seen, &mut mapping);
        }
        mapping
    }

    /// Whether `i_block` maps blocks.
    pub fn has_map(&self, inode: &Inode<'_>) -> bool {
        if inode.flags().contains(InodeFlags::INLINE_DATA) {
            return false;
        }
        match inode.file_type() {
            Some(FileType::Regular | FileType::Directory) => true,
            Some(FileType::Symlink) => {
                inode.flags().contains(InodeFlags::EXTENTS) || inode.size_bytes() >= 60
            }
            // The bad-block and resize inodes may have no type at all.
            None => true,
            Some(_) => false,
        }
    }

    fn extent_node(
        &self,
        bytes: &[u8],
        logical: LogicalBlock,
        above: Option<u16>,
        seen: &mut HashSet<BlockNr>,
        mapping: &mut Mapping,
    ) {
        let Some(node) = ExtentNode::new(bytes) else { return };
        let header = node.header();
        let expected = above.map(|depth| depth - 1);
        if !node.header_ok()
            || header.depth > MAX_DEPTH
            || expected.is_some_and(|d| d != header.depth)
        {
            mapping.faults.push(format!("bad node header for {logical}"));
            return;
        }
        for at in 0..header.entries {
            if header.depth == 0 {
                mapping.extents.push(node.extent(at));
                continue;
            }
            let index = node.index(at);
            if !seen.insert(index.node) || seen.len() > MAX_NODES {
                mapping.faults.push(format!("{} is named twice", index.node));
                continue;
            }
            match self.block(index.node) {
                Ok(block) => {
                    let level = header.depth - 1;
                    let (block_nr, logical) = (index.node, index.logical);
                    mapping.nodes.push(MapNode { block: block_nr, level, logical });
                    self.extent_node(&block, logical, Some(header.depth), seen, mapping);
                }
                Err(error) => mapping.faults.push(error.to_string()),
            }
        }
    }

    fn block_map(&self, inode: &Inode<'_>, seen: &mut HashSet<BlockNr>, mapping: &mut Mapping) {
        for index in 0..15 {
            let block_size = self.geometry.block_size;
            let (Some(word), Some((logical, level))) =
                (inode.block_word(index), indirect::root_slot(block_size, index))
            else {
                continue;
            };
            self.pointer(u64::from(word), logical, level, seen, mapping);
        }
    }

    fn pointer(
        &self,
        word: u64,
        logical: LogicalBlock,
        level: u32,
        seen: &mut HashSet<BlockNr>,
        mapping: &mut Mapping,
    ) {
        let block = BlockNr(word);
        if word == 0 {
            return;
        }
        if level == 0 {
            mapping.push_block(logical, block);
            return;
        }
        if !seen.insert(block) || seen.len() > MAX_NODES {
            mapping.faults.push(format!("{block} is named twice"));
            return;
        }
        let bytes = match self.block(block) {
            Ok(bytes) => bytes,
            Err(error) => return mapping.faults.push(error.to_string()),
        };
        // At most 3: `root_slot` gives no deeper level.
        mapping.nodes.push(MapNode { block, level: level as u16, logical });
        let span = indirect::span_blocks(self.geometry.block_size, level - 1);
        for (word, index) in indirect::pointers(&bytes).zip(0u64..) {
            let logical = LogicalBlock(logical.0 + index * span);
            self.pointer(u64::from(word), logical, level - 1, seen, mapping);
        }
    }
}
