//! A sparse set of bit indexes: memory follows what is set, not the size of the file system.

use super::bits;

/// Bits of a chunk: one page of bits, and one group of a file system with 4 KiB blocks.
pub(crate) const CHUNK_BITS: u64 = 32768;
const WORDS: usize = (CHUNK_BITS / 64) as usize;

/// The bits of a chunk.
type Words = Box<[u64; WORDS]>;

/// Runs that a chunk holds without memory of its own: a group whose files were made one after the other
/// is one run, or two with its metadata; a chunk takes no more room than one with a pointer to bits.
pub(crate) const FEW: usize = 3;

/// A few runs of set bits, as first bit and the one behind: sorted, none empty, none touching the next.
#[derive(Clone, Copy, Debug, Default)]
struct Few {
    len: u8,
    runs: [(u16, u16); FEW],
}

impl Few {
    fn runs(&self) -> &[(u16, u16)] {
        &self.runs[..usize::from(self.len)]
    }

    /// Sets bits `from..to` if none of them is set and there is room for the run.
    #[inline]
    fn add(&mut self, from: u16, to: u16) -> bool {
        let len = usize::from(self.len);
        let at = self.runs().iter().position(|run| run.1 >= from).unwrap_or(len);
        let (here, next) = (self.runs().get(at).copied(), self.runs().get(at + 1).copied());
        match (here, next) {
            (Some((_, end)), Some((start, _))) if end == from && start < to => return false,
            (Some((_, end)), Some((start, next_end))) if end == from && start == to => {
                self.runs[at].1 = next_end;
                self.runs.copy_within(at + 2..len, at + 1);
                self.len -= 1;
            }
            (Some((_, end)), _) if end == from => self.runs[at].1 = to,
            (Some((start, _)), _) if start == to => self.runs[at].0 = from,
            (Some((start, _)), _) if start < to => return false,
            _ if len == FEW => return false,
            _ => {
                self.runs.copy_within(at..len, at + 1);
                self.runs[at] = (from, to);
                self.len += 1;
            }
        }
        true
    }

    /// Whether all bits of `from..to` are set.
    fn covers(&self, from: u16, to: u16) -> bool {
        self.runs().iter().any(|run| run.0 <= from && to <= run.1)
    }

    fn words(&self) -> Words {
        let mut words = Box::new([0; WORDS]);
        for (at, word) in words.iter_mut().enumerate() {
            *word = self.word(at);
        }
        words
    }

    /// The word at an index, below [`WORDS`].
    #[inline]
    fn word(&self, at: usize) -> u64 {
        let start = at as u64 * 64;
        self.runs().iter().fold(0, |word, &(from, to)| {
            let (from, to) = (u64::from(from).max(start), u64::from(to).min(start + 64));
            if from < to { word | word_mask(from - start, to - start) } else { word }
        })
    }
}

#[derive(Clone, Debug)]
enum Chunk {
    Few(Few),
    Bits(Words),
}

impl Default for Chunk {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Chunk {
    /// No bit is set.
    const EMPTY: Self = Self::Few(Few { len: 0, runs: [(0, 0); FEW] });
    /// Every bit is set.
    const FULL: Self = Self::Few(Few { len: 1, runs: [(0, CHUNK_BITS as u16), (0, 0), (0, 0)] });

    /// Sets bits `from..to` of this chunk, which begins at bit `start`.
    #[inline]
    fn insert(&mut self, start: u64, from: u16, to: u16, again: &mut impl FnMut(u64, u64)) {
        if !self.insert_few(start, from, to, again) {
            if let Self::Few(few) = self {
                *self = Self::Bits(few.words());
            }
            self.insert_in_words(start, u64::from(from), u64::from(to), again);
        }
    }

    /// As [`Chunk::insert`], if that takes no more memory; otherwise nothing is changed, and `false`.
    #[inline]
    fn insert_few(
        &mut self,
        start: u64,
        from: u16,
        to: u16,
        again: &mut impl FnMut(u64, u64),
    ) -> bool {
        if let Self::Few(few) = self {
            if few.add(from, to) {
                return true;
            }
            if !few.covers(from, to) {
                return false;
            }
        }
        self.insert_in_words(start, u64::from(from), u64::from(to), again);
        true
    }

    /// Sets bits that are all set already, or bits of words.
    fn insert_in_words(
        &mut self,
        start: u64,
        from: u64,
        to: u64,
        again: &mut impl FnMut(u64, u64),
    ) {
        let mut bit = from;
        while bit < to {
            let word_start = bit - bit % 64;
            let mask = word_mask(bit - word_start, to - word_start);
            let old = match self {
                Self::Bits(words) => {
                    let word = &mut words[(word_start / 64) as usize];
                    let old = *word & mask;
                    *word |= mask;
                    old
                }
                Self::Few(_) => mask,
            };
            if old != 0 {
                again(start + word_start, old);
            }
            bit = word_start + 64;
        }
    }

    /// Sets every bit of `theirs` in this chunk, which begins at bit `start`.
    fn add(&mut self, start: u64, mut theirs: Self, again: &mut impl FnMut(u64, u64)) {
        if matches!((&*self, &theirs), (Self::Few(_), Self::Bits(_))) {
            std::mem::swap(self, &mut theirs);
        }
        match (&mut *self, theirs) {
            (_, Self::Few(theirs)) => {
                theirs.runs().iter().for_each(|run| self.insert(start, run.0, run.1, again));
            }
            (Self::Bits(mine), Self::Bits(theirs)) => {
                for (at, (mine, theirs)) in mine.iter_mut().zip(theirs.iter()).enumerate() {
                    if *mine & theirs != 0 {
                        again(start + at as u64 * 64, *mine & theirs);
                    }
                    *mine |= theirs;
                }
            }
            // Swapped above.
            (Self::Few(_), Self::Bits(_)) => {}
        }
        // A complete chunk needs no memory.
        if let Self::Bits(words) = self
            && words.iter().all(|&word| word == u64::MAX)
        {
            *self = Self::FULL;
        }
    }

    /// The word at an index, below [`WORDS`].
    #[inline]
    fn word(&self, at: usize) -> u64 {
        match self {
            Self::Few(few) => few.word(at),
            Self::Bits(words) => words[at],
        }
    }

    /// How many bits are set.
    fn len(&self) -> u64 {
        match self {
            Self::Few(few) => few.runs().iter().map(|&(from, to)| u64::from(to - from)).sum(),
            Self::Bits(words) => words.iter().map(|word| u64::from(word.count_ones())).sum(),
        }
    }

    /// Whether no bit is set.
    fn is_empty(&self) -> bool {
        match self {
            Self::Few(few) => few.len == 0,
            Self::Bits(words) => words.iter().all(|&word| word == 0),
        }
    }

    /// Clears every bit of `theirs`. Returns whether all of them were set.
    fn subtract(&mut self, theirs: &Self) -> bool {
        if matches!(theirs, Self::Few(few) if few.len == 0) {
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
        *self = if left == 0 { Self::EMPTY } else { Self::Bits(words) };
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
pub(crate) fn bit_runs(word: u64) -> impl Iterator<Item = (u64, u64)> {
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
        self.chunk(bit / CHUNK_BITS).word((bit % CHUNK_BITS / 64) as usize) & (1 << (bit % 64)) != 0
    }

    #[inline]
    fn chunk(&self, index: u64) -> &Chunk {
        usize::try_from(index)
            .ok()
            .and_then(|index| self.chunks.get(index))
            .unwrap_or(&Chunk::EMPTY)
    }

    /// Sets `len` bits from `start` on and reports to `again` each word in which some were set
    /// already: the index of its first bit, and those bits.
    #[inline]
    pub fn insert(&mut self, start: u64, len: u64, mut again: impl FnMut(u64, u64)) {
        self.each_chunk(start, len, |chunk, first, from, to| {
            chunk.insert(first, from, to, &mut again);
        });
    }

    /// As [`BlockSet::insert`], as far as that takes no memory but for a place of each chunk; the runs that
    /// would need more, each within a chunk, are handed to `other` instead.
    #[inline]
    pub(crate) fn insert_few(
        &mut self,
        start: u64,
        len: u64,
        mut again: impl FnMut(u64, u64),
        mut other: impl FnMut(u64, u64),
    ) {
        self.each_chunk(start, len, |chunk, first, from, to| {
            if !chunk.insert_few(first, from, to, &mut again) {
                other(first + u64::from(from), u64::from(to - from));
            }
        });
    }

    /// Hands each chunk in which some of `start..start + len` lie to `each`, with its first bit and the bits
    /// of it, from the first one to the one behind.
    #[inline]
    fn each_chunk(
        &mut self,
        start: u64,
        len: u64,
        mut each: impl FnMut(&mut Chunk, u64, u16, u16),
    ) {
        let end = start.saturating_add(len);
        let mut bit = start;
        while bit < end {
            let chunk_start = bit - bit % CHUNK_BITS;
            let stop = end.min(chunk_start + CHUNK_BITS);
            // A bit index is at most 2^48 (blocks), so a chunk index fits a usize of 64 bits.
            let index = (chunk_start / CHUNK_BITS) as usize;
            if index >= self.chunks.len() {
                self.chunks.resize_with(index + 1, Chunk::default);
            }
            // Inside a chunk bits are counted by 16 bits.
            let (from, to) = ((bit - chunk_start) as u16, (stop - chunk_start) as u16);
            each(&mut self.chunks[index], chunk_start, from, to);
            bit = stop;
        }
    }

    /// Sets those bits of a word that are set in `bits`. `word` is the index of its first bit.
    pub(crate) fn insert_word(&mut self, word: u64, bits: u64) {
        for (from, len) in bit_runs(bits) {
            self.insert(word + from, len, |_, _| ());
        }
    }

    /// The set whose chunks were dealt out one by one: the first to the first of `parts`, the second to the
    /// second, and so on, in rounds.
    pub fn dealt(parts: Vec<Self>) -> Self {
        let rounds = parts.iter().map(|part| part.chunks.len()).max().unwrap_or(0);
        let mut chunks = Vec::with_capacity(rounds * parts.len());
        let mut parts: Vec<_> = parts.into_iter().map(|part| part.chunks.into_iter()).collect();
        for _ in 0..rounds {
            chunks.extend(parts.iter_mut().map(|part| part.next().unwrap_or_default()));
        }
        while chunks.last().is_some_and(Chunk::is_empty) {
            chunks.pop();
        }
        Self { chunks }
    }

    /// Sets every bit of `other` too, and reports to `again` as [`BlockSet::insert`] does.
    pub fn absorb(&mut self, other: Self, mut again: impl FnMut(u64, u64)) {
        self.make_room(other.chunks.len());
        for ((index, own), theirs) in self.chunks.iter_mut().enumerate().zip(other.chunks) {
            own.add(index as u64 * CHUNK_BITS, theirs, &mut again);
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
        let aligned =
            |start: u64| self.chunk(start / CHUNK_BITS).word((start % CHUNK_BITS / 64) as usize);
        let (start, shift) = (bit - bit % 64, bit % 64);
        if shift == 0 {
            return aligned(start);
        }
        aligned(start) >> shift | aligned(start + 64) << (64 - shift)
    }

    /// Fills `into` with the bits from `start` on, lowest first; comes back with how many are set.
    /// `start` is a multiple of 64.
    pub fn words(&self, start: u64, into: &mut [u64]) -> u32 {
        let (mut at, mut rest, mut set) = (start / 64, into, 0);
        while !rest.is_empty() {
            let first = at as usize % WORDS;
            let (now, later) = rest.split_at_mut((WORDS - first).min(rest.len()));
            match self.chunk(at * 64 / CHUNK_BITS) {
                Chunk::Few(few) => {
                    now.fill(0);
                    // Bits of this chunk, counted from the first that is wanted.
                    let (from, end) = (first * 64, (first + now.len()) * 64);
                    let wanted = |bit: u16| usize::from(bit).clamp(from, end) - from;
                    for &(first, behind) in few.runs() {
                        bits::set(now, wanted(first), wanted(behind));
                        set += (wanted(behind) - wanted(first)) as u32;
                    }
                }
                Chunk::Bits(words) => {
                    now.copy_from_slice(&words[first..first + now.len()]);
                    set += now.iter().map(|word| word.count_ones()).sum::<u32>();
                }
            }
            at += now.len() as u64;
            rest = later;
        }
        set
    }

    /// Whether no bit of `start..start + len` is set; costs little where nothing is near.
    pub fn is_clear_in(&self, start: u64, len: u64) -> bool {
        let end = start.saturating_add(len);
        let mut bit = start;
        while bit < end {
            let left = end - bit;
            let mask = if left >= 64 { u64::MAX } else { (1 << left) - 1 };
            if matches!(self.chunk(bit / CHUNK_BITS), Chunk::Few(few) if few.len == 0) {
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
    pub(crate) fn subtract(&mut self, other: &Self) -> bool {
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
        self.each_piece(|start, len| match runs.last_mut() {
            Some(last) if last.0 + last.1 == start => last.1 += len,
            _ => runs.push((start, len)),
        });
        runs
    }

    /// Hands each run of set bits to `each`, in order and in pieces: one ends with its chunk at least, or with
    /// its word.
    pub(crate) fn each_piece(&self, mut each: impl FnMut(u64, u64)) {
        for (index, chunk) in self.chunks.iter().enumerate() {
            let chunk_start = index as u64 * CHUNK_BITS;
            match chunk {
                Chunk::Few(few) => {
                    for &(from, to) in few.runs() {
                        each(chunk_start + u64::from(from), u64::from(to - from));
                    }
                }
                Chunk::Bits(words) => {
                    for (at, &word) in words.iter().enumerate() {
                        for (from, len) in bit_runs(word) {
                            each(chunk_start + at as u64 * 64 + from, len);
                        }
                    }
                }
            }
        }
    }

    /// How many bits are set.
    pub fn len(&self) -> u64 {
        self.chunks.iter().map(Chunk::len).sum()
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
        // Long ones anywhere, and short ones that often touch or meet.
        let run = prop_oneof![
            2 => (0u64..140_000, 0u64..70_000),
            1 => (0u64..24, 0u64..5).prop_map(|(start, len)| (32_700 + 8 * start, 8 * len)),
        ];
        proptest::collection::vec(run, 0..12)
    }

    /// How often each bit is set, counted one by one.
    fn model(runs: &[(u64, u64)]) -> BTreeMap<u64, u32> {
        let mut counts = BTreeMap::new();
        for &(start, len) in runs {
            (start..start + len).for_each(|bit| *counts.entry(bit).or_insert(0) += 1);
        }
        counts
    }

    #[test]
    fn runs_that_meet_take_no_memory() {
        let mut set = BlockSet::default();
        // In any order, as long as no more than a few lie apart.
        for (start, len) in [(100, 50), (300, 20), (10, 5), (150, 150), (15, 85), (320, 32_448)] {
            set.insert(start, len, |_, _| panic!("set before"));
            assert!(matches!(set.chunks[0], Chunk::Few(_)));
        }
        assert_eq!(set.runs(), [(10, 32_758)]);
        let mut again = Vec::new();
        set.insert(60, 8, |word, bits| again.push((word, bits)));
        assert_eq!(again, [(0, 0xf << 60), (64, 0xf)]);
        set.insert(0, 10, |_, _| panic!("set before"));
        assert!(matches!(set.chunks[..], [Chunk::Few(Few { len: 1, .. })]));
        assert_eq!(size_of::<Chunk>(), 2 * size_of::<usize>(), "no more than a pointer and a tag");
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
            prop_assert_eq!(set.len(), mine.len() as u64);
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
            for (start, len) in [(0, 512), (32_704, 1024), (64, 3), (65_536, 512), (131_072, 600)] {
                let mut words = vec![7; len];
                let count = set.words(start, &mut words);
                prop_assert_eq!(count, words.iter().map(|word| word.count_ones()).sum::<u32>());
                let one_by_one = (0..len as u64).map(|at| set.word(start + 64 * at));
                prop_assert!(one_by_one.eq(words));
            }
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
