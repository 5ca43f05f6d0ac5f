//! The bad block list (inode 1).

use floe_format::ext::extent::Extent;
use floe_format::ext::inode::InodeFlags;
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

use crate::failure::Failure;
use crate::file_map::FileMap;
use crate::stage::Stage;

/// Removes a block that holds critical metadata from the list.
pub(super) fn forget(stage: &mut Stage<'_>, block: BlockNr) -> Result<(), Failure> {
    let mut image = stage.read_inode(InodeNr::BAD_BLOCKS)?;
    let mut map = FileMap::load(stage, &image);
    let logicals: Vec<_> = map
        .runs
        .iter()
        .filter(|extent| extent.run.start <= block && block < extent.run.end())
        .map(|extent| LogicalBlock(extent.logical.0 + block.0 - extent.run.start.0))
        .collect();
    for logical in logicals {
        map.remove(logical);
    }
    map.store(stage, &mut image)?;
    super::inodes::set_blocks(stage, &mut image, map.blocks());
    stage.write_inode(&image)
}

/// Adds blocks to the list, or replaces it. The list is a block map, as all tools expect, even if
/// files have extents.
pub(super) fn list(
    stage: &mut Stage<'_>,
    blocks: &[BlockNr],
    replace: bool,
) -> Result<(), Failure> {
    let mut image = stage.read_inode(InodeNr::BAD_BLOCKS)?;
    let before: Vec<BlockNr> = blocks_of(&FileMap::load(stage, &image));
    let mut listed = if replace { Vec::new() } else { before.clone() };
    listed.extend(blocks.iter().copied().filter(|&block| stage.geometry.contains(block)));
    listed.sort_unstable();
    listed.dedup();
    if listed == before {
        return Ok(());
    }
    // The nodes of the old map are abandoned, for they may be bad themselves.
    let mut map = FileMap::default();
    for (&block, logical) in listed.iter().zip(0..) {
        let (logical, run) = (LogicalBlock(logical), BlockRun::new(block, 1));
        map.runs.push(Extent { logical, run, unwritten: false });
    }
    let needed = map.nodes_needed(&stage.geometry)?;
    while map.nodes.len() < needed {
        let node = stage.allocate(BlockNr(0))?;
        // A bad block among those allocated stays allocated, so that this round does not get it
        // again.
        if listed.binary_search(&node).is_err() {
            map.nodes.push(node);
        }
    }
    image.base.flags &= !(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA).bits();
    map.store(stage, &mut image)?;
    image.set_size_bytes(listed.len() as u64 * u64::from(stage.geometry.block_size));
    super::inodes::set_blocks(stage, &mut image, map.blocks());
    image.base.mtime = stage.now32();
    stage.write_inode(&image)
}

/// The blocks of a list, in list order.
fn blocks_of(map: &FileMap) -> Vec<BlockNr> {
    let runs = map.runs.iter().map(|extent| extent.run);
    runs.flat_map(|run| (run.start.0..run.end().0).map(BlockNr)).collect()
}
