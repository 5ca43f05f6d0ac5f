//! Layers of the maps of files, as ffsck proves them (section 4.3.2 and Figure 7 of its paper): for each level of a file's map, a
//! count and a sum of the blocks that the level above names, and of those that say by themselves that they are of this level of
//! this file. A file whose layers add up has all blocks of its map among those that were met, and none of them is out of date; if
//! one does not, only following the map tells more.

use std::collections::{BTreeMap, BTreeSet};

use floe_exec::Accumulator;
use floe_format::{BlockNr, InodeNr};

/// Blocks, in any order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    count: u64,
    sum: u64,
}

impl Sum {
    fn add(&mut self, block: BlockNr) {
        self.count += 1;
        // ffsck adds addresses themselves, which blocks that lie side by side easily make equal.
        let mixed = block.0.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.sum = self.sum.wrapping_add(mixed ^ mixed >> 32);
    }

    fn merge(&mut self, other: Self) {
        self.count += other.count;
        self.sum = self.sum.wrapping_add(other.sum);
    }
}

/// One level of a file's map.
#[derive(Clone, Copy, Debug, Default)]
struct Layer {
    /// Blocks that the inode or blocks of the level above name.
    named: Sum,
    /// Blocks that say that they are of this level.
    found: Sum,
}

/// The layers of files.
///
/// Law: neither the order of blocks nor of merges can be seen.
#[derive(Debug, Default)]
pub struct Layers(BTreeMap<(InodeNr, u16), Layer>);

impl Layers {
    fn at(&mut self, inode: InodeNr, level: u16) -> &mut Layer {
        self.0.entry((inode, level)).or_default()
    }

    /// An inode, or a block of its map, names a block of this level.
    pub fn name(&mut self, inode: InodeNr, level: u16, block: BlockNr) {
        self.at(inode, level).named.add(block);
    }

    /// A block says that it is of this level of the map of an inode.
    pub fn find(&mut self, inode: InodeNr, level: u16, block: BlockNr) {
        self.at(inode, level).found.add(block);
    }

    /// Files of which a layer does not add up.
    pub fn open(&self) -> BTreeSet<InodeNr> {
        let open = self.0.iter().filter(|(_, layer)| layer.named != layer.found);
        open.map(|((inode, _), _)| *inode).collect()
    }
}

impl Accumulator for Layers {
    fn merge(&mut self, other: Self) {
        let Self(layers) = other;
        for ((inode, level), Layer { named, found }) in layers {
            let own = self.at(inode, level);
            own.named.merge(named);
            own.found.merge(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    floe_exec::accumulator_laws!(
        Layers,
        (1u32..5, 0u16..3, 0u64..4, proptest::bool::ANY),
        |all: &mut Layers, (inode, level, block, names): (u32, u16, u64, bool)| match names {
            true => all.name(InodeNr(inode), level, BlockNr(block)),
            false => all.find(InodeNr(inode), level, BlockNr(block)),
        },
        |all: Layers| all.open()
    );

    /// The example of Figure 7: blocks 3 and 6 hang on the inode, 7 and 10 on block 6.
    #[test]
    fn the_example_of_the_paper() {
        let (file, mut all) = (InodeNr(12), Layers::default());
        for (level, block) in [(1, 3), (2, 6), (1, 7), (1, 10)] {
            all.name(file, level, BlockNr(block));
            all.find(file, level, BlockNr(block));
        }
        assert_eq!(all.open(), BTreeSet::new());
        let mut lost = Layers::default();
        lost.name(file, 1, BlockNr(9));
        all.merge(lost);
        assert_eq!(all.open(), BTreeSet::from([file]));
    }

    #[test]
    fn equal_sums_of_addresses_are_told_apart() {
        let (file, mut all) = (InodeNr(12), Layers::default());
        for (named, found) in [(7, 8), (10, 9)] {
            all.name(file, 1, BlockNr(named));
            all.find(file, 1, BlockNr(found));
        }
        // It belongs to a file that no inode leads to.
        all.find(InodeNr(13), 0, BlockNr(9));
        assert_eq!(all.open(), BTreeSet::from([file, InodeNr(13)]));
    }
}
