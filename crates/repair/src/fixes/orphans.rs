//! The orphan list: completes the deletion or truncation of files that were open at a crash.

use std::collections::BTreeMap;

use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::ext::orphan_file::{OrphanBlock, TAIL_SIZE};
use floe_format::features::RoCompat;
use floe_format::{BlockNr, InodeNr};

use crate::edit::{Edit, OrphanEdit};
use crate::failure::Failure;
use crate::file_map::FileMap;
use crate::stage::Stage;
use floe_ext4::journal::{CubeJournal, find_cubes, orphans_in};
use floe_ext4::map::walk::has_map;

use super::Made;
use super::orphan_values::OrphanValues;

/// Makes edits of orphans in order. The blocks that name orphans are read once for all of them.
pub(super) fn apply_all(stage: &mut Stage<'_>, edits: &[Edit]) -> Vec<Made> {
    let (mut slots, mut values) = (None, OrphanValues::default());
    let made = edits.iter().map(|edit| {
        let result = match edit {
            Edit::Orphans(OrphanEdit::Finish(inode)) => {
                finish(stage, *inode, &mut slots, &mut values)
            }
            _ => {
                stage.superblock_mut().last_orphan = 0;
                Ok(())
            }
        };
        (result, stage.take_notes())
    });
    made.collect()
}

/// Releases an inode without links; truncates any other to its size.
fn finish(
    stage: &mut Stage<'_>,
    inode: InodeNr,
    slots: &mut Option<OrphanSlots>,
    values: &mut OrphanValues,
) -> Result<(), Failure> {
    let mut image = stage.read_inode(inode)?;
    if image.base.links_count == 0 {
        values.release(stage, &image)?;
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
    // Empty slots are zero.
    let slots = match slots {
        Some(slots) => slots,
        None => slots.insert(OrphanSlots::read(stage)?),
    };
    slots.clear(stage, inode)
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

/// Whether the list of a cube's orphans, which begins in a block with these bytes, is sound.
pub(super) fn are_orphans_sound(stage: &Stage<'_>, own: &CubeJournal, bytes: &[u8]) -> bool {
    let next = &mut |inode| Some(stage.read_inode(inode).ok()?.base.dtime);
    orphans_in(own, &stage.geometry, bytes, next).is_some()
}

/// The blocks with slots for orphans, those of the orphan file and those of cubes, by the inodes in them.
#[derive(Debug, Default)]
struct OrphanSlots {
    /// A block, and the seed of its checksum, where there are checksums.
    blocks: Vec<(BlockNr, Option<u32>)>,
    /// For each orphan, the indices of blocks that name it.
    named: BTreeMap<InodeNr, Vec<usize>>,
}

impl OrphanSlots {
    /// Reads all such blocks once: a removal for each orphan on its own would read them as often as there are
    /// orphans.
    fn read(stage: &Stage<'_>) -> Result<Self, Failure> {
        let volume = &stage.evidence.volume;
        let superblock = stage.superblock();
        let cubes = find_cubes(stage.overlay, superblock, &volume.geometry, &volume.groups).usable;
        let mut slots = Self::default();
        for own in &cubes {
            // A list that is damaged or cannot be read has a finding of its own, which a right checksum would hide.
            let bytes = match stage.read_block(own.orphan_block) {
                Err(Failure::Unreadable(_)) => continue,
                bytes => bytes?,
            };
            if are_orphans_sound(stage, own, &bytes) {
                slots.blocks.push((own.orphan_block, own.seed));
            }
        }
        if stage.geometry.features.ro_compat.contains(RoCompat::ORPHAN_PRESENT) {
            let file = stage.read_inode(InodeNr(superblock.orphan_file_inum))?;
            let seed = stage.seed.of_inode(file.number, file.base.generation);
            let seed = stage.checksummed().then_some(seed);
            let runs = FileMap::load(stage, &file).runs;
            let blocks = runs.iter().flat_map(|extent| extent.run.start.0..extent.run.end().0);
            slots.blocks.extend(blocks.map(|block| (BlockNr(block), seed)));
        }
        for (index, &(block, _)) in slots.blocks.iter().enumerate() {
            let bytes = stage.read_block(block)?;
            for inode in slots_of(&bytes) {
                slots.named.entry(inode).or_default().push(index);
            }
        }
        Ok(slots)
    }

    /// Empties the slots of an orphan.
    fn clear(&self, stage: &Stage<'_>, orphan: InodeNr) -> Result<(), Failure> {
        let blocks = self.named.get(&orphan).into_iter().flatten();
        for &(block, seed) in blocks.filter_map(|&index| self.blocks.get(index)) {
            keep_in_block(stage, block, seed, |other| other != orphan)?;
        }
        Ok(())
    }
}

/// The inodes that a block of orphans names.
fn slots_of(bytes: &[u8]) -> impl Iterator<Item = InodeNr> {
    let slots = bytes.len().saturating_sub(TAIL_SIZE);
    let words = bytes.get(..slots).unwrap_or_default().as_chunks::<4>().0;
    words.iter().map(|slot| InodeNr(u32::from_le_bytes(*slot))).filter(|inode| inode.0 != 0)
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
