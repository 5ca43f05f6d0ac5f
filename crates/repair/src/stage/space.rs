//! Free space of the file system under repair.

use floe_format::rext3::{region_blocks, region_of};
use floe_format::{BlockNr, BlockRun, GroupNr, InodeNr};

use super::Stage;
use super::alloc::Allocator;
use crate::failure::Failure;

/// The allocator of a round, and the blocks it must avoid.
#[derive(Default)]
pub(super) struct Space<'a> {
    /// Created on first use, because it copies the set of used clusters.
    allocator: Option<Allocator<'a>>,
    /// Keeps blocks that the bitmaps mark as used although nothing claims them: see
    /// [`Stage::keep_marked`].
    keeps_marked: bool,
}

impl<'a> Stage<'a> {
    /// Keeps every block that the bitmaps mark as used, because part of the file system is
    /// unreadable and may claim it. Must be called before any allocation.
    pub(crate) const fn keep_marked(&mut self) {
        self.space.keeps_marked = true;
    }

    /// The stored block bitmap of a group, if its marks must be kept; an uninitialised bitmap marks
    /// nothing. `Some(Err)`: it is unreadable.
    pub(crate) fn marked_blocks(&self, group: GroupNr) -> Option<Result<Vec<u8>, Failure>> {
        let desc = self.group(group);
        let shortcuts = self.geometry.features.group_desc_csum();
        let was_written = !(shortcuts && desc.block_uninit());
        (self.space.keeps_marked && was_written).then(|| self.read_block(desc.block_bitmap))
    }

    /// Whether more than one owner claims a block, or it holds metadata.
    pub(crate) fn is_contested(&self, block: BlockNr) -> bool {
        self.geometry.contains(block)
            && (self.evidence.claims.shared().contains(self.geometry.cluster_of(block))
                || self.evidence.volume.is_metadata(block))
    }

    /// Whether the cluster of a block is claimed; `false` outside the file system. Without evidence
    /// for the group the repair ends ([`Stage::lacks_evidence`]).
    pub(crate) fn is_claimed(&self, block: BlockNr) -> bool {
        let kept = self.geometry.group_of(block).map_or(Ok(()), |group| self.must_know(group));
        kept.is_ok() && self.evidence.claims.used().contains(self.geometry.cluster_of(block))
    }

    /// Allocates a free cluster and returns its first block, at or after `goal` if possible.
    ///
    /// # Errors
    /// [`Failure::NoSpace`].
    pub fn allocate(&mut self, goal: BlockNr) -> Result<BlockNr, Failure> {
        loop {
            // An unreadable block is useless and stays allocated.
            let block = self.free_near(goal)?;
            if self
                .hidden_in(BlockRun::new(block, u64::from(self.geometry.cluster_blocks)))
                .is_none()
            {
                return Ok(block);
            }
        }
    }

    /// Allocates a block for a directory or a node of the map of an inode: as [`Stage::allocate`], but in rext3 with the region of
    /// the inode's group as its goal.
    ///
    /// # Errors
    /// [`Failure::NoSpace`].
    pub(crate) fn allocate_metadata(
        &mut self,
        inode: InodeNr,
        goal: BlockNr,
    ) -> Result<BlockNr, Failure> {
        let home = self.geometry.place_of(inode);
        let region = home.and_then(|(group, _)| self.region(group));
        self.allocate(region.map_or(goal, |region| region.start))
    }

    /// The metadata region of a group in rext3.
    fn region(&self, group: GroupNr) -> Option<BlockRun> {
        let blocks = region_blocks(&self.evidence.volume.superblock)?;
        let region = region_of(&self.geometry, group, &self.group(group), blocks);
        (region.len_blocks > 0).then_some(region)
    }

    /// The parts of a group where a block with this goal may lie in rext3: its region for a goal in a region, else what is around
    /// it.
    fn parts_of(&self, group: GroupNr, in_region: bool) -> [BlockRun; 2] {
        let home = self.geometry.blocks_of(group);
        let region = self.region(group).unwrap_or(BlockRun::new(home.end(), 0));
        if in_region {
            return [region, BlockRun::default()];
        }
        let until = |start: BlockNr, end: BlockNr| BlockRun::new(start, end.0 - start.0);
        [until(home.start, region.start), until(region.end(), home.end())]
    }

    /// The runs of blocks where data may lie: all, or in rext3 those outside of regions.
    pub(crate) fn rooms(&self) -> Vec<BlockRun> {
        let geometry = &self.geometry;
        if region_blocks(&self.evidence.volume.superblock).is_none() {
            return vec![BlockRun::new(geometry.first_data_block, geometry.blocks_count)];
        }
        let groups = (0..geometry.group_count).map(GroupNr);
        groups.flat_map(|group| self.parts_of(group, false)).collect()
    }

    /// A free block in rext3, at or behind a goal or else in any group: in a region if the goal is, else outside of them.
    fn free_by_region(&mut self, goal: BlockNr) -> Option<BlockNr> {
        let home = self.geometry.group_of(goal).unwrap_or(GroupNr(0));
        let in_region = self.region(home).is_some_and(|region| region.contains(goal));
        let count = self.geometry.group_count;
        let groups = (home.0..count).chain(0..home.0).map(GroupNr);
        let runs = groups.flat_map(|group| self.parts_of(group, in_region)).collect::<Vec<_>>();
        let behind = runs.clone().into_iter().take(2).filter(|run| run.end() > goal).map(|run| {
            let start = run.start.max(goal);
            BlockRun::new(start, run.end().0 - start.0)
        });
        let mut places = behind.chain(runs);
        let allocator = self.allocator().ok().filter(|allocator| allocator.left() > 0)?;
        places.find_map(|run| allocator.run(run, 1))
    }

    /// A free cluster at or behind a goal, if possible; with cubes only one of the goal's cube, in rext3 as the goal lies in a region
    /// or not, as far as there is one.
    fn free_near(&mut self, goal: BlockNr) -> Result<BlockNr, Failure> {
        if region_blocks(&self.evidence.volume.superblock).is_some()
            && let Some(block) = self.free_by_region(goal)
        {
            return Ok(block);
        }
        let cubes = self.evidence.volume.cubes.clone().filter(|_| self.cube.is_none());
        let Some(cubes) = cubes else {
            return self.allocator()?.block(goal).ok_or(Failure::NoSpace("block"));
        };
        let geometry = self.geometry.clone();
        let home = geometry.group_of(goal).unwrap_or(GroupNr(0));
        let rest = geometry.blocks_of(home).end().0.saturating_sub(goal.0);
        let cube = cubes.of_group(home);
        let groups = (home.0..geometry.group_count).chain(0..home.0).map(GroupNr);
        let own = groups.filter(|group| cubes.of_group(*group) == cube);
        let runs = own.map(|group| geometry.blocks_of(group));
        let mut runs = [BlockRun::new(goal, rest)].into_iter().chain(runs);
        let allocator = self.allocator()?;
        let found = runs.find_map(|run| allocator.run(run, 1)).filter(|_| allocator.left() > 0);
        found.ok_or(Failure::NoSpace("block"))
    }

    /// Where the copy of a block that an inode names lies best: near the block, or in the group of the inode if the block belongs
    /// to another cube.
    pub(crate) fn goal_of_copy(&self, inode: InodeNr, block: BlockNr) -> BlockNr {
        let home = self.geometry.place_of(inode).map(|(group, _)| group);
        match home.filter(|_| self.is_outside(inode, BlockRun::new(block, 1))) {
            Some(home) => self.geometry.group_start(home),
            None => block,
        }
    }

    /// Whether blocks belong to another cube than the inode that names them, although none may.
    pub(crate) fn is_outside(&self, inode: InodeNr, run: BlockRun) -> bool {
        let cubes = self.evidence.volume.cubes.as_ref();
        cubes.is_some_and(|cubes| cubes.is_outside(&self.geometry, inode, run))
    }

    /// The first unreadable block of a run, if unreadable blocks must be kept.
    fn hidden_in(&self, run: BlockRun) -> Option<BlockNr> {
        if !self.overlay.protects() {
            return None;
        }
        let last = run.end().0.min(self.geometry.blocks_count);
        (run.start.0..last).map(BlockNr).find(|&block| self.read_block(block).is_err())
    }

    /// Number of free clusters.
    ///
    /// # Errors
    /// [`Failure::NotKept`].
    pub(crate) fn free_clusters(&mut self) -> Result<u64, Failure> {
        Ok(self.allocator()?.left())
    }

    /// Makes every later allocation of blocks fail.
    pub(crate) fn hand_out_no_more(&mut self) {
        if let Some(allocator) = &mut self.space.allocator {
            allocator.hand_out_no_more();
        }
    }

    /// Allocates one block per goal, or none.
    ///
    /// # Errors
    /// [`Failure::NoSpace`].
    pub(crate) fn allocate_all(&mut self, goals: &[BlockNr]) -> Result<Vec<BlockNr>, Failure> {
        if goals.is_empty() {
            return Ok(Vec::new());
        }
        if self.free_clusters()? < goals.len() as u64 {
            return Err(Failure::NoSpace("block"));
        }
        let (mut blocks, mut last) = (Vec::with_capacity(goals.len()), None);
        for &goal in goals {
            // Several of one goal lie behind each other, so that nobody searches from the goal again.
            let from = match last {
                Some((before, BlockNr(block))) if before == goal => BlockNr(block + 1),
                _ => goal,
            };
            let block = self.allocate(from)?;
            last = Some((goal, block));
            blocks.push(block);
        }
        Ok(blocks)
    }

    /// Allocates a run of free blocks inside `within`.
    ///
    /// # Errors
    /// [`Failure::NoSpace`].
    pub(crate) fn allocate_run(
        &mut self,
        within: BlockRun,
        len_blocks: u64,
    ) -> Result<BlockNr, Failure> {
        let mut within = within;
        loop {
            let start = self.allocator()?.run(within, len_blocks);
            let start = start.ok_or(Failure::NoSpace("run of blocks"))?;
            let Some(hidden) = self.hidden_in(BlockRun::new(start, len_blocks)) else {
                return Ok(start);
            };
            within =
                BlockRun::new(BlockNr(hidden.0 + 1), within.end().0.saturating_sub(hidden.0 + 1));
        }
    }

    /// Excludes blocks from allocation although nothing claims them; ignores blocks outside the
    /// file system.
    ///
    /// # Errors
    /// [`Failure::NotKept`].
    pub(crate) fn withhold(&mut self, run: BlockRun) -> Result<(), Failure> {
        self.allocator()?.withhold(run);
        Ok(())
    }

    /// The allocator, which needs evidence for all groups.
    fn allocator(&mut self) -> Result<&mut Allocator<'a>, Failure> {
        self.must_know_all()?;
        let allocator = self.space.allocator.take().unwrap_or_else(|| self.new_allocator());
        Ok(self.space.allocator.insert(allocator))
    }

    fn new_allocator(&self) -> Allocator<'a> {
        let mut allocator = Allocator::new(self.evidence);
        for group in (0..self.geometry.group_count).map(GroupNr) {
            if self.cube.is_some_and(|cube| !cube.holds_group(group)) {
                allocator.avoid_group(group);
                continue;
            }
            match self.marked_blocks(group) {
                Some(Ok(bitmap)) => allocator.avoid_marked(group, &bitmap),
                Some(Err(_)) => allocator.avoid_group(group),
                None => {}
            }
        }
        allocator
    }

    /// Allocates an inode, in the group of `near` if possible, and marks its part of the inode
    /// table as initialised.
    ///
    /// # Errors
    /// [`Failure::NoSpace`].
    pub(crate) fn allocate_inode(&mut self, near: InodeNr) -> Result<InodeNr, Failure> {
        let cube = self.cube;
        let (cubes, geometry) = (self.evidence.volume.cubes.clone(), self.geometry.clone());
        let of = |inode| cubes.as_ref().map_or(0, |cubes| cubes.of_inode(&geometry, inode));
        // The numbers of reservation files stay theirs, as directories outside the cube name them.
        let may = |inode: InodeNr| match cube {
            Some(cube) => cube.holds_inode(inode) && !cube.map().reservations().contains(&inode),
            None => of(inode) == of(near),
        };
        let inode = self.allocator()?.inode(near, may).ok_or(Failure::NoSpace("inode"))?;
        self.uncover_inode(inode)?;
        Ok(inode)
    }

    /// Takes a free inode that has to be this one.
    pub(crate) fn claim_inode(&mut self, inode: InodeNr) -> Result<(), Failure> {
        let found = self.allocator()?.inode(inode, |other| other == inode);
        found.ok_or(Failure::NotNow("the inode is in use"))?;
        self.uncover_inode(inode)
    }
}
