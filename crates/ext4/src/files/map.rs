//! Where the blocks of a file are: extent trees and block maps, as far as they can be followed.

use std::collections::HashSet;

use floe_format::ext::extent::{Extent, ExtentNode, MAX_DEPTH};
use floe_format::ext::indirect;
use floe_format::ext::inode::InodeFlags;
use floe_format::{BlockNr, BlockRun, LogicalBlock};

use super::{FileFault, Files, Node};

/// The mapping of a file.
#[derive(Debug, Default)]
pub struct FileMap {
    /// Mapped runs, ascending by logical block, not overlapping, and inside the file system.
    pub extents: Vec<Extent>,
    /// Parts that could not be followed.
    pub faults: Vec<FileFault>,
}

impl FileMap {
    /// Index of the first extent that ends behind a logical block.
    pub(super) fn from(&self, logical: u64) -> usize {
        self.extents.partition_point(|extent| extent.logical.0 + extent.run.len_blocks <= logical)
    }

    /// Sorts what was found, and drops what is mapped a second time.
    fn settle(&mut self) {
        self.extents.sort_by_key(|extent| extent.logical);
        let mut end = 0;
        let faults = &mut self.faults;
        self.extents.retain(|extent| {
            let fits = extent.logical.0 >= end;
            if fits {
                end = extent.logical.0 + extent.run.len_blocks;
            } else {
                faults.push(FileFault::MapOverlap { logical: extent.logical });
            }
            fits
        });
    }
}

impl Files<'_> {
    /// Follows the mapping of an inode whose `i_block` maps blocks, of either kind.
    pub fn map(&self, node: &Node) -> FileMap {
        let mut walk = MapWalk {
            files: self,
            seed: self.seed_of(node),
            seen: HashSet::new(),
            map: FileMap::default(),
        };
        let inode = node.inode();
        if inode.flags().contains(InodeFlags::EXTENTS) {
            let depth = ExtentNode::new(&inode.base.block).map_or(0, |root| root.header().depth);
            walk.extents(&inode.base.block, LogicalBlock(0), depth);
        } else {
            for index in 0..15 {
                let slot = indirect::root_slot(self.geometry.block_size, index);
                let (Some(word), Some((logical, level))) = (inode.block_word(index), slot) else {
                    continue;
                };
                walk.pointer(word, logical, level);
            }
        }
        walk.map.settle();
        walk.map
    }
}

struct MapWalk<'f, 'd> {
    files: &'f Files<'d>,
    seed: u32,
    seen: HashSet<BlockNr>,
    map: FileMap,
}

impl MapWalk<'_, '_> {
    /// Reads a mapping block, once.
    fn read(&mut self, block: BlockNr, logical: LogicalBlock) -> Option<Vec<u8>> {
        if !self.seen.insert(block) {
            self.map.faults.push(FileFault::MapDamaged { logical });
            return None;
        }
        match self.files.block(block) {
            Ok(bytes) => Some(bytes),
            Err(source) => {
                self.map.faults.push(FileFault::MapUnreadable { block, source });
                None
            }
        }
    }

    fn push(&mut self, extent: Extent) {
        let geometry = &self.files.geometry;
        let run = extent.run;
        if run.len_blocks == 0 {
            return self.map.faults.push(FileFault::MapDamaged { logical: extent.logical });
        }
        if !geometry.contains(run.start) || run.end().0 > geometry.blocks_count {
            let fault = FileFault::MapOutside { logical: extent.logical, run };
            return self.map.faults.push(fault);
        }
        if let Some(last) = self.map.extents.last_mut()
            && last.unwritten == extent.unwritten
            && last.logical.0 + last.run.len_blocks == extent.logical.0
            && last.run.end() == run.start
        {
            last.run.len_blocks += run.len_blocks;
            return;
        }
        self.map.extents.push(extent);
    }

    /// The depth of a node below the root follows from the root: it falls with each level.
    fn extents(&mut self, bytes: &[u8], logical: LogicalBlock, depth: u16) {
        let node = ExtentNode::new(bytes).filter(|node| node.header_ok() && depth <= MAX_DEPTH);
        let Some(node) = node else {
            return self.map.faults.push(FileFault::MapDamaged { logical });
        };
        if node.header().depth != depth {
            self.map.faults.push(FileFault::MapDamaged { logical });
        }
        for at in 0..node.header().entries {
            if depth == 0 {
                self.push(node.extent(at));
                continue;
            }
            let index = node.index(at);
            let Some(below) = self.read(index.node, index.logical) else { continue };
            if self.files.checksums()
                && ExtentNode::new(&below).is_some_and(|below| {
                    below.stored_checksum() != Some(below.compute_checksum(self.seed))
                })
            {
                self.map.faults.push(FileFault::MapChecksum { block: index.node });
            }
            self.extents(&below, index.logical, depth - 1);
        }
    }

    /// The level is at most 3 and falls with each call.
    fn pointer(&mut self, word: u32, logical: LogicalBlock, level: u32) {
        let block = BlockNr(u64::from(word));
        if word == 0 {
            return;
        }
        if level == 0 {
            let run = BlockRun::new(block, 1);
            return self.push(Extent { logical, run, unwritten: false });
        }
        let Some(bytes) = self.read(block, logical) else { return };
        let span = indirect::span_blocks(self.files.geometry.block_size, level - 1);
        for (index, word) in (0u64..).zip(indirect::pointers(&bytes)) {
            self.pointer(word, LogicalBlock(logical.0 + index * span), level - 1);
        }
    }
}
