//! `floe repair --apply-plan`: applies a saved repair.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use floe_blockdev::ReadBlocks;
use floe_check::{CheckError, CheckOptions, JournalUse};
use floe_repair::RepairOptions;
use floe_repair::commit::{CommitError, CommitOptions, Seen, UndoTarget};
use floe_repair::plan_file::{self, PlanFileError, PlanHeader, Planned};
use floe_report::human::{grouped, plural, size};

use crate::exit::{Ended, Outcome};
use crate::input::clock::now_seconds;
use crate::input::device::Source;
use crate::message::message;
use crate::run::undo_target;
use crate::terminal::{failure, signals};

/// The user ended the run before anything was written.
const CANCELLED: Outcome = Outcome { cancelled: true, ..Outcome::CLEAN };

/// Options for applying a plan.
pub(crate) struct ApplyPlan<'a> {
    pub(crate) file: &'a Path,
    pub(crate) source: &'a Source,
    pub(crate) threads: usize,
    /// Only verify that the plan can be applied.
    pub(crate) dry_run: bool,
    /// Undo file for the old content.
    pub(crate) undo: Option<&'a Path>,
    /// Overwrite unreadable blocks if the plan does.
    pub(crate) overwrite_unreadable: bool,
}

impl ApplyPlan<'_> {
    /// Verifies the plan against the device, examines the result, and writes it.
    pub(crate) fn run(&self, out: &mut impl Write) -> anyhow::Result<Outcome> {
        let name = self.source.name();
        if self.dry_run {
            signals::end_at_once("nothing was written")?;
            let device = self.source.open()?;
            let (header, _) = self.staged(&device).with_context(|| name.clone())?;
            writeln!(out, "{name}: the plan can be applied: {}", summary(&header))?;
            writeln!(out, "Nothing was changed.")?;
            return Ok(outcome(&header));
        }
        let interrupt = signals::end_between_writes()?;
        let (device, fs_offset_bytes) = self.source.open_alone()?;
        if let Some(path) = self.undo {
            let Ok(_hold) = interrupt.hold() else { return Ok(CANCELLED) };
            undo_target::make_way(path, &*device).with_context(|| name.clone())?;
        }
        let seen = Seen::of(&device);
        let reader: &dyn ReadBlocks = &*device;
        let (header, staged) = self.staged(reader).with_context(|| name.clone())?;
        let options = CommitOptions {
            seen: &seen,
            undo: self.undo.map(|path| UndoTarget { path, fs_offset_bytes }),
            overwrite_unreadable: self.overwrite_unreadable,
            interrupt: Some(&interrupt),
            progress: None,
        };
        match staged.commit(&*device, &options) {
            Ok(committed) => {
                writeln!(out, "{name}: {}", summary(&header))?;
                if let (Some(path), true) = (self.undo, committed.undo_bytes > 0) {
                    writeln!(out, "To undo this: {}", self.source.undo_command(path))?;
                }
                writeln!(
                    out,
                    "{}",
                    if header.clean {
                        "REPAIRED as planned: the file system is clean."
                    } else {
                        "DAMAGE LEFT, as planned: floe check shows it."
                    }
                )?;
                Ok(outcome(&header))
            }
            Err(CommitError::Interrupted) => Ok(CANCELLED),
            Err(error) => {
                message!("floe: {name}: {error}");
                Ok(Outcome { damaged: true, ..Outcome::FAILED })
            }
        }
    }

    /// Stages the plan, and verifies by an examination that the result is as planned.
    fn staged<'d>(&self, device: &'d dyn ReadBlocks) -> anyhow::Result<(PlanHeader, Planned<'d>)> {
        let staging_bytes = RepairOptions::default().staging_bytes;
        let staged = plan_file::stage(self.file, device, staging_bytes);
        if let Err(PlanFileError::Changed { .. }) = &staged
            && let Err(error @ CheckError::NoSuperblock { .. }) =
                floe_check::check(device, &CheckOptions::default())
        {
            // Another place of the device, not another content.
            let found = failure::of_check(&error, device, &self.source.name(), "--memory=");
            let hint =
                "Give the --offset or --partition that the plan was made with; nothing was written";
            return Err(Ended::failed(format!("{found}\n  {hint}")));
        }
        let (header, staged) = staged?;
        let options = CheckOptions {
            threads: self.threads,
            journal: JournalUse::Replay,
            check_encoding: false,
            now_seconds: now_seconds(),
            ..CheckOptions::default()
        };
        let report = floe_check::check(&staged.staged, &options)?;
        // Blocks outside the plan may have changed.
        if header.clean && !report.is_clean() {
            bail!(
                "the device has changed since the plan was made: with the plan applied, {} findings \
                 are left instead of none. Nothing was written; make a new plan",
                report.damage_count()
            );
        }
        Ok((header, staged))
    }
}

fn outcome(header: &PlanHeader) -> Outcome {
    Outcome { repaired: header.repaired, damaged: !header.clean, ..Outcome::CLEAN }
}

fn summary(header: &PlanHeader) -> String {
    let (changes, left) = (header.changes, u64::from(header.left));
    format!(
        "{} change{} in {}, {} finding{} left",
        grouped(changes),
        plural(changes),
        size(header.pages.saturating_mul(u64::from(header.page_bytes))),
        grouped(left),
        plural(left),
    )
}
