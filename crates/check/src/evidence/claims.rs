//! Which clusters are in use, and which are claimed more than once.

use floe_exec::Accumulator;
use floe_format::{BlockRun, Geometry, GroupNr};
use floe_sync::Arc;

use super::block_set::BlockSet;
use super::common_claims::{CommonClaims, Log};
use super::fingerprint::{GroupSums, Tables};
use super::ledger::{Ledger, ranges_of};
use super::run_set::RunSet;
use super::scope::Scope;
use super::snapshots::Snapshots;
use crate::evidence::attributes::BlockUse;
use crate::saved::{Decoder, Encoder, Fault, Saved};

/// Claims on clusters. The index of a cluster counts from the first data block.
///
/// Law: the order of claims and merges is invisible; a cluster claimed `n` times is in `used` if
/// `n >= 1` and in `shared` if `n >= 2`.
#[derive(Debug, Default)]
pub struct Claims {
    used: BlockSet,
    shared: BlockSet,
    /// Where claims are listed instead, while one inode's are asked for.
    recorded: Option<Vec<(u64, u64)>>,
    /// Where most claims are summed instead.
    summed: Option<Box<Summed>>,
    /// Which parts of the inode tables claim clusters in which regions.
    claimants: Ledger,
    /// The same for single clusters, where regions tell little.
    snapshots: Snapshots,
    /// Where claims go that need memory, while other workers claim clusters, too.
    log: Option<Box<Log>>,
}

/// `log2` of the clusters of a region, in the ledger of who claims where.
const REGION_BITS: u32 = 10;

/// The region of a cluster; the last one has all clusters from 2^42 on.
#[inline]
const fn region_of(cluster: u64) -> u32 {
    let region = cluster >> REGION_BITS;
    if region > u32::MAX as u64 { u32::MAX } else { region as u32 }
}

/// Claims of which only those in some groups are marked, and all are summed.
#[derive(Clone, Debug)]
struct Summed {
    tables: Arc<Tables>,
    scope: Scope,
    sums: GroupSums,
}

impl Claims {
    /// Claims that are listed, not marked: to learn what one inode claims.
    pub fn recording() -> Self {
        Self { recorded: Some(Vec::new()), ..Self::default() }
    }

    /// The runs listed so far, as (first cluster, number), in the order they were claimed.
    pub(crate) fn take_recorded(&mut self) -> Vec<(u64, u64)> {
        self.recorded.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// From now on claims are summed up by group, and marked one by one only in the groups of
    /// `scope`. Does nothing if that was said before.
    pub(crate) fn sum_up(&mut self, tables: &Arc<Tables>, scope: &Scope) {
        self.summed.get_or_insert_with(|| {
            let (tables, scope) = (Arc::clone(tables), scope.clone());
            Box::new(Summed { tables, scope, sums: GroupSums::default() })
        });
    }

    /// The sums; empty if claims were not summed up.
    pub(crate) fn take_sums(&mut self) -> GroupSums {
        self.summed.as_mut().map(|summed| std::mem::take(&mut summed.sums)).unwrap_or_default()
    }

    /// Attributes all later claims to inodes of this part of the tables, of which the file system has so many.
    pub(crate) fn begin_part(&mut self, part: u32, parts: u64) {
        self.snapshots.go_to(part, parts, self.clusters_in_ranges());
        self.claimants.go_to(part);
    }

    /// Clusters in the regions that inodes of the part at hand claim some of.
    fn clusters_in_ranges(&self) -> u64 {
        self.claimants.span() << REGION_BITS
    }

    /// The parts of the tables in which inodes claim clusters of `of`, and perhaps a few others: sorted.
    pub(crate) fn parts_claiming(&self, of: &BlockSet) -> Vec<u32> {
        let regions = of.runs().into_iter().map(|(start, len)| {
            (region_of(start), region_of(start.saturating_add(len.saturating_sub(1))))
        });
        let mut parts = self.claimants.places_of(&ranges_of(regions));
        self.snapshots.keep_claiming(&mut parts, of);
        parts
    }

    /// Claims clusters `start..start + len`.
    #[inline]
    pub(crate) fn claim_clusters(&mut self, start: u64, len: u64) {
        if len == 0 {
            return;
        }
        self.claimants.note(region_of(start), region_of(start.saturating_add(len - 1)));
        self.snapshots.note(start, len);
        if self.recorded.is_some() || self.summed.is_some() {
            self.claim_otherwise(start, len);
            return;
        }
        mark(&mut self.used, &mut self.shared, &mut self.log, start, len);
    }

    /// Claims clusters where they are not simply marked.
    fn claim_otherwise(&mut self, start: u64, len: u64) {
        if let Some(recorded) = &mut self.recorded {
            recorded.push((start, len));
            return;
        }
        let Some(summed) = &mut self.summed else { return };
        for (group, piece) in summed.tables.pieces(start, len) {
            summed.sums.add(group, summed.tables.of_clusters(&piece));
            if summed.scope.contains(GroupNr(group)) {
                let (start, len) = (piece.cluster, piece.to - piece.from);
                mark(&mut self.used, &mut self.shared, &mut self.log, start, len);
            }
        }
    }

    /// Marks clusters as claimed more than once (a misaligned mapping, for example).
    pub(crate) fn share_clusters(&mut self, start: u64, len: u64) {
        if self.recorded.is_some() {
            return;
        }
        if let Some(summed) = &mut self.summed {
            // No bitmap marks what this adds: the groups are looked at closely.
            for (group, piece) in summed.tables.pieces(start, len) {
                summed.sums.add(group, summed.tables.of_cluster(piece.from));
            }
        }
        self.shared.insert(start, len, |_, _| ());
    }

    /// Claims the clusters of a run of blocks inside the file system.
    #[inline]
    pub fn claim(&mut self, geometry: &Geometry, run: BlockRun) {
        if run.len_blocks == 0 {
            return;
        }
        let first = geometry.cluster_of(run.start);
        let last = geometry.cluster_of(floe_format::BlockNr(run.end().0 - 1));
        self.claim_clusters(first, last - first + 1);
    }

    /// Clusters claimed at least once.
    pub const fn used(&self) -> &BlockSet {
        &self.used
    }

    /// Clusters claimed more than once.
    pub const fn shared(&self) -> &BlockSet {
        &self.shared
    }
}

/// Marks clusters as in use, and as shared where they were before; notes them in the log, if there is one,
/// where that would take memory.
#[inline]
fn mark(
    used: &mut BlockSet,
    shared: &mut BlockSet,
    log: &mut Option<Box<Log>>,
    start: u64,
    len: u64,
) {
    let again = |word, bits| shared.insert_word(word, bits);
    match log {
        None => used.insert(start, len, again),
        Some(log) => used.insert_few(start, len, again, |start, len| log.note(start, len)),
    }
}

/// Workers that claim clusters at the same time.
impl Claims {
    /// From now on, until [`Claims::settle`], what takes memory goes where claims of others go, too, if
    /// there is such a place. Does nothing if that was said before.
    pub fn join(&mut self, common: Option<&Arc<CommonClaims>>) {
        if let (None, Some(common)) = (&self.log, common) {
            self.log = Some(Box::new(Log::new(common)));
        }
    }

    /// Takes what all who joined have claimed; these are merged into this one by now.
    pub fn settle(&mut self) {
        let Some(log) = self.log.take() else { return };
        let (used, shared) = log.take_all();
        let few = std::mem::replace(&mut self.used, used);
        let all = &mut self.shared;
        self.used.absorb(few, |word, bits| all.insert_word(word, bits));
        all.absorb(shared, |_, _| ());
    }

    /// Adds the claims of a worker that are not in the common bitmap yet.
    fn merge_few(&mut self, few: &BlockSet) {
        few.each_piece(|start, len| {
            mark(&mut self.used, &mut self.shared, &mut self.log, start, len);
        });
    }
}

impl Claims {
    /// Takes back the claims of those who made `other`, and of nobody else: `false`, and nothing can be
    /// said any more, if one of them is shared with somebody, or is none of these.
    pub fn take_back(&mut self, other: &Self) -> bool {
        let alone = other.shared.is_empty() && !other.used.meets(&self.shared);
        alone && self.used.subtract(&other.used)
    }

    /// Forgets that some clusters are in use; which are claimed more than once stays known.
    pub fn forget(&mut self, clusters: &BlockSet) {
        // Not all of them are in use.
        self.used.subtract(clusters);
    }

    /// Claims the clusters of static metadata, where claims are marked one by one: in the groups of the scope
    /// alone, if there are `sums`.
    pub(crate) fn claim_metadata(
        &mut self,
        metadata: &RunSet,
        sums: Option<(&Arc<Tables>, &Scope)>,
    ) {
        if let Some((tables, scope)) = sums {
            self.sum_up(tables, scope);
        }
        let shared = &mut self.shared;
        let mut mark = |start, len| {
            self.used.insert(start, len, |word, bits| shared.insert_word(word, bits));
        };
        let Some(Summed { tables, scope, .. }) = self.summed.as_deref() else {
            return metadata.runs().for_each(|(start, len)| mark(start, len));
        };
        for (start, len) in metadata.runs() {
            let pieces = tables.pieces(start, len);
            for (_, piece) in pieces.filter(|(group, _)| scope.contains(GroupNr(*group))) {
                mark(piece.cluster, piece.to - piece.from);
            }
        }
    }
}

impl Claims {
    /// Claims one cluster for each attribute block, however many inodes use it. `uses` are sorted.
    pub(crate) fn claim_attribute_blocks(
        &mut self,
        geometry: &Geometry,
        sums: Option<(&Arc<Tables>, &Scope)>,
        uses: &[BlockUse],
    ) {
        if let Some((tables, scope)) = sums {
            self.sum_up(tables, scope);
        }
        for uses in uses.chunk_by(|left, right| left.block == right.block) {
            if let [BlockUse { block, .. }, ..] = uses {
                self.claim(geometry, BlockRun::new(*block, 1));
            }
        }
    }
}

impl Accumulator for Claims {
    fn merge(&mut self, other: Self) {
        let ranges = (self.clusters_in_ranges(), other.clusters_in_ranges());
        let Self { used, shared, recorded: _, summed, claimants, snapshots, log } = other;
        self.snapshots.merge(ranges.0, (snapshots, ranges.1));
        match (&mut self.summed, summed) {
            (Some(mine), Some(theirs)) => mine.sums.merge(theirs.sums),
            (mine, theirs @ Some(_)) => *mine = theirs,
            (_, None) => {}
        }
        self.claimants.merge(claimants);
        self.shared.absorb(shared, |_, _| ());
        match (&self.log, log) {
            (None, None) => {
                let shared = &mut self.shared;
                self.used.absorb(used, |word, bits| shared.insert_word(word, bits));
            }
            (Some(_), theirs) => {
                theirs.into_iter().for_each(|log| log.end());
                self.merge_few(&used);
            }
            (None, theirs @ Some(_)) => {
                self.log = theirs;
                let mine = std::mem::replace(&mut self.used, used);
                self.merge_few(&mine);
            }
        }
    }
}

impl Claims {
    /// Writes the claims.
    pub fn save(&self, to: &mut Encoder<'_>) {
        // To list claims is for one inode, while it is looked at again.
        // Nor is there a log, once claims are settled. Parts without a snapshot are looked at again.
        let Self { used, shared, recorded: _, summed, claimants, snapshots: _, log: _ } = self;
        used.save(to);
        shared.save(to);
        claimants.save(to);
        match summed.as_deref() {
            Some(Summed { tables: _, scope: _, sums }) => sums.save(to),
            None => GroupSums::default().save(to),
        }
    }

    /// Reads claims, and their sums apart: those are for whoever adds them up in the end.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn load(from: &mut Decoder<'_>) -> Result<(Self, GroupSums), Fault> {
        let (used, shared, claimants) =
            (Saved::load(from)?, Saved::load(from)?, Saved::load(from)?);
        let claims = Self { used, shared, claimants, ..Self::default() };
        Ok((claims, Saved::load(from)?))
    }
}

#[cfg(test)]
mod laws {
    use super::*;

    floe_exec::accumulator_laws!(
        Claims,
        (0u64..200_000, 0u64..40_000, 0u8..8),
        |all: &mut Claims, (start, len, how): (u64, u64, u8)| match how {
            0 => all.share_clusters(start, len.min(70)),
            _ => all.claim_clusters(start, len),
        },
        |all: Claims| (all.used().runs(), all.shared().runs())
    );
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The observable result of claims by several workers with a common bitmap, or by a single one.
    fn seen(
        workers: &[Vec<(u64, u64)>],
        together: bool,
    ) -> impl PartialEq + std::fmt::Debug + use<> {
        let common = together.then(Arc::default);
        let mut all = Claims::default();
        for runs in workers {
            let mut own = Claims::default();
            // Not every worker gets something to do.
            if !runs.is_empty() {
                own.join(common.as_ref());
            }
            runs.iter().for_each(|&(start, len)| own.claim_clusters(start, len));
            all.merge(own);
        }
        all.settle();
        (all.used().runs(), all.shared().runs())
    }

    fn runs() -> impl Strategy<Value = Vec<(u64, u64)>> {
        // Short ones here and there in a few chunks, which meet each other at times, and long ones.
        let short = (0u64..9, 0u64..400, 1u64..9)
            .prop_map(|(chunk, at, len)| (chunk * 32_768 * 13 + at * 80, len));
        let run = prop_oneof![20 => short, 1 => (0u64..5_000_000, 0u64..90_000)];
        proptest::collection::vec(run, 0..120)
    }

    proptest! {
        #[test]
        fn claims_in_common_are_those_of_one(workers in proptest::collection::vec(runs(), 1..6)) {
            prop_assert_eq!(seen(&workers, true), seen(&workers, false));
        }
    }

    /// More than a log holds, of a file system that is in small pieces: each cluster of two is claimed,
    /// some by both workers, and neither of them has a bitmap.
    #[test]
    fn workers_have_no_bitmaps() {
        let common = Some(Arc::default());
        let worker = |from: u64| {
            let mut own = Claims::default();
            own.join(common.as_ref());
            (from..from + 6000).for_each(|at| own.claim_clusters(at * 7919 % 1_000_000 * 2, 1));
            own
        };
        let (mut all, other) = (worker(0), worker(5500));
        for own in [&all, &other] {
            // Three runs of each of 62 chunks, at most.
            assert!(own.used.runs().len() <= 62 * 3, "{}", own.used.runs().len());
        }
        all.merge(other);
        all.settle();
        assert_eq!(all.used().len(), 11_500);
        let twice: Vec<(u64, u64)> = all.shared().runs();
        let mut expected: Vec<u64> = (5500..6000).map(|at| at * 7919 % 1_000_000 * 2).collect();
        expected.sort_unstable();
        assert!(twice.into_iter().eq(expected.into_iter().map(|at| (at, 1))));
    }
}
