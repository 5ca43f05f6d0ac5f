//! The transactions of a journal in memory, from the running one to those that are not home yet.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use floe_format::{BlockNr, BlockRun};
use floe_sync::Arc;

use super::error::JournalError;
use super::log::Log;

/// A transaction, counted from the first one of a journal on. Its low 32 bits are the number that the log has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId(pub u64);

impl TransactionId {
    /// The number in the log.
    pub(super) const fn sequence(self) -> u32 {
        (self.0 & 0xffff_ffff) as u32
    }

    pub(super) const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A block as one transaction leaves it. Never changed: a later transaction has an image of its own (rule R5).
pub(super) type Image = Arc<Vec<u8>>;

/// The images of a transaction.
pub(super) type Images = BTreeMap<BlockNr, Image>;

/// A transaction that gathers changes.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) id: TransactionId,
    pub(super) images: Images,
    /// Freed blocks of which the log may have an older copy.
    pub(super) revoked: BTreeSet<BlockNr>,
}

impl Running {
    pub(super) const fn new(id: TransactionId) -> Self {
        Self { id, images: BTreeMap::new(), revoked: BTreeSet::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.images.is_empty() && self.revoked.is_empty()
    }
}

/// A transaction that has its place in the log and changes no more.
#[derive(Debug)]
pub(super) struct Closed {
    pub(super) id: TransactionId,
    pub(super) images: Images,
    pub(super) revoked: Vec<u64>,
    /// Its first block in the log.
    pub(super) start: u32,
    /// Blocks of the log, the commit block included.
    pub(super) len_blocks: u32,
}

/// All that the journal knows; one lock guards it, which is never held while the device works.
#[derive(Debug)]
pub(super) struct State {
    /// The first error. From then on nothing is written (rule R10).
    pub(super) failed: Option<String>,
    pub(super) running: Running,
    /// Closed and not yet durable, oldest first.
    pub(super) closed: VecDeque<Arc<Closed>>,
    /// The last one whose commit block was written; durable with the next flush.
    pub(super) committed: TransactionId,
    /// The last durable one.
    pub(super) durable: TransactionId,
    /// The newest durable image of each block that is not home yet.
    pub(super) home_due: Images,
    /// The last transaction that somebody waits for.
    pub(super) wanted: TransactionId,
    /// Block of the log at which the next transaction begins.
    pub(super) head: u32,
    /// Blocks of the log behind its tail: space that may not be written.
    pub(super) used_blocks: u64,
    /// Whether the superblock of the journal says that the log is empty.
    pub(super) marked_empty: bool,
    /// A thread writes the log or home blocks: one at a time.
    pub(super) working: bool,
    /// Checkpoints that were begun.
    pub(super) checkpoints: u64,
    /// Writes of data that a flush has covered.
    pub(super) data_durable: u64,
    /// Time of the last commit: seconds since 1970 and nanoseconds.
    pub(super) commit_time: (u64, u32),
}

impl State {
    /// Nothing has happened; `last` is the last transaction that is over.
    pub(super) const fn new(last: TransactionId, head: u32, commit_time: (u64, u32)) -> Self {
        Self {
            failed: None,
            running: Running::new(last.next()),
            closed: VecDeque::new(),
            committed: last,
            durable: last,
            home_due: BTreeMap::new(),
            wanted: last,
            head,
            used_blocks: 0,
            marked_empty: true,
            working: false,
            checkpoints: 0,
            data_durable: 0,
            commit_time,
        }
    }

    /// `Err` once the journal was given up.
    pub(super) fn judge(&self) -> Result<(), JournalError> {
        match &self.failed {
            Some(why) => Err(JournalError::Aborted { why: why.clone() }),
            None => Ok(()),
        }
    }

    /// The last transaction that holds anything.
    pub(super) fn last(&self) -> TransactionId {
        if self.running.is_empty() { TransactionId(self.running.id.0 - 1) } else { self.running.id }
    }

    /// Blocks of the log that the running transaction may take, all in all.
    pub(super) fn room_blocks(&self, log: &Log) -> u64 {
        // One block stays free, so that a full log differs from an empty one.
        u64::from(log.ring.len_blocks() - 1).saturating_sub(self.used_blocks)
    }

    /// The newest image of a block that is not home.
    pub(super) fn newest(&self, block: BlockNr) -> Option<&Image> {
        let running = self.running.images.get(&block);
        let closed = || self.closed.iter().rev().find_map(|closed| closed.images.get(&block));
        running.or_else(closed).or_else(|| self.home_due.get(&block))
    }

    /// The newest images of all blocks of a range that are not home.
    pub(super) fn newest_of(&self, blocks: Range<BlockNr>) -> Images {
        let mut newest: Images =
            self.home_due.range(blocks.clone()).map(|(&at, image)| (at, image.clone())).collect();
        for images in self.closed.iter().map(|closed| &closed.images).chain([&self.running.images])
        {
            newest.extend(images.range(blocks.clone()).map(|(&at, image)| (at, image.clone())));
        }
        newest
    }

    /// Blocks of a run of which the log may hold a copy that recovery would write home.
    fn logged_of(&self, run: BlockRun) -> BTreeSet<BlockNr> {
        let blocks = run.start..run.end();
        let closed = self.closed.iter().flat_map(|closed| closed.images.range(blocks.clone()));
        closed.chain(self.home_due.range(blocks.clone())).map(|(&block, _)| block).collect()
    }

    /// The running transaction as it would be with these changes, in blocks of images and of revokes.
    pub(super) fn joined_len(&self, changed: &Images, freed: &[BlockRun]) -> (u64, u64) {
        let new = changed.keys().filter(|block| !self.running.images.contains_key(block)).count();
        let revokes: usize = freed.iter().map(|&run| self.logged_of(run).len()).sum();
        let (images, revoked) = (self.running.images.len() + new, self.running.revoked.len());
        (images as u64, (revoked + revokes) as u64)
    }

    /// Adds changes to the running transaction. `freed` was freed before the blocks in `changed` were written last.
    pub(super) fn join(&mut self, changed: Images, freed: &[BlockRun]) {
        for &run in freed {
            let logged = self.logged_of(run);
            self.running.revoked.extend(logged);
            let gone: Vec<BlockNr> =
                self.running.images.range(run.start..run.end()).map(|(&block, _)| block).collect();
            for block in gone {
                self.running.images.remove(&block);
            }
        }
        for (block, image) in changed {
            // In use again: the revoke would kill this image, too.
            self.running.revoked.remove(&block);
            self.running.images.insert(block, image);
        }
    }

    /// Closes the running transaction if somebody waits for it: gives it a place in the log.
    pub(super) fn close_wanted(&mut self, log: &Log) -> Option<Arc<Closed>> {
        if self.running.is_empty() || self.running.id > self.wanted {
            return None;
        }
        let next = Running::new(self.running.id.next());
        let Running { id, images, revoked } = std::mem::replace(&mut self.running, next);
        let cost = log.cost(images.len() as u64, revoked.len() as u64);
        // At most a quarter of the log, whose blocks have numbers of 32 bits.
        let len_blocks = u32::try_from(cost).unwrap_or(u32::MAX);
        let revoked = revoked.into_iter().map(|block| block.0).collect();
        let closed = Arc::new(Closed { id, images, revoked, start: self.head, len_blocks });
        self.head = log.ring.advance(self.head, len_blocks);
        self.used_blocks += cost;
        self.closed.push_back(Arc::clone(&closed));
        Some(closed)
    }

    /// A flush that began after the commit block of `committed` was written has succeeded (rule R3).
    pub(super) fn flushed(&mut self, committed: TransactionId) {
        while self.closed.front().is_some_and(|closed| closed.id <= committed) {
            let Some(closed) = self.closed.pop_front() else { break };
            for (&block, image) in &closed.images {
                self.home_due.insert(block, Arc::clone(image));
            }
            for &block in &closed.revoked {
                // From here on the block may be used for anything (rule R7).
                self.home_due.remove(&BlockNr(block));
            }
            self.durable = closed.id;
        }
    }

    /// The tail once all that is durable is home: block and transaction that the log then begins with.
    pub(super) fn tail_behind_durable(&self) -> (u32, TransactionId) {
        match self.closed.front() {
            Some(closed) => (closed.start, closed.id),
            None => (self.head, self.running.id),
        }
    }

    /// All that is durable is home, and the superblock of the journal says so.
    pub(super) fn went_home(&mut self) {
        self.home_due.clear();
        self.used_blocks = self.closed.iter().map(|closed| u64::from(closed.len_blocks)).sum();
    }

    /// The time of a commit: the clock's, but always later than the last one, because Linux tells a stale commit block
    /// from a damaged one by its time (rule R9).
    pub(super) fn next_commit_time(&mut self, now: (u64, u32)) -> (u64, u32) {
        let (seconds, nanoseconds) = self.commit_time;
        let later = match nanoseconds.checked_add(1).filter(|&next| next < 1_000_000_000) {
            Some(next) => (seconds, next),
            None => (seconds.saturating_add(1), 0),
        };
        self.commit_time = now.max(later);
        self.commit_time
    }
}
