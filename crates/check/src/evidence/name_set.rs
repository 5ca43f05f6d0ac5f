//! The names of one directory block: to find a name that is there twice.

/// Odd 64-bit constants without structure (fractions of the golden ratio and of pi).
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
const START: u64 = 0x243f_6a88_85a3_08d3;
/// The lowest bit of each byte.
const ONES: u64 = 0x0101_0101_0101_0101;
/// The highest bit of each byte.
const HIGHS: u64 = ONES << 7;

/// What one look at the bytes of a name tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameScan {
    /// Equal for equal names.
    pub hash: u64,
    /// Whether it contains a slash or a zero byte.
    pub illegal: bool,
}

/// Whether a byte of `word` is zero.
#[inline]
const fn has_zero(word: u64) -> bool {
    word.wrapping_sub(ONES) & !word & HIGHS != 0
}

/// Hashes the name of `len` bytes at `at` of a block and looks for bytes that no name may have.
/// The name must lie inside the block; bytes past its end count as absent.
#[inline]
pub fn scan_name(block: &[u8], at: usize, len: usize) -> NameScan {
    let mut hash = START ^ len as u64;
    let mut illegal = false;
    let mut done = 0;
    while done < len {
        let mut word = word_at(block, at + done);
        let rest = len - done;
        if rest < 8 {
            // Behind the name: bytes that are neither zero nor a slash.
            let keep = (1u64 << (8 * rest)) - 1;
            word = (word & keep) | (ONES & !keep);
        }
        illegal |= has_zero(word) | has_zero(word ^ (ONES * b'/' as u64));
        hash = (hash ^ word).wrapping_mul(MIX);
        hash ^= hash >> 32;
        done += 8;
    }
    NameScan { hash, illegal }
}

/// The 8 bytes at `at`, zero past the end of the block.
#[inline]
fn word_at(block: &[u8], at: usize) -> u64 {
    let rest = block.get(at..).unwrap_or(&[]);
    match rest.first_chunk() {
        Some(bytes) => u64::from_le_bytes(*bytes),
        None => {
            let mut bytes = [0; 8];
            bytes[..rest.len()].copy_from_slice(rest);
            u64::from_le_bytes(bytes)
        }
    }
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
            block in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b'/'), Just(0)], 0..80),
            at in 0usize..80,
            len in 0usize..80,
        ) {
            let at = at.min(block.len());
            let len = len.min(block.len() - at);
            let name = &block[at..at + len];
            let scan = scan_name(&block, at, len);
            prop_assert_eq!(scan.illegal, name.iter().any(|byte| matches!(byte, b'/' | 0)));
            prop_assert_eq!(scan.hash, scan_name(name, 0, len).hash);
        }

        #[test]
        fn only_equal_names_meet(names in proptest::collection::vec("[ab]{1,9}", 1..80)) {
            let mut set = NameSet::default();
            for _ in 0..2 {
                set.begin(1024);
                for (index, name) in names.iter().enumerate() {
                    let hash = scan_name(name.as_bytes(), 0, name.len()).hash;
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
