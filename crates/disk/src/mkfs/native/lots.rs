//! Places the bitmaps, inode tables and region of each lot, in this order and in one run as far as
//! backups of descriptors leave it.

use floe_format::ext::group_desc::{
    FLAG_BLOCK_UNINIT, FLAG_INODE_UNINIT, FLAG_INODE_ZEROED, GroupDesc,
};
use floe_format::native::lot::{LotRecord, MAGIC, VERSION};
use floe_format::{BlockNr, BlockRun, Geometry, GroupNr, InodeNr};

use crate::mkfs::params::{Params, PlanError};
use crate::mkfs::space::Space;

/// The number of the seal that mkfs sets.
pub(in crate::mkfs) const FIRST_EPOCH: u64 = 1;

/// The metadata region of a lot.
#[derive(Clone, Copy, Debug)]
pub(in crate::mkfs) struct Region {
    pub(in crate::mkfs) run: BlockRun,
    /// Blocks in use, at the beginning of it.
    pub(in crate::mkfs) used: u64,
    /// The reservation file.
    pub(in crate::mkfs) inode: InodeNr,
}

/// The lots of a native file system; none in a stock one.
#[derive(Clone, Debug, Default)]
pub(in crate::mkfs) struct Lots {
    /// Groups of a lot; 0 where there is none.
    groups: u32,
    pub(in crate::mkfs) regions: Vec<Region>,
}

impl Lots {
    /// The lot of a group.
    pub(in crate::mkfs) fn of_group(&self, group: GroupNr) -> Option<(u32, &Region)> {
        let lot = group.0.checked_div(self.groups)?;
        self.regions.get(lot as usize).map(|region| (lot, region))
    }

    /// Takes up to `len_blocks` blocks from the region of a group's lot.
    pub(in crate::mkfs) fn take(&mut self, group: GroupNr, len_blocks: u64) -> Option<BlockRun> {
        let region = self.regions.get_mut(group.0.checked_div(self.groups)? as usize)?;
        let len_blocks = len_blocks.min(region.run.len_blocks - region.used);
        let start = BlockNr(region.run.start.0 + region.used);
        region.used += len_blocks;
        (len_blocks > 0).then_some(BlockRun::new(start, len_blocks))
    }

    /// Blocks of all regions.
    pub(in crate::mkfs) fn blocks(&self) -> u64 {
        self.regions.iter().map(|region| region.run.len_blocks).sum()
    }

    /// Blocks of regions that are in use.
    pub(in crate::mkfs) fn used(&self) -> u64 {
        self.regions.iter().map(|region| region.used).sum()
    }

    /// Whether a group begins with an inode that is kept for a reservation file.
    pub(in crate::mkfs) fn keeps_first_inode(&self, group: GroupNr) -> bool {
        let has_region = |(_, region): (u32, &Region)| region.run.len_blocks > 0;
        group.0 > 0
            && group.0.is_multiple_of(self.groups)
            && self.of_group(group).is_some_and(has_region)
    }

    /// The record in the descriptors of a group's lot.
    pub(in crate::mkfs) fn record(&self, group: GroupNr) -> Option<LotRecord> {
        let (lot, region) = self.of_group(group)?;
        let record = LotRecord::decode(&[0; LotRecord::SIZE]);
        // A region is smaller than a lot.
        Some(LotRecord {
            magic: MAGIC,
            version: VERSION,
            lot,
            region_start: region.run.start.0,
            region_blocks: region.run.len_blocks as u32,
            region_inode: if region.run.len_blocks > 0 { region.inode.0 } else { 0 },
            epoch: FIRST_EPOCH,
            region_used: region.used as u32,
            ..record
        })
    }
}

/// Places bitmaps, tables and regions of all lots. Regions are not taken from `space` yet, because
/// unlike the others they are blocks of files.
pub(in crate::mkfs) fn place(
    geometry: &Geometry,
    params: &Params,
    space: &mut Space,
) -> Result<(Vec<GroupDesc>, Lots), PlanError> {
    let mut descs = vec![GroupDesc::default(); geometry.group_count as usize];
    let groups = params.flex_groups.max(1);
    let mut lots = Lots { groups, regions: Vec::new() };
    let native = params.native.unwrap_or_default();
    let blocks = u64::from(native.region_blocks(groups, geometry.blocks_per_group));
    for (lot, part) in descs.chunks_mut(groups as usize).enumerate() {
        // No more lots than groups.
        let first = GroupNr(lot as u32 * groups);
        let region = place_lot(geometry, (groups, blocks), first, space, part)?;
        lots.regions.push(region);
    }
    let last = descs.len() - 1;
    for (at, desc) in descs.iter_mut().enumerate() {
        desc.flags = FLAG_INODE_ZEROED
            | if at > 0 { FLAG_INODE_UNINIT } else { 0 }
            | if at > 0 && at < last { FLAG_BLOCK_UNINIT } else { 0 };
    }
    Ok((descs, lots))
}

fn place_lot(
    geometry: &Geometry,
    (groups, region_blocks): (u32, u64),
    first: GroupNr,
    space: &mut Space,
    descs: &mut [GroupDesc],
) -> Result<Region, PlanError> {
    let last = GroupNr(first.0 + descs.len() as u32 - 1);
    let (start, end) = (geometry.group_start(first), geometry.blocks_of(last).end());
    let mut goal = start;
    let mut find = |space: &mut Space, len: u64| {
        let found = space.find(goal, end, len).filter(|found| found.0 + len <= end.0);
        let found = found.ok_or(PlanError::Full { wanted: len })?;
        goal = BlockNr(found.0 + len);
        Ok::<_, PlanError>(found)
    };
    for kind in 0..3u8 {
        let len = if kind == 2 { u64::from(geometry.inode_table_blocks) } else { 1 };
        for desc in &mut *descs {
            let found = find(space, len)?;
            space.take(BlockRun::new(found, len));
            match kind {
                0 => desc.block_bitmap = found,
                1 => desc.inode_bitmap = found,
                _ => desc.inode_table = found,
            }
        }
    }
    let whole = u64::from(geometry.blocks_per_group) * u64::from(groups);
    // A shorter lot has a shorter region.
    let len = region_blocks * (end.0 - start.0) / whole;
    let at = if len > 0 { find(space, len)? } else { goal };
    let inode = geometry.inode_at(first, 0);
    Ok(Region { run: BlockRun::new(at, len), used: 0, inode })
}
