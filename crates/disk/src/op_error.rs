//! Why an operation was not done.

use std::any::Any;
use std::io;

use floe_ext4::tx::Refusal;
use floe_format::BlockNr;

/// Why an operation was not done. The transaction is as it was before it.
#[derive(Debug, thiserror::Error)]
pub enum OpError {
    /// There is no such name, inode or attribute.
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// The name is taken.
    #[error("the name exists")]
    Exists,
    /// It is no directory.
    #[error("it is not a directory")]
    NotADirectory,
    /// It is a directory.
    #[error("it is a directory")]
    IsADirectory,
    /// The directory has names.
    #[error("the directory is not empty")]
    NotEmpty,
    /// More bytes than a name, target or attribute may have.
    #[error("the name is too long")]
    NameTooLong,
    /// No file may have this name, or it is not valid in the directory's encoding.
    #[error("no file may have this name")]
    BadName,
    /// The inode has as many links as it can.
    #[error("it has as many links as it can have")]
    TooManyLinks,
    /// No free blocks or inodes. [`crate::volume::Volume::holds_back`] says whether a commit may help.
    #[error("no space is left")]
    NoSpace,
    /// A limit of the user, group or project.
    #[error("the quota is exceeded")]
    QuotaExceeded,
    /// Larger than files of this file system can be.
    #[error("the file would be too large")]
    TooLarge,
    /// Immutable, append-only or under fs-verity.
    #[error("not permitted: {0}")]
    NotPermitted(&'static str),
    /// The arguments contradict each other or the object.
    #[error("invalid: {0}")]
    Invalid(&'static str),
    /// The directories belong to different projects.
    #[error("the directory belongs to another project")]
    CrossProject,
    /// A name in one cube would lead to something in another.
    #[error("it belongs to another cube")]
    CrossCube,
    /// The buffer or the attribute area is too small for the value.
    #[error("no room for the attribute")]
    NoRoom,
    /// Something that is not written here, by name.
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// The operation would change more blocks than a transaction may ([`crate::volume::Volume::limit_changes`]): do less at
    /// once.
    #[error("it would change more blocks than a transaction may have")]
    TooLong,
    /// Data of a file cannot be read or written. Metadata are [`OpError::Refused`].
    #[error("data at {block} cannot be read or written: {source}")]
    Data {
        /// The block; 0 if it is not known.
        block: BlockNr,
        /// The device's error.
        source: io::Error,
    },
    /// A structure cannot be followed, read or written.
    #[error(transparent)]
    Refused(Refusal),
    /// A bug of ours ended the operation, of which nothing is left: the message of the panic.
    #[error("a fault of Floe itself: {0}")]
    Panicked(String),
    /// An earlier operation could not be put into its transaction as a whole: the volume must be opened anew.
    #[error("an earlier error stopped the volume")]
    Stopped,
}

/// The message of a panic.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a message".to_owned())
}

impl From<Refusal> for OpError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Full(_) => Self::NoSpace,
            other => Self::Refused(other),
        }
    }
}
