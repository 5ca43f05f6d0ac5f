//! Why a call fails, without the numbers of any system: `fuse` has the table of those.

use std::io;

use floe_format::InodeNr;

/// Why a call on a file system fails. Nothing was changed.
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
    /// The content is encrypted, and there is no key.
    #[error("the content is encrypted, and there is no key")]
    NoKey,
    /// Metadata of this object are damaged: its checksum is wrong, or it cannot be followed.
    #[error("{inode} is damaged: {what}; run `floe check` on the unmounted image")]
    Damaged {
        /// The object.
        inode: InodeNr,
        /// What is wrong with it.
        what: String,
    },
    /// The device failed.
    #[error("{inode} cannot be read: {source}")]
    Io {
        /// The object.
        inode: InodeNr,
        /// What the system said.
        source: io::Error,
    },
}
