//! The block map of ext2 and ext3: 12 direct pointers, then one, two and three levels of
//! indirect blocks. In rext3 each indirect block begins with a [`Header`] that says whose it is.

use crate::features::{Features, Incompat};
use crate::{InodeNr, LogicalBlock};

/// Direct pointers in `i_block`.
pub const DIRECT: u64 = 12;
/// Index of the single-indirect pointer in `i_block`; double and triple follow.
pub const SINGLE: usize = 12;
/// Levels of indirect blocks, at most.
pub const MOST_LEVELS: u32 = 3;

layout! {
    /// The first two words of an indirect block in rext3 (Figure 5 of the paper): a backpointer.
    #[derive(Copy)]
    pub struct Header[8] little {
        /// The inode whose block it is.
        0x00 inode: u32,
        /// Its level: 1 where it points to data, 2 and 3 above.
        0x04 level: u32,
    }
}

/// The form of indirect blocks in a file system: their size, and whether they begin with a [`Header`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndirectForm {
    block_size: u32,
    /// Bytes before the first pointer.
    header_bytes: u32,
}

impl IndirectForm {
    /// Indirect blocks of ext2 and ext3, of `block_size` bytes: pointers alone.
    pub const fn plain(block_size: u32) -> Self {
        Self { block_size, header_bytes: 0 }
    }

    /// Indirect blocks of rext3.
    pub const fn with_header(block_size: u32) -> Self {
        Self { block_size, header_bytes: Header::SIZE as u32 }
    }

    /// The form in a file system with these features.
    pub const fn of(features: &Features, block_size: u32) -> Self {
        match features.incompat.contains(Incompat::REXT3) {
            true => Self::with_header(block_size),
            false => Self::plain(block_size),
        }
    }

    /// Bytes of a block.
    pub const fn block_size(self) -> u32 {
        self.block_size
    }

    /// Whether indirect blocks begin with a header.
    pub const fn has_header(self) -> bool {
        self.header_bytes > 0
    }

    /// Pointers in one indirect block.
    #[inline]
    pub fn pointers_per_block(self) -> u64 {
        u64::from(self.block_size.saturating_sub(self.header_bytes) / 4)
    }

    /// Logical blocks that one pointer at `level` covers: 1 for a data block (level 0), else all data
    /// blocks below an indirect block of that level (1 to 3).
    pub fn span_blocks(self, level: u32) -> u64 {
        self.pointers_per_block().saturating_pow(level)
    }

    /// The first logical block that the `i_block` word `index` (0 to 14) maps, and the level of the
    /// block it points to (0 is a data block).
    pub fn root_slot(self, index: usize) -> Option<(LogicalBlock, u32)> {
        let first_of =
            |level: u32| DIRECT + (1..level).map(|below| self.span_blocks(below)).sum::<u64>();
        match index {
            0..=11 => Some((LogicalBlock(index as u64), 0)),
            12 => Some((LogicalBlock(first_of(1)), 1)),
            13 => Some((LogicalBlock(first_of(2)), 2)),
            14 => Some((LogicalBlock(first_of(3)), 3)),
            _ => None,
        }
    }

    /// The part of an indirect block that holds pointers: all of it, or what follows the header.
    #[inline]
    pub fn body(self, block: &[u8]) -> &[u8] {
        block.get(self.header_bytes as usize..).unwrap_or(&[])
    }

    /// The same, for changes.
    pub fn body_mut(self, block: &mut [u8]) -> &mut [u8] {
        block.get_mut(self.header_bytes as usize..).unwrap_or(&mut [])
    }

    /// The header of an indirect block, where it has one.
    pub fn header(self, block: &[u8]) -> Option<Header> {
        block.first_chunk().filter(|_| self.has_header()).map(Header::decode)
    }

    /// Writes the header of an indirect block of `inode`, where it has one.
    pub fn put_header(self, block: &mut [u8], inode: InodeNr, level: u32) {
        if let Some(place) = block.first_chunk_mut().filter(|_| self.has_header()) {
            Header { inode: inode.0, level }.encode_into(place);
        }
    }
}

/// The words of the body of an indirect block, or of `i_block`: its pointers, in order.
pub fn pointers(body: &[u8]) -> impl ExactSizeIterator<Item = u32> + '_ {
    body.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
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

/// The non-zero pointers of the body of an indirect block, in order, as maximal runs.
pub fn pointer_runs(body: &[u8]) -> impl Iterator<Item = PointerRun> + '_ {
    let word = |at: usize| body.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word));
    let mut at = 0;
    std::iter::from_fn(move || {
        let mut first = word(at)?;
        while first == 0 {
            // The pointers behind the end of a file are all 0.
            let many = body.get(at..).and_then(<[u8]>::first_chunk).is_some_and(is_zero);
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
        let form = IndirectForm::plain(1024);
        assert_eq!(form.root_slot(11), Some((LogicalBlock(11), 0)));
        assert_eq!(form.root_slot(12), Some((LogicalBlock(12), 1)));
        assert_eq!(form.root_slot(13), Some((LogicalBlock(12 + 256), 2)));
        assert_eq!(form.root_slot(14), Some((LogicalBlock(12 + 256 + 65536), 3)));
        assert_eq!(form.root_slot(15), None);
    }

    /// The example of Figure 6: a single indirect block has 1022 pointers, and the double indirect block
    /// begins at block 1034.
    #[test]
    fn a_header_takes_two_pointers() {
        let form = IndirectForm::with_header(4096);
        assert_eq!(form.pointers_per_block(), 1022);
        assert_eq!(form.root_slot(13), Some((LogicalBlock(1034), 2)));
        let mut block = [0; 4096];
        form.put_header(&mut block, InodeNr(12), 2);
        form.body_mut(&mut block)[..4].copy_from_slice(&7u32.to_le_bytes());
        assert_eq!(block[..12], [12, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0]);
        assert_eq!(form.header(&block), Some(Header { inode: 12, level: 2 }));
        assert_eq!(pointers(form.body(&block)).next(), Some(7));
        let plain = IndirectForm::plain(4096);
        plain.put_header(&mut block, InodeNr(13), 1);
        assert_eq!((plain.header(&block), block[0]), (None, 12));
    }
}
