//! Free space of a volume: runs of clusters near a goal, inodes near their directory, and what may not be handed out yet.

mod colocate;
mod cubes;
mod grown;
mod held;
mod inodes;
mod logs;
mod nodes;
mod region;
mod rext3;
mod sound;
mod system_zone;

use floe_ext4::alloc::{Allocate, Space};
use floe_ext4::group::Groups;
use floe_ext4::tx::{Block, Refusal, Tx, own_bytes};
use floe_format::ext::bitmap;
use floe_format::{BlockNr, BlockRun, GroupNr, InodeNr};
use std::collections::BTreeSet;
use std::ops::Range;

use cubes::Cubes;
pub use held::Epoch;
use held::{Held, HeldMark};
use region::Regions;
use system_zone::SystemZone;

/// A hole in a bitmap is preferred from this many clusters on, so that a file that grows by little finds room behind its end.
const ROOMY_CLUSTERS: u32 = 16;
/// Groups whose bitmaps are searched for one run that is long enough.
const MOST_SEARCHED: u32 = 64;

/// The free clusters and inodes of a volume. Nothing that was freed is handed out before the caller says that the freeing is
/// durable ([`Pool::durable`]).
#[derive(Debug)]
pub struct Pool {
    groups: Groups,
    held: Held,
    /// Free inodes whose numbers were promised: only [`Pool::take_inode`] marks them as used.
    reserved_inodes: BTreeSet<InodeNr>,
    regions: Regions,
    cubes: Cubes,
    /// Free clusters by the descriptors.
    free_clusters: u64,
    /// Clusters that only callers with the right to them may use (`s_r_blocks_count`).
    reserved_clusters: u64,
    /// Whether the operation that runs may use them.
    may_use_reserve: bool,
    /// Groups with a bitmap whose checksum is wrong or that contradicts its descriptor: nothing is allocated in them, and
    /// where the checksum is wrong nothing is freed.
    damaged: BTreeSet<GroupNr>,
    system: SystemZone,
    /// Groups whose metadata are put together, as far as there is room (`-o colocate`): one, or those of a flexible group. 0: it
    /// is not done.
    colocated_groups: u32,
    /// Blocks of the metadata region of a whole group in rext3; 0 in others.
    region_blocks: u32,
}

/// A state of the pool that an operation that fails returns to.
#[derive(Clone, Copy, Debug)]
pub struct PoolMark {
    held: HeldMark,
    regions: usize,
    cubes: usize,
}

impl Pool {
    /// Hands out what is free in `groups`, all but `reserved_clusters` to everybody.
    pub fn new(groups: Groups, reserved_clusters: u64) -> Self {
        let free_clusters = groups.free_clusters();
        let system = SystemZone::of(&groups);
        Self {
            system,
            groups,
            held: Held::default(),
            reserved_inodes: BTreeSet::new(),
            regions: Regions::default(),
            cubes: Cubes::default(),
            free_clusters,
            reserved_clusters,
            may_use_reserve: false,
            damaged: BTreeSet::new(),
            colocated_groups: 0,
            region_blocks: 0,
        }
    }

    /// Puts metadata of so many groups together from now on: the beginning of the first is preferred for them and avoided by
    /// data. Without effect in a native file system and in rext3, which have regions.
    pub(crate) fn colocate(&mut self, groups: u32) {
        let has_regions = self.regions.lot_groups > 0 || self.has_group_regions();
        self.colocated_groups = if has_regions { 0 } else { groups.max(1) };
    }

    const fn colocates(&self) -> bool {
        self.colocated_groups > 0
    }

    /// Ends the epoch: what was freed since the last call is handed out again once [`Pool::durable`] is told of it, or a later one.
    pub const fn end_epoch(&mut self) -> Epoch {
        self.held.end_epoch()
    }

    /// All that was freed up to the end of an epoch is free for good: its transaction is durable, and so are discards and
    /// writes of what lay there.
    pub fn durable(&mut self, epoch: Epoch) {
        self.held.durable(epoch);
        self.regions.full.clear();
    }

    /// Runs of blocks that wait for [`Pool::durable`] with an epoch: nobody uses them.
    pub(crate) fn freed_until(&self, epoch: Epoch) -> impl Iterator<Item = Range<u64>> {
        self.held.blocks_until(epoch)
    }

    /// Whether anything waits for [`Pool::durable`].
    pub fn holds_back(&self) -> bool {
        !self.held.is_empty()
    }

    /// Free clusters, those held back included.
    pub const fn free_clusters(&self) -> u64 {
        self.free_clusters
    }

    /// Clusters that are kept for callers with the right to them.
    pub const fn reserved_clusters(&self) -> u64 {
        self.reserved_clusters
    }

    /// Lets the operation that runs use the reserved clusters, or not.
    pub(crate) const fn use_reserve(&mut self, may: bool) {
        self.may_use_reserve = may;
    }

    pub(crate) fn mark(&mut self) -> PoolMark {
        self.groups.mark();
        PoolMark { held: self.held.mark(), regions: self.regions.mark(), cubes: self.cubes.mark() }
    }

    /// Keeps the changes since the last mark.
    pub(crate) fn keep(&mut self) {
        self.groups.keep();
    }

    /// Returns to the last mark. Nothing is read for it: that could fail.
    pub(crate) fn roll_back(&mut self, mark: PoolMark) {
        self.groups.roll_back();
        self.held.roll_back(mark.held);
        self.regions.roll_back(mark.regions);
        self.cubes.roll_back(mark.cubes);
        self.free_clusters = self.groups.free_clusters();
    }

    /// A block for attributes or the target of a link, which a check reads, too: as [`Allocate::block`], but outside of the regions of
    /// rext3.
    pub(crate) fn block_of_other(
        &mut self,
        tx: &mut dyn Tx,
        goal: BlockNr,
    ) -> Result<BlockNr, Refusal> {
        match self.has_group_regions() {
            true => Ok(self.run(tx, goal, 1)?.start),
            false => self.block(tx, goal),
        }
    }

    /// Adds blocks of the file system itself that descriptors do not name: those of the journal.
    pub(crate) fn add_system(&mut self, runs: impl IntoIterator<Item = BlockRun>) {
        self.system.add(runs);
    }

    /// Refuses a file system whose own structures overlap.
    ///
    /// # Errors
    /// [`Refusal::Damaged`].
    pub(crate) const fn refuse_overlaps(&self) -> Result<(), Refusal> {
        match self.system.overlaps() {
            true => Err(Refusal::Damaged(
                "a group descriptor, which leads to blocks of another structure,",
            )),
            false => Ok(()),
        }
    }

    /// Refuses blocks of a file that are the file system's own.
    ///
    /// # Errors
    /// [`Refusal::Damaged`].
    pub(crate) fn refuse_system(&self, run: BlockRun) -> Result<(), Refusal> {
        self.system.refuse(run)
    }

    /// Frees blocks that hold data. They are revoked only where a transaction that is not home has changed them: little content
    /// is logged. Those in groups whose bitmap has a wrong checksum stay marked as used until a check, as with Linux.
    pub(crate) fn release_data(&mut self, tx: &mut dyn Tx, run: BlockRun) -> Result<(), Refusal> {
        self.refuse_system(run)?;
        self.open_regions_of(tx, run)?;
        tx.revoke_logged(run);
        let (mut at, end) = (run.start, run.end());
        while at < end {
            let geo = self.groups.geometry();
            let group = geo.group_of(at).ok_or(Refusal::Outside(at))?;
            let stop = geo.blocks_of(group).end().min(end);
            let part = BlockRun::new(at, stop.0 - at.0);
            match self.groups.mark_blocks(tx, part, false) {
                Ok(freed) => {
                    // A cluster may be counted for several of its blocks.
                    if self.groups.geometry().cluster_bits == 0 && freed < part.len_blocks {
                        self.held.contradict(Some(group));
                    }
                    self.free_clusters += freed;
                    self.held.hold_blocks(self.groups.geometry(), part);
                }
                Err(Refusal::Checksum(_)) => drop(self.damaged.insert(group)),
                Err(refusal) => return Err(refusal),
            }
            at = stop;
        }
        Ok(())
    }

    /// Frees an inode; in a group whose bitmap has a wrong checksum it stays marked as used, as [`Pool::release_data`] has it.
    pub(crate) fn release_inode(
        &mut self,
        tx: &mut dyn Tx,
        inode: InodeNr,
        is_directory: bool,
    ) -> Result<(), Refusal> {
        match self.groups.mark_inode(tx, inode, false, is_directory) {
            Ok(true) => self.held.hold_inode(inode),
            Ok(false) => {
                let group = self.groups.geometry().place_of(inode).map(|place| place.0);
                self.held.contradict(group);
            }
            Err(Refusal::Checksum(_)) => {
                self.damaged.extend(self.groups.geometry().place_of(inode).map(|place| place.0));
            }
            Err(refusal) => return Err(refusal),
        }
        Ok(())
    }

    /// The bitmap of a group, with what is held back marked as used.
    fn bitmap(&self, tx: &mut dyn Tx, group: GroupNr) -> Result<Block, Refusal> {
        let geo = self.groups.geometry();
        let mut bytes = self.groups.block_bitmap(tx, group)?;
        self.refuse_unsound_blocks(group, &bytes)?;
        let home = geo.blocks_of(group);
        for run in self.held.blocks_in(home.start..home.end()) {
            // Inside the group, so the differences fit.
            let first = ((run.start.0 - home.start.0) >> geo.cluster_bits) as u32;
            let end = (run.end().0 - home.start.0).div_ceil(1 << geo.cluster_bits) as u32;
            mark(&mut bytes, first..end);
        }
        Ok(bytes)
    }

    /// The free blocks of a group that nothing needs any more, not even after a crash; none of a group with a damaged bitmap.
    pub(crate) fn free_runs(
        &mut self,
        tx: &mut dyn Tx,
        group: GroupNr,
    ) -> Result<Vec<BlockRun>, Refusal> {
        if !self.may_discard(group) {
            return Ok(Vec::new());
        }
        let found = self.bitmap(tx, group).map(Some);
        let Some(bytes) = self.unless_damaged(group, found)? else { return Ok(Vec::new()) };
        let geo = self.groups.geometry();
        let (home, end) = (geo.blocks_of(group), geo.clusters_of(group));
        let block = |bit: u32| home.start.0 + (u64::from(bit) << geo.cluster_bits);
        let (mut runs, mut at) = (Vec::new(), 0);
        while let Some(first) = bitmap::first_clear(&bytes, at..end) {
            at = bitmap::first_set(&bytes, first..end).unwrap_or(end);
            let behind = block(at).min(home.end().0);
            runs.push(BlockRun::new(BlockNr(block(first)), behind - block(first)));
        }
        Ok(runs)
    }

    /// Finds clear bits of a group: `wanted` of them at `goal` or in the hole that fits best; else the longest hole.
    fn hole_in(
        &mut self,
        tx: &mut dyn Tx,
        group: GroupNr,
        goal: u32,
        wanted: u32,
        spare_area: bool,
    ) -> Result<Option<Range<u32>>, Refusal> {
        if self.groups.desc(group)?.free_blocks_count == 0 {
            return Ok(None);
        }
        let mut bytes = self.bitmap(tx, group)?;
        self.keep_region(tx, group, &mut bytes)?;
        mark(&mut bytes, self.group_region(group)?);
        if spare_area {
            mark(&mut bytes, self.avoided(group)?);
        }
        let end = self.groups.geometry().clusters_of(group);
        let hole_at = |bit: u32| bit..bitmap::first_set(&bytes, bit..end).unwrap_or(end);
        let fits = |hole: &Range<u32>| hole.end - hole.start >= wanted;
        if goal < end && !bitmap::test(&bytes, goal) {
            let hole = hole_at(goal);
            if fits(&hole) {
                return Ok(Some(hole));
            }
        }
        let (mut best, mut at): (Option<Range<u32>>, u32) = (None, 0);
        while let Some(bit) = bitmap::first_clear(&bytes, at..end) {
            let hole = hole_at(bit);
            at = hole.end;
            if best.as_ref().is_none_or(|best| is_better(&hole, best, wanted, goal)) {
                best = Some(hole);
            }
        }
        Ok(best)
    }

    /// `None` for a group with a damaged bitmap, which is passed over from now on.
    fn unless_damaged<T>(
        &mut self,
        group: GroupNr,
        found: Result<Option<T>, Refusal>,
    ) -> Result<Option<T>, Refusal> {
        if let Err(Refusal::Checksum(_) | Refusal::Damaged(_)) = found {
            self.damaged.insert(group);
            return Ok(None);
        }
        found
    }

    /// The same; and `None` for a group whose bitmap the device does not give, which is looked at again by the next call.
    /// `unread` gets the first such error.
    fn unless_unread<T>(
        &mut self,
        group: GroupNr,
        found: Result<Option<T>, Refusal>,
        unread: &mut Option<Refusal>,
    ) -> Result<Option<T>, Refusal> {
        match self.unless_damaged(group, found) {
            Err(refusal @ Refusal::Io { .. }) => {
                unread.get_or_insert(refusal);
                Ok(None)
            }
            found => found,
        }
    }

    /// Groups in which nothing is allocated because a bitmap is damaged.
    pub(crate) const fn damaged(&self) -> &BTreeSet<GroupNr> {
        &self.damaged
    }

    /// The best hole for `wanted` clusters: near the goal if it is long enough there, else in the groups behind; the longest
    /// that was met if none is.
    fn hole(
        &mut self,
        tx: &mut dyn Tx,
        goal: BlockNr,
        wanted: u32,
        spare_area: bool,
    ) -> Result<(GroupNr, Range<u32>), Refusal> {
        let geo = self.groups.geometry();
        let home = geo.group_of(goal).unwrap_or(GroupNr(0));
        let within = goal.0.saturating_sub(geo.group_start(home).0) >> geo.cluster_bits;
        let within = u32::try_from(within).unwrap_or(0);
        let (group_count, cube) = (geo.group_count, self.cube_of_group(home));
        let mut longest: Option<(GroupNr, Range<u32>)> = None;
        let (mut searched, mut unread) = (0, None);
        for group in self.search_order(home, group_count) {
            let free = self.groups.desc(group)?.free_blocks_count;
            let promising = free >= wanted || longest.is_none() && free > 0;
            if !promising
                || self.cube_of_group(group) != cube
                || self.damaged.contains(&group)
                || searched >= MOST_SEARCHED && longest.is_some()
            {
                continue;
            }
            searched += 1;
            let goal = if group == home { within } else { 0 };
            let hole = self.hole_in(tx, group, goal, wanted, spare_area);
            let Some(hole) = self.unless_unread(group, hole, &mut unread)? else { continue };
            if hole.end - hole.start >= wanted {
                return Ok((group, hole));
            }
            let longer = |(_, known): &(GroupNr, Range<u32>)| hole.len() > known.len();
            if longest.as_ref().is_none_or(longer) {
                longest = Some((group, hole));
            }
        }
        match longest {
            Some(longest) => Ok(longest),
            // One lot more each time. Data spill over into the areas of metadata.
            None if spare_area => self.hole(tx, goal, wanted, false),
            None if cube > 0 && self.grow(tx, cube)? => self.hole(tx, goal, wanted, false),
            // Blocks whose bitmap cannot be read may be free.
            None => Err(unread.unwrap_or(Refusal::Full("cluster"))),
        }
    }
}

/// Marks clusters as used in a copy of a bitmap.
fn mark(bytes: &mut Block, bits: Range<u32>) {
    if !bits.is_empty() {
        bitmap::fill(own_bytes(bytes), bits, true);
    }
}

/// Whether a hole is better than another: long enough and shorter, or at least longer; near the goal where both are alike.
fn is_better(hole: &Range<u32>, best: &Range<u32>, wanted: u32, goal: u32) -> bool {
    let roomy = wanted.max(ROOMY_CLUSTERS);
    let enough = |hole: &Range<u32>| hole.len() as u32 >= roomy;
    match (enough(hole), enough(best)) {
        (true, true) => {
            let before = |hole: &Range<u32>| hole.start < goal;
            (before(hole), hole.len()) < (before(best), best.len())
        }
        (true, false) => true,
        (false, true) => false,
        (false, false) => hole.len() > best.len(),
    }
}

impl Allocate for Pool {
    fn run(
        &mut self,
        tx: &mut dyn Tx,
        goal: BlockNr,
        len_blocks: u64,
    ) -> Result<BlockRun, Refusal> {
        let bits = self.groups.geometry().cluster_bits;
        let kept = if self.may_use_reserve { 0 } else { self.reserved_clusters };
        let usable = self.free_clusters.saturating_sub(kept);
        if usable == 0 {
            return Err(Refusal::Full("cluster"));
        }
        let most = usable.min(u64::from(self.groups.geometry().clusters_per_group));
        // Below the clusters of a group.
        let wanted = len_blocks.max(1).div_ceil(1 << bits).min(most) as u32;
        let (group, hole) = self.hole(tx, goal, wanted, self.colocates())?;
        let clusters = (hole.end - hole.start).min(wanted);
        let home = self.groups.geometry().blocks_of(group);
        let start = BlockNr(home.start.0 + (u64::from(hole.start) << bits));
        let whole = BlockRun::new(start, (u64::from(clusters) << bits).min(home.end().0 - start.0));
        self.free_clusters =
            self.free_clusters.saturating_sub(self.groups.mark_blocks(tx, whole, true)?);
        Ok(BlockRun::new(start, whole.len_blocks.min(len_blocks.max(1))))
    }

    /// A block for metadata: from the region of the goal's lot or of another, if there are any; else from the area of the goal's
    /// group where metadata are put together. In rext3 from regions alone.
    fn block(&mut self, tx: &mut dyn Tx, goal: BlockNr) -> Result<BlockNr, Refusal> {
        if self.has_group_regions() {
            return self.block_in_group_regions(tx, goal);
        }
        if let Some(block) = self.block_in_regions(tx, goal)? {
            return Ok(block);
        }
        match self.block_in_area(tx, goal)? {
            Some(block) => Ok(block),
            None => Ok(self.run(tx, goal, 1)?.start),
        }
    }

    /// With its data, as FFS has it: a file that ends behind its direct blocks is read without another seek.
    fn first_indirect(&mut self, tx: &mut dyn Tx, goal: BlockNr) -> Result<BlockNr, Refusal> {
        if self.colocates() { Ok(self.run(tx, goal, 1)?.start) } else { self.block(tx, goal) }
    }

    fn judge_node(&self, block: BlockNr) -> Result<(), Refusal> {
        self.refuse_system(BlockRun::new(block, 1))
    }

    fn judge_file(&self, inode: InodeNr, run: BlockRun) -> Result<(), Refusal> {
        self.judge_own(inode, run)
    }

    fn release(&mut self, tx: &mut dyn Tx, run: BlockRun) -> Result<(), Refusal> {
        self.release_data(tx, run)?;
        tx.revoke(run);
        Ok(())
    }
}

impl Space for Pool {
    fn groups(&self) -> &Groups {
        &self.groups
    }

    fn groups_mut(&mut self) -> &mut Groups {
        &mut self.groups
    }
}
