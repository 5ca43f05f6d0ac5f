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

/// The first logical block below the `i_block` word `index` (0 to 14), and the level of what the
/// word points to (0 is a data block).
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_a_1k_map() {
        assert_eq!(root_slot(1024, 11), Some((LogicalBlock(11), 0)));
        assert_eq!(root_slot(1024, 12), Some((LogicalBlock(12), 1)));
        assert_eq!(root_slot(1024, 13), Some((LogicalBlock(12 + 256), 2)));
        assert_eq!(root_slot(1024, 14), Some((LogicalBlock(12 + 256 + 65536), 3)));
        assert_eq!(root_slot(1024, 15), None);
    }
}
