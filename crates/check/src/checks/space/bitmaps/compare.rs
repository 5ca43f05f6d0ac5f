//! Differences between a bitmap on the disk and the expected one, as ranges.

use std::ops::Range;

use super::WORD_BITS;
use crate::evidence::block_set::BlockSet;

/// Differences of one bitmap.
#[derive(Debug, Default)]
pub(super) struct Differences {
    /// Ranges that are marked but not in use.
    pub(super) leaked: Vec<Range<u32>>,
    /// Ranges that are in use but not marked.
    pub(super) missing: Vec<Range<u32>>,
}

/// Compares `bits` bits, and counts those expected to be set.
pub(super) fn compare(
    bits: u32,
    disk: impl Fn(u32) -> u64,
    expected: impl Fn(u32) -> u64,
) -> (Differences, u32) {
    let mut differences = Differences::default();
    let mut used = 0;
    for word in 0..bits.div_ceil(WORD_BITS) {
        let start = word * WORD_BITS;
        let mask = if bits - start >= WORD_BITS { u64::MAX } else { (1 << (bits - start)) - 1 };
        let (disk, expected) = (disk(word) & mask, expected(word) & mask);
        used += expected.count_ones();
        if disk != expected {
            add_bits(&mut differences.leaked, start, disk & !expected);
            add_bits(&mut differences.missing, start, expected & !disk);
        }
    }
    (differences, used)
}

/// As [`compare`]: bits of a bitmap on the disk with `clusters` of `used` from `first` on, for which there
/// is room in `expected`. Most bitmaps are right, which a look at all words at once tells.
pub(super) fn compare_with(
    used: &BlockSet,
    first: u64,
    clusters: u32,
    disk: &[u8],
    expected: &mut [u64],
) -> (Differences, u32) {
    if first.is_multiple_of(WORD_BITS.into()) && clusters.is_multiple_of(WORD_BITS) {
        let count = used.words(first, expected);
        let words = disk.as_chunks().0;
        let differ = |all, (raw, word): (&[u8; 8], &u64)| all | (u64::from_le_bytes(*raw) ^ word);
        if words.len() >= expected.len() && words.iter().zip(&*expected).fold(0, differ) == 0 {
            return (Differences::default(), count);
        }
    }
    let expected = |word: u32| used.word(first + u64::from(word * WORD_BITS));
    compare(clusters, |word| disk_word(disk, word), expected)
}

/// Adds the set bits of a word that begins at bit `start`, joining adjacent ones.
fn add_bits(ranges: &mut Vec<Range<u32>>, start: u32, bits: u64) {
    let mut rest = bits;
    while rest != 0 {
        let from = rest.trailing_zeros();
        let len = (!(rest >> from)).trailing_zeros();
        let range = start + from..start + from + len;
        match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => ranges.push(range),
        }
        rest &= u64::MAX.checked_shl(from + len).unwrap_or(0);
    }
}

/// The 64 bits of a bitmap on the disk.
pub(super) fn disk_word(bytes: &[u8], word: u32) -> u64 {
    let at = word as usize * 8;
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |raw| u64::from_le_bytes(*raw))
}

impl Differences {
    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.leaked.is_empty() && self.missing.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cross_words_and_end_with_the_group() {
        let disk = [u64::MAX << 60, 0b1111, 0];
        let (differences, used) =
            compare(130, |word| disk[word as usize], |word| u64::from(word == 2) << 1);
        assert_eq!(differences.leaked.first(), Some(&(60..68)));
        assert_eq!(differences.missing.first(), Some(&(129..130)));
        assert_eq!(used, 1);
        let (differences, used) = compare(128, |_| u64::MAX, |_| 0);
        assert_eq!(differences.leaked.first(), Some(&(0..128)));
        assert_eq!(used, 0);
    }
}
