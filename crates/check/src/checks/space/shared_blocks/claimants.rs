//! Finds the inodes that share clusters with an inode. A damaged inode table may hold thousands of
//! copies of one inode, which then claim the same thousands of clusters. Memory therefore grows
//! with the number of runs, not of clusters, and a set of claimants that many runs have in common
//! is stored once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use floe_format::InodeNr;

/// Sharers of an inode that are told by number.
pub(super) const MOST_TOLD: usize = 16;

/// The sharers of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SharedWith {
    /// How many there are.
    pub(super) count: usize,
    /// The first of them, at most [`MOST_TOLD`].
    pub(super) first: Vec<InodeNr>,
}

/// A set of inodes that claim the same cluster.
type SetId = usize;

/// Inodes that claim clusters, by cluster.
#[derive(Debug, Default)]
pub(super) struct Claimants {
    /// For each cluster at which a run begins: the claimants of that cluster.
    at_start: BTreeMap<u64, SetId>,
    /// Each set once, in order.
    sets: Vec<Rc<[InodeNr]>>,
    /// Where runs begin, and whose.
    starts: Vec<(u64, InodeNr)>,
    /// Unions computed so far: for some sets, the number of their inodes, and the first ones.
    known: HashMap<Vec<SetId>, (usize, Vec<InodeNr>)>,
}

impl Claimants {
    /// `runs` are an inode, its first cluster, and how many it claims from there on.
    pub(super) fn of(runs: &[(InodeNr, u64, u64)]) -> Self {
        let mut starts: Vec<(u64, InodeNr)> = Vec::with_capacity(runs.len());
        let mut ends: Vec<(u64, InodeNr)> = Vec::with_capacity(runs.len());
        for &(inode, start, len) in runs {
            starts.push((start, inode));
            ends.push((start + len, inode));
        }
        starts.sort_unstable();
        ends.sort_unstable();
        let mut all = Self::default();
        let mut ids: HashMap<Rc<[InodeNr]>, SetId> = HashMap::new();
        // The claimants of the current cluster, each with the number of its runs there.
        let mut here: BTreeMap<InodeNr, u32> = BTreeMap::new();
        let mut ended = ends.iter().copied().peekable();
        for beginning in starts.chunk_by(|left, right| left.0 == right.0) {
            let Some(&(cluster, _)) = beginning.first() else { continue };
            while let Some((_, inode)) = ended.next_if(|(end, _)| *end <= cluster) {
                match here.get_mut(&inode) {
                    Some(runs) if *runs > 1 => *runs -= 1,
                    _ => drop(here.remove(&inode)),
                }
            }
            for (_, inode) in beginning {
                *here.entry(*inode).or_default() += 1;
            }
            let set: Rc<[InodeNr]> = here.keys().copied().collect();
            let id = *ids.entry(Rc::clone(&set)).or_insert_with(|| {
                all.sets.push(set);
                all.sets.len() - 1
            });
            all.at_start.insert(cluster, id);
        }
        starts.dedup();
        all.starts = starts;
        all
    }

    /// The inodes that share runs with `inode`: those that claim the first cluster of one of its
    /// runs, and those with a run that begins inside one.
    pub(super) fn sharers(&mut self, inode: InodeNr, runs: &[(InodeNr, u64, u64)]) -> SharedWith {
        let mut sets = BTreeSet::new();
        let mut inside: Vec<InodeNr> = Vec::new();
        for &(_, start, len) in runs {
            sets.extend(self.at_start.get(&start).copied());
            let from = self.starts.partition_point(|(at, _)| *at <= start);
            let behind = self.starts.get(from..).unwrap_or_default();
            inside.extend(
                behind.iter().take_while(|(at, _)| *at < start + len).map(|(_, inode)| *inode),
            );
        }
        let sets: Vec<SetId> = sets.into_iter().collect();
        let (count, first) = if inside.is_empty() {
            let all = &self.sets;
            self.known
                .entry(sets)
                .or_insert_with_key(|sets| together(sets.iter().map(|id| &*all[*id])))
                .clone()
        } else {
            together(sets.iter().map(|id| &*self.sets[*id]).chain([&inside[..]]))
        };
        let first = first.into_iter().filter(|other| *other != inode).take(MOST_TOLD).collect();
        SharedWith { count: count - 1, first }
    }
}

/// How many inodes there are in all of some sets, and the first: one more than are told, for the inode
/// itself is among them.
fn together<'s>(sets: impl Iterator<Item = &'s [InodeNr]>) -> (usize, Vec<InodeNr>) {
    let mut inodes: Vec<InodeNr> = sets.flatten().copied().collect();
    inodes.sort_unstable();
    inodes.dedup();
    let count = inodes.len();
    inodes.truncate(MOST_TOLD + 1);
    (count, inodes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same, cluster by cluster.
    fn model(inode: InodeNr, runs: &[(InodeNr, u64, u64)]) -> SharedWith {
        let clusters = |of: InodeNr| -> BTreeSet<u64> {
            let own = runs.iter().filter(|run| run.0 == of);
            own.flat_map(|&(_, start, len)| start..start + len).collect()
        };
        let own = clusters(inode);
        let others: BTreeSet<InodeNr> = runs
            .iter()
            .map(|run| run.0)
            .filter(|other| *other != inode && !clusters(*other).is_disjoint(&own))
            .collect();
        let first = others.iter().copied().take(MOST_TOLD).collect();
        SharedWith { count: others.len(), first }
    }

    proptest! {
        #[test]
        fn sharers_are_those_with_a_cluster_in_common(
            runs in proptest::collection::vec((1u32..30, 0u64..60, 1u64..12), 1..40),
        ) {
            let mut runs: Vec<_> = runs
                .into_iter()
                .map(|(inode, start, len)| (InodeNr(inode), start, len))
                .collect();
            runs.sort_unstable();
            let mut claimants = Claimants::of(&runs);
            for of_inode in runs.chunk_by(|left, right| left.0 == right.0) {
                let inode = of_inode[0].0;
                prop_assert_eq!(claimants.sharers(inode, of_inode), model(inode, &runs));
            }
        }
    }

    #[test]
    fn many_copies_of_one_inode_are_put_together_once() {
        let runs: Vec<(InodeNr, u64, u64)> = (1..=2000)
            .flat_map(|inode| (0..50).map(move |at| (InodeNr(inode), at * 1_000_000, 900_000)))
            .collect();
        let mut claimants = Claimants::of(&runs);
        for of_inode in runs.chunk_by(|left, right| left.0 == right.0) {
            let shared = claimants.sharers(of_inode[0].0, of_inode);
            assert_eq!((shared.count, shared.first.len()), (1999, MOST_TOLD));
        }
        assert_eq!((claimants.sets.len(), claimants.known.len()), (1, 1));
    }
}
