//! Rebuilds directories: sorted, without duplicate names, with an index where useful.

use floe_format::ext::inode::InodeFlags;
use floe_format::features::Incompat;
use floe_format::{BlockNr, InodeNr, LogicalBlock};

use super::dirents::OpenDir;
use crate::failure::Failure;
use crate::stage::Stage;
use floe_check::problem::Name;
use floe_ext4::dir::{self as directory, Rebuilt, Settled};

/// Rebuilds a directory in its own blocks; allocates more if needed and frees surplus ones.
pub(super) fn rebuild(stage: &mut Stage<'_>, inode: InodeNr) -> Result<(), Failure> {
    let mut open = OpenDir::new(stage, inode)?;
    open.dir.parent = open.parent(stage);
    if open.is_inline() {
        return drop_index_flag(stage, inode);
    }
    let content = content(stage, &open)?;
    let size_blocks = open.map.end();
    let lost_found = stage.lost_found() == Some(inode);
    let entries = directory::gather(&content, &open.format, &open.dir);
    let rebuilt = directory::rebuild(&open.format, &open.dir, size_blocks, lost_found, entries);
    write(stage, &mut open, &rebuilt)?;
    for settled in &rebuilt.settled {
        stage.note(format!("{inode}: {}", text(settled)));
    }
    Ok(())
}

/// A directory whose entries lie in the inode has no index.
fn drop_index_flag(stage: &Stage<'_>, inode: InodeNr) -> Result<(), Failure> {
    let mut image = stage.read_inode(inode)?;
    if !image.flags().contains(InodeFlags::INDEX) {
        return Ok(());
    }
    image.base.flags &= !InodeFlags::INDEX.bits();
    stage.write_inode(&image)
}

/// The concatenated blocks of a directory. Holes and unreadable blocks become zeroes, which hold no
/// entries.
fn content(stage: &Stage<'_>, open: &OpenDir) -> Result<Vec<u8>, Failure> {
    let block_size = stage.block_size();
    let blocks = usize::try_from(open.map.end())
        .ok()
        .filter(|&blocks| blocks as u64 <= stage.geometry.blocks_count)
        .ok_or(Failure::NotNow("the directory is larger than the file system"))?;
    let mut content = vec![0; blocks * block_size];
    for (at, bytes) in content.chunks_exact_mut(block_size).enumerate() {
        if let Some(block) = open.map.find_in_order(LogicalBlock(at as u64)) {
            bytes.copy_from_slice(&stage.read_block(block)?);
        }
    }
    Ok(content)
}

/// Stages the blocks of a rebuilt directory, its map, size and flags.
pub(super) fn write(
    stage: &mut Stage<'_>,
    open: &mut OpenDir,
    rebuilt: &Rebuilt,
) -> Result<(), Failure> {
    let block_size = stage.block_size();
    let blocks = (rebuilt.content.len() / block_size) as u64;
    open.map.fill(stage, blocks)?;
    open.map.truncate(blocks);
    open.map.store(stage, &mut open.image)?;
    open.image.set_size_bytes(rebuilt.content.len() as u64);
    let index = InodeFlags::INDEX.bits();
    open.image.base.flags &= !index;
    if rebuilt.indexed {
        open.image.base.flags |= index;
    }
    if rebuilt.needs_large_dir {
        stage.superblock_mut().feature_incompat |= Incompat::LARGEDIR.bits();
    }
    let total = open.map.blocks();
    super::inodes::set_blocks(stage, &mut open.image, total);
    stage.write_inode(&open.image)?;
    for (at, bytes) in rebuilt.content.chunks_exact(block_size).enumerate() {
        let block = open.map.find_in_order(LogicalBlock(at as u64)).unwrap_or(BlockNr(0));
        stage.write_block(block, bytes)?;
    }
    Ok(())
}

fn text(settled: &Settled) -> String {
    match settled {
        Settled::DroppedSame { inode, name } => {
            format!("duplicate name {} for {inode}", Name::new(name))
        }
        Settled::DroppedNoKey { inode, name } => format!(
            "duplicate name {}; the entry of {inode} was dropped: an encrypted name \
             cannot be changed",
            Name::new(name)
        ),
        Settled::Renamed { inode, from, to } => format!(
            "duplicate name {}; the entry of {inode} was renamed to {}",
            Name::new(from),
            Name::new(to)
        ),
        Settled::DroppedBad { inode, name } => {
            format!("the name {} of {inode} cannot be kept", Name::new(name))
        }
    }
}
