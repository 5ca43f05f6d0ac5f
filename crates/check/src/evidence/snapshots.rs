//! Snapshots: which clusters the inodes of a part of the tables claim, in so few bytes that one for each part is kept.
//!
//! On an aged file system the inodes of every part claim clusters everywhere, so that the ranges of the [ledger](super::ledger)
//! lead to nearly all parts when two files turn out to share one block. ffsck keeps a bitmap of the whole file system for each
//! group of inodes against that. A snapshot is a bitmap of hashed clusters instead, as large as the claims of its part need: it
//! never forgets a claim, and takes a few clusters for claimed that are not. Snapshots are made where ranges tell little, and
//! do not depend on the order of reads as ffsck's do.
//!
//! They are not saved in checkpoints: a part without one is looked at again, which finds the same.

use super::block_set::BlockSet;

/// Bits of the snapshot that is being made: 32 KiB.
const OPEN_BITS: usize = 1 << 18;
/// Bytes of all snapshots of a file system, at most.
const MOST_BYTES: u64 = 4 << 20;
/// Words of a snapshot, at least: smaller ones would tell nothing.
const LEAST_WORDS: u64 = 8;
/// A snapshot is halved as long as so small a part of the half is set.
const SPARSE: usize = 8;
/// Ranges that have so many times the clusters that were claimed tell little.
const LOOSE: u64 = 8;
/// Shared clusters that are looked up, at most: with more of them most parts are concerned.
const MOST_LOOKED_UP: u64 = 4096;

/// Grains in which runs of clusters are noted, as shifts: small runs by cluster, large ones by less exact pieces.
const GRAINS: [u32; 3] = [0, 4, 10];
/// Pieces of a run, at most, before a larger grain is taken.
const MOST_PIECES: u64 = 8;

/// The snapshots of parts of the inode tables.
///
/// Law: the order of claims and merges is invisible; a part that claims one of the clusters that are asked for is never left
/// out.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    /// Each part that was read, with its snapshot if it has one. In no order.
    closed: Vec<(u32, Option<Box<[u64]>>)>,
    open: Option<Box<Open>>,
}

/// The snapshot of the part at hand.
#[derive(Debug)]
struct Open {
    part: u32,
    /// Words that a snapshot may have.
    most_words: usize,
    /// Clusters that were claimed; 0: nothing was noted.
    clusters: u64,
    bits: Box<[u64]>,
}

/// The two bits of a piece of a grain: a piece is noted if both are set.
#[inline]
const fn places(piece: u64, grain: usize) -> [usize; 2] {
    // Odd numbers without a pattern spread keys over the upper half of a product.
    let key = (piece ^ (grain as u64) << 61).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (key ^ key >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    [(mixed >> 40) as usize % OPEN_BITS, (mixed >> 16) as usize % OPEN_BITS]
}

/// Whether a piece is noted, or others have its bits.
fn has(bits: &[u64], places: [usize; 2]) -> bool {
    places.into_iter().all(|at| {
        let at = at % (bits.len() * 64);
        bits[at / 64] >> (at % 64) & 1 != 0
    })
}

impl Snapshots {
    /// Attributes later claims to a part, of so many in the file system. `regions` are the clusters in the ranges of the one
    /// before.
    pub(super) fn go_to(&mut self, part: u32, parts: u64, ranges_clusters: u64) {
        if self.open.as_ref().is_some_and(|open| open.part == part) {
            return;
        }
        self.close(ranges_clusters);
        let words = MOST_BYTES / 8 / parts.max(1);
        if words < LEAST_WORDS {
            self.open = None;
            return;
        }
        let most_words = (1usize << words.ilog2()).min(OPEN_BITS / 64);
        match &mut self.open {
            Some(open) => (open.part, open.most_words) = (part, most_words),
            None => {
                let bits = vec![0; OPEN_BITS / 64].into_boxed_slice();
                self.open = Some(Box::new(Open { part, most_words, clusters: 0, bits }));
            }
        }
    }

    /// Notes a run of clusters, which is not empty.
    #[inline]
    pub(super) fn note(&mut self, start: u64, len: u64) {
        let Some(open) = &mut self.open else { return };
        open.clusters = open.clusters.saturating_add(len);
        let last = start.saturating_add(len - 1);
        let fits =
            |grain: &usize| (last >> GRAINS[*grain]) - (start >> GRAINS[*grain]) < MOST_PIECES;
        let grain = (0..GRAINS.len()).find(fits).unwrap_or(GRAINS.len() - 1);
        for piece in start >> GRAINS[grain]..=last >> GRAINS[grain] {
            for at in places(piece, grain) {
                open.bits[at / 64] |= 1 << (at % 64);
            }
        }
    }

    /// Ends the snapshot at hand.
    fn close(&mut self, ranges_clusters: u64) {
        let Some(open) = self.open.as_mut().filter(|open| open.clusters > 0) else { return };
        let is_loose = ranges_clusters / LOOSE > open.clusters;
        let snapshot = if is_loose { folded(&open.bits, open.most_words) } else { None };
        self.closed.push((open.part, snapshot));
        open.clusters = 0;
        open.bits.fill(0);
    }

    /// Adds those of another share, each with the clusters in the ranges of the part at hand.
    pub(super) fn merge(&mut self, ranges_clusters: u64, (mut other, others): (Self, u64)) {
        self.close(ranges_clusters);
        other.close(others);
        floe_exec::append(&mut self.closed, other.closed);
    }

    /// Leaves those of some parts, which are sorted, that may claim one of these clusters.
    pub(super) fn keep_claiming(&self, parts: &mut Vec<u32>, of: &BlockSet) {
        if self.closed.is_empty() || of.len() > MOST_LOOKED_UP {
            return;
        }
        let clusters = of.runs().into_iter().flat_map(|(start, len)| start..start + len);
        let pieces: Vec<[usize; 2]> = clusters
            .flat_map(|at| {
                GRAINS.iter().zip(0..).map(move |(bits, grain)| places(at >> bits, grain))
            })
            .collect();
        let claims = |bits: &[u64]| pieces.iter().any(|piece| has(bits, *piece));
        // A part may have several, if it was read again: one that may claim is enough, and one without a snapshot may.
        let mut verdicts: Vec<(u32, bool)> = self
            .closed
            .iter()
            .map(|(part, bits)| (*part, bits.as_deref().is_none_or(claims)))
            .collect();
        // Parts that are not closed yet may, too.
        verdicts
            .extend(self.open.iter().filter(|open| open.clusters > 0).map(|it| (it.part, true)));
        verdicts.sort_unstable();
        verdicts.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            kept.1 |= same && later.1;
            same
        });
        parts.retain(|part| match verdicts.binary_search_by_key(part, |verdict| verdict.0) {
            Ok(at) => verdicts[at].1,
            Err(_) => true,
        });
    }
}

/// A snapshot in as few words as its bits need, at most so many. `None`: most would be set.
fn folded(bits: &[u64], most_words: usize) -> Option<Box<[u64]>> {
    let mut words = bits.to_vec();
    let ones = |words: &[u64]| words.iter().map(|word| word.count_ones() as usize).sum::<usize>();
    while words.len() > 1 {
        let (low, high) = words.split_at(words.len() / 2);
        let half: Vec<u64> = low.iter().zip(high).map(|(low, high)| low | high).collect();
        if words.len() <= most_words && ones(&half) * SPARSE > half.len() * 64 {
            break;
        }
        words = half;
    }
    (ones(&words) * 2 < words.len() * 64).then(|| words.into_boxed_slice())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set_of(clusters: impl IntoIterator<Item = u64>) -> BlockSet {
        let mut set = BlockSet::default();
        clusters.into_iter().for_each(|cluster| set.insert(cluster, 1, |_, _| ()));
        set
    }

    /// Ranges that tell nothing.
    const LOOSE_RANGES: u64 = u64::MAX;

    proptest! {
        // Each case clears many snapshots.
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// No part that claims is left out, in whatever order parts come and shares are merged.
        #[test]
        fn claims_are_found(
            claims in proptest::collection::vec((0u32..5, 0u64..300_000, 1u64..3000), 1..100),
            split in 0usize..100,
            wanted in proptest::collection::vec(0u64..303_000, 1..20),
        ) {
            let note = |claims: &[(u32, u64, u64)]| {
                let mut all = Snapshots::default();
                for &(part, start, len) in claims {
                    all.go_to(part, 100, LOOSE_RANGES);
                    all.note(start, len);
                }
                all
            };
            let (one, other) = claims.split_at(split.min(claims.len()));
            let mut all = note(one);
            all.merge(LOOSE_RANGES, (note(other), LOOSE_RANGES));
            let mut parts: Vec<u32> = (0..5).collect();
            all.keep_claiming(&mut parts, &set_of(wanted.iter().copied()));
            for (part, start, len) in claims {
                let claims = wanted.iter().any(|at| (start..start + len).contains(at));
                prop_assert!(!claims || parts.contains(&part), "{part} claims");
            }
        }
    }

    /// 2,048 files of a block each anywhere in each of ten parts: two of them share a block.
    #[test]
    fn few_parts_of_an_aged_file_system_are_left() {
        let mut all = Snapshots::default();
        let cluster = |at: u64| at * 7_919 % 20_480 * 13;
        for part in 0..10u32 {
            all.go_to(part, 10, LOOSE_RANGES);
            (0..2048).for_each(|at| all.note(cluster(u64::from(part) * 2048 + at), 1));
        }
        all.go_to(10, 10, LOOSE_RANGES);
        let mut left = 0;
        for at in 0..100 {
            let mut parts: Vec<u32> = (0..10).collect();
            all.keep_claiming(&mut parts, &set_of([cluster(at * 200)]));
            left += parts.len();
        }
        assert!((100..200).contains(&left), "{left}");
        let bytes: usize =
            all.closed.iter().flat_map(|(_, bits)| bits).map(|bits| bits.len() * 8).sum();
        assert!(bytes <= 10 * 4096, "{bytes}");
    }

    #[test]
    fn too_many_parts_have_none_and_are_all_kept() {
        let mut all = Snapshots::default();
        all.go_to(3, 1 << 20, 0);
        all.note(5, 1);
        all.go_to(4, 1 << 20, LOOSE_RANGES);
        let mut parts = vec![3, 4];
        all.keep_claiming(&mut parts, &set_of([77]));
        assert_eq!(parts, [3, 4]);
        // Nor those whose ranges tell enough.
        all.go_to(5, 4, 0);
        all.note(5, 1);
        all.go_to(6, 4, 1);
        let mut parts = vec![5];
        all.keep_claiming(&mut parts, &set_of([77]));
        assert_eq!(parts, [5]);
    }
}
