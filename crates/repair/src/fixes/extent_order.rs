//! Which extents of a leaf are believed where they contradict each other.
//!
//! e2fsck believes the first and removes what does not fit behind it, so that one wrong length or one
//! wrong place costs all that follows. Here the larger number of extents that agree is believed: an
//! extent that covers the very blocks of the next has a wrong length, and is cut; one that stands
//! where many others say that it cannot, has a wrong place, and goes. Where one stands against one,
//! e2fsck's choice is taken. Of an extent that is cut no more stays than nothing else claims: if its
//! length is wrong, its place may be, too, and what it would show there is another's.

use floe_format::ext::extent::Extent;
use floe_format::{BlockNr, Geometry};

/// What an extent that a finding names counts, and what any other does: of two that contradict each
/// other, the one that was not named stays.
const NAMED: i64 = 3;
const NOT_NAMED: i64 = 4;
/// What it costs to cut an extent only because others follow: as much as one of those is worth, so
/// that one is not enough.
const CUT: i64 = NAMED;

/// An extent that may stay.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// As far as it is believed.
    extent: Extent,
    /// As it stands in the leaf.
    whole: Extent,
    /// Whether a finding asks for its removal.
    named: bool,
}

/// Extents of one leaf, as they stand in it.
#[derive(Clone, Debug, Default)]
pub(super) struct Leaf {
    /// Each with whether a finding asks for its removal.
    pub(super) extents: Vec<(Extent, bool)>,
    /// First logical block that it may map.
    pub(super) floor: u64,
    /// First logical block that it may not map any more, if there is one.
    pub(super) limit: Option<u64>,
}

impl Leaf {
    /// Whether a finding asks for the removal of one of its extents.
    pub(super) fn is_disordered(&self) -> bool {
        self.extents.iter().any(|(_, named)| *named)
    }

    /// The extents that are believed, in order and apart from each other, as long as they can be
    /// believed. `is_claimed` says of a block whether anything claims it but this leaf (an extent of it
    /// that a finding names, or does not).
    pub(super) fn sorted_out(
        &self,
        geometry: &Geometry,
        is_claimed: &dyn Fn(BlockNr, bool) -> bool,
    ) -> Vec<Extent> {
        let mut kept: Vec<Candidate> = self
            .extents
            .iter()
            .map(|&(whole, named)| Candidate {
                extent: cut_at_blocks_of_others(&whole, &self.extents),
                whole,
                named,
            })
            .filter(|candidate| self.can_be(&candidate.extent, candidate.named, geometry))
            .collect();
        keep_longest_chain(&mut kept);
        let ends: Vec<u64> =
            kept.iter().skip(1).map(|next| next.extent.logical.0).chain([u64::MAX]).collect();
        for (candidate, end) in kept.iter_mut().zip(ends) {
            let run = &mut candidate.extent.run;
            run.len_blocks = run.len_blocks.min(end - candidate.extent.logical.0);
        }
        for at in 0..kept.len() {
            let len_blocks = self.unclaimed(&kept, at, is_claimed);
            kept[at].extent.run.len_blocks = len_blocks;
        }
        kept.iter().map(|kept| kept.extent).filter(|extent| extent.run.len_blocks > 0).collect()
    }

    /// How many blocks of an extent stay: of one that is cut those in front of the first one that
    /// something else claims. What other extents of the leaf claim counts as it is cut by now.
    fn unclaimed(
        &self,
        kept: &[Candidate],
        at: usize,
        is_claimed: &dyn Fn(BlockNr, bool) -> bool,
    ) -> u64 {
        let Candidate { extent, whole, named } = kept[at];
        let len_blocks = extent.run.len_blocks;
        if len_blocks == whole.run.len_blocks {
            return len_blocks;
        }
        let is_other = |(index, other): (usize, &Candidate), block: BlockNr| {
            index != at && other.extent.run.contains(block)
        };
        let by_leaf = |block| {
            self.extents.iter().any(|(other, _)| *other != whole && other.run.contains(block))
        };
        let is_taken = |block| {
            kept.iter().enumerate().any(|other| is_other(other, block))
                || (!by_leaf(block) && is_claimed(block, named))
        };
        (0..len_blocks)
            .find(|ahead| is_taken(BlockNr(extent.run.start.0 + ahead)))
            .unwrap_or(len_blocks)
    }

    /// Whether an extent can stand in this leaf at all. What no finding names is not doubted.
    fn can_be(&self, extent: &Extent, named: bool, geometry: &Geometry) -> bool {
        let Extent { logical, run, .. } = *extent;
        let end = logical.0.saturating_add(run.len_blocks);
        let exists = run.len_blocks > 0
            && geometry.contains(run.start)
            && run.end().0 <= geometry.blocks_count;
        let fits = logical.0 >= self.floor && self.limit.is_none_or(|limit| end <= limit);
        exists && (fits || !named)
    }
}

/// An extent that covers the beginning of another in both ways, logical and physical, but says that
/// it is elsewhere: it is too long.
fn cut_at_blocks_of_others(extent: &Extent, others: &[(Extent, bool)]) -> Extent {
    let mut cut = *extent;
    for (other, _) in others {
        let logical = other.logical.0.checked_sub(extent.logical.0).filter(|&ahead| ahead > 0);
        let physical = other.run.start.0.checked_sub(extent.run.start.0).filter(|&ahead| ahead > 0);
        if let (Some(logical), Some(physical)) = (logical, physical)
            && logical < cut.run.len_blocks
            && physical < cut.run.len_blocks
        {
            cut.run.len_blocks = logical.min(physical);
        }
    }
    cut
}

/// Keeps the chain of extents in ascending order that most of them speak for.
fn keep_longest_chain(extents: &mut Vec<Candidate>) {
    // Of each extent: the weight of the best chain that ends with it, and the one before it there.
    let mut best: Vec<(i64, Option<usize>)> = Vec::with_capacity(extents.len());
    for (at, Candidate { extent, named, .. }) in extents.iter().enumerate() {
        let own = if *named { NAMED } else { NOT_NAMED };
        let mut ending = (own, None);
        for (before, Candidate { extent: other, .. }) in extents[..at].iter().enumerate() {
            if other.logical >= extent.logical {
                continue;
            }
            let reaches = other.logical.0.saturating_add(other.run.len_blocks) > extent.logical.0;
            let weight = best[before].0 + own - if reaches { CUT } else { 0 };
            if weight > ending.0 {
                ending = (weight, Some(before));
            }
        }
        best.push(ending);
    }
    // Of equals the first: `max_by_key` would take the last.
    let last = (0..best.len()).rev().max_by_key(|&at| best[at].0);
    let mut chosen = vec![false; extents.len()];
    let mut next = last;
    while let Some(at) = next {
        chosen[at] = true;
        next = best[at].1;
    }
    let mut chosen = chosen.into_iter();
    extents.retain(|_| chosen.next().unwrap_or(false));
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_format::{BlockNr, BlockRun, LogicalBlock};
    use floe_testkit::volume::Volume;
    use floe_testkit::{Profile, build, tool};

    /// Extents as (logical, physical, length, named).
    fn sorted(extents: &[(u64, u64, u64, bool)], limit: Option<u64>) -> Vec<(u64, u64, u64)> {
        sorted_beside(extents, limit, &[])
    }

    /// The same, where blocks are claimed elsewhere, too.
    fn sorted_beside(
        extents: &[(u64, u64, u64, bool)],
        limit: Option<u64>,
        claimed: &[u64],
    ) -> Vec<(u64, u64, u64)> {
        let image = build::base(Profile::Ext4K1).unwrap();
        let geometry = Volume::open(&image).unwrap().geometry;
        let extents = extents
            .iter()
            .map(|&(logical, start, len, named)| {
                let (logical, run) = (LogicalBlock(logical), BlockRun::new(BlockNr(start), len));
                (Extent { logical, run, unwritten: false }, named)
            })
            .collect();
        Leaf { extents, floor: 0, limit }
            .sorted_out(&geometry, &|block, _| claimed.contains(&block.0))
            .iter()
            .map(|extent| (extent.logical.0, extent.run.start.0, extent.run.len_blocks))
            .collect()
    }

    #[test]
    fn the_many_are_believed() {
        if tool::missing() {
            return;
        }
        let (no, yes) = (false, true);
        // A wrong length, shown by the blocks it covers: nothing else is lost.
        let long = [(0, 100, 9, no), (2, 101, 1, yes), (4, 102, 1, yes), (20, 103, 1, no)];
        assert_eq!(sorted(&long, None), [(0, 100, 1), (2, 101, 1), (4, 102, 1), (20, 103, 1)]);
        // The same at the end of what the leaf may map, and inside of a wrong length.
        let nested = [(0, 100, 99, yes), (2, 101, 1, no), (4, 102, 5, no), (6, 103, 1, yes)];
        assert_eq!(sorted(&nested, Some(8)), [(0, 100, 1), (2, 101, 1), (4, 102, 1), (6, 103, 1)]);
        // A wrong place, far too high: those behind it stay.
        let high = [(0, 100, 1, no), (900, 300, 1, no), (2, 500, 1, yes), (4, 700, 1, yes)];
        assert_eq!(sorted(&high, None), [(0, 100, 1), (2, 500, 1), (4, 700, 1)]);
        // A wrong place that falls into a long extent: that stays as long as it is.
        let stray = [(0, 100, 50, no), (7, 400, 1, yes), (60, 500, 9, no)];
        assert_eq!(sorted(&stray, None), [(0, 100, 50), (60, 500, 9)]);
        // A wrong length without a trace, against two: it is cut.
        let against_two = [(0, 100, 9, no), (2, 300, 1, yes), (4, 400, 1, yes)];
        assert_eq!(sorted(&against_two, None), [(0, 100, 2), (2, 300, 1), (4, 400, 1)]);
        // One against one: as e2fsck does.
        assert_eq!(sorted(&[(8, 100, 1, no), (2, 300, 1, yes)], None), [(8, 100, 1)]);
        // What does not exist, and what the leaf cannot map.
        let wild = [(0, 100, 1, no), (1, 1 << 40, 1, yes), (2, 101, 0, yes), (9, 102, 1, yes)];
        assert_eq!(sorted(&wild, Some(9)), [(0, 100, 1)]);
        assert_eq!(sorted(&[], None), []);
    }

    #[test]
    fn of_a_wrong_length_only_what_nobody_claims_stays() {
        if tool::missing() {
            return;
        }
        let (no, yes) = (false, true);
        let long = [(0, 100, 99, no), (4, 300, 1, yes), (6, 400, 1, yes)];
        let others = [(4, 300, 1), (6, 400, 1)];
        let with = |first: &[(u64, u64, u64)]| [first, &others[..]].concat();
        assert_eq!(sorted(&long, None), with(&[(0, 100, 4)]));
        assert_eq!(sorted_beside(&long, None, &[102]), with(&[(0, 100, 2)]));
        // Its place is wrong, too.
        assert_eq!(sorted_beside(&long, None, &[100]), with(&[]));
        // What is not cut is not doubted, whoever claims it.
        assert_eq!(sorted_beside(&long, None, &[300]), with(&[(0, 100, 4)]));
        // Another extent of the leaf has its first block; claims that are cut themselves do not count.
        let placed = [(0, 500, 1, no), (2, 500, 99, no), (4, 300, 1, yes), (6, 400, 1, yes)];
        assert_eq!(sorted(&placed, None), with(&[(0, 500, 1)]));
        let nested = [(0, 100, 99, no), (2, 101, 99, yes), (4, 102, 1, yes), (6, 103, 1, yes)];
        let right = [(0, 100, 1), (2, 101, 1), (4, 102, 1), (6, 103, 1)];
        assert_eq!(sorted_beside(&nested, None, &[101, 102]), right);
    }
}
