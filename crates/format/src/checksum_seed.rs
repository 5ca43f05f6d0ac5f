//! Whose block is this? The seed that a block's checksum was computed with, found by running CRC32C
//! backwards.
//!
//! With metadata_csum, the checksums of extent nodes and directory blocks start from a seed that
//! depends on the file system, the inode number and the generation. Stored checksum and content
//! determine this seed, so blocks of one file carry the same seed, even if its inode is lost. The
//! seed alone does not say which inode: every inode number fits it with exactly one generation.
//! A second fact settles it: the generation (0 in files that mke2fs made), or the inode number
//! (in the entry `.` of a directory).

use crate::InodeNr;
use crate::crc::{Seed, backwards_over_zeroes};
use crate::ext::dirent::{DirTail, TAIL_SIZE};
use crate::ext::extent::ExtentNode;
use crate::ext::htree::DxBlock;

/// Powers of two of the lengths that can be undone: up to 128 KiB, more than the largest block.
const POWERS: usize = 17;

/// A linear map of 32 bits, as the image of each bit.
type Map = [u32; 32];

fn apply(map: &Map, mut word: u32) -> u32 {
    let mut sum = 0;
    while word != 0 {
        // Below 32.
        sum ^= map[word.trailing_zeros() as usize];
        word &= word - 1;
    }
    sum
}

/// Finds the seeds of checksums. Creating one costs some microseconds; each search reads its block
/// once.
#[derive(Clone, Debug)]
pub struct SeedFinder {
    /// The inverse of a CRC step over 1, 2, 4, ... bytes.
    backwards: Box<[Map; POWERS]>,
}

impl Default for SeedFinder {
    fn default() -> Self {
        Self::new()
    }
}

impl SeedFinder {
    /// Prepares the inverse steps.
    pub fn new() -> Self {
        let mut backwards = Box::new([[0; 32]; POWERS]);
        let mut map: Map = std::array::from_fn(|bit| backwards_over_zeroes(1 << bit, 1));
        for power in backwards.iter_mut() {
            *power = map;
            map = std::array::from_fn(|bit| apply(power, power[bit]));
        }
        Self { backwards }
    }

    /// The state of a CRC32C before `len_bytes` bytes that led from a state of 0 to `from_zero`
    /// and from the wanted state to `stored`. `None` for inputs above 128 KiB.
    fn before(&self, stored: u32, from_zero: u32, len_bytes: usize) -> Option<u32> {
        if len_bytes >> POWERS != 0 {
            return None;
        }
        let steps = self.backwards.iter().enumerate().filter(|(at, _)| len_bytes >> at & 1 == 1);
        Some(steps.fold(stored ^ from_zero, |crc, (_, map)| apply(map, crc)))
    }

    /// The seed of an extent node in a block; `None` if it has no place for a checksum.
    pub fn of_extent_node(&self, node: &ExtentNode<'_>) -> Option<u32> {
        let stored = node.stored_checksum()?;
        self.before(stored, node.compute_checksum(0), node.checksummed_bytes())
    }

    /// The seed of a linear directory block or htree leaf; `None` if it has no checksum tail.
    pub fn of_leaf(&self, block: &[u8]) -> Option<u32> {
        let stored = DirTail::of(block)?.checksum;
        self.before(stored, DirTail::compute_checksum(0, block), block.len() - TAIL_SIZE)
    }

    /// The seed of an htree root or interior node; `None` if it has no place for a checksum.
    pub fn of_index(&self, block: &DxBlock<'_>) -> Option<u32> {
        let stored = block.tail()?.checksum;
        self.before(stored, block.compute_checksum(0)?, block.checksummed_bytes())
    }
}

/// The inode number that has this seed, for a known generation. For a wrong generation, the result
/// is any of 2^32 numbers.
pub fn inode_of(inode_seed: u32, generation: u32, file_system: Seed) -> InodeNr {
    // The number is the first word of the input, so undoing the steps after it leaves the number,
    // XORed with the state before it.
    InodeNr(start_of(inode_seed, generation) ^ file_system.0)
}

/// The seed of the file system, for a known inode and generation.
pub fn file_system_seed(inode_seed: u32, inode: InodeNr, generation: u32) -> Seed {
    Seed(start_of(inode_seed, generation) ^ inode.0)
}

/// The seed of the file system XORed with the inode number.
fn start_of(inode_seed: u32, generation: u32) -> u32 {
    let behind_number = backwards_over_zeroes(inode_seed, 4) ^ generation;
    backwards_over_zeroes(behind_number, 4)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::LogicalBlock;
    use crate::ext::extent::{self, ExtentHeader, MAGIC};
    use crate::ext::htree::{self, DxEntry, RootHead, write_root};

    proptest! {
        #[test]
        fn numbers_are_found(fs: u32, number: u32, generation: u32) {
            let seed = Seed(fs).of_inode(InodeNr(number), generation);
            prop_assert_eq!(inode_of(seed, generation, Seed(fs)), InodeNr(number));
            prop_assert_eq!(file_system_seed(seed, InodeNr(number), generation), Seed(fs));
        }

        #[test]
        fn every_kind_of_block_tells_its_seed(
            seed: u32,
            mut block in proptest::collection::vec(any::<u8>(), 1024..=1024),
            size in prop_oneof![Just(1024usize), Just(4096), Just(65536)],
        ) {
            let finder = SeedFinder::new();
            block.resize(size, 7);
            DirTail::write(seed, &mut block);
            prop_assert_eq!(finder.of_leaf(&block), Some(seed));

            let max = u16::try_from(size / 12 - 1).unwrap();
            let header = ExtentHeader { magic: MAGIC, entries: 3, max, depth: 0, generation: 9 };
            header.encode_into(block.first_chunk_mut().unwrap());
            extent::write_checksum(seed, &mut block).unwrap();
            let node = ExtentNode::new(&block).unwrap();
            prop_assert_eq!(finder.of_extent_node(&node), Some(seed));

            let head = RootHead {
                dir: InodeNr(12), parent: InodeNr(2), file_type: 2, hash_version: 1, indirect_levels: 0,
            };
            let entry = DxEntry { hash: 0, block: LogicalBlock(1) };
            write_root(&mut block, &head, &[entry], true).unwrap();
            htree::write_checksum(seed, &mut block).unwrap();
            let (_, index) = DxBlock::detect(&block).unwrap();
            prop_assert_eq!(finder.of_index(&index), Some(seed));
        }

        #[test]
        fn no_bytes_panic(block in proptest::collection::vec(any::<u8>(), 0..1100)) {
            let finder = SeedFinder::new();
            let _ = finder.of_leaf(&block);
            let _ = ExtentNode::new(&block).and_then(|node| finder.of_extent_node(&node));
            let _ = DxBlock::detect(&block).and_then(|(_, index)| finder.of_index(&index));
            let _ = DxBlock::node(&block).and_then(|index| finder.of_index(&index));
        }
    }
}
