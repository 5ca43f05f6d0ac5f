//! Inodes.

use crate::Case;

/// The recipes of this module.
pub(super) fn cases() -> Vec<Case> {
    Vec::new()
}
