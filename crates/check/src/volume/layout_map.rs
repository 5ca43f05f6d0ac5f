//! Which clusters static metadata takes, and where it overlaps itself.

use floe_format::ext::superblock::Superblock;
use floe_format::features::Incompat;
use floe_format::{BlockNr, BlockRun, Geometry, GroupNr};

use crate::evidence::run_set::{RunSet, RunSetBuilder};
use crate::problem::{Findings, Problem, Sink};
use crate::volume::is_absent;
use floe_format::ext::group_desc::GroupDesc;

/// Static metadata: superblocks, descriptors, bitmaps, inode tables, the MMP block.
#[derive(Clone, Debug, Default)]
pub struct LayoutMap {
    /// Its clusters.
    pub clusters: RunSet,
    /// Overlaps and places out of range, in order of groups.
    pub found: Findings,
    /// The first group whose descriptor cannot be right, and why: a reason to try a backup.
    pub insane: Option<(GroupNr, &'static str)>,
    /// Bytes the device must have to hold all bitmaps and inode tables, if it is shorter.
    pub past_device_end: Option<u64>,
}

/// Input of the walk over the groups; `blocks` is exact to the block even if clusters are larger.
struct Walk<'a> {
    geometry: &'a Geometry,
    device_bytes: u64,
    map: LayoutMap,
    clusters: RunSetBuilder,
    blocks: Option<RunSetBuilder>,
    last_block_end: u64,
}

impl LayoutMap {
    /// Lays out all groups: of each the superblock and descriptors, then the inode table, then the
    /// bitmaps, so that who comes second is the same in each run. `size_bytes` is the device's.
    pub fn new(
        superblock: &Superblock,
        geometry: &Geometry,
        groups: &[GroupDesc],
        size_bytes: u64,
    ) -> Self {
        let mut walk = Walk {
            geometry,
            device_bytes: size_bytes,
            map: Self::default(),
            clusters: RunSetBuilder::default(),
            blocks: (geometry.cluster_blocks > 1).then(RunSetBuilder::default),
            last_block_end: 0,
        };
        for (group, desc) in (0..).map(GroupNr).zip(groups) {
            walk.reserve_group(group);
            walk.place_table(group, desc);
            walk.place_bitmap(group, desc.block_bitmap, true);
            walk.place_bitmap(group, desc.inode_bitmap, false);
        }
        let mmp = BlockNr(superblock.mmp_block);
        if geometry.features.incompat.contains(Incompat::MMP)
            && mmp.0 > geometry.first_data_block.0
            && geometry.contains(mmp)
        {
            walk.mark(BlockRun::new(mmp, 1));
        }
        let needed = walk.last_block_end.saturating_mul(u64::from(geometry.block_size));
        walk.map.past_device_end = (needed > size_bytes).then_some(needed);
        walk.map.clusters = walk.clusters.build();
        walk.map
    }
}

impl Walk<'_> {
    /// The first block of a run inside the file system that is taken.
    fn first_taken(&self, run: BlockRun) -> Option<BlockNr> {
        let first = self.geometry.first_data_block.0;
        let set = self.blocks.as_ref().unwrap_or(&self.clusters);
        let taken = set.first_in(run.start.0.checked_sub(first)?, run.len_blocks);
        taken.map(|at| BlockNr(first + at))
    }

    /// Marks the part of a run that lies inside the file system.
    fn mark(&mut self, run: BlockRun) {
        let geometry = self.geometry;
        let start = run.start.0.max(geometry.first_data_block.0);
        let end = run.end().0.min(geometry.blocks_count);
        if start >= end {
            return;
        }
        if let Some(blocks) = &mut self.blocks {
            blocks.insert(start - geometry.first_data_block.0, end - start);
        }
        let first = geometry.cluster_of(BlockNr(start));
        let last = geometry.cluster_of(BlockNr(end - 1));
        self.clusters.insert(first, last - first + 1);
    }

    /// Keeps a finding; of groups past the end of the device one finding says it all.
    fn report(&mut self, group: GroupNr, problem: Problem) {
        if !is_absent(self.geometry, self.device_bytes, self.geometry.group_start(group)) {
            self.map.found.push(problem);
        }
    }

    fn insane(&mut self, group: GroupNr, reason: &'static str) {
        self.map.insane.get_or_insert((group, reason));
    }

    /// The superblock, descriptors and reserved descriptor blocks of a group.
    fn reserve_group(&mut self, group: GroupNr) {
        let geometry = self.geometry;
        let superblock = geometry.superblock_of(group);
        let descs = geometry.group_desc_run(group);
        // With meta_bg no blocks are reserved, whatever the superblock says.
        let reserved = if geometry.features.incompat.contains(Incompat::META_BG) {
            0
        } else {
            geometry.reserved_gdt_run(group).len_blocks
        };
        if group.0 == 0 {
            // Block 0 of a bigalloc file system with blocks of 1 KiB comes before the superblock.
            let first = geometry.first_data_block;
            let end = superblock.map_or(first.0, |block| block.0);
            self.mark(BlockRun::new(first, end - first.0));
        }
        let descs = BlockRun::new(descs.start, descs.len_blocks + reserved);
        for run in superblock.map(|block| BlockRun::new(block, 1)).into_iter().chain([descs]) {
            let inside = run.end().0.min(geometry.blocks_count).saturating_sub(run.start.0);
            let run = BlockRun::new(run.start, inside);
            if self.first_taken(run).is_some() {
                self.insane(group, "other metadata lies on its superblock or descriptors");
            }
            self.mark(run);
        }
    }

    /// Blocks in which a group's bitmaps and table may lie.
    fn allowed(&self, group: GroupNr) -> BlockRun {
        let geometry = self.geometry;
        if geometry.features.incompat.contains(Incompat::FLEX_BG) {
            let first = geometry.first_data_block;
            BlockRun::new(first, geometry.blocks_count - first.0)
        } else {
            geometry.blocks_of(group)
        }
    }

    /// Marks a run that a descriptor names; says whether its place is allowed, and the first
    /// block of it that is taken already.
    fn place(
        &mut self,
        group: GroupNr,
        start: BlockNr,
        len_blocks: u64,
    ) -> (bool, Option<BlockNr>) {
        let allowed = self.allowed(group);
        let run = BlockRun::new(start, len_blocks);
        let fits = start.0 != 0 && start >= allowed.start && run.end() <= allowed.end();
        if !self.geometry.contains(start) || run.end().0 > self.geometry.blocks_count {
            return (fits, None);
        }
        self.last_block_end = self.last_block_end.max(run.end().0);
        let taken = self.first_taken(run);
        self.mark(run);
        (fits, taken)
    }

    fn place_table(&mut self, group: GroupNr, desc: &GroupDesc) {
        let block = desc.inode_table;
        let len_blocks = u64::from(self.geometry.inode_table_blocks);
        let (fits, taken) = self.place(group, block, len_blocks);
        if !fits {
            self.insane(group, "its inode table is out of range");
            self.report(group, Problem::GroupInodeTableOutOfRange { group, block });
        }
        if let Some(block) = taken {
            self.insane(group, "its inode table lies on other metadata");
            self.report(group, Problem::GroupInodeTableOverlap { group, block });
        }
    }

    fn place_bitmap(&mut self, group: GroupNr, block: BlockNr, of_blocks: bool) {
        let (fits, taken) = self.place(group, block, 1);
        if !fits {
            self.insane(group, "a bitmap of it is out of range");
            let problem = if of_blocks {
                Problem::GroupBlockBitmapOutOfRange { group, block }
            } else {
                Problem::GroupInodeBitmapOutOfRange { group, block }
            };
            self.report(group, problem);
        }
        if taken.is_some() {
            self.insane(group, "a bitmap of it lies on other metadata");
            let problem = if of_blocks {
                Problem::GroupBlockBitmapOverlap { group, block }
            } else {
                Problem::GroupInodeBitmapOverlap { group, block }
            };
            self.report(group, problem);
        }
    }
}
