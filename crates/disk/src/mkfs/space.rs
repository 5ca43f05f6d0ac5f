//! Tracks the used clusters of a new file system.

use std::collections::BTreeMap;
use std::ops::Range;

use floe_format::Geometry;
use floe_format::{BlockNr, BlockRun};

/// The used clusters, as runs: a new file system has few, whatever its size.
#[derive(Clone, Debug)]
pub(super) struct Space {
    /// Start and end of each run in use; runs neither overlap nor touch.
    runs: BTreeMap<u64, u64>,
    /// Clusters in use.
    used: u64,
    clusters: u64,
    first_block: u64,
    bits: u32,
}

impl Space {
    /// Without used blocks. Counts blocks, even with bigalloc, because bitmaps and tables are
    /// placed by block.
    pub(super) fn of_blocks(geometry: &Geometry) -> Self {
        Self {
            runs: BTreeMap::new(),
            used: 0,
            clusters: geometry.blocks_count - geometry.first_data_block.0,
            first_block: geometry.first_data_block.0,
            bits: 0,
        }
    }

    /// Converts to clusters: each cluster with a used block is used.
    pub(super) fn into_clusters(self, geometry: &Geometry) -> Self {
        let mut clusters = Self {
            runs: BTreeMap::new(),
            used: 0,
            clusters: geometry.clusters_count(),
            first_block: self.first_block,
            bits: geometry.cluster_bits,
        };
        for (start, end) in self.runs {
            clusters.take(BlockRun::new(BlockNr(start + self.first_block), end - start));
        }
        clusters
    }

    fn clusters_of(&self, run: BlockRun) -> Range<u64> {
        let start = run.start.0.saturating_sub(self.first_block) >> self.bits;
        let end = run.end().0.saturating_sub(self.first_block).div_ceil(1 << self.bits);
        start..end.min(self.clusters)
    }

    fn block_of(&self, cluster: u64) -> BlockNr {
        BlockNr((cluster << self.bits) + self.first_block)
    }

    /// Marks all clusters that a run of blocks touches.
    pub(super) fn take(&mut self, run: BlockRun) {
        let Range { mut start, mut end } = self.clusters_of(run);
        if start >= end {
            return;
        }
        if let Some((&before, &before_end)) = self.runs.range(..=start).next_back()
            && before_end >= start
        {
            (start, end) = (before, end.max(before_end));
        }
        // Remove the runs that the new one touches, and count them again in the union.
        while let Some((&next, &next_end)) = self.runs.range(start..).next()
            && next <= end
        {
            end = end.max(next_end);
            self.runs.remove(&next);
            self.used -= next_end - next;
        }
        self.runs.insert(start, end);
        self.used += end - start;
    }

    /// Marks all clusters of a run of blocks as free, which must be in use as a whole.
    pub(super) fn release(&mut self, run: BlockRun) {
        let Range { start, end } = self.clusters_of(run);
        let Some((&first, &last)) = self.runs.range(..=start).next_back() else { return };
        if start >= end || last < end {
            return;
        }
        self.runs.remove(&first);
        self.used -= end - start;
        if first < start {
            self.runs.insert(first, start);
        }
        if end < last {
            self.runs.insert(end, last);
        }
    }

    /// The first run of free clusters at or behind `goal`, at most `most` clusters.
    fn free_from(&self, goal: u64, most: u64) -> Option<Range<u64>> {
        let mut start = goal;
        if let Some((_, &end)) = self.runs.range(..=goal).next_back() {
            start = start.max(end);
        }
        let end = self.runs.range(start..).next().map_or(self.clusters, |(&next, _)| next);
        let end = end.min(self.clusters).min(start.saturating_add(most));
        (start < end).then_some(start..end)
    }

    /// Finds the first free run of `len_blocks` blocks (whole clusters) at or behind `from` and
    /// before `before`, without taking it.
    pub(super) fn find(&self, from: BlockNr, before: BlockNr, len_blocks: u64) -> Option<BlockNr> {
        let wanted = len_blocks.div_ceil(1 << self.bits);
        let mut goal = from.0.saturating_sub(self.first_block) >> self.bits;
        loop {
            let run = self.free_from(goal, wanted)?;
            if self.block_of(run.start) >= before {
                return None;
            }
            if run.end - run.start == wanted {
                return Some(self.block_of(run.start));
            }
            goal = run.end + 1;
        }
    }

    /// Allocates `len_blocks` blocks at or behind a goal, in the first free runs there; wraps
    /// around to the first block at the end. `None`, and nothing allocated, if there are too few.
    pub(super) fn allocate(&mut self, goal: BlockNr, len_blocks: u64) -> Option<Vec<BlockRun>> {
        let mut left = len_blocks;
        let mut found: Vec<BlockRun> = Vec::new();
        let start = goal.0.saturating_sub(self.first_block) >> self.bits;
        let (mut at, mut wrapped) = (start, start == 0);
        if self.clusters - self.used < len_blocks.div_ceil(1 << self.bits) {
            return None;
        }
        while left > 0 {
            let Some(run) = self.free_from(at, left.div_ceil(1 << self.bits)) else {
                if wrapped {
                    return None;
                }
                (at, wrapped) = (0, true);
                continue;
            };
            let blocks = ((run.end - run.start) << self.bits).min(left);
            let found_run = BlockRun::new(self.block_of(run.start), blocks);
            self.take(found_run);
            found.push(found_run);
            left -= blocks;
            at = run.end;
        }
        Some(found)
    }

    /// Clusters in use.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// The used runs within a range of clusters, clipped to it.
    pub(super) fn runs_in(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.runs.range(..=range.start).next_back().map_or(range.start, |(&at, _)| at);
        self.runs
            .range(first..range.end)
            .map(move |(&start, &end)| start.max(range.start)..end.min(range.end))
            .filter(|run| run.start < run.end)
    }
}
