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

use std::hash::Hasher;

use floe_exec::{Accumulator, Pool, take_back};
use floe_format::{Geometry, GroupNr, InodeNr};
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::checkpoint::{Closer, Judged, Share};
use crate::checks::context::directory::{DirCx, DirEvidence};
use crate::checks::context::inode::InodeEvidence;
use crate::checks::directory::{dirents, entry_scan, inline_dirs};
use crate::checks::space::bitmaps::{self, Bitmaps};
use crate::checks::space::shared_blocks;
use crate::error::CheckError;
use crate::estimate::memory::Budget;
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
use crate::scan::inode_tables::{TablePart, table_parts};
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
        if volume.mode.keeps_whole_groups {
            let of_inodes = inodes.clone();
            inodes.extend(&clusters);
            clusters.extend(of_inodes);
        }
        clusters.retain(|group| !volume.mode.claim_scope.contains(*group));
        inodes.retain(|group| !volume.mode.scope.contains(*group));
        Self { clusters, inodes }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.clusters.is_empty() && self.inodes.is_empty()
    }

    /// A hash of them, to compare with those that another machine found.
    pub fn digest(&self) -> u128 {
        let mut hasher = SipHasher24::new_with_key(b"floe refinement ");
        for groups in [&self.clusters, &self.inodes] {
            hasher.write(&(groups.len() as u64).to_le_bytes());
            groups.iter().for_each(|group| hasher.write(&group.0.to_le_bytes()));
        }
        hasher.finish128().as_u128()
    }

    /// The groups of one share.
    fn groups_of(&self, share: Share) -> BTreeSet<GroupNr> {
        let all: Vec<GroupNr> = self.clusters.union(&self.inodes).copied().collect();
        share.of(&all).iter().copied().collect()
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
/// scopes of the volume have them, too, from then on. Evidence of `closer`, from a refinement by many
/// machines, is used where all of it fits into the budget at once.
///
/// # Errors
/// [`CheckError::OverBudget`] if what is to be kept of their inodes does not fit; [`CheckError::Parts`]
/// if the refinement was of other groups.
pub fn prove(
    volume: &mut Volume<'_>,
    mut sums: PartialSums,
    known: Known<'_>,
    refined: Refined<'_>,
    closer: Closer,
    budget: &Budget,
    pool: &Pool,
) -> Result<Option<u32>, CheckError> {
    if volume.mode.tables.is_none() {
        return Ok(None);
    }
    sums.merge(std::mem::take(&mut refined.bitmaps.sums));
    let suspects = Suspects::of(&sums, volume);
    closer.must_be_of(suspects.digest())?;
    if !suspects.is_empty() {
        let most = budget.groups_at_once(volume, &suspects.clusters, &suspects.inodes)?;
        run(volume, &suspects.batches(most), known, refined, closer, pool);
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
    closer: Closer,
    pool: &Pool,
) {
    let Refined { facts, claims, dirs, bitmaps, shared } = refined;
    let mut closer = if batches.len() == 1 { closer } else { Closer::default() };
    for (at, batch) in batches.iter().enumerate() {
        let parts = Refined { facts, claims, dirs, bitmaps, shared };
        look(volume, batch, known, parts, std::mem::take(&mut closer), pool);
        if at + 1 < batches.len() {
            claims.forget(&clusters_of(&volume.geometry, &batch.clusters));
            volume.mode.claim_scope =
                volume.mode.claim_scope.without(batch.clusters.iter().copied());
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
    closer: Closer,
    pool: &Pool,
) {
    let Refined { facts, claims, dirs, bitmaps, .. } = refined;
    let Closer { suspects: _, learned, judged } = closer;
    let directories = known.inodes.dirs.infos.len();
    let Judged { names_before, names_after, bitmaps_before, bitmaps_after } = match judged {
        Some(judged) if judged.fits(directories) => {
            learn(volume, suspects, facts, claims, known, learned, pool);
            judged
        }
        _ => {
            let by_now = ByNow { facts, claims, dirs };
            judge_share(volume, suspects, known, by_now, learned, Share::WHOLE, pool)
        }
    };
    if !suspects.inodes.is_empty() {
        replace(dirs, names_before, names_after, &volume.geometry, &suspects.inodes);
    }
    bitmaps.replace(bitmaps_before, bitmaps_after);
}

/// The evidence of the first scan: facts and claims, which a closer look adds to, and entries.
pub(super) struct ByNow<'e> {
    pub(super) facts: &'e mut InodeFacts,
    pub(super) claims: &'e mut Claims,
    pub(super) dirs: &'e DirEvidence,
}

/// Judges a share of the bitmaps of suspected groups, and of the directory blocks that name their
/// inodes, before and after these are known. `learned` is the evidence of the inode tables that
/// concern them; `None`: they are read.
pub(super) fn judge_share(
    volume: &mut Volume<'_>,
    suspects: &Suspects,
    known: Known<'_>,
    by_now: ByNow<'_>,
    learned: Option<InodeEvidence>,
    share: Share,
    pool: &Pool,
) -> Judged {
    let ByNow { facts, claims, dirs } = by_now;
    let groups = suspects.groups_of(share);
    let wanted = |group| groups.contains(&group);
    let of_groups = known.dirs_of_groups;
    let mut judged = Judged {
        bitmaps_before: bitmaps::check_where(volume, facts, claims, of_groups, pool, wanted),
        ..Judged::default()
    };
    let (mut runs, mut inline) = (Vec::new(), &[][..]);
    if !suspects.inodes.is_empty() {
        let cx = known.cx(volume, facts);
        runs = share.of(&naming(&cx, dirs, &suspects.inodes)).to_vec();
        inline = share.of(&known.inodes.dirs.inline);
        judged.names_before = judge_some(&cx, &runs, inline, pool);
    }
    learn(volume, suspects, facts, claims, known, learned, pool);
    if !suspects.inodes.is_empty() {
        judged.names_after = judge_some(&known.cx(volume, facts), &runs, inline, pool);
    }
    judged.bitmaps_after = bitmaps::check_where(volume, facts, claims, of_groups, pool, wanted);
    judged
}

/// Learns who claims clusters of `suspects.clusters`, and what the inodes of `suspects.inodes` are,
/// from the inode tables, or from what was `learned` of them.
fn learn(
    volume: &mut Volume<'_>,
    suspects: &Suspects,
    facts: &mut InodeFacts,
    claims: &mut Claims,
    known: Known<'_>,
    learned: Option<InodeEvidence>,
    pool: &Pool,
) {
    let count = volume.geometry.group_count;
    let wider = |scope: &Scope, with: &BTreeSet<GroupNr>| scope.with(with.iter().copied(), count);
    let scope = wider(&volume.mode.scope, &suspects.inodes);
    let claim_scope = wider(&volume.mode.claim_scope, &suspects.clusters);
    let again = match learned {
        Some(learned) => {
            keep_only(volume, suspects);
            learned
        }
        None => read_inodes(volume, suspects, &parts_near(volume, suspects, claims), pool),
    };
    // All but facts and claims is known from the first look.
    facts.add(again.facts);
    let mut learned = Claims::default();
    let uses = &known.inodes.attributes.block_uses;
    learned.claim_attribute_blocks(&volume.geometry, volume.sums(), uses);
    learned.merge(again.claims);
    learned.claim_metadata(&volume.metadata, volume.sums());
    claims.merge(learned);
    (volume.mode.scope, volume.mode.claim_scope) = (scope, claim_scope);
}

/// The parts of inode tables that concern suspected groups.
pub(super) fn parts_near(
    volume: &Volume<'_>,
    suspects: &Suspects,
    claims: &Claims,
) -> Vec<TablePart> {
    let claiming = claims.parts_claiming(&clusters_of(&volume.geometry, &suspects.clusters));
    let mut parts = table_parts(volume);
    parts.retain(|part| {
        suspects.inodes.contains(&part.group)
            || claiming.binary_search(&part.index(&volume.geometry)).is_ok()
    });
    parts
}

/// Reads parts of inode tables, and keeps evidence of the suspected groups alone. The scopes of the
/// volume are these groups afterwards.
pub(super) fn read_inodes(
    volume: &mut Volume<'_>,
    suspects: &Suspects,
    parts: &[TablePart],
    pool: &Pool,
) -> InodeEvidence {
    keep_only(volume, suspects);
    inodes::run_over(volume, parts, pool)
}

/// Restricts the scopes to suspected groups: evidence that was kept from the start must not be kept
/// twice.
fn keep_only(volume: &mut Volume<'_>, suspects: &Suspects) {
    let count = volume.geometry.group_count;
    volume.mode.scope = Scope::of(suspects.inodes.iter().copied(), count);
    volume.mode.claim_scope = Scope::of(suspects.clusters.iter().copied(), count);
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
