//! Why a call fails, without the numbers of any system: `fuse` has the table of those.

use std::io;

use floe_format::InodeNr;

use crate::faults::Fault;

/// Why a call on a file system fails. Nothing was changed, except where [`FsError::Lost`] or [`FsError::Short`] reports it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FsError {
    /// The directory has no such name, or there is no such inode.
    #[error("no such file or directory")]
    NotFound,
    /// A directory is needed.
    #[error("not a directory")]
    NotADirectory,
    /// A file is needed.
    #[error("is a directory")]
    IsADirectory,
    /// The call is not possible with this kind of file, or its arguments contradict each other.
    #[error("invalid argument")]
    Invalid,
    /// The file has no such extended attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// No data, or no hole, lies behind that place of the file.
    #[error("nothing lies behind this place of the file")]
    PastEnd,
    /// The caller lacks a permission bit.
    #[error("permission denied")]
    AccessDenied,
    /// A name of more than 255 bytes.
    #[error("the name is longer than 255 bytes")]
    NameTooLong,
    /// The mount is read-only.
    #[error("the file system is mounted read-only")]
    ReadOnly,
    /// The name is taken.
    #[error("the name exists")]
    Exists,
    /// The directory has names.
    #[error("the directory is not empty")]
    NotEmpty,
    /// The inode has as many links as it can.
    #[error("too many links")]
    TooManyLinks,
    /// No free blocks or inodes, or no room for an attribute.
    #[error("no space is left")]
    NoSpace,
    /// A limit of the user, group or project.
    #[error("the quota is exceeded")]
    QuotaExceeded,
    /// A write was made in part: as much of it as fits before the disk is full, a limit is reached, or the file would be too large.
    #[error("{written_bytes} bytes were written, then: {why}")]
    Short {
        /// Bytes that were written, at least one.
        written_bytes: usize,
        /// Why no more were: [`FsError::NoSpace`], [`FsError::QuotaExceeded`] or [`FsError::TooLarge`].
        why: Box<FsError>,
    },
    /// Larger than files of this file system can be.
    #[error("the file would be too large")]
    TooLarge,
    /// The inode is immutable, append-only or under fs-verity.
    #[error("not permitted")]
    NotPermitted,
    /// A link or a name would cross from one project or cube to another.
    #[error("the directory belongs to another project or cube")]
    CrossProject,
    /// Something that is not written here, by name.
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// The file system is not written any more, because an earlier change could not be made as a whole or the
    /// device failed. Durable changes stay; the journal is recovered at the next mount.
    #[error("writing ended after an error: {0}")]
    Ended(String),
    /// The cube failed, and nothing of it is answered until it is repaired.
    #[error("cube {cube} failed earlier and is not served: `floe cube repair`")]
    CubeFailed {
        /// Its number.
        cube: u32,
    },
    /// The cube is being checked or repaired.
    #[error("cube {cube} is being checked or repaired")]
    CubeBusy {
        /// Its number.
        cube: u32,
    },
    /// A bug of Floe ended the operation, which is not made.
    #[error("a fault of Floe itself ended the operation: {what}")]
    Panicked {
        /// The message of the panic.
        what: String,
    },
    /// The content is encrypted, and there is no key.
    #[error("the content is encrypted, and there is no key")]
    NoKey,
    /// Metadata of this object are damaged: its checksum is wrong, or it cannot be followed.
    #[error("{inode} is damaged: {what}; run `floe check` on the unmounted image")]
    Damaged {
        /// The object.
        inode: InodeNr,
        /// The fault.
        what: String,
        /// The same, for the superblock.
        fault: Fault,
    },
    /// Metadata of this object cannot be read, because the device failed.
    #[error("{inode}: {what}")]
    Unreadable {
        /// The object.
        inode: InodeNr,
        /// The structure that cannot be read, and why.
        what: String,
        /// The same, for the superblock.
        fault: Fault,
    },
    /// Changes that were accepted could not be written later. Programs see what the disk has.
    #[error("changes of {inode}{} are lost: {what}", among(*.others))]
    Lost {
        /// The first object that has lost changes.
        inode: InodeNr,
        /// How many others have.
        others: usize,
        /// Why its changes could not be written.
        what: String,
    },
    /// The device failed for data of a file.
    #[error("content of {inode}: {source}")]
    Io {
        /// The object.
        inode: InodeNr,
        /// The system's error.
        source: io::Error,
    },
}

impl FsError {
    /// Whether space is missing, also for the rest of a write.
    pub fn is_no_space(&self) -> bool {
        match self {
            Self::NoSpace => true,
            Self::Short { why, .. } => why.is_no_space(),
            _ => false,
        }
    }

    /// The error of a write of which so many bytes were written before the part that failed.
    pub(crate) fn behind(self, before_bytes: usize) -> Self {
        match self {
            Self::Short { written_bytes, why } => {
                Self::Short { written_bytes: before_bytes + written_bytes, why }
            }
            Self::NoSpace | Self::QuotaExceeded | Self::TooLarge if before_bytes > 0 => {
                Self::Short { written_bytes: before_bytes, why: Box::new(self) }
            }
            other => other,
        }
    }
}

/// Does something once more after a read that failed: what was accepted is not lost to one failure of the device.
pub(crate) fn twice<T>(mut work: impl FnMut() -> Result<T, FsError>) -> Result<T, FsError> {
    match work() {
        Err(FsError::Unreadable { .. }) => work(),
        done => done,
    }
}

fn among(others: usize) -> String {
    match others {
        0 => String::new(),
        1 => " and of another inode".to_owned(),
        count => format!(" and of {count} other inodes"),
    }
}

impl FsError {
    /// Whether the error concerns one object or its cube, so that all others can be used.
    pub(crate) const fn is_local(&self) -> bool {
        matches!(
            self,
            Self::Damaged { .. }
                | Self::Unreadable { .. }
                | Self::CubeFailed { .. }
                | Self::CubeBusy { .. }
                | Self::Panicked { .. }
        )
    }
}
