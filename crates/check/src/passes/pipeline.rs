//! The order of the passes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use floe_blockdev::{ReadBlocks, ReadCounts};
use floe_exec::{Accumulator, CoreShare, Counts, Pool};
use floe_format::{GroupNr, InodeNr};

use super::attribute_blocks;
use super::registry::PASSES;
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
use crate::evidence::fingerprint::{PartialSums, Tables};
use crate::evidence::inode_facts::InodeFacts;
use crate::evidence::quota_usage::QuotaUsage;
use crate::evidence::scope::Scope;
use crate::options::CheckOptions;
use crate::passes::overlap::{self, EarlyDirs};
use crate::passes::rescan::{Kept, Since};
use crate::passes::{inodes, recovery};
use crate::problem::Findings;
use crate::report::{EarlyCounts, PhaseTime, PipelineUse, Report};
use crate::scan::directory_blocks;
use crate::scan::inode_tables::table_parts;
use crate::volume::Volume;
use crate::volume::journal::JournalState;
use crate::volume::open::{Opened, open};

/// Times the phases, and says which one is running.
pub(super) struct Clock<'p> {
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
            let estimates = PASSES.iter().filter_map(|pass| Some((pass.name, pass.estimate?)));
            work::plan(progress, volume, estimates, self.options.threads, overlap);
        }
    }

    /// Some parts of inode tables may have been read before.
    pub(super) fn resume(&self, volume: &Volume<'_>, session: Option<&Session<'_>>) {
        if let (Some(progress), Some(session)) = (self.options.progress, session) {
            work::plan_rest(progress, volume, session.parts_done(), self.options.threads);
        }
    }

    /// Passes overlapped in the phase of the inodes.
    fn overlapped(&mut self, counts: Counts, blocks: EarlyCounts) {
        self.pipeline = Some(PipelineUse { policy: self.options.schedule, counts, blocks });
    }

    /// The blocks of directories are known. Some of them may have been read before.
    pub(super) fn plan_directories(
        &self,
        volume: &Volume<'_>,
        dirs: &Dirs,
        session: Option<&Session<'_>>,
    ) {
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
    let mut scan = Scan { found, ..Scan::default() };
    let mut setting = Setting {
        pool: &pool,
        budget: &budget,
        start,
        session: session.as_mut(),
        key,
        clock: &mut clock,
    };
    for pass in &PASSES {
        (pass.run)(&mut volume, &mut setting, &mut scan)?;
        setting.clock.end(pass.name);
    }
    Ok(scan.into_examination(volume, journal, clock, plan))
}

/// What passes share and do not look at the file system for.
pub(super) struct Setting<'r, 'p, 'k> {
    pub(super) pool: &'r Pool<'r>,
    pub(super) budget: &'r Budget,
    start: Start,
    pub(super) session: Option<&'r mut Session<'k>>,
    /// The key of the sums.
    key: [u8; 16],
    pub(super) clock: &'r mut Clock<'p>,
}

/// Sets up the sums, if there are any: of which groups evidence is kept all the same.
pub(super) fn begin_sums(volume: &mut Volume<'_>, setting: &Setting<'_, '_, '_>) {
    if setting.budget.plan.way.sums {
        volume.tables = Some(Tables::new(&volume.geometry, setting.key));
        volume.scope = of_reserved(volume);
        volume.claim_scope = volume.scope.clone();
    }
}

/// The groups that hold reserved inodes, which are no plain case.
fn of_reserved(volume: &Volume<'_>) -> Scope {
    let geometry = &volume.geometry;
    let reserved = geometry.first_inode.0.div_ceil(geometry.inodes_per_group.max(1));
    Scope::of((0..reserved).map(GroupNr), geometry.group_count)
}

/// Everything that passes find and keep, each for those after it. More than a dozen fields: this is all of it, in
/// one place.
#[derive(Default)]
pub(super) struct Scan {
    pub(super) found: Findings,
    pub(super) inodes: InodeEvidence,
    /// What directory blocks leave that were judged along with the inodes.
    pub(super) early: EarlyDirs,
    pub(super) facts: InodeFacts,
    pub(super) claims: Claims,
    pub(super) sums: PartialSums,
    /// Findings about blocks that several inodes claim; a closer look at damaged groups replaces them.
    pub(super) shared: Findings,
    pub(super) index: DirIndex,
    pub(super) entries: DirEvidence,
    pub(super) tree: DirTree,
    pub(super) clusters_used: u64,
    pub(super) paths: BTreeMap<InodeNr, Vec<u8>>,
    pub(super) rescanned_groups: Option<u32>,
    rescanned_parts: Option<u32>,
    kept: Option<Kept>,
}

impl Scan {
    /// What checks of directories look at.
    pub(super) fn cx<'a>(&'a self, volume: &'a Volume<'a>) -> DirCx<'a> {
        let InodeEvidence { dirs, policies, attributes, .. } = &self.inodes;
        DirCx::new(volume, dirs, &self.index, &self.facts, policies, &attributes.ea_references)
    }

    fn into_examination<'a>(
        self,
        volume: Volume<'a>,
        journal: JournalState,
        clock: Clock<'_>,
        plan: Plan,
    ) -> Examination<'a> {
        let InodeEvidence { dirs, attributes, quota, totals, .. } = self.inodes;
        let report = Report {
            found: self.found.0,
            superblock: volume.superblock.clone(),
            geometry: volume.geometry.clone(),
            used_backup: volume.used_backup,
            totals,
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
            dirs: dirs.unjudged(),
            index: self.index,
            tree: self.tree,
            entries: self.entries,
            attributes,
            quota,
            rescanned_parts: self.rescanned_parts,
            kept: self.kept,
        }
    }
}

/// Scans all inodes, or those whose edits an earlier examination has not seen; the number of parts of
/// tables is told in that case. Directories are judged along with them where passes overlap. A repair
/// keeps something for its next examination.
///
/// # Errors
/// [`CheckError::Stopped`] if that was asked for; there is a checkpoint then.
pub(super) fn scan_inodes(
    volume: &Volume<'_>,
    setting: &mut Setting<'_, '_, '_>,
    scan: &mut Scan,
) -> Result<(), CheckError> {
    let pool = setting.pool;
    let keeps = matches!(setting.start, Start::Repair(_));
    let carried_over = match &mut setting.start {
        Start::Repair(since) => since.take().and_then(|since| since.carry_over(volume)),
        Start::Check { .. } => None,
    };
    let completed = carried_over.and_then(|carried_over| carried_over.complete(volume, pool));
    let overlaps = overlaps(volume, setting.clock.options, setting.budget);
    (scan.inodes, scan.early, scan.rescanned_parts) = match (completed, overlaps) {
        (Some((inodes, parts)), _) => (inodes, EarlyDirs::default(), Some(parts)),
        (None, Some(options)) => {
            let overlapped = overlap::run(volume, &options, pool.cores());
            setting.clock.overlapped(overlapped.counts, overlapped.early.counts);
            (overlapped.inodes, overlapped.early, None)
        }
        (None, None) => {
            let session = setting.session.as_deref_mut();
            (inodes::run(volume, pool, session)?, EarlyDirs::default(), None)
        }
    };
    scan.kept = if keeps { Kept::of(volume, &scan.inodes) } else { None };
    attribute_blocks::check(volume, &mut scan.inodes, pool);
    // Room for reading is not kept: other passes have their own.
    scan.inodes.buffers = Buffers::default();
    Ok(())
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
pub(super) fn check_layout(volume: &mut Volume<'_>, found: &mut Findings) {
    checks::superblock::fields::check(volume, found);
    checks::group::descriptor::check(volume, found);
    checks::group::lots::check(volume, found);
    checks::superblock::backups::check(volume, found);
    checks::system_files::resize_inode::check(volume, found);
    volume.bad_table_blocks = checks::system_files::bad_blocks::check(volume, found);
}
