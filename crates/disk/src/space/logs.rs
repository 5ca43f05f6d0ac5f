//! Further journals of the root cube (`docs/journal.md`): which lots they log, and so how much a change may take of them and where
//! it seeks free space, so that it concerns few.

use std::collections::BTreeMap;

use floe_ext4::tx::{Refusal, Tx};
use floe_format::native::lot::LotRecord;
use floe_format::{BlockNr, GroupNr, InodeNr};

use super::Pool;

/// Part of a journal that an operation may change.
pub(super) const SHARE_OF_JOURNAL: usize = 5;

/// Lots of the root cube that inode 8 does not log: inode and blocks of the journal that does. Lots that are a cube's by now
/// may be among them.
#[derive(Debug, Default)]
pub(super) struct Logs(BTreeMap<u32, (InodeNr, u32)>);

impl Logs {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Inode of the journal of a lot of the root cube, and its blocks; 0 and no limit for inode 8's.
    pub(super) fn of(&self, lot: Option<u32>) -> (InodeNr, u32) {
        let known = lot.and_then(|lot| self.0.get(&lot));
        known.copied().unwrap_or((InodeNr(0), u32::MAX))
    }

    /// Lots, of which the first one is where a search begins, with those of the same journal before the others.
    pub(super) fn in_order<I>(&self, lots: I) -> impl Iterator<Item = u32> + use<I>
    where
        I: Iterator<Item = u32> + Clone,
    {
        let own = self.of(lots.clone().next()).0;
        let (near, far): (Vec<u32>, Vec<u32>) = match self.0.is_empty() {
            true => (Vec::new(), Vec::new()),
            false => lots.clone().partition(|lot| self.of(Some(*lot)).0 == own),
        };
        let plain = self.0.is_empty().then_some(lots);
        near.into_iter().chain(far).chain(plain.into_iter().flatten())
    }

    /// Blocks that a change may take of the shortest one.
    pub(super) fn least_share(&self) -> usize {
        let shares = self.0.values().map(|(_, blocks)| *blocks as usize / SHARE_OF_JOURNAL);
        shares.min().unwrap_or(usize::MAX)
    }
}

impl Pool {
    /// Tells the pool which lots a further journal of the root cube logs.
    pub(crate) fn note_logs(&mut self, lots: &[u32], inode: InodeNr, blocks: u32) {
        self.regions.logs.0.extend(lots.iter().map(|lot| (*lot, (inode, blocks))));
    }

    /// All groups in the order of a search: those behind `home`, then those before it; in a native file system those of
    /// its lot first, then those that the same journal logs. Those of another cube are the caller's to pass over. Most searches
    /// end with the first one.
    pub(super) fn search_order(
        &self,
        home: GroupNr,
        count: u32,
    ) -> impl Iterator<Item = GroupNr> + use<> {
        let lot = self.regions.groups_of(home, count);
        let outside = lot.clone();
        let own = (home.0..lot.end).chain(lot.start..home.0);
        let others = (home.0..count).chain(0..home.0).filter(move |at| !outside.contains(at));
        let log_of = |group: u32| self.regions.logs.of(self.regions.lot_of(GroupNr(group))).0;
        let is_plain = self.regions.logs.is_empty();
        let is_near = |group: &u32| log_of(*group) == log_of(home.0);
        let (near, far): (Vec<u32>, Vec<u32>) = match is_plain {
            true => (Vec::new(), Vec::new()),
            false => others.clone().partition(is_near),
        };
        let plain = is_plain.then_some(others).into_iter().flatten();
        own.chain(near).chain(far).chain(plain).map(GroupNr)
    }

    /// Lets a further journal of the root cube log a lot that is the root cube's. Its records and their backups are written anew
    /// when the file system is sealed.
    pub(crate) fn give_to_journal(
        &mut self,
        tx: &mut dyn Tx,
        lot: u32,
        (journal, blocks): (InodeNr, u32),
        orphan_block: BlockNr,
    ) -> Result<(), Refusal> {
        self.open_for_record(tx, lot)?;
        let count = self.groups.geometry().group_count;
        for group in self.regions.groups_of(self.first_group(lot), count).map(GroupNr) {
            self.groups.edit_private(tx, group, |raw| {
                if let Some(record) = LotRecord::of(raw) {
                    let (journal_inode, orphan_block) = (journal.0, orphan_block.0);
                    LotRecord { journal_inode, orphan_block, ..record }.put(raw);
                }
            })?;
        }
        self.note_logs(&[lot], journal, blocks);
        Ok(())
    }

    /// Whether changes of these blocks fit into the journals of the cubes that they belong to, with as much room again if
    /// `twice`.
    pub(crate) fn fits_journals(&self, blocks: impl Iterator<Item = BlockNr>, twice: bool) -> bool {
        if !self.has_journals() && self.regions.logs.is_empty() {
            return true;
        }
        let mut counts: BTreeMap<(u32, u32), (usize, usize)> = BTreeMap::new();
        for group in blocks.filter_map(|block| self.groups.geometry().group_of(block)) {
            let cube = self.cube_of_group(group);
            let log = self.regions.logs.of(self.regions.lot_of(group).filter(|_| cube == 0));
            let most = match log {
                (InodeNr(0), _) => self.share_of_journal(cube),
                (_, blocks) => blocks as usize / SHARE_OF_JOURNAL,
            };
            let count = counts.entry((cube, log.0.0)).or_insert((0, most));
            count.0 += 1;
        }
        counts.into_values().all(|(count, most)| count <= if twice { most / 2 } else { most })
    }

    /// Lets the seal write the records of a lot anew.
    pub(super) fn open_for_record(&mut self, tx: &mut dyn Tx, lot: u32) -> Result<(), Refusal> {
        match self.region(tx, self.first_group(lot))? {
            Some((_, region)) => drop(self.open_lot(tx, lot, region)?),
            None => self.open_without_region(lot),
        }
        Ok(())
    }
}
