//! The contents of one log on the disk, from its tail to its head.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use floe_ext4::journal::Ring;
use floe_format::BlockNr;

use super::state::{Closed, TransactionId};

/// A durable transaction that the tail of the log has not passed.
#[derive(Debug)]
struct Durable {
    id: TransactionId,
    start: u32,
    len_blocks: u32,
    blocks: Vec<BlockNr>,
}

/// Durable transactions in a log, and the space that those behind its tail take.
#[derive(Debug)]
pub(super) struct InLog {
    /// Oldest first.
    durable: VecDeque<Durable>,
    /// How many of them have a copy of each block.
    copies: BTreeMap<BlockNr, u32>,
    /// Block of the log at which the next transaction begins.
    pub(super) head: u32,
    /// Blocks of the log behind its tail: space that may not be written. Those of closed transactions count, too.
    pub(super) used_blocks: u64,
    /// Whether the superblock of the journal says that the log is empty.
    pub(super) marked_empty: bool,
}

impl InLog {
    /// An empty log.
    pub(super) const fn new(head: u32) -> Self {
        Self {
            durable: VecDeque::new(),
            copies: BTreeMap::new(),
            head,
            used_blocks: 0,
            marked_empty: true,
        }
    }

    /// Whether no durable transaction is left in it.
    pub(super) fn is_empty(&self) -> bool {
        self.durable.is_empty()
    }

    /// Gives a transaction its place: the first of its blocks.
    pub(super) fn take(&mut self, ring: Ring, len_blocks: u32) -> u32 {
        let start = self.head;
        self.head = ring.advance(start, len_blocks);
        self.used_blocks += u64::from(len_blocks);
        start
    }

    /// A closed transaction became durable.
    pub(super) fn add(&mut self, closed: &Closed) {
        let blocks: Vec<BlockNr> = closed.images.keys().copied().collect();
        for &block in &blocks {
            *self.copies.entry(block).or_default() += 1;
        }
        let Closed { id, start, len_blocks, .. } = *closed;
        self.durable.push_back(Durable { id, start, len_blocks, blocks });
    }

    /// Blocks of a range that durable transactions have copies of.
    pub(super) fn copies_of(&self, blocks: Range<BlockNr>) -> impl Iterator<Item = BlockNr> + '_ {
        self.copies.range(blocks).map(|(&block, _)| block)
    }

    /// How many of the oldest transactions take at least so many blocks; all of them where no size is told.
    pub(super) fn oldest(&self, least_blocks: Option<u64>) -> usize {
        let (mut count, mut blocks) = (0, 0);
        for one in &self.durable {
            if least_blocks.is_some_and(|least| blocks >= least) {
                break;
            }
            (count, blocks) = (count + 1, blocks + u64::from(one.len_blocks));
        }
        count
    }

    /// The blocks of the oldest `count` transactions; one for each transaction that has a copy.
    pub(super) fn blocks_of(&self, count: usize) -> impl Iterator<Item = &BlockNr> {
        self.durable.iter().take(count).flat_map(|one| &one.blocks)
    }

    /// Where the log begins if the oldest `count` transactions are given up: block and transaction. `None` if no durable one
    /// is left then.
    pub(super) fn tail_behind(&self, count: usize) -> Option<(u32, TransactionId)> {
        self.durable.get(count).map(|next| (next.start, next.id))
    }

    /// The tail has passed the oldest `count` transactions.
    pub(super) fn give_up(&mut self, count: usize) {
        for one in self.durable.drain(..count.min(self.durable.len())) {
            self.used_blocks = self.used_blocks.saturating_sub(u64::from(one.len_blocks));
            for block in one.blocks {
                let copies = self.copies.entry(block).or_default();
                *copies = copies.saturating_sub(1);
                if *copies == 0 {
                    self.copies.remove(&block);
                }
            }
        }
    }
}
