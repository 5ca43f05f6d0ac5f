//! Saves old bytes before they are overwritten, in undo files that `e2undo` can read, too.
//!
//! The format is in [`floe_format::ext::undo`]. Unlike e2fsprogs, which writes the undo file and
//! the device concurrently and warns that its undo files do not survive a crash, Floe makes the
//! file complete and durable *before* the first write to the device.

mod reader;
#[cfg(test)]
mod tests;
mod writer;

use std::io;
use std::path::{Path, PathBuf};

pub use reader::{Restored, Saved, UndoFile};
pub use writer::{UndoWriter, UndoWriterOptions};

/// Why an undo file could not be written. The device was not touched, and no new undo file is left
/// behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UndoWriteError {
    /// A file is at the path: it may be needed to undo an earlier change.
    #[error("{}: exists already, and an undo file is never replaced", .path.display())]
    Exists {
        /// The path as it was given.
        path: PathBuf,
    },
    /// The file system that holds the undo file is full, or a quota or limit is reached.
    #[error(
        "{}: no room for the undo file ({saved_bytes} bytes were saved before it ran out); name a \
         place with more room", .path.display()
    )]
    NoRoom {
        /// The path as it was given.
        path: PathBuf,
        /// Old bytes that were saved before.
        saved_bytes: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The superblock or a range of bytes cannot be described in the format.
    #[error("{}: {what}", .path.display())]
    Unsuitable {
        /// The path as it was given.
        path: PathBuf,
        /// Why not.
        what: &'static str,
    },
    /// It does not read back as it was written: its medium loses writes.
    #[error("{source}: it was just written, so its medium loses writes; name another place")]
    ReadsOther {
        /// How it reads.
        source: UndoReadError,
    },
    /// Anything else.
    #[error("{}: cannot write the undo file: {source}", .path.display())]
    Other {
        /// The path as it was given.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl UndoWriteError {
    fn new(path: &Path, saved_bytes: u64, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::AlreadyExists => Self::Exists { path },
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => Self::NoRoom { path, saved_bytes, source },
            _ => Self::Other { path, source },
        }
    }
}

/// Why an undo file could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UndoReadError {
    /// It cannot be opened or read.
    #[error("{}: cannot read the undo file: {source}", .path.display())]
    Read {
        /// The path as it was given.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is something else.
    #[error("{}: is not an undo file", .path.display())]
    NotUndo {
        /// The path as it was given.
        path: PathBuf,
    },
    /// Its writer did not complete it.
    #[error(
        "{}: the undo file was not finished. Floe writes a device only after its undo file is \
         finished, so if Floe wrote this one, the device was not changed; if a tool of e2fsprogs \
         did, only e2undo -f may try its luck", .path.display()
    )]
    Unfinished {
        /// The path as it was given.
        path: PathBuf,
    },
    /// It uses features that this version does not know.
    #[error("{}: the undo file uses features that this version does not know ({bits:#x})",
        .path.display())]
    UnknownFeatures {
        /// The path as it was given.
        path: PathBuf,
        /// Unknown bits of both feature words.
        bits: u32,
    },
    /// A checksum or an offset in it is wrong.
    #[error("{}: the undo file is damaged: {what}", .path.display())]
    Damaged {
        /// The path as it was given.
        path: PathBuf,
        /// The fault.
        what: String,
    },
}

/// Why old bytes could not be restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The undo file has ranges past the end of the device. Nothing was written.
    #[error(
        "the undo file reaches up to byte {needed_bytes} of the file system, and the device ends \
         at {size_bytes}; nothing was changed"
    )]
    TooSmall {
        /// End of the last saved range.
        needed_bytes: u64,
        /// Bytes of the device.
        size_bytes: u64,
    },
    /// The undo file can no longer be read.
    #[error(transparent)]
    Undo(#[from] UndoReadError),
    /// The device cannot be read.
    #[error("cannot read the device at byte {offset_bytes}: {source}")]
    Read {
        /// Offset of the read.
        offset_bytes: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The device cannot be written.
    #[error(
        "cannot write the device at byte {offset_bytes}: {source}. {restored_bytes} bytes were \
         restored; the undo file is still good, try again when the device can be written"
    )]
    Write {
        /// Offset of the write.
        offset_bytes: u64,
        /// Old bytes written so far.
        restored_bytes: u64,
        /// The system's error.
        source: io::Error,
    },
    /// Restored bytes read back differently.
    #[error("the device does not hold what was written to it at byte {offset_bytes}")]
    Verify {
        /// First byte of the range that differs.
        offset_bytes: u64,
    },
}
