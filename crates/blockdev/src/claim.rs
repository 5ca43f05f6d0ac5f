//! Claims on the bytes that a program works on, held until they are dropped.
//!
//! A claim covers a range of a device or image file, and the same bytes in all that lie below it
//! ([`crate::stack`]), because other programs may use them by other names: a file and a loop device
//! over it, a disk and its partition. Two writers, or a writer and a reader, exclude each other if
//! their ranges overlap; readers share.
//!
//! - A block device is claimed with `O_EXCL` for writing, which the kernel respects: it neither
//!   mounts the device, its partitions, nor the disk that it is a part of. A loop device does not
//!   pass that on to a block device below it, so that one is claimed, too.
//! - In files, and for readers of block devices, open file description locks hold the range. They
//!   exclude programs that take such locks, which are other instances of Floe and, in the first 300
//!   bytes, QEMU.
//! - Image files are locked with `flock`, too, for programs that know only that: exclusively if all
//!   of the file is to be written, else shared, because others may use the rest of the file.
//! - Where the place of the bytes in a member is not known (device mapper, RAID), the member is
//!   locked as readers do: other devices in it stay usable, but writers of the member are excluded.
//!
//! A layer below that this process cannot see or open (in another mount namespace, deleted, without
//! permission) is not locked.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::open::{OpenError, open_at_once, open_seekable};
use crate::stack::{Layer, Node, layers};

/// Access that a claim leaves to other programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Others may read, too.
    Reading,
    /// Nobody else may use the bytes.
    Writing,
}

/// A claim, which ends when it is dropped.
#[derive(Debug)]
pub struct Claim {
    /// One open file for each layer: the locks belong to them.
    _held: Vec<File>,
}

impl Claim {
    /// Claims a range of the device or image at `path`, in bytes.
    ///
    /// # Errors
    /// [`OpenError::Busy`] if a device is mounted or claimed already, [`OpenError::Locked`] if
    /// another program holds a lock, [`OpenError::InUseBelow`] if this is so for something that the
    /// device lies on, or another [`OpenError`].
    pub fn new(path: &Path, bytes: Range<u64>, access: Access) -> Result<Self, OpenError> {
        let layers = layers(path, bytes).map_err(|source| OpenError::new(path, source))?;
        let mut held = Vec::new();
        for (depth, layer) in layers.iter().enumerate() {
            match claimed(layer, depth == 0, access) {
                Ok(file) => held.push(file),
                Err(error) if depth == 0 => return Err(error),
                Err(OpenError::Locked { path: below } | OpenError::Busy { path: below }) => {
                    return Err(OpenError::InUseBelow { path: path.to_owned(), below });
                }
                Err(_) => {}
            }
        }
        Ok(Self { _held: held })
    }
}

/// Claims one layer.
fn claimed(layer: &Layer, is_top: bool, access: Access) -> Result<File, OpenError> {
    let path = &layer.path;
    let access = if layer.exact { access } else { Access::Reading };
    let excludes = matches!(layer.node, Node::Block(_)) && (is_top || layer.under_loop);
    let (file, metadata) = opened(path, access, excludes)?;
    if Node::from(&metadata) != layer.node {
        // The name was given to another file meanwhile, or the node in /dev is not the kernel's.
        return Err(OpenError::NotFound { path: path.clone() });
    }
    let lock = || {
        if matches!(layer.node, Node::File { .. }) {
            let all = layer.bytes.start == 0 && layer.bytes.end >= metadata.len();
            let how = match access {
                Access::Writing if all => FlockOperation::NonBlockingLockExclusive,
                Access::Writing | Access::Reading => FlockOperation::NonBlockingLockShared,
            };
            supported(flock(&file, how).map_err(io::Error::from))?;
        }
        supported(lock_range(&file, access, &layer.bytes))
    };
    match lock() {
        Ok(()) => Ok(file),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(OpenError::Locked { path: path.clone() })
        }
        Err(error) => Err(OpenError::new(path, error)),
    }
}

/// Opens a layer so that it can be locked. A lock for writing needs a file that is open for writing.
fn opened(path: &Path, access: Access, excludes: bool) -> Result<(File, Metadata), OpenError> {
    let mut how = OpenOptions::new();
    how.read(true).write(access == Access::Writing);
    if access == Access::Writing && excludes {
        // Linux: without O_CREAT, O_EXCL claims a block device. The bits fit, being flags of open.
        how.custom_flags(OFlags::EXCL.bits().cast_signed());
    }
    open_seekable(path, &how)
}

/// Some network file systems do not support locks; then no other process can hold one.
fn supported(locked: io::Result<()>) -> io::Result<()> {
    let errno = locked.as_ref().err().and_then(io::Error::raw_os_error);
    match errno.map(Errno::from_raw_os_error) {
        Some(Errno::OPNOTSUPP | Errno::NOLCK | Errno::NOSYS | Errno::INVAL) => Ok(()),
        _ => locked,
    }
}

/// Locks a range for this open file. `WouldBlock` if another one has a lock in the way.
fn lock_range(file: &File, access: Access, bytes: &Range<u64>) -> io::Result<()> {
    let kind = match access {
        Access::Reading => libc::F_RDLCK,
        Access::Writing => libc::F_WRLCK,
    };
    match fcntl(file, FcntlArg::F_OFD_SETLK(&request(kind, bytes))) {
        Ok(_) => Ok(()),
        // POSIX allows either number.
        Err(nix::Error::EACCES | nix::Error::EAGAIN) => Err(io::ErrorKind::WouldBlock.into()),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether a lock of another open file is in the way of an `access` to a range of the file or
/// device at `path`. An error if the system does not say.
pub(crate) fn is_locked(path: &Path, access: Access, bytes: &Range<u64>) -> io::Result<bool> {
    let file = open_at_once(path)?;
    let kind = match access {
        Access::Reading => libc::F_RDLCK,
        Access::Writing => libc::F_WRLCK,
    };
    // Asks which lock would prevent ours. That needs the file open for reading only.
    let mut lock = request(kind, bytes);
    fcntl(&file, FcntlArg::F_OFD_GETLK(&mut lock))?;
    Ok(lock.l_type != libc::F_UNLCK as i16)
}

/// A request about a lock of a range of bytes.
pub(crate) fn request(kind: i32, bytes: &Range<u64>) -> libc::flock {
    let offset = |at: u64| i64::try_from(at).unwrap_or(i64::MAX);
    let (l_type, l_whence) = (kind as i16, libc::SEEK_SET as i16);
    // A length of 0 reaches to the end of the file, wherever that will be.
    let l_len = match offset(bytes.end) {
        i64::MAX => 0,
        end => end - offset(bytes.start),
    };
    libc::flock { l_type, l_whence, l_start: offset(bytes.start), l_len, l_pid: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overlap_exclude_each_other_unless_both_only_read() {
        use Access::{Reading, Writing};
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1000).unwrap();
        let claim = |bytes: Range<u64>, access| Claim::new(file.path(), bytes, access);
        let all = 0..u64::MAX;
        for (one, other, excluded) in [
            ((0..500, Writing), (500..1000, Writing), false),
            ((0..500, Writing), (499..1000, Writing), true),
            ((0..500, Writing), (499..1000, Reading), true),
            ((0..500, Reading), (0..500, Reading), false),
            ((0..500, Writing), (500..1000, Reading), false),
            ((all.clone(), Writing), (900..u64::MAX, Reading), true),
            ((all.clone(), Writing), (all.clone(), Writing), true),
            ((all.clone(), Reading), (all, Reading), false),
        ] {
            let what = format!("{one:?} and {other:?}");
            let first = claim(one.0, one.1).unwrap();
            let second = claim(other.0.clone(), other.1);
            assert_eq!(matches!(second, Err(OpenError::Locked { .. })), excluded, "{what}");
            assert_eq!(second.is_err(), excluded, "{what}");
            drop(first);
            drop(second);
            assert!(claim(other.0, other.1).is_ok(), "{what}: still locked");
        }
    }

    #[test]
    fn programs_that_know_only_flock_are_kept_out_of_whole_files() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1000).unwrap();
        let may = || {
            let other = File::open(file.path()).unwrap();
            [FlockOperation::NonBlockingLockShared, FlockOperation::NonBlockingLockExclusive]
                .map(|how| flock(&other, how).is_ok())
        };
        for (bytes, access, allowed) in [
            (0..1000, Access::Writing, [false, false]),
            (0..999, Access::Writing, [true, false]),
            (0..1000, Access::Reading, [true, false]),
        ] {
            let claim = Claim::new(file.path(), bytes.clone(), access).unwrap();
            assert_eq!(may(), allowed, "{bytes:?} {access:?}");
            drop(claim);
            assert_eq!(may(), [true, true]);
        }
        let other = File::open(file.path()).unwrap();
        flock(&other, FlockOperation::LockExclusive).unwrap();
        let error = Claim::new(file.path(), 0..1, Access::Reading).unwrap_err();
        assert!(matches!(error, OpenError::Locked { .. }), "{error:?}");
    }
}
