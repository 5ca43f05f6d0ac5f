//! The orphan list: completes the deletion or truncation of files that were open at a crash.

use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::ext::orphan_file::{OrphanBlock, TAIL_SIZE};
use floe_format::features::RoCompat;
use floe_format::{BlockNr, InodeNr};

use crate::edit::OrphanEdit;
use crate::failure::Failure;
use crate::file_map::FileMap;
use crate::stage::Stage;
use floe_ext4::journal::{find_cubes, orphans_in};
use floe_ext4::map::walk::has_map;

pub(super) fn apply(stage: &mut Stage<'_>, edit: OrphanEdit) -> Result<(), Failure> {
    match edit {
        OrphanEdit::Empty => {
            stage.superblock_mut().last_orphan = 0;
            Ok(())
        }
        OrphanEdit::Finish(inode) => finish(stage, inode),
    }
}

/// Releases an inode without links; truncates any other to its size.
fn finish(stage: &mut Stage<'_>, inode: InodeNr) -> Result<(), Failure> {
    let mut image = stage.read_inode(inode)?;
    if image.base.links_count == 0 {
        image.base.dtime = stage.now32();
        image.base.flags = 0;
        image.base.mode = 0;
        stage.write_inode(&image)?;
    } else {
        let is_plain = matches!(
            FileType::of_mode(image.base.mode),
            Some(FileType::Regular | FileType::Directory)
        );
        if is_plain && has_map(&image.base) && !image.flags().contains(InodeFlags::VERITY) {
            cut(stage, &mut image)?;
        }
        image.base.dtime = 0;
        stage.write_inode(&image)?;
    }
    stage.superblock_mut().last_orphan = 0;
    clear_slots(stage, inode)
}

/// Frees the blocks beyond the size, and zeroes the rest of the last block.
fn cut(stage: &mut Stage<'_>, image: &mut crate::stage::InodeImage) -> Result<(), Failure> {
    let block_size = u64::from(stage.geometry.block_size);
    let (size, mut map) = (image.size_bytes(), FileMap::load(stage, image));
    let keep = size.div_ceil(block_size);
    let before = map.blocks();
    map.truncate(keep);
    let tail = size % block_size;
    if tail != 0
        && let Some(block) = map.find(floe_format::LogicalBlock(size / block_size))
    {
        let mut bytes = stage.read_block(block)?;
        // Less than a block, so it fits.
        bytes[tail as usize..].fill(0);
        stage.write_block(block, &bytes)?;
    }
    if map.blocks() != before {
        map.store(stage, image)?;
    }
    Ok(())
}

/// Removes an inode from the orphan file and from the blocks of cubes; empty slots are zero.
fn clear_slots(stage: &mut Stage<'_>, orphan: InodeNr) -> Result<(), Failure> {
    let volume = &stage.evidence.volume;
    let superblock = stage.superblock();
    let cubes = find_cubes(stage.overlay, superblock, &volume.geometry, &volume.groups).usable;
    for own in cubes {
        if orphans_in(&own, &stage.read_block(own.orphan_block)?).is_none() {
            // It has a finding of its own; a right checksum would hide that.
            continue;
        }
        keep_in_block(stage, own.orphan_block, own.seed, |other| other != orphan)?;
    }
    if !stage.geometry.features.ro_compat.contains(RoCompat::ORPHAN_PRESENT) {
        return Ok(());
    }
    let file = stage.read_inode(InodeNr(stage.superblock().orphan_file_inum))?;
    let map = FileMap::load(stage, &file);
    let blocks: Vec<BlockNr> = map
        .runs
        .iter()
        .flat_map(|extent| extent.run.start.0..extent.run.end().0)
        .map(BlockNr)
        .collect();
    let seed = stage.seed.of_inode(file.number, file.base.generation);
    let seed = stage.checksummed().then_some(seed);
    blocks.into_iter().try_for_each(|block| keep_in_block(stage, block, seed, |one| one != orphan))
}

/// Empties the slots of a block of orphans that are not to be kept. `seed` is that of its checksum, where there are checksums.
pub(super) fn keep_in_block(
    stage: &Stage<'_>,
    block: BlockNr,
    seed: Option<u32>,
    keeps: impl Fn(InodeNr) -> bool,
) -> Result<(), Failure> {
    let mut bytes = stage.read_block(block)?;
    let slots = bytes.len() - TAIL_SIZE;
    let mut found = false;
    for slot in bytes[..slots].as_chunks_mut::<4>().0 {
        let inode = InodeNr(u32::from_le_bytes(*slot));
        if inode.0 != 0 && !keeps(inode) {
            slot.fill(0);
            found = true;
        }
    }
    if !found {
        return Ok(());
    }
    let checksum = seed.and_then(|seed| {
        OrphanBlock::new(&bytes).map(|stored| stored.compute_checksum(seed, block))
    });
    if let Some(checksum) = checksum {
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&checksum.to_le_bytes());
    }
    stage.write_block(block, &bytes)
}
