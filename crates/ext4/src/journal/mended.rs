//! The superblock of a journal in which one bit is wrong. Its checksum tells which one, so the log is read as if nothing had happened,
//! and the damage is reported.

use floe_blockdev::ReadBlocks;
use floe_format::ext::jbd2::{
    self, CHECKSUM_CRC32C, Checksums, JournalIncompat, JournalSuperblock, SUPERBLOCK_V2,
};

/// Damage of the superblock of a journal that is used all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuperblockDamage {
    /// One bit is wrong, counted from the first byte, least significant first.
    Bit(u32),
    /// It is lost, and made anew from the log, which is in use; the fault.
    Rebuilt(&'static str),
}

/// Bytes of `s_sequence` and `s_start`.
const PLACE: std::ops::Range<usize> = 0x18..0x20;

/// Flips back the one bit that the checksum tells; `None`: there is none. `place` finds the byte of the device at which a block of the
/// journal lies.
pub(super) fn mend(
    bytes: &mut [u8; 1024],
    device: &dyn ReadBlocks,
    block_size: u32,
    place: &dyn Fn(u32) -> Option<u64>,
) -> Option<SuperblockDamage> {
    let bit = JournalSuperblock::wrong_bit(bytes)?;
    let mut mended = *bytes;
    mended[bit / 8] ^= 1 << (bit % 8);
    let (stored, superblock) =
        (JournalSuperblock::decode(bytes), JournalSuperblock::decode(&mended));
    let is_one = jbd2::header(&mended).is_some_and(|header| header.blocktype == SUPERBLOCK_V2);
    if !is_one || superblock.blocksize != block_size {
        return None;
    }
    let format = superblock.format();
    let is_proved = format.has_block_tails() && superblock.checksum_type == CHECKSUM_CRC32C;
    let leads = |superblock: &JournalSuperblock| leads(superblock, device, place);
    // Where somebody else has written since, the checksum is old, and what leads to a transaction is right: to its first block, where
    // both lead to one of it.
    let is_within =
        superblock.start < stored.start && stored.start - superblock.start < stored.maxlen / 4;
    let is_right = leads(&stored) && !(leads(&superblock) && is_within);
    let is_old = PLACE.contains(&(bit / 8)) && (is_right || !leads(&superblock));
    if !is_proved && (!is_async(&superblock) || is_old) {
        return None;
    }
    *bytes = mended;
    u32::try_from(bit).ok().map(SuperblockDamage::Bit)
}

/// Whether commits are asynchronous, with checksums of version 1: Floe keeps the checksum of the superblock right beside them, too, for
/// which nobody else computes it.
pub(super) fn is_async(superblock: &JournalSuperblock) -> bool {
    superblock.format().checksums == Checksums::V1
        && superblock.incompat().contains(JournalIncompat::ASYNC_COMMIT)
}

/// Whether a superblock leads to a transaction.
pub(super) fn leads(
    superblock: &JournalSuperblock,
    device: &dyn ReadBlocks,
    place: &dyn Fn(u32) -> Option<u64>,
) -> bool {
    let mut header = [0; 12];
    let at = place(superblock.start).filter(|_| superblock.start != 0);
    at.is_some_and(|at| device.read_at(at, &mut header).is_ok())
        && jbd2::header(&header).is_some_and(|header| header.sequence == superblock.sequence)
}
