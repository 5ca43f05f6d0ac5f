//! Changes that are longer than the log of their cube allows: that of inode 8 logs the lots of the cube meanwhile.
//!
//! An operation cannot always be divided, and what it needs at most (`ops::credits`) does not fit into the smallest journals of
//! cubes. So the cube's log is emptied first: all of it durable, home, and behind its tail. Then inode 8 logs the lots, as it
//! logs those of cubes without a journal, and before the next change begins they go back in the same way
//! ([`Journal::settle_moves`]). At any time one log alone has images of a block, as rule R1 wants it.

use std::collections::{BTreeMap, BTreeSet};

use floe_blockdev::WriteBlocks;
use floe_format::BlockRun;

use super::Journal;
use super::error::JournalError;
use super::shared::{Lane, Share, Shared};
use super::state::Images;

impl Lane {
    /// Whether a part of a change is longer than a transaction of the log may be (rule R11).
    fn is_too_short_for(&self, share: &Share) -> bool {
        let (images, revokes) = (share.images.len() as u64, self.state.revokes(&share.freed));
        self.log.cost(images, revokes) > u64::from(self.log.limit())
    }
}

impl Shared {
    /// Logs whose lots inode 8 has now, and which nothing leads back to, because the change removed their cubes, are over.
    pub(super) fn bury(&mut self, lent: &BTreeSet<usize>) {
        for &lane in lent {
            let inode = self.lanes[lane].inode;
            let is_named = self.lots.moves.values().any(|to| *to == inode);
            self.lanes[lane].gone |= !is_named && !self.lots.has_lots(lane);
        }
    }
}

impl<D: WriteBlocks> Journal<D> {
    /// Divides a change among the logs, and says whose lots inode 8 has now because their log is too short for it. `alone`: no
    /// other handle is open, without which no lots change their log. Where changes wait, one log has all of it
    /// ([`Dependencies::Awaited`](super::Dependencies::Awaited)).
    pub(super) fn divide(
        &self,
        mut changed: Images,
        freed: &[BlockRun],
        alone: bool,
    ) -> Result<(BTreeMap<usize, Share>, BTreeSet<usize>), JournalError> {
        let mut lent = BTreeSet::new();
        loop {
            let (shares, gathering, short) = {
                let shared = self.lock();
                let shares = shared.shares(&self.geometry, changed, freed);
                let gathering = shared.gathering(&shares);
                let short = shares.iter().find(|(lane, share)| {
                    alone && **lane > 0 && shared.lanes[**lane].is_too_short_for(share)
                });
                let short = short.map(|(lane, _)| *lane);
                (shares, gathering, short)
            };
            match (gathering, short) {
                (Some(gathering), _) if gathering.others.is_empty() => {
                    return Ok((gathering.whole(shares), lent));
                }
                (None, None) => return Ok((shares, lent)),
                (gathering, short) => {
                    changed = shares.into_values().flat_map(|share| share.images).collect();
                    if let Some(gathering) = gathering {
                        self.await_logs(&gathering.others)?;
                    } else if let Some(lane) = short {
                        self.lend(lane)?;
                        lent.insert(lane);
                    }
                }
            }
        }
    }

    /// Empties a log, and lets inode 8 have its lots until they move back.
    fn lend(&self, lane: usize) -> Result<(), JournalError> {
        self.empty_log(lane)?;
        let mut shared = self.lock();
        let inode = shared.lanes[lane].inode;
        shared.lots.lend(lane, inode);
        shared.loans += 1;
        Ok(())
    }

    /// How often a change was longer than the log of its cube allows, so that inode 8 logged it.
    pub fn loans(&self) -> u64 {
        self.lock().loans
    }
}
