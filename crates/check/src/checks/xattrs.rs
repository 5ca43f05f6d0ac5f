//! Check: extended attributes in the inode and in blocks, and the inodes that hold big values.

use std::collections::BTreeMap;

use floe_exec::{Accumulator, Pool};
use floe_format::{BlockNr, InodeNr};

use crate::inode_pass::{InodeCx, InodeEvidence};
use crate::volume::Volume;

/// Evidence about attributes that needs other objects.
#[derive(Clone, Debug, Default)]
pub struct AttributeEvidence {
    /// Each use of an attribute block: block, inode. Blocks are shared, so each is checked and
    /// claimed once, after the inode pass.
    pub block_uses: Vec<(BlockNr, InodeNr)>,
    /// How many attributes have their value in an EA inode, for each such inode. Complete after
    /// [`check_blocks`].
    pub ea_references: BTreeMap<InodeNr, u64>,
}

impl Accumulator for AttributeEvidence {
    fn merge(&mut self, mut other: Self) {
        self.block_uses.append(&mut other.block_uses);
        for (inode, count) in other.ea_references {
            *self.ea_references.entry(inode).or_default() += count;
        }
    }
}

/// What the attributes of one inode say about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfInode {
    /// Bytes of the value of the in-inode attribute `system.data`; `None` without it.
    pub inline_bytes: Option<u32>,
    /// Blocks that `i_blocks` and quota count for the attribute block: those of a cluster, or 0.
    pub blocks: u64,
    /// Blocks that `i_blocks` and quota count for values in EA inodes, whose own blocks count for
    /// nobody: whole clusters.
    pub ea_inode_blocks: u64,
    /// Inodes that quota counts for values in EA inodes.
    pub ea_inodes: u64,
}

/// Checks the attributes of an inode in use.
pub fn check(_cx: &InodeCx<'_>, _evidence: &mut InodeEvidence) -> OfInode {
    OfInode::default()
}

/// Reads each attribute block that an inode uses once, in disk order, and adds to `evidence` what it
/// says: findings, claims of the blocks, policies, references to EA inodes. Run it after the inode
/// pass and before anything that needs complete claims or policies.
pub fn check_blocks(_volume: &Volume<'_>, _evidence: &mut InodeEvidence, _pool: &Pool) {}
