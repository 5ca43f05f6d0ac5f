//! Waiting, the other scheme for changes of several journals of the root cube (the paper ScaleFS, 5.4). By default a change of lots of
//! several journals is a transaction in each, and their commit blocks list each other. Here one journal logs all of it, also the
//! blocks of lots of others, and no commit block lists anything: each state that a crash leaves is closed by itself, and
//! whoever replays the logs may do that one after the other, in any order.
//!
//! The paper lets a transaction wait until those that changed the same blocks before it, in other journals, are durable, and tells later
//! copies from earlier ones by their time stamps. Here it waits until the other log has no copy of these blocks any more: durable,
//! home, and behind its tail. So at any time one log alone has copies of a block, as rule R1 wants it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use floe_blockdev::WriteBlocks;
use floe_format::{BlockNr, BlockRun};

use super::Journal;
use super::error::JournalError;
use super::shared::{Share, Shared};

/// How changes of lots of several journals of the root cube are there as a whole after a crash, or not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dependencies {
    /// Their transactions list each other, and recovery keeps the stable set.
    #[default]
    Listed,
    /// One journal has all of a change, which waits until the other logs have no copies of its blocks.
    Awaited,
}

/// Blocks that another log has copies of than that of their lot.
#[derive(Debug, Default)]
pub(super) struct Strays {
    dependencies: Dependencies,
    logs: BTreeMap<BlockNr, usize>,
    /// Changes that waited.
    waits: u64,
}

impl Strays {
    pub(super) const fn are_awaited(&self) -> bool {
        matches!(self.dependencies, Dependencies::Awaited)
    }

    /// The log of a block, where it is not that of its lot.
    pub(super) fn log_of(&self, block: BlockNr) -> Option<usize> {
        if self.logs.is_empty() { None } else { self.logs.get(&block).copied() }
    }

    /// Notes which log has the newest copy of a block.
    pub(super) fn note(&mut self, block: BlockNr, lane: usize, own: usize) {
        if lane != own {
            self.logs.insert(block, lane);
        } else if !self.logs.is_empty() {
            self.logs.remove(&block);
        }
    }

    /// Where a run that begins at a block ends at the latest, if one log has all of it as far as strays are concerned.
    pub(super) fn end_of(&self, at: BlockNr, end: BlockNr) -> BlockNr {
        match self.logs.range(at..end).next() {
            Some((stray, _)) if *stray == at => BlockNr(at.0 + 1),
            Some((stray, _)) => *stray,
            None => end,
        }
    }

    /// Forgets those of a log of which it has no copy.
    pub(super) fn retain(&mut self, lane: usize, has_copy: impl Fn(BlockRun) -> bool) {
        self.logs.retain(|block, log| *log != lane || has_copy(BlockRun::new(*block, 1)));
    }

    /// The logs of strays among some blocks.
    pub(super) fn logs_of(&self, is_one: impl Fn(BlockNr) -> bool) -> BTreeSet<usize> {
        self.logs.iter().filter(|(block, _)| is_one(**block)).map(|(_, log)| *log).collect()
    }

    /// Forgets those among some blocks, of which no log has copies.
    pub(super) fn forget(&mut self, is_one: impl Fn(BlockNr) -> bool) {
        self.logs.retain(|block, _| !is_one(*block));
    }
}

/// The one log that is to have a change, and those that have copies of its blocks.
pub(super) struct Gathering {
    lane: usize,
    pub(super) others: BTreeSet<usize>,
}

impl Gathering {
    /// All of a change, as the part of one log.
    pub(super) fn whole(self, shares: BTreeMap<usize, Share>) -> BTreeMap<usize, Share> {
        let mut whole = Share::default();
        for share in shares.into_values() {
            whole.images.extend(share.images);
            whole.freed.extend(share.freed);
        }
        BTreeMap::from([(self.lane, whole)])
    }
}

impl Shared {
    /// The log that is to have all of a change, where changes wait: the first one that has copies of its blocks, so that such blocks
    /// gather in one log instead of going to and fro; without any, that of most of them. `None`: each has its part. So it is
    /// with the journals of cubes, which log all of their lots and nothing else.
    pub(super) fn gathering(&self, shares: &BTreeMap<usize, Share>) -> Option<Gathering> {
        let of_root = |lane: &usize| self.lanes[*lane].cube == 0;
        if !self.lots.strays.are_awaited() || shares.len() < 2 || !shares.keys().all(of_root) {
            return None;
        }
        let has_copies = |(lane, share): &(&usize, &Share)| {
            let state = &self.lanes[**lane].state;
            let changed = share.images.keys().map(|block| BlockRun::new(*block, 1));
            changed.chain(share.freed.iter().copied()).any(|run| state.has_copy(run))
        };
        let mut others: BTreeSet<usize> =
            shares.iter().filter(has_copies).map(|(lane, _)| *lane).collect();
        let most = shares.iter().max_by_key(|(lane, share)| (share.images.len(), Reverse(**lane)));
        let wanted = others.first().copied().or(most.map(|(lane, _)| *lane))?;
        let images: usize = shares.values().map(|share| share.images.len()).sum();
        let revokes =
            shares.iter().map(|(lane, share)| self.lanes[*lane].state.revokes(&share.freed)).sum();
        let fits = |lane: &usize| {
            let log = &self.lanes[*lane].log;
            log.cost(images as u64, revokes) <= u64::from(log.limit())
        };
        let lane = [wanted].into_iter().chain(self.lanes_of_root()).find(fits).unwrap_or(wanted);
        others.remove(&lane);
        Some(Gathering { lane, others })
    }
}

impl<D: WriteBlocks> Journal<D> {
    /// Sets how changes of several journals of the root cube are whole, from the next one on. Recovery takes both.
    pub fn set_dependencies(&self, dependencies: Dependencies) {
        self.lock().lots.strays.dependencies = dependencies;
    }

    /// Changes that waited until other logs had no copies of their blocks ([`Dependencies::Awaited`]).
    pub fn waits(&self) -> u64 {
        self.lock().lots.strays.waits
    }

    /// Waits until these logs have no copies of blocks that a change is about to change. The caller's handle owns the blocks, so
    /// that none comes back.
    pub(super) fn await_logs(&self, lanes: &BTreeSet<usize>) -> Result<(), JournalError> {
        self.lock().lots.strays.waits += 1;
        lanes.iter().try_for_each(|lane| self.empty_log(*lane))
    }

    /// Empties a log: all of it durable, home, and behind its tail.
    pub(super) fn empty_log(&self, lane: usize) -> Result<(), JournalError> {
        let last = self.lock().lanes[lane].state.last();
        self.commit(last)?;
        self.checkpoint_lane(lane, true)
    }
}
