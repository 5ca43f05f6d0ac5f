//! The names of one directory block: to find a name that is there twice.

/// Odd 64-bit constants without structure (fractions of the golden ratio and of pi).
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
const START: u64 = 0x243f_6a88_85a3_08d3;
/// The lowest bit of each byte.
const ONES: u64 = 0x0101_0101_0101_0101;
/// The highest bit of each byte.
const HIGHS: u64 = ONES << 7;

/// Facts about a name from one traversal of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameScan {
    /// Equal for equal names.
    pub hash: u64,
    /// Whether it contains a slash or a zero byte.
    pub illegal: bool,
}

/// The highest bit of a byte of `word` if that byte, or a lower one, is zero; of no byte if none is.
#[inline]
const fn zeros(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & HIGHS
}

/// Hashes a name and looks for bytes that no name may have.
#[inline]
pub(crate) fn scan_name(name: &[u8]) -> NameScan {
    let (words, rest) = name.as_chunks();
    let (mut hash, mut illegal) = (START ^ name.len() as u64, 0);
    let mut add = |word: u64| {
        illegal |= zeros(word) | zeros(word ^ (ONES * b'/' as u64));
        // Both halves of the product: names often differ in their last byte alone, which is the highest of
        // a word and does not reach the lower half.
        let product = u128::from(hash ^ word) * u128::from(MIX);
        hash = product as u64 ^ (product >> 64) as u64;
    };
    for word in words {
        add(u64::from_le_bytes(*word));
    }
    if !rest.is_empty() {
        // The last word of the name, some of which was seen; of a short one, what there is of it.
        add(name.last_chunk().map_or_else(|| short_word(rest), |word| u64::from_le_bytes(*word)));
    }
    NameScan { hash, illegal: illegal != 0 }
}

/// Fewer than 8 bytes, and behind them some that are neither zero nor a slash.
#[inline]
fn short_word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(ONES, |word, &byte| word << 8 | u64::from(byte))
}

/// The names of one block, by their places in it. Kept for the life of a worker: to begin a new
/// block costs nothing.
#[derive(Clone, Debug, Default)]
pub struct NameSet {
    /// A generation (upper half), 16 bits of the hash, and the place in units of 4 bytes.
    slots: Vec<u64>,
    generation: u32,
}

impl NameSet {
    /// Begins a block of `block_size` bytes, at most 64 KiB.
    pub fn begin(&mut self, block_size: usize) {
        // An entry has at least 12 bytes; the table stays less than half full.
        let wanted = (block_size / 12 * 2 + 2).next_power_of_two();
        self.generation = self.generation.wrapping_add(1);
        if self.slots.len() < wanted || self.generation == 0 {
            self.slots.clear();
            self.slots.resize(wanted, 0);
            self.generation = 1;
        }
    }

    /// Adds the name with a hash, of the entry at byte `offset`. If `same` says that the entry at
    /// another byte has the same name, returns that byte and adds nothing.
    #[inline]
    pub fn insert(&mut self, hash: u64, offset: u32, same: impl Fn(u32) -> bool) -> Option<u32> {
        let mask = self.slots.len().checked_sub(1)?;
        let tag = u64::from(self.generation) << 32 | (hash >> 48) << 16;
        // The low bits of the table's size: any truncation is as good.
        let mut at = hash as usize & mask;
        for _ in 0..=mask {
            let slot = self.slots[at];
            if slot >> 32 != u64::from(self.generation) {
                self.slots[at] = tag | u64::from((offset / 4) & 0xffff);
                return None;
            }
            if (slot ^ tag) >> 16 == 0 {
                let other = (slot & 0xffff) as u32 * 4;
                if same(other) {
                    return Some(other);
                }
            }
            at = (at + 1) & mask;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_scan_sees_what_a_search_sees(
            name in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b'/'), Just(0)], 0..80),
        ) {
            let illegal = name.iter().any(|byte| matches!(byte, b'/' | 0));
            prop_assert_eq!(scan_name(&name).illegal, illegal);
        }

        #[test]
        fn each_byte_counts(
            name in proptest::collection::vec(any::<u8>(), 1..80),
            at: proptest::sample::Index,
            by in 1u8..,
        ) {
            let mut other = name.clone();
            *at.get_mut(&mut other) ^= by;
            prop_assert_ne!(scan_name(&name).hash, scan_name(&other).hash);
            prop_assert_ne!(scan_name(&name).hash, scan_name(&name[1..]).hash);
        }

        /// Names as programs number them spread over a table as good as random ones: the places taken by
        /// 300 of them in 1,024 are 260 on average then.
        #[test]
        fn numbered_names_spread(
            before in "[a-z]{0,20}",
            after in "[a-z.]{0,20}",
            first in 0u32..1_000_000,
            width in 1usize..9,
        ) {
            let name = |number: u32| format!("{before}{number:0width$}{after}");
            let slot = |number| scan_name(name(number).as_bytes()).hash as usize % 1024;
            let taken: std::collections::BTreeSet<usize> = (first..first + 300).map(slot).collect();
            prop_assert!(taken.len() > 215, "{} of 300, like {}", taken.len(), name(first));
        }

        #[test]
        fn only_equal_names_meet(names in proptest::collection::vec("[ab]{1,9}", 1..80)) {
            let mut set = NameSet::default();
            for _ in 0..2 {
                set.begin(1024);
                for (index, name) in names.iter().enumerate() {
                    let hash = scan_name(name.as_bytes()).hash;
                    let found = set.insert(hash, index as u32 * 12, |other| {
                        names[other as usize / 12] == *name
                    });
                    let first = names[..index].iter().position(|before| before == name);
                    prop_assert_eq!(found, first.map(|first| first as u32 * 12));
                }
            }
        }
    }
}
