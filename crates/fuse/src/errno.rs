//! The numbers of errors that the kernel gets: the only place that knows them.

use floe_fs::FsError;
use rustix::io::Errno;

/// The number for an error.
pub(crate) fn errno(error: &FsError) -> Errno {
    match error {
        FsError::NotFound => Errno::NOENT,
        FsError::NotADirectory => Errno::NOTDIR,
        FsError::IsADirectory => Errno::ISDIR,
        FsError::Invalid => Errno::INVAL,
        FsError::NoAttribute => Errno::NODATA,
        FsError::PastEnd => Errno::NXIO,
        FsError::AccessDenied => Errno::ACCESS,
        FsError::NameTooLong => Errno::NAMETOOLONG,
        FsError::ReadOnly => Errno::ROFS,
        FsError::Exists => Errno::EXIST,
        FsError::NotEmpty => Errno::NOTEMPTY,
        FsError::TooManyLinks => Errno::MLINK,
        FsError::NoSpace => Errno::NOSPC,
        FsError::QuotaExceeded => Errno::DQUOT,
        FsError::Short { why, .. } => errno(why),
        FsError::TooLarge => Errno::FBIG,
        FsError::NotPermitted => Errno::PERM,
        FsError::CrossProject => Errno::XDEV,
        FsError::Unsupported(_) => Errno::OPNOTSUPP,
        FsError::NoKey => Errno::NOKEY,
        FsError::CubeBusy { .. } => Errno::BUSY,
        // Linux tells damage (EUCLEAN, EBADMSG) from a device's failure; programs know EIO only.
        FsError::Damaged { .. }
        | FsError::Unreadable { .. }
        | FsError::Io { .. }
        | FsError::Lost { .. }
        | FsError::CubeFailed { .. }
        | FsError::Panicked { .. }
        | FsError::Ended(_) => Errno::IO,
        // Whatever is new is an error until it has a number here.
        _ => Errno::IO,
    }
}

/// Whether the error means that the image is damaged or the device failed, which is to be logged.
pub(crate) const fn is_fault(error: &FsError) -> bool {
    matches!(
        error,
        FsError::Damaged { .. }
            | FsError::Unreadable { .. }
            | FsError::Io { .. }
            | FsError::Lost { .. }
            | FsError::Panicked { .. }
            | FsError::Ended(_)
    )
}
