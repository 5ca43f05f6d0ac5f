//! Runs a repair up to the staged file system: examine, plan, stage, examine again, until nothing
//! repairable is left. Never writes to the device.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

use floe_blockdev::{Overlay, ReadBlocks, SpillOptions, UnreadablePage, WriteBlocks};
use floe_check::evidence::totals::Totals;
use floe_check::memory::must_hold_descriptors;
use floe_check::open::{Opened, open};
use floe_check::problem::{Findings, Weight};
use floe_check::recovery::Recovery;
use floe_check::report::{JournalState, in_order};
use floe_check::{
    CheckError, CheckOptions, Examination, JournalUse, Problem, Report, examine_again, recovery,
};
use floe_format::features::{Compat, Incompat, RoCompat};
use floe_format::{BlockNr, GroupNr, InodeNr};

use crate::better_edits::{with_better_edits, without_metadata_as_maps};
use crate::deed::{Deed, Reason};
use crate::edit::{Edit, GroupEdit, InodeEdit, JournalEdit, Phase, SuperblockEdit, TreeEdit};
use crate::extras::{Extras, Step};
use crate::failure::Failure;
use crate::fixes;
use crate::plan::{Plan, Wanted, plan};
use crate::policy::{Policy, Sharing};
use crate::proof::weighed;
use crate::shared_owners::{Doubts, SharedBlocks};
use crate::stage::Stage;

mod copy_space;
mod decide;
mod hidden;
mod memory;
mod order;
mod partial;
mod settle;

use hidden::HiddenParts;
use order::{
    first_phases, in_turn, without_a_lost_journal, without_a_wrong_list, without_hasty_edits,
};
use partial::PartialExaminations;
use settle::{edit_superblock, fold, hidden_target, mark_errors, settle, settle_superblock};

/// Maximum rounds: each completes at least one of eight phases.
const MOST_ROUNDS: u32 = 64;
/// Maximum attempts to repair a finding that comes back.
const MOST_TRIES: u32 = 3;

/// Options of a repair.
#[derive(Clone, Copy)]
pub struct RepairOptions<'a> {
    /// Options of the examinations. `now_seconds` also dates everything that a repair writes.
    pub check: CheckOptions<'a>,
    /// Bytes of staged blocks kept in memory; the rest goes to a temporary file.
    pub staging_bytes: u64,
    /// Memory limit of the repair in bytes. To stay below it, the repair uses fewer threads and
    /// leaner structures, keeps blocks in the temporary file, and examines by fingerprints, which
    /// rules out some repairs; it fails if even that is not enough. The staged result is the same.
    /// `None`: no limit.
    pub memory_bytes: Option<u64>,
    /// Folder of the temporary file; `None`: the system's default.
    pub scratch: Option<&'a Path>,
    /// Random bytes for a missing UUID.
    pub random: [u8; 16],
    /// Optional work besides repairs.
    pub extras: Extras,
    /// Policy for blocks that several inodes claim.
    pub shared_blocks: SharedBlocks,
    /// Allows unreadable blocks to be overwritten, and their content to be given up. Otherwise they
    /// and everything that depends on them stay untouched, because a copy of the device may recover
    /// them.
    pub overwrite_unreadable: bool,
    /// Changes to the bad block list, made once the file system has no other damage.
    pub bad_blocks: Option<&'a BadBlocks>,
    /// Whether the clock is trusted, so that the time of the check may be stored.
    pub clock_believed: bool,
    /// Between two rounds, re-read only inodes near the edited ones, if those make up at most this
    /// percentage of all; 0: always re-read everything. The staged result does not depend on it,
    /// and the examination that finds nothing more to do reads everything anyway.
    pub rescan_percent: u32,
}

/// A requested change of the bad block list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BadBlocks {
    /// Blocks to add; those outside the file system are ignored.
    pub blocks: Vec<BlockNr>,
    /// Whether to drop the old list first.
    pub replace: bool,
}

impl Default for RepairOptions<'_> {
    fn default() -> Self {
        Self {
            check: CheckOptions::default(),
            staging_bytes: 256 << 20,
            memory_bytes: None,
            scratch: None,
            random: [0; 16],
            extras: Extras::default(),
            shared_blocks: SharedBlocks::default(),
            overwrite_unreadable: false,
            bad_blocks: None,
            clock_believed: true,
            rescan_percent: 25,
        }
    }
}

/// A staged repair.
pub struct Repair<'d> {
    /// The file system after the repair.
    pub staged: Overlay<&'d dyn ReadBlocks>,
    /// The device of the external journal after the repair, if one was given: to be written after
    /// the file system.
    pub staged_journal: Option<Overlay<&'d dyn ReadBlocks>>,
    /// Report of the first examination, after journal recovery.
    pub before: Report,
    /// Report of the last examination.
    pub after: Report,
    /// The changes made, in order.
    pub deeds: Vec<Deed>,
    /// Damage that is left, and why.
    pub left: Vec<(Problem, Reason)>,
    /// The finding at which an unattended repair halted. The only staged change is then the error
    /// flag of the file system.
    pub halted: Option<Problem>,
    /// Result of journal recovery.
    pub journal: JournalState,
    /// Number of examinations.
    pub rounds: u32,
    /// Number of inode table chunks that each partial examination re-read.
    pub rescans: Vec<u32>,
}

/// Why a repair could not be planned.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// The file system could not be examined.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// Staging failed.
    #[error("cannot stage the repair: {0}")]
    Stage(#[from] Failure),
    /// The repair would exceed its memory limit.
    #[error("{phase} needs {need_bytes} bytes of memory, but the limit is {budget_bytes}")]
    OverBudget {
        /// The next step; "start" before the first.
        phase: &'static str,
        /// Bytes that would suffice, as far as known.
        need_bytes: u64,
        /// The limit in bytes.
        budget_bytes: u64,
    },
    /// No free run can hold a bitmap or inode table that has no valid location. Without it the
    /// repair would drop names of files that may still exist.
    #[error(
        "{group} has no room for its {what}, which needs {blocks} contiguous free blocks; \
         nothing was written"
    )]
    NoRoom {
        /// The group.
        group: GroupNr,
        /// "block bitmap", "inode bitmap" or "inode table".
        what: &'static str,
        /// Contiguous blocks that it needs.
        blocks: u64,
    },
    /// Replaying the journal would give up an unreadable block, and without replay the file system
    /// is inconsistent.
    #[error("{what}: {block}; nothing was written")]
    HiddenFromJournal {
        /// Message about the block.
        what: &'static str,
        /// The block.
        block: UnreadablePage,
    },
    /// The user ended it; nothing is staged.
    #[error("ended on request; nothing was written")]
    Quit,
}

impl Repair<'_> {
    /// Whether the staged file system is clean.
    pub fn is_clean(&self) -> bool {
        self.after.is_clean()
    }

    /// Whether there is anything to write.
    pub fn changes(&self) -> bool {
        !self.staged.is_empty()
    }

    /// Whether any damage was repaired, beyond the updates of every run.
    pub fn repaired(&self) -> bool {
        if self.halted.is_some() {
            return false;
        }
        self.deeds.iter().any(|deed| !deed.extra)
            || matches!(self.journal, JournalState::Replayed { .. })
    }
}

/// Plans a repair of the file system on `device` and stages it.
///
/// # Errors
/// [`RepairError`]: the file system could not be examined, or staging failed.
pub fn repair<'d>(
    device: &'d dyn ReadBlocks,
    options: &RepairOptions<'d>,
    policy: &mut dyn Policy,
) -> Result<Repair<'d>, RepairError> {
    let mut options = *options;
    options.check.memory_bytes = options.memory_bytes.map(memory::examination_bytes);
    must_hold_descriptors(device, (&options.check).into(), true).map_err(memory::of_repair)?;
    let page_bytes = open(device, &options.check)?.geometry.block_size;
    let mut spill = SpillOptions::in_temporary_folder(memory::staging_bytes(&options));
    if let Some(folder) = options.scratch {
        spill.folder = folder.to_owned();
    }
    let journal = options.check.external_journal;
    let overwrite = options.overwrite_unreadable;
    let staged_journal = journal.map(|journal| {
        Overlay::with_spill(journal, page_bytes, spill.clone()).protecting(overwrite)
    });
    let staged = Overlay::with_spill(device, page_bytes, spill).protecting(overwrite);
    let mut session = Session::new(&staged, &options, policy);
    if let Some(journal) = &staged_journal {
        session.journal_device = Some(journal);
        session.options.check.external_journal = Some(journal);
    }
    let outcome = session.run()?;
    let Outcome { before, after, deeds, left, halted, journal, rounds, rescans } = outcome;
    if halted.is_some() {
        staged.clear();
        staged_journal.iter().for_each(Overlay::clear);
        mark_errors(&staged)?;
    }
    Ok(Repair {
        staged,
        staged_journal,
        before,
        after,
        deeds,
        left,
        halted,
        journal,
        rounds,
        rescans,
    })
}

/// Result of a session, besides the staged blocks.
struct Outcome {
    before: Report,
    after: Report,
    deeds: Vec<Deed>,
    left: Vec<(Problem, Reason)>,
    halted: Option<Problem>,
    journal: JournalState,
    rounds: u32,
    rescans: Vec<u32>,
}

/// A repair in progress.
struct Session<'s> {
    staged: &'s Overlay<&'s dyn ReadBlocks>,
    /// The device of an external journal.
    journal_device: Option<&'s Overlay<&'s dyn ReadBlocks>>,
    options: RepairOptions<'s>,
    policy: &'s mut dyn Policy,
    /// The policy's decision about each finding.
    decided: BTreeMap<Problem, bool>,
    /// Findings that cast doubt on the claims of inodes.
    doubts: Doubts,
    /// The policy's decision about owners of shared blocks.
    sharing: BTreeMap<InodeNr, Sharing>,
    /// Reasons for deleting inodes that share blocks.
    sentences: BTreeMap<InodeNr, String>,
    /// Attempts to repair each finding, successful or not.
    tries: BTreeMap<Problem, u32>,
    failures: BTreeMap<Problem, String>,
    /// Findings whose repair ran out of space.
    without_space: BTreeSet<Problem>,
    deeds: Vec<Deed>,
    halted: Option<Problem>,
    quit: bool,
    journal: JournalState,
    journal_dropped: bool,
    /// Whether the primary superblock was restored from a backup.
    primary_written: bool,
    /// There was no space for lost+found, so the root is used instead.
    root_is_lost_found: bool,
    /// Findings of journal recovery, which appear only in the first round.
    of_recovery: Findings,
    rounds: u32,
    /// Optional steps still to be made.
    steps: VecDeque<Step>,
    /// An optional step was made; later findings follow from it.
    extra: bool,
    /// The shared_blocks feature was dropped, and files are getting their own copies.
    unsharing: bool,
    /// Parts that the last examination could not read.
    hidden: HiddenParts,
    /// Requested work that could not be done.
    not_done: Vec<(Problem, Reason)>,
    /// The bad block list was changed, and bitmaps and counts follow from that.
    listed: bool,
    /// State for partial re-examinations.
    partial: PartialExaminations,
}

/// Next step after an examination.
enum Next {
    /// Another round.
    Again,
    /// Nothing is left to do.
    Done,
}

impl<'s> Session<'s> {
    fn new(
        staged: &'s Overlay<&'s dyn ReadBlocks>,
        options: &RepairOptions<'s>,
        policy: &'s mut dyn Policy,
    ) -> Self {
        Self {
            staged,
            journal_device: None,
            options: *options,
            policy,
            decided: BTreeMap::new(),
            doubts: Doubts::default(),
            sharing: BTreeMap::new(),
            sentences: BTreeMap::new(),
            tries: BTreeMap::new(),
            failures: BTreeMap::new(),
            without_space: BTreeSet::new(),
            deeds: Vec::new(),
            halted: None,
            quit: false,
            journal: JournalState::None,
            journal_dropped: false,
            primary_written: false,
            root_is_lost_found: false,
            of_recovery: Findings::default(),
            rounds: 0,
            steps: options.extras.steps().into(),
            extra: false,
            unsharing: false,
            hidden: HiddenParts::default(),
            not_done: Vec::new(),
            listed: false,
            // The memory estimate does not cover the evidence kept for a partial examination.
            partial: PartialExaminations::new(
                options.memory_bytes.map_or(options.rescan_percent, |_| 0),
            ),
        }
    }

    fn run(mut self) -> Result<Outcome, RepairError> {
        let mut before = None;
        loop {
            self.rounds += 1;
            let opened = self.recover()?;
            // Without the right journal the file system is inconsistent.
            let fatal = |problem: &&Problem| problem.row().weight == Weight::Fatal;
            if let Some(problem) = self.of_recovery.0.iter().find(fatal) {
                return Err(CheckError::Fatal { problem: problem.clone() }.into());
            }
            if self.options.extras.journal_only {
                return Ok(self.recovered(opened));
            }
            let used_backup = opened.used_backup.is_some();
            let found = std::mem::take(&mut self.of_recovery);
            let of_recovery = found.clone();
            let recovery_failed =
                found.0.iter().any(|problem| problem.row().weight > Weight::Remark);
            let staged = self.staged;
            let (check, since) = (self.check_options(), self.partial.since(staged));
            let examination = match examine_again(staged, opened, found, &check, since) {
                Ok(examination) => examination,
                Err(CheckError::Fatal { problem }) if self.mend_mmp(&problem)? => continue,
                Err(error) => return Err(memory::of_repair(error)),
            };
            self.partial.note(&examination);
            self.must_hold_findings(&examination)?;
            if !examination.report.is_clean() && staged.read_holes() {
                // The file system below may wrongly report a hole, so no finding may rest on that.
                self.of_recovery = of_recovery;
                self.rounds -= 1;
                continue;
            }
            let before = before.get_or_insert_with(|| examination.report.clone());
            let next = self.round(&examination, used_backup)?;
            // Journal findings appear only in the first round. The final verdict needs a full
            // examination made after recovery. (A halt returns to the findings of the first one.)
            let no_proof = examination.rescanned_parts.is_some() && self.halted.is_none();
            let again =
                matches!(next, Next::Again) || (recovery_failed && self.rounds == 1) || no_proof;
            if again && self.rounds < MOST_ROUNDS {
                self.partial.keep(examination);
                continue;
            }
            let before = before.clone();
            return self.end(before, examination.report);
        }
    }

    /// Opens the staged file system and replays its journal, if possible.
    fn recover(&mut self) -> Result<Opened, RepairError> {
        let mut options = self.options.check;
        options.journal = JournalUse::Replay;
        let opened = open(self.staged, &options)?;
        let seen = self.staged.unreadable_offsets();
        let recovery = recovery::recover(self.staged, &opened, &options);
        if self.rounds == 1 {
            self.journal = recovery.state;
        }
        self.must_have_seen_journal(&opened, &recovery, &seen)?;
        self.of_recovery.0.extend(recovery.found.0);
        let Some(replayed) = recovery.overlay else { return Ok(opened) };
        self.journal = recovery.state;
        fold(&replayed, self.staged).map_err(hidden_target)?;
        if let (Some(device), Some((offset, block))) = (self.journal_device, recovery.external) {
            device.write_at(offset, &block).map_err(Failure::Io)?;
        }
        Ok(open(self.staged, &options)?)
    }

    /// Fails if part of the journal's data is unreadable, so that nothing is written. `seen` lists
    /// the pages found unreadable before the journal was searched.
    fn must_have_seen_journal(
        &self,
        opened: &Opened,
        recovery: &Recovery<'_>,
        seen: &[u64],
    ) -> Result<(), RepairError> {
        let needs_recovery = opened.superblock.feature_incompat & Incompat::RECOVER.bits() != 0;
        let has_data = recovery.overlay.is_some() || needs_recovery;
        if !self.staged.protects() || !has_data {
            return Ok(());
        }
        let offsets = self.staged.unreadable_offsets();
        match offsets.into_iter().find(|offset| !seen.contains(offset)) {
            Some(offset_bytes) => Err(RepairError::HiddenFromJournal {
                what: "the journal holds transactions that are partly unreadable",
                block: UnreadablePage {
                    page: offset_bytes / self.staged.page_bytes(),
                    offset_bytes,
                },
            }),
            None => Ok(()),
        }
    }

    /// Ends a repair that only replays the journal: recovery has updated the superblock, and only
    /// its findings are known.
    fn recovered(self, opened: Opened) -> Outcome {
        let found = in_order(self.of_recovery);
        let left = found
            .iter()
            .filter(|problem| problem.row().weight > Weight::Remark)
            .map(|problem| {
                (problem.clone(), Reason::Impossible("only journal replay was requested"))
            })
            .collect();
        let report = Report {
            found,
            superblock: opened.superblock,
            geometry: opened.geometry,
            used_backup: opened.used_backup,
            totals: Totals::default(),
            clusters_used: 0,
            journal: self.journal,
            paths: BTreeMap::new(),
            phases: Vec::new(),
            pipeline: None,
            rescanned_groups: None,
            plan: None,
        };
        Outcome {
            before: report.clone(),
            after: report,
            deeds: self.deeds,
            left,
            halted: None,
            journal: self.journal,
            rounds: self.rounds,
            rescans: Vec::new(),
        }
    }

    /// One round: makes the edits of the first phase that has any.
    fn round(
        &mut self,
        examination: &Examination<'_>,
        used_backup: bool,
    ) -> Result<Next, RepairError> {
        let mut wanted = self.wanted(examination);
        if self.quit {
            return Err(RepairError::Quit);
        }
        if self.halted.is_some() {
            return Ok(Next::Done);
        }
        if used_backup && !self.primary_written && !self.hidden.hides_ground() {
            // A backup named by the user is no finding, but the primary must be restored from it
            // once.
            let edit = Edit::Superblock(SuperblockEdit::PrimaryFromBackup);
            wanted.entry(edit).or_insert(None);
        }
        let (now, random) = (self.options.check.now_seconds, self.options.random);
        // Used only to read, and needed in few rounds.
        let stage = LazyCell::new(|| Stage::new(self.staged, examination, now, random));
        for (group, problem) in self.misplaced_tables(examination, &wanted, &stage) {
            let edit = Edit::Group { group, edit: GroupEdit::InodeTableFromBackup };
            wanted.insert(edit, Some(problem));
        }
        wanted = without_a_wrong_list(with_better_edits(examination, &stage, wanted));
        wanted = without_metadata_as_maps(examination, &stage, wanted);
        wanted = weighed(&stage, wanted);
        wanted = without_a_lost_journal(wanted);
        if wanted.is_empty() && examination.rescanned_parts.is_some() {
            // Only a full examination may conclude that nothing is left.
            self.partial.prove();
            return Ok(Next::Again);
        }
        if wanted.is_empty() && self.journal_dropped && examination.report.is_clean() {
            self.journal_dropped = false;
            wanted.insert(Edit::Journal(JournalEdit::Create), None);
        }
        if wanted.is_empty() {
            // This step needs the types of all inodes.
            let asks_for_all = self.steps.contains(&Step::ToExtents);
            if asks_for_all && !examination.volume.scope.is_all() {
                return Err(self.lacks_evidence(examination));
            }
            wanted = self.extras(examination).into_iter().map(|edit| (edit, None)).collect();
        }
        let Some(phase) = wanted.keys().map(Edit::phase).min() else { return Ok(Next::Done) };
        let more = wanted.len();
        let edits = without_hasty_edits(in_turn(first_phases(wanted)));
        if edits.len() == more || self.rounds + 2 >= MOST_ROUNDS {
            // Nothing is pending for another round, so the next examination may be the final one.
            self.partial.prove();
        }
        self.partial.look(self.staged, examination, edits.keys(), self.options.check.threads);
        self.make(examination, edits)?;
        if phase == Phase::Ground {
            // From now on the primary superblock is valid.
            self.options.check.superblock = None;
            self.options.check.block_size = None;
        }
        Ok(Next::Again)
    }

    /// Groups whose inode table a backup locates elsewhere, with the finding that the backup
    /// differs. Only valid in the first round, before anything is written to the wrong tables.
    fn misplaced_tables<'e>(
        &self,
        examination: &Examination<'_>,
        wanted: &Wanted,
        stage: &LazyCell<Stage<'e>, impl FnOnce() -> Stage<'e>>,
    ) -> Vec<(GroupNr, Problem)> {
        let differs = |problem: &&Problem| matches!(problem, Problem::BackupDescriptorsBad { .. });
        let Some(problem) = wanted.values().flatten().find(differs) else { return Vec::new() };
        if self.rounds > 2 || self.hidden.hides_owners() || examination.report.is_clean() {
            return Vec::new();
        }
        let groups = fixes::misplaced_tables(stage);
        groups.into_iter().map(|group| (group, problem.clone())).collect()
    }

    /// The next optional step, when nothing is left to repair.
    fn extras(&mut self, examination: &Examination<'_>) -> Vec<Edit> {
        let report = &examination.report;
        if !is_sound(report) {
            // There was no space for copies, so the blocks stay shared.
            return if self.unsharing { self.share_again(report) } else { Vec::new() };
        }
        self.unsharing = false;
        if let (Some(wanted), false) = (self.options.bad_blocks, self.listed) {
            self.listed = true;
            let BadBlocks { blocks, replace } = wanted.clone();
            return vec![Edit::BadBlocks { blocks, replace }];
        }
        while let Some(step) = self.steps.pop_front() {
            let edits = step.edits(examination);
            if !edits.is_empty() {
                self.extra = true;
                self.unsharing = step == Step::UnshareBlocks;
                return edits;
            }
        }
        Vec::new()
    }

    fn share_again(&mut self, report: &Report) -> Vec<Edit> {
        self.unsharing = false;
        let shared = |problem: &&Problem| matches!(problem, Problem::MultiplyClaimedFile { .. });
        for problem in report.found.iter().filter(shared) {
            self.not_done.push((problem.clone(), self.reason(problem)));
        }
        let bits = RoCompat::SHARED_BLOCKS.bits();
        vec![Edit::Superblock(SuperblockEdit::SetRoCompat(bits))]
    }

    /// Makes the edits of one phase.
    fn make(&mut self, examination: &Examination<'_>, wanted: Wanted) -> Result<(), RepairError> {
        let (edits, causes): (Vec<Edit>, Vec<Option<Problem>>) = wanted.into_iter().unzip();
        let now = self.options.check.now_seconds;
        let mut stage = Stage::new(self.staged, examination, now, self.options.random);
        if self.hidden.hides_owners() {
            stage.keep_marked();
        }
        if self.root_is_lost_found {
            stage.set_lost_found(InodeNr::ROOT);
        }
        stage.journal_device = self.journal_device;
        let results = fixes::apply_all(&mut stage, &edits);
        if stage.lacks_evidence() {
            return Err(self.lacks_evidence(examination));
        }
        let no_run = results.iter().find_map(|(result, _)| match result {
            &Err(Failure::NoRun { group, what, blocks }) => Some((group, what, blocks)),
            _ => None,
        });
        // A relocated structure may show that the disk is less full than it seemed.
        let is_news = |edit: &Edit| *edit != Edit::Superblock(SuperblockEdit::PrimaryFromBackup);
        let is_stuck =
            edits.iter().zip(&results).all(|(edit, (made, _))| made.is_err() || !is_news(edit));
        if let Some((group, what, blocks)) = no_run.filter(|_| is_stuck) {
            return Err(RepairError::NoRoom { group, what, blocks });
        }
        let all = edits.into_iter().zip(causes).zip(results);
        for ((edit, problem), (result, mut notes)) in all {
            let no_space = matches!(result, Err(Failure::NoSpace(_)));
            self.root_is_lost_found |= no_space && edit == Edit::Tree(TreeEdit::CreateLostFound);
            let failed = result.err().map(|failure| failure.to_string());
            if let (true, Some(problem)) = (no_space, &problem) {
                self.without_space.insert(problem.clone());
            }
            if let Some(problem) = &problem {
                *self.tries.entry(problem.clone()).or_default() += 1;
                if let Some(text) = &failed {
                    self.failures.insert(problem.clone(), text.clone());
                }
            }
            if failed.is_some() {
                continue;
            }
            self.primary_written |= edit == Edit::Superblock(SuperblockEdit::PrimaryFromBackup);
            self.journal_dropped |= edit == Edit::Journal(JournalEdit::Drop)
                && stage.superblock().feature_compat & Compat::HAS_JOURNAL.bits() == 0;
            let inode = problem.as_ref().and_then(Problem::inode);
            if let (Edit::Inode { edit: InodeEdit::Clear, .. }, Some(inode)) = (&edit, inode)
                && matches!(problem, Some(Problem::MultiplyClaimedFile { .. }))
            {
                notes.extend(self.sentences.get(&inode).cloned());
            }
            let path = inode.and_then(|inode| examination.report.paths.get(&inode).cloned());
            let follows = self.listed
                && (edit.phase() == Phase::Counts || matches!(edit, Edit::BadBlocks { .. }));
            let (loss, round, extra) = (edit.loss(), self.rounds, self.extra || follows);
            self.deeds.push(Deed { problem, edit, loss, path, notes, round, extra });
        }
        stage.finish()?;
        Ok(())
    }

    /// Repairs an MMP block that stops every check at once, if the policy agrees.
    fn mend_mmp(&mut self, problem: &Problem) -> Result<bool, RepairError> {
        let opened = open(self.staged, &self.options.check)?;
        let Plan::Edits(edits) = plan(problem) else { return Ok(false) };
        if self.staged.protects() && !self.staged.unreadable_offsets().is_empty() {
            // An unreadable MMP block may hold the record of another active host.
            return Ok(false);
        }
        // No report exists yet for a decision. Only policies that accept everything may make a
        // repair that is not allowed unattended.
        if !problem.row().preen && !self.policy.may_delete(problem) {
            return Ok(false);
        }
        let tries = self.tries.entry(problem.clone()).or_default();
        *tries += 1;
        if *tries > 1 {
            return Ok(false);
        }
        for edit in edits {
            match edit {
                Edit::CleanMmp => {
                    let block = BlockNr(opened.superblock.mmp_block);
                    let (geometry, seed) = (&opened.geometry, opened.superblock.seed());
                    let now = self.options.check.now_seconds;
                    fixes::clean_mmp(self.staged, geometry, seed, block, now)?;
                }
                Edit::Superblock(SuperblockEdit::DropMmp) => {
                    let incompat = !Incompat::MMP.bits();
                    edit_superblock(self.staged, |sb| {
                        sb.feature_incompat &= incompat;
                        sb.mmp_block = 0;
                    })?;
                }
                Edit::Superblock(SuperblockEdit::MmpBlock(block)) => {
                    edit_superblock(self.staged, |sb| sb.mmp_block = block.0)?;
                }
                _ => return Ok(false),
            }
            let (loss, round) = (edit.loss(), self.rounds);
            let problem = Some(problem.clone());
            let (path, notes) = (None, Vec::new());
            self.deeds.push(Deed { problem, edit, loss, path, notes, round, extra: false });
        }
        Ok(true)
    }

    /// Updates the superblock, and lists the findings that are left.
    fn end(self, before: Report, after: Report) -> Result<Outcome, RepairError> {
        let after = if self.halted.is_some() { before.clone() } else { after };
        let clean = after.is_clean() && self.halted.is_none();
        let now = self.options.check.now_seconds;
        if self.halted.is_none() {
            let checked = self.options.clock_believed;
            settle_superblock(self.staged, |sb| settle(sb, clean, now, checked))?;
        }
        let left = after
            .found
            .iter()
            .filter(|problem| problem.row().weight > Weight::Remark)
            .map(|problem| (problem.clone(), self.reason(problem)))
            .chain(self.not_done.iter().cloned())
            .collect();
        let Self { deeds, halted, journal, rounds, partial, .. } = self;
        // The changes of a halted repair are discarded.
        let deeds = if halted.is_some() { Vec::new() } else { deeds };
        let rescans = partial.rescans;
        Ok(Outcome { before, after, deeds, left, halted, journal, rounds, rescans })
    }

    fn reason(&self, problem: &Problem) -> Reason {
        let objection = |edit: &Edit| self.hidden.objection(problem, edit);
        match plan(problem) {
            Plan::Impossible(why) => return Reason::Impossible(why),
            Plan::Edits(edits) => {
                if let Some(why) = edits.iter().find_map(objection) {
                    return Reason::Impossible(why);
                }
            }
            _ => {}
        }
        match (self.decided.get(problem), self.failures.get(problem)) {
            (Some(false), _) | (None, None) => Reason::Refused,
            (_, Some(text)) => Reason::Failed(text.clone()),
            (Some(true), None) => Reason::CameBack,
        }
    }
}

/// Whether the only findings are those updated at the end.
fn is_sound(report: &Report) -> bool {
    report.found.iter().all(|problem| {
        problem.row().weight <= Weight::Remark || matches!(plan(problem), Plan::AtTheEnd)
    })
}
