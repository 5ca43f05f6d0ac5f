//! Times of the last access, as Linux keeps them: never, relative to the other times, or always.

use std::time::Duration;

use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags};

use crate::{Attributes, FileSystem, FsError, Store, Timestamp, now};

/// When reading changes the time of the last access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessTimes {
    /// Never (`noatime`).
    #[default]
    Never,
    /// Where that time is not later than the last change, or a day old (`relatime`).
    Relative,
    /// Always (`strictatime`).
    Always,
}

/// A time of access that is so old is renewed (Linux: `relatime_need_update`).
const OLD: Duration = Duration::from_secs(24 * 60 * 60);

impl AccessTimes {
    /// Whether an access now changes the time of an inode. Those that may not be changed keep it.
    fn concern(self, file: &Attributes, now: Timestamp) -> bool {
        let fixed = InodeFlags::NOATIME
            .union(InodeFlags::IMMUTABLE)
            .union(InodeFlags::APPEND)
            .union(InodeFlags::VERITY);
        if file.links == 0 || file.flags.intersects(fixed) {
            return false;
        }
        let key = |time: Timestamp| (time.seconds, time.nanoseconds);
        let age_seconds = now.seconds.saturating_sub(file.atime.seconds);
        match self {
            Self::Never => false,
            Self::Relative => {
                key(file.atime) <= key(file.mtime)
                    || key(file.atime) <= key(file.ctime)
                    || u64::try_from(age_seconds).is_ok_and(|age| age >= OLD.as_secs())
            }
            Self::Always => key(file.atime) != key(now),
        }
    }
}

impl<S: Store> FileSystem<S> {
    /// Notes that a program has read a file, a directory or the target of a symbolic link. Only the time of access may
    /// change; it reaches the disk with the next flush, and a crash may lose it.
    ///
    /// # Errors
    /// The inode cannot be read, or not be changed: callers let the read succeed.
    pub fn note_access(
        &self,
        inode: InodeNr,
        times: AccessTimes,
        of_directories: bool,
    ) -> Result<(), FsError> {
        if times == AccessTimes::Never || self.is_read_only() {
            return Ok(());
        }
        let _reading = self.reading();
        let (file, now) = (self.store().attributes(inode)?, self.store().kept_time(now()));
        let is_directory = file.kind == FileType::Directory;
        if (is_directory && !of_directories) || !times.concern(&file, now) {
            return Ok(());
        }
        self.store().note_access(inode, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_times_change_after_changes_and_daily() {
        let at = |seconds| Timestamp { seconds, nanoseconds: 0 };
        let file = |atime, mtime, ctime| Attributes {
            inode: InodeNr(12),
            generation: 0,
            kind: FileType::Regular,
            permissions: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            size_bytes: 0,
            sectors: 0,
            atime: at(atime),
            mtime: at(mtime),
            ctime: at(ctime),
            crtime: None,
            device: None,
            flags: InodeFlags::empty(),
            project: 0,
        };
        let day = 86_400;
        for (file, now, wanted) in [
            (file(100, 100, 100), 200, true),
            (file(150, 100, 100), 200, false),
            (file(150, 100, 160), 200, true),
            (file(150, 100, 100), 150 + day, true),
            (file(150, 100, 100), 149 + day, false),
            // The clock was set back.
            (file(1000, 100, 100), 200, false),
        ] {
            assert_eq!(AccessTimes::Relative.concern(&file, at(now)), wanted, "{file:?} {now}");
            assert!(AccessTimes::Always.concern(&file, at(now)));
            assert!(!AccessTimes::Never.concern(&file, at(now)));
            let fixed = Attributes { flags: InodeFlags::NOATIME, ..file };
            assert!(!AccessTimes::Always.concern(&fixed, at(now)));
        }
    }
}
