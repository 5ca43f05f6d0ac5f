//! Inodes that lost their last name while they were open, or that were being cut when a server ended.

use std::collections::BTreeSet;

use floe_blockdev::WriteBlocks;
use floe_disk::ops::Caller;
use floe_format::InodeNr;

use super::Live;
use crate::store::Store;
use crate::{FsError, Timestamp};

impl<D: WriteBlocks> Live<'_, '_, D> {
    /// Finishes each orphan once, also those that others leave behind: the values of attributes of a file that is deleted.
    pub(super) fn finish_all_orphans(&self, now: Timestamp) -> Result<(), FsError> {
        let mut met = BTreeSet::new();
        loop {
            let mut orphans = self.work().volume.orphans();
            orphans.retain(|inode| met.insert(*inode));
            if orphans.is_empty() {
                return Ok(());
            }
            self.finish_orphans(orphans, now)?;
        }
    }

    pub(super) fn finish_orphans(
        &self,
        orphans: Vec<InodeNr>,
        now: Timestamp,
    ) -> Result<(), FsError> {
        for inode in orphans {
            match self.finish_orphan(inode, now) {
                // It is recorded, and stays an orphan for `floe repair`.
                Err(error) if error.is_local() => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Deletes values of attributes without users, for which the change that took the last one had no room.
    pub(super) fn finish_values(&self, values: Vec<InodeNr>) {
        for value in values {
            // It is recorded, and stays an orphan until the unmount.
            let _ = Store::release(self, value);
        }
    }

    pub(super) fn finish_orphan(&self, inode: InodeNr, now: Timestamp) -> Result<(), FsError> {
        let caller = Caller::system(now);
        self.image.forget(inode);
        self.steps(inode, |volume, tx| volume.finish_orphan(tx, self.disk, &caller, inode))
    }
}
