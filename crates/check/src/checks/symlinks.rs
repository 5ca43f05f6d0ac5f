//! Check: symlinks.

use crate::inode_pass::{InodeCx, InodeEvidence};

use super::xattrs::OfInode;

/// Checks an inode in use that is a symlink; any other type passes.
pub fn check(_cx: &InodeCx<'_>, _attributes: &OfInode, _evidence: &mut InodeEvidence) {}
