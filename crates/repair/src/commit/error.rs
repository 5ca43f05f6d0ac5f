//! Why a commit failed, and how to undo it.

use std::fmt;
use std::io;
use std::path::PathBuf;

use floe_blockdev::UndoWriteError;

/// Why a staged repair was not written, or only in part.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The user interrupted before the first write.
    #[error("interrupted; nothing was written")]
    Interrupted,
    /// The size of the device cannot be determined.
    #[error("cannot determine the size of the device: {source}; nothing was written")]
    Size {
        /// The I/O error.
        source: io::Error,
    },
    /// The device became smaller after it was examined.
    #[error(
        "the device shrank while it was examined, from {was_bytes} to {now_bytes} bytes; nothing \
         was written"
    )]
    Shrank {
        /// Bytes when it was opened.
        was_bytes: u64,
        /// Bytes now.
        now_bytes: u64,
    },
    /// The superblock is not the one that was examined.
    #[error(
        "another program wrote to the file system during the check: its superblock has changed. \
         Nothing was written; make sure that it is not mounted, and start again"
    )]
    ChangedMeanwhile,
    /// The block against multiple mounts is not the one that was examined.
    #[error(
        "another machine has begun to use the file system during the check: its block against multiple mounts has changed. \
         Nothing was written; end that use, and start again"
    )]
    OtherMachine,
    /// The old bytes of pages to be overwritten cannot be read, and therefore not be saved.
    #[error(
        "the old content of {pages} blocks cannot be saved because it cannot be read, the first at \
         byte {offset_bytes}; nothing was written"
    )]
    Unreadable {
        /// Device offset of the first such page.
        offset_bytes: u64,
        /// Number of such pages.
        pages: usize,
    },
    /// A staged block cannot be read: from the scratch file, or from the device if the block is a
    /// copy.
    #[error("cannot read a staged block: {source}; nothing was written")]
    Staged {
        /// The I/O error.
        source: io::Error,
    },
    /// Old bytes became unreadable during the commit.
    #[error("cannot read the device at byte {offset_bytes}: {source}; nothing was written")]
    Read {
        /// Device offset, in bytes.
        offset_bytes: u64,
        /// The I/O error.
        source: io::Error,
    },
    /// The undo file cannot be written.
    #[error("{0}; nothing was written to the device")]
    Undo(#[from] UndoWriteError),
    /// The device cannot be written.
    #[error(
        "writing failed at byte {offset_bytes} of the file system, after {done_bytes} bytes: \
         {source}. {undo}"
    )]
    Write {
        /// Byte of the file system.
        offset_bytes: u64,
        /// Bytes written before the failure.
        done_bytes: u64,
        /// How to undo the commit.
        undo: WayBack,
        /// The I/O error.
        source: io::Error,
    },
    /// The device returns other bytes than were written.
    #[error(
        "the device does not hold what was written to it at byte {offset_bytes} of the file \
         system: it loses writes. {undo}"
    )]
    Verify {
        /// First byte of the range that differs.
        offset_bytes: u64,
        /// How to go back.
        undo: WayBack,
    },
}

impl CommitError {
    /// Whether the device is unchanged. In that case no undo file was left behind either.
    pub fn nothing_written(&self) -> bool {
        !matches!(self, Self::Write { .. } | Self::Verify { .. })
    }
}

/// How to go on after a commit that failed, displayed as advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WayBack {
    /// The undo file of the commit, if there is one.
    pub undo: Option<PathBuf>,
    /// At least one write succeeded.
    pub has_begun: bool,
}

impl fmt::Display for WayBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let begun = match self.has_begun {
            true => "The repair is half done",
            // A write that failed may have reached the device in part.
            false => "No write succeeded, and the file system should be as it was",
        };
        match &self.undo {
            Some(path) => write!(
                f,
                "{begun}. The undo file {} restores the original state; another repair continues \
                 from here",
                path.display()
            ),
            None => {
                write!(f, "{begun}, and there is no undo file; another repair continues from here")
            }
        }
    }
}
