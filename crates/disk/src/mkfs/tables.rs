//! Places the bitmaps and inode tables of a new file system.

use floe_format::ext::group_desc::{
    FLAG_BLOCK_UNINIT, FLAG_INODE_UNINIT, FLAG_INODE_ZEROED, GroupDesc,
};
use floe_format::features::Incompat;
use floe_format::{BlockNr, BlockRun, Geometry, GroupNr};

use super::params::{Params, PlanError};
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
    params: &Params,
    space: &mut Space,
) -> Result<Vec<GroupDesc>, PlanError> {
    let Params { flex_groups, lazy_tables, packed_tables, .. } = *params;
    let flex = if geometry.features.incompat.contains(Incompat::FLEX_BG) { flex_groups } else { 1 };
    let mut descs = vec![GroupDesc::default(); geometry.group_count as usize];
    let mut first = 0;
    if packed_tables && geometry.features.incompat.contains(Incompat::FLEX_BG) {
        place_packed(geometry, space, &mut descs)?;
        first = geometry.group_count;
    }
    while first < geometry.group_count {
        let last = first.saturating_add(flex).min(geometry.group_count);
        let range = first as usize..last as usize;
        place_flex(geometry, GroupNr(first), params, space, &mut descs[range])?;
        first = last;
    }
    // Without checksums of descriptors nobody reads the flags, and tables are always written whole.
    let summed = geometry.features.group_desc_csum();
    let last = descs.len() - 1;
    for (at, desc) in descs.iter_mut().enumerate() {
        desc.flags = if summed && lazy_tables { 0 } else { FLAG_INODE_ZEROED }
            | if summed && at > 0 { FLAG_INODE_UNINIT } else { 0 }
            | if summed && at > 0 && at < last { FLAG_BLOCK_UNINIT } else { 0 };
    }
    Ok(descs)
}

/// Where a group has its block bitmap (0), its inode bitmap (1) or its inode table (2).
fn table_of(desc: &mut GroupDesc, kind: u8) -> &mut BlockNr {
    match kind {
        0 => &mut desc.block_bitmap,
        1 => &mut desc.inode_bitmap,
        _ => &mut desc.inode_table,
    }
}

/// All block bitmaps, all inode bitmaps and all tables, one behind the other from the beginning on.
fn place_packed(
    geometry: &Geometry,
    space: &mut Space,
    descs: &mut [GroupDesc],
) -> Result<(), PlanError> {
    let end = BlockNr(geometry.blocks_count);
    let table = u64::from(geometry.inode_table_blocks);
    let mut goal = BlockNr(0);
    for kind in 0..3u8 {
        let len = if kind == 2 { table } else { 1 };
        for desc in &mut *descs {
            let found = space.find(goal, end, len).ok_or(PlanError::Full { wanted: len })?;
            space.take(BlockRun::new(found, len));
            *table_of(desc, kind) = found;
            goal = found;
        }
    }
    Ok(())
}

/// Where the bitmaps of a group begin on a RAID: behind the room of its table, and `spread` blocks further on, so
/// that those of neighbours lie on different disks.
fn strided_goal(geometry: &Geometry, group: GroupNr, spread: u64, space: &Space) -> BlockNr {
    let run = geometry.blocks_of(group);
    let last = run.end().0 - 1;
    let free = space.find(run.start, run.end(), 1).unwrap_or(run.start);
    let behind = free.0 + u64::from(geometry.inode_table_blocks);
    let goal = if behind < last { behind + spread % (last - behind + 1) } else { last };
    if goal < last { BlockNr(goal) } else { run.start }
}

/// The tables of the groups from `first` on, one descriptor each.
fn place_flex(
    geometry: &Geometry,
    first: GroupNr,
    params: &Params,
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
    let flexible = geometry.features.incompat.contains(Incompat::FLEX_BG);
    let strided = params.stride > 0 && (!flexible || params.flex_groups == 1);
    let mut goal = start;
    if strided {
        let spread = u64::from(params.stride) * u64::from(first.0);
        goal = strided_goal(geometry, first, spread, space);
    }
    // Like mke2fs, reserve space for all groups of a flexible group even if it has only one.
    let alone = flexible && count == 1;
    let gap = if alone { u64::from(params.flex_groups.saturating_sub(1)) } else { 0 };
    for kind in 0..3u8 {
        if kind == 2 && strided {
            goal = start;
        }
        let each = if kind == 2 { table } else { 1 };
        let together = if count > 1 && kind < 2 { space.find(goal, end, count) } else { None };
        if let Some(together) = together {
            goal = together;
        }
        for desc in descs.iter_mut() {
            let found = place(space, goal, each).ok_or_else(|| full(each))?;
            *table_of(desc, kind) = found;
            goal = BlockNr(found.0 + each + if kind < 2 { gap } else { 0 });
        }
    }
    Ok(())
}
