//! Tables by number of inode.
//!
//! The hash of the standard library withstands keys that an enemy chose, at ten times the cost. Numbers of inodes are given
//! out by the file system; whoever makes an image can choose some, and gains slow calls on that image.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A table whose keys are numbers.
pub(crate) type ByNumber<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Bits of the golden ratio: neighbouring numbers come to lie far apart in the high bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The hash of a few numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NumberHasher(u64);

impl NumberHasher {
    const fn add(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(SPREAD);
    }
}

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.add((*byte).into()));
    }

    fn write_u8(&mut self, number: u8) {
        self.add(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.add(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.add(number);
    }

    fn finish(&self) -> u64 {
        // Tables take the place from the low bits, which know the low bits of the number alone.
        self.0.rotate_right(20)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::hash::Hash;

    use floe_format::InodeNr;

    use super::*;

    #[test]
    fn numbers_at_regular_distances_have_places_of_their_own() {
        for step in [1u32, 2, 16, 8192, 1 << 16] {
            let place = |number: u32| {
                let mut hasher = NumberHasher::default();
                InodeNr(number.wrapping_mul(step)).hash(&mut hasher);
                hasher.finish() % 4096
            };
            let places: BTreeSet<u64> = (1..=2048).map(place).collect();
            // Random ones would have 1,612.
            assert!(places.len() > 1400, "{step}: {}", places.len());
        }
    }
}
