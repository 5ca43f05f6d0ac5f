//! Further journals of the root cube, made in a file system that nobody uses yet.

use floe_blockdev::WriteBlocks;
use floe_disk::ops::{Caller, FurtherJournal};

use super::Live;
use crate::FsError;

/// Lots whose records change in one transaction.
const LOTS_AT_ONCE: usize = 8;

impl<D: WriteBlocks> Live<'_, '_, D> {
    /// Makes further journals of the root cube, so that there are `count`, and deals its lots to all: the first one is that of inode 8.
    ///
    /// # Errors
    /// [`FsError::Invalid`] if there are fewer lots than journals, or no room for a journal in one; some may be made then.
    pub fn make_journals(&self, caller: &Caller, count: u32) -> Result<(), FsError> {
        let made: Vec<FurtherJournal> = (1..count)
            .map(|number| {
                self.run_of(0, |volume, tx| volume.make_further_journal(tx, caller, number))
            })
            .collect::<Result<_, _>>()?;
        let lots = self.work().volume.lot_count();
        let owned = self.work().volume.lot_owners();
        // Journal N has lot N already.
        let left = (count..lots).filter(|lot| !owned.contains_key(lot) && lot % count > 0);
        let left: Vec<(u32, FurtherJournal)> =
            left.map(|lot| (lot, made[(lot % count) as usize - 1])).collect();
        for some in left.chunks(LOTS_AT_ONCE) {
            self.run_of(0, |volume, tx| {
                some.iter().try_for_each(|&(lot, journal)| {
                    volume.give_to_journal(tx, caller, lot, journal)
                })
            })?;
        }
        self.make_durable()
    }
}
