//! From the inode of a directory to its place in the list of directories, in constant time.

use std::ops::Range;

use floe_exec::{Accumulator, Pool};
use floe_format::InodeNr;

use super::dirs::DirInfo;
use super::pieces::pieces;

/// Inodes of a chunk.
const SPAN: u32 = 2048;
/// Words of a chunk.
const WORDS: usize = SPAN as usize / 64;

/// The directories among [`SPAN`] inodes.
#[derive(Clone, Debug)]
struct Chunk {
    /// Directories before this chunk.
    base: u32,
    /// Directories of this chunk before each word.
    before: [u16; WORDS],
    /// One bit an inode.
    bits: [u64; WORDS],
}

/// The rank of each directory among all, by inode: what arrays "one entry a directory" are indexed
/// with. About a sixth of a byte an inode, where there are directories.
#[derive(Clone, Debug, Default)]
pub struct DirIndex {
    chunks: Vec<Option<Box<Chunk>>>,
    inodes: Vec<InodeNr>,
    /// Each inode is its own rank; there are no chunks.
    by_inode: bool,
}

/// The index of adjacent directories, whole chunks of them.
struct Part {
    /// Directories before them.
    first: u32,
    chunks: Vec<(u32, Box<Chunk>)>,
    /// Each once.
    inodes: Vec<InodeNr>,
}

impl Part {
    fn of(infos: &[DirInfo], first: u32) -> Self {
        let mut part = Self { first, chunks: Vec::new(), inodes: Vec::with_capacity(infos.len()) };
        for of_chunk in infos.chunk_by(|one, other| one.inode.0 / SPAN == other.inode.0 / SPAN) {
            part.add_chunk(of_chunk);
        }
        part
    }

    fn add_chunk(&mut self, infos: &[DirInfo]) {
        let before = self.inodes.len();
        // Fewer directories than inodes, whose numbers fit 32 bits.
        let base = self.first + before as u32;
        let mut chunk = Chunk { base, before: [0; WORDS], bits: [0; WORDS] };
        for info in infos {
            let at = (info.inode.0 % SPAN) as usize;
            chunk.bits[at / 64] |= 1 << (at % 64);
        }
        self.inodes.extend(infos.iter().map(|info| info.inode));
        let mut sum = 0;
        for (word, count) in chunk.bits.iter().zip(&mut chunk.before) {
            *count = sum;
            // At most 2048 in all.
            sum += word.count_ones() as u16;
        }
        // On a damaged disk an inode may have been found twice.
        if usize::from(sum) != infos.len() {
            let mut own = self.inodes.split_off(before);
            own.dedup();
            self.inodes.append(&mut own);
        }
        if let Some(info) = infos.first() {
            self.chunks.push((info.inode.0 / SPAN, Box::new(chunk)));
        }
    }
}

/// Parts that workers made, in no order.
#[derive(Default)]
struct Parts(Vec<Part>);

impl Accumulator for Parts {
    fn merge(&mut self, other: Self) {
        let Self(mut other) = other;
        self.0.append(&mut other);
    }
}

impl DirIndex {
    /// An index for whoever does not know all directories yet: the number of an inode stands for its rank, be it a
    /// directory or not.
    pub fn by_inode() -> Self {
        Self { by_inode: true, ..Self::default() }
    }

    /// Whether numbers of inodes stand for ranks.
    pub(crate) const fn is_by_inode(&self) -> bool {
        self.by_inode
    }

    /// The index of the directories in `infos`, which is sorted by inode.
    pub fn new(infos: &[DirInfo]) -> Self {
        Self::of_parts(infos, vec![Part::of(infos, 0)])
    }

    /// The same, made by all workers of `pool`.
    pub fn made_by(pool: &Pool, infos: &[DirInfo]) -> Self {
        // Parts end where chunks do.
        let begins = |at: &usize| {
            let of_chunk = |at: usize| infos.get(at).map(|info| info.inode.0 / SPAN);
            *at > 0 && *at < infos.len() && of_chunk(*at - 1) == of_chunk(*at)
        };
        let align = |at: usize| at + (at..).take_while(begins).count();
        let ranges: Vec<Range<usize>> =
            pieces(infos.len()).iter().map(|piece| align(piece.start)..align(piece.end)).collect();
        let Parts(mut parts) = pool.watched(None).run(&ranges, |all: &mut Parts, range| {
            if let Some(infos) = infos.get(range.clone()).filter(|infos| !infos.is_empty()) {
                // Fewer directories than inodes, whose numbers fit 32 bits.
                all.0.push(Part::of(infos, range.start as u32));
            }
        });
        if parts.iter().map(|part| part.inodes.len()).sum::<usize>() < infos.len() {
            // An inode was found twice: ranks differ from places in the list.
            return Self::new(infos);
        }
        parts.sort_unstable_by_key(|part| part.first);
        Self::of_parts(infos, parts)
    }

    fn of_parts(infos: &[DirInfo], mut parts: Vec<Part>) -> Self {
        let last = infos.last().map_or(0, |info| info.inode.0 / SPAN + 1);
        let mut chunks = Vec::new();
        chunks.resize_with(last as usize, || None);
        // A copy of the only part would be memory for nothing.
        let mut inodes = match &mut parts[..] {
            [only] => std::mem::take(&mut only.inodes),
            _ => Vec::with_capacity(infos.len()),
        };
        for part in parts {
            inodes.extend_from_slice(&part.inodes);
            for (nr, chunk) in part.chunks {
                if let Some(slot) = chunks.get_mut(nr as usize) {
                    *slot = Some(chunk);
                }
            }
        }
        Self { chunks, inodes, by_inode: false }
    }

    /// Number of directories.
    pub fn len(&self) -> usize {
        self.inodes.len()
    }

    /// Whether there is no directory.
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }

    /// The rank of a directory: 0 for the one with the lowest inode. `None` for any other inode.
    #[inline]
    pub fn get(&self, inode: InodeNr) -> Option<u32> {
        let Some(chunk) = self.chunks.get((inode.0 / SPAN) as usize) else {
            return (self.by_inode && inode.0 != 0).then_some(inode.0);
        };
        let chunk = chunk.as_ref()?;
        let at = inode.0 % SPAN;
        let word = chunk.bits[at as usize / 64];
        let bit = 1u64 << (at % 64);
        if word & bit == 0 {
            return None;
        }
        let below = (word & (bit - 1)).count_ones();
        Some(chunk.base + u32::from(chunk.before[at as usize / 64]) + below)
    }

    /// The directory of a rank; inode 0 past the last one.
    #[inline]
    pub fn inode(&self, rank: u32) -> InodeNr {
        self.inodes.get(rank as usize).copied().unwrap_or_default()
    }

    /// All directories, in order of their inodes.
    pub fn inodes(&self) -> &[InodeNr] {
        &self.inodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn ranks_are_positions(inodes in proptest::collection::btree_set(1u32..9_000, 0..400)) {
            let infos: Vec<_> = inodes
                .iter()
                .map(|&inode| DirInfo { inode: InodeNr(inode), size_blocks: 1 })
                .collect();
            let index = DirIndex::new(&infos);
            let sorted: Vec<u32> = inodes.iter().copied().collect();
            for inode in 0..9_100 {
                let expected = sorted.binary_search(&inode).ok().map(|at| at as u32);
                prop_assert_eq!(index.get(InodeNr(inode)), expected);
            }
            for (rank, &inode) in inodes.iter().enumerate() {
                prop_assert_eq!(index.inode(rank as u32), InodeNr(inode));
            }
        }
    }

    /// Several pieces of the list, whose ends lie within chunks; an inode twice, too.
    #[test]
    fn workers_make_the_same_index() {
        for (step, twice) in [(1, None), (2, None), (3, Some(9_000)), (1, Some(0))] {
            let numbers = (0..30_000u32).map(|at| InodeNr(1 + at * step));
            let mut infos: Vec<_> =
                numbers.map(|inode| DirInfo { inode, size_blocks: 1 }).collect();
            if let Some(at) = twice {
                infos.insert(at, infos[at]);
            }
            let alone = DirIndex::new(&infos);
            for threads in [1, 2, 5] {
                let index = DirIndex::made_by(&Pool::new(threads), &infos);
                assert_eq!(index.inodes(), alone.inodes());
                for inode in (0..31_000 * step).map(InodeNr) {
                    assert_eq!(index.get(inode), alone.get(inode), "{inode} by {threads}");
                }
            }
        }
        assert!(DirIndex::made_by(&Pool::new(3), &[]).is_empty());
    }
}

#[cfg(test)]
mod laws {
    use super::*;

    floe_exec::accumulator_laws!(
        Parts,
        1u32..9_000,
        |all: &mut Parts, number: u32| {
            let info = DirInfo { inode: InodeNr(number), size_blocks: 1 };
            all.0.push(Part::of(&[info], number));
        },
        |all: Parts| {
            let mut parts: Vec<_> =
                all.0.into_iter().map(|part| (part.first, part.inodes)).collect();
            parts.sort_unstable();
            parts
        }
    );
}
