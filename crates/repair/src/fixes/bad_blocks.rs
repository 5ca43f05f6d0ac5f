//! The list of bad blocks (inode 1).

use floe_format::{BlockNr, InodeNr};

use crate::failure::Failure;
use crate::file_map::FileMap;
use crate::stage::Stage;

/// Takes a block off the list: it holds what the file system cannot do without.
pub(super) fn forget(stage: &mut Stage<'_>, block: BlockNr) -> Result<(), Failure> {
    let mut image = stage.read_inode(InodeNr::BAD_BLOCKS)?;
    let mut map = FileMap::load(stage, &image);
    let logicals: Vec<_> = map
        .runs
        .iter()
        .filter(|extent| extent.run.start <= block && block < extent.run.end())
        .map(|extent| floe_format::LogicalBlock(extent.logical.0 + block.0 - extent.run.start.0))
        .collect();
    for logical in logicals {
        map.remove(logical);
    }
    map.store(stage, &mut image)?;
    super::inodes::set_blocks(stage, &mut image, map.blocks());
    stage.write_inode(&image)
}
