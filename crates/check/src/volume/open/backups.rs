//! Backups of the superblock: where they can lie, and those that say something better than the primary.

use floe_blockdev::{ReadBlocks, is_foreign_disk_image};
use floe_format::geometry::{Geometry, Strictness};
use floe_format::{BlockNr, InodeNr};

use super::Opened;
use super::candidate::{Candidate, judged_features, read_candidate, unknown_features};
use crate::problem::{Findings, Problem};
use crate::volume::descriptors;
use crate::volume::layout_map::LayoutMap;

/// `s_first_ino` as every mke2fs writes it.
pub(super) const USUAL_FIRST_INODE: InodeNr = InodeNr(11);
/// `log2` of the smallest and the largest block.
const BLOCK_BITS: std::ops::RangeInclusive<u32> = 10..=16;

/// The first usable backup, of those that file systems of this block size and with so many blocks in
/// a group have.
pub(super) fn find_backup(
    device: &dyn ReadBlocks,
    block_size: Option<u32>,
    blocks_per_group: Option<u32>,
) -> Option<Candidate> {
    if is_disk_image(device) {
        return None;
    }
    backup_places(device, block_size, blocks_per_group).find_map(|(block, size)| {
        let offset = block.0.checked_mul(u64::from(size))?;
        read_candidate(device, offset, Some(size), Some(block), Strictness::Strict).ok()
    })
}

/// Whether the device is a disk image in a format that is not read here: its blocks lie elsewhere than on the disk, so that
/// a superblock met in it tells nothing.
fn is_disk_image(device: &dyn ReadBlocks) -> bool {
    let mut head = [0; 512];
    device.read_at(0, &mut head).is_ok() && is_foreign_disk_image(&head)
}

/// The backup whose descriptors make the most sense, the first of several: a damaged copy of them loses as much as the primary
/// one would.
pub(super) fn backup_with_sane_descriptors(
    device: &dyn ReadBlocks,
    geometry: &Geometry,
) -> Option<Candidate> {
    let mut best: Option<(usize, Candidate)> = None;
    for (block, size) in
        backup_places(device, Some(geometry.block_size), Some(geometry.blocks_per_group))
    {
        let offset = block.0.checked_mul(u64::from(size))?;
        let read = read_candidate(device, offset, Some(size), Some(block), Strictness::Strict);
        let Ok(backup) = read else { continue };
        let mut judged = Findings::default();
        let (superblock, own) = (&backup.superblock, &backup.geometry);
        let groups = descriptors::read(device, superblock, own, backup.backup, &mut judged);
        let layout = LayoutMap::new(superblock, own, &groups, device.size_bytes());
        let faults = judged.0.len() + usize::from(layout.insane.is_some());
        if best.as_ref().is_none_or(|(least, _)| faults < *least) {
            best = Some((faults, backup));
        }
        if faults == 0 {
            break;
        }
    }
    best.map(|(_, backup)| backup)
}

/// Blocks of backup superblocks that can be used, with the block size they state.
pub fn good_backups(device: &dyn ReadBlocks) -> Vec<(BlockNr, u32)> {
    backup_places(device, None, None)
        .filter(|&(block, size)| {
            block.0.checked_mul(u64::from(size)).is_some_and(|offset| {
                read_candidate(device, offset, Some(size), Some(block), Strictness::Strict).is_ok()
            })
        })
        .collect()
}

/// The first usable backup whose features are all known, with the block size it states.
pub(super) fn backup_of_known_features(device: &dyn ReadBlocks) -> Option<(BlockNr, u32)> {
    backup_places(device, None, None).find(|&(block, size)| {
        let Some(offset) = block.0.checked_mul(u64::from(size)) else { return false };
        let read = read_candidate(device, offset, Some(size), Some(block), Strictness::Strict);
        read.is_ok_and(|backup| unknown_features(&judged_features(&backup.superblock)).is_empty())
    })
}

/// A backup by whose UUID the checksums of the primary descriptors are right, where by that of the
/// primary superblock none is: all checksums of the file system begin with it, so that everything
/// would be taken for damaged.
pub(super) fn backup_that_fits(
    device: &dyn ReadBlocks,
    opened: &Opened,
    own: &Findings,
) -> Option<Candidate> {
    let geometry = &opened.geometry;
    let wrong = |found: &Findings| {
        let is_wrong =
            |problem: &&Problem| matches!(problem, Problem::GroupDescriptorChecksumBad { .. });
        found.0.iter().filter(is_wrong).count()
    };
    let groups = opened.groups.len();
    if !geometry.features.metadata_csum() || groups < 2 || wrong(own) < groups {
        return None;
    }
    let (size, per_group) = (geometry.block_size, geometry.blocks_per_group);
    let backup = find_backup(device, Some(size), Some(per_group))?;
    let mut judged = Findings::default();
    let is_other = backup.superblock.seed() != opened.superblock.seed();
    descriptors::read(device, &backup.superblock, geometry, None, &mut judged);
    (is_other && wrong(&judged) * 2 < groups).then_some(backup)
}

/// A backup of the same file system in which `s_first_ino` is lower. Nothing ever changes that field,
/// and everything below it would be taken from the directories and emptied. Every mke2fs writes 11,
/// so that nobody else pays for the search.
pub(super) fn backup_with_more_files(
    device: &dyn ReadBlocks,
    opened: &Opened,
) -> Option<Candidate> {
    let (own, geometry) = (&opened.superblock, &opened.geometry);
    if geometry.first_inode <= USUAL_FIRST_INODE {
        return None;
    }
    let (size, per_group) = (geometry.block_size, geometry.blocks_per_group);
    let backup = find_backup(device, Some(size), Some(per_group))?;
    let is_same = backup.superblock.uuid == own.uuid
        && backup.superblock.inodes_per_group == own.inodes_per_group;
    (is_same && backup.geometry.first_inode < geometry.first_inode).then_some(backup)
}

/// Block sizes to try.
pub(super) fn sizes(known: Option<u32>) -> impl Iterator<Item = u32> {
    BLOCK_BITS.map(|bits| 1 << bits).filter(move |&size| known.is_none_or(|known| known == size))
}

/// Clusters of bigalloc have up to so many blocks, as a power of two.
const MOST_CLUSTER_BITS: u32 = 15;

/// Places where a backup could lie, with the block size that goes with them, inside the device:
/// groups 1 and powers of 3, 5 and 7, for the block size known or each one. Where the size of groups is not known, it is the usual
/// one; with bigalloc groups are larger, and of each size that they may have then only groups 1 and 3 are looked at.
fn backup_places(
    device: &dyn ReadBlocks,
    block_size: Option<u32>,
    blocks_per_group: Option<u32>,
) -> impl Iterator<Item = (BlockNr, u32)> {
    let size_bytes = device.size_bytes();
    sizes(block_size).flat_map(move |size| {
        let per_group = u64::from(blocks_per_group.unwrap_or(size * 8));
        let end = size_bytes / u64::from(size);
        // Blocks of 1 KiB are counted from 1, with bigalloc from 0.
        let firsts: &[u64] = if size == 1024 { &[1, 0] } else { &[0] };
        let usual = backup_groups()
            .flat_map(move |group| firsts.iter().map(move |first| group * per_group + first));
        let bits = if blocks_per_group.is_none() { MOST_CLUSTER_BITS } else { 0 };
        let of_clusters =
            (1..=bits).flat_map(move |bits| [1, 3].map(|group| (group * per_group) << bits));
        usual
            .take_while(move |block| *block < end)
            .chain(of_clusters.filter(move |block| *block < end))
            .map(move |block| (BlockNr(block), size))
    })
}

/// Groups that may hold a backup, in ascending order.
fn backup_groups() -> impl Iterator<Item = u64> {
    let mut next = [1u64, 5, 7];
    std::iter::from_fn(move || {
        let group = *next.iter().min()?;
        if group > u64::from(u32::MAX) {
            return None;
        }
        for (at, base) in next.iter_mut().zip([3, 5, 7]) {
            if *at == group {
                *at *= base;
            }
        }
        Some(group)
    })
}
