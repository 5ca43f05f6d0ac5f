//! Extended attributes whose proof needs other objects: blocks that inodes share, and inodes that hold values.

use std::collections::BTreeMap;

use floe_exec::Accumulator;
use floe_format::{BlockNr, InodeNr};

use crate::saved::{Decoder, Encoder, Fault, Saved, cell};

/// Evidence about attributes that needs other objects.
#[derive(Clone, Debug, Default)]
pub struct AttributeEvidence {
    /// Each use of an attribute block. Blocks are shared, so each is checked and claimed once, after
    /// the inode pass (`passes/attribute_blocks.rs`, which leaves the uses sorted by block, then inode).
    pub block_uses: Vec<BlockUse>,
    /// Symlinks whose target lies in a block of their own; emptied by `passes/attribute_blocks.rs`.
    pub long_symlinks: Vec<LongSymlink>,
    /// How many attributes have their value in an EA inode, for each such inode. Attributes of a
    /// shared block count once. Complete after `passes/attribute_blocks.rs`.
    pub ea_references: BTreeMap<InodeNr, u64>,
}

/// An inode uses an attribute block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockUse {
    /// The block; inside the file system.
    pub block: BlockNr,
    /// The inode.
    pub inode: InodeNr,
    /// The inode is encrypted and its context was not found in it.
    pub wants_context: bool,
}

/// A symlink whose target lies in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongSymlink {
    /// The block; inside the file system.
    pub block: BlockNr,
    /// The symlink.
    pub inode: InodeNr,
    /// `i_size`.
    pub size_bytes: u32,
    /// The target is encrypted.
    pub encrypted: bool,
}

impl AttributeEvidence {
    /// Counts attributes whose value lies in an EA inode.
    pub(crate) fn add_reference(&mut self, inode: InodeNr, count: u64) {
        let sum = self.ea_references.entry(inode).or_default();
        *sum = sum.saturating_add(count);
    }
}

impl Accumulator for AttributeEvidence {
    fn merge(&mut self, other: Self) {
        let Self { mut block_uses, mut long_symlinks, ea_references } = other;
        self.block_uses.append(&mut block_uses);
        self.long_symlinks.append(&mut long_symlinks);
        for (inode, count) in ea_references {
            self.add_reference(inode, count);
        }
    }
}

impl Saved for AttributeEvidence {
    fn save(&self, to: &mut Encoder<'_>) {
        let Self { block_uses, long_symlinks, ea_references } = self;
        to.put_rows(block_uses.iter().map(|of| {
            let BlockUse { block, inode, wants_context } = *of;
            [block.0, inode.0.into(), wants_context.into()]
        }));
        to.put_rows(long_symlinks.iter().map(|link| {
            let LongSymlink { block, inode, size_bytes, encrypted } = *link;
            [block.0, inode.0.into(), size_bytes.into(), encrypted.into()]
        }));
        ea_references.save(to);
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        let block_uses = from.rows(|[block, inode, wants_context]| {
            let (block, inode) = (BlockNr(block), InodeNr(cell(inode)?));
            Some(BlockUse { block, inode, wants_context: wants_context == 1 })
        })?;
        let long_symlinks = from.rows(|[block, inode, size, encrypted]| {
            let (block, inode) = (BlockNr(block), InodeNr(cell(inode)?));
            Some(LongSymlink { block, inode, size_bytes: cell(size)?, encrypted: encrypted == 1 })
        })?;
        Ok(Self { block_uses, long_symlinks, ea_references: Saved::load(from)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::saved::tests::same;

    floe_exec::accumulator_laws!(
        AttributeEvidence,
        (1u32..9, 0u64..9),
        |all: &mut AttributeEvidence, (inode, block): (u32, u64)| {
            let (inode, block) = (InodeNr(inode), BlockNr(block));
            all.block_uses.push(BlockUse { block, inode, wants_context: false });
            all.add_reference(inode, block.0);
        },
        |all: AttributeEvidence| same(all, |mut all: AttributeEvidence| {
            all.block_uses.sort_unstable();
            (all.block_uses, all.ea_references)
        })
    );
}
