//! Compares an undo file with a device, and reverts a repair.

use floe_blockdev::{ReadBlocks, RestoreError, Restored, UndoFile, WriteBlocks};
use floe_format::ext::superblock::OFFSET_BYTES as SUPERBLOCK_AT;

use crate::commit::{marked, superblock_of};
use crate::multi_mount::{Marked, MmpBlock};

/// Sector size that disks write atomically: a superblock may be torn between two sectors.
const SECTOR_BYTES: usize = 512;

/// State of a device with respect to an undo file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The device holds all the old bytes: nothing to undo.
    Untouched,
    /// The commit or an earlier undo was interrupted.
    Partly,
    /// The commit is complete.
    Committed,
    /// It was complete, and some of its blocks were written again since, whether or not the superblock was.
    Changed {
        /// How many, in units of the undo file.
        blocks: u64,
        /// The first byte of the first one.
        first_bytes: u64,
    },
    /// The superblock is neither the old nor the new one, nor one that a crash in between can
    /// leave: the undo file belongs to another file system, or this one was used since.
    Foreign,
}

/// Determines the state of `device` with respect to an undo file. `device` begins where the file
/// system does.
///
/// `e2undo` recognises only the completed change and must be forced in all other states.
///
/// # Errors
/// The device is smaller than the undo file needs, or one of the two cannot be read.
pub fn standing(file: &UndoFile, device: &dyn ReadBlocks) -> Result<Standing, RestoreError> {
    if file.differing(device)?.is_empty() {
        return Ok(Standing::Untouched);
    }
    let Some(now) = superblock_of(device) else { return Ok(Standing::Foreign) };
    let after = file.superblock_after();
    let mut before = [0; 1024];
    file.read_old(device, SUPERBLOCK_AT, &mut before)?;
    if now.as_slice() == after {
        // A superblock that never gets a mark may also be that of an interrupted commit or undo, with torn blocks.
        let is_complete = is_saved(file) && marked(after).is_some();
        let changed = if is_complete { file.changed_since(device)? } else { Vec::new() };
        return Ok(match changed.first() {
            Some(&first_bytes) => Standing::Changed { blocks: changed.len() as u64, first_bytes },
            None => Standing::Committed,
        });
    }
    if !is_saved(file) && before != *after {
        // The old superblock was not saved, so the comparison says nothing.
        return Ok(Standing::Foreign);
    }
    let between = file.superblocks_in_between().iter();
    let known: Vec<[u8; 1024]> = [&before, after]
        .into_iter()
        .chain(between)
        .flat_map(|known| [Some(*known), marked(known)])
        .flatten()
        .collect();
    let is_known = |at: usize| {
        let sector = at..at + SECTOR_BYTES;
        known.iter().any(|known| known[sector.clone()] == now[sector.clone()])
    };
    let all_known = (0..now.len()).step_by(SECTOR_BYTES).all(is_known);
    Ok(if all_known { Standing::Partly } else { Standing::Foreign })
}

/// Restores all old bytes, after which the device has its state from before the commit.
///
/// The clean flag is cleared meanwhile. Undoing can be repeated after a crash or an error. The
/// caller has checked [`standing`].
///
/// # Errors
/// [`RestoreError`] says whether anything was written.
pub fn undo(file: &UndoFile, device: &dyn WriteBlocks) -> Result<Restored, RestoreError> {
    let wrap =
        |source| RestoreError::Write { offset_bytes: SUPERBLOCK_AT, restored_bytes: 0, source };
    // The mark keeps other machines away. Its block gets the old content of the file when that is over.
    let place = if file.differing(&device)?.is_empty() { None } else { MmpBlock::now(device) };
    let is_in_file = |place: &MmpBlock| {
        let start = place.start_bytes();
        file.saved().iter().any(|saved| saved.range().contains(&start))
    };
    let ends_clean = !place.as_ref().is_some_and(is_in_file);
    let held = Marked::new(device, place, ends_clean).map_err(wrap)?;
    let device: &dyn WriteBlocks = &held;
    // The clean flag must not be cleared if no saved superblock restores it.
    if is_saved(file)
        && !file.differing(&device)?.is_empty()
        && let Some(superblock) = superblock_of(&device).and_then(|now| marked(&now))
    {
        device.write_at(SUPERBLOCK_AT, &superblock).map_err(wrap)?;
        device.flush().map_err(wrap)?;
    }
    let restored = file.restore(device)?;
    held.end().map_err(wrap)?;
    Ok(restored)
}

/// Whether the undo file includes the primary superblock.
fn is_saved(file: &UndoFile) -> bool {
    file.saved().iter().any(|saved| {
        let range = saved.range();
        range.start <= SUPERBLOCK_AT && range.end >= SUPERBLOCK_AT + 1024
    })
}
