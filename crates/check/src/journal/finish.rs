//! What recovery leaves behind: a superblock that looks recovered and an empty journal.

use floe_blockdev::{Overlay, ReadBlocks, WriteBlocks};
use floe_format::Geometry;
use floe_format::ext::jbd2::{Checksums, JournalSuperblock};
use floe_format::ext::superblock::{OFFSET_BYTES, STATE_ERROR, STATE_VALID, Superblock};

use super::locate::{Journal, recovered_features};
use super::log::Log;
use super::recover::Stop;

/// Writes both superblocks into the overlay. `next` is the transaction the log expected when it
/// ended; `stop` says how it ended.
pub(crate) fn finish<D: ReadBlocks>(
    overlay: &Overlay<D>,
    geo: &Geometry,
    journal: &Journal,
    next: u32,
    stop: Stop,
) {
    edit_superblock(overlay, |sb| {
        if journal.needs_replay {
            sb.feature_incompat = recovered_features(sb).incompat.bits();
        }
        if stop.failed {
            sb.state &= !STATE_VALID;
        }
        if stop.corrupt || journal.superblock.errno != 0 {
            sb.state |= STATE_ERROR;
        }
    });
    empty_journal(overlay, geo, journal, next, stop.failed);
}

/// Changes the primary superblock in the overlay and its checksum. A superblock that cannot be read
/// stays as it is: whoever opened the file system read it, so that does not happen.
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
    // In memory, and the same range was just read.
    drop(overlay.write_at(OFFSET_BYTES, &bytes));
}

/// Marks an internal journal empty. An external one is another device; it is left alone.
fn empty_journal<D: ReadBlocks>(
    overlay: &Overlay<D>,
    geo: &Geometry,
    journal: &Journal,
    next: u32,
    failed: bool,
) {
    let superblock = &journal.superblock;
    if journal.map.is_none() || (superblock.start == 0 && superblock.errno == 0) {
        return;
    }
    let Some(offset) = (Log { device: overlay.base(), journal }).offset_bytes(0) else { return };
    let mut block = vec![0; geo.block_size as usize];
    if overlay.base().read_at(offset, &mut block).is_err() {
        return;
    }
    let Some(bytes) = block.first_chunk_mut::<1024>() else { return };
    let mut emptied = superblock.clone();
    emptied.start = 0;
    emptied.errno = 0;
    // After a failure the number stays: the transactions were not consumed.
    if !failed && superblock.start != 0 {
        emptied.sequence = next.wrapping_add(1);
    }
    emptied.encode_into(bytes);
    if matches!(emptied.format().checksums, Checksums::V2 | Checksums::V3) {
        emptied.checksum = JournalSuperblock::compute_checksum(bytes);
        emptied.encode_into(bytes);
    }
    // In memory, and the same range was just read.
    drop(overlay.write_at(offset, &block));
}
