//! The order of the passes.

use std::ops::Range;
use std::time::Duration;

use floe_blockdev::ReadBlocks;
use floe_exec::{Accumulator, CoreShare, Pool};
use floe_format::{GroupNr, InodeNr};

use super::attribute_blocks;
use super::clock::Clock;
use super::registry::{PASSES, Pass};
use super::results::{Scan, Shards};
use super::{refine_shard, shard, swept};
use crate::checkpoint::{Closer, Header, Session, Share, merge_parts};
use crate::checks;
use crate::checks::context::directory::DirEvidence;
use crate::checks::context::inode::Buffers;
use crate::checks::directory::connectivity::DirTree;
use crate::error::CheckError;
use crate::estimate::memory::{self, Budget, Load, Plan};
use crate::estimate::work;
use crate::evidence::accounting::Accounting;
use crate::evidence::attributes::AttributeEvidence;
use crate::evidence::claims::Claims;
use crate::evidence::dir_index::DirIndex;
use crate::evidence::dirs::Dirs;
use crate::evidence::fingerprint::Tables;
use crate::evidence::inode_facts::InodeFacts;
use crate::evidence::quota_usage::QuotaUsage;
use crate::evidence::scope::Scope;
use crate::options::{CheckOptions, Checkpoints};
use crate::passes::overlap::{self, EarlyDirs};
use crate::passes::rescan::{Kept, Since};
use crate::passes::{inodes, recovery};
use crate::problem::{Findings, known_findings};
use crate::report::Report;
use crate::scan::inode_tables::table_parts;
use crate::scan::sweep::Sweep;
use crate::volume::Volume;
use crate::volume::cubes::CubeMap;
use crate::volume::journal::JournalState;
use crate::volume::open::{Opened, lost_primary, open};

/// Interval at which the use of the cores is sampled, if they are shared with other programs.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Checks the file system on `device`. Nothing is written.
///
/// # Errors
/// [`CheckError`]: the file system cannot be read, or must not be checked.
pub fn check(device: &dyn ReadBlocks, options: &CheckOptions<'_>) -> Result<Report, CheckError> {
    on_recovered(device, options, Start::Check, |made| made.into_examination().report)
}

/// Opens the file system, replays its journal into memory, and runs the passes that `start` asks for.
pub(super) fn on_recovered<T>(
    device: &dyn ReadBlocks,
    options: &CheckOptions<'_>,
    start: impl Fn(u64) -> Start,
    finish: impl Fn(Made<'_, '_>) -> T,
) -> Result<T, CheckError> {
    let mut clock = Clock::start("open", options);
    memory::must_hold_descriptors(device, options.into(), false)?;
    let is_check = matches!(start(0), Start::Check(_));
    let sweep = is_check.then(|| swept::sweep_of(device, options)).flatten();
    let swept_bytes = sweep.as_ref().map_or(0, Sweep::held_bytes);
    let device: &dyn ReadBlocks = match &sweep {
        Some(sweep) => sweep,
        None => device,
    };
    let opened = open(device, options.superblock)?;
    clock.end("open");
    let recovery = recovery::recover(device, &opened, options);
    clock.end("journal");
    match recovery.overlay {
        Some(overlay) => {
            // Recovery removes the earlier findings; those that it leaves are found again.
            let after = open(&overlay, options.superblock)?;
            let (state, mut found) = (recovery.state, recovery.found);
            found.0.extend(lost_primary(&opened, &after));
            let opened = after;
            let (held_bytes, _) = overlay.held_bytes();
            let start = start(held_bytes + swept_bytes);
            let sweep = sweep.as_ref();
            Ok(finish(passes(&overlay, opened, state, found, options, (start, sweep), clock)?))
        }
        None => {
            let (state, found) = (recovery.state, recovery.found);
            let start = (start(swept_bytes), sweep.as_ref());
            Ok(finish(passes(device, opened, state, found, options, start, clock)?))
        }
    }
}

/// The result of a check with the evidence that a repair needs besides the findings.
pub struct Examination<'d> {
    /// The findings, with totals and costs.
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
    /// Evidence from directory entries.
    pub entries: DirEvidence,
    /// Extended attributes: the users of each attribute block, and the number of uses of each value inode.
    pub attributes: AttributeEvidence,
    /// Space and inodes used by each user, group and project.
    pub quota: QuotaUsage,
    /// How many parts of inode tables were read, if the rest was taken over from an earlier examination;
    /// `None` if all were.
    pub rescanned_parts: Option<u32>,
    /// Evidence that a later examination can take over.
    pub(crate) kept: Option<Kept>,
}

/// Checks a file system whose journal was replayed into `device` before, as far as it could be.
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

/// As [`examine`], but takes over the findings of an earlier examination for inodes that were not edited
/// `since`, where they are certain to be the same ([`Examination::rescanned_parts`]).
///
/// Keeps all evidence, because a repair needs it. If the memory budget has no room for that
/// (`Plan::for_repair`), it uses fingerprints, and the scopes of [`crate::volume::CheckMode`] name the groups whose
/// evidence was kept.
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
    let options = CheckOptions { checkpoints: Checkpoints::default(), ..*options };
    let clock = Clock::start(work::FIRST_OF_ROUND, &options);
    let start = Start::Repair(since);
    let start = (start, None);
    let made = passes(device, opened, JournalState::Clean, found, &options, start, clock)?;
    Ok(made.into_examination())
}

/// The starting point of an examination.
pub(super) enum Start {
    /// Starts from nothing and keeps nothing for a later examination. The value is the number of bytes that
    /// devices between the check and the disk have taken already.
    Check(u64),
    /// The same, of one shard of a check.
    Shard(u64, Share),
    /// The same, of one shard of a refinement.
    Refine(u64, Share),
    /// Starts from the evidence that an earlier examination kept, if there is any.
    Repair(Option<Since>),
}

impl Start {
    /// Whether everything is read.
    const fn is_whole(&self) -> bool {
        matches!(self, Self::Check(_) | Self::Repair(None))
    }

    /// The shard of a refinement.
    const fn refining(&self) -> Option<Share> {
        match self {
            Self::Refine(_, share) => Some(*share),
            Self::Check(_) | Self::Shard(..) | Self::Repair(_) => None,
        }
    }

    /// The passes to run, in order.
    const fn passes(&self) -> &'static [Pass] {
        match self {
            Self::Shard(..) => &shard::PASSES,
            Self::Refine(..) => &refine_shard::PASSES,
            Self::Check(_) | Self::Repair(_) => &PASSES,
        }
    }
}

/// The result of all passes.
pub(super) struct Made<'d, 'p> {
    pub(super) volume: Volume<'d>,
    pub(super) scan: Scan,
    /// Identifies the check, if its evidence is written to a file.
    pub(super) header: Option<Header>,
    journal: JournalState,
    clock: Clock<'p>,
    plan: Plan,
}

impl<'d> Made<'d, '_> {
    fn into_examination(self) -> Examination<'d> {
        let Self { volume, scan, header: _, journal, clock, plan } = self;
        scan.into_examination(volume, journal, clock, plan)
    }
}

fn passes<'d, 'p>(
    device: &'d dyn ReadBlocks,
    opened: Opened,
    journal: JournalState,
    mut found: Findings,
    options: &CheckOptions<'_>,
    (start, sweep): (Start, Option<&'d Sweep<'d>>),
    mut clock: Clock<'p>,
) -> Result<Made<'d, 'p>, CheckError> {
    let (mut key, options) = options.with_key();
    let options = &options;
    let orphans = checks::system_files::orphans::find(device, &opened, options.journal, &mut found);
    let mut load = Load::of(&opened);
    load.other_bytes = options.memory.held_bytes;
    let plan = match &start {
        Start::Check(held_bytes) | Start::Shard(held_bytes, _) | Start::Refine(held_bytes, _) => {
            load.other_bytes += held_bytes;
            Plan::new(&load, &opened.geometry, options.into())?
        }
        Start::Repair(_) => {
            load.edits = true;
            Plan::for_repair(&load, &opened.geometry, options.into())?
        }
    };
    if let Some(told) = options.observer.on_plan {
        told(&plan);
    }
    let share = options
        .cores
        .map(|cores| CoreShare::new(cores.source, plan.way.threads, cores.minimum, LOOK_EVERY));
    let pool = Pool::new(plan.way.threads).dealing(options.tuning.dealing);
    let pool = pool.watched(options.observer.progress).sharing(share.as_ref());
    let budget = Budget { load, plan, groups_per_sweep: options.tuning.groups_per_sweep };
    // A check that writes its evidence to a file keeps its accounting, so that the parts can be merged.
    let settled = options.with_accounting(plan.way.accounting());
    let written = matches!(start, Start::Shard(..)) || options.checkpoints.any();
    let mut header = written.then(|| {
        Header::of(&opened, device.size_bytes(), &journal, &settled, (known_findings(), key))
    });
    let (mut volume, of_volume) = Volume::new(device, opened, options.now_seconds);
    let mut session = match (options.checkpoints.keeper, &header) {
        (Some(keeper), Some(header)) => {
            Some(Session::begin(keeper, header.clone(), &volume, table_parts(&volume).len())?)
        }
        _ => None,
    };
    let (mut merged, mut closer) = (None, Closer::default());
    if let (Some(parts), Some(header)) = (options.checkpoints.parts, &mut header) {
        let (of_parts, all) = merge_parts(parts, header, &volume, start.refining())?;
        (volume.now_seconds, key) = (of_parts.now_seconds, of_parts.key);
        *header = of_parts;
        (merged, closer) = (Some(all.evidence), all.closer);
    }
    if let Some(session) = &session {
        (volume.now_seconds, key) = (session.now_seconds(), session.key());
    }
    learn(&mut volume, orphans, options);
    choose(&mut volume, &plan, &load, options);
    swept::compare_names(&mut volume, &budget, !written && start.is_whole());
    // Shards and merges do only a part of the work that the descriptors predict.
    if !matches!(start, Start::Shard(..)) && clock.options.checkpoints.parts.is_none() {
        clock.plan(&volume, overlaps(&volume, clock.options, &budget).is_some());
    }
    found.merge(of_volume);
    if let Some(problem) = checks::superblock::mmp::check(&volume) {
        return Err(CheckError::Fatal { problem });
    }
    let shards = Shards { merged, closer, refinement: None };
    let mut scan = Scan { found, shards, ..Scan::default() };
    let passes = start.passes();
    let mut setting = Setting {
        pool: &pool,
        budget: &budget,
        start,
        session: session.as_mut(),
        key,
        sweep,
        clock: &mut clock,
    };
    swept::run_passes(passes, &mut volume, &mut setting, &mut scan)?;
    Ok(Made { volume, scan, header, journal, clock, plan })
}

/// Tells the volume its orphans and cubes. A device that shows one cube alone does not know them.
fn learn(volume: &mut Volume<'_>, orphans: Vec<InodeNr>, options: &CheckOptions<'_>) {
    (volume.orphans, volume.cubes) = match options.cube {
        Some(one) => (one.orphans.clone(), Some(&one.map).cloned()),
        None => (orphans, CubeMap::of(volume).map(Into::into)),
    };
}

/// Tells the volume how the check is made.
fn choose(volume: &mut Volume<'_>, plan: &Plan, load: &Load, options: &CheckOptions<'_>) {
    volume.mode.links = plan.way.links;
    volume.mode.keeps_whole_groups = load.edits;
    volume.mode.shortcuts = options.tuning.shortcuts;
    volume.mode.sums_together = options.tuning.accounting != Accounting::Exact && !load.edits;
    volume.mode.check_encoding = options.check_encoding;
}

/// Tools and settings that the passes share.
pub(super) struct Setting<'r, 'p, 'k> {
    pub(super) pool: &'r Pool<'r>,
    pub(super) budget: &'r Budget,
    start: Start,
    pub(super) session: Option<&'r mut Session<'k>>,
    /// The key of the sums.
    key: [u8; 16],
    /// The device of a native file system whose lots are swept.
    pub(super) sweep: Option<&'r Sweep<'r>>,
    pub(super) clock: &'r mut Clock<'p>,
}

impl Setting<'_, '_, '_> {
    /// The groups of the shard that is run; all of them if it is none.
    pub(super) fn groups(&self, volume: &Volume<'_>) -> Range<u32> {
        match self.start {
            Start::Shard(_, share) => shard::groups_of(volume, share),
            _ => 0..volume.geometry.group_count,
        }
    }

    /// The groups of a shard of either kind; all groups if this is no shard.
    pub(super) const fn share(&self) -> Share {
        match self.start {
            Start::Shard(_, share) | Start::Refine(_, share) => share,
            Start::Check(_) | Start::Repair(_) => Share::WHOLE,
        }
    }
}

/// Sets up fingerprints, if they are used, and chooses the groups whose evidence is kept all the same.
pub(super) fn begin_sums(volume: &mut Volume<'_>, setting: &Setting<'_, '_, '_>) {
    if setting.budget.plan.way.sums {
        volume.mode.tables = Some(Tables::new(&volume.geometry, setting.key));
        volume.mode.scope = of_reserved(volume);
        volume.mode.claim_scope = volume.mode.scope.clone();
    }
}

/// The groups that hold reserved inodes, which need checks of their own.
fn of_reserved(volume: &Volume<'_>) -> Scope {
    let geometry = &volume.geometry;
    let reserved = geometry.first_inode.0.div_ceil(geometry.inodes_per_group.max(1));
    Scope::of((0..reserved).map(GroupNr), geometry.group_count)
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
        Start::Check(_) | Start::Shard(..) | Start::Refine(..) => None,
    };
    let completed = carried_over.and_then(|carried_over| carried_over.complete(volume, pool));
    let overlaps = overlaps(volume, setting.clock.options, setting.budget);
    let of_shards = scan.shards.merged.as_mut().map(|merged| std::mem::take(&mut merged.inodes));
    let of_shards = of_shards.map(|mut inodes| {
        if let Some(tables) = &volume.mode.tables {
            // As where parts were read.
            inodes.claims.sum_up(tables, &volume.mode.claim_scope);
        }
        (inodes, None)
    });
    let completed = of_shards.or(completed.map(|(inodes, parts)| (inodes, Some(parts))));
    (scan.inodes, scan.dirs.early, scan.rescanned_parts) = match (completed, overlaps) {
        (Some((inodes, parts)), _) => (inodes, EarlyDirs::default(), parts),
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
    let refines = matches!(setting.start, Start::Refine(..));
    if !(refines && attribute_blocks::claim_unread(volume, &mut scan.inodes)) {
        attribute_blocks::check(volume, &mut scan.inodes, pool);
    }
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

/// Checks the superblock, the descriptors and their copies, before any inode is read.
pub(super) fn check_layout(volume: &mut Volume<'_>, found: &mut Findings) {
    checks::superblock::fields::check(volume, found);
    checks::group::descriptor::check(volume, found);
    checks::group::lots::check(volume, found);
    checks::superblock::backups::check(volume, found);
    checks::system_files::resize_inode::check(volume, found);
    volume.doubts.bad_table_blocks = checks::system_files::bad_blocks::check(volume, found);
}
