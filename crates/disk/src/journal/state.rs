//! The transactions of one log in memory, from the running one to those that are not home yet.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use floe_format::{BlockNr, BlockRun};
use floe_sync::Arc;

use super::error::JournalError;
use super::in_log::InLog;
use super::log::Log;

/// Bits of a [`TransactionId`] that count transactions; those above name the log.
const NUMBER_BITS: u32 = 48;

/// A transaction of a log, counted from the first one on. Its low 32 bits are the number that the log has; the upper 16 bits
/// name the log (0: that of inode 8), so only numbers of the same log can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId(pub u64);

impl TransactionId {
    /// The transaction of a log that has this number in it.
    pub(super) const fn of(lane: usize, sequence: u32) -> Self {
        Self((lane as u64) << NUMBER_BITS | sequence as u64)
    }

    /// The log that it belongs to.
    pub(super) const fn lane(self) -> usize {
        (self.0 >> NUMBER_BITS) as usize
    }

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
    /// Logs whose running transactions share a change with this one.
    pub(super) partners: BTreeSet<usize>,
    /// The superblock changed, which is not logged here but must be on the disk with it.
    pub(super) superblock: bool,
}

impl Running {
    pub(super) const fn new(id: TransactionId) -> Self {
        Self {
            id,
            images: BTreeMap::new(),
            revoked: BTreeSet::new(),
            partners: BTreeSet::new(),
            superblock: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.images.is_empty() && self.revoked.is_empty() && !self.superblock
    }
}

/// A transaction that has its place in the log and changes no more.
#[derive(Debug)]
pub(super) struct Closed {
    pub(super) id: TransactionId,
    pub(super) images: Images,
    pub(super) revoked: Vec<u64>,
    /// Logs with a transaction that was closed together with it, on which it depends.
    pub(super) partners: BTreeSet<usize>,
    /// Its first block in the log.
    pub(super) start: u32,
    /// Blocks of the log, the commit block included.
    pub(super) len_blocks: u32,
}

/// All that is known of one log. The lock of the journal guards it, which is never held while the device works.
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
    /// The last one that a flush has covered, `durable` as soon as no image is on its way home.
    covered: TransactionId,
    /// The newest durable image of each block that is not home yet.
    pub(super) home_due: Images,
    /// The transactions between the tail of the log and its head.
    pub(super) in_log: InLog,
    /// The last transaction that somebody waits for.
    pub(super) wanted: TransactionId,
    /// A thread writes the log or home blocks: one at a time.
    pub(super) working: bool,
    /// It waits for a flush.
    pub(super) at_flush: bool,
    /// Images are being written home: what they replace must not become free meanwhile (rule R7).
    homing: bool,
}

/// A part of a log that is to be given up.
#[derive(Debug)]
pub(super) struct Homeward {
    /// Images to be written home.
    pub(super) images: Images,
    /// Transactions that the tail passes then.
    count: usize,
    /// Where the log begins then: block and transaction.
    pub(super) tail: (u32, TransactionId),
}

impl State {
    /// Nothing has happened; `last` is the last transaction that is over.
    pub(super) const fn new(last: TransactionId, head: u32) -> Self {
        Self {
            failed: None,
            running: Running::new(last.next()),
            closed: VecDeque::new(),
            committed: last,
            durable: last,
            covered: last,
            home_due: BTreeMap::new(),
            in_log: InLog::new(head),
            wanted: last,
            working: false,
            at_flush: false,
            homing: false,
        }
    }

    /// `Err` once the journal was given up.
    pub(super) fn judge(&self) -> Result<(), JournalError> {
        match &self.failed {
            Some(why) => Err(JournalError::Aborted { why: why.clone() }),
            None => Ok(()),
        }
    }

    /// Whether the superblock changed in the transaction that is to be closed.
    pub(super) fn is_superblock_wanted(&self) -> bool {
        self.running.superblock && self.running.id <= self.wanted
    }

    /// Whether somebody waits for the running transaction, and it holds anything.
    pub(super) fn is_running_wanted(&self) -> bool {
        !self.running.is_empty() && self.running.id <= self.wanted
    }

    /// The last transaction that holds anything.
    pub(super) fn last(&self) -> TransactionId {
        if self.running.is_empty() { TransactionId(self.running.id.0 - 1) } else { self.running.id }
    }

    /// Blocks of the log that the running transaction may take, all in all.
    pub(super) fn room_blocks(&self, log: &Log) -> u64 {
        // One block stays free, so that a full log differs from an empty one.
        u64::from(log.ring.len_blocks() - 1).saturating_sub(self.in_log.used_blocks)
    }

    /// The newest image of a block that is not home.
    pub(super) fn newest(&self, block: BlockNr) -> Option<&Image> {
        let running = self.running.images.get(&block);
        let closed = || self.closed.iter().rev().find_map(|closed| closed.images.get(&block));
        running.or_else(closed).or_else(|| self.home_due.get(&block))
    }

    /// Adds the newest images of all blocks of a range that are not home.
    pub(super) fn newest_of(&self, blocks: &Range<BlockNr>, newest: &mut Images) {
        let due = self.home_due.range(blocks.clone());
        newest.extend(due.map(|(&at, image)| (at, Arc::clone(image))));
        for images in self.closed.iter().map(|closed| &closed.images).chain([&self.running.images])
        {
            let own = images.range(blocks.clone());
            newest.extend(own.map(|(&at, image)| (at, Arc::clone(image))));
        }
    }

    /// Blocks of a run of which the log may hold a copy that recovery would write home.
    fn logged_of(&self, run: BlockRun) -> BTreeSet<BlockNr> {
        let blocks = run.start..run.end();
        let closed = self.closed.iter().flat_map(|closed| closed.images.range(blocks.clone()));
        let mut logged: BTreeSet<BlockNr> = closed.map(|(&block, _)| block).collect();
        // Those that are home, too, as long as recovery would read an older copy.
        logged.extend(self.in_log.copies_of(blocks));
        logged
    }

    /// Whether the log has a copy of a block of this run, or is to get one.
    pub(super) fn has_copy(&self, run: BlockRun) -> bool {
        let blocks = run.start..run.end();
        let closed = self.closed.iter().map(|closed| &closed.images);
        let in_memory = |images: &Images| images.range(blocks.clone()).next().is_some();
        closed.chain([&self.running.images]).any(in_memory)
            || self.in_log.copies_of(blocks.clone()).next().is_some()
    }

    /// The running transaction as it would be with these changes, in blocks of images and of revokes.
    pub(super) fn joined_len<'i>(
        &self,
        changed: impl Iterator<Item = &'i BlockNr>,
        freed: &[BlockRun],
    ) -> (u64, u64) {
        let new = changed.filter(|block| !self.running.images.contains_key(block)).count();
        let (images, revoked) = (self.running.images.len() + new, self.running.revoked.len());
        (images as u64, revoked as u64 + self.revokes(freed))
    }

    /// Blocks of these runs that are revoked when they are freed.
    pub(super) fn revokes(&self, freed: &[BlockRun]) -> u64 {
        freed.iter().map(|&run| self.logged_of(run).len() as u64).sum()
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
        if !self.is_running_wanted() {
            return None;
        }
        let next = Running::new(self.running.id.next());
        let Running { id, images, revoked, partners, .. } =
            std::mem::replace(&mut self.running, next);
        let cost = log.cost(images.len() as u64, revoked.len() as u64);
        // At most a quarter of the log, whose blocks have numbers of 32 bits.
        let len_blocks = u32::try_from(cost).unwrap_or(u32::MAX);
        let revoked = revoked.into_iter().map(|block| block.0).collect();
        let start = self.in_log.take(log.ring, len_blocks);
        let closed = Arc::new(Closed { id, images, revoked, partners, start, len_blocks });
        self.closed.push_back(Arc::clone(&closed));
        Some(closed)
    }

    /// A flush that began after the commit block of `committed` was written has succeeded (rule R3).
    pub(super) fn flushed(&mut self, committed: TransactionId) {
        self.covered = self.covered.max(committed);
        if self.homing {
            return;
        }
        while self.closed.front().is_some_and(|closed| closed.id <= self.covered) {
            let Some(closed) = self.closed.pop_front() else { break };
            for (&block, image) in &closed.images {
                self.home_due.insert(block, Arc::clone(image));
            }
            for &block in &closed.revoked {
                // From here on the block may be used for anything (rule R7).
                self.home_due.remove(&BlockNr(block));
            }
            self.durable = closed.id;
            self.in_log.add(&closed);
        }
    }

    /// Begins to give up the oldest part of the log: all of it, or as many transactions as have `least_blocks` (rules R5 and
    /// R6: their newest durable images, which may be those of later ones, go home first).
    pub(super) fn begin_homeward(&mut self, least_blocks: Option<u64>) -> Homeward {
        let count = self.in_log.oldest(least_blocks);
        let mut images = Images::new();
        for block in self.in_log.blocks_of(count) {
            if let Some(image) = self.home_due.get(block) {
                images.insert(*block, Arc::clone(image));
            }
        }
        let tail = self.in_log.tail_behind(count).unwrap_or_else(|| match self.closed.front() {
            Some(closed) => (closed.start, closed.id),
            None => (self.in_log.head, self.running.id),
        });
        self.homing = true;
        Homeward { images, count, tail }
    }

    /// The images are written: what waited for them becomes durable.
    pub(super) fn end_homing(&mut self) {
        self.homing = false;
        self.flushed(self.covered);
    }

    /// The tail is behind a part of the log, and the superblock of the journal says so.
    pub(super) fn went_home(&mut self, homeward: &Homeward) {
        for (block, image) in &homeward.images {
            // A later durable image is still to go.
            if self.home_due.get(block).is_some_and(|due| Arc::ptr_eq(due, image)) {
                self.home_due.remove(block);
            }
        }
        self.in_log.give_up(homeward.count);
    }
}
