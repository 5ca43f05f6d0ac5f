//! One repair, from the device to its report: the common part of `floe repair` and `floe fsck`.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, bail};
use floe_blockdev::{Counted, FileDevice, ReadBlocks};
use floe_check::cube::CubeName;
use floe_check::memory::Plan;
use floe_check::report::Cost;
use floe_check::{CheckError, CheckOptions, JournalUse, Observer, Problem};
use floe_exec::Interrupt;
use floe_repair::commit::{CommitError, CommitOptions, Committed, Seen, UndoTarget};
use floe_repair::failure::Failure;
use floe_repair::identifiers;
use floe_repair::plan_file;
use floe_repair::policy::Policy;
use floe_repair::{BadBlocks, Extras, Repair, RepairError, RepairOptions, SharedBlocks, Skip};
use floe_report::html::DiskMap;
use floe_report::repair::{Account, Ending, html, human, json};

use crate::e2fsck::front::{self, Front};
use crate::exit::Outcome;
use crate::input::clock;
use crate::input::device::Source;
use crate::input::random::random_bytes;
use crate::input::scheduling::Sharing;
use crate::message::message;
use crate::run::check;
use crate::run::escalation::Escalation;
use crate::run::foreign;
use crate::run::html_page;
use crate::run::undo_target;
use crate::terminal::failure;
use crate::terminal::progress::Watch;
use crate::terminal::progress_policy::{self, ProgressPolicy};
use crate::terminal::shell::quoted_path;
use crate::terminal::signals;
use crate::terminal::usage;

mod external_journal;
mod of_cube;

/// Options of a repair and its report.
pub(crate) struct RepairRun<'a> {
    pub(crate) source: &'a Source,
    pub(crate) threads: usize,
    pub(crate) sharing: &'a Sharing,
    pub(crate) external_journal: Option<&'a Path>,
    pub(crate) verbose: bool,
    pub(crate) json: bool,
    /// Resolution of blocks that several files claim.
    pub(crate) shared_blocks: SharedBlocks,
    /// Memory limit in bytes.
    pub(crate) memory_bytes: Option<u64>,
    /// Show the changes, and write nothing.
    pub(crate) dry_run: bool,
    /// Save the changes as a plan in a new file, and write nothing to the device.
    pub(crate) plan: Option<&'a Path>,
    /// Undo file for the old content.
    pub(crate) undo: Option<&'a Path>,
    /// Overwrite unreadable blocks.
    pub(crate) overwrite_unreadable: bool,
    /// Optional work besides repairs.
    pub(crate) extras: Extras,
    /// Changes to the bad block list.
    pub(crate) bad_blocks: Option<&'a BadBlocks>,
    /// Additional options of e2fsck's command line.
    pub(crate) front: Option<&'a Front>,
    /// Progress display.
    pub(crate) watch: &'a Watch<'a>,
    /// Path of an additional HTML report.
    pub(crate) html: Option<&'a Path>,
    /// Stages that decide instead of a policy.
    pub(crate) escalation: Option<&'a Escalation>,
    /// The only cube to repair.
    pub(crate) cube: Option<&'a CubeName>,
    /// Ends the run behind recovery, if that is enough.
    pub(crate) skip: Option<&'a Skip<'a>>,
}

/// Why a repair ended without an account.
enum Stopped {
    /// The user cancelled it; nothing was written.
    Cancelled,
    /// Planning failed.
    Planning(RepairError),
    /// Writing failed.
    Writing(CommitError),
}

impl RepairRun<'_> {
    /// Repairs under `policy`, and writes the report to `out`.
    pub(crate) fn run(
        &self,
        policy: &mut dyn Policy,
        out: &mut impl Write,
    ) -> anyhow::Result<Outcome> {
        let started = Instant::now();
        if let Some(name) = self.cube {
            return self.run_cube(name, policy, started, out);
        }
        self.html.map_or(Ok(()), html_page::probe)?;
        if self.dry_run || self.plan.is_some() {
            let work = "nothing was written, and no plan was saved";
            signals::end_at_once_with(front::cancel_code(self.front), work)?;
            self.plan.map_or(Ok(()), plan_file::probe)?;
            let device = Counted::new(self.source.open()?);
            let journal = self.external_journal.map(FileDevice::open).transpose()?;
            let journal = journal.as_ref().map(|device| device as &dyn ReadBlocks);
            let staged = self.stage(&device, journal, policy)?;
            let staged = match staged {
                Ok(repair) => repair,
                Err(error) => return self.stopped(&Stopped::Planning(error), &device, out),
            };
            let ending = match self.plan {
                Some(path) => {
                    if staged.staged_journal.as_ref().is_some_and(|journal| !journal.is_empty()) {
                        bail!("a plan cannot hold the changes of a journal on another device");
                    }
                    plan_file::save(&staged, &device, path)?;
                    Ending::Planned { file: path.display().to_string() }
                }
                None => Ending::DryRun,
            };
            let mut account = Account::new(&staged, &device, self.source.name(), ending);
            account.commands.extend(self.plan.map(|path| self.source.apply_command(path)));
            let disk = self.disk_map(&account, &device)?;
            return self.tell(account, disk.as_ref(), &device, started, out);
        }
        let interrupt = signals::end_between_writes_with(front::cancel_code(self.front))?;
        let root = self.front.is_some_and(|front| front.root);
        let (device, fs_offset_bytes) = self.source.open_for_writing(root)?;
        self.source.mind_other_machines(&*device)?;
        if let Some(path) = self.undo {
            let Ok(_hold) = interrupt.hold() else { return Ok(self.cancelled()) };
            undo_target::make_way(path, &*device).with_context(|| self.source.name())?;
        }
        let journal = self.open_journal()?;
        let seen = Seen::of(&device);
        let counted = Counted::new(&*device as &dyn ReadBlocks);
        let repair =
            match self.stage(&counted, journal.as_ref().map(|(device, _)| device as _), policy)? {
                Ok(repair) => repair,
                Err(error) => return self.stopped(&Stopped::Planning(error), &counted, out),
            };
        // Before any write, because paths are looked up on the unmodified device.
        let name = self.source.name();
        let mut account = Account::new(&repair, &counted, name, Ending::DryRun);
        let disk = self.disk_map(&account, &counted)?;
        let write = |options: &CommitOptions<'_>| repair.commit(&*device, options);
        match self.commit(&write, fs_offset_bytes, &seen, &interrupt) {
            Ok(committed) => {
                account.commands.extend(self.undo_command(&committed));
                account.ending = self.written(committed);
            }
            Err(stopped) => return self.stopped(&stopped, &counted, out),
        }
        if let Some((device, seen)) = &journal {
            match self.commit_journal(&repair, device, seen) {
                Ok(saved) => account.commands.extend(saved),
                Err(error) => return self.stopped(&Stopped::Writing(error), &counted, out),
            }
        }
        self.tell(account, disk.as_ref(), &counted, started, out)
    }

    /// The options of a repair of `device`.
    fn options<'d>(
        &'d self,
        device: &dyn ReadBlocks,
        journal: Option<&'d dyn ReadBlocks>,
    ) -> anyhow::Result<RepairOptions<'d>> {
        let scratch = self.front.and_then(|front| front.conf.scratch_dir.as_deref());
        Ok(RepairOptions {
            check: CheckOptions {
                threads: self.threads,
                tuning: self.sharing.tuning(),
                cores: self.sharing.cores(),
                superblock: self.source.which(),
                journal: JournalUse::Replay,
                external_journal: journal,
                check_encoding: self.front.is_some_and(|front| front.check_encoding),
                now_seconds: clock::now().now_seconds,
                observer: Observer {
                    progress: self.watch.progress(),
                    on_plan: self
                        .memory_bytes
                        .filter(|_| front::tells_plan(self.front))
                        .map(|_| &tell_plan as _),
                    reads: None,
                },
                ..CheckOptions::default()
            },
            memory_bytes: self.memory_bytes,
            clock_believed: clock::now().believed,
            random: match clock::source_date_epoch() {
                Some(epoch) => identifiers::derived(device, epoch),
                None => random_bytes()?,
            },
            extras: self.extras,
            bad_blocks: self.bad_blocks,
            scratch: scratch.filter(|folder| folder.is_dir()),
            shared_blocks: self.shared_blocks,
            overwrite_unreadable: self.overwrite_unreadable,
            ..RepairOptions::default()
        })
    }

    /// Plans and stages the repair.
    fn stage<'d, D: ReadBlocks>(
        &'d self,
        device: &'d Counted<D>,
        journal: Option<&'d dyn ReadBlocks>,
        policy: &mut dyn Policy,
    ) -> anyhow::Result<Result<Repair<'d>, RepairError>> {
        let options = self.options(device, journal)?;
        if let Some(progress) = self.watch.progress() {
            progress.expect_rounds_if_found(progress_policy::USUAL_LOOKS);
        }
        let stage = |policy: &mut dyn Policy| {
            let mut policy = ProgressPolicy { inner: policy, watch: self.watch };
            floe_repair::repair_unless(device, &options, self.skip, &mut policy)
        };
        let staged = self.watch.during(&|| device.counts().bytes, || match self.escalation {
            Some(escalation) => escalation.escalate(device, stage),
            None => stage(policy),
        });
        if let Ok(repair) = &staged {
            failure::tell_of_files_left(repair, &self.source.name());
        }
        Ok(staged)
    }

    fn commit(
        &self,
        write: &dyn Fn(&CommitOptions<'_>) -> Result<Committed, CommitError>,
        fs_offset_bytes: u64,
        seen: &Seen,
        interrupt: &Interrupt,
    ) -> Result<Committed, Stopped> {
        let progress = self.watch.progress();
        let options = CommitOptions {
            seen,
            undo: self.undo.map(|path| UndoTarget { path, fs_offset_bytes }),
            overwrite_unreadable: self.overwrite_unreadable,
            interrupt: Some(interrupt),
            progress: progress.and_then(|progress| progress.named("write")),
        };
        if let Some(progress) = progress {
            progress.begin("write");
        }
        let done = self.watch.during(&|| 0, || write(&options));
        done.map_err(|error| match error {
            CommitError::Interrupted => Stopped::Cancelled,
            error => Stopped::Writing(error),
        })
    }

    fn undo_command(&self, committed: &Committed) -> Option<String> {
        let undo = self.undo.filter(|_| committed.undo_bytes > 0);
        undo.map(|path| self.source.undo_command(path))
    }

    fn written(&self, committed: Committed) -> Ending {
        let undo = self.undo.filter(|_| committed.undo_bytes > 0);
        let undo = undo.map(|path| (path.display().to_string(), committed.undo_bytes));
        Ending::Written { undo, not_saved: committed.not_saved, bytes: committed.bytes }
    }

    /// The map of the disk before the repair, if an HTML report is requested.
    fn disk_map(
        &self,
        account: &Account<'_>,
        device: &dyn ReadBlocks,
    ) -> anyhow::Result<Option<DiskMap>> {
        self.html.map(|_| html_page::disk_map(account.before(), device)).transpose()
    }

    /// Writes the account.
    fn tell<D: ReadBlocks>(
        &self,
        mut account: Account<'_>,
        disk: Option<&DiskMap>,
        device: &Counted<D>,
        started: Instant,
        out: &mut impl Write,
    ) -> anyhow::Result<Outcome> {
        let counts = device.counts();
        account.cost = Cost {
            elapsed: started.elapsed(),
            threads: account.repair.before.plan.map_or(self.threads, |plan| plan.way.threads),
            reads: counts.reads,
            bytes_read: counts.bytes,
            peak_memory_bytes: usage::peak_memory_bytes(),
        };
        let outcome = self.outcome(account.repair);
        let foreign = foreign::other_signature(device);
        if let (Some(path), Some(disk)) = (self.html, disk) {
            html_page::write(path, &html::page(&account, clock::now().now_seconds, disk))?;
        }
        if self.json {
            let mut value = json::account(&account, outcome.code());
            if let Some(memory) = value["cost"]["memory"].as_object_mut() {
                // The limit of the whole repair, not of one examination.
                memory.insert("budget_bytes".to_owned(), self.memory_bytes.into());
            }
            if let Some(escalation) = self.escalation {
                value["policy"] = escalation.json(!outcome.damaged, &account.ending);
            }
            value["other_signature"] = foreign.into();
            writeln!(out, "{value:#}")?;
        } else if let Some(front) = self.front.filter(|front| front.brief) {
            front.account(out, &account)?;
        } else {
            if let (Some(name), None) = (foreign, self.front) {
                writeln!(out, "{}", foreign::note(name, &quoted_path(&self.source.device)))?;
            }
            if let Some(escalation) = self.escalation {
                escalation.tell(out)?;
            }
            human::write(out, &account, human::Style { verbose: self.verbose })?;
        }
        if let Some(front) = self.front {
            front.log_problems(|| json::account(&account, outcome.code()));
            // After a halt the state is unknown.
            let was_checked = !self.extras.journal_only && !account.repair.skipped;
            if account.repair.halted.is_none() && was_checked {
                front.end(out, &account.repair.after, &account.cost)?;
            }
            if outcome.restart {
                front.restart(out)?;
            }
        }
        Ok(outcome)
    }

    /// The user cancelled before anything was written.
    fn cancelled(&self) -> Outcome {
        Outcome { cancelled: front::cancel_code(self.front) != 0, ..Outcome::CLEAN }
    }

    fn outcome(&self, repair: &Repair<'_>) -> Outcome {
        if let Some(front) = self.front {
            return front.outcome(repair, self.extras.journal_only);
        }
        Outcome {
            repaired: repair.repaired(),
            damaged: !repair.is_clean() || !repair.left.is_empty() || repair.halted.is_some(),
            ..Outcome::CLEAN
        }
    }

    /// The command that undoes what was written before an error.
    fn way_back(&self, error: &CommitError) -> String {
        let undo = self.undo.filter(|_| !error.nothing_written());
        let command = undo.map(|path| self.source.undo_command(path));
        command
            .map(|command| format!(".\n  To undo what was written: {command}"))
            .unwrap_or_default()
    }

    /// Explains why there is no account.
    fn stopped(
        &self,
        stopped: &Stopped,
        device: &dyn ReadBlocks,
        out: &mut impl Write,
    ) -> anyhow::Result<Outcome> {
        let name = self.source.name();
        let memory_option = front::memory_option(self.front);
        let (text, problems, outcome) = match stopped {
            Stopped::Cancelled | Stopped::Planning(RepairError::Quit) => {
                (format!("{name}: cancelled; nothing was written"), Vec::new(), self.cancelled())
            }
            Stopped::Planning(RepairError::OverBudget { phase, need_bytes, budget_bytes }) => {
                let text = failure::of_repair_over_budget(
                    &name,
                    phase,
                    *need_bytes,
                    *budget_bytes,
                    memory_option,
                );
                (text, Vec::new(), Outcome::FAILED)
            }
            Stopped::Planning(RepairError::Check(error)) => {
                let problems = problems_of(error);
                let damaged = matches!(error, CheckError::Fatal { .. });
                let outcome = Outcome { damaged, ..Outcome::FAILED };
                (failure::of_check(error, device, &name, memory_option), problems, outcome)
            }
            Stopped::Planning(RepairError::Stage(Failure::Io(error)))
                if error.kind() == std::io::ErrorKind::UnexpectedEof =>
            {
                let text = format!(
                    "{name}: the repair needs blocks past the end of the device, which is \
                     shorter than the file system; nothing was written.\n  Restore the full device \
                     or image first."
                );
                (text, Vec::new(), Outcome { damaged: true, ..Outcome::FAILED })
            }
            Stopped::Planning(error @ RepairError::NoRoom { .. }) => {
                let text = format!(
                    "{name}: {error}.\n  Copy readable files first (`mount -o ro`, `debugfs -c`). A \
                     repair is possible once that many contiguous blocks are free."
                );
                (text, Vec::new(), Outcome { damaged: true, ..Outcome::FAILED })
            }
            Stopped::Planning(RepairError::Stage(error @ Failure::Unreadable(_))) => {
                let text = format!("{name}: {error}; nothing was written");
                (text, Vec::new(), Outcome { damaged: true, ..Outcome::CLEAN })
            }
            Stopped::Planning(error @ RepairError::HiddenFromJournal { .. }) => {
                let text = format!(
                    "{name}: {error}.\n  Copy the device to a sound one (ddrescue) and repair the \
                     copy. As a last resort, floe repair --overwrite-unreadable gives up the \
                     content of unreadable blocks."
                );
                (text, Vec::new(), Outcome { damaged: true, ..Outcome::CLEAN })
            }
            Stopped::Planning(error @ RepairError::Locked(_)) => {
                (format!("{name}: {error}"), Vec::new(), Outcome::FAILED)
            }
            Stopped::Planning(RepairError::Stage(error)) => {
                let text = format!("{name}: cannot stage the repair: {error}; nothing was written");
                (text, Vec::new(), Outcome::FAILED)
            }
            Stopped::Writing(error) => {
                let outcome = Outcome { damaged: true, ..Outcome::FAILED };
                (format!("{name}: {error}{}", self.way_back(error)), Vec::new(), outcome)
            }
        };
        if self.json {
            writeln!(out, "{:#}", json::failure(&name, &text, &problems, outcome.code()))?;
        }
        message!("floe: {text}");
        Ok(outcome)
    }
}

/// The findings that ended an examination.
fn problems_of(error: &CheckError) -> Vec<Problem> {
    match error {
        CheckError::Fatal { problem } => vec![problem.clone()],
        CheckError::NoSuperblock { problems, .. } => problems.clone(),
        CheckError::UnknownFeatures { .. }
        | CheckError::Stopped
        | CheckError::Checkpoint(_)
        | CheckError::Parts(_)
        | CheckError::OverBudget { .. }
        | CheckError::Read { .. } => Vec::new(),
    }
}

/// Prints the estimate for an examination, before the first one begins. The rest of the memory
/// limit is for staged blocks.
fn tell_plan(plan: &Plan) {
    message!("floe: each examination will take {}", check::describe(plan));
}
