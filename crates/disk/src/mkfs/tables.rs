//! Places the bitmaps and inode tables of a new file system.

use floe_format::ext::group_desc::{
    FLAG_BLOCK_UNINIT, FLAG_INODE_UNINIT, FLAG_INODE_ZEROED, GroupDesc,
};
use floe_format::features::Incompat;
use floe_format::{BlockNr, BlockRun, Geometry, GroupNr};

use super::params::PlanError;
use super::space::Space;

/// Marks superblocks, descriptors and reserved descriptors of all groups as used.
pub(super) fn take_backups(geometry: &Geometry, space: &mut Space) {
    if geometry.first_data_block.0 == 0 && geometry.block_size == 1024 {
        // The boot block is part of group 0.
        space.take(BlockRun::new(BlockNr(0), 1));
    }
    for group in (0..geometry.group_count).map(GroupNr) {
        if let Some(block) = geometry.superblock_of(group) {
            space.take(BlockRun::new(block, 1));
        }
        space.take(geometry.group_desc_run(group));
        space.take(geometry.reserved_gdt_run(group));
    }
}

/// Places and allocates the bitmaps and tables of all groups. Those of a flexible group lie
/// together: all block bitmaps, all inode bitmaps, all tables.
pub(super) fn place(
    geometry: &Geometry,
    flex_groups: u32,
    lazy: bool,
    space: &mut Space,
) -> Result<Vec<GroupDesc>, PlanError> {
    let flex = if geometry.features.incompat.contains(Incompat::FLEX_BG) { flex_groups } else { 1 };
    let mut descs = vec![GroupDesc::default(); geometry.group_count as usize];
    let mut first = 0;
    while first < geometry.group_count {
        let last = first.saturating_add(flex).min(geometry.group_count);
        let range = first as usize..last as usize;
        place_flex(geometry, GroupNr(first), flex_groups, space, &mut descs[range])?;
        first = last;
    }
    if geometry.features.group_desc_csum() {
        let last = descs.len() - 1;
        for (at, desc) in descs.iter_mut().enumerate() {
            desc.flags = if lazy { 0 } else { FLAG_INODE_ZEROED }
                | if at > 0 { FLAG_INODE_UNINIT } else { 0 }
                | if at > 0 && at < last { FLAG_BLOCK_UNINIT } else { 0 };
        }
    }
    Ok(descs)
}

/// The tables of the groups from `first` on, one descriptor each.
fn place_flex(
    geometry: &Geometry,
    first: GroupNr,
    flex_groups: u32,
    space: &mut Space,
    descs: &mut [GroupDesc],
) -> Result<(), PlanError> {
    let count = descs.len() as u64;
    let table = u64::from(geometry.inode_table_blocks);
    let start = geometry.group_start(first);
    let end = BlockNr(geometry.blocks_count);
    let full = |wanted| PlanError::Full { wanted };
    // Without flex_bg, a table lies in its own group.
    let limit = if count == 1 { geometry.blocks_of(first).end() } else { end };
    let place = |space: &mut Space, goal: BlockNr, len: u64| {
        // If there is no space behind the goal, search elsewhere (tiny groups).
        let found = space
            .find(goal, limit, len)
            .or_else(|| space.find(if count > 1 { BlockNr(0) } else { start }, limit, len))?;
        space.take(BlockRun::new(found, len));
        Some(found)
    };
    let mut goal = start;
    // Like mke2fs, reserve space for all groups of a flexible group even if it has only one.
    let alone = geometry.features.incompat.contains(Incompat::FLEX_BG) && count == 1;
    let gap = if alone { u64::from(flex_groups.saturating_sub(1)) } else { 0 };
    for kind in 0..3u8 {
        let each = if kind == 2 { table } else { 1 };
        let together = if count > 1 && kind < 2 { space.find(goal, end, count) } else { None };
        if let Some(together) = together {
            goal = together;
        }
        for desc in descs.iter_mut() {
            let found = place(space, goal, each).ok_or_else(|| full(each))?;
            match kind {
                0 => desc.block_bitmap = found,
                1 => desc.inode_bitmap = found,
                _ => desc.inode_table = found,
            }
            goal = BlockNr(found.0 + each + if kind < 2 { gap } else { 0 });
        }
    }
    Ok(())
}
