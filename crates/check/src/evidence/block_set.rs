//! A sparse set of bit indexes: memory follows what is set, not the size of the file system.

/// Bits of a chunk: one page of bits, and one group of a file system with 4 KiB blocks.
const CHUNK_BITS: u64 = 32768;
const WORDS: usize = (CHUNK_BITS / 64) as usize;

/// The bits of a chunk.
type Words = Box<[u64; WORDS]>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Chunk {
    /// No bit is set.
    #[default]
    Empty,
    /// Every bit is set.
    Full,
    Bits(Words),
}

impl Chunk {
    /// Sets every bit of `theirs` in this chunk, which is not empty and begins at bit `start`.
    fn add(&mut self, start: u64, theirs: &Self, again: &mut impl FnMut(u64, u64)) {
        // Of two chunks one of which is full, the bits of the other one are set twice.
        let twice = match (&mut *self, theirs) {
            (_, Self::Empty) => return,
            (Self::Bits(mine), Self::Bits(theirs)) => {
                for (at, (mine, theirs)) in mine.iter_mut().zip(theirs.iter()).enumerate() {
                    if *mine & theirs != 0 {
                        again(start + at as u64 * 64, *mine & theirs);
                    }
                    *mine |= theirs;
                }
                // What is complete needs no memory.
                if mine.iter().all(|&word| word == u64::MAX) {
                    *self = Self::Full;
                }
                return;
            }
            (Self::Full, theirs) => theirs.clone(),
            (mine, Self::Full) => std::mem::replace(mine, Self::Full),
            (Self::Empty, theirs) => return *self = theirs.clone(),
        };
        for at in 0..WORDS {
            let word = match &twice {
                Self::Bits(words) => words[at],
                Self::Full | Self::Empty => u64::MAX,
            };
            if word != 0 {
                again(start + at as u64 * 64, word);
            }
        }
    }
}

impl Chunk {
    /// The word at an index, below [`WORDS`].
    fn word(&self, at: usize) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Full => u64::MAX,
            Self::Bits(words) => words[at],
        }
    }

    /// Whether no bit is set.
    fn is_empty(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Full => false,
            Self::Bits(words) => words.iter().all(|&word| word == 0),
        }
    }

    /// Clears every bit of `theirs`. Returns whether all of them were set.
    fn subtract(&mut self, theirs: &Self) -> bool {
        if matches!(theirs, Self::Empty) {
            return true;
        }
        let (mut all, mut left) = (true, 0);
        let mut words = Box::new([0; WORDS]);
        for (at, word) in words.iter_mut().enumerate() {
            let (own, theirs) = (self.word(at), theirs.word(at));
            all &= theirs & !own == 0;
            *word = own & !theirs;
            left |= *word;
        }
        *self = if left == 0 { Self::Empty } else { Self::Bits(words) };
        all
    }

    /// Whether any bit is set in both.
    fn meets(&self, other: &Self) -> bool {
        (0..WORDS).any(|at| self.word(at) & other.word(at) != 0)
    }
}

/// A set of bit indexes (block or cluster numbers, inode numbers).
#[derive(Clone, Debug, Default)]
pub struct BlockSet {
    chunks: Vec<Chunk>,
}

/// The bits of a word that `from..to` covers, both counted from the word's first bit, `from < 64`.
#[inline]
pub(crate) const fn word_mask(from: u64, to: u64) -> u64 {
    let upper = if to >= 64 { u64::MAX } else { (1 << to) - 1 };
    upper & (u64::MAX << from)
}

/// The runs of set bits of a word, lowest first, as (first bit, number of bits).
pub fn bit_runs(word: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut rest = word;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let from = u64::from(rest.trailing_zeros());
        let len = u64::from((!(rest >> from)).trailing_zeros()).min(64 - from);
        rest &= !word_mask(from, from + len);
        Some((from, len))
    })
}

impl BlockSet {
    /// Whether `bit` is set.
    #[inline]
    pub fn contains(&self, bit: u64) -> bool {
        match self.chunk(bit / CHUNK_BITS) {
            Chunk::Empty => false,
            Chunk::Full => true,
            Chunk::Bits(words) => words[(bit % CHUNK_BITS / 64) as usize] & (1 << (bit % 64)) != 0,
        }
    }

    #[inline]
    fn chunk(&self, index: u64) -> &Chunk {
        usize::try_from(index)
            .ok()
            .and_then(|index| self.chunks.get(index))
            .unwrap_or(&Chunk::Empty)
    }

    /// Sets `len` bits from `start` on and reports to `again` each word in which some were set
    /// already: the index of its first bit, and those bits.
    #[inline]
    pub fn insert(&mut self, start: u64, len: u64, mut again: impl FnMut(u64, u64)) {
        let end = start.saturating_add(len);
        let mut bit = start;
        while bit < end {
            let chunk_start = bit - bit % CHUNK_BITS;
            let stop = end.min(chunk_start + CHUNK_BITS);
            self.insert_in_chunk(chunk_start, bit, stop, &mut again);
            bit = stop;
        }
    }

    fn insert_in_chunk(
        &mut self,
        chunk_start: u64,
        from: u64,
        to: u64,
        again: &mut impl FnMut(u64, u64),
    ) {
        // A bit index is at most 2^48 (blocks), so a chunk index fits a usize of 64 bits.
        let index = (chunk_start / CHUNK_BITS) as usize;
        if index >= self.chunks.len() {
            self.chunks.resize_with(index + 1, Chunk::default);
        }
        let chunk = &mut self.chunks[index];
        if matches!(chunk, Chunk::Empty) {
            if to - from == CHUNK_BITS {
                *chunk = Chunk::Full;
                return;
            }
            *chunk = Chunk::Bits(Box::new([0; WORDS]));
        }
        let mut bit = from;
        while bit < to {
            let word_start = bit - bit % 64;
            let mask = word_mask(bit - word_start, to - word_start);
            let old = match chunk {
                Chunk::Bits(words) => {
                    let word = &mut words[((word_start - chunk_start) / 64) as usize];
                    let old = *word & mask;
                    *word |= mask;
                    old
                }
                Chunk::Full | Chunk::Empty => mask,
            };
            if old != 0 {
                again(word_start, old);
            }
            bit = word_start + 64;
        }
    }

    /// Sets every bit of `other` too, and reports to `again` as [`BlockSet::insert`] does.
    pub fn absorb(&mut self, other: Self, mut again: impl FnMut(u64, u64)) {
        self.make_room(other.chunks.len());
        for ((index, own), theirs) in self.chunks.iter_mut().enumerate().zip(other.chunks) {
            match own {
                Chunk::Empty => *own = theirs,
                _ => own.add(index as u64 * CHUNK_BITS, &theirs, &mut again),
            }
        }
    }

    fn make_room(&mut self, chunks: usize) {
        if self.chunks.len() < chunks {
            self.chunks.reserve_exact(chunks - self.chunks.len());
            self.chunks.resize_with(chunks, Chunk::default);
        }
    }

    /// The 64 bits from `bit` on, lowest first; `bit` need not be a multiple of 64.
    #[inline]
    pub fn word(&self, bit: u64) -> u64 {
        let aligned = |start: u64| match self.chunk(start / CHUNK_BITS) {
            Chunk::Empty => 0,
            Chunk::Full => u64::MAX,
            Chunk::Bits(words) => words[(start % CHUNK_BITS / 64) as usize],
        };
        let (start, shift) = (bit - bit % 64, bit % 64);
        if shift == 0 {
            return aligned(start);
        }
        aligned(start) >> shift | aligned(start + 64) << (64 - shift)
    }

    /// Whether no bit of `start..start + len` is set; costs little where nothing is near.
    pub fn is_clear_in(&self, start: u64, len: u64) -> bool {
        let end = start.saturating_add(len);
        let mut bit = start;
        while bit < end {
            let left = end - bit;
            let mask = if left >= 64 { u64::MAX } else { (1 << left) - 1 };
            if matches!(self.chunk(bit / CHUNK_BITS), Chunk::Empty) {
                bit = bit - bit % CHUNK_BITS + CHUNK_BITS;
            } else if self.word(bit) & mask != 0 {
                return false;
            } else {
                bit += 64;
            }
        }
        true
    }

    /// Clears every bit of `other`. Returns whether all of them were set.
    pub fn subtract(&mut self, other: &Self) -> bool {
        let mut all = true;
        for (index, theirs) in other.chunks.iter().enumerate() {
            match self.chunks.get_mut(index) {
                Some(own) => all &= own.subtract(theirs),
                None => all &= theirs.is_empty(),
            }
        }
        all
    }

    /// Whether any bit is set in both.
    pub fn meets(&self, other: &Self) -> bool {
        self.chunks.iter().zip(&other.chunks).any(|(own, theirs)| own.meets(theirs))
    }

    /// A number above that of every set bit.
    pub fn end(&self) -> u64 {
        self.chunks.len() as u64 * CHUNK_BITS
    }

    /// The runs of set bits, in order, as (first bit, number of bits).
    pub fn runs(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let mut add = |start: u64, len: u64| match runs.last_mut() {
            Some(last) if last.0 + last.1 == start => last.1 += len,
            _ => runs.push((start, len)),
        };
        for (index, chunk) in self.chunks.iter().enumerate() {
            let chunk_start = index as u64 * CHUNK_BITS;
            match chunk {
                Chunk::Empty => {}
                Chunk::Full => add(chunk_start, CHUNK_BITS),
                Chunk::Bits(words) => {
                    for (at, &word) in words.iter().enumerate() {
                        for (from, len) in bit_runs(word) {
                            add(chunk_start + at as u64 * 64 + from, len);
                        }
                    }
                }
            }
        }
        runs
    }

    /// Whether no bit is set.
    pub fn is_empty(&self) -> bool {
        self.chunks.iter().all(Chunk::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn runs() -> impl Strategy<Value = Vec<(u64, u64)>> {
        proptest::collection::vec((0u64..140_000, 0u64..70_000), 0..12)
    }

    /// How often each bit is set, counted one by one.
    fn model(runs: &[(u64, u64)]) -> BTreeMap<u64, u32> {
        let mut counts = BTreeMap::new();
        for &(start, len) in runs {
            (start..start + len).for_each(|bit| *counts.entry(bit).or_insert(0) += 1);
        }
        counts
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn what_one_has_can_be_taken_away(left in runs(), right in runs()) {
            let fill = |runs: &[(u64, u64)]| {
                let mut set = BlockSet::default();
                runs.iter().for_each(|&(start, len)| set.insert(start, len, |_, _| ()));
                set
            };
            let bits = |runs: &[(u64, u64)]| model(runs).into_keys().collect::<BTreeSet<u64>>();
            let (mut set, other) = (fill(&left), fill(&right));
            let (mine, theirs) = (bits(&left), bits(&right));
            prop_assert_eq!(set.meets(&other), !mine.is_disjoint(&theirs));
            prop_assert_eq!(set.subtract(&other), theirs.is_subset(&mine));
            let listed = set.runs().into_iter().flat_map(|(start, len)| start..start + len);
            prop_assert!(listed.eq(mine.difference(&theirs).copied()));
            prop_assert_eq!(set.is_empty(), mine.is_subset(&theirs));
            prop_assert!(set.subtract(&set.clone()) && set.is_empty());
        }

        #[test]
        fn agrees_with_counting(left in runs(), right in runs()) {
            let mut again = BlockSet::default();
            let mut fill = |runs: &[(u64, u64)]| {
                let mut set = BlockSet::default();
                for &(start, len) in runs {
                    set.insert(start, len, |word, bits| {
                        (0..64).filter(|at| bits & (1 << at) != 0).for_each(|at| again.insert(word + at, 1, |_, _| ()));
                    });
                }
                set
            };
            let (mut set, other) = (fill(&left), fill(&right));
            set.absorb(other, |word, bits| {
                (0..64).filter(|at| bits & (1 << at) != 0).for_each(|at| again.insert(word + at, 1, |_, _| ()));
            });
            let counts = model(&[left, right].concat());
            for bit in [0, 1, 63, 64, 32_767, 32_768, 70_001, 139_999, 300_000] {
                let count = counts.get(&bit).copied().unwrap_or(0);
                prop_assert_eq!(set.contains(bit), count > 0);
                prop_assert_eq!(again.contains(bit), count > 1);
            }
            let twice = counts.iter().filter(|&(_, &count)| count > 1).map(|(bit, _)| bit);
            let listed: Vec<u64> = again.runs().into_iter().flat_map(|(start, len)| start..start + len).collect();
            prop_assert!(listed.iter().eq(twice));
            let listed: Vec<u64> = set.runs().into_iter().flat_map(|(start, len)| start..start + len).collect();
            prop_assert!(listed.iter().eq(counts.keys()));
            for bit in [0, 1, 63, 64, 32_767, 65_535, 70_001] {
                let expected = (0..64).fold(0, |word, at| word | u64::from(counts.contains_key(&(bit + at))) << at);
                prop_assert_eq!(set.word(bit), expected);
            }
        }
    }
}
