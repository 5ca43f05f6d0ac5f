//! Estimates the space that copies of shared blocks need without making them, and which owners must
//! be deleted so that the rest fits. A lower bound, so that no owner is deleted in vain; a later
//! round finds any further shortage.

use std::collections::BTreeMap;
use std::ops::Range;

use floe_check::scan::inode_reader::InodeReader;
use floe_check::{Examination, Problem, Report, Volume};
use floe_format::InodeNr;
use floe_format::features::RoCompat;

use super::Session;
use crate::edit::{Edit, SuperblockEdit};
use crate::stage;

impl Session<'_> {
    /// Gives the feature back to a file system whose files could not get copies of their own.
    pub(super) fn share_again(&mut self, report: &Report) -> Vec<Edit> {
        self.optional.unsharing = false;
        let shared = |problem: &&Problem| matches!(problem, Problem::MultiplyClaimedFile { .. });
        for problem in report.found.iter().filter(shared) {
            self.attempts.not_done.push((problem.clone(), self.reason(problem)));
        }
        let bits = RoCompat::SHARED_BLOCKS.bits();
        vec![Edit::Superblock(SuperblockEdit::SetRoCompat(bits))]
    }
}

/// Clusters claimed by the same number of owners.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    clusters: u64,
    /// Owners that claim them and are not deleted.
    owners: u64,
    /// Metadata or the bad block list claims them permanently.
    held: bool,
}

/// Space that the copies of shared clusters need, and free space.
#[derive(Debug)]
pub(super) struct CopySpace {
    stretches: Vec<Stretch>,
    /// Index ranges of the cluster runs that each owner claims.
    of_owner: BTreeMap<InodeNr, Vec<Range<usize>>>,
    free: u64,
    needed: u64,
}

impl CopySpace {
    /// Computed from the findings of an examination, for the owners that are to get copies.
    /// Clusters claimed by others may end up with one of them.
    pub(super) fn of(examination: &Examination<'_>, is_owner: impl Fn(InodeNr) -> bool) -> Self {
        let report = &examination.report;
        let claims: Vec<(InodeNr, u64, u64)> = report
            .found
            .iter()
            .filter_map(|problem| {
                let (first, behind) = stage::clusters_of(problem, &report.geometry)?;
                Some((problem.inode()?, first, behind))
            })
            .collect();
        let used = examination.claims.used().len();
        let mut room =
            Self::of_claims(&claims, report.geometry.clusters_count().saturating_sub(used));
        let others: Vec<InodeNr> =
            room.of_owner.keys().copied().filter(|inode| !is_owner(*inode)).collect();
        others.into_iter().for_each(|inode| room.without(inode, 0));
        room
    }

    /// The same from a list of claims: owner, first cluster, end (exclusive).
    fn of_claims(claims: &[(InodeNr, u64, u64)], free: u64) -> Self {
        let mut edges: Vec<u64> =
            claims.iter().flat_map(|&(_, first, behind)| [first, behind]).collect();
        edges.sort_unstable();
        edges.dedup();
        let stretch =
            |pair: &[u64]| Stretch { clusters: pair[1] - pair[0], owners: 0, held: false };
        let mut stretches: Vec<Stretch> = edges.windows(2).map(stretch).collect();
        let mut of_owner: BTreeMap<InodeNr, Vec<Range<usize>>> = BTreeMap::new();
        for &(inode, first, behind) in claims {
            let at = |edge| edges.partition_point(|other| *other < edge);
            let range = at(first)..at(behind);
            stretches[range.clone()].iter_mut().for_each(|stretch| stretch.owners += 1);
            of_owner.entry(inode).or_default().push(range);
        }
        for stretch in &mut stretches {
            stretch.held = stretch.owners == 1;
        }
        let needed = stretches.iter().map(Stretch::copies).sum();
        Self { stretches, of_owner, free, needed }
    }

    /// Clusters that the copies need beyond the free ones.
    pub(super) const fn missing(&self) -> u64 {
        self.needed.saturating_sub(self.free)
    }

    /// Removes an owner, which frees the clusters that only it uses: at most `own_clusters`.
    pub(super) fn without(&mut self, inode: InodeNr, own_clusters: u64) {
        for range in self.of_owner.remove(&inode).into_iter().flatten() {
            for stretch in &mut self.stretches[range] {
                self.needed -= stretch.copies();
                stretch.owners -= 1;
                self.needed += stretch.copies();
            }
        }
        self.free = self.free.saturating_add(own_clusters);
    }
}

impl Stretch {
    /// Clusters that copies of this run need: one owner keeps it unless it is held permanently.
    const fn copies(&self) -> u64 {
        let kept = if self.held { 0 } else { 1 };
        self.clusters.saturating_mul(self.owners.saturating_sub(kept))
    }
}

/// Clusters of an inode including its map, according to `i_blocks`; 0 if it is unreadable.
pub(super) fn clusters_of_inode(volume: &Volume<'_>, inode: InodeNr) -> u64 {
    let mut reader = InodeReader::default();
    let Some(inode) = reader.read(volume, inode) else { return 0 };
    let geometry = &volume.geometry;
    let count = u64::from(inode.base.blocks_lo) | u64::from(inode.base.blocks_high) << 32;
    count.div_ceil(geometry.count_units(inode.flags()) * u64::from(geometry.cluster_blocks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_follows_from_who_goes() {
        let (one, two, three) = (InodeNr(12), InodeNr(13), InodeNr(14));
        // Clusters 10..20 have three owners, 20..30 two, and 40..45 one and metadata.
        let claims = [(one, 10, 30), (two, 10, 30), (three, 10, 20), (three, 40, 45)];
        let mut room = CopySpace::of_claims(&claims, 6);
        assert_eq!(room.missing(), 2 * 10 + 10 + 5 - 6);
        room.without(two, 0);
        assert_eq!(room.missing(), 10 + 5 - 6);
        room.without(one, 4);
        assert_eq!(room.missing(), 0, "5 are needed, 10 are free");
        room.without(three, 0);
        assert_eq!((room.missing(), room.needed), (0, 0));
    }

    #[test]
    fn without_claims_nothing_is_missing() {
        let mut room = CopySpace::of_claims(&[], 0);
        room.without(InodeNr(12), 0);
        assert_eq!(room.missing(), 0);
    }
}
