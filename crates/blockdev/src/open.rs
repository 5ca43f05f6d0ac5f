//! Opens the file or device at a path, and says precisely why that failed.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, OFlags, StatxAttributes, StatxFlags, access, statx};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Why a device or an image could not be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No such path.
    #[error("{}: no such file or device", .path.display())]
    NotFound {
        /// The path as it was given.
        path: PathBuf,
    },
    /// The caller may not open it.
    #[error("{}: no permission; run as root, or as a user who may {need} it", .path.display())]
    NoPermission {
        /// The path as it was given.
        path: PathBuf,
        /// "read" or "write".
        need: &'static str,
    },
    /// An attribute of the file forbids writing, to root as well; only when opened for writing.
    #[error(
        "{}: cannot be written: the file is {kind}; `chattr -{letter}` allows it", .path.display()
    )]
    Protected {
        /// The path as it was given.
        path: PathBuf,
        /// "immutable" or "append-only".
        kind: &'static str,
        /// The letter of the attribute for chattr(1).
        letter: char,
    },
    /// A directory: most likely the mount point instead of its device.
    #[error("{}: is a directory; name the device or image file instead", .path.display())]
    IsDirectory {
        /// The path as it was given.
        path: PathBuf,
    },
    /// A character device, such as a terminal or a tape: it cannot hold a file system.
    #[error("{}: is a character device; a block device or an image file is needed", .path.display())]
    IsCharacterDevice {
        /// The path as it was given.
        path: PathBuf,
    },
    /// A pipe or a socket, which has no random access.
    #[error("{}: is a {kind}; a block device or an image file is needed", .path.display())]
    NotSeekable {
        /// The path as it was given.
        path: PathBuf,
        /// "pipe" or "socket".
        kind: &'static str,
    },
    /// The device node is there, the device behind it is not (`ENXIO`, `ENODEV`, `ENOMEDIUM`).
    #[error("{}: there is no device, or no medium in it", .path.display())]
    NoDevice {
        /// The path as it was given.
        path: PathBuf,
    },
    /// Another user of the device or file does not share it (`EBUSY`, `ETXTBSY`).
    #[error("{}: is in use by another program or by the kernel", .path.display())]
    Busy {
        /// The path as it was given.
        path: PathBuf,
    },
    /// Another program holds the lock of this image file; only for exclusive opens.
    #[error(
        "{}: is locked: another program is working on it, most likely another `floe`; wait for it \
         to end", .path.display()
    )]
    Locked {
        /// The path as it was given.
        path: PathBuf,
    },
    /// Another program uses a file or device on which this one lies, such as the image file of a
    /// loop device; only for exclusive opens.
    #[error(
        "{}: lies on {}, which is locked or claimed: another program is working on it, most likely \
         another `floe`; wait for it to end", .path.display(), .below.display()
    )]
    InUseBelow {
        /// The path as it was given.
        path: PathBuf,
        /// The file or device below it.
        below: PathBuf,
    },
    /// It cannot be written (`EROFS`); only when opened for writing.
    #[error("{}: cannot be written; the device or what it lies on is read-only", .path.display())]
    ReadOnly {
        /// The path as it was given.
        path: PathBuf,
    },
    /// It does not support direct I/O; only if that was requested.
    #[error(
        "{}: cannot be read past the page cache: its file system does not support direct I/O", .path.display()
    )]
    NoDirectIo {
        /// The path as it was given.
        path: PathBuf,
    },
    /// Anything else; `source` has the system's error.
    #[error("{}: cannot be opened: {source}", .path.display())]
    Other {
        /// The path as it was given.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl OpenError {
    /// Classifies a system's error on `path`.
    pub(crate) fn new(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOENT | Errno::NOTDIR) => Self::NotFound { path },
            Some(Errno::ACCESS | Errno::PERM) => match protected_by(&path) {
                Some((kind, letter)) => Self::Protected { path, kind, letter },
                // More rights do not exist, so the system has another reason.
                None if geteuid().is_root() => Self::Other { path, source },
                None => {
                    let may_read = access(&path, Access::READ_OK).is_ok();
                    Self::NoPermission { path, need: if may_read { "write" } else { "read" } }
                }
            },
            Some(Errno::ISDIR) => Self::IsDirectory { path },
            Some(Errno::NXIO | Errno::NODEV | Errno::NOMEDIUM) => Self::NoDevice { path },
            Some(Errno::BUSY | Errno::TXTBSY) => Self::Busy { path },
            Some(Errno::ROFS) => Self::ReadOnly { path },
            _ => Self::Other { path, source },
        }
    }

    /// Classifies an error of [`crate::FileDevice::with_caching`].
    pub(crate) fn of_caching(path: &Path, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::Unsupported {
            Self::NoDirectIo { path: path.to_owned() }
        } else {
            Self::new(path, source)
        }
    }

    /// The path as it was given.
    pub fn path(&self) -> &Path {
        match self {
            Self::NotFound { path }
            | Self::NoPermission { path, .. }
            | Self::Protected { path, .. }
            | Self::IsDirectory { path }
            | Self::IsCharacterDevice { path }
            | Self::NotSeekable { path, .. }
            | Self::NoDevice { path }
            | Self::Busy { path }
            | Self::Locked { path }
            | Self::InUseBelow { path, .. }
            | Self::ReadOnly { path }
            | Self::NoDirectIo { path }
            | Self::Other { path, .. } => path,
        }
    }
}

/// The attribute of a file that forbids everybody to write it, and its letter.
fn protected_by(path: &Path) -> Option<(&'static str, char)> {
    let wanted = StatxFlags::empty();
    let found = statx(CWD, path, AtFlags::empty(), wanted).ok()?.stx_attributes;
    let kinds = [
        (StatxAttributes::IMMUTABLE, "immutable", 'i'),
        (StatxAttributes::APPEND, "append-only", 'a'),
    ];
    let kind = kinds.into_iter().find(|(attribute, ..)| found.contains(*attribute));
    kind.map(|(_, kind, letter)| (kind, letter))
}

/// Opens a file for reading, whatever it is, without waiting: a pipe would wait for its writer.
///
/// # Errors
/// The system's error.
pub fn open_at_once(path: &Path) -> io::Result<File> {
    // The bits fit, being flags of open.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Opens a regular file or block device with `how`, and refuses anything else.
///
/// The type is checked before opening (opening a pipe waits, opening a tape rewinds it) and again
/// afterwards (the name may have been given to another file in between).
pub(crate) fn open_seekable(path: &Path, how: &OpenOptions) -> Result<(File, Metadata), OpenError> {
    let wrap = |source| OpenError::new(path, source);
    let before = std::fs::metadata(path).map_err(wrap)?;
    refuse_kind(path, before.file_type())?;
    let file = how.open(path).map_err(wrap)?;
    let metadata = file.metadata().map_err(wrap)?;
    refuse_kind(path, metadata.file_type())?;
    Ok((file, metadata))
}

fn refuse_kind(path: &Path, kind: FileType) -> Result<(), OpenError> {
    let path = path.to_owned();
    if kind.is_file() || kind.is_block_device() {
        Ok(())
    } else if kind.is_dir() {
        Err(OpenError::IsDirectory { path })
    } else if kind.is_char_device() {
        Err(OpenError::IsCharacterDevice { path })
    } else if kind.is_fifo() {
        Err(OpenError::NotSeekable { path, kind: "pipe" })
    } else {
        Err(OpenError::NotSeekable { path, kind: "socket" })
    }
}
