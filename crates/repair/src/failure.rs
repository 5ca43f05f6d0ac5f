//! Why an edit could not be made.

use std::io;

use floe_blockdev::UnreadablePage;
use floe_disk::ops::OpError;
use floe_format::{BlockNr, GroupNr};

/// The cause that keeps a file in the cube into which another system has put it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hindrance {
    /// Its names lie in several cubes.
    SeveralCubes,
    /// The cube of its names has no room for it.
    NoRoom,
}

/// The failure of an edit as the session keeps it.
#[derive(Clone)]
pub(crate) struct Failed {
    pub(crate) text: String,
    pub(crate) hindrance: Option<Hindrance>,
}

impl Failed {
    pub(crate) fn of(failure: &Failure) -> Self {
        Self { text: failure.to_string(), hindrance: failure.hindrance() }
    }
}

/// Why an edit could not be made. Its finding stays, and the rest of the repair continues.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// No free block, inode or number is left.
    #[error("no free {0} is left in the file system")]
    NoSpace(&'static str),
    /// No free run of blocks holds a bitmap or an inode table of a group. The repair ends with
    /// [`crate::RepairError::NoRoom`].
    #[error("{group} has no room for its {what}: no {blocks} contiguous blocks are free")]
    NoRun {
        /// The group.
        group: GroupNr,
        /// "block bitmap", "inode bitmap" or "inode table".
        what: &'static str,
        /// Blocks that it needs.
        blocks: u64,
    },
    /// A block is outside the file system, or does not hold the expected structure.
    #[error("{0} is not where it should be")]
    Misplaced(BlockNr),
    /// The state of the file system does not allow the edit; another finding says more.
    #[error("{0}")]
    NotNow(&'static str),
    /// A file is not moved because its names lie in several cubes.
    #[error("it has names in several cubes")]
    SeveralCubes,
    /// Another edit of the same object failed, and this one with it.
    #[error("{text}")]
    Together {
        /// Why the other one failed.
        text: String,
        /// The cause that keeps the file where it is, if it is known.
        hindrance: Option<Hindrance>,
    },
    /// Under a low memory limit the examination used fingerprints and did not keep the evidence
    /// that the edit needs. The repair ends with [`crate::RepairError::OverBudget`].
    #[error("the memory limit was too low to keep the evidence that this repair needs")]
    NotKept,
    /// A block cannot be read, so it is neither overwritten nor given up.
    #[error(
        "{0}, and it is not overwritten because a copy of the device may recover it: copy the \
         device first (ddrescue) and repair the copy, or give the block up with `floe repair \
         --overwrite-unreadable`"
    )]
    Unreadable(UnreadablePage),
    /// A file has the block, too, and gets no copy of it.
    #[error("a file may have data in {0}, and it gets no copy of them")]
    InPlace(BlockNr),
    /// An operation of the mounted file system refused, which the repair uses, too.
    #[error(transparent)]
    Operation(#[from] OpError),
    /// The device or the staging area failed.
    #[error(transparent)]
    Io(io::Error),
}

impl Failure {
    /// For all edits that fail with one.
    pub(crate) fn together(error: &dyn std::error::Error) -> Self {
        Self::Together { text: error.to_string(), hindrance: None }
    }

    /// The same for another edit that fails with this one.
    pub(crate) fn again(&self) -> Self {
        Self::Together { text: self.to_string(), hindrance: self.hindrance() }
    }

    /// The cause that keeps a file in the cube of others, if this is one.
    pub const fn hindrance(&self) -> Option<Hindrance> {
        match self {
            Self::SeveralCubes => Some(Hindrance::SeveralCubes),
            Self::Operation(OpError::NoSpace) => Some(Hindrance::NoRoom),
            Self::Together { hindrance, .. } => *hindrance,
            _ => None,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        UnreadablePage::of(&error).map_or(Self::Io(error), Self::Unreadable)
    }
}
