//! Blocks and inodes that were freed by transactions that are not durable yet: after a crash their old owners still have them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use floe_format::{BlockNr, BlockRun, Geometry, GroupNr, InodeNr};

/// A span of freeings that become durable together; later ones are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(u64);

/// Freed, but not to be handed out.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// First blocks and ends of runs, each within one group.
    blocks: BTreeMap<u64, u64>,
    inodes: BTreeSet<InodeNr>,
    /// The same, in the order in which they were freed.
    blocks_in_order: VecDeque<(Epoch, u64)>,
    inodes_in_order: VecDeque<(Epoch, InodeNr)>,
    now: Epoch,
    /// A group with a bitmap by which something that was released had been free before.
    contradicted: Option<GroupNr>,
}

/// How much was held.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldMark {
    blocks: usize,
    inodes: usize,
}

impl Held {
    pub(super) fn contradict(&mut self, group: Option<GroupNr>) {
        self.contradicted = self.contradicted.or(group);
    }

    pub(super) const fn contradicted(&self) -> Option<GroupNr> {
        self.contradicted
    }

    pub(super) const fn end_epoch(&mut self) -> Epoch {
        let ended = self.now;
        self.now.0 += 1;
        ended
    }

    pub(super) fn durable(&mut self, epoch: Epoch) {
        let blocks = self.blocks_in_order.partition_point(|(held, _)| *held <= epoch);
        for (_, start) in self.blocks_in_order.drain(..blocks) {
            self.blocks.remove(&start);
        }
        let inodes = self.inodes_in_order.partition_point(|(held, _)| *held <= epoch);
        for (_, inode) in self.inodes_in_order.drain(..inodes) {
            self.inodes.remove(&inode);
        }
    }

    /// The runs of blocks that were freed up to the end of an epoch, in the order in which they were.
    pub(super) fn blocks_until(&self, epoch: Epoch) -> impl Iterator<Item = Range<u64>> {
        let until = self.blocks_in_order.iter().take_while(move |(held, _)| *held <= epoch);
        until.filter_map(|(_, start)| Some(*start..*self.blocks.get(start)?))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.inodes.is_empty()
    }

    pub(super) fn mark(&self) -> HeldMark {
        HeldMark { blocks: self.blocks_in_order.len(), inodes: self.inodes_in_order.len() }
    }

    pub(super) fn roll_back(&mut self, mark: HeldMark) {
        for (_, start) in self.blocks_in_order.drain(mark.blocks.min(self.blocks_in_order.len())..)
        {
            self.blocks.remove(&start);
        }
        for (_, inode) in self.inodes_in_order.drain(mark.inodes.min(self.inodes_in_order.len())..)
        {
            self.inodes.remove(&inode);
        }
    }

    /// Holds a run that was in use until now, and so is not held yet; whole clusters of it, and each group's part by itself.
    pub(super) fn hold_blocks(&mut self, geo: &Geometry, run: BlockRun) {
        if run.len_blocks == 0 || !geo.contains(run.start) {
            return;
        }
        let first = geo.first_data_block.0;
        let start = first + (geo.cluster_of(run.start) << geo.cluster_bits);
        let last = geo.cluster_of(BlockNr(run.end().0 - 1)) + 1;
        let end = (first + (last << geo.cluster_bits)).min(geo.blocks_count);
        let mut at = start;
        while at < end {
            let Some(group) = geo.group_of(BlockNr(at)) else { return };
            let stop = geo.blocks_of(group).end().0.min(end);
            self.blocks.insert(at, stop);
            self.blocks_in_order.push_back((self.now, at));
            at = stop;
        }
    }

    pub(super) fn hold_inode(&mut self, inode: InodeNr) {
        self.inodes.insert(inode);
        self.inodes_in_order.push_back((self.now, inode));
    }

    pub(super) fn holds_inode(&self, inode: InodeNr) -> bool {
        self.inodes.contains(&inode)
    }

    /// The runs that begin inside a range of blocks, which is that of a group.
    pub(super) fn blocks_in(&self, blocks: Range<BlockNr>) -> impl Iterator<Item = BlockRun> + '_ {
        self.blocks
            .range(blocks.start.0..blocks.end.0)
            .map(|(&start, &end)| BlockRun::new(BlockNr(start), end - start))
    }
}
