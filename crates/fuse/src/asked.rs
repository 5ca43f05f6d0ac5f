//! Arguments of requests whose meaning depends on the file: modes and flags, and the content that the kernel keeps of it.

use std::time::Duration;

use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_fs::{Caller, Change as Fields, FsError, Place, RenameMode, SetMode, Store};
use floe_sync::atomic::Ordering;
use floe_sync::{PoisonError, before_waiting, thread};
use rustix::fs::{FallocateFlags, RenameFlags, XattrFlags};

use crate::abi::{self, Change, SetattrFields, SetattrIn};
use crate::adapter::Adapter;

/// Threads that serve the requests of a core, at least, where there are several.
const THREADS_AT_LEAST: usize = 3;
/// How often, and after which time each, a rename asks anew whether the kernel may write back.
const MOST_TRIES: u32 = 200;
const TRY_EVERY: Duration = Duration::from_millis(2);

/// The ids of a caller that the kernel does not tell, because they may be mapped. It has judged the caller.
const UNKNOWN_ID: u32 = u32::MAX;

impl<S: Store> Adapter<'_, S> {
    /// `chown` that changes neither owner nor group: set-user-ID and set-group-ID go, and nothing is left to do for an immutable
    /// file. Before a write the kernel asks for the same, without a time, and anybody may who has the file open for writing. For root
    /// it does so only because the file had capabilities, which are gone by then: a write by root takes no more.
    pub(crate) fn owned_again(
        &self,
        inode: InodeNr,
        by: (u32, u32),
        timed: bool,
    ) -> Result<Fields, FsError> {
        let file = self.fs.attributes(inode)?;
        // Without the kernel's cache of what is written, `chown` has no time either.
        let writes = !timed && self.writers.has(inode);
        let permissions = match writes && by.0 == 0 {
            true => None,
            false => self.without_ids(inode, by, None)?,
        };
        let judged = by.0 == UNKNOWN_ID || writes;
        let may = judged || by.0 == 0 || by.0 == file.uid || permissions.is_none();
        if !may || file.flags.contains(InodeFlags::IMMUTABLE) {
            return Err(FsError::NotPermitted);
        }
        Ok(Fields { permissions, ..Fields::default() })
    }

    /// Judges the times that a file is to get. Those of an append-only one can be set to the present alone, both together (Linux:
    /// `notify_change`). The kernel tells what it keeps as a program sets the time of the last write alone; while somebody writes the
    /// file, it counts as the kernel's.
    pub(crate) fn judge_times(&self, inode: InodeNr, asked: &SetattrIn) -> Result<(), FsError> {
        use SetattrFields as Field;
        let valid = Field::from_bits_truncate(asked.valid);
        if !valid.intersects(Field::ATIME | Field::MTIME) || valid.contains(Field::SIZE) {
            return Ok(());
        }
        let written = (asked.mtime, asked.mtimensec);
        let is_present = valid.contains(Field::MTIME_NOW)
            || valid.contains(Field::CTIME) && written == (asked.ctime, asked.ctimensec);
        let is_touched = valid.contains(Field::ATIME_NOW | Field::MTIME) && is_present;
        let is_kept = !valid.contains(Field::ATIME) && self.writers.has(inode);
        if is_touched || is_kept {
            return Ok(());
        }
        match self.fs.attributes(inode)?.flags.contains(InodeFlags::APPEND) {
            true => Err(FsError::NotPermitted),
            false => Ok(()),
        }
    }

    /// Whether a name that is there is kept, replaced or exchanged, by the flags of renameat2.
    pub(crate) fn rename_mode(&self, flags: u32, to: &Place<'_>) -> Result<RenameMode, FsError> {
        let flags = RenameFlags::from_bits(flags).ok_or(FsError::Invalid)?;
        Ok(match flags {
            flags if flags.is_empty() => RenameMode::Replace,
            RenameFlags::NOREPLACE => RenameMode::NoReplace,
            RenameFlags::EXCHANGE => RenameMode::Exchange,
            RenameFlags::WHITEOUT => RenameMode::Whiteout,
            flags if flags == RenameFlags::WHITEOUT | RenameFlags::NOREPLACE => {
                // The kernel lets nobody else into the directory meanwhile.
                match self.fs.resolve(&Caller::Judged, to.directory, to.name) {
                    Ok(_) => return Err(FsError::Exists),
                    Err(FsError::NotFound) => RenameMode::Whiteout,
                    Err(error) => return Err(error),
                }
            }
            _ => return Err(FsError::Invalid),
        })
    }

    /// Whether an attribute may, must or must not be there, by the flags of setxattr.
    pub(crate) fn set_mode(
        &self,
        inode: InodeNr,
        name: &[u8],
        flags: u32,
    ) -> Result<SetMode, FsError> {
        Ok(match XattrFlags::from_bits_truncate(flags) {
            // Both together always fail: with ENODATA if there is no such attribute, else with EEXIST.
            flags if flags.contains(XattrFlags::CREATE | XattrFlags::REPLACE) => {
                self.fs.extended_attribute(inode, name)?;
                return Err(FsError::Exists);
            }
            flags if flags.contains(XattrFlags::CREATE) => SetMode::Create,
            flags if flags.contains(XattrFlags::REPLACE) => SetMode::Replace,
            _ => SetMode::Any,
        })
    }

    /// Lets the kernel write back what it keeps of a file. The writes come to other threads, while this one waits; `false` if
    /// too few would be left for them.
    pub(crate) fn write_back(&self, inode: InodeNr) -> bool {
        let most = self.options.threads.min(THREADS_AT_LEAST) - 1;
        let enters = self.writing_back.count.fetch_add(1, Ordering::Relaxed) < most;
        if enters {
            let _turn = self.writing_back.turn.lock().unwrap_or_else(PoisonError::into_inner);
            before_waiting();
            // An inode that the kernel does not know has nothing to write.
            let _ = self.carrier.notify(&abi::write_back(inode));
        }
        self.writing_back.count.fetch_sub(1, Ordering::Relaxed);
        enters
    }

    /// A change was refused that may have been made in part, such as the edges of a range that was to become a hole: the kernel drops
    /// what it keeps of the content only if the whole change is made, so it is to drop that now.
    pub(crate) fn drop_content_of(&self, inode: InodeNr, change: &Change<'_>) {
        let clears = FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE;
        match *change {
            Change::Fallocate { mode, .. }
                if !FallocateFlags::from_bits_truncate(mode).intersects(clears) => {}
            Change::Fallocate { .. } if self.write_back(inode) => {}
            Change::Fallocate { .. } => self.writers.note_changed_in_part(inode),
            // Nothing is written back before a truncation is answered.
            Change::Setattr(ref fields)
                if SetattrFields::from_bits_truncate(fields.valid)
                    .contains(SetattrFields::SIZE) =>
            {
                self.writers.note_changed_in_part(inode);
            }
            _ => {}
        }
    }

    /// Lets the kernel write back what it keeps of a file that replaces another one by rename, so that the name never leads to a
    /// file without the content that was written before. Content of closed files has arrived already.
    pub(crate) fn write_back_what_replaces(
        &self,
        from: &Place<'_>,
        to: &Place<'_>,
        mode: RenameMode,
    ) {
        if !self.writeback || matches!(mode, RenameMode::NoReplace) {
            return;
        }
        let find =
            |place: &Place<'_>| self.fs.resolve(&Caller::Judged, place.directory, place.name).ok();
        let regular = |found: Option<(InodeNr, FileType)>| {
            found.filter(|found| found.1 == FileType::Regular).map(|found| found.0)
        };
        let Some(replaced) = regular(find(to)) else { return };
        let moved = regular(find(from)).filter(|moved| *moved != replaced);
        let exchanged = Some(replaced).filter(|_| mode == RenameMode::Exchange);
        for inode in moved.into_iter().chain(exchanged) {
            let _ = self.write_back_now(inode);
        }
    }

    /// Lets the kernel write back what it keeps of a file that somebody may write to. If too many do so at a time for half a
    /// second, nothing is written, and it is `false`.
    pub(crate) fn write_back_now(&self, inode: InodeNr) -> bool {
        let mut tries = 0;
        while self.writers.has(inode) && !self.write_back(inode) {
            if tries == MOST_TRIES {
                return false;
            }
            tries += 1;
            before_waiting();
            thread::sleep(TRY_EVERY);
        }
        true
    }
}
