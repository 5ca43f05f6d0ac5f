//! Counted links in the structure chosen for a check. All structures count the same; they differ in
//! memory and time (`docs/memory.md`).

use floe_exec::Accumulator;
use floe_format::InodeNr;

use super::choice::LinkStructure;
use super::link_array::LinkArray;
use super::link_counter::LinkCounter;
use super::link_counts::LinkCounts;
use super::twin_tree::TwinTree;
use crate::saved::{Decoder, Encoder, Fault, Saved};

/// Counted links: of one worker (its delta), or of all once they are merged.
///
/// Law: neither the order of links nor of merges can be seen, nor which structure was taken.
#[derive(Clone, Debug)]
pub enum LinkTally {
    /// One bit an inode, and counters where several have more than one link.
    Bits(LinkCounts),
    /// A counter for each inode.
    Array(LinkArray),
    /// Maps of the inodes in use.
    TwinTree(TwinTree),
}

impl Default for LinkTally {
    fn default() -> Self {
        Self::Bits(LinkCounts::default())
    }
}

impl LinkTally {
    /// An empty structure.
    pub fn new(structure: LinkStructure) -> Self {
        match structure {
            LinkStructure::Bits => Self::default(),
            LinkStructure::Array => Self::Array(LinkArray::default()),
            LinkStructure::TwinTree => Self::TwinTree(TwinTree::default()),
        }
    }

    /// Which structure it is.
    pub const fn structure(&self) -> LinkStructure {
        match self {
            Self::Bits(_) => LinkStructure::Bits,
            Self::Array(_) => LinkStructure::Array,
            Self::TwinTree(_) => LinkStructure::TwinTree,
        }
    }

    /// The same links, in the structure wanted from now on. Workers begin with the default one, and
    /// call this before they count: only then is it cheap.
    #[inline]
    pub fn taking(&mut self, structure: LinkStructure) -> &mut Self {
        if self.structure() != structure {
            let before = std::mem::replace(self, Self::new(structure));
            self.add_from(&before);
        }
        self
    }

    /// The same structure, empty.
    #[must_use]
    pub fn emptied(&self) -> Self {
        Self::new(self.structure())
    }

    /// Adds one link to an inode.
    #[inline]
    pub fn add(&mut self, inode: InodeNr) {
        match self {
            Self::Bits(counts) => counts.add(inode),
            Self::Array(counts) => counts.add(inode),
            Self::TwinTree(counts) => counts.add(inode),
        }
    }

    /// Adds one link to each of some inodes; fast where they follow each other.
    #[inline]
    pub(crate) fn add_all(&mut self, inodes: &[InodeNr]) {
        match self {
            Self::Bits(counts) => counts.add_all(inodes),
            Self::Array(counts) => inodes.iter().for_each(|&inode| counts.add(inode)),
            Self::TwinTree(counts) => counts.add_all(inodes),
        }
    }

    /// The links counted for an inode.
    #[inline]
    pub fn get(&self, inode: InodeNr) -> u64 {
        match self {
            Self::Bits(counts) => counts.get(inode),
            Self::Array(counts) => counts.get(inode),
            Self::TwinTree(counts) => counts.get(inode),
        }
    }

    /// Whether each of `len` inodes from `first` on has exactly one link.
    pub(crate) fn all_one(&self, first: InodeNr, len: usize) -> bool {
        match self {
            Self::Bits(counts) => counts.all_one(first, len),
            Self::Array(counts) => counts.all_one(first, len),
            Self::TwinTree(counts) => counts.all_one(first, len),
        }
    }

    /// Bytes of memory, as [`LinkCounter::bytes`].
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Bits(counts) => counts.bytes(),
            Self::Array(counts) => counts.bytes(),
            Self::TwinTree(counts) => counts.bytes(),
        }
    }

    fn is_empty(&self) -> bool {
        let mut any = false;
        self.for_each(|_, _| any = true);
        !any
    }

    /// Calls `each` with every inode that has links, and their number.
    fn for_each(&self, each: impl FnMut(InodeNr, u64)) {
        match self {
            Self::Bits(counts) => counts.for_each(each),
            Self::Array(counts) => counts.for_each(each),
            Self::TwinTree(counts) => counts.for_each(each),
        }
    }

    /// Adds the links of another structure one by one: each was an entry of a directory.
    fn add_from(&mut self, other: &Self) {
        other.for_each(|inode, links| (0..links).for_each(|_| self.add(inode)));
    }
}

impl Accumulator for LinkTally {
    fn merge(&mut self, other: Self) {
        // A worker that met no entry never took the structure wanted.
        if self.structure() != other.structure() && self.is_empty() {
            *self = other;
            return;
        }
        match (&mut *self, other) {
            (Self::Bits(mine), Self::Bits(theirs)) => mine.merge(theirs),
            (Self::Array(mine), Self::Array(theirs)) => mine.merge(theirs),
            (Self::TwinTree(mine), Self::TwinTree(theirs)) => mine.merge(theirs),
            (mine, theirs) => mine.add_from(&theirs),
        }
    }
}

/// Whatever the structure, bits are written: a check may go on with another one.
impl Saved for LinkTally {
    fn save(&self, to: &mut Encoder<'_>) {
        match self {
            Self::Bits(counts) => counts.save(to),
            other => {
                let mut counts = LinkCounts::default();
                other.for_each(|inode, links| (0..links).for_each(|_| counts.add(inode)));
                counts.save(to);
            }
        }
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        LinkCounts::load(from).map(Self::Bits)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    floe_exec::accumulator_laws!(
        LinkTally,
        (1u32..40, 0u8..9),
        |all: &mut LinkTally, (inode, how): (u32, u8)| {
            let structure = match how {
                0 => LinkStructure::Array,
                1 => LinkStructure::TwinTree,
                2 => LinkStructure::Bits,
                _ => all.structure(),
            };
            all.taking(structure).add(InodeNr(inode));
        },
        |all: LinkTally| (0..42).map(|inode| all.get(InodeNr(inode))).collect::<Vec<_>>(),
    );

    proptest! {
        #[test]
        fn every_structure_counts_the_same(
            runs in proptest::collection::vec((1u32..9_000, 1u32..70), 1..40),
            asked in proptest::collection::vec((1u32..9_000, 0usize..90), 1..40),
        ) {
            let mut tallies = LinkStructure::ALL.map(LinkTally::new);
            for (first, len) in runs {
                let inodes: Vec<_> = (first..first + len).map(InodeNr).collect();
                tallies.iter_mut().for_each(|tally| tally.add_all(&inodes));
            }
            for (first, len) in asked {
                let first = InodeNr(first);
                let one = tallies[0].get(first);
                let all = tallies[0].all_one(first, len);
                for tally in &tallies {
                    prop_assert_eq!(tally.get(first), one);
                    prop_assert_eq!(tally.all_one(first, len), all);
                }
            }
        }
    }
}
