//! Check: what an inode alone can prove.

use crate::evidence::inode_facts::Facts;
use crate::inode_pass::{InodeCx, InodeEvidence, TableContext};

/// Checks one inode and says what later passes must know of it.
pub fn check(_cx: &InodeCx<'_>, _table: TableContext, _evidence: &mut InodeEvidence) -> Facts {
    Facts::default()
}
