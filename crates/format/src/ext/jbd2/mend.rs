//! The bit by which a control block or a superblock differs from one that fits its checksum, and the seed of checksums, from a block
//! that has one.

use super::{BLOCK_TAIL_SIZE, JournalFormat, JournalSuperblock, be32_at};
use crate::crc::{backwards_over_zeroes, crc32c, crc32c_of_few};

/// Bytes of the checksum in a superblock.
const SUM: std::ops::Range<usize> = 0xfc..0x100;

impl JournalFormat {
    /// The bit of a descriptor or revoke block, counted from its first byte, least significant first, that makes the block fit its
    /// tail if it is flipped. `None`: no single one does, or there is no tail.
    pub fn wrong_bit(&self, block: &[u8]) -> Option<usize> {
        let body = block.len().checked_sub(BLOCK_TAIL_SIZE).filter(|_| self.has_block_tails())?;
        let differs = be32_at(block, body)? ^ self.compute_tail(block);
        bit_of_sum(differs, block.len()).or_else(|| bit_of_body(differs, body, BLOCK_TAIL_SIZE))
    }
}

impl JournalSuperblock {
    /// The same for the superblock of a journal, whatever its features say. `None` also where the checksum fits.
    pub fn wrong_bit(bytes: &[u8; 1024]) -> Option<usize> {
        let differs = be32_at(bytes, SUM.start)? ^ Self::compute_checksum(bytes);
        let bit = bit_of_sum(differs, SUM.end).or_else(|| bit_of_body(differs, bytes.len(), 0))?;
        // The checksum counts as zeroes.
        (!SUM.contains(&(bit / 8)) || differs.is_power_of_two()).then_some(bit)
    }
}

impl JournalFormat {
    /// The seed with which the crc32c of a commit block fits (versions 2 and 3): each has one.
    pub fn seed_of_commit(block: &[u8]) -> u32 {
        let of_zero = Self { checksums: super::Checksums::V3, bit64: false, seed: 0 };
        let stored = be32_at(block, 0x10).unwrap_or(0);
        backwards_over_zeroes(stored ^ of_zero.compute_commit(block), block.len())
    }
}

/// A UUID that has a seed: `near`, or one that begins as it does.
pub fn uuid_of_seed(seed: u32, near: [u8; 16]) -> [u8; 16] {
    let mut uuid = near;
    if crc32c(u32::MAX, &near) != seed {
        let end = backwards_over_zeroes(seed, 4) ^ crc32c(u32::MAX, &near[..12]);
        uuid[12..].copy_from_slice(&end.to_le_bytes());
    }
    uuid
}

/// The bit of a checksum that ends at a byte.
fn bit_of_sum(differs: u32, end: usize) -> Option<usize> {
    // Stored with its most significant byte first.
    let bit = differs.trailing_zeros() as usize;
    differs.is_power_of_two().then(|| (end - 1 - bit / 8) * 8 + bit % 8)
}

/// The bit of the first bytes, with others behind them, that changes the sum so.
fn bit_of_body(differs: u32, body: usize, behind: usize) -> Option<usize> {
    // The sum is linear: a bit changes it by an amount that depends on the number of bytes behind it alone.
    let mut by = [0; 8];
    for (bit, by) in by.iter_mut().enumerate() {
        *by = crc32c_of_few(0, &[1 << bit]);
    }
    for _ in 0..behind {
        by = by.map(|by| crc32c_of_few(by, &[0]));
    }
    for byte in (0..body).rev() {
        if let Some(bit) = by.iter().position(|by| *by == differs) {
            return Some(byte * 8 + bit);
        }
        by = by.map(|by| crc32c_of_few(by, &[0]));
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{CHECKSUM_CRC32C, Checksums, JournalFormat, JournalIncompat};
    use super::*;

    proptest! {
        #[test]
        fn each_wrong_bit_is_found_and_two_are_not(
            seed: u32, numbers in proptest::collection::vec(any::<u64>(), 0..9), bit in 0usize..8192, other in 0usize..8192,
        ) {
            let format = JournalFormat { checksums: Checksums::V3, bit64: true, seed };
            let mut block = vec![0; 1024];
            format.write_revoke(&mut block, 7, &numbers);
            prop_assert!(format.tail_ok(&block));
            block[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(format.wrong_bit(&block), Some(bit));
            block[other / 8] ^= 1 << (other % 8);
            prop_assert!(bit == other || format.wrong_bit(&block).is_none());
        }

        #[test]
        fn two_wrong_bits_of_a_superblock_are_not_taken_for_one(
            start: u32, sequence: u32, uuid: [u8; 16], bit in 0usize..8192, other in 0usize..8192,
        ) {
            let mut bytes = sound(start, sequence, uuid);
            for bit in [bit, other] {
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            prop_assert_eq!(JournalSuperblock::wrong_bit(&bytes), None);
        }
    }

    proptest! {
        #[test]
        fn a_commit_block_tells_the_seed(uuid: [u8; 16], near: [u8; 16], sequence: u32) {
            let seed = crc32c(u32::MAX, &uuid);
            let format = JournalFormat { checksums: Checksums::V3, bit64: true, seed };
            let mut block = vec![0; 1024];
            format.write_commit(&mut block, sequence, 7, 9);
            prop_assert!(format.commit_ok(&block));
            prop_assert_eq!(JournalFormat::seed_of_commit(&block), seed);
            prop_assert_eq!(crc32c(u32::MAX, &uuid_of_seed(seed, near)), seed);
            prop_assert_eq!(uuid_of_seed(seed, uuid), uuid);
        }
    }

    fn sound(start: u32, sequence: u32, uuid: [u8; 16]) -> [u8; 1024] {
        let mut bytes = [0; 1024];
        let mut superblock = JournalSuperblock::decode(&bytes);
        (superblock.start, superblock.sequence, superblock.uuid) = (start, sequence, uuid);
        superblock.feature_incompat = JournalIncompat::CSUM_V3.bits();
        superblock.checksum_type = CHECKSUM_CRC32C;
        superblock.encode_into(&mut bytes);
        superblock.checksum = JournalSuperblock::compute_checksum(&bytes);
        superblock.encode_into(&mut bytes);
        bytes
    }

    #[test]
    fn each_wrong_bit_of_a_superblock_is_found() {
        let whole = sound(9, 4711, [0xa7; 16]);
        assert!(JournalSuperblock::checksum_ok(&whole));
        assert_eq!(JournalSuperblock::wrong_bit(&whole), None);
        for bit in 0..8192 {
            let mut bytes = whole;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(JournalSuperblock::wrong_bit(&bytes), Some(bit));
        }
    }
}
