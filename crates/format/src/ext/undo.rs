//! The undo file of e2fsprogs (magic `E2UNDO02`), which `e2fsck -z` and other programs of e2fsprogs
//! write and `e2undo` reads.
//!
//! The file consists of blocks of [`UndoHeader::block_size`] bytes. Block 0 begins with the header.
//! The header names the block of the superblock copy (whose magic is stored inverted, so that the
//! file is not mistaken for a file system) and the first key block. A key block holds a
//! [`UndoKeyHeader`] and keys up to its end; the old bytes of its keys follow it, each key's from
//! the start of a block on, and after them the next key block.
//!
//! Floe adds a list of the blocks whose old bytes could not be read and so are not in the file.
//! Another list has a sum of each block as the change was to leave it, by which later changes are recognised that `e2undo` would
//! revert unseen. A third one has superblocks that the device has during a change. Only Floe writes and reads them. They lie behind
//! everything else, where `e2undo` does not look.
//!
//! Learnt from undo files that e2fsprogs 1.47 wrote and from what its `e2undo` says of them.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;

use crate::crc::crc32c;
use crate::ext::superblock;

/// The first bytes of an undo file.
pub const MAGIC: [u8; 8] = *b"E2UNDO02";
/// The first bytes of a key block.
pub const KEY_MAGIC: u32 = 0xcade_cade;
/// `unsaved_magic`: the list of blocks without old bytes counts.
pub const UNSAVED_MAGIC: u32 = 0x464c_4f45;
/// `written_magic`: the list of sums of new blocks counts.
pub const WRITTEN_MAGIC: u32 = 0x464c_4e57;
/// In place of a sum: nothing is known about the block.
pub const NO_SUM: u64 = 0;
/// `between_magic`: the list of superblocks counts.
pub const BETWEEN_MAGIC: u32 = 0x464c_4f42;
/// Most superblocks in the list.
pub const MOST_BETWEEN: u32 = 1 << 12;
/// `state`: the file is complete.
pub const STATE_FINISHED: u32 = 0x1;
/// `f_compat`: `fs_offset` counts.
pub const COMPAT_FS_OFFSET: u32 = 0x1;
/// Least bytes of a block.
pub const MIN_BLOCK_SIZE: u32 = 1024;
/// Most bytes of a block.
pub const MAX_BLOCK_SIZE: u32 = 1 << 20;
/// Most blocks of old bytes that one key covers.
pub const MAX_KEY_BLOCKS: u32 = 512;

layout! {
    /// The header.
    pub struct UndoHeader[512] little {
        /// `MAGIC`.
        0x000 magic: [u8; 8],
        /// Keys in all key blocks.
        0x008 num_keys: u64,
        /// Block of this file that holds the superblock copy.
        0x010 super_block: u64,
        /// First key block, likewise.
        0x018 key_block: u64,
        /// Bytes of a block of this file.
        0x020 block_size: u32,
        /// Unit of `UndoKey::fs_block`.
        0x024 fs_block_size: u32,
        /// crc32c of the superblock as it is after the change.
        0x028 super_crc: u32,
        /// `STATE_*` bits.
        0x02c state: u32,
        /// Features that may be ignored.
        0x030 f_compat: u32,
        /// Features without which the file must not be read.
        0x034 f_incompat: u32,
        /// Features without which the file must not be written.
        0x038 f_ro_compat: u32,
        /// Padding.
        0x03c pad32: u32,
        /// Byte of the device at which the file system begins.
        0x040 fs_offset: u64,
        /// `UNSAVED_MAGIC` if the list of blocks that were not saved is present. A field of Floe's
        /// own: other programs write zeroes here and ignore it.
        0x048 unsaved_magic: u32,
        /// crc32c of the list of these blocks.
        0x04c unsaved_crc: u32,
        /// Block of this file where the list begins: 8 bytes each, in units of `fs_block_size`.
        0x050 unsaved_block: u64,
        /// How many there are.
        0x058 unsaved_count: u64,
        /// `WRITTEN_MAGIC` if the list of sums of new blocks is present; Floe's own, too.
        0x060 written_magic: u32,
        /// crc32c of this list.
        0x064 written_crc: u32,
        /// Block of this file where the list begins: 8 bytes for each block of each key, in the order of the keys.
        0x068 written_block: u64,
        /// How many sums there are.
        0x070 written_count: u64,
        /// `BETWEEN_MAGIC` if the list of superblocks is present that the file system has during the change; Floe's own, too.
        0x078 between_magic: u32,
        /// crc32c of this list.
        0x07c between_crc: u32,
        /// Block of this file where the list begins: 1024 bytes each, veiled as the copy.
        0x080 between_block: u64,
        /// How many there are.
        0x088 between_count: u32,
        /// Zeroes.
        0x08c padding: [u32; 92],
        /// crc32c of all before.
        0x1fc header_crc: u32,
    }
}

layout! {
    /// The beginning of a key block.
    pub struct UndoKeyHeader[16] little {
        /// `KEY_MAGIC`.
        0x00 magic: u32,
        /// crc32c of the whole key block, with zeroes here.
        0x04 crc: u32,
        /// Zero.
        0x08 reserved: u64,
    }
}

layout! {
    /// A contiguous piece of the device, and its old bytes.
    pub struct UndoKey[16] little {
        /// Where it begins, in units of `UndoHeader::fs_block_size`.
        0x00 fs_block: u64,
        /// crc32c of the old bytes.
        0x08 crc: u32,
        /// Bytes, at most `MAX_KEY_BLOCKS` blocks of the undo file.
        0x0c size: u32,
    }
}

impl UndoHeader {
    /// The checksum that `bytes` should carry at its end.
    pub fn compute_checksum(bytes: &[u8; 512]) -> u32 {
        crc32c(u32::MAX, &bytes[..0x1fc])
    }

    /// Keys that fit into a key block.
    pub fn keys_per_block(&self) -> u64 {
        (u64::from(self.block_size) / UndoKey::SIZE as u64).saturating_sub(1)
    }
}

/// The sum of a block as a change leaves it; never [`NO_SUM`]. No crc32c: that of a block which ends with its own is the same for all
/// such blocks, and ext4 has many of them.
pub fn written_sum(block: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(block);
    match hasher.finish() {
        NO_SUM => 1,
        sum => sum,
    }
}

/// The checksum of a superblock as `UndoHeader::super_crc` has it.
pub fn super_crc(superblock: &[u8; 1024]) -> u32 {
    crc32c(u32::MAX, superblock)
}

/// The checksum of a whole key block, whatever is stored in its place.
pub fn key_block_crc(block: &[u8]) -> u32 {
    let Some((start, rest)) = block.split_first_chunk::<{ UndoKeyHeader::SIZE }>() else {
        return crc32c(u32::MAX, block);
    };
    let mut start = *start;
    UndoKeyHeader { crc: 0, ..UndoKeyHeader::decode(&start) }.encode_into(&mut start);
    crc32c(crc32c(u32::MAX, &start), rest)
}

/// Inverts the magic of a superblock: real to stored, and stored to real.
pub fn veil(superblock: &mut [u8; 1024]) {
    let mut sb = superblock::Superblock::decode(superblock);
    sb.magic = !sb.magic;
    sb.encode_into(superblock);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_block_is_summed_without_its_sum() {
        let mut block = [7; 64];
        let crc = key_block_crc(&block);
        block[4..8].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(key_block_crc(&block), crc);
        block[63] = 8;
        assert_ne!(key_block_crc(&block), crc);
        assert_eq!(key_block_crc(&[1, 2]), crc32c(u32::MAX, &[1, 2]));
    }

    #[test]
    fn sums_of_new_blocks_never_change() {
        // SipHash-2-4 with a key of zeroes.
        assert_eq!(written_sum(b""), 0x1e92_4b9d_7377_00d7);
        let summed = |byte: u8| {
            let body = [byte; 60];
            [&body[..], &crc32c(u32::MAX, &body).to_le_bytes()].concat()
        };
        assert_eq!(crc32c(u32::MAX, &summed(1)), crc32c(u32::MAX, &summed(2)));
        assert_ne!(written_sum(&summed(1)), written_sum(&summed(2)));
    }

    #[test]
    fn the_magic_is_hidden_and_found_again() {
        let mut bytes = [3; 1024];
        bytes[0x38..0x3a].copy_from_slice(&superblock::MAGIC.to_le_bytes());
        let real = bytes;
        veil(&mut bytes);
        assert_eq!(bytes[0x38..0x3a], [0xac, 0x10]);
        veil(&mut bytes);
        assert_eq!(bytes, real);
    }
}
