//! The order of the passes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use floe_blockdev::{ReadBlocks, ReadCounts};
use floe_exec::{Accumulator, CoreShare, Counts, Pool};
use floe_format::{GroupNr, InodeNr};

use super::attribute_blocks;
use crate::checkpoint::{Header, Session};
use crate::checks;
use crate::checks::context::directory::{DirCx, DirEvidence};
use crate::checks::context::inode::{Buffers, InodeEvidence};
use crate::checks::directory::connectivity::DirTree;
use crate::error::CheckError;
use crate::estimate::memory::{self, Budget, Load, Plan};
use crate::estimate::work;
use crate::evidence::accounting::Accounting;
use crate::evidence::attributes::AttributeEvidence;
use crate::evidence::claims::Claims;
use crate::evidence::dir_index::DirIndex;
use crate::evidence::dirs::{DirRun, Dirs};
use crate::evidence::fingerprint::Tables;
use crate::evidence::inode_facts::InodeFacts;
use crate::evidence::quota_usage::QuotaUsage;
use crate::evidence::scope::Scope;
use crate::evidence::totals::Totals;
use crate::options::CheckOptions;
use crate::passes::overlap::{self, EarlyDirs};
use crate::passes::refine::{self, Known, Refined};
use crate::passes::rescan::{Kept, Since};
use crate::passes::{directories, inodes, recovery};
use crate::problem::{Findings, Problem};
use crate::report::{EarlyCounts, PhaseTime, PipelineUse, Report, in_order, inodes_of};
use crate::scan::directory_blocks;
use crate::scan::inode_tables::table_parts;
use crate::volume::Volume;
use crate::volume::journal::JournalState;
use crate::volume::open::{Opened, open};

/// Times the phases, and says which one is running.
struct Clock<'p> {
    phases: Vec<PhaseTime>,
    pipeline: Option<PipelineUse>,
    since: Instant,
    read: ReadCounts,
    options: &'p CheckOptions<'p>,
}

impl<'p> Clock<'p> {
    /// The time before `first`, a phase, is over.
    fn start(first: &'static str, options: &'p CheckOptions<'p>) -> Self {
        if let Some(progress) = options.progress {
            progress.begin_round(first);
            progress.begin(first);
        }
        let read = options.reads.map(|reads| reads()).unwrap_or_default();
        Self { phases: Vec::new(), pipeline: None, since: Instant::now(), read, options }
    }

    /// What is to be done is known, from the descriptors.
    fn plan(&self, volume: &Volume<'_>, budget: &Budget) {
        if let Some(progress) = self.options.progress {
            let overlap = overlaps(volume, self.options, budget).is_some();
            work::plan(progress, volume, self.options.threads, overlap);
        }
    }

    /// Some parts of inode tables may have been read before.
    fn resume(&self, volume: &Volume<'_>, session: Option<&Session<'_>>) {
        if let (Some(progress), Some(session)) = (self.options.progress, session) {
            work::plan_rest(progress, volume, session.parts_done(), self.options.threads);
        }
    }

    /// Passes overlapped in the phase of the inodes.
    fn overlapped(&mut self, counts: Counts, blocks: EarlyCounts) {
        self.pipeline = Some(PipelineUse { policy: self.options.schedule, counts, blocks });
    }

    /// Ends the phase of the inodes: the blocks of directories are known. Some of them may have
    /// been read before.
    fn end_inodes(&mut self, volume: &Volume<'_>, dirs: &Dirs, session: Option<&Session<'_>>) {
        self.end("inodes");
        let done = session.map_or(0, Session::runs_done);
        if let Some(progress) = self.options.progress {
            let rest = dirs.runs.get(done..).unwrap_or(&[]);
            let blocks = |runs: &[DirRun], judged: bool| {
                let runs = runs.iter().filter(|run| judged || !run.judged);
                runs.map(|run| u64::from(run.len_blocks)).sum::<u64>()
            };
            let blocks = (blocks(&dirs.runs, true), blocks(rest, false));
            let at_hand = directory_blocks::runs_at_hand(volume, &dirs.runs);
            let block_size = volume.geometry.block_size;
            let reads = work::directory_reads(dirs.runs.iter(), block_size, at_hand);
            work::plan_directories(progress, volume, blocks, reads, self.options.threads, rest);
        }
    }

    /// Ends the phase that began with the last call; the next one begins.
    fn end(&mut self, name: &'static str) {
        let now = Instant::now();
        let read = self.options.reads.map(|reads| reads()).unwrap_or_default();
        let reads = ReadCounts {
            reads: read.reads.saturating_sub(self.read.reads),
            bytes: read.bytes.saturating_sub(self.read.bytes),
        };
        self.phases.push(PhaseTime { name, time: now - self.since, reads });
        (self.since, self.read) = (now, read);
        let next = work::PHASES.iter().skip_while(|phase| **phase != name).nth(1);
        match (self.options.progress, next) {
            // What follows the last phase of a round is not ours to time.
            (Some(progress), Some(next)) if name != LAST => progress.begin(next),
            (Some(progress), _) => progress.end(),
            (None, _) => {}
        }
    }
}

/// The phase that ends a check.
const LAST: &str = "paths";

/// Time between two looks at the cores, where other programs need some.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Checks the file system on `device`. Nothing is written.
///
/// # Errors
/// See [`CheckError`]: nothing could be looked at, or it must not be.
pub fn check(device: &dyn ReadBlocks, options: &CheckOptions<'_>) -> Result<Report, CheckError> {
    let mut clock = Clock::start("open", options);
    memory::must_hold_descriptors(device, options.into(), false)?;
    let opened = open(device, options)?;
    clock.end("open");
    let recovery = recovery::recover(device, &opened, options);
    clock.end("journal");
    match recovery.overlay {
        Some(overlay) => {
            // What was found before recovery is gone after it, or is found again.
            let opened = open(&overlay, options)?;
            let (state, found) = (recovery.state, recovery.found);
            let (held_bytes, _) = overlay.held_bytes();
            let start = Start::Check { held_bytes };
            let examination = passes(&overlay, opened, state, found, options, start, clock)?;
            Ok(examination.report)
        }
        None => {
            let (state, found) = (recovery.state, recovery.found);
            let start = Start::Check { held_bytes: 0 };
            let examination = passes(device, opened, state, found, options, start, clock)?;
            Ok(examination.report)
        }
    }
}

/// A check, and what it learned on the way: what a repair needs besides the findings.
pub struct Examination<'d> {
    /// What was found.
    pub report: Report,
    /// The file system.
    pub volume: Volume<'d>,
    /// Types and link counts of all inodes.
    pub facts: InodeFacts,
    /// Clusters in use, static metadata included, and those claimed more than once.
    pub claims: Claims,
    /// The directories and their blocks, sorted.
    pub dirs: Dirs,
    /// Ranks of the directories.
    pub index: DirIndex,
    /// Their parents.
    pub tree: DirTree,
    /// What the entries of directories say.
    pub entries: DirEvidence,
    /// Extended attributes: who uses which block, how often values in inodes are used.
    pub attributes: AttributeEvidence,
    /// Space and inodes used by each user, group and project.
    pub quota: QuotaUsage,
    /// How many parts of inode tables were read, if the rest was taken over from an earlier examination;
    /// `None` if everything was looked at.
    pub rescanned_parts: Option<u32>,
    /// What a later examination can take over.
    pub(crate) kept: Option<Kept>,
}

/// Checks a file system whose journal was looked at before: what recovery would replay is in place
/// on `device`, as far as it can be.
///
/// # Errors
/// As [`check`].
pub fn examine<'d>(
    device: &'d dyn ReadBlocks,
    opened: Opened,
    found: Findings,
    options: &CheckOptions<'_>,
) -> Result<Examination<'d>, CheckError> {
    examine_again(device, opened, found, options, None)
}

/// As [`examine`]; of inodes that were not edited `since` an earlier examination, what it found is taken
/// over where that is certain to be the same: [`Examination::rescanned_parts`] tells.
///
/// All evidence is kept, as a repair needs it. Only where a budget has no room for that
/// ([`Plan::for_repair`]) sums are taken: then [`Volume::scope`] and [`Volume::claim_scope`] of the
/// examination say of which groups it was.
///
/// # Errors
/// As [`check`].
pub fn examine_again<'d>(
    device: &'d dyn ReadBlocks,
    opened: Opened,
    found: Findings,
    options: &CheckOptions<'_>,
    since: Option<Since>,
) -> Result<Examination<'d>, CheckError> {
    let options = CheckOptions { checkpoint: None, ..*options };
    let clock = Clock::start(work::FIRST_OF_ROUND, &options);
    passes(device, opened, JournalState::Clean, found, &options, Start::Repair(since), clock)
}

/// What an examination begins with.
enum Start {
    /// Nothing, and nothing is kept for another one. So many bytes of memory are taken already, by what
    /// stands between the check and the disk.
    Check { held_bytes: u64 },
    /// Perhaps what an earlier one kept.
    Repair(Option<Since>),
}

fn passes<'d>(
    device: &'d dyn ReadBlocks,
    opened: Opened,
    journal: JournalState,
    found: Findings,
    options: &CheckOptions<'_>,
    start: Start,
    mut clock: Clock<'_>,
) -> Result<Examination<'d>, CheckError> {
    let mut found = found;
    let (mut key, options) = options.with_key();
    let options = &options;
    let orphans = checks::system_files::orphans::find(device, &opened, options.journal, &mut found);
    let mut load = Load::of(&opened);
    load.other_bytes = options.held_bytes;
    let plan = match &start {
        Start::Check { held_bytes } => {
            load.other_bytes += held_bytes;
            Plan::new(&load, &opened.geometry, options.into())?
        }
        Start::Repair(_) => {
            load.edits = true;
            Plan::for_repair(&load, &opened.geometry, options.into())?
        }
    };
    if let Some(told) = options.on_plan {
        told(&plan);
    }
    let share = options
        .cores
        .map(|cores| CoreShare::new(cores.source, plan.way.threads, cores.minimum, LOOK_EVERY));
    let pool = Pool::new(plan.way.threads).dealing(options.dealing);
    let pool = pool.watched(options.progress).sharing(share.as_ref());
    let budget = Budget { load, plan, groups_per_sweep: options.groups_per_sweep };
    // What is written down goes on as it began: by sums or not.
    let settled = CheckOptions { accounting: plan.way.accounting(), ..*options };
    let header = options
        .checkpoint
        .map(|keeper| (keeper, Header::of(&opened, device.size_bytes(), &journal, &settled, key)));
    let (mut volume, of_volume) = Volume::new(device, opened, options.now_seconds);
    let mut session = match header {
        Some((keeper, header)) => {
            Some(Session::begin(keeper, header, &volume, table_parts(&volume).len())?)
        }
        None => None,
    };
    if let Some(session) = &session {
        (volume.now_seconds, key) = (session.now_seconds(), session.key());
    }
    volume.links = plan.way.links;
    volume.keeps_whole_groups = load.edits;
    volume.orphans = orphans;
    volume.shortcuts = options.shortcuts;
    volume.sums_together = options.accounting != Accounting::Exact && !load.edits;
    volume.check_encoding = options.check_encoding;
    clock.plan(&volume, &budget);
    found.merge(of_volume);
    if let Some(problem) = checks::superblock::mmp::check(&volume) {
        return Err(CheckError::Fatal { problem });
    }
    check_layout(&mut volume, &mut found, &mut clock);

    if plan.way.sums {
        volume.tables = Some(Tables::new(&volume.geometry, key));
        volume.scope = of_reserved(&volume);
        volume.claim_scope = volume.scope.clone();
    }
    clock.resume(&volume, session.as_ref());
    let scan = scan(&mut volume, &pool, found, start, session.as_mut(), &mut clock, &budget)?;
    Ok(scan.into_examination(volume, journal, clock, plan))
}

/// The groups that hold reserved inodes, which are no plain case.
fn of_reserved(volume: &Volume<'_>) -> Scope {
    let geometry = &volume.geometry;
    let reserved = geometry.first_inode.0.div_ceil(geometry.inodes_per_group.max(1));
    Scope::of((0..reserved).map(GroupNr), geometry.group_count)
}

/// What the passes over inodes, directories and bitmaps found and kept.
struct Scan {
    found: Vec<Problem>,
    totals: Totals,
    facts: InodeFacts,
    claims: Claims,
    dirs: Dirs,
    index: DirIndex,
    tree: DirTree,
    entries: DirEvidence,
    attributes: AttributeEvidence,
    quota: QuotaUsage,
    clusters_used: u64,
    paths: BTreeMap<InodeNr, Vec<u8>>,
    rescanned_groups: Option<u32>,
    rescanned_parts: Option<u32>,
    kept: Option<Kept>,
}

impl Scan {
    fn into_examination<'a>(
        self,
        volume: Volume<'a>,
        journal: JournalState,
        clock: Clock<'_>,
        plan: Plan,
    ) -> Examination<'a> {
        let report = Report {
            found: self.found,
            superblock: volume.superblock.clone(),
            geometry: volume.geometry.clone(),
            used_backup: volume.used_backup,
            totals: self.totals,
            clusters_used: self.clusters_used,
            journal,
            paths: self.paths,
            phases: clock.phases,
            pipeline: clock.pipeline,
            rescanned_groups: self.rescanned_groups,
            plan: Some(plan),
        };
        Examination {
            report,
            volume,
            facts: self.facts,
            claims: self.claims,
            dirs: self.dirs,
            index: self.index,
            tree: self.tree,
            entries: self.entries,
            attributes: self.attributes,
            quota: self.quota,
            rescanned_parts: self.rescanned_parts,
            kept: self.kept,
        }
    }
}

/// Scans inodes, directories and bitmaps; evidence is kept of the groups of `volume.scope`, and of those
/// that sums do not prove, which are in it from then on.
///
/// # Errors
/// [`CheckError::Stopped`] if that was asked for; there is a checkpoint then.
fn scan(
    volume: &mut Volume<'_>,
    pool: &Pool,
    mut found: Findings,
    start: Start,
    mut session: Option<&mut Session<'_>>,
    clock: &mut Clock<'_>,
    budget: &Budget,
) -> Result<Scan, CheckError> {
    let (mut inodes, early, rescanned_parts, kept) =
        scan_inodes(volume, pool, start, session.as_deref_mut(), clock, budget)?;
    found.merge(std::mem::take(&mut inodes.found));
    budget.after_inodes(&inodes)?;
    checks::inode::inodes::check_totals(volume, &inodes.totals, &mut found);
    let mut facts = InodeFacts::new(&volume.geometry, std::mem::take(&mut inodes.facts));
    inodes.dirs.sort(&pool.watched(None));
    inodes.policies.sort();
    clock.end_inodes(volume, &inodes.dirs, session.as_deref());

    let mut claims = std::mem::take(&mut inodes.claims);
    let mut sums = std::mem::take(&mut inodes.sums);
    sums.clusters.merge(claims.take_sums());
    claims.claim_metadata(&volume.metadata, volume.sums());
    let attribute_uses = &inodes.attributes.block_uses;
    let mut shared =
        checks::space::shared_blocks::check(volume, &facts, &claims, attribute_uses, pool);
    clock.end("shared blocks");

    let index = DirIndex::new(&inodes.dirs.infos);
    let (policies, references) = (&inodes.policies, &inodes.attributes.ea_references);
    let cx = DirCx::new(volume, &inodes.dirs, &index, &facts, policies, references);
    let mut dirs = directories::run(&cx, early, pool, session)?;
    sums.links.merge(std::mem::take(&mut dirs.sums));
    clock.end("directories");

    let of_groups = sums.take_dirs(&volume.geometry);
    let mut bitmaps = checks::space::bitmaps::check(volume, &facts, &claims, &of_groups, pool);
    let known = Known { inodes: &inodes, index: &index, dirs_of_groups: &of_groups };
    let refined = Refined {
        facts: &mut facts,
        claims: &mut claims,
        dirs: &mut dirs,
        bitmaps: &mut bitmaps,
        shared: &mut shared,
    };
    let rescanned_groups =
        refine::prove(volume, sums, known, refined, budget, &pool.watched(None))?;
    found.merge(shared);
    let clusters_used = bitmaps.settle(volume, &mut found);
    clock.end("bitmaps");

    let cx = DirCx::new(volume, &inodes.dirs, &index, &facts, policies, references);
    directories::finish(&cx, &mut dirs, pool);
    found.merge(std::mem::take(&mut dirs.found));
    let (tree, of_tree) = checks::directory::connectivity::check(&cx, &mut dirs, pool);
    found.merge(of_tree);
    clock.end("connectivity");
    found.merge(checks::directory::link_counts::check(&cx, &dirs, &tree, pool));
    checks::system_files::orphan_file::check(volume, &mut found);
    checks::system_files::quota::check(volume, &inodes.quota, &mut found);
    clock.end("link counts");
    let found = in_order(found);
    let paths = checks::directory::paths::find(&cx, &tree, &dirs.met, &inodes_of(&found), pool);
    clock.end("paths");
    let InodeEvidence { dirs: all_dirs, attributes, quota, totals, .. } = inodes;
    Ok(Scan {
        found,
        totals,
        facts,
        claims,
        dirs: all_dirs.unjudged(),
        index,
        tree,
        entries: dirs,
        attributes,
        quota,
        clusters_used,
        paths,
        rescanned_groups,
        rescanned_parts,
        kept,
    })
}

/// Scans all inodes, or those whose edits an earlier examination has not seen; the number of parts of
/// tables is told in that case. Directories are judged along with them where passes overlap. A repair
/// keeps something for its next examination.
///
/// # Errors
/// As [`scan`].
fn scan_inodes(
    volume: &Volume<'_>,
    pool: &Pool,
    start: Start,
    session: Option<&mut Session<'_>>,
    clock: &mut Clock<'_>,
    budget: &Budget,
) -> Result<(InodeEvidence, EarlyDirs, Option<u32>, Option<Kept>), CheckError> {
    let keeps = matches!(start, Start::Repair(_));
    let carried_over = match start {
        Start::Repair(Some(since)) => since.carry_over(volume),
        Start::Repair(None) | Start::Check { .. } => None,
    };
    let completed = carried_over.and_then(|carried_over| carried_over.complete(volume, pool));
    let (mut inodes, early, parts) = match (completed, overlaps(volume, clock.options, budget)) {
        (Some((inodes, parts)), _) => (inodes, EarlyDirs::default(), Some(parts)),
        (None, Some(options)) => {
            let overlapped = overlap::run(volume, &options, pool.cores());
            clock.overlapped(overlapped.counts, overlapped.early.counts);
            (overlapped.inodes, overlapped.early, None)
        }
        (None, None) => (inodes::run(volume, pool, session)?, EarlyDirs::default(), None),
    };
    let kept = if keeps { Kept::of(volume, &inodes) } else { None };
    attribute_blocks::check(volume, &mut inodes, pool);
    // Room for reading is not kept: other passes have their own.
    inodes.buffers = Buffers::default();
    Ok((inodes, early, parts, kept))
}

/// The options with which passes overlap, if they do: those who asked for it and have room for it.
fn overlaps<'o>(
    volume: &Volume<'_>,
    options: &CheckOptions<'o>,
    budget: &Budget,
) -> Option<CheckOptions<'o>> {
    let threads = budget.plan.way.threads;
    let options = CheckOptions { threads, ..*options };
    let fits = budget.has_room_for(overlap::bytes(&volume.geometry, threads));
    (fits && overlap::wanted(volume, &options)).then_some(options)
}

/// What the superblock, the descriptors and their copies say, before any inode is read.
fn check_layout(volume: &mut Volume<'_>, found: &mut Findings, clock: &mut Clock<'_>) {
    checks::superblock::fields::check(volume, found);
    checks::group::descriptor::check(volume, found);
    checks::superblock::backups::check(volume, found);
    checks::system_files::resize_inode::check(volume, found);
    volume.bad_table_blocks = checks::system_files::bad_blocks::check(volume, found);
    clock.end("superblock");
}
