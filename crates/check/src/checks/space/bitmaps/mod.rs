//! Check: the bitmaps on the disk and the counts agree with what is in use.
//!
//! Reads: the bitmaps.  Keeps: free counts.  Emits: differences as ranges, padding, checksums, counts
//! of groups and of the file system.
//! Does not verify: that what claims a block may do so (`passes/inodes.rs`, shared blocks).

mod blocks;
mod compare;
mod inodes;
mod window;

use std::ops::Range;

use floe_exec::{Accumulator, Pool, take_back};
use floe_format::{BlockNr, GroupNr};

use self::window::Window;
use crate::evidence::block_set::BlockSet;
use crate::evidence::claims::Claims;
use crate::evidence::fingerprint::PartialSums;
use crate::evidence::inode_facts::InodeFacts;
use crate::problem::{Findings, Problem, Sink};
use crate::saved::{Decoder, Encoder, Fault, Saved};
use crate::scan::read_ahead;
use crate::volume::Volume;

/// Groups that one unit of work checks: bitmaps of a flexible group lie side by side, so that one
/// read brings many.
pub(crate) const GROUPS_PER_UNIT: u32 = 64;
const WORD_BITS: u32 = u64::BITS;

/// Contents of the bitmaps, and the problems in them.
#[derive(Debug, Default)]
pub struct Bitmaps {
    /// Findings.
    pub found: Findings,
    /// Terms that bitmaps subtract from the fingerprints of groups whose evidence is not kept.
    pub sums: PartialSums,
    free_clusters: u64,
    free_inodes: u64,
}

/// Checks the bitmaps and counts of the groups `wanted`. `claims` holds all clusters in use, static metadata
/// included. `dirs` has the number of directories of each group whose facts are not kept.
pub(crate) fn check_where(
    volume: &Volume<'_>,
    facts: &InodeFacts,
    claims: &Claims,
    dirs: &[u32],
    pool: &Pool,
    wanted: impl Fn(GroupNr) -> bool + Sync,
) -> Bitmaps {
    let count = volume.geometry.group_count;
    let units: Vec<Range<u32>> = (0..count)
        .step_by(GROUPS_PER_UNIT as usize)
        .map(|first| first..count.min(first.saturating_add(GROUPS_PER_UNIT)))
        .filter(|unit| unit.clone().any(|group| wanted(GroupNr(group))))
        .collect();
    let all = pool.run(&units, |work: &mut Work, unit| {
        let cx = Cx { volume, facts, used: claims.used(), dirs };
        let groups = unit.clone().map(GroupNr).filter(|group| wanted(*group));
        // Told of all of them, a device works at many at a time.
        let blocks = groups.clone().flat_map(|group| volume.bitmaps_read(group)).flatten();
        read_ahead::announce(volume, blocks, &mut work.ahead);
        for group in groups {
            let before = work.found.0.len();
            cx.check_blocks(group, work);
            cx.check_inodes(group, work);
            if volume.is_group_absent(group) {
                // The finding about the missing group covers these findings.
                work.found.0.truncate(before);
            }
        }
    });
    let Work { found, sums, free_clusters, free_inodes, .. } = all;
    Bitmaps { found, sums, free_clusters, free_inodes }
}

impl Accumulator for Bitmaps {
    fn merge(&mut self, other: Self) {
        let Self { found, sums, free_clusters, free_inodes } = other;
        self.found.merge(found);
        self.sums.merge(sums);
        // A part that somebody made up may say anything.
        self.free_clusters = self.free_clusters.saturating_add(free_clusters);
        self.free_inodes = self.free_inodes.saturating_add(free_inodes);
    }
}

impl Saved for Bitmaps {
    fn save(&self, to: &mut Encoder<'_>) {
        let Self { found, sums, free_clusters, free_inodes } = self;
        found.save(to);
        sums.save(to);
        free_clusters.save(to);
        free_inodes.save(to);
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        let (found, sums) = (Saved::load(from)?, Saved::load(from)?);
        Ok(Self { found, sums, free_clusters: Saved::load(from)?, free_inodes: Saved::load(from)? })
    }
}

impl Bitmaps {
    /// Puts what some units say `now` in the place of what they said `before`; sums stay.
    pub fn replace(&mut self, before: Self, now: Self) {
        take_back(&mut self.found.0, before.found.0);
        self.found.merge(now.found);
        // A device that reads otherwise every time may break this, but no check.
        let exchange = |all: u64, before: u64, now: u64| (all + now).saturating_sub(before);
        self.free_clusters = exchange(self.free_clusters, before.free_clusters, now.free_clusters);
        self.free_inodes = exchange(self.free_inodes, before.free_inodes, now.free_inodes);
    }

    /// Judges the totals; comes back with the number of clusters in use.
    pub fn settle(self, volume: &Volume<'_>, found: &mut Findings) -> u64 {
        judge_totals(volume, &self, found);
        found.merge(self.found);
        volume.geometry.clusters_count().saturating_sub(self.free_clusters)
    }
}

fn judge_totals(volume: &Volume<'_>, all: &Bitmaps, found: &mut Findings) {
    if !volume.judges_counts() {
        return;
    }
    let (superblock, geometry) = (&volume.superblock, &volume.geometry);
    let counted = all.free_clusters << geometry.cluster_bits;
    let stored = superblock.free_blocks_count();
    if stored != counted {
        found.push(Problem::FreeBlockTotalWrong { stored, counted });
    }
    // At most the number of inodes, which is 32 bits.
    let (stored, counted) = (superblock.free_inodes_count, all.free_inodes as u32);
    if stored != counted {
        found.push(Problem::FreeInodeTotalWrong { stored, counted });
    }
}

/// One worker's share.
#[derive(Debug, Default)]
struct Work {
    found: Findings,
    free_clusters: u64,
    free_inodes: u64,
    blocks: Window,
    inodes: Window,
    /// Room to list bitmaps that will be read.
    ahead: Vec<BlockNr>,
    /// The expected block bitmap of one group, as words.
    expected: Vec<u64>,
    /// Terms that the bitmaps of groups without kept evidence subtract.
    sums: PartialSums,
}

impl Accumulator for Work {
    fn merge(&mut self, other: Self) {
        let Self {
            found,
            free_clusters,
            free_inodes,
            blocks: _,
            inodes: _,
            ahead: _,
            expected: _,
            sums,
        } = other;
        self.found.merge(found);
        self.free_clusters += free_clusters;
        self.free_inodes += free_inodes;
        self.sums.merge(sums);
    }
}

/// The bytes that the check of a group reads.
struct Cx<'a> {
    volume: &'a Volume<'a>,
    facts: &'a InodeFacts,
    used: &'a BlockSet,
    dirs: &'a [u32],
}

#[cfg(test)]
mod laws {
    use super::*;

    floe_exec::accumulator_laws!(
        Work,
        (0u32..9, 0u64..99),
        |all: &mut Work, (group, free): (u32, u64)| {
            let group = GroupNr(group);
            all.found.push(Problem::BlockBitmapPaddingClear { group });
            all.free_clusters += free;
            all.free_inodes += free / 2;
        },
        |all: Work| (crate::report::in_order(all.found), all.free_clusters, all.free_inodes)
    );
}

#[cfg(test)]
mod laws_of_shards {
    use super::*;
    use crate::saved::tests::same;

    floe_exec::accumulator_laws!(
        Bitmaps,
        (0u32..9, 0u64..99),
        |all: &mut Bitmaps, (group, free): (u32, u64)| {
            all.found.push(Problem::BlockBitmapPaddingClear { group: GroupNr(group) });
            all.sums.clusters.add(group, free.into());
            all.free_clusters += free;
            all.free_inodes += free / 2;
        },
        |all: Bitmaps| same(all, |all: Bitmaps| {
            let counts = (all.free_clusters, all.free_inodes);
            (
                crate::report::in_order(all.found),
                all.sums.clusters.not_zero().collect::<Vec<_>>(),
                counts,
            )
        })
    );
}
