//! Why an edit could not be made.

use std::io;

use floe_blockdev::UnreadablePage;
use floe_format::{BlockNr, GroupNr};

/// Why an edit could not be made. The finding behind it stays; the rest of the repair goes on.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// No free block or inode is left.
    #[error("no free {0} is left in the file system")]
    NoSpace(&'static str),
    /// No free run of blocks holds a bitmap or an inode table of a group. The repair ends with
    /// [`crate::RepairError::NoRoom`].
    #[error("{group} has no place for its {what}: no run of {blocks} blocks is free")]
    NoRun {
        /// The group.
        group: GroupNr,
        /// "block bitmap", "inode bitmap" or "inode table".
        what: &'static str,
        /// Blocks that it takes.
        blocks: u64,
    },
    /// A block is outside the file system, or what should be in it is not.
    #[error("{0} is not where it should be")]
    Misplaced(BlockNr),
    /// The state of the file system does not allow it; another finding says more.
    #[error("{0}")]
    NotNow(&'static str),
    /// Another edit of the same object failed, and this one with it.
    #[error("{0}")]
    Together(String),
    /// The examination went by sums, for lack of memory, and did not keep what the edit must know. The
    /// repair ends with [`crate::RepairError::OverBudget`].
    #[error("what it must know was not kept, for lack of memory")]
    NotKept,
    /// A block cannot be read, and so is neither written over nor given up.
    #[error(
        "{0}, and it is not written over because it may come back: copy the device first (ddrescue) and \
         repair the copy, or give the block up with `floe repair --overwrite-unreadable`"
    )]
    Unreadable(UnreadablePage),
    /// The device or the staging area failed.
    #[error(transparent)]
    Io(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        UnreadablePage::of(&error).map_or(Self::Io(error), Self::Unreadable)
    }
}
