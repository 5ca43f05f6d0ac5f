//! Recovers the journal at the start of each round.

use std::collections::BTreeMap;

use floe_blockdev::{Overlay, ReadBlocks, UnreadablePage, WriteBlocks};
use floe_check::evidence::totals::Totals;
use floe_check::open::{Opened, lost_primary, open};
use floe_check::problem::{Findings, Object, Weight};
use floe_check::recovery::{Recovery, choose_logs};
use floe_check::report::{JournalState, in_order};
use floe_check::{CheckOptions, Examination, JournalUse, Problem, Report, lacks_changes, recovery};
use floe_disk::journal::take_over;
use floe_disk::recovery::Recovered;
use floe_format::features::Incompat;
use floe_format::native::is_locked;

use super::settle::hidden_target;
use super::{Decisions, Outcome, RepairError, Session, in_place};
use crate::deed::{Deed, Reason};
use crate::edit::{Edit, JournalEdit, SuperblockEdit};
use crate::failure::Failure;

/// Why damage stays beside a log that waits for a decision.
pub(super) const WAITS_FOR_LOG: &str = "first, it must be settled what becomes of the damaged log";

impl Session<'_> {
    /// Opens the staged file system and replays its journal, if possible.
    pub(super) fn recover(&mut self) -> Result<Opened, RepairError> {
        let mut options = self.options.check;
        options.journal = JournalUse::Replay;
        let opened = open(self.staged, options.superblock)?;
        let seen = self.staged.unreadable_offsets();
        let recovery = recovery::recover(self.staged, &opened, &options);
        if self.rounds == 1 {
            self.journal.state = recovery.state;
        }
        self.must_have_seen_journal(&opened, &recovery, &seen)?;
        self.journal.found.0.extend(recovery.found.0);
        let Some(replayed) = recovery.overlay else { return Ok(opened) };
        self.journal.state = recovery.state;
        replayed.copy_to(self.staged).map_err(hidden_target)?;
        if let (Some(device), Some((offset, block))) = (self.journal_device, recovery.external) {
            device.write_at(offset, &block).map_err(Failure::Io)?;
        }
        let after = open(self.staged, options.superblock)?;
        self.note_lost_primary(lost_primary(&opened, &after));
        Ok(after)
    }

    /// Notes that the replay brought the primary superblock back: whoever asks finds that something was damaged.
    fn note_lost_primary(&mut self, lost: Vec<Problem>) {
        let edit = Edit::Superblock(SuperblockEdit::PrimaryFromJournal);
        for problem in &lost {
            self.note_done(problem, &edit);
        }
        self.journal.lost_primary.extend(lost);
    }

    /// Notes the transactions that the replay of logs of a native file system has left out: the next examination knows nothing of
    /// them. Where the damage of a log left a choice, adds which state was taken, and what the others are worth.
    pub(super) fn note_lost_transactions(&mut self, of_recovery: &Findings) {
        let edit = Edit::Journal(JournalEdit::LoseTransactions);
        for problem in &of_recovery.0 {
            if self.rounds == 1 && matches!(problem, Problem::CubeJournalDamaged { .. }) {
                self.note_done(problem, &edit);
            }
        }
        for told in of_recovery.0.iter().filter(|problem| is_weighing(problem)) {
            if let Some(deed) = self.attempts.deeds.iter_mut().find(|deed| deed.edit == edit) {
                deed.notes.push(told.to_string());
            }
        }
    }

    /// Notes a change that the replay has made.
    pub(super) fn note_done(&mut self, problem: &Problem, edit: &Edit) {
        self.attempts.deeds.push(Deed {
            problem: Some(problem.clone()),
            edit: edit.clone(),
            loss: edit.loss(),
            path: None,
            notes: Vec::new(),
            round: self.rounds,
            extra: false,
        });
    }

    /// The report of the first round, with what the replay has mended already.
    pub(super) fn first_report(&self, examination: &Examination<'_>) -> Report {
        let mut report = examination.report.clone();
        report.found.extend(self.journal.lost_primary.iter().cloned());
        report.found = in_order(Findings(report.found));
        report
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

    /// Why nothing may be changed: the damaged log is kept, or descriptors had to be written before it was known that a file has
    /// their block, and that file gets no copy of it.
    pub(super) fn must_stay_untouched(&self, of_recovery: &Findings) -> Option<&'static str> {
        if self.keeps_damaged_log(of_recovery) {
            return Some(WAITS_FOR_LOG);
        }
        let is_covered = self.hidden.leaves_any_of(&self.attempts.covered);
        is_covered.then_some(in_place::WHY)
    }

    /// Whether transactions are damaged in the log that the policy does not give up. Without a replay nothing may be changed.
    fn keeps_damaged_log(&self, of_recovery: &Findings) -> bool {
        let Decisions { decided, halted, quit, .. } = &self.decisions;
        let is_kept =
            |problem: &Problem| is_of_damaged_log(problem) && decided.get(problem) == Some(&false);
        halted.is_none() && !quit && of_recovery.0.iter().any(is_kept)
    }

    /// Ends a repair that leaves everything as it was, for a reason that holds for all damage but that of the log.
    pub(super) fn untouched(self, before: Report, why: &'static str) -> Outcome {
        let waits = waits_for_log(&before);
        let reason = |problem: &Problem| match problem {
            one if is_of_damaged_log(one) => Reason::Refused,
            one if waits && one.row().object == Object::Journal => self.reason(one),
            _ => Reason::Impossible(why),
        };
        let damage = before.found.iter().filter(|one| one.row().weight > Weight::Remark);
        let left = damage.map(|problem| (problem.clone(), reason(problem))).collect();
        Outcome {
            after: before.clone(),
            before,
            deeds: Vec::new(),
            left,
            halted: None,
            journal: JournalState::Ignored,
            skipped: false,
            rounds: self.rounds,
            rescans: Vec::new(),
        }
    }

    /// Ends a repair that only replays the journal: recovery has updated the superblock, and only
    /// its findings are known.
    pub(super) fn recovered(self, opened: Opened) -> Outcome {
        let mut found = self.journal.found;
        // Such as a primary superblock that cannot be used: nothing mends that here.
        found.0.extend(opened.found.0);
        let found = in_order(found);
        let left = found
            .iter()
            .filter(|problem| problem.row().weight > Weight::Remark)
            .map(|problem| {
                (problem.clone(), Reason::Impossible("only journal replay was requested"))
            })
            .collect();
        // Nobody is asked here which transactions may be given up.
        let is_damaged = found.iter().any(is_of_damaged_log);
        let state = if is_damaged { JournalState::Ignored } else { self.journal.state };
        let (lost, journal) = (self.journal.lost_primary, state);
        let report = Report {
            found,
            superblock: opened.superblock,
            geometry: opened.geometry,
            used_backup: opened.used_backup,
            totals: Totals::default(),
            clusters_used: 0,
            journal,
            paths: BTreeMap::new(),
            phases: Vec::new(),
            pipeline: None,
            rescanned_groups: None,
            plan: None,
        };
        let mut before = report.clone();
        before.found.extend(lost);
        Outcome {
            before,
            after: report,
            deeds: self.attempts.deeds,
            left,
            halted: None,
            journal,
            skipped: false,
            rounds: self.rounds,
            rescans: Vec::new(),
        }
    }
}

/// Whether a log that cannot be used waits to be replayed: it may hold newer blocks than the file system, and a later replay may
/// write older ones over what is repaired.
pub(super) fn waits_for_log(report: &Report) -> bool {
    let Report { superblock, found, .. } = report;
    let is_of_log = |problem: &&Problem| {
        lacks_changes(problem, superblock)
            && !matches!(problem, Problem::NeedsRecoveryWithoutJournal)
    };
    let asks = superblock.features().incompat.contains(Incompat::RECOVER);
    asks && found.iter().any(|problem| is_of_log(&problem))
}

/// Whether it says what the states of a damaged log are worth.
const fn is_weighing(problem: &Problem) -> bool {
    matches!(problem, Problem::DamagedLogWeighed { .. } | Problem::DamagedLogOtherwise { .. })
}

/// Whether it says that a log in use, or its superblock, is damaged: beside it nothing is written without consent.
pub(super) const fn is_of_damaged_log(problem: &Problem) -> bool {
    matches!(
        problem,
        Problem::JournalTransactionCorrupt { .. }
            | Problem::JournalSuperblockBit { .. }
            | Problem::JournalSuperblockLost { .. }
            | Problem::JournalEndsEarly { .. }
            | Problem::FastCommitCorrupt { .. }
            | Problem::CubeJournalDamaged { .. }
    )
}

/// Replays the logs of a native file system in use, first of all: a later recovery would write older images over what is repaired.
/// Returns what was found in them, too.
pub(super) fn take_over_logs(
    staged: &Overlay<&dyn ReadBlocks>,
    opened: &Opened,
    options: &CheckOptions<'_>,
) -> Result<(Recovered, Vec<Problem>), RepairError> {
    if !is_locked(&opened.superblock) {
        return Ok((Recovered::default(), Vec::new()));
    }
    let (choices, weighed) = choose_logs(staged, opened, options);
    let taken = take_over(staged, &choices).map_err(RepairError::Locked)?;
    // Damage that only other logs show is not seen once there is a choice.
    let mut found = of_cubes(&taken);
    let told: Vec<Problem> = weighed.into_iter().filter(|one| !found.contains(one)).collect();
    found.extend(told);
    Ok((taken, found))
}

/// The findings about journals of cubes that were dealt with before the first examination.
fn of_cubes(taken: &Recovered) -> Vec<Problem> {
    let damaged = taken.cubes.iter().filter(|cube| cube.failed.is_some());
    let damaged = damaged.map(|cube| Problem::CubeJournalDamaged {
        cube: cube.cube,
        inode: cube.inode,
        reason: "a transaction in its log",
    });
    let strays = taken.strays.iter();
    let strays = strays.map(|&(cube, inode)| Problem::CubeOrphanOutside { cube, inode });
    damaged.chain(strays).collect()
}
