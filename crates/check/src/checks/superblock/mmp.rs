//! Check: multiple-mount protection says that nobody else uses the file system.
//! Reads: the MMP block, backup superblocks.  Keeps: nothing.  Emits: `Mmp*`; each of them ends the check.
//! Does not verify: that a sequence number stands still, which would take seconds; writers do (`floe_repair::multi_mount`).

use floe_blockdev::this_boot;
use floe_format::ext::mmp::{MAGIC, Mmp, SEQ_CLEAN, SEQ_FSCK, SEQ_MAX};
use floe_format::ext::superblock::{MAGIC as SUPERBLOCK_MAGIC, Superblock};
use floe_format::features::Incompat;
use floe_format::{BlockNr, GroupNr};

use crate::problem::Problem;
use crate::volume::Volume;

/// Bits of the mark that may be wrong in a block that is believed all the same.
const DAMAGED_BITS: u32 = 2;
/// Backup superblocks that are asked, at most.
const BACKUPS_ASKED: usize = 16;

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
        return Some(without_mark(volume, block, &bytes));
    }
    if volume.features().metadata_csum() && !Mmp::checksum_ok(volume.seed, &bytes) {
        let expected = Mmp::compute_checksum(volume.seed, &bytes);
        return Some(Problem::MmpChecksumBad { block, stored: mmp.checksum, expected });
    }
    if mmp.seq != SEQ_CLEAN && mmp.seq > SEQ_MAX && !is_of_this_boot(&mmp) {
        return Some(Problem::MmpInUse { block, sequence: mmp.seq });
    }
    None
}

/// The device name that a repair by Floe leaves in its mark: the kernel's present start.
pub fn device_name() -> Option<[u8; 32]> {
    let name = format!("floe {}", this_boot()?);
    let mut bytes = [0; 32];
    let len = name.len().min(bytes.len());
    bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
    Some(bytes)
}

/// Whether the mark of a checker is one that a repair by Floe made since this machine started. Repairs hold a lock that the
/// machine enforces, and whoever opens the device heeds it: so that repair was killed, or the caller is told of it.
pub fn is_of_this_boot(mmp: &Mmp) -> bool {
    mmp.seq == SEQ_FSCK && Some(mmp.bdevname) == device_name()
}

/// The block named has no mark: damaged, or not the block. A wrong number must not be believed, because whoever
/// writes a clean block there writes over a user's file.
fn without_mark(volume: &Volume<'_>, block: BlockNr, bytes: &[u8; 1024]) -> Problem {
    let mmp = Mmp::decode(bytes);
    let mut mended = *bytes;
    Mmp { magic: MAGIC, ..mmp.clone() }.encode_into(&mut mended);
    let whole_but_mark =
        volume.features().metadata_csum() && Mmp::checksum_ok(volume.seed, &mended);
    let known = place_by_backup(volume);
    if (mmp.magic ^ MAGIC).count_ones() <= DAMAGED_BITS || whole_but_mark || known == Some(block) {
        return Problem::MmpMagicBad { block, stored: mmp.magic };
    }
    let expected = known.filter(|&place| has_mark(volume, place));
    Problem::MmpBlockWrong { block, expected: expected.unwrap_or(BlockNr(0)) }
}

/// Where the first good backup superblock says that the block is.
fn place_by_backup(volume: &Volume<'_>) -> Option<BlockNr> {
    let geometry = &volume.geometry;
    let places = (1..geometry.group_count).filter_map(|it| geometry.superblock_of(GroupNr(it)));
    places.take(BACKUPS_ASKED).find_map(|block| {
        let mut bytes = [0; 1024];
        volume.device.read_at(geometry.offset_bytes(block), &mut bytes).ok()?;
        let backup = Superblock::decode(&bytes);
        let good = backup.magic == SUPERBLOCK_MAGIC
            && Superblock::checksum_ok(&bytes)
            && backup.uuid == volume.superblock.uuid
            && backup.features().incompat.contains(Incompat::MMP);
        good.then_some(BlockNr(backup.mmp_block))
    })
}

fn has_mark(volume: &Volume<'_>, block: BlockNr) -> bool {
    let geometry = &volume.geometry;
    let mut bytes = [0; 1024];
    block.0 > geometry.first_data_block.0
        && geometry.contains(block)
        && volume.device.read_at(geometry.offset_bytes(block), &mut bytes).is_ok()
        && Mmp::decode(&bytes).magic == MAGIC
}
