//! The orphan file: cleared, recreated or removed.

use floe_format::ext::extent::Extent;
use floe_format::ext::orphan_file;
use floe_format::features::{Compat, RoCompat};
use floe_format::{BlockNr, InodeNr};

use crate::edit::OrphanFileEdit;
use crate::failure::Failure;
use crate::file_map::FileMap;
use crate::stage::{InodeImage, MODE_PRIVATE, Stage};

/// Bounds for the size of a new orphan file in blocks; the size scales with the file system.
const LEAST_BLOCKS: u64 = 32;
const MOST_BLOCKS: u64 = 512;
/// File system blocks per block of the orphan file.
const BLOCKS_PER_BLOCK: u64 = 4096;

pub(super) fn apply(stage: &mut Stage<'_>, edit: OrphanFileEdit) -> Result<(), Failure> {
    match edit {
        OrphanFileEdit::Forget => {
            stage.superblock_mut().orphan_file_inum = 0;
            Ok(())
        }
        OrphanFileEdit::Adopt(inode) => adopt(stage, inode),
        OrphanFileEdit::Remove => remove(stage),
        OrphanFileEdit::Recreate => recreate(stage),
        OrphanFileEdit::Clean => clean(stage),
        OrphanFileEdit::ClearPresent => {
            clear_present(stage);
            Ok(())
        }
    }
}

fn clear_present(stage: &mut Stage<'_>) {
    stage.superblock_mut().feature_ro_compat &= !RoCompat::ORPHAN_PRESENT.bits();
}

fn number(stage: &Stage<'_>) -> InodeNr {
    InodeNr(stage.superblock().orphan_file_inum)
}

/// Restores a lost orphan file to its role, or releases it if the superblock names another one.
fn adopt(stage: &mut Stage<'_>, inode: InodeNr) -> Result<(), Failure> {
    if number(stage).0 == 0 {
        stage.superblock_mut().orphan_file_inum = inode.0;
        return Ok(());
    }
    let size = stage.geometry.inode_size as usize;
    stage.write_raw_inode(inode, &vec![0; size])
}

fn remove(stage: &mut Stage<'_>) -> Result<(), Failure> {
    let inode = number(stage);
    let size = stage.geometry.inode_size as usize;
    stage.write_raw_inode(inode, &vec![0; size])?;
    clear_present(stage);
    let sb = stage.superblock_mut();
    sb.feature_compat &= !Compat::ORPHAN_FILE.bits();
    sb.orphan_file_inum = 0;
    Ok(())
}

/// Clears all blocks of the file.
fn clean(stage: &mut Stage<'_>) -> Result<(), Failure> {
    let file = stage.read_inode(number(stage))?;
    let map = FileMap::load(stage, &file);
    write_clean(stage, &file, &map.runs)?;
    clear_present(stage);
    Ok(())
}

fn write_clean(stage: &Stage<'_>, file: &InodeImage, runs: &[Extent]) -> Result<(), Failure> {
    let seed = stage.checksummed().then(|| stage.inode_seed(file));
    let mut bytes = vec![0; stage.block_size()];
    for extent in runs {
        for block in (extent.run.start.0..extent.run.end().0).map(BlockNr) {
            orphan_file::encode_clean(&mut bytes, seed, block);
            stage.write_block(block, &bytes)?;
        }
    }
    Ok(())
}

/// Creates a new file in the same inode; the next examination finds the old blocks unused.
fn recreate(stage: &mut Stage<'_>) -> Result<(), Failure> {
    let geometry = stage.geometry.clone();
    let inode = match number(stage) {
        inode if geometry.place_of(inode).is_some() => inode,
        // The inode number is lost: allocate another inode.
        _ => {
            let inode = stage.allocate_inode(InodeNr::ROOT)?;
            stage.write_raw_inode(inode, &vec![0; geometry.inode_size as usize])?;
            stage.superblock_mut().orphan_file_inum = inode.0;
            inode
        }
    };
    let mut file = stage.new_inode(inode, MODE_PRIVATE)?;
    let blocks = (geometry.blocks_count / BLOCKS_PER_BLOCK).clamp(LEAST_BLOCKS, MOST_BLOCKS);
    let mut map = FileMap::allocate(stage, blocks)?;
    file.set_size_bytes(blocks * u64::from(geometry.block_size));
    map.store(stage, &mut file)?;
    super::inodes::set_blocks(stage, &mut file, map.blocks());
    stage.write_inode(&file)?;
    write_clean(stage, &file, &map.runs)?;
    clear_present(stage);
    Ok(())
}
