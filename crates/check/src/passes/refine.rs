//! Re-examines the groups whose fingerprints fail (`docs/fingerprint.md`), instead of checking
//! everything a second time: reads only what concerns these groups, and keeps evidence of them
//! object by object.
//!
//! - Claims of clusters: from the parts of the inode tables that claim anything nearby
//!   (`evidence/ledger.rs`).
//! - Inodes: from the tables of the groups themselves.
//! - Names of these inodes: from the directory blocks of regions that name any of them. The
//!   evidence that these blocks added in the first scan is subtracted, and their new evidence is
//!   added.
//!
//! If memory is short, claims are kept for some groups at a time, in as many sweeps as necessary.
//!
//! The result equals that of a check that kept evidence of these groups from the start.

use std::collections::BTreeSet;

use floe_exec::{Accumulator, Pool, take_back};
use floe_format::{Geometry, GroupNr, InodeNr};

use crate::checks::context::directory::{DirCx, DirEvidence};
use crate::checks::context::inode::InodeEvidence;
use crate::checks::directory::{dirents, entry_scan, inline_dirs};
use crate::checks::space::bitmaps::{self, Bitmaps};
use crate::checks::space::shared_blocks;
use crate::error::CheckError;
use crate::estimate::memory::Budget;
use crate::evidence::attributes::BlockUse;
use crate::evidence::block_set::BlockSet;
use crate::evidence::claims::Claims;
use crate::evidence::dir_index::DirIndex;
use crate::evidence::dirs::DirRun;
use crate::evidence::fingerprint::PartialSums;
use crate::evidence::inode_facts::InodeFacts;
use crate::evidence::ledger::ranges_of;
use crate::evidence::scope::Scope;
use crate::passes::inodes;
use crate::problem::Findings;
use crate::scan::directory_blocks::scan_runs;
use crate::scan::inode_tables::table_parts;
use crate::volume::Volume;

/// Groups that need a closer look.
#[derive(Debug)]
pub struct Suspects {
    /// Groups whose clusters are not proved.
    pub clusters: BTreeSet<GroupNr>,
    /// Groups whose inodes, or whose names, are not proved.
    pub inodes: BTreeSet<GroupNr>,
}

impl Suspects {
    /// The groups that the fingerprints do not prove, without those whose evidence is kept anyway.
    pub fn of(sums: &PartialSums, volume: &Volume<'_>) -> Self {
        let (mut clusters, mut inodes) = (sums.suspect_clusters(), sums.suspect_inodes());
        if volume.keeps_whole_groups {
            let of_inodes = inodes.clone();
            inodes.extend(&clusters);
            clusters.extend(of_inodes);
        }
        clusters.retain(|group| !volume.claim_scope.contains(*group));
        inodes.retain(|group| !volume.scope.contains(*group));
        Self { clusters, inodes }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.clusters.is_empty() && self.inodes.is_empty()
    }

    /// The same, with the clusters of at most `most` groups at a time.
    fn batches(&self, most: u32) -> Vec<Self> {
        let clusters: Vec<GroupNr> = self.clusters.iter().copied().collect();
        let mut batches: Vec<Self> = clusters
            .chunks(most.max(1) as usize)
            .map(|batch| Self {
                clusters: batch.iter().copied().collect(),
                inodes: BTreeSet::new(),
            })
            .collect();
        let inodes = self.inodes.clone();
        match batches.first_mut() {
            Some(first) => first.inodes = inodes,
            None => batches.push(Self { clusters: BTreeSet::new(), inodes }),
        }
        batches
    }

    /// How many groups there are.
    pub fn count(&self) -> u32 {
        // Fewer than 2^32 groups.
        self.clusters.union(&self.inodes).count() as u32
    }
}

/// The evidence of the first scan, and that of the re-examination.
pub struct Refined<'e> {
    /// Types and link counts.
    pub facts: &'e mut InodeFacts,
    /// Clusters in use.
    pub claims: &'e mut Claims,
    /// Evidence from directory entries; hash trees are not judged yet.
    pub dirs: &'e mut DirEvidence,
    /// Contents of the bitmaps.
    pub bitmaps: &'e mut Bitmaps,
    /// Findings about clusters that are claimed more than once.
    pub shared: &'e mut Findings,
}

/// Facts of all inodes from the first scan.
#[derive(Clone, Copy)]
pub struct Known<'e> {
    /// Directories, attributes and policies, sorted.
    pub inodes: &'e InodeEvidence,
    /// Ranks of the directories.
    pub index: &'e DirIndex,
    /// The number of directories of each group.
    pub dirs_of_groups: &'e [u32],
}

impl Known<'_> {
    fn cx<'a>(&'a self, volume: &'a Volume<'_>, facts: &'a InodeFacts) -> DirCx<'a> {
        let InodeEvidence { dirs, policies, attributes, .. } = self.inodes;
        DirCx::new(volume, dirs, self.index, facts, policies, &attributes.ea_references)
    }
}

/// Looks closer at the groups that the sums do not prove: how many there are; `None` without sums. The
/// scopes of the volume have them, too, from then on.
///
/// # Errors
/// [`CheckError::OverBudget`] if what is to be kept of their inodes does not fit.
pub fn prove(
    volume: &mut Volume<'_>,
    mut sums: PartialSums,
    known: Known<'_>,
    refined: Refined<'_>,
    budget: &Budget,
    pool: &Pool,
) -> Result<Option<u32>, CheckError> {
    if volume.tables.is_none() {
        return Ok(None);
    }
    sums.merge(std::mem::take(&mut refined.bitmaps.sums));
    let suspects = Suspects::of(&sums, volume);
    if !suspects.is_empty() {
        let most = budget.groups_at_once(volume, &suspects.clusters, &suspects.inodes)?;
        run(volume, &suspects.batches(most), known, refined, pool);
    }
    Ok(Some(suspects.count()))
}

/// Re-examines one batch after the other. After each batch but the last, drops its claims except
/// for the set of clusters that are claimed more than once.
fn run(
    volume: &mut Volume<'_>,
    batches: &[Suspects],
    known: Known<'_>,
    refined: Refined<'_>,
    pool: &Pool,
) {
    let Refined { facts, claims, dirs, bitmaps, shared } = refined;
    for (at, batch) in batches.iter().enumerate() {
        let parts = Refined { facts, claims, dirs, bitmaps, shared };
        look(volume, batch, known, parts, pool);
        if at + 1 < batches.len() {
            claims.forget(&clusters_of(&volume.geometry, &batch.clusters));
            volume.claim_scope = volume.claim_scope.without(batch.clusters.iter().copied());
        }
    }
    let uses = &known.inodes.attributes.block_uses;
    *shared = shared_blocks::check(volume, facts, claims, uses, pool);
}

fn look(
    volume: &mut Volume<'_>,
    suspects: &Suspects,
    known: Known<'_>,
    refined: Refined<'_>,
    pool: &Pool,
) {
    let Refined { facts, claims, dirs, bitmaps, .. } = refined;
    let suspected = |group| suspects.clusters.contains(&group) || suspects.inodes.contains(&group);
    let of_groups = known.dirs_of_groups;
    let before = bitmaps::check_where(volume, facts, claims, of_groups, pool, suspected);
    let (mut runs, mut left) = (Vec::new(), DirEvidence::default());
    if !suspects.inodes.is_empty() {
        let cx = known.cx(volume, facts);
        runs = naming(&cx, dirs, &suspects.inodes);
        left = judge(&cx, &runs, pool);
    }
    let uses = &known.inodes.attributes.block_uses;
    learn(volume, suspects, facts, claims, uses, pool);
    if !suspects.inodes.is_empty() {
        let now = judge(&known.cx(volume, facts), &runs, pool);
        replace(dirs, left, now, &volume.geometry, &suspects.inodes);
    }
    let now = bitmaps::check_where(volume, facts, claims, of_groups, pool, suspected);
    bitmaps.replace(before, now);
}

/// Learns who claims clusters of `suspects.clusters`, and what the inodes of `suspects.inodes` are.
/// `attribute_uses` are sorted.
fn learn(
    volume: &mut Volume<'_>,
    suspects: &Suspects,
    facts: &mut InodeFacts,
    claims: &mut Claims,
    attribute_uses: &[BlockUse],
    pool: &Pool,
) {
    let count = volume.geometry.group_count;
    let wider = |scope: &Scope, with: &BTreeSet<GroupNr>| scope.with(with.iter().copied(), count);
    let scope = wider(&volume.scope, &suspects.inodes);
    let claim_scope = wider(&volume.claim_scope, &suspects.clusters);
    // Evidence that was kept from the start must not be kept twice.
    volume.scope = Scope::of(suspects.inodes.iter().copied(), count);
    volume.claim_scope = Scope::of(suspects.clusters.iter().copied(), count);

    let claiming = claims.parts_claiming(&clusters_of(&volume.geometry, &suspects.clusters));
    let mut parts = table_parts(volume);
    parts.retain(|part| {
        suspects.inodes.contains(&part.group)
            || claiming.binary_search(&part.index(&volume.geometry)).is_ok()
    });
    // All but facts and claims is known from the first look.
    let again = inodes::run_over(volume, &parts, pool);
    facts.add(again.facts);
    let mut learned = Claims::default();
    learned.claim_attribute_blocks(&volume.geometry, volume.sums(), attribute_uses);
    learned.merge(again.claims);
    learned.claim_metadata(&volume.metadata, volume.sums());
    claims.merge(learned);
    (volume.scope, volume.claim_scope) = (scope, claim_scope);
}

/// The clusters of some groups.
fn clusters_of(geometry: &Geometry, groups: &BTreeSet<GroupNr>) -> BlockSet {
    let per_group = u64::from(geometry.clusters_per_group);
    let mut clusters = BlockSet::default();
    for group in groups {
        let first = u64::from(group.0) * per_group;
        clusters.insert(first, u64::from(geometry.clusters_of(*group)), |_, _| ());
    }
    clusters
}

/// The directory blocks that name inodes of some groups, and those of the root: how `lost+found` is
/// found.
pub(super) fn naming(
    cx: &DirCx<'_>,
    evidence: &DirEvidence,
    groups: &BTreeSet<GroupNr>,
) -> Vec<DirRun> {
    let geometry = &cx.volume.geometry;
    let ranges = ranges_of(groups.iter().map(|group| {
        let first = geometry.inode_at(*group, 0).0;
        (first, first.saturating_add(geometry.inodes_per_group - 1))
    }));
    let named = entry_scan::naming_any(cx, &evidence.met, ranges);
    let runs = cx.dirs.runs.iter();
    runs.filter(|run| run.dir == InodeNr::ROOT || named(run.dir, Some(run))).copied().collect()
}

/// The evidence of some directory blocks, and of all inline directories.
fn judge(cx: &DirCx<'_>, runs: &[DirRun], pool: &Pool) -> DirEvidence {
    judge_some(cx, runs, &cx.dirs.inline, pool)
}

/// The evidence of some directory blocks, and of some directories that lie in inodes.
pub(super) fn judge_some(
    cx: &DirCx<'_>,
    runs: &[DirRun],
    inline: &[InodeNr],
    pool: &Pool,
) -> DirEvidence {
    let mut all =
        scan_runs(cx.volume, cx.index, runs, pool, |evidence: &mut DirEvidence, block| {
            dirents::check_block(cx, &block, evidence);
        });
    all.merge(inline_dirs::run_over(cx, inline, pool));
    all
}

/// Puts `now` in the place of what the same blocks left `before`: links that are counted for inodes of
/// `groups` were not before, and those of others are the same, because an entry counts by what is known of
/// the inode that it names.
pub(super) fn replace(
    all: &mut DirEvidence,
    before: DirEvidence,
    now: DirEvidence,
    geometry: &Geometry,
    groups: &BTreeSet<GroupNr>,
) {
    take_back(&mut all.found.0, before.found.0);
    take_back(&mut all.named, before.named);
    take_back(&mut all.dotdots, before.dotdots);
    take_back(&mut all.htree.nodes, before.htree.nodes);
    take_back(&mut all.htree.leaves, before.htree.leaves);
    take_back(&mut all.htree.dropped, before.htree.dropped);
    all.entries = all.entries.saturating_sub(before.entries);
    for group in groups {
        for at in 0..geometry.inodes_per_group {
            let inode = geometry.inode_at(*group, at);
            (0..now.links.get(inode)).for_each(|_| all.links.add(inode));
        }
    }
    all.found.merge(now.found);
    all.named.extend(now.named);
    all.dotdots.extend(now.dotdots);
    all.htree.merge(now.htree);
    all.entries += now.entries;
    // The root's blocks are among those that were looked at again.
    all.lost_found = now.lost_found;
}
