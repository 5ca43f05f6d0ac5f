//! rext3 (`docs/rext3.md`): the region behind the inode table of each group, which holds directory blocks and indirect blocks
//! and nothing else.

use floe_format::ext::group_desc::GroupDesc;
use floe_format::features::{Compat, Incompat, RoCompat};
use floe_format::rext3::{region_of, usual_region_blocks};
use floe_format::{BlockNr, BlockRun, Geometry, GroupNr};

use super::options::Options;
use super::params::{Params, PlanError};
use super::space::Space;
use super::usage::FsType;

/// Parameters that only rext3 has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rext3Params {
    /// Bytes of the region of a whole group; `None`: 1/64 of the group.
    pub region_bytes: Option<u64>,
}

impl Rext3Params {
    /// Blocks of the region of a whole group.
    pub(super) fn region_blocks(self, geometry: &Geometry) -> Result<u32, PlanError> {
        let per_group = geometry.blocks_per_group;
        let Some(bytes) = self.region_bytes else { return Ok(usual_region_blocks(per_group)) };
        let blocks = bytes / u64::from(geometry.block_size);
        // Half of a group at most, so that there is room for data.
        match u32::try_from(blocks) {
            Ok(blocks) if (1..=per_group / 2).contains(&blocks) => Ok(blocks),
            _ => {
                Err(PlanError::Parameter("the region_size must be from a block to half of a group"))
            }
        }
    }

    /// Refuses what rext3 cannot be: it is ext3 with another layout.
    pub(super) fn check(params: &Params) -> Result<(), PlanError> {
        let bad = |what: &'static str| Err(PlanError::Parameter(what));
        if !params.incompat(Incompat::REXT3) || !params.compat(Compat::HAS_JOURNAL) {
            return bad("rext3 file systems need the features rext3 and has_journal");
        }
        let compat = Compat::HAS_JOURNAL | Compat::EXT_ATTR | Compat::DIR_INDEX;
        let ro_compat = RoCompat::SPARSE_SUPER | RoCompat::LARGE_FILE;
        if !compat.contains(params.features.compat)
            || !(Incompat::REXT3 | Incompat::FILETYPE).contains(params.features.incompat)
            || !ro_compat.contains(params.features.ro_compat)
        {
            return bad(
                "rext3 file systems have the features of ext3, without resize_inode, and no others",
            );
        }
        if params.stride > 0 || params.packed_tables {
            return bad(
                "rext3 file systems have no stride and no packed_meta_blocks: the bitmaps and the table of each \
                 group lie right before its region",
            );
        }
        Ok(())
    }
}

impl Options {
    /// The parameters of a rext3 file system.
    pub(super) fn rext3(&self, fs_type: FsType) -> Option<Rext3Params> {
        let region_bytes = self.extended.region_bytes;
        (fs_type == FsType::Rext3).then_some(Rext3Params { region_bytes })
    }
}

/// The region of a group.
#[derive(Clone, Copy, Debug)]
struct Region {
    run: BlockRun,
    /// Blocks in use, at the beginning of it.
    used: u64,
}

impl Region {
    fn free(&self) -> BlockRun {
        BlockRun::new(BlockNr(self.run.start.0 + self.used), self.run.len_blocks - self.used)
    }
}

/// The regions of all groups; none in other file systems.
#[derive(Clone, Debug, Default)]
pub(super) struct Regions(Vec<Region>);

impl Regions {
    /// Takes the regions behind the tables of all groups, so that nothing else goes there.
    pub(super) fn place(
        geometry: &Geometry,
        descs: &[GroupDesc],
        region_blocks: u32,
        space: &mut Space,
    ) -> Result<Self, PlanError> {
        let mut regions = Vec::with_capacity(descs.len());
        for (group, desc) in (0..).map(GroupNr).zip(descs) {
            let run = region_of(geometry, group, desc, region_blocks);
            if space.find(run.start, run.end(), run.len_blocks) != Some(run.start)
                && run.len_blocks > 0
            {
                return Err(PlanError::Internal("a region overlaps another structure"));
            }
            space.take(run);
            regions.push(Region { run, used: 0 });
        }
        Ok(Self(regions))
    }

    /// Takes `len_blocks` blocks from the region of a group, and where that is full from those behind it; `None` if all of them
    /// together have fewer.
    pub(super) fn take(&mut self, group: GroupNr, len_blocks: u64) -> Option<Vec<BlockRun>> {
        if self.blocks() - self.used() < len_blocks {
            return None;
        }
        let (mut runs, mut left) = (Vec::new(), len_blocks);
        let home = (group.0 as usize).min(self.0.len());
        let (before, own) = self.0.split_at_mut(home);
        for region in own.iter_mut().chain(before) {
            let free = region.free();
            let len_blocks = free.len_blocks.min(left);
            if len_blocks > 0 {
                runs.push(BlockRun::new(free.start, len_blocks));
                region.used += len_blocks;
                left -= len_blocks;
            }
        }
        Some(runs)
    }

    /// The blocks that nothing has taken.
    pub(super) fn free(&self) -> impl Iterator<Item = BlockRun> {
        self.0.iter().map(Region::free).filter(|run| run.len_blocks > 0)
    }

    /// Blocks of all regions.
    pub(super) fn blocks(&self) -> u64 {
        self.0.iter().map(|region| region.run.len_blocks).sum()
    }

    /// Blocks of regions that are in use.
    pub(super) fn used(&self) -> u64 {
        self.0.iter().map(|region| region.used).sum()
    }
}
