//! Selects the extents to keep when extents of a leaf contradict each other.
//!
//! e2fsck keeps the first extent and removes every later one that does not fit, so one wrong length
//! or location costs all extents behind it. This module keeps the largest set of extents that
//! agree. An extent that covers the very blocks of the next one has a wrong length and is
//! truncated; an extent that many others contradict has a wrong location and is removed. If one
//! stands against one, e2fsck's choice is taken. A truncated extent keeps only blocks that nothing
//! else claims: if its length is wrong, its location may be wrong too, and it would expose another
//! owner's data.

use floe_format::ext::extent::Extent;
use floe_format::{BlockNr, Geometry};

/// Weight of an extent that a finding names, out of 4 for any other: of two that contradict each
/// other, the one not named stays.
const NAMED: i64 = 3;
const NOT_NAMED: i64 = 4;
/// Cost of truncating an extent only because later extents overlap it: the weight of one named
/// extent, so that a single one is not enough.
const CUT: i64 = NAMED;

/// An extent that may be kept.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// The part that is kept.
    extent: Extent,
    /// The extent as stored in the leaf.
    whole: Extent,
    /// Whether a finding asks for its removal.
    named: bool,
}

/// Extents of one leaf, in stored order.
#[derive(Clone, Debug, Default)]
pub(super) struct Leaf {
    /// Each with a flag: whether a finding asks for its removal.
    pub(super) extents: Vec<(Extent, bool)>,
    /// First logical block that the leaf may map.
    pub(super) floor: u64,
    /// First logical block beyond the range of the leaf, if limited.
    pub(super) limit: Option<u64>,
}

impl Leaf {
    /// Whether a finding asks for the removal of one of its extents.
    pub(super) fn is_disordered(&self) -> bool {
        self.extents.iter().any(|(_, named)| *named)
    }

    /// The extents to keep, ascending and disjoint, each truncated where needed. `is_claimed` says
    /// whether a block has any claim apart from this leaf; its flag tells whether a finding names
    /// the extent of the leaf that maps the block.
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

    /// Number of blocks that an extent keeps. A truncated extent keeps those before the first block
    /// that something else claims; other extents of the leaf count with their truncated length.
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

    /// Whether the leaf can hold an extent at all. Extents that no finding names are trusted.
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

/// Truncates an extent that covers the start of another one, both logically and physically, because
/// it is too long.
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

/// Keeps the ascending chain of extents with the largest weight.
fn keep_longest_chain(extents: &mut Vec<Candidate>) {
    // For each extent: the weight of the best chain that ends with it, and its predecessor there.
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
    // Among equals take the first: `max_by_key` would return the last.
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

    /// The same, with blocks that are claimed elsewhere.
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
        // A wrong length, revealed by the blocks it covers: nothing else is lost.
        let long = [(0, 100, 9, no), (2, 101, 1, yes), (4, 102, 1, yes), (20, 103, 1, no)];
        assert_eq!(sorted(&long, None), [(0, 100, 1), (2, 101, 1), (4, 102, 1), (20, 103, 1)]);
        // The same at the end of the leaf's range, and inside another wrong length.
        let nested = [(0, 100, 99, yes), (2, 101, 1, no), (4, 102, 5, no), (6, 103, 1, yes)];
        assert_eq!(sorted(&nested, Some(8)), [(0, 100, 1), (2, 101, 1), (4, 102, 1), (6, 103, 1)]);
        // A wrong location, far too high: the extents behind it stay.
        let high = [(0, 100, 1, no), (900, 300, 1, no), (2, 500, 1, yes), (4, 700, 1, yes)];
        assert_eq!(sorted(&high, None), [(0, 100, 1), (2, 500, 1), (4, 700, 1)]);
        // A wrong location inside a long extent, which keeps its length.
        let stray = [(0, 100, 50, no), (7, 400, 1, yes), (60, 500, 9, no)];
        assert_eq!(sorted(&stray, None), [(0, 100, 50), (60, 500, 9)]);
        // A wrong length without physical overlap, against two extents: it is truncated.
        let against_two = [(0, 100, 9, no), (2, 300, 1, yes), (4, 400, 1, yes)];
        assert_eq!(sorted(&against_two, None), [(0, 100, 2), (2, 300, 1), (4, 400, 1)]);
        // One against one: e2fsck's choice.
        assert_eq!(sorted(&[(8, 100, 1, no), (2, 300, 1, yes)], None), [(8, 100, 1)]);
        // Nonexistent blocks, and blocks outside the leaf's range.
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
        // Its location is wrong too.
        assert_eq!(sorted_beside(&long, None, &[100]), with(&[]));
        // An extent that is not truncated stays, no matter who else claims it.
        assert_eq!(sorted_beside(&long, None, &[300]), with(&[(0, 100, 4)]));
        // Another extent of the leaf claims its first block; claims of truncated parts do not
        // count.
        let placed = [(0, 500, 1, no), (2, 500, 99, no), (4, 300, 1, yes), (6, 400, 1, yes)];
        assert_eq!(sorted(&placed, None), with(&[(0, 500, 1)]));
        let nested = [(0, 100, 99, no), (2, 101, 99, yes), (4, 102, 1, yes), (6, 103, 1, yes)];
        let right = [(0, 100, 1), (2, 101, 1), (4, 102, 1), (6, 103, 1)];
        assert_eq!(sorted_beside(&nested, None, &[101, 102]), right);
    }
}
