//! Builds maps of whole files: extent trees and block maps.

use floe_ext4::map::block_map::{self, MappedRun};
use floe_ext4::map::extent_tree::{self, NodeForm};
use floe_ext4::map::mapping::BuildError;
use floe_format::ext::extent::Extent;
use floe_format::ext::inode::InodeFlags;
use floe_format::features::Incompat;
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

use super::inode::NewInode;
use super::params::PlanError;
use super::plan::Plan;

/// The place of a map's nodes.
pub(super) enum Nodes {
    /// In the block before the data if it is free, as mke2fs does for journals.
    Before,
    /// In the first free blocks.
    Behind,
}

impl From<BuildError> for PlanError {
    fn from(_: BuildError) -> Self {
        // An allocator returns runs in order, and files too large for a map were refused before.
        Self::Internal("a map cannot hold what was allocated")
    }
}

/// Attaches to an inode a map of data without holes, and counts its blocks.
pub(super) fn attach(
    plan: &mut Plan,
    nr: InodeNr,
    inode: &mut NewInode,
    data: &[BlockRun],
    nodes: &Nodes,
) -> Result<(), PlanError> {
    let block_size = plan.geometry.block_size;
    let mut logical = 0;
    let mut mapped = Vec::with_capacity(data.len());
    for run in data {
        mapped.push(MappedRun { logical: LogicalBlock(logical), run: *run });
        logical += run.len_blocks;
    }
    let ratio = u64::from(plan.geometry.cluster_blocks);
    inode.blocks += logical.div_ceil(ratio) * ratio;
    let extents = extents_of(&mapped);
    let use_extents = plan.params.incompat(Incompat::EXTENTS);
    let needed = if use_extents {
        extent_tree::nodes_needed(&extents, block_size)?
    } else {
        block_map::nodes_needed(&mapped, plan.geometry.indirect())?
    } as u64;
    let places = place_nodes(plan, nr, data, nodes, needed)?;
    inode.blocks += needed * ratio;
    let built = if use_extents {
        inode.flags |= InodeFlags::EXTENTS;
        let form = NodeForm::of(block_size, plan.form.seed, nr, inode.generation)
            .hinting(plan.params.native.is_some(), nr);
        extent_tree::build(&extents, form, &places)?
    } else {
        block_map::build(&mapped, plan.geometry.indirect(), nr, &places)?
    };
    inode.block = built.root;
    for (block, bytes) in built.blocks {
        plan.put(&[BlockRun::new(block, 1)], bytes);
    }
    Ok(())
}

fn place_nodes(
    plan: &mut Plan,
    nr: InodeNr,
    data: &[BlockRun],
    nodes: &Nodes,
    needed: u64,
) -> Result<Vec<BlockNr>, PlanError> {
    if needed == 0 {
        return Ok(Vec::new());
    }
    let first = data.first().map_or(0, |run| run.start.0);
    let ratio = u64::from(plan.geometry.cluster_blocks);
    let goal = match nodes {
        Nodes::Before => BlockNr(first.saturating_sub(needed * ratio)),
        Nodes::Behind => BlockNr(0),
    };
    let runs = match plan.params.rext3 {
        Some(_) => plan.metadata(nr, goal, needed)?,
        None => plan.allocate(goal, needed * ratio)?,
    };
    Ok(runs
        .iter()
        .flat_map(|run| (0..run.len_blocks).step_by(ratio as usize).map(|at| run.start.0 + at))
        .map(BlockNr)
        .collect())
}

pub(super) fn extents_of(mapped: &[MappedRun]) -> Vec<Extent> {
    mapped
        .iter()
        .map(|one| Extent { logical: one.logical, run: one.run, unwritten: false })
        .collect()
}

/// Allocates `count` blocks for a file with a block map, placing each indirect block just before
/// the first block that it maps. Returns the data blocks.
pub(super) fn interleaved(
    plan: &mut Plan,
    nr: InodeNr,
    inode: &mut NewInode,
    count: u64,
) -> Result<Vec<BlockRun>, PlanError> {
    let form = plan.geometry.indirect();
    let apb = form.pointers_per_block();
    // The number of indirect blocks just before a logical block, and the next logical block that
    // has some.
    let before = |logical: u64| -> u64 {
        let Some(behind) = logical.checked_sub(12) else { return 0 };
        if behind % apb != 0 {
            return 0;
        }
        let Some(second) = (behind / apb).checked_sub(1) else { return 1 };
        if second % apb != 0 {
            return 1;
        }
        let Some(third) = (second / apb).checked_sub(1) else { return 2 };
        if third == 0 { 3 } else { 2 }
    };
    let nodes: u64 = (0..count).filter(|at| *at >= 12 && (at - 12) % apb == 0).map(before).sum();
    let all = plan.allocate(BlockNr(0), count + nodes)?;
    let mut free =
        all.iter().flat_map(|run| (0..run.len_blocks).map(|at| BlockNr(run.start.0 + at)));
    let (mut data, mut places) = (Vec::<MappedRun>::new(), Vec::new());
    for logical in 0..count {
        places.extend(free.by_ref().take(before(logical) as usize));
        let Some(block) = free.next() else { return Err(PlanError::Internal("block map")) };
        match data.last_mut() {
            Some(last) if last.run.end() == block => last.run.len_blocks += 1,
            _ => data
                .push(MappedRun { logical: LogicalBlock(logical), run: BlockRun::new(block, 1) }),
        }
    }
    inode.blocks += count + nodes;
    let built = block_map::build(&data, form, nr, &places)?;
    inode.block = built.root;
    for (block, bytes) in built.blocks {
        plan.put(&[BlockRun::new(block, 1)], bytes);
    }
    Ok(data.into_iter().map(|one| one.run).collect())
}
