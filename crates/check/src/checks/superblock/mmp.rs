//! Check: multiple-mount protection says that nobody else uses the file system.
//! Reads: the MMP block.  Keeps: nothing.  Emits: `Mmp*`; each of them ends the check.
//! Does not verify: that a sequence number stands still, which would take seconds.

use floe_format::BlockNr;
use floe_format::ext::mmp::{MAGIC, Mmp, SEQ_CLEAN, SEQ_MAX};
use floe_format::features::Incompat;

use crate::problem::Problem;
use crate::volume::Volume;

/// The reason not to check the file system, if there is one.
pub fn check(volume: &Volume<'_>) -> Option<Problem> {
    if !volume.has_incompat(Incompat::MMP) {
        return None;
    }
    let geometry = &volume.geometry;
    let block = BlockNr(volume.superblock.mmp_block);
    if block.0 <= geometry.first_data_block.0 || block.0 >= geometry.blocks_count {
        return Some(Problem::MmpBlockOutOfRange { block });
    }
    let mut bytes = [0; 1024];
    if volume.device.read_at(geometry.offset_bytes(block), &mut bytes).is_err() {
        return Some(Problem::MmpBlockOutOfRange { block });
    }
    let mmp = Mmp::decode(&bytes);
    if mmp.magic != MAGIC {
        return Some(Problem::MmpMagicBad { block, stored: mmp.magic });
    }
    if volume.features().metadata_csum() && !Mmp::checksum_ok(volume.seed, &bytes) {
        let expected = Mmp::compute_checksum(volume.seed, &bytes);
        return Some(Problem::MmpChecksumBad { block, stored: mmp.checksum, expected });
    }
    if mmp.seq != SEQ_CLEAN && mmp.seq > SEQ_MAX {
        return Some(Problem::MmpInUse { block, sequence: mmp.seq });
    }
    None
}
