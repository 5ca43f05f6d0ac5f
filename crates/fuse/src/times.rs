//! Times of files that the kernel keeps (`FUSE_WRITEBACK_CACHE`).
//!
//! The kernel sets them when a program writes, and tells them after the content. Until then the server takes its own clock, so that a
//! crash leaves no new content under an old time. But the kernel tells nothing where a program writes in the same tick as the
//! file was created or written before, nor where it told the times just before the content, as it may when it writes back by itself.
//! Then the file would move by a tick or more once the kernel has forgotten it, and `rsync` or `make` would take it for another one.
//! So the server notes what the kernel believes from the first content on, and returns to that when the last writer has gone.

use std::collections::HashMap;

use floe_format::InodeNr;
use floe_fs::{Attributes, Change as Fields, FsError, Op, OpKind, Store, Timestamp};
use floe_sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::{self, Change, SetattrFields};
use crate::adapter::Adapter;

/// Times of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    modified: Timestamp,
    changed: Timestamp,
}

/// Times that the kernel believes of files whose content came.
#[derive(Debug, Default)]
pub(crate) struct Times(Mutex<HashMap<InodeNr, Told>>);

impl Times {
    fn all(&self) -> MutexGuard<'_, HashMap<InodeNr, Told>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Content is about to come. Times that the kernel tells meanwhile wait until those from before are noted.
    fn note(&self, inode: InodeNr, now: impl FnOnce() -> Result<Attributes, FsError>) {
        let mut all = self.all();
        if !all.contains_key(&inode)
            && let Ok(file) = now()
        {
            all.insert(inode, Told { modified: file.mtime, changed: file.ctime });
        }
    }

    /// The kernel, or a program through it, has set times.
    fn learn(&self, inode: InodeNr, modified: Option<Timestamp>, changed: Timestamp) {
        if let Some(told) = self.all().get_mut(&inode) {
            told.modified = modified.unwrap_or(told.modified);
            told.changed = changed;
        }
    }

    /// The times that a file returns to that nobody writes any more; `None` if it has them already.
    fn settle(told: Told, now: &Attributes) -> Option<Told> {
        // Later changes of other attributes stay; the time of a write is both.
        let changed = if now.ctime == now.mtime { told.changed } else { now.ctime };
        (now.mtime != told.modified).then_some(Told { changed, ..told })
    }
}

impl<S: Store> Adapter<'_, S> {
    /// A change is about to be made.
    pub(crate) fn note_times(&self, inode: InodeNr, change: &Change<'_>) {
        let inode = match *change {
            Change::Write { .. } | Change::Fallocate { .. } => Some(inode),
            Change::Copy { to, .. } => abi::inode_of(to),
            _ => None,
        };
        if let Some(inode) = inode.filter(|_| self.writeback) {
            self.times.note(inode, || self.fs.attributes(inode));
        }
    }

    /// A change was made.
    pub(crate) fn learn_times(&self, inode: InodeNr, change: &Change<'_>) {
        let Change::Setattr(asked) = change else { return };
        let valid = SetattrFields::from_bits_truncate(asked.valid);
        let sets = SetattrFields::MTIME | SetattrFields::MTIME_NOW;
        if !self.writeback || !valid.intersects(sets | SetattrFields::CTIME) {
            return;
        }
        let Ok(file) = self.fs.attributes(inode) else { return };
        let time =
            |seconds: u64, nanoseconds| Timestamp { seconds: seconds.cast_signed(), nanoseconds };
        let modified = match valid {
            valid if valid.contains(SetattrFields::MTIME_NOW) => Some(file.mtime),
            valid if valid.contains(SetattrFields::MTIME) => {
                Some(time(asked.mtime, asked.mtimensec))
            }
            _ => None,
        };
        let changed = match valid.contains(SetattrFields::CTIME) {
            true => time(asked.ctime, asked.ctimensec),
            false => file.ctime,
        };
        self.times.learn(inode, modified, changed);
    }

    /// The kernel has told all of a file: its last writer has gone, or it forgets it.
    pub(crate) fn settle_times(&self, inode: InodeNr) {
        if !self.writeback {
            return;
        }
        // Kept until the times are there: who writes again waits.
        let mut all = self.times.all();
        let Some(told) = all.remove(&inode) else { return };
        let Ok(now) = self.fs.attributes(inode) else { return };
        if let Some(told) = Times::settle(told, &now).filter(|_| now.links > 0) {
            let change = Fields { modified: Some(told.modified), ..Fields::default() };
            let kind = OpKind::Change { inode, size_bytes: None, change };
            // If it cannot be changed, nobody wrote to it.
            let _ = self.fs.apply(&Op { uid: 0, gid: 0, time: told.changed, kind });
        }
    }

    /// The same for all files, at the end.
    pub(crate) fn settle_all_times(&self) {
        let all: Vec<InodeNr> = self.times.all().keys().copied().collect();
        all.into_iter().for_each(|inode| self.settle_times(inode));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanoseconds: 4 }
    }

    #[test]
    fn a_file_returns_to_what_the_kernel_believes() {
        let file = Attributes { mtime: at(10), ctime: at(10), ..some_file() };
        let (times, inode) = (Times::default(), InodeNr(12));
        // Not noted: nobody asks for times.
        times.learn(inode, Some(at(1)), at(1));
        times.note(inode, || Ok(file));
        times.note(inode, || panic!("it is known"));
        let told = |times: &Times| times.all().get(&inode).copied().unwrap();
        assert_eq!(told(&times), Told { modified: at(10), changed: at(10) });
        // Content came a tick later.
        let now = Attributes { mtime: at(11), ctime: at(11), ..file };
        let settled = Times::settle(told(&times), &now).unwrap();
        assert_eq!(settled, Told { modified: at(10), changed: at(10) });
        assert_eq!(Times::settle(told(&times), &file), None);
        // Its permissions changed later.
        let changed = Times::settle(told(&times), &Attributes { ctime: at(12), ..now }).unwrap();
        assert_eq!(changed, Told { modified: at(10), changed: at(12) });
        times.learn(inode, None, at(13));
        assert_eq!(told(&times), Told { modified: at(10), changed: at(13) });
        times.learn(inode, Some(at(9)), at(14));
        assert_eq!(told(&times), Told { modified: at(9), changed: at(14) });
    }

    fn some_file() -> Attributes {
        use floe_format::ext::inode::{FileType, InodeFlags};
        Attributes {
            inode: InodeNr(12),
            generation: 0,
            kind: FileType::Regular,
            permissions: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            size_bytes: 0,
            sectors: 0,
            atime: at(0),
            mtime: at(0),
            ctime: at(0),
            crtime: None,
            device: None,
            flags: InodeFlags::empty(),
            project: 0,
        }
    }
}
