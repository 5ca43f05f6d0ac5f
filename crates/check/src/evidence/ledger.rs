//! A compact record of places: for each part of the inode tables, the regions whose clusters its
//! inodes claim; for each region of directory blocks, the inodes that their entries name. To find
//! the claimants of a cluster, or the names of an inode, only these parts are read again.
//!
//! With the snapshots of single clusters (`snapshots.rs`) it replaces ffsck's bitmap snapshots. Those record in which
//! inode group a block was first claimed, which depends on the order of reads; the ledger knows the part of each claimant,
//! in any order.

use floe_exec::Accumulator;

use crate::saved::{Decoder, Encoder, Fault, Saved, cell};

/// Ranges kept of one place; with more, those nearest to each other are joined.
const MOST_RANGES: usize = 8;

/// Numbers that were met, as ranges that hold at least them: sorted, disjoint, a few.
#[derive(Clone, Debug, Default)]
struct Footprint {
    /// First and last number of each range.
    ranges: Vec<(u32, u32)>,
    /// The range met last: the next number is mostly in it.
    last: Option<(u32, u32)>,
}

impl Footprint {
    #[inline]
    fn note(&mut self, first: u32, last: u32) {
        if self.last.is_none_or(|range| first < range.0 || last > range.1) {
            self.add(first, last);
        }
    }

    /// Adds `first..=last`; what it overlaps or touches becomes one range with it.
    fn add(&mut self, first: u32, last: u32) {
        let from = self.ranges.partition_point(|range| range.1.saturating_add(1) < first);
        let to = self.ranges.partition_point(|range| range.0 <= last.saturating_add(1));
        let joined = self.ranges.get(from..to.max(from)).unwrap_or(&[]);
        if let [range] = joined
            && range.0 <= first
            && last <= range.1
        {
            self.last = Some(*range);
            return;
        }
        let first = joined.first().map_or(first, |range| range.0.min(first));
        let last = joined.last().map_or(last, |range| range.1.max(last));
        self.ranges.splice(from..to.max(from), [(first, last)]);
        self.last = Some((first, last));
        if self.ranges.len() > MOST_RANGES {
            self.join_nearest();
        }
    }

    fn join_nearest(&mut self) {
        let gap = |at: &usize| self.ranges[at + 1].0 - self.ranges[*at].1;
        let Some(at) = (0..self.ranges.len().saturating_sub(1)).min_by_key(gap) else { return };
        let (_, last) = self.ranges.remove(at + 1);
        self.ranges[at].1 = last;
        // It may be in the range that has just grown.
        self.last = None;
    }
}

/// Which numbers were met at which places.
///
/// Law: the order of notes and merges is invisible, as long as what is noted of a place is noted by one
/// share, in one order; and whatever was noted is found.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// Place, first and last number of a range. In no order.
    closed: Vec<(u32, u32, u32)>,
    place: u32,
    open: Footprint,
}

impl Ledger {
    /// Attributes all later records to this place.
    #[inline]
    pub(crate) fn go_to(&mut self, place: u32) {
        if place != self.place {
            self.close();
            self.place = place;
        }
    }

    /// How many numbers the ranges of the place at hand have.
    pub(super) fn span(&self) -> u64 {
        self.open.ranges.iter().map(|(first, last)| u64::from(last - first) + 1).sum()
    }

    /// Notes numbers from `first` to `last`.
    #[inline]
    pub fn note(&mut self, first: u32, last: u32) {
        self.open.note(first, last);
    }

    /// Writes down what was noted of the place at hand.
    fn close(&mut self) {
        let place = self.place;
        self.closed.extend(self.open.ranges.drain(..).map(|(first, last)| (place, first, last)));
        self.open.last = None;
    }

    /// The places where numbers of `wanted` were met, and perhaps others near them; sorted. `wanted` are
    /// ranges, with their first and last numbers: sorted, and none overlaps the next.
    pub(crate) fn places_of(&self, wanted: &[(u32, u32)]) -> Vec<u32> {
        let open = self.open.ranges.iter().map(|&(first, last)| (self.place, first, last));
        let mut places: Vec<u32> = self
            .closed
            .iter()
            .copied()
            .chain(open)
            .filter(|&(_, first, last)| {
                let next = wanted.partition_point(|range| range.1 < first);
                wanted.get(next).is_some_and(|range| range.0 <= last)
            })
            .map(|(place, ..)| place)
            .collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.closed.capacity() * size_of::<(u32, u32, u32)>()
    }
}

impl Accumulator for Ledger {
    fn merge(&mut self, mut other: Self) {
        self.close();
        other.close();
        let Self { closed, place: _, open: _ } = other;
        floe_exec::append(&mut self.closed, closed);
    }
}

impl Saved for Ledger {
    fn save(&self, to: &mut Encoder<'_>) {
        let Self { closed, place, open } = self;
        let Footprint { ranges, last: _ } = open;
        let row = |place: u32, first: u32, last: u32| [place, first, last].map(u64::from);
        to.put_rows(closed.iter().map(|&(place, first, last)| row(place, first, last)));
        to.put_rows(ranges.iter().map(|&(first, last)| row(*place, first, last)));
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        let row = |[place, first, last]: [u64; 3]| Some((cell(place)?, cell(first)?, cell(last)?));
        let (mut closed, open) = (from.rows(row)?, from.rows(row)?);
        floe_exec::append(&mut closed, open);
        Ok(Self { closed, ..Self::default() })
    }
}

/// Numbers as sorted ranges that do not overlap, for [`Ledger::places_of`]. The numbers come ascending.
pub(crate) fn ranges_of(numbers: impl IntoIterator<Item = (u32, u32)>) -> Vec<(u32, u32)> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for (first, last) in numbers {
        match ranges.last_mut() {
            Some(range) if first <= range.1.saturating_add(1) => range.1 = range.1.max(last),
            _ => ranges.push((first, last)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever was noted is found again, and a place that met nothing near is not.
        #[test]
        fn what_was_noted_is_found(
            notes in proptest::collection::vec((0u32..6, 0u32..5000, 0u32..40), 1..200),
            wanted in proptest::collection::vec((0u32..5000, 0u32..9), 1..9),
        ) {
            let mut notes = notes;
            notes.sort_unstable_by_key(|note| note.0);
            let mut ledger = Ledger::default();
            for &(place, first, len) in &notes {
                ledger.go_to(place);
                ledger.note(first, first + len);
            }
            let mut wanted: Vec<_> = wanted.into_iter().map(|(at, len)| (at, at + len)).collect();
            wanted.sort_unstable();
            let wanted = ranges_of(wanted);
            let found = ledger.places_of(&wanted);
            prop_assert!(found.is_sorted());
            for place in 0..6 {
                let of_place = notes.iter().filter(|note| note.0 == place);
                let (mut met, mut least, mut most) = (false, u32::MAX, 0);
                for &(_, first, len) in of_place {
                    (least, most) = (least.min(first), most.max(first + len));
                    met |= wanted.iter().any(|range| range.0 <= first + len && first <= range.1);
                }
                let found = found.binary_search(&place).is_ok();
                prop_assert!(found || !met, "{place} is missing");
                let near = wanted.iter().any(|range| range.0 <= most && least <= range.1);
                prop_assert!(near || !found, "{place} met nothing near");
            }
        }

        /// A few ranges are kept as they are.
        #[test]
        fn few_ranges_are_exact(starts in proptest::collection::btree_set(0u32..1000, 1..=8)) {
            let mut ledger = Ledger::default();
            let starts: Vec<u32> = starts.into_iter().map(|start| start * 10).collect();
            starts.iter().rev().for_each(|&start| ledger.note(start, start + 3));
            for number in 0..10_010 {
                let met = starts.iter().any(|&start| (start..=start + 3).contains(&number));
                prop_assert_eq!(!ledger.places_of(&[(number, number)]).is_empty(), met);
            }
        }
    }

    #[test]
    fn memory_is_bounded() {
        let mut ledger = Ledger::default();
        for place in 0..100 {
            ledger.go_to(place);
            (0..1000).for_each(|at| ledger.note(at * 7 % 5000 * 3, at * 7 % 5000 * 3));
        }
        ledger.go_to(100);
        assert!(ledger.closed.len() <= 100 * MOST_RANGES, "{}", ledger.closed.len());
    }
}

#[cfg(test)]
mod laws {
    use super::*;
    use crate::saved::tests::same;

    // Each place is noted by one share.
    floe_exec::accumulator_laws!(
        Ledger,
        (0u32..1000, 0u32..9),
        |all: &mut Ledger, (place, len): (u32, u32)| {
            all.go_to(place);
            all.note(place * 3, place * 3 + len);
        },
        |all: Ledger| same(all, |all: Ledger| {
            (0..3000).map(|at| all.places_of(&[(at, at)])).collect::<Vec<_>>()
        })
    );
}
