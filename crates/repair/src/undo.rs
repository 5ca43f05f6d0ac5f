//! Going back: what an undo file and a device have to do with each other, and undoing.

use floe_blockdev::{ReadBlocks, RestoreError, Restored, UndoFile, WriteBlocks};
use floe_format::ext::superblock::OFFSET_BYTES as SUPERBLOCK_AT;

use crate::commit::{marked, superblock_of};

/// Bytes that a disk writes whole or not at all: a superblock may be torn between two of these.
const SECTOR_BYTES: usize = 512;

/// How a device stands to an undo file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It holds all the old bytes: there is nothing to undo.
    Untouched,
    /// The change was begun and not finished, or is half undone.
    Partly,
    /// The change is complete.
    Committed,
    /// Its superblock is neither that from before nor that from after the change, nor one that a
    /// crash in between can leave: the undo file is of another file system, or this one was used
    /// since.
    Foreign,
}

/// How `device` stands to an undo file. `device` begins where the file system does.
///
/// `e2undo` knows only one state, the complete change, and wants to be forced in all others.
///
/// # Errors
/// If the device is smaller than the undo file needs, or one of the two cannot be read.
pub fn standing(file: &UndoFile, device: &dyn ReadBlocks) -> Result<Standing, RestoreError> {
    if file.differing(device)?.is_empty() {
        return Ok(Standing::Untouched);
    }
    let Some(now) = superblock_of(device) else { return Ok(Standing::Foreign) };
    let after = file.superblock_after();
    if now.as_slice() == after {
        return Ok(Standing::Committed);
    }
    let mut before = [0; 1024];
    file.read_old(device, SUPERBLOCK_AT, &mut before)?;
    if !is_saved(file) && before != *after {
        // What is read as old is only what is there now: it tells nothing.
        return Ok(Standing::Foreign);
    }
    let known = [Some(before), Some(*after), marked(&before), marked(after)];
    let is_known = |at: usize| {
        let sector = at..at + SECTOR_BYTES;
        known.iter().flatten().any(|known| known[sector.clone()] == now[sector.clone()])
    };
    let all_known = (0..now.len()).step_by(SECTOR_BYTES).all(is_known);
    Ok(if all_known { Standing::Partly } else { Standing::Foreign })
}

/// Brings all old bytes back, after which the device holds what it held before the change.
///
/// While that is under way, the file system does not call itself clean. It can be done again after
/// a crash or an error. The caller has looked at [`standing`].
///
/// # Errors
/// [`RestoreError`] says whether anything was written.
pub fn undo(file: &UndoFile, device: &dyn WriteBlocks) -> Result<Restored, RestoreError> {
    // Without a saved superblock there would be no way back for the mark.
    if is_saved(file)
        && !file.differing(&device)?.is_empty()
        && let Some(superblock) = superblock_of(&device).and_then(|now| marked(&now))
    {
        let wrap =
            |source| RestoreError::Write { offset_bytes: SUPERBLOCK_AT, restored_bytes: 0, source };
        device.write_at(SUPERBLOCK_AT, &superblock).map_err(wrap)?;
        device.flush().map_err(wrap)?;
    }
    file.restore(device)
}

/// Whether the primary superblock is among what was saved.
fn is_saved(file: &UndoFile) -> bool {
    file.saved().iter().any(|saved| {
        let range = saved.range();
        range.start <= SUPERBLOCK_AT && range.end >= SUPERBLOCK_AT + 1024
    })
}
