//! The last step of recovery: a superblock in the recovered state and an empty journal.

use floe_blockdev::{Overlay, ReadBlocks, WriteBlocks};
use floe_format::Geometry;
use floe_format::ext::superblock::{OFFSET_BYTES, STATE_ERROR, STATE_VALID, Superblock};
use floe_format::features::RoCompat;
use floe_format::geometry::Strictness;

use crate::inode_table;

use super::locate::{Journal, external_superblock, recovered_features};
use super::log::Log;
use super::orphans;
use super::recover::Stop;
use super::seen::seen;

/// The superblock block of an emptied journal: its offset on the device, and its bytes.
pub type EmptiedBlock = (u64, Vec<u8>);

/// Writes both superblocks into the overlay; for a journal on another device (`external`), returns
/// the journal superblock instead. `next` is the transaction that the log expected at its end;
/// `stop` says how recovery ended.
pub(crate) fn finish<D: ReadBlocks>(
    overlay: &Overlay<D>,
    geo: &Geometry,
    journal: &Journal,
    next: u32,
    stop: Stop,
    external: Option<&dyn ReadBlocks>,
) -> Option<EmptiedBlock> {
    // All descriptors are read for these, so not where nothing was replayed.
    let totals = if journal.needs_replay { free_totals(overlay, geo) } else { None };
    let no_orphans = journal.needs_replay && !stop.failed && is_orphan_file_empty(overlay, geo);
    let mut was_clean = false;
    edit_superblock(overlay, |sb| {
        was_clean = sb.state & STATE_VALID != 0;
        if no_orphans {
            // Linux sets it when it mounts, even if there are none.
            sb.feature_ro_compat &= !RoCompat::ORPHAN_PRESENT.bits();
        }
        if journal.needs_replay {
            sb.feature_incompat = recovered_features(sb).incompat.bits();
            if let Some((blocks, inodes)) = totals {
                sb.free_blocks_count_lo = (blocks & 0xffff_ffff) as u32;
                sb.free_blocks_count_hi = (blocks >> 32) as u32;
                sb.free_inodes_count = inodes;
            }
        }
        if stop.failed {
            sb.state &= !STATE_VALID;
        }
        if stop.corrupt || journal.superblock.errno != 0 {
            sb.state |= STATE_ERROR;
        }
    });
    let device: &dyn ReadBlocks = external.unwrap_or(overlay.base());
    // A repair that was interrupted may have emptied the journal: then the superblock is not marked
    // clean, and the sequence number was already increased.
    let stands_for_one = journal.needs_replay && was_clean;
    let (offset, block) = emptied(device, geo, journal, next, stop.failed, stands_for_one)?;
    if journal.map.is_none() {
        return Some((offset, block));
    }
    // Cannot fail: the overlay holds the range in memory, because it was just read.
    drop(overlay.write_at(offset, &block));
    None
}

/// The primary superblock after replay, and its geometry; `None` if it cannot be used. `opened` is
/// the geometry with which the file system was opened: if the superblock's numbers contradict each
/// other, `opened` has the number of inodes per group that was proved right
/// (`volume/open/inodes_per_group.rs`).
pub(crate) fn replayed_superblock<D: ReadBlocks>(
    overlay: &Overlay<D>,
    opened: &Geometry,
) -> Option<(Superblock, Geometry)> {
    let mut bytes = [0; 1024];
    overlay.read_at(OFFSET_BYTES, &mut bytes).ok()?;
    let mut sb = Superblock::decode(&bytes);
    if let Ok(geo) = Geometry::new(&sb, Strictness::Strict) {
        return Some((sb, geo));
    }
    sb.inodes_per_group = opened.inodes_per_group;
    let geo = Geometry::new(&sb, Strictness::Relaxed).ok()?;
    Some((sb, geo))
}

/// Like [`orphans::is_file_empty`], after replay.
fn is_orphan_file_empty<D: ReadBlocks>(overlay: &Overlay<D>, opened: &Geometry) -> bool {
    let Some((sb, geo)) = replayed_superblock(overlay, opened) else { return false };
    let Some(groups) = inode_table::read_groups(overlay, &geo) else { return false };
    orphans::is_file_empty(overlay, &sb, &geo, &groups)
}

/// Free blocks and inodes by the descriptors. Linux does not keep the totals of the superblock up
/// to date while mounted, and recomputes them when it mounts after a crash, so stale totals are not
/// damage.
fn free_totals<D: ReadBlocks>(overlay: &Overlay<D>, opened: &Geometry) -> Option<(u64, u32)> {
    let (_, geo) = replayed_superblock(overlay, opened)?;
    let groups = inode_table::read_groups(overlay, &geo)?;
    let clusters: u64 = groups.iter().map(|desc| u64::from(desc.free_blocks_count)).sum();
    let inodes: u64 = groups.iter().map(|desc| u64::from(desc.free_inodes_count)).sum();
    let blocks = clusters.checked_mul(u64::from(geo.cluster_blocks))?;
    // Leave descriptors that count more than exists to the check.
    if blocks > geo.blocks_count || inodes > u64::from(geo.inodes_count) {
        return None;
    }
    Some((blocks, u32::try_from(inodes).ok()?))
}

/// Changes the primary superblock in the overlay, and its checksum. A superblock that cannot be
/// read stays as it is, which does not happen, because the caller has read it.
pub(crate) fn edit_superblock<D: ReadBlocks>(
    overlay: &Overlay<D>,
    edit: impl FnOnce(&mut Superblock),
) {
    let mut bytes = [0; 1024];
    if overlay.read_at(OFFSET_BYTES, &mut bytes).is_err() {
        return;
    }
    let mut sb = Superblock::decode(&bytes);
    let before = sb.clone();
    edit(&mut sb);
    if sb == before {
        return;
    }
    sb.encode_into(&mut bytes);
    if sb.features().metadata_csum() {
        sb.checksum = Superblock::compute_checksum(&bytes);
        sb.encode_into(&mut bytes);
    }
    // Cannot fail: the overlay holds the range in memory, because it was just read.
    drop(overlay.write_at(OFFSET_BYTES, &bytes));
}

/// The superblock of the journal, emptied; `None` if it is empty already, or cannot be read.
/// `device` holds the journal. `stands_for_one`: even an empty journal stands for a transaction
/// that may have begun.
pub(crate) fn emptied(
    device: &dyn ReadBlocks,
    geo: &Geometry,
    journal: &Journal,
    next: u32,
    failed: bool,
    stands_for_one: bool,
) -> Option<EmptiedBlock> {
    let superblock = &journal.superblock;
    let is_as_stored = superblock.errno == 0 && journal.damage.is_none();
    if superblock.start == 0 && is_as_stored && !stands_for_one {
        return None;
    }
    let first = if journal.map.is_some() { 0 } else { external_superblock(geo) };
    let offset = (Log { device, journal, phase: None }).offset_bytes(first)?;
    let mut block = vec![0; geo.block_size as usize];
    device.read_at(offset, &mut block).ok()?;
    let bytes = block.first_chunk_mut::<1024>()?;
    let mut emptied = superblock.clone();
    emptied.start = 0;
    emptied.errno = 0;
    // If an empty journal stands for a transaction, some of its blocks may be in the log.
    if !failed && (superblock.start != 0 || stands_for_one) {
        emptied.sequence = next.wrapping_add(1);
    } else if failed {
        // Transactions that were not replayed stay in the log, and must not pass for new ones.
        let last = seen(device, geo, journal, superblock.sequence).ok()?.sequence;
        emptied.sequence = last.wrapping_add(1);
    }
    emptied.encode_sealed(bytes);
    Some((offset, block))
}
