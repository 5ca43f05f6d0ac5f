//! The bit by which a control block differs from one that fits its checksum.

use super::{BLOCK_TAIL_SIZE, JournalFormat, be32_at};
use crate::crc::crc32c_of_few;

impl JournalFormat {
    /// The bit of a descriptor or revoke block, counted from its first byte, least significant first, that makes the block fit its
    /// tail if it is flipped. `None`: no single one does, or there is no tail.
    pub fn wrong_bit(&self, block: &[u8]) -> Option<usize> {
        let body = block.len().checked_sub(BLOCK_TAIL_SIZE).filter(|_| self.has_block_tails())?;
        let differs = be32_at(block, body)? ^ self.compute_tail(block);
        if differs.is_power_of_two() {
            // Stored with its most significant byte first.
            let bit = differs.trailing_zeros() as usize;
            return Some((block.len() - 1 - bit / 8) * 8 + bit % 8);
        }
        // The sum is linear: a bit changes it by an amount that depends on the number of bytes behind it alone.
        let mut by = [0; 8];
        for (bit, by) in by.iter_mut().enumerate() {
            *by = crc32c_of_few(crc32c_of_few(0, &[1 << bit]), &[0; BLOCK_TAIL_SIZE]);
        }
        for byte in (0..body).rev() {
            if let Some(bit) = by.iter().position(|by| *by == differs) {
                return Some(byte * 8 + bit);
            }
            by = by.map(|by| crc32c_of_few(by, &[0]));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Checksums, JournalFormat};

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
    }
}
