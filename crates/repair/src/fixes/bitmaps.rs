//! Rewrites bitmaps and counts as the examination computed them.

use floe_check::Problem;
use floe_format::ext::bitmap;
use floe_format::ext::group_desc::{FLAG_BLOCK_UNINIT, FLAG_INODE_UNINIT};
use floe_format::{BlockNr, GroupNr};

use crate::failure::Failure;
use crate::stage::Stage;

/// Rewrites both bitmaps of a group, and its counts.
pub(super) fn write(stage: &mut Stage<'_>, group: GroupNr) -> Result<(), Failure> {
    stage.must_know(group)?;
    let mut blocks = block_bitmap(stage, group);
    let (inodes, mut dirs) = inode_bitmap(stage, group);
    if let Some(marked) = stage.marked_blocks(group) {
        // Unreadable inodes or directories may own the marked blocks.
        for (byte, marked) in blocks.iter_mut().zip(marked?) {
            *byte |= marked;
        }
        let marked_dirs = stage.group(group).used_dirs_count;
        dirs = dirs.max(marked_dirs.min(stage.geometry.inodes_per_group));
    }
    let geometry = stage.geometry.clone();
    let desc = stage.group(group);
    let checksums = geometry.features.metadata_csum();
    let shortcuts = geometry.features.group_desc_csum();
    let clusters = geometry.clusters_of(group);
    let free_clusters = clusters - bitmap::count(&blocks, 0..clusters);
    let per_group = geometry.inodes_per_group;
    let free_inodes = per_group - bitmap::count(&inodes, 0..per_group);
    // An uninitialised bitmap may stay uninitialised if it would equal the computed one.
    let keep_blocks = shortcuts && desc.block_uninit() && only_metadata(stage, group, &blocks);
    let keep_inodes = shortcuts && desc.inode_uninit() && free_inodes == per_group;
    if !keep_blocks {
        write_map(stage, desc.block_bitmap, &blocks)?;
    }
    if !keep_inodes {
        write_map(stage, desc.inode_bitmap, &inodes)?;
    }
    let cut = |bytes: &[u8], bits| {
        bitmap::checksum_cut(bitmap::checksum(stage.seed, bytes, bits), geometry.desc_size)
    };
    let block_checksum = cut(&blocks, geometry.clusters_per_group);
    let inode_checksum = cut(&inodes, per_group);
    let last_used = (0..per_group).rev().find(|&index| bitmap::test(&inodes, index));
    stage.edit_group(group, |desc| {
        desc.free_blocks_count = free_clusters;
        desc.free_inodes_count = free_inodes;
        desc.used_dirs_count = dirs;
        if !keep_blocks {
            desc.flags &= !FLAG_BLOCK_UNINIT;
            desc.block_bitmap_csum = if checksums { block_checksum } else { 0 };
        }
        if !keep_inodes {
            desc.flags &= !FLAG_INODE_UNINIT;
            desc.inode_bitmap_csum = if checksums { inode_checksum } else { 0 };
        }
        if shortcuts {
            // All inodes behind `bg_itable_unused` must be free.
            let free_tail = per_group - last_used.map_or(0, |index| index + 1);
            desc.itable_unused = desc.itable_unused.min(free_tail);
        }
    });
    Ok(())
}

/// Writes a bitmap. One whose location was lost is written in the round after it got a new one.
fn write_map(stage: &Stage<'_>, block: BlockNr, bytes: &[u8]) -> Result<(), Failure> {
    if block.0 == 0 {
        return Err(Failure::NotNow("the bitmap has no location yet"));
    }
    stage.write_block(block, bytes)
}

/// The block bitmap of a group, with the padding bits set.
fn block_bitmap(stage: &Stage<'_>, group: GroupNr) -> Vec<u8> {
    let geometry = &stage.geometry;
    let used = stage.evidence.claims.used();
    let first = u64::from(group.0) * u64::from(geometry.clusters_per_group);
    let clusters = geometry.clusters_of(group);
    let mut bytes = vec![0; stage.block_size()];
    for (at, word) in (0u64..).step_by(64).zip(bytes.chunks_exact_mut(8)) {
        if at >= u64::from(clusters) {
            break;
        }
        word.copy_from_slice(&used.word(first + at).to_le_bytes());
    }
    bitmap::fill(&mut bytes, clusters..u32::MAX, true);
    bytes
}

/// Whether a computed block bitmap equals the one that `BLOCK_UNINIT` implies.
fn only_metadata(stage: &Stage<'_>, group: GroupNr, blocks: &[u8]) -> bool {
    let computed = stage.evidence.volume.computed_block_bitmap(group);
    (0..stage.geometry.clusters_of(group)).all(|bit| {
        let word = computed.get(bit as usize / 64).copied().unwrap_or(0);
        bitmap::test(blocks, bit) == (word >> (bit % 64) & 1 != 0)
    })
}

/// The inode bitmap of a group, with the padding bits set, and its number of directories.
fn inode_bitmap(stage: &Stage<'_>, group: GroupNr) -> (Vec<u8>, u32) {
    let geometry = &stage.geometry;
    let per_group = geometry.inodes_per_group;
    let mut bytes = vec![0; stage.block_size()];
    let mut dirs = 0;
    let first = geometry.inode_at(group, 0).0;
    // Reserved inodes are always marked as used.
    let reserved = geometry.first_inode.0.saturating_sub(first).min(per_group);
    bitmap::fill(&mut bytes, 0..reserved, true);
    for (start, chunk) in stage.evidence.facts.chunks_of(group) {
        for (index, facts) in (start.0 - first..).zip(chunk.facts.iter()) {
            // An unreadable inode may be in use.
            if facts.is_used() || facts.is_bad() {
                bitmap::fill(&mut bytes, index..index + 1, true);
                dirs += u32::from(facts.is_dir());
            }
        }
    }
    bitmap::fill(&mut bytes, per_group..u32::MAX, true);
    (bytes, dirs)
}

/// Rewrites the free totals of the superblock as the examination counted them.
pub(super) fn write_totals(stage: &mut Stage<'_>) -> Result<(), Failure> {
    let evidence = stage.evidence;
    for found in &evidence.report.found {
        match *found {
            Problem::FreeBlockTotalWrong { counted, .. } => {
                let sb = stage.superblock_mut();
                sb.free_blocks_count_lo = (counted & 0xffff_ffff) as u32;
                sb.free_blocks_count_hi = (counted >> 32) as u32;
            }
            Problem::FreeInodeTotalWrong { counted, .. } => {
                stage.superblock_mut().free_inodes_count = counted;
            }
            _ => {}
        }
    }
    Ok(())
}
