//! Times that the kernel tells of files, and those that it does not tell ([`Times`]).

use floe_format::InodeNr;
use floe_format::ext::inode::FileType;
use floe_fs::{Attributes, Change as Fields, FsError, Op, OpKind, Store, Timestamp};

use crate::abi::{self, Change, SetattrFields, WriteFlags};
use crate::adapter::Adapter;
use crate::times::{Times, Told};

impl<S: Store> Adapter<'_, S> {
    /// A change is about to be made.
    fn note_times(&self, inode: InodeNr, change: &Change<'_>) {
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
    fn learn_times(&self, inode: InodeNr, change: &Change<'_>) {
        let asked = match change {
            Change::Setattr(asked) => asked,
            // Past the kernel's cache. It keeps the time of what programs write with `O_DIRECT`, and does not notice the other writes.
            Change::Write { flags, direct: false, .. }
                if self.writeback && !flags.contains(WriteFlags::CACHE) =>
            {
                return self.learn_what_the_kernel_did_not_notice(inode);
            }
            _ => return,
        };
        let valid = SetattrFields::from_bits_truncate(asked.valid);
        let sets = SetattrFields::MTIME | SetattrFields::MTIME_NOW;
        if !self.writeback {
            return;
        }
        if valid.contains(SetattrFields::SIZE) && !valid.intersects(sets) {
            // A path is truncated to the size that it has: the kernel tells no time, and keeps the one of before.
            return self.learn_what_the_kernel_did_not_notice(inode);
        }
        if !valid.intersects(sets | SetattrFields::CTIME) {
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

    /// A file has times that the kernel does not know.
    fn learn_what_the_kernel_did_not_notice(&self, inode: InodeNr) {
        if let Ok(file) = self.fs.attributes(inode) {
            self.times.learn(inode, Some(file.mtime), file.ctime);
        }
        self.writers.note_outdated(inode);
    }

    /// A file with the times that it returns to.
    pub(crate) fn with_told_times(&self, file: &Attributes) -> Attributes {
        if !self.writeback || file.kind != FileType::Regular {
            return *file;
        }
        let told = self.times.known().get(file.inode);
        // Without any, it may have returned since its attributes were read.
        let Some(told) = told else { return self.fs.attributes(file.inode).unwrap_or(*file) };
        match Times::settle(told, file) {
            Some(Told { modified, changed }) => {
                Attributes { mtime: modified, ctime: changed, ..*file }
            }
            None => *file,
        }
    }

    /// Makes a change and learns its times, beside which the file returns to no others.
    pub(crate) fn with_times_learned<T>(
        &self,
        inode: InodeNr,
        change: &Change<'_>,
        make: impl FnOnce() -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        self.note_times(inode, change);
        let sets = self.writeback && matches!(change, Change::Setattr(_));
        let setting = sets.then(|| self.times.set(inode));
        let made = make();
        if made.is_ok() {
            self.learn_times(inode, change);
        }
        drop(setting);
        if sets && self.times.take_left(inode) {
            self.settle_closed(inode);
        }
        made
    }

    /// The last writer of a file has gone; by now there may be another one.
    pub(crate) fn settle_closed(&self, inode: InodeNr) {
        if self.writeback {
            self.settle(inode, |inode| !self.writers.has(inode));
        }
    }

    /// The kernel has told all of a file: it forgets it.
    pub(crate) fn settle_times(&self, inode: InodeNr) {
        if self.writeback {
            self.settle(inode, |_| true);
        }
    }

    fn settle(&self, inode: InodeNr, is_due: impl FnOnce(InodeNr) -> bool) {
        // Kept until the times are there: who writes again waits.
        let mut known = self.times.known();
        if !is_due(inode) {
            return;
        }
        let Some(told) = known.take(inode) else { return };
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
        let all = self.times.known().inodes();
        all.into_iter().for_each(|inode| self.settle_times(inode));
    }
}
