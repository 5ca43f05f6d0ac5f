//! Times of files that the kernel keeps (`FUSE_WRITEBACK_CACHE`).
//!
//! The kernel sets them when a program writes, and tells them after the content. Until then the server takes its own clock, so that a
//! crash leaves no new content under an old time. But the kernel tells nothing where a program writes in the same tick as the
//! file was created or written before, nor where it told the times just before the content, as it may when it writes back by itself.
//! Then the file would move by a tick or more once the kernel has forgotten it, and `rsync` or `make` would take it for another one.
//! So the server notes what the kernel believes from the first content on, and returns to that when the last writer has gone.
//!
//! The kernel tells of the last writer (`FUSE_RELEASE`) without waiting for the answer, so another thread may get that while one sets
//! the times of the same file, as for a program that closes a copy and gives it the times of the original: those must stay.

use std::collections::{HashMap, HashSet};

use floe_format::InodeNr;
use floe_fs::{Attributes, FsError, Timestamp};
use floe_sync::{Mutex, MutexGuard, PoisonError};

/// Times of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) modified: Timestamp,
    pub(crate) changed: Timestamp,
}

/// Times that the kernel believes of files whose content came.
#[derive(Debug, Default)]
pub(crate) struct Times(Mutex<Known>);

#[derive(Debug, Default)]
pub(crate) struct Known {
    told: HashMap<InodeNr, Told>,
    /// Files whose attributes are being set, and by how many threads.
    being_set: HashMap<InodeNr, u32>,
    /// Those of them whose last writer has gone meanwhile.
    left: HashSet<InodeNr>,
}

impl Known {
    pub(crate) fn get(&self, inode: InodeNr) -> Option<Told> {
        self.told.get(&inode).copied()
    }

    /// The times of a file that are noted no more, because its last writer has gone; `None` if there are none, or while a thread
    /// sets some, after which it has to look ([`Times::take_left`]).
    pub(crate) fn take(&mut self, inode: InodeNr) -> Option<Told> {
        if self.being_set.contains_key(&inode) {
            self.left.insert(inode);
            return None;
        }
        self.told.remove(&inode)
    }

    pub(crate) fn inodes(&self) -> Vec<InodeNr> {
        self.told.keys().copied().collect()
    }
}

/// A thread that sets attributes of a file.
#[derive(Debug)]
pub(crate) struct Setting<'t> {
    times: &'t Times,
    inode: InodeNr,
}

impl Drop for Setting<'_> {
    fn drop(&mut self) {
        let mut known = self.times.known();
        if let Some(threads) = known.being_set.get_mut(&self.inode) {
            *threads -= 1;
            if *threads == 0 {
                known.being_set.remove(&self.inode);
            }
        }
    }
}

impl Times {
    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attributes are about to be set. Until the result is dropped, the file does not return to any times.
    pub(crate) fn set(&self, inode: InodeNr) -> Setting<'_> {
        *self.known().being_set.entry(inode).or_default() += 1;
        Setting { times: self, inode }
    }

    /// Whether the last writer of a file went while a thread set attributes, and none does any more; `true` once.
    pub(crate) fn take_left(&self, inode: InodeNr) -> bool {
        let mut known = self.known();
        !known.being_set.contains_key(&inode) && known.left.remove(&inode)
    }

    /// Content is about to come. Times that the kernel tells meanwhile wait until those from before are noted.
    pub(crate) fn note(&self, inode: InodeNr, now: impl FnOnce() -> Result<Attributes, FsError>) {
        let told = &mut self.known().told;
        if !told.contains_key(&inode)
            && let Ok(file) = now()
        {
            told.insert(inode, Told { modified: file.mtime, changed: file.ctime });
        }
    }

    /// The kernel, or a program through it, has set times.
    pub(crate) fn learn(&self, inode: InodeNr, modified: Option<Timestamp>, changed: Timestamp) {
        if let Some(told) = self.known().told.get_mut(&inode) {
            told.modified = modified.unwrap_or(told.modified);
            told.changed = changed;
        }
    }

    /// The times that a file returns to that nobody writes any more; `None` if it has them already.
    pub(crate) fn settle(told: Told, now: &Attributes) -> Option<Told> {
        // Later changes of other attributes stay; the time of a write is both.
        let changed = if now.ctime == now.mtime { told.changed } else { now.ctime };
        (now.mtime != told.modified).then_some(Told { changed, ..told })
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
        let told = |times: &Times| times.known().get(inode).unwrap();
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
