//! Allocates free clusters and inodes from the evidence of an examination. The on-disk bitmaps are
//! consulted only where part of the device is unreadable.

use floe_check::Examination;
use floe_check::evidence::block_set::BlockSet;
use floe_format::ext::bitmap;
use floe_format::{BlockNr, BlockRun, Geometry, GroupNr, InodeNr};

/// Allocates clusters and inodes that no claim covers.
pub(crate) struct Allocator<'a> {
    evidence: &'a Examination<'a>,
    used: BlockSet,
    /// Clusters that are still free.
    left: u64,
    taken_inodes: Vec<InodeNr>,
}

impl<'a> Allocator<'a> {
    /// Takes every cluster that no claim of the examination covers as free.
    pub(crate) fn new(evidence: &'a Examination<'a>) -> Self {
        let used = evidence.claims.used().clone();
        let left = evidence.volume.geometry.clusters_count().saturating_sub(used.len());
        Self { evidence, used, left, taken_inodes: Vec::new() }
    }

    /// Clusters that can still be allocated.
    pub(crate) const fn left(&self) -> u64 {
        self.left
    }

    /// Makes every later allocation of blocks fail.
    pub(crate) const fn hand_out_no_more(&mut self) {
        self.left = 0;
    }

    /// Marks clusters as used.
    fn take(&mut self, first: u64, len: u64) {
        let mut taken = len;
        self.used.insert(first, len, |_, before| taken -= u64::from(before.count_ones()));
        self.left = self.left.saturating_sub(taken);
    }

    /// Marks as used every cluster that the block bitmap of a group marks.
    pub(crate) fn avoid_marked(&mut self, group: GroupNr, bitmap: &[u8]) {
        let geometry = &self.evidence.volume.geometry;
        let first = u64::from(group.0) * u64::from(geometry.clusters_per_group);
        for bit in 0..geometry.clusters_of(group) {
            if bitmap::test(bitmap, bit) {
                self.take(first + u64::from(bit), 1);
            }
        }
    }

    /// Marks the clusters of a run of blocks as used.
    pub(crate) fn withhold(&mut self, run: BlockRun) {
        let geometry = &self.evidence.volume.geometry;
        let last = BlockNr(run.end().0.saturating_sub(1));
        if run.len_blocks > 0 && geometry.contains(run.start) && geometry.contains(last) {
            let (first, last) = (geometry.cluster_of(run.start), geometry.cluster_of(last));
            self.take(first, last - first + 1);
        }
    }

    /// Marks all clusters of a group as used.
    pub(crate) fn avoid_group(&mut self, group: GroupNr) {
        let geometry = &self.evidence.volume.geometry;
        let first = u64::from(group.0) * u64::from(geometry.clusters_per_group);
        self.take(first, u64::from(geometry.clusters_of(group)));
    }

    /// Allocates a free cluster and returns its first block. Searches from `goal` to the end, then
    /// from the start; `None` if no cluster is free.
    pub(crate) fn block(&mut self, goal: BlockNr) -> Option<BlockNr> {
        if self.left == 0 {
            return None;
        }
        let geometry = &self.evidence.volume.geometry;
        let all = geometry.clusters_count();
        let start = if geometry.contains(goal) { geometry.cluster_of(goal) } else { 0 };
        let cluster = self.free_in(start, all).or_else(|| self.free_in(0, start))?;
        self.take(cluster, 1);
        Some(first_block(geometry, cluster))
    }

    /// Allocates a run of `len_blocks` free blocks inside `within`; `None` if there is none.
    pub(crate) fn run(&mut self, within: BlockRun, len_blocks: u64) -> Option<BlockNr> {
        let geometry = &self.evidence.volume.geometry;
        let clusters = len_blocks.div_ceil(u64::from(geometry.cluster_blocks));
        let start = within.start.max(geometry.first_data_block);
        let end = within.end().0.min(geometry.blocks_count);
        if start.0 >= end {
            return None;
        }
        let mut at = geometry.cluster_of(BlockNr(start.0 + u64::from(geometry.cluster_blocks) - 1));
        let last = geometry.cluster_of(BlockNr(end - 1)) + 1;
        while at + clusters <= last {
            match (at..at + clusters).rev().find(|&cluster| self.used.contains(cluster)) {
                Some(taken) => at = taken + 1,
                None => {
                    self.take(at, clusters);
                    return Some(first_block(geometry, at));
                }
            }
        }
        None
    }

    /// The first free cluster of `start..end`.
    fn free_in(&self, start: u64, end: u64) -> Option<u64> {
        let mut at = start;
        while at < end {
            let free = !self.used.word(at);
            if free != 0 {
                let cluster = at + u64::from(free.trailing_zeros());
                return (cluster < end).then_some(cluster);
            }
            at += 64;
        }
        None
    }

    /// Allocates a free inode, searching from the group of `near` onwards, one that it `may`.
    pub(crate) fn inode(
        &mut self,
        near: InodeNr,
        may: impl Fn(InodeNr) -> bool,
    ) -> Option<InodeNr> {
        let evidence = self.evidence;
        let geometry = &evidence.volume.geometry;
        let (home, _) = geometry.place_of(near)?;
        let groups = (home.0..geometry.group_count).chain(0..home.0).map(GroupNr);
        for group in groups {
            // A group without a valid inode table has no inodes to allocate.
            if !geometry.contains(evidence.volume.group(group).inode_table) {
                continue;
            }
            for index in 0..geometry.inodes_per_group {
                let inode = geometry.inode_at(group, index);
                let free = !geometry.is_reserved(inode)
                    && !evidence.facts.get(inode).is_used()
                    && !evidence.facts.get(inode).is_bad()
                    && !self.taken_inodes.contains(&inode)
                    && may(inode);
                if free {
                    self.taken_inodes.push(inode);
                    return Some(inode);
                }
            }
        }
        None
    }
}

/// The first block of a cluster.
fn first_block(geometry: &Geometry, cluster: u64) -> BlockNr {
    BlockNr(geometry.first_data_block.0 + (cluster << geometry.cluster_bits))
}
