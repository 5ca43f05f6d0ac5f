//! Why a commit failed, and how to go back.

use std::fmt;
use std::io;
use std::path::PathBuf;

use floe_blockdev::UndoWriteError;

/// Why a staged repair was not written, or not all of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The user asked to stop before the first write.
    #[error("interrupted; nothing was written")]
    Interrupted,
    /// The size of the device cannot be asked for.
    #[error("cannot ask for the size of the device: {source}; nothing was written")]
    Size {
        /// What the system said.
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
        "somebody wrote to the file system while it was examined: its superblock is another one \
         now. Nothing was written; make sure that it is not mounted, and start again"
    )]
    ChangedMeanwhile,
    /// Old bytes cannot be saved, because they cannot be read.
    #[error(
        "{pages} blocks that are to be written cannot be read, the first at byte {offset_bytes}, \
         so that their old content cannot be saved; nothing was written"
    )]
    Unreadable {
        /// Byte of the device at which the first begins.
        offset_bytes: u64,
        /// How many there are.
        pages: usize,
    },
    /// A staged block cannot be read: the scratch file, or the device where a block is a copy.
    #[error("cannot read a staged block: {source}; nothing was written")]
    Staged {
        /// What the system said.
        source: io::Error,
    },
    /// Old bytes became unreadable.
    #[error("cannot read the device at byte {offset_bytes}: {source}; nothing was written")]
    Read {
        /// Where.
        offset_bytes: u64,
        /// What the system said.
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
        /// Where.
        offset_bytes: u64,
        /// Bytes written before.
        done_bytes: u64,
        /// How to go back.
        undo: WayBack,
        /// What the system said.
        source: io::Error,
    },
    /// The device does not hold what was written.
    #[error(
        "the device does not hold what was written to it at byte {offset_bytes} of the file \
         system: it loses writes. {undo}"
    )]
    Verify {
        /// First byte of the stretch that differs.
        offset_bytes: u64,
        /// How to go back.
        undo: WayBack,
    },
}

impl CommitError {
    /// Whether the device is as it was. No undo file was left behind then either.
    pub fn nothing_written(&self) -> bool {
        !matches!(self, Self::Write { .. } | Self::Verify { .. })
    }
}

/// The undo file of a commit that failed half-way, if there is one; as text, what to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WayBack(pub Option<PathBuf>);

impl fmt::Display for WayBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(path) => write!(
                f,
                "The repair is half done. The undo file {} brings everything back as it was; \
                 repairing again goes on from here",
                path.display()
            ),
            None => f.write_str(
                "The repair is half done, and nothing was saved to go back; repairing again goes \
                 on from here",
            ),
        }
    }
}
