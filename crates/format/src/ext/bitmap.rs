//! Block and inode bitmaps: one bit a cluster or inode, low bit first; the rest of the block is
//! padding that must be set.

use std::ops::Range;

use crate::crc::{Seed, crc32c};

const WORD_BITS: u32 = u64::BITS;

/// The 64 bits from bit `index * 64` on; bits past the end of `bytes` are 0.
#[inline]
fn word(bytes: &[u8], index: u32) -> u64 {
    let start = index as usize * 8;
    let rest = bytes.get(start..).unwrap_or(&[]);
    if let Some(whole) = rest.first_chunk() {
        return u64::from_le_bytes(*whole);
    }
    let mut part = [0; 8];
    part[..rest.len()].copy_from_slice(rest);
    u64::from_le_bytes(part)
}

/// Number of bits in `bytes`, saturating; a bitmap has at most 524,288.
#[inline]
fn bits_in(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX).saturating_mul(8)
}

/// Whether a bit is set. Bits past the end count as clear.
#[inline]
pub fn test(bytes: &[u8], bit: u32) -> bool {
    bytes.get(bit as usize / 8).is_some_and(|byte| byte >> (bit % 8) & 1 != 0)
}

/// Sets or clears all bits of a range. Bits past the end are ignored.
pub fn fill(bytes: &mut [u8], bits: Range<u32>, value: bool) {
    let end = bits.end.min(bits_in(bytes));
    let mut at = bits.start;
    while at < end {
        let (index, low) = (at as usize / 8, at % 8);
        let high = (low + (end - at)).min(8);
        // `low < high <= 8`: the bits from `low` on, below `high`.
        let mask = ((1u16 << high) - (1u16 << low)) as u8;
        if value {
            bytes[index] |= mask;
        } else {
            bytes[index] &= !mask;
        }
        at += high - low;
    }
}

/// Number of set bits in a range; bits past the end count as clear.
pub fn count(bytes: &[u8], bits: Range<u32>) -> u32 {
    let end = bits.end.min(bits_in(bytes));
    if bits.start >= end {
        return 0;
    }
    let (first, last) = (bits.start / WORD_BITS, (end - 1) / WORD_BITS);
    let from_start = u64::MAX << (bits.start % WORD_BITS);
    let to_end = u64::MAX >> (WORD_BITS - 1 - (end - 1) % WORD_BITS);
    if first == last {
        return (word(bytes, first) & from_start & to_end).count_ones();
    }
    let inner: u32 = (first + 1..last).map(|index| word(bytes, index).count_ones()).sum();
    inner
        + (word(bytes, first) & from_start).count_ones()
        + (word(bytes, last) & to_end).count_ones()
}

/// The first bit from `from` on, below `end`, whose value differs from what `flip` turns into 0.
#[inline]
fn seek(bytes: &[u8], from: u32, end: u32, flip: u64) -> u32 {
    let mut index = from / WORD_BITS;
    let mut found = (word(bytes, index) ^ flip) & (u64::MAX << (from % WORD_BITS));
    let words = end.div_ceil(WORD_BITS);
    while found == 0 {
        index += 1;
        if index >= words {
            return end;
        }
        found = word(bytes, index) ^ flip;
    }
    (index * WORD_BITS + found.trailing_zeros()).min(end)
}

/// The first set bit of a range.
#[inline]
pub fn first_set(bytes: &[u8], bits: Range<u32>) -> Option<u32> {
    let end = bits.end.min(bits_in(bytes));
    if bits.start >= end {
        return None;
    }
    let at = seek(bytes, bits.start, end, 0);
    (at < end).then_some(at)
}

/// The first clear bit of a range. Bits past the end of `bytes` are neither clear nor set.
#[inline]
pub fn first_clear(bytes: &[u8], bits: Range<u32>) -> Option<u32> {
    let end = bits.end.min(bits_in(bytes));
    if bits.start >= end {
        return None;
    }
    let at = seek(bytes, bits.start, end, u64::MAX);
    (at < end).then_some(at)
}

/// Runs of set bits, in order, each as long as it can be. See [`runs`].
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    bytes: &'a [u8],
    at: u32,
    end: u32,
}

/// The runs of set bits of a range, found a word at a time; bits past the end count as clear.
#[inline]
pub fn runs(bytes: &[u8], bits: Range<u32>) -> Runs<'_> {
    Runs { bytes, at: bits.start, end: bits.end.min(bits_in(bytes)) }
}

impl Iterator for Runs<'_> {
    type Item = Range<u32>;

    #[inline]
    fn next(&mut self) -> Option<Range<u32>> {
        if self.at >= self.end {
            return None;
        }
        let start = seek(self.bytes, self.at, self.end, 0);
        if start >= self.end {
            self.at = self.end;
            return None;
        }
        let end = seek(self.bytes, start, self.end, u64::MAX);
        self.at = end;
        Some(start..end)
    }
}

impl std::iter::FusedIterator for Runs<'_> {}

/// The first padding bit that is not set: a bit of the block from bit `used_bits` on (problems
/// `block-bitmap-padding-clear`, `inode-bitmap-padding-clear`). `used_bits` is the number of
/// clusters in the group (the last group may have fewer) or of inodes in a group.
pub fn first_clear_padding(block: &[u8], used_bits: u32) -> Option<u32> {
    first_clear(block, used_bits..bits_in(block))
}

/// The crc32c of a bitmap with metadata_csum, over the bytes that `bits_per_group` fills:
/// `s_clusters_per_group` or `s_inodes_per_group`, whatever the length of the last group. Compare
/// it with a descriptor by [`checksum_fits`].
#[inline]
pub fn checksum(seed: Seed, block: &[u8], bits_per_group: u32) -> u32 {
    let len = (bits_per_group / 8) as usize;
    crc32c(seed.0, block.get(..len).unwrap_or(block))
}

/// Whether a stored bitmap checksum fits a computed one: a descriptor of 32 bytes stores only the
/// low 16 bits.
#[inline]
pub fn checksum_fits(stored: u32, computed: u32, desc_size: u32) -> bool {
    stored == checksum_cut(computed, desc_size)
}

/// A computed bitmap checksum as a descriptor of `desc_size` bytes stores it.
#[inline]
pub fn checksum_cut(computed: u32, desc_size: u32) -> u32 {
    if desc_size >= 64 { computed } else { computed & 0xffff }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same, bit by bit.
    fn slow_runs(bytes: &[u8], bits: Range<u32>) -> Vec<Range<u32>> {
        let mut found: Vec<Range<u32>> = Vec::new();
        for bit in bits.filter(|&bit| test(bytes, bit)) {
            match found.last_mut() {
                Some(run) if run.end == bit => run.end = bit + 1,
                _ => found.push(bit..bit + 1),
            }
        }
        found
    }

    fn bitmaps() -> impl Strategy<Value = Vec<u8>> {
        // Mostly whole bytes, so that runs cross words.
        let byte = prop_oneof![4 => Just(0u8), 6 => Just(0xffu8), 1 => any::<u8>()];
        proptest::collection::vec(byte, 0..64)
    }

    proptest! {
        #[test]
        fn runs_equal_the_slow_way(bytes in bitmaps(), start in 0u32..520, len in 0u32..520) {
            let bits = start..start + len;
            let fast: Vec<_> = runs(&bytes, bits.clone()).collect();
            let slow = slow_runs(&bytes, bits.clone());
            prop_assert_eq!(count(&bytes, bits.clone()), slow.iter().map(|run| run.end - run.start).sum::<u32>());
            prop_assert_eq!(first_set(&bytes, bits.clone()), slow.first().map(|run| run.start));
            let clear = bits.clone().find(|&bit| bit < bytes.len() as u32 * 8 && !test(&bytes, bit));
            prop_assert_eq!(first_clear(&bytes, bits), clear);
            prop_assert_eq!(fast, slow);
        }

        #[test]
        fn fill_changes_its_range_alone(bytes in bitmaps(), start in 0u32..520, len in 0u32..520, value: bool) {
            let mut filled = bytes.clone();
            fill(&mut filled, start..start + len, value);
            for bit in 0..bytes.len() as u32 * 8 {
                let inside = (start..start + len).contains(&bit);
                prop_assert_eq!(test(&filled, bit), if inside { value } else { test(&bytes, bit) });
            }
        }
    }

    #[test]
    fn padding_of_a_short_group() {
        let mut block = vec![0xff; 1024];
        assert_eq!(first_clear_padding(&block, 100), None);
        fill(&mut block, 0..99, false);
        assert_eq!(first_clear_padding(&block, 100), None);
        fill(&mut block, 8191..8192, false);
        assert_eq!(first_clear_padding(&block, 100), Some(8191));
        assert_eq!(first_clear_padding(&block, 8192), None);
    }

    #[test]
    fn a_short_descriptor_cuts_the_checksum() {
        assert!(checksum_fits(0x5678, 0x1234_5678, 32));
        assert!(!checksum_fits(0x5678, 0x1234_5678, 64));
        assert!(checksum_fits(0x1234_5678, 0x1234_5678, 64));
    }
}
