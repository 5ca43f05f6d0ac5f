//! Check: extended attributes in the inode and in blocks, and the inodes that hold big values.

use floe_exec::Accumulator;
use floe_format::{BlockNr, InodeNr};

use crate::inode_pass::{InodeCx, InodeEvidence};

/// Evidence about attributes that needs other objects.
#[derive(Clone, Debug, Default)]
pub struct AttributeEvidence {
    /// Each use of an attribute block: block, inode. Blocks are shared, so each is checked and
    /// claimed once, after the inode pass.
    pub block_uses: Vec<(BlockNr, InodeNr)>,
}

impl Accumulator for AttributeEvidence {
    fn merge(&mut self, mut other: Self) {
        self.block_uses.append(&mut other.block_uses);
    }
}

/// What the attributes of one inode say about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfInode {
    /// Bytes of the value of the in-inode attribute `system.data`; `None` without it.
    pub inline_bytes: Option<u32>,
    /// Blocks that count for the inode: its attribute block (1 or 0).
    pub blocks: u64,
    /// Sectors and inodes charged for values in other inodes.
    pub ea_inode_blocks: u64,
    /// Number of values in other inodes.
    pub ea_inodes: u64,
}

/// Checks the attributes of an inode in use.
pub fn check(_cx: &InodeCx<'_>, _evidence: &mut InodeEvidence) -> OfInode {
    OfInode::default()
}
