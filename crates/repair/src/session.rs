//! Runs a repair up to the staged file system: examine, plan, stage, examine again, until nothing
//! repairable is left. Never writes to the device.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};

use floe_blockdev::{Overlay, ReadBlocks};
use floe_check::cube::is_coupled;
use floe_check::memory::must_hold_descriptors;
use floe_check::open::{Opened, WhichSuperblock, open};
use floe_check::problem::{Findings, Weight};
use floe_check::report::JournalState;
use floe_check::{CheckError, Examination, Problem, Report, examine_again};
use floe_format::native::identity::Identity;
use floe_format::{BlockNr, GroupNr, InodeNr};

use crate::better_edits::{with_better_edits, without_metadata_as_maps};
use crate::deed::{Deed, Reason};
use crate::edit::{Edit, GroupEdit, JournalEdit, Phase, SuperblockEdit};
use crate::extras::Step;
use crate::failure::{Failed, Failure};
use crate::fixes;
use crate::moves::MoveLog;
use crate::multi_mount::drop_own_mark;
use crate::plan::Wanted;
use crate::policy::{Policy, Sharing};
use crate::proof::weighed;
use crate::shared_owners::Doubts;
use crate::stage::Stage;

mod ahead;
mod copy_space;
mod decide;
mod hidden;
mod in_place;
pub(crate) mod left;
mod make;
mod memory;
mod optional;
mod order;
mod partial;
mod recover;
mod settle;
mod skip;
mod types;
mod untangle;
mod values;

use ahead::Ahead;
use hidden::HiddenParts;
use optional::Optional;
use order::{
    first_phases, in_turn, until_names_are_read, without_a_lost_journal, without_a_wrong_list,
    without_edits_of_cleared, without_hasty_edits, without_misread_values,
};
use partial::PartialExaminations;
use recover::{WAITS_FOR_LOG, is_of_damaged_log, waits_for_log};
use settle::{mark_errors, settle, settle_superblock};
use untangle::Couples;
use values::{one_removal_of_each_area, without_values_in_doubt};

pub use types::{BadBlocks, Moving, Repair, RepairError, RepairOptions, Skip};

/// Maximum rounds: each completes at least one of eight phases.
const MOST_ROUNDS: u32 = 64;
/// Maximum attempts to repair a finding that comes back.
const MOST_TRIES: u32 = 3;

/// Plans a repair of the file system on `device` and stages it.
///
/// # Errors
/// [`RepairError`]: the file system could not be examined, or staging failed.
pub fn repair<'d>(
    device: &'d dyn ReadBlocks,
    options: &RepairOptions<'d>,
    policy: &mut dyn Policy,
) -> Result<Repair<'d>, RepairError> {
    repair_unless(device, options, None, policy)
}

/// The same; ends behind recovery if `skip` says that this is enough.
///
/// # Errors
/// As [`repair`].
pub fn repair_unless<'d>(
    device: &'d dyn ReadBlocks,
    options: &RepairOptions<'d>,
    skip: Option<&Skip<'_>>,
    policy: &mut dyn Policy,
) -> Result<Repair<'d>, RepairError> {
    let mut options = *options;
    options.check.memory.limit_bytes = options.memory_bytes.map(memory::examination_bytes);
    must_hold_descriptors(device, (&options.check).into(), true).map_err(memory::of_repair)?;
    let opened = open(device, options.check.superblock)?;
    let page_bytes = opened.geometry.block_size;
    let spill = memory::spill(&options);
    let journal = options.check.external_journal;
    let overwrite = options.overwrite_unreadable;
    let moves = MoveLog::new(device, page_bytes, &spill, overwrite);
    let staged_journal = journal.map(|journal| {
        Overlay::with_spill(journal, page_bytes, spill.clone()).protecting(overwrite)
    });
    let staged = Overlay::with_spill(device, page_bytes, spill).protecting(overwrite);
    let (taken, of_logs) = recover::take_over_logs(&staged, &opened, &options.check)?;
    drop_own_mark(&staged).map_err(|error| RepairError::Stage(Failure::Io(error)))?;
    let mut session = Session::new(&staged, &moves, &options, policy);
    session.optional.skip = skip;
    if let Some(journal) = &staged_journal {
        session.journal_device = Some(journal);
        session.options.check.external_journal = Some(journal);
    }
    session.journal.found.0.extend(of_logs);
    let outcome = session.run()?;
    let Outcome { before, after, deeds, left, halted, mut journal, skipped, rounds, rescans } =
        outcome;
    let stays_untouched = journal == JournalState::Ignored;
    if taken.transactions > 0 && halted.is_none() && !stays_untouched {
        let (transactions, blocks) = (u64::from(taken.transactions), taken.blocks);
        journal = JournalState::Replayed { transactions, blocks };
    }
    if halted.is_some() || stays_untouched {
        staged.clear();
        staged_journal.iter().for_each(Overlay::clear);
    }
    // Beside a damaged log not even the superblock is written.
    let keeps_log = before.found.iter().any(is_of_damaged_log) || waits_for_log(&before);
    if halted.is_some() && !keeps_log {
        mark_errors(&staged)?;
    }
    let moves = Moving::of(moves, !staged.is_empty() && halted.is_none());
    Ok(Repair {
        staged,
        moves,
        staged_journal,
        before,
        after,
        deeds,
        left,
        halted,
        journal,
        skipped,
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
    skipped: bool,
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
    decisions: Decisions,
    attempts: Attempts,
    journal: Journal,
    optional: Optional<'s>,
    /// Parts that the last examination could not read.
    hidden: HiddenParts,
    rounds: u32,
    /// State for partial re-examinations.
    partial: PartialExaminations,
    couples: Couples<'s>,
}

/// Decisions of the policy, and their grounds.
#[derive(Default)]
struct Decisions {
    /// The decision about each finding.
    decided: BTreeMap<Problem, bool>,
    /// Findings that cast doubt on the claims of inodes.
    doubts: Doubts,
    /// The decision about owners of shared blocks.
    sharing: BTreeMap<InodeNr, Sharing>,
    /// Reasons for deleting inodes that share blocks.
    sentences: BTreeMap<InodeNr, String>,
    /// The finding at which the policy halted the repair.
    halted: Option<Problem>,
    /// The user ended the repair.
    quit: bool,
}

/// Repairs made and tried so far.
#[derive(Default)]
struct Attempts {
    deeds: Vec<Deed>,
    /// Attempts to repair each finding, successful or not.
    tries: BTreeMap<Problem, u32>,
    failures: BTreeMap<Problem, Failed>,
    /// Findings whose repair ran out of space.
    without_space: BTreeSet<Problem>,
    /// Requested work that could not be done.
    not_done: Vec<(Problem, Reason)>,
    /// Whether the primary superblock was restored from a backup.
    primary_written: bool,
    /// Bitmaps were just rewritten, but no block was freed, because owners of some are not known.
    leaks_stay: bool,
    /// There was no space for lost+found, so the root is used instead.
    root_is_lost_found: bool,
    /// Copies made ahead of everything else.
    ahead: Ahead,
    /// Blocks of descriptors as they were before this repair set the place of an inode table there: files whose inodes lie in that
    /// table may have them.
    covered: BTreeMap<BlockNr, Vec<u8>>,
}

/// The journal during a repair.
#[derive(Default)]
struct Journal {
    state: JournalState,
    /// A repair removed it; the last round makes a new one.
    dropped: bool,
    /// Findings of journal recovery, which appear only in the first round.
    found: Findings,
    /// Those about the primary superblock that the replay brought back.
    lost_primary: Vec<Problem>,
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
        moves: &'s MoveLog<'s>,
        options: &RepairOptions<'s>,
        policy: &'s mut dyn Policy,
    ) -> Self {
        Self {
            staged,
            journal_device: None,
            options: *options,
            policy,
            decisions: Decisions::default(),
            attempts: Attempts::default(),
            journal: Journal::default(),
            optional: Optional { steps: options.extras.steps().into(), ..Optional::default() },
            hidden: HiddenParts::default(),
            rounds: 0,
            couples: Couples::of(moves),
            // The memory estimate does not cover the evidence kept for it.
            partial: PartialExaminations::new(
                options.memory_bytes.map_or(options.rescan_percent, |_| 0),
            ),
        }
    }

    fn run(mut self) -> Result<Outcome, RepairError> {
        let mut before = None;
        loop {
            self.rounds += 1;
            let mut opened = self.recover()?;
            self.note_coupled(&mut opened);
            // Without the right journal the file system is inconsistent.
            let fatal = |problem: &&Problem| problem.row().weight == Weight::Fatal;
            if let Some(problem) = self.journal.found.0.iter().find(fatal) {
                return Err(CheckError::Fatal { problem: problem.clone() }.into());
            }
            if self.options.extras.journal_only {
                return Ok(self.recovered(opened));
            }
            if let Some(opened) = self.recovered_is_enough(&opened)? {
                return Ok(Outcome { skipped: true, ..self.recovered(opened) });
            }
            let used_backup = opened.used_backup.is_some();
            let found = std::mem::take(&mut self.journal.found);
            let of_recovery = found.clone();
            let recovery_failed = found.0.iter().any(|one| one.row().weight > Weight::Remark);
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
                self.journal.found = of_recovery;
                self.rounds -= 1;
                continue;
            }
            let before = before.get_or_insert_with(|| self.first_report(&examination));
            let next = self.round(&examination, used_backup)?;
            if let Some(why) = self.must_stay_untouched(&of_recovery) {
                return Ok(self.untouched(before.clone(), why));
            }
            self.note_lost_transactions(&of_recovery);
            // Journal findings appear only in the first round. The final verdict needs a full
            // examination made after recovery. (A halt returns to the findings of the first one.)
            let no_proof = examination.rescanned_parts.is_some() && self.decisions.halted.is_none();
            let is_first = recovery_failed && self.rounds == 1;
            let again = matches!(next, Next::Again) || is_first || no_proof;
            if again && self.rounds < MOST_ROUNDS {
                self.partial.keep(examination);
                continue;
            }
            let before = before.clone();
            if self.decisions.halted.is_none() && waits_for_log(&examination.report) {
                return Ok(self.untouched(before, WAITS_FOR_LOG));
            }
            return self.end(before, examination.report);
        }
    }

    /// Notes, before anything is changed, whether another system has written since there are cubes. The seal, which tells that, is
    /// broken by the repair itself.
    fn note_coupled(&mut self, opened: &mut Opened) {
        let used_backup = opened.used_backup.is_some();
        let sb = &mut opened.superblock;
        let staged = self.staged;
        let first = || is_coupled(staged, sb, used_backup);
        let coupled = *self.couples.coupled.get_or_insert_with(first);
        if !Identity::is_sealed(sb) {
            Identity::put_in_use(sb, coupled);
        }
    }

    /// One round: makes the edits of the first phase that has any.
    fn round(
        &mut self,
        examination: &Examination<'_>,
        used_backup: bool,
    ) -> Result<Next, RepairError> {
        let mut wanted = self.wanted(examination);
        if self.decisions.quit {
            return Err(RepairError::Quit);
        }
        if self.decisions.halted.is_some() {
            return Ok(Next::Done);
        }
        if used_backup && !self.attempts.primary_written && !self.hidden.hides_ground() {
            // A backup named by the user is no finding, but the primary must be restored from it
            // once.
            let edit = Edit::Superblock(SuperblockEdit::PrimaryFromBackup);
            wanted.entry(edit).or_insert(None);
        }
        let (now, random) = (self.options.check.now_seconds, self.options.random);
        // Used only to read, and needed in few rounds.
        let (staged, cube) = (self.staged, self.options.cube);
        let stage = LazyCell::new(|| Stage::new(staged, examination, now, random).of_cube(cube));
        for (group, problem) in self.misplaced_tables(examination, &wanted, &stage) {
            let edit = Edit::Group { group, edit: GroupEdit::InodeTableFromBackup };
            wanted.insert(edit, Some(problem));
        }
        wanted = without_a_wrong_list(with_better_edits(examination, &stage, wanted));
        wanted = without_misread_values(without_metadata_as_maps(examination, &stage, wanted));
        wanted = without_values_in_doubt(weighed(&stage, wanted));
        wanted = self.moves_at_the_end(examination, without_a_lost_journal(wanted));
        if wanted.is_empty() && examination.rescanned_parts.is_some() {
            // Only a full examination may conclude that nothing is left.
            self.partial.prove();
            return Ok(Next::Again);
        }
        if wanted.is_empty() && self.journal.dropped && examination.report.is_clean() {
            self.journal.dropped = false;
            wanted.insert(Edit::Journal(JournalEdit::Create), None);
        }
        if wanted.is_empty() && !self.hidden.hides_owners() && !self.optional.counted {
            wanted = self.quotas(examination).into_iter().map(|edit| (edit, None)).collect();
        }
        if wanted.is_empty() {
            wanted = self.couplings(examination).into_iter().map(|edit| (edit, None)).collect();
        }
        if wanted.is_empty() {
            // This step needs the types of all inodes.
            let asks_for_all = self.optional.steps.contains(&Step::ToExtents);
            if asks_for_all && !examination.volume.mode.scope.is_all() {
                return Err(self.lacks_evidence(examination));
            }
            wanted = self.extras(examination).into_iter().map(|edit| (edit, None)).collect();
        }
        let more = wanted.len();
        wanted = self.copies_ahead(examination, wanted);
        let Some(phase) = wanted.keys().map(Edit::phase).min() else { return Ok(Next::Done) };
        let wanted = one_removal_of_each_area(first_phases(until_names_are_read(wanted)));
        let edits = without_edits_of_cleared(without_hasty_edits(in_turn(wanted)));
        if edits.len() == more || self.rounds + 2 >= MOST_ROUNDS {
            // Nothing is pending for another round, so the next examination may be the final one.
            self.partial.prove();
        }
        self.partial.look(self.staged, examination, edits.keys(), self.options.check.threads);
        self.make_with_moves(examination, edits)?;
        if phase == Phase::Ground {
            // From now on the primary superblock is valid.
            self.options.check.superblock = WhichSuperblock::default();
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

    /// Updates the superblock, and lists the findings that are left.
    fn end(self, before: Report, after: Report) -> Result<Outcome, RepairError> {
        let after = if self.decisions.halted.is_some() { before.clone() } else { after };
        let clean = after.is_clean() && self.decisions.halted.is_none();
        let now = self.options.check.now_seconds;
        if self.decisions.halted.is_none() {
            let checked = self.options.clock_believed;
            let coupled = self.note_left(&after);
            settle_superblock(self.staged, |sb| {
                settle(sb, clean, now, checked, coupled);
                self.couples.note(sb);
            })?;
        }
        let left = after
            .found
            .iter()
            .filter(|problem| problem.row().weight > Weight::Remark)
            .map(|problem| (problem.clone(), self.reason(problem)))
            .chain(self.attempts.not_done.iter().cloned())
            .collect();
        let Self {
            decisions: Decisions { halted, .. }, attempts, journal, rounds, partial, ..
        } = self;
        // The changes of a halted repair are discarded.
        let deeds = if halted.is_some() { Vec::new() } else { attempts.deeds };
        let rescans = partial.rescans;
        let (journal, skipped) = (journal.state, false);
        Ok(Outcome { before, after, deeds, left, halted, journal, skipped, rounds, rescans })
    }
}
