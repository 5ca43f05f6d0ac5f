//! Allocates blocks and inodes.

use floe_format::ext::bitmap;
use floe_format::{BlockNr, BlockRun, GroupNr, InodeNr};

use crate::group::Groups;
use crate::tx::{Refusal, Tx};

/// Allocates clusters.
pub trait Allocate {
    /// Allocates a run of 1 to `len_blocks` blocks that starts at a cluster boundary, preferably at
    /// or behind `goal`, and marks it as used. A goal outside the file system is ignored. The
    /// length is rounded up to whole clusters; the run may be shorter than requested.
    ///
    /// # Errors
    /// [`Refusal::Full`], or an error of reading or changing bitmaps.
    fn run(&mut self, tx: &mut dyn Tx, goal: BlockNr, len_blocks: u64)
    -> Result<BlockRun, Refusal>;

    /// Marks the clusters of a run as free. The caller must know whether other blocks of the file
    /// still use them.
    ///
    /// # Errors
    /// [`Refusal::Outside`], or an error of reading or changing bitmaps.
    fn release(&mut self, tx: &mut dyn Tx, run: BlockRun) -> Result<(), Refusal>;

    /// Allocates one block, like [`Allocate::run`], for metadata: nodes of maps, blocks of directories, attributes.
    ///
    /// # Errors
    /// As [`Allocate::run`].
    fn block(&mut self, tx: &mut dyn Tx, goal: BlockNr) -> Result<BlockNr, Refusal> {
        Ok(self.run(tx, goal, 1)?.start)
    }

    /// Allocates one block for the first indirect block of a file, which is best near the data. By default as
    /// [`Allocate::block`].
    ///
    /// # Errors
    /// As [`Allocate::run`].
    fn first_indirect(&mut self, tx: &mut dyn Tx, goal: BlockNr) -> Result<BlockNr, Refusal> {
        self.block(tx, goal)
    }

    /// Refuses a block that a map names as a node of it, if it cannot be one.
    ///
    /// # Errors
    /// [`Refusal::Damaged`].
    fn judge_node(&self, _block: BlockNr) -> Result<(), Refusal> {
        Ok(())
    }

    /// Refuses blocks that the map of an inode names, if they cannot be its own.
    ///
    /// # Errors
    /// [`Refusal::Damaged`].
    fn judge_file(&self, _inode: InodeNr, _run: BlockRun) -> Result<(), Refusal> {
        Ok(())
    }
}

/// An allocator with access to its groups.
pub trait Space: Allocate {
    /// The groups, including changes.
    fn groups(&self) -> &Groups;

    /// The groups, for changes.
    fn groups_mut(&mut self) -> &mut Groups;
}

/// Counts the clusters that pass through an allocator, so that `i_blocks` of an inode can be
/// updated.
#[derive(Debug)]
pub struct Tally<'a, A: ?Sized> {
    space: &'a mut A,
    cluster_bits: u32,
    /// The inode whose map is changed.
    inode: Option<InodeNr>,
    /// Clusters allocated minus clusters released.
    pub clusters: i64,
}

impl<'a, A: Allocate + ?Sized> Tally<'a, A> {
    /// Counts from 0; `cluster_bits` is log2 of the blocks of a cluster.
    pub const fn new(space: &'a mut A, cluster_bits: u32) -> Self {
        Self { space, cluster_bits, inode: None, clusters: 0 }
    }

    /// The same, for the map of an inode: its nodes must be blocks that the inode may have.
    pub const fn of(space: &'a mut A, cluster_bits: u32, inode: InodeNr) -> Self {
        Self { space, cluster_bits, inode: Some(inode), clusters: 0 }
    }

    /// Clusters that a run touches; far below 2^63 inside a file system.
    fn clusters_of(&self, run: BlockRun) -> i64 {
        run.len_blocks.div_ceil(1 << self.cluster_bits).cast_signed()
    }
}

impl<A: Allocate + ?Sized> Allocate for Tally<'_, A> {
    fn run(
        &mut self,
        tx: &mut dyn Tx,
        goal: BlockNr,
        len_blocks: u64,
    ) -> Result<BlockRun, Refusal> {
        let run = self.space.run(tx, goal, len_blocks)?;
        self.clusters += self.clusters_of(run);
        Ok(run)
    }

    fn block(&mut self, tx: &mut dyn Tx, goal: BlockNr) -> Result<BlockNr, Refusal> {
        let block = self.space.block(tx, goal)?;
        self.clusters += 1;
        Ok(block)
    }

    fn first_indirect(&mut self, tx: &mut dyn Tx, goal: BlockNr) -> Result<BlockNr, Refusal> {
        let block = self.space.first_indirect(tx, goal)?;
        self.clusters += 1;
        Ok(block)
    }

    fn judge_node(&self, block: BlockNr) -> Result<(), Refusal> {
        if let Some(inode) = self.inode {
            self.space.judge_file(inode, BlockRun::new(block, 1))?;
        }
        self.space.judge_node(block)
    }

    fn judge_file(&self, inode: InodeNr, run: BlockRun) -> Result<(), Refusal> {
        self.space.judge_file(inode, run)
    }

    fn release(&mut self, tx: &mut dyn Tx, run: BlockRun) -> Result<(), Refusal> {
        self.space.release(tx, run)?;
        self.clusters -= self.clusters_of(run);
        Ok(())
    }
}

/// An allocator by the block bitmaps.
#[derive(Clone, Debug)]
pub struct FromBitmaps {
    /// The groups with these bitmaps.
    pub groups: Groups,
    /// Search steps so far: a measure of work.
    pub steps: u64,
    /// Free blocks that must not be allocated: sorted, not adjacent.
    withheld: Vec<BlockRun>,
}

impl FromBitmaps {
    /// Allocates any free cluster of these groups.
    pub const fn new(groups: Groups) -> Self {
        Self { groups, steps: 0, withheld: Vec::new() }
    }

    /// Excludes these blocks from allocation from now on, although they are free.
    pub fn withhold(&mut self, runs: impl IntoIterator<Item = BlockRun>) {
        self.withheld.extend(runs.into_iter().filter(|run| run.len_blocks > 0));
        self.withheld.sort_unstable();
        self.withheld.dedup_by(|next, last| {
            let joined = next.start <= last.end();
            if joined {
                let end = last.end().max(next.end());
                last.len_blocks = end.0 - last.start.0;
            }
            joined
        });
    }

    /// The number of blocks of a run before the first withheld one; if it starts with a withheld
    /// one, the end of that withheld run.
    fn before_withheld(&self, run: BlockRun) -> Result<u64, BlockNr> {
        let at = self.withheld.partition_point(|other| other.end() <= run.start);
        match self.withheld.get(at) {
            Some(other) if other.start <= run.start => Err(other.end()),
            Some(other) if other.start < run.end() => Ok(other.start.0 - run.start.0),
            _ => Ok(run.len_blocks),
        }
    }

    /// The first free run in a group from bit `from` of its bitmap on, limited to `len_blocks`.
    fn run_in(
        &mut self,
        tx: &mut dyn Tx,
        group: GroupNr,
        from: u32,
        len_blocks: u64,
    ) -> Result<Option<BlockRun>, Refusal> {
        self.steps += 1;
        let geo = self.groups.geometry();
        if self.groups.desc(group)?.free_blocks_count == 0 {
            return Ok(None);
        }
        let bytes = self.groups.block_bitmap(tx, group)?;
        let end = geo.clusters_of(group);
        let (home, bits) = (geo.blocks_of(group), geo.cluster_bits);
        let wanted = len_blocks.max(1).div_ceil(u64::from(geo.cluster_blocks));
        let mut at = from;
        while let Some(bit) = bitmap::first_clear(&bytes, at..end) {
            self.steps += 1;
            let stop = bitmap::first_set(&bytes, bit..end).unwrap_or(end);
            // At most the clusters of a group, which fit 32 bits.
            let len = u64::from(stop - bit).min(wanted);
            let start = BlockNr(home.start.0 + (u64::from(bit) << bits));
            let whole = len << bits;
            let run = BlockRun::new(start, whole.min(home.end().0.saturating_sub(start.0)));
            let until = match self.before_withheld(run) {
                Ok(blocks) if blocks == run.len_blocks => return Ok(Some(run)),
                // Whole clusters only.
                Ok(blocks) if blocks >> bits > 0 => {
                    return Ok(Some(BlockRun::new(start, blocks >> bits << bits)));
                }
                Ok(_) => BlockNr(start.0 + 1),
                Err(until) => until,
            };
            let behind = until.0.saturating_sub(home.start.0).div_ceil(1 << bits);
            at = u32::try_from(behind).unwrap_or(end).max(bit + 1);
        }
        Ok(None)
    }
}

impl Space for FromBitmaps {
    fn groups(&self) -> &Groups {
        &self.groups
    }

    fn groups_mut(&mut self) -> &mut Groups {
        &mut self.groups
    }
}

impl Allocate for FromBitmaps {
    fn run(
        &mut self,
        tx: &mut dyn Tx,
        goal: BlockNr,
        len_blocks: u64,
    ) -> Result<BlockRun, Refusal> {
        let geo = self.groups.geometry().clone();
        let home = geo.group_of(goal).unwrap_or(GroupNr(0));
        let within = goal.0.saturating_sub(geo.group_start(home).0) >> geo.cluster_bits;
        let from = u32::try_from(within).unwrap_or(0);
        // The last candidate is the part of the goal's group before the goal.
        let others = (home.0 + 1..geo.group_count).chain(0..home.0).map(|group| (group, 0));
        let places = std::iter::once((home.0, from)).chain(others).chain([(home.0, 0)]);
        for (group, from) in places {
            if let Some(run) = self.run_in(tx, GroupNr(group), from, len_blocks)? {
                self.groups.mark_blocks(tx, run, true)?;
                return Ok(BlockRun::new(run.start, run.len_blocks.min(len_blocks.max(1))));
            }
        }
        Err(Refusal::Full("cluster"))
    }

    fn release(&mut self, tx: &mut dyn Tx, run: BlockRun) -> Result<(), Refusal> {
        self.groups.mark_blocks(tx, run, false)?;
        tx.revoke(run);
        Ok(())
    }
}

/// Allocates an inode, marks it as used and zeroes it: the first free one in the group of `near`,
/// else in the groups after it.
///
/// # Errors
/// [`Refusal::Full`], or an error of reading or changing bitmaps.
pub fn inode(
    groups: &mut Groups,
    tx: &mut dyn Tx,
    near: InodeNr,
    is_directory: bool,
) -> Result<InodeNr, Refusal> {
    let geo = groups.geometry().clone();
    let home = geo.place_of(near).map_or(0, |(group, _)| group.0);
    for group in (home..geo.group_count).chain(0..home).map(GroupNr) {
        if groups.desc(group)?.free_inodes_count == 0 {
            continue;
        }
        let bytes = groups.inode_bitmap(tx, group)?;
        let mut at = 0;
        while let Some(index) = bitmap::first_clear(&bytes, at..geo.inodes_per_group) {
            let inode = geo.inode_at(group, index);
            if !geo.is_reserved(inode) {
                groups.mark_inode(tx, inode, true, is_directory)?;
                groups.zero_inode(tx, inode)?;
                return Ok(inode);
            }
            at = index + 1;
        }
    }
    Err(Refusal::Full("inode"))
}
