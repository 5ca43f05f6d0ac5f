//! TwinTree: link counts in two ordered maps, one of runs of inodes that have one link, one of
//! single inodes that have more (Kim et al., *lwFSCK: Light-weight Filesystem Check*, SAC '25,
//! section 4.3). It takes memory for inodes in use alone, and little where they follow one another.
//!
//! The paper's trees are red-black; these are B-trees, which hold the same entries in the same
//! order in less memory.

use std::collections::BTreeMap;

use floe_exec::Accumulator;
use floe_format::InodeNr;

use super::link_counter::{LinkCounter, map_bytes};

/// Counted links. From 4,294,967,295 on an inode just has "that many or more".
///
/// Law: neither the order of links nor of merges can be seen.
#[derive(Clone, Debug, Default)]
pub struct TwinTree {
    /// First inode of a run of inodes with one link: how many inodes follow it in the run (0: it
    /// stands alone). Runs neither overlap nor touch, so that equal counts are equal maps.
    single: BTreeMap<u32, u32>,
    /// Inodes with two links or more.
    multiple: BTreeMap<u32, u32>,
}

/// A run of inodes, both ends included, so that the last inode number needs no special case.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: u32,
    last: u32,
}

impl TwinTree {
    /// INCREMENT: one link more.
    pub(crate) fn increment(&mut self, inode: InodeNr) {
        let inode = inode.0;
        if let Some(run) = self.run_of(inode) {
            self.cut(run, Run { first: inode, last: inode });
            self.multiple.insert(inode, 2);
        } else if let Some(count) = self.multiple.get_mut(&inode) {
            *count = count.saturating_add(1);
        } else {
            self.join(Run { first: inode, last: inode });
        }
    }

    /// DECREMENT: one link less. `false`, and nothing changes, if the inode has none.
    pub fn decrement(&mut self, inode: InodeNr) -> bool {
        let inode = inode.0;
        if let Some(run) = self.run_of(inode) {
            self.cut(run, Run { first: inode, last: inode });
            return true;
        }
        let Some(count) = self.multiple.get_mut(&inode) else { return false };
        match *count {
            // "That many or more": how many are left is not known, but it is many.
            u32::MAX => {}
            3.. => *count -= 1,
            _ => {
                self.multiple.remove(&inode);
                self.join(Run { first: inode, last: inode });
            }
        }
        true
    }

    /// FETCH: the links of an inode.
    pub fn fetch(&self, inode: InodeNr) -> u64 {
        if self.run_of(inode.0).is_some() {
            return 1;
        }
        self.multiple.get(&inode.0).copied().map_or(0, u64::from)
    }

    /// Entries of the two maps: runs of inodes with one link, inodes with more.
    pub fn entries(&self) -> (usize, usize) {
        (self.single.len(), self.multiple.len())
    }

    /// INCREMENT of each of some inodes: at once where they follow each other.
    pub(crate) fn add_all(&mut self, inodes: &[InodeNr]) {
        for run in inodes.chunk_by(|left, right| left.0.checked_add(1) == Some(right.0)) {
            if let (Some(first), Some(last)) = (run.first(), run.last()) {
                self.increment_run(Run { first: first.0, last: last.0 });
            }
        }
    }

    /// Whether each of `len` inodes from `first` on has exactly one link: they are all in one run then.
    pub(crate) fn all_one(&self, first: InodeNr, len: usize) -> bool {
        let more = u32::try_from(len.saturating_sub(1)).ok();
        let last = more.and_then(|more| first.0.checked_add(more));
        len == 0
            || last.is_some_and(|last| self.run_of(first.0).is_some_and(|run| run.last >= last))
    }

    /// Calls `each` with every inode that has links, and their number.
    pub fn for_each(&self, mut each: impl FnMut(InodeNr, u64)) {
        for (&first, &more) in &self.single {
            (first..=first + more).for_each(|inode| each(InodeNr(inode), 1));
        }
        self.multiple.iter().for_each(|(&inode, &links)| each(InodeNr(inode), u64::from(links)));
    }

    /// The run of inodes with one link that an inode is in.
    fn run_of(&self, inode: u32) -> Option<Run> {
        let (&first, &more) = self.single.range(..=inode).next_back()?;
        let last = first + more;
        (last >= inode).then_some(Run { first, last })
    }

    /// Takes `part` out of `run`, which is in `single` and contains it.
    fn cut(&mut self, run: Run, part: Run) {
        if part.first > run.first {
            self.single.insert(run.first, part.first - 1 - run.first);
        } else {
            self.single.remove(&run.first);
        }
        if part.last < run.last {
            self.single.insert(part.last + 1, run.last - part.last - 1);
        }
    }

    /// Adds a run of inodes that have had no link.
    fn join(&mut self, run: Run) {
        let before = run.first.checked_sub(1).and_then(|inode| self.run_of(inode));
        let behind = run.last.checked_add(1).and_then(|inode| self.single.remove(&inode));
        let first = before.map_or(run.first, |before| before.first);
        let last = run.last + behind.map_or(0, |more| more + 1);
        self.single.insert(first, last - first);
    }

    /// Adds one link to each inode of a run: what an increment of each would do, in as many steps as
    /// there are runs and inodes with more than one link.
    fn increment_run(&mut self, run: Run) {
        let mut next = Some(run.first);
        while let Some(first) = next.filter(|&first| first <= run.last) {
            let last = if let Some(here) = self.run_of(first) {
                let last = here.last.min(run.last);
                self.cut(here, Run { first, last });
                self.multiple.extend((first..=last).map(|inode| (inode, 2)));
                last
            } else if let Some(count) = self.multiple.get_mut(&first) {
                *count = count.saturating_add(1);
                first
            } else {
                let single = self.single.range(first..).next().map(|(&inode, _)| inode);
                let multiple = self.multiple.range(first..).next().map(|(&inode, _)| inode);
                // An inode that is known comes after `first`, which is not.
                let free = [single, multiple].into_iter().flatten().map(|known| known - 1).min();
                let last = free.map_or(run.last, |free| free.min(run.last));
                self.join(Run { first, last });
                last
            };
            next = last.checked_add(1);
        }
    }

    /// Adds several links, two at least, to one inode.
    fn add_many(&mut self, inode: u32, links: u32) {
        let had = match self.run_of(inode) {
            Some(run) => {
                self.cut(run, Run { first: inode, last: inode });
                1
            }
            None => 0,
        };
        let count = self.multiple.entry(inode).or_insert(0);
        *count = count.saturating_add(links).saturating_add(had);
    }
}

impl LinkCounter for TwinTree {
    fn add(&mut self, inode: InodeNr) {
        self.increment(inode);
    }

    fn get(&self, inode: InodeNr) -> u64 {
        self.fetch(inode)
    }

    fn bytes(&self) -> u64 {
        map_bytes(self.single.len(), 8) + map_bytes(self.multiple.len(), 8)
    }
}

impl Accumulator for TwinTree {
    /// Adds the delta of another worker, run by run.
    fn merge(&mut self, other: Self) {
        let size = |tree: &Self| tree.single.len() + tree.multiple.len();
        let other = if size(self) < size(&other) { std::mem::replace(self, other) } else { other };
        let Self { single, multiple } = other;
        for (first, more) in single {
            self.increment_run(Run { first, last: first + more });
        }
        for (inode, links) in multiple {
            self.add_many(inode, links);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All that can be seen, and what holds of every tree.
    fn observe(tree: &TwinTree) -> [Vec<(u32, u32)>; 2] {
        let mut after = None;
        for (&first, &more) in &tree.single {
            assert!(after.is_none_or(|after| after < first), "runs touch or overlap: {tree:?}");
            after = (first + more).checked_add(1);
            assert!(tree.multiple.range(first..=first + more).next().is_none(), "both: {tree:?}");
        }
        assert!(tree.multiple.values().all(|&links| links > 1), "{tree:?}");
        let list = |map: &BTreeMap<u32, u32>| map.iter().map(|(&a, &b)| (a, b)).collect();
        [list(&tree.single), list(&tree.multiple)]
    }

    /// Small numbers that collide, and the largest ones there are.
    fn inodes() -> impl Strategy<Value = u32> {
        prop_oneof![9 => 0u32..40, 1 => u32::MAX - 3..=u32::MAX]
    }

    floe_exec::accumulator_laws!(
        TwinTree,
        inodes(),
        |all: &mut TwinTree, inode| all.increment(InodeNr(inode)),
        |all: TwinTree| observe(&all),
    );

    proptest! {
        #[test]
        fn counts_like_a_map(
            steps in prop::collection::vec((any::<bool>(), inodes()), 0..300),
            merged in prop::collection::vec(inodes(), 0..100),
        ) {
            let (mut tree, mut other) = (TwinTree::default(), TwinTree::default());
            let mut map: BTreeMap<u32, u64> = BTreeMap::new();
            for (up, inode) in steps {
                let count = map.entry(inode).or_default();
                if up {
                    tree.increment(InodeNr(inode));
                    *count += 1;
                } else {
                    prop_assert_eq!(tree.decrement(InodeNr(inode)), *count > 0);
                    *count = count.saturating_sub(1);
                }
                prop_assert_eq!(tree.fetch(InodeNr(inode)), *count);
            }
            for inode in merged {
                other.increment(InodeNr(inode));
                *map.entry(inode).or_default() += 1;
            }
            tree.merge(other);
            observe(&tree);
            for inode in (0..42).chain(u32::MAX - 5..=u32::MAX) {
                let count = map.get(&inode).copied().unwrap_or(0);
                prop_assert_eq!(tree.get(InodeNr(inode)), count);
            }
        }
    }

    /// The paper's description of each operation, word for word (section 4.3).
    #[test]
    fn the_operations_of_the_paper() {
        let (inode, next) = (InodeNr(100), InodeNr(101));
        let mut tree = TwinTree::default();
        // FETCH of what was never named, and DECREMENT, which "cannot be decreased".
        assert_eq!(tree.fetch(inode), 0);
        assert!(!tree.decrement(inode));
        // INCREMENT: "the inode is referenced firstly", an entry with "number of consecutive inodes of
        // zero"; its neighbour lengthens that entry.
        tree.increment(inode);
        assert_eq!(observe(&tree), [vec![(100, 0)], vec![]]);
        tree.increment(next);
        assert_eq!(observe(&tree), [vec![(100, 1)], vec![]]);
        // From single to multiple, with a count of 2; there it goes up by one.
        tree.increment(inode);
        assert_eq!(observe(&tree), [vec![(101, 0)], vec![(100, 2)]]);
        tree.increment(inode);
        assert_eq!(observe(&tree), [vec![(101, 0)], vec![(100, 3)]]);
        assert_eq!((tree.fetch(inode), tree.fetch(next), tree.fetch(InodeNr(102))), (3, 1, 0));
        // DECREMENT: "if the reference count becomes 1", back into single; from single, out.
        assert!(tree.decrement(inode));
        assert_eq!(observe(&tree), [vec![(101, 0)], vec![(100, 2)]]);
        assert!(tree.decrement(inode));
        assert_eq!(observe(&tree), [vec![(100, 1)], vec![]]);
        assert!(tree.decrement(inode) && tree.decrement(next));
        assert_eq!(observe(&tree), [vec![], vec![]]);
    }

    #[test]
    fn neighbours_share_an_entry() {
        let mut tree = TwinTree::default();
        (11..1_000_011).for_each(|inode| tree.increment(InodeNr(inode)));
        assert_eq!(tree.entries(), (1, 0));
        assert!(tree.bytes() < 200, "{} bytes", tree.bytes());
        tree.increment(InodeNr(500));
        assert_eq!(tree.entries(), (2, 1));
        assert!(tree.decrement(InodeNr(500)));
        assert_eq!(tree.entries(), (1, 0), "runs grow together again");
    }

    #[test]
    fn a_count_stays_at_its_largest() {
        let mut tree = TwinTree::default();
        tree.add_many(7, u32::MAX - 1);
        assert_eq!(tree.fetch(InodeNr(7)), u64::from(u32::MAX) - 1);
        (0..3).for_each(|_| tree.increment(InodeNr(7)));
        assert!(tree.decrement(InodeNr(7)));
        assert_eq!(tree.fetch(InodeNr(7)), u64::from(u32::MAX));
    }
}
