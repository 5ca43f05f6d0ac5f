//! The block map of ext2 and ext3: 12 direct pointers, then one, two and three levels of
//! indirect blocks.

use crate::LogicalBlock;

/// Direct pointers in `i_block`.
pub const DIRECT: u64 = 12;
/// Index of the single-indirect pointer in `i_block`; double and triple follow.
pub const SINGLE: usize = 12;

/// Pointers in one indirect block of `block_size` bytes.
#[inline]
pub fn pointers_per_block(block_size: u32) -> u64 {
    u64::from(block_size / 4)
}

/// Logical blocks that one pointer at `level` covers: 1 for a data block (level 0), else all data
/// blocks below an indirect block of that level (1 to 3).
pub fn span_blocks(block_size: u32, level: u32) -> u64 {
    pointers_per_block(block_size).saturating_pow(level)
}

/// The first logical block that the `i_block` word `index` (0 to 14) maps, and the level of the
/// block it points to (0 is a data block).
pub fn root_slot(block_size: u32, index: usize) -> Option<(LogicalBlock, u32)> {
    let first_of =
        |level: u32| DIRECT + (1..level).map(|below| span_blocks(block_size, below)).sum::<u64>();
    match index {
        0..=11 => Some((LogicalBlock(index as u64), 0)),
        12 => Some((LogicalBlock(first_of(1)), 1)),
        13 => Some((LogicalBlock(first_of(2)), 2)),
        14 => Some((LogicalBlock(first_of(3)), 3)),
        _ => None,
    }
}

/// The pointers of an indirect block, in order.
pub fn pointers(block: &[u8]) -> impl ExactSizeIterator<Item = u32> + '_ {
    block.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// A run in an indirect block: consecutive pointers to consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerRun {
    /// Index of the first pointer.
    pub slot: u32,
    /// The first block; not 0.
    pub first: u32,
    /// How many there are, at least 1.
    pub len: u32,
}

/// Bytes tested for zero at once.
const MANY_BYTES: usize = 256;

/// Has no branch per word, and reads words of 128 bits, because the compiler leaves a loop over
/// bytes as it is when it optimises for size.
fn is_zero(bytes: &[u8; MANY_BYTES]) -> bool {
    bytes.as_chunks::<16>().0.iter().fold(0, |all, word| all | u128::from_ne_bytes(*word)) == 0
}

/// The non-zero pointers of an indirect block, in order, as maximal runs.
pub fn pointer_runs(block: &[u8]) -> impl Iterator<Item = PointerRun> + '_ {
    let word = |at: usize| block.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word));
    let mut at = 0;
    std::iter::from_fn(move || {
        let mut first = word(at)?;
        while first == 0 {
            // The pointers behind the end of a file are all 0.
            let many = block.get(at..).and_then(<[u8]>::first_chunk).is_some_and(is_zero);
            at += if many { MANY_BYTES } else { 4 };
            first = word(at)?;
        }
        // A block has at most 2^14 pointers.
        let slot = (at / 4) as u32;
        let mut len = 1;
        at += 4;
        while word(at).is_some_and(|word| first.checked_add(len) == Some(word)) {
            (at, len) = (at + 4, len + 1);
        }
        Some(PointerRun { slot, first, len })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The runs list exactly the pointers, and none could be longer.
        #[test]
        fn runs_are_the_pointers(
            runs in proptest::collection::vec((0usize..140, any::<u32>(), 0u32..40), 0..20),
            cut in 0usize..4,
        ) {
            let mut words = Vec::new();
            for (holes, first, len) in runs {
                words.extend(std::iter::repeat_n(0, holes));
                let first = if first % 3 == 0 { u32::MAX - 3 } else { first % 50 };
                words.extend((0..len).map(|at| first.wrapping_add(at)));
            }
            let mut block: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            block.extend(&[7; 4][..cut]);
            let listed: Vec<_> = pointer_runs(&block).collect();
            let mut again = vec![0; words.len()];
            for run in &listed {
                for at in 0..run.len {
                    again[(run.slot + at) as usize] = run.first + at;
                }
            }
            prop_assert_eq!(&again, &words);
            for pair in listed.windows(2) {
                let end = pair[0].slot + pair[0].len;
                let goes_on = end == pair[1].slot
                    && pair[0].first.checked_add(pair[0].len) == Some(pair[1].first);
                prop_assert!(end <= pair[1].slot && !goes_on);
            }
        }
    }

    #[test]
    fn slots_of_a_1k_map() {
        assert_eq!(root_slot(1024, 11), Some((LogicalBlock(11), 0)));
        assert_eq!(root_slot(1024, 12), Some((LogicalBlock(12), 1)));
        assert_eq!(root_slot(1024, 13), Some((LogicalBlock(12 + 256), 2)));
        assert_eq!(root_slot(1024, 14), Some((LogicalBlock(12 + 256 + 65536), 3)));
        assert_eq!(root_slot(1024, 15), None);
    }
}
