//! The claims on clusters that several inodes share, as owners release them one after the other.

use std::collections::BTreeMap;

use floe_check::Problem;
use floe_format::{BlockNr, BlockRun, Geometry};

/// Cloned attribute blocks, old to new: other inodes that used the same block follow.
type Attributes = BTreeMap<BlockNr, BlockNr>;

/// Remaining claims on each shared cluster, as owners release them one after the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedLedger {
    /// Runs of shared clusters, ascending: first cluster, end (exclusive), index of their claims.
    runs: Vec<(u64, u64, usize)>,
    /// Remaining claims of each cluster; [`NEVER`]: the bad block list or metadata holds it
    /// permanently.
    claims: Vec<u32>,
    pub(crate) attributes: Attributes,
}

const NEVER: u32 = u32::MAX;

impl SharedLedger {
    /// The ledger according to the findings of an examination.
    pub(crate) fn of(found: &[Problem], geometry: &Geometry) -> Self {
        let mut claimed: Vec<(u64, u64)> =
            found.iter().filter_map(|problem| clusters_of(problem, geometry)).collect();
        claimed.sort_unstable();
        let mut runs: Vec<(u64, u64, usize)> = Vec::new();
        for &(first, behind) in &claimed {
            match runs.last_mut() {
                Some(last) if first <= last.1 => last.1 = last.1.max(behind),
                Some(&mut (start, end, at)) => {
                    runs.push((first, behind, at + (end - start) as usize));
                }
                None => runs.push((first, behind, 0)),
            }
        }
        let count = runs.last().map_or(0, |&(start, end, at)| at + (end - start) as usize);
        let mut ledger = Self { runs, claims: vec![0; count + 1], attributes: Attributes::new() };
        // Difference array: add at the start of each claim and subtract at its end, then sum up;
        // intermediate wrap-around cancels out.
        for (first, behind) in claimed {
            let Some(at) = ledger.index(first) else { continue };
            let end = at + (behind - first) as usize;
            ledger.claims[at] = ledger.claims[at].wrapping_add(1);
            ledger.claims[end] = ledger.claims[end].wrapping_sub(1);
        }
        let mut sum = 0u32;
        for claims in &mut ledger.claims {
            sum = sum.wrapping_add(*claims);
            // A cluster with only one claiming inode is shared with a permanent holder.
            *claims = if sum == 1 { NEVER } else { sum };
        }
        ledger
    }

    /// Index of a cluster's claims.
    fn index(&self, cluster: u64) -> Option<usize> {
        let at = self.runs.partition_point(|(_, end, _)| *end <= cluster);
        let &(start, _, first) = self.runs.get(at)?;
        Some(first + usize::try_from(cluster.checked_sub(start)?).ok()?)
    }

    fn claims(&self, cluster: u64) -> Option<u32> {
        self.claims.get(self.index(cluster)?).copied()
    }

    /// Whether none of `len` clusters is shared.
    pub(crate) fn is_clear_in(&self, start: u64, len: u64) -> bool {
        let at = self.runs.partition_point(|(_, end, _)| *end <= start);
        self.runs.get(at).is_none_or(|(first, ..)| *first >= start + len)
    }

    /// Whether an owner of a cluster needs its own copy.
    pub(crate) fn must_clone(&self, cluster: u64) -> bool {
        self.claims(cluster).is_some_and(|count| count > 1)
    }

    /// Whether all other claimants of a cluster will release it.
    pub(crate) fn is_left_to(&self, cluster: u64) -> bool {
        self.claims(cluster).is_some_and(|count| count != NEVER)
    }

    pub(crate) fn let_go(&mut self, cluster: u64) {
        let claims = self.index(cluster).and_then(|at| self.claims.get_mut(at));
        if let Some(count) = claims.filter(|count| **count != NEVER) {
            *count = count.saturating_sub(1);
        }
    }
}

/// The clusters that a finding says an inode shares: first and end (exclusive).
pub(crate) fn clusters_of(problem: &Problem, geometry: &Geometry) -> Option<(u64, u64)> {
    let run = match *problem {
        Problem::MultiplyClaimedBlock { block, .. } => BlockRun::new(block, 1),
        Problem::MultiplyClaimedRange { block, len, .. } => BlockRun::new(block, len),
        _ => return None,
    };
    let last = BlockNr(run.end().0.checked_sub(1)?);
    let exists = run.len_blocks > 0 && geometry.contains(run.start) && geometry.contains(last);
    exists.then(|| (geometry.cluster_of(run.start), geometry.cluster_of(last) + 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use floe_format::InodeNr;

    use super::*;
    use floe_testkit::volume::Volume;
    use floe_testkit::{Profile, build, tool};

    #[test]
    fn the_ledger_counts_the_claims_of_each_cluster() {
        if tool::missing() {
            return;
        }
        let image = build::base(Profile::Ext4K1).unwrap();
        let geometry = Volume::open(&image).unwrap().geometry;
        let claims = proptest::collection::vec((1u32..9, 100u64..160, 1u64..20), 0..12);
        proptest!(|(claims in claims)| {
            let mut model: BTreeMap<u64, u32> = BTreeMap::new();
            let mut found = Vec::new();
            for (inode, start, len) in claims {
                let (inode, block) = (InodeNr(inode), BlockNr(start));
                found.push(match len {
                    1 => Problem::MultiplyClaimedBlock { inode, block },
                    len => Problem::MultiplyClaimedRange { inode, block, len },
                });
                for block in (start..start + len).map(BlockNr) {
                    *model.entry(geometry.cluster_of(block)).or_default() += 1;
                }
            }
            let mut ledger = SharedLedger::of(&found, &geometry);
            for cluster in 90..190 {
                let count = model.get(&cluster).copied();
                prop_assert_eq!(ledger.must_clone(cluster), count.is_some());
                prop_assert_eq!(ledger.is_left_to(cluster), count.is_some_and(|count| count > 1));
                let next = (cluster..).find(|cluster| model.contains_key(cluster) || *cluster > 200);
                let ahead = next.unwrap_or(cluster) - cluster;
                prop_assert!(ahead == 0 || ledger.is_clear_in(cluster, ahead));
                prop_assert_eq!(ledger.is_clear_in(cluster, ahead + 1), cluster + ahead > 190);
                for _ in 1..count.unwrap_or(1) {
                    prop_assert!(ledger.must_clone(cluster));
                    ledger.let_go(cluster);
                }
                prop_assert_eq!(ledger.must_clone(cluster), count == Some(1), "the last one keeps it");
            }
        });
    }
}
