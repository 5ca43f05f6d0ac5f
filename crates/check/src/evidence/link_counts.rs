//! How many directory entries name each inode.

use std::collections::BTreeMap;

use floe_exec::Accumulator;
use floe_format::InodeNr;

use super::bits;
use super::link_counter::{LinkCounter, map_bytes};
use super::saved_bits::{load_runs, save_words};
use crate::saved::{Decoder, Encoder, Fault, Saved};

/// Inodes of a chunk of counters.
const CHUNK: usize = 2048;
/// Inodes of a chunk that may have more than one link before each gets a counter: then the counters
/// are about as small.
const MOST_WITH_MORE: usize = 512;

/// The counters of a chunk. Most inodes have one name, so one bit each is the usual form.
#[derive(Clone, Debug, Default)]
enum Counters {
    #[default]
    None,
    Bits {
        /// Inodes with at least one link.
        one: Box<[u64; CHUNK / 64]>,
        /// Links beyond the first, by place in the chunk, ascending.
        more: Vec<(u16, u16)>,
    },
    Counts(Box<[u16; CHUNK]>),
}

/// Counted links. Counts that exceed 16 bits go to a map.
///
/// Law: neither the order of links nor of merges can be seen.
#[derive(Clone, Debug, Default)]
pub struct LinkCounts {
    chunks: Vec<Counters>,
    over: BTreeMap<u32, u64>,
}

impl Counters {
    #[inline]
    fn get(&self, at: usize) -> u16 {
        match self {
            Self::None => 0,
            Self::Counts(counts) => counts[at],
            Self::Bits { one, more } => {
                let bit = (one[at / 64] >> (at % 64) & 1) as u16;
                if more.is_empty() {
                    return bit;
                }
                let found = more.binary_search_by_key(&(at as u16), |&(place, _)| place);
                bit + found.map_or(0, |found| more[found].1)
            }
        }
    }

    /// Whether each of the counters `from..to` is 1.
    fn all_one(&self, from: usize, to: usize) -> bool {
        match self {
            Self::None => from >= to,
            Self::Counts(counts) => {
                counts.get(from..to).is_some_and(|counts| counts.iter().all(|&count| count == 1))
            }
            Self::Bits { one, more } => {
                let first = more.partition_point(|&(place, _)| usize::from(place) < from);
                let alone = more.get(first).is_none_or(|&(place, _)| usize::from(place) >= to);
                alone && bits::all_set(&one[..], from, to)
            }
        }
    }

    /// Adds links; `true` if the counter went round.
    #[inline]
    fn add(&mut self, at: usize, links: u16) -> bool {
        if matches!(self, Self::None) {
            *self = Self::Bits { one: Box::new([0; CHUNK / 64]), more: Vec::new() };
        }
        match self {
            Self::Bits { one, .. } if links == 1 && one[at / 64] >> (at % 64) & 1 == 0 => {
                one[at / 64] |= 1 << (at % 64);
                false
            }
            _ => self.add_more(at, links),
        }
    }

    /// Adds links to an inode that has some, or several at once.
    #[cold]
    fn add_more(&mut self, at: usize, links: u16) -> bool {
        let (sum, went_round) = self.get(at).overflowing_add(links);
        if let Self::Bits { one, more } = self {
            let bit = 1 << (at % 64);
            one[at / 64] = if sum == 0 { one[at / 64] & !bit } else { one[at / 64] | bit };
            match (more.binary_search_by_key(&(at as u16), |&(place, _)| place), sum) {
                (Ok(found), 0 | 1) => drop(more.remove(found)),
                (Ok(found), _) => more[found].1 = sum - 1,
                (Err(_), 0 | 1) => {}
                (Err(found), _) => more.insert(found, (at as u16, sum - 1)),
            }
            if more.len() > MOST_WITH_MORE {
                let mut counts = Box::new([0; CHUNK]);
                counts.iter_mut().enumerate().for_each(|(at, count)| *count = self.get(at));
                *self = Self::Counts(counts);
            }
        } else if let Self::Counts(counts) = self {
            counts[at] = sum;
        }
        went_round
    }
}

impl LinkCounts {
    /// Adds one link to an inode.
    #[inline]
    pub fn add(&mut self, inode: InodeNr) {
        let (index, at) = (inode.0 as usize / CHUNK, inode.0 as usize % CHUNK);
        if index >= self.chunks.len() {
            self.chunks.resize_with(index + 1, Counters::default);
        }
        if self.chunks[index].add(at, 1) {
            *self.over.entry(inode.0).or_default() += 1 << 16;
        }
    }

    /// Adds one link to each of some inodes; fast where they are in order and have no link yet.
    pub(crate) fn add_all(&mut self, inodes: &[InodeNr]) {
        let mut rest = inodes;
        while let Some(&first) = rest.first() {
            let (index, at) = (first.0 as usize / CHUNK, first.0 as usize % CHUNK);
            // How many follow each other in the chunk.
            let run = rest.iter().zip(first.0..).take_while(|(inode, next)| inode.0 == *next);
            let run = run.count().min(CHUNK - at);
            let (now, later) = rest.split_at(run.max(1));
            let one = match self.chunks.get_mut(index) {
                Some(Counters::Bits { one, .. }) => Some(one),
                _ => None,
            };
            match one {
                Some(one) if bits::all_clear(&one[..], at, at + run) => {
                    bits::set(&mut one[..], at, at + run)
                }
                _ => now.iter().for_each(|&inode| self.add(inode)),
            }
            rest = later;
        }
    }

    /// Whether each of `len` inodes from `first` on has exactly one link.
    pub(crate) fn all_one(&self, first: InodeNr, len: usize) -> bool {
        let mut at = first.0 as usize;
        let end = at + len;
        // A counter that went round is not seen in the chunks.
        let mut all = len == 0 || self.over.is_empty();
        while all && at < end {
            let stop = end.min(at - at % CHUNK + CHUNK);
            let (from, to) = (at % CHUNK, at % CHUNK + (stop - at));
            all = self.chunks.get(at / CHUNK).is_some_and(|chunk| chunk.all_one(from, to));
            at = stop;
        }
        all
    }

    /// Calls `each` with every inode that has links, and their number.
    pub fn for_each(&self, mut each: impl FnMut(InodeNr, u64)) {
        for (index, chunk) in self.chunks.iter().enumerate() {
            let counted = !matches!(chunk, Counters::None);
            for at in (0..CHUNK).filter(|_| counted) {
                // Counted inode numbers fit 32 bits.
                let inode = InodeNr((index * CHUNK + at) as u32);
                match self.get(inode) {
                    0 => {}
                    links => each(inode, links),
                }
            }
        }
    }

    /// The links counted for an inode.
    #[inline]
    pub fn get(&self, inode: InodeNr) -> u64 {
        let chunk = self.chunks.get(inode.0 as usize / CHUNK);
        let low = chunk.map_or(0, |chunk| chunk.get(inode.0 as usize % CHUNK));
        if self.over.is_empty() {
            return u64::from(low);
        }
        u64::from(low) + self.over.get(&inode.0).copied().unwrap_or(0)
    }
}

impl LinkCounter for LinkCounts {
    fn add(&mut self, inode: InodeNr) {
        Self::add(self, inode);
    }

    fn get(&self, inode: InodeNr) -> u64 {
        Self::get(self, inode)
    }

    fn bytes(&self) -> u64 {
        let of_chunk = |chunk: &Counters| match chunk {
            Counters::None => 0,
            Counters::Bits { one, more } => {
                size_of_val(&**one) + more.capacity() * size_of::<(u16, u16)>()
            }
            Counters::Counts(counts) => size_of_val(&**counts),
        };
        let chunks: usize = self.chunks.iter().map(of_chunk).sum();
        let table = self.chunks.capacity() * size_of::<Counters>();
        (chunks + table) as u64 + map_bytes(self.over.len(), 12)
    }
}

impl Accumulator for LinkCounts {
    fn merge(&mut self, other: Self) {
        let Self { chunks, over } = other;
        if self.chunks.len() < chunks.len() {
            self.chunks.resize_with(chunks.len(), Counters::default);
        }
        for (index, (mine, theirs)) in self.chunks.iter_mut().zip(chunks).enumerate() {
            match (&mut *mine, &theirs) {
                (_, Counters::None) => continue,
                (Counters::None, _) => {
                    *mine = theirs;
                    continue;
                }
                // The usual case: no inode has a link in both.
                (Counters::Bits { one, more }, Counters::Bits { one: theirs, more: others })
                    if more.is_empty()
                        && others.is_empty()
                        && one
                            .iter()
                            .zip(theirs.iter())
                            .all(|(mine, theirs)| mine & theirs == 0) =>
                {
                    one.iter_mut().zip(theirs.iter()).for_each(|(mine, theirs)| *mine |= theirs);
                    continue;
                }
                _ => {}
            }
            for at in 0..CHUNK {
                let links = theirs.get(at);
                if links > 0 && mine.add(at, links) {
                    // Counted inode numbers fit 32 bits.
                    *self.over.entry((index * CHUNK + at) as u32).or_default() += 1 << 16;
                }
            }
        }
        for (inode, count) in over {
            *self.over.entry(inode).or_default() += count;
        }
    }
}

impl Saved for LinkCounts {
    fn save(&self, to: &mut Encoder<'_>) {
        let Self { chunks, over } = self;
        let mut next = 0;
        for (index, chunk) in (0..).zip(chunks) {
            let counted: Vec<u16> = match chunk {
                Counters::None => continue,
                Counters::Bits { .. } | Counters::Counts(_) => {
                    (0..CHUNK).map(|at| chunk.get(at)).collect()
                }
            };
            // How many chunks lie between, plus 1: 0 is the end.
            to.put(index - next + 1);
            next = index + 1;
            let mut one = [0u64; CHUNK / 64];
            let mut more = Vec::new();
            for (at, &count) in (0..).zip(&counted) {
                if count > 0 {
                    one[at / 64] |= 1 << (at % 64);
                }
                if count > 1 {
                    more.push([at as u64, u64::from(count - 1)]);
                }
            }
            save_words(&one, to);
            to.put_rows(more.into_iter());
        }
        to.put(0);
        to.put_rows(over.iter().map(|(inode, count)| [u64::from(*inode), *count]));
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        // The last inode has the number of how many there are.
        let chunks = u64::from(from.bounds.inodes) / CHUNK as u64 + 1;
        let (mut all, mut next) = (Self::default(), 0);
        loop {
            match from.below(chunks - next + 1)? {
                0 => break,
                skipped => next += skipped,
            }
            let mut counters = Counters::None;
            let words = (CHUNK / 64) as u64;
            load_runs(from, words, |first, len| {
                // Within the chunk.
                (first..first + len).for_each(|at| _ = counters.add(at as usize, 1));
            })?;
            let more = from.rows(|[at, count]| {
                let at = usize::try_from(at).ok().filter(|at| *at < CHUNK)?;
                Some((at, u16::try_from(count).ok()?))
            })?;
            for (at, count) in more {
                if counters.add(at, count) {
                    return Err(Fault::Damaged);
                }
            }
            let index = (next - 1) as usize;
            all.chunks.resize_with(index + 1, Counters::default);
            all.chunks[index] = counters;
        }
        let over = from.rows(|[inode, count]| Some((u32::try_from(inode).ok()?, count)))?;
        all.over = over.into_iter().collect();
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn carries_over_16_bits_by_adding_and_by_merging() {
        let (mut left, mut right) = (LinkCounts::default(), LinkCounts::default());
        (0..70_000).for_each(|_| left.add(InodeNr(5)));
        (0..66_000).for_each(|_| right.add(InodeNr(5)));
        right.add(InodeNr(100_000));
        left.merge(right);
        let left = crate::saved::tests::again(&left);
        assert_eq!(left.get(InodeNr(5)), 136_000);
        assert_eq!(left.get(InodeNr(100_000)), 1);
        assert_eq!(left.get(InodeNr(6)), 0);
    }

    #[test]
    fn a_bit_an_inode_where_each_has_one_link() {
        let mut counts = LinkCounts::default();
        (0..1 << 20).for_each(|inode| counts.add(InodeNr(inode)));
        assert!(counts.bytes() < (1 << 20) / 8 * 3 / 2, "{} bytes", counts.bytes());
        (0..1 << 20).step_by(3).for_each(|inode| counts.add(InodeNr(inode)));
        assert!(counts.bytes() > 2 << 20, "a counter each, once many have more");
    }

    proptest! {
        /// Few and many links an inode, so that every form of a chunk is met.
        #[test]
        fn counts_like_a_map(
            left in proptest::collection::vec(0u32..2600, 0..6000),
            right in proptest::collection::vec(0u32..2600, 0..200),
        ) {
            let mut map = BTreeMap::new();
            let mut fill = |inodes: &[u32]| {
                let mut counts = LinkCounts::default();
                for &inode in inodes {
                    counts.add(InodeNr(inode));
                    *map.entry(inode).or_insert(0u64) += 1;
                }
                counts
            };
            let (mut counts, other) = (fill(&left), fill(&right));
            counts.merge(other);
            // In runs, over links that some have already.
            let lists = [(5..300).collect::<Vec<_>>(), (290..2600).collect(), left.clone()];
            for list in lists {
                let list: Vec<_> = list.into_iter().map(InodeNr).collect();
                counts.add_all(&list);
                for inode in list {
                    *map.entry(inode.0).or_insert(0u64) += 1;
                }
            }
            for first in [0, 1, 63, 64, 700, 2040] {
                for len in [0, 1, 2, 63, 64, 65, 600] {
                    let each = (first..first + len).all(|inode| map.get(&inode) == Some(&1));
                    prop_assert_eq!(counts.all_one(InodeNr(first), len as usize), each);
                }
            }
            let saved = crate::saved::tests::again(&counts);
            for inode in 0..2700 {
                prop_assert_eq!(counts.get(InodeNr(inode)), map.get(&inode).copied().unwrap_or(0));
                prop_assert_eq!(saved.get(InodeNr(inode)), counts.get(InodeNr(inode)));
            }
        }
    }
}
