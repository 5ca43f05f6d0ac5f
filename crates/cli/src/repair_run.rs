//! One repair, from the device to its report: what `floe repair` and `floe fsck` share.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use anyhow::Context;
use floe_blockdev::{FileDevice, ReadBlocks};
use floe_check::{CheckOptions, JournalUse};
use floe_format::BlockNr;
use floe_repair::commit::{CommitError, CommitOptions, Committed, Seen, UndoTarget, commit};
use floe_repair::policy::Policy;
use floe_repair::{Repair, RepairError, RepairOptions};

use crate::check_run::now_seconds;
use crate::device::Source;
use crate::exit::Outcome;
use crate::{failure, signals, undo_target};

/// How to repair and how to say it.
pub(crate) struct RepairRun<'a> {
    pub(crate) source: &'a Source,
    pub(crate) threads: usize,
    pub(crate) external_journal: Option<&'a Path>,
    pub(crate) verbose: bool,
    /// Show what would be done, and write nothing.
    pub(crate) dry_run: bool,
    /// Where the old content of what is written is saved.
    pub(crate) undo: Option<&'a Path>,
}

impl RepairRun<'_> {
    /// Repairs as `policy` decides, and writes the report to `out`.
    pub(crate) fn run(
        &self,
        policy: &mut dyn Policy,
        out: &mut impl Write,
    ) -> anyhow::Result<Outcome> {
        let journal = self.external_journal.map(FileDevice::open).transpose()?;
        let options = RepairOptions {
            check: CheckOptions {
                threads: self.threads,
                superblock: self.source.superblock.map(BlockNr),
                block_size: self.source.block_size,
                journal: JournalUse::Replay,
                external_journal: journal.as_ref().map(|device| device as &dyn ReadBlocks),
                now_seconds: now_seconds(),
            },
            random: random()?,
            ..RepairOptions::default()
        };
        if self.dry_run {
            signals::end_at_once()?;
            let device = self.source.open()?;
            let repair = match floe_repair::repair(&device, &options, policy) {
                Ok(repair) => repair,
                Err(error) => return self.failed(&error, &device),
            };
            self.report(&repair, out)?;
            return Ok(outcome(&repair));
        }
        let interrupt = signals::end_between_writes()?;
        let (device, fs_offset_bytes) = self.source.open_for_writing()?;
        if let Some(path) = self.undo {
            let Ok(_hold) = interrupt.hold() else { return Ok(CANCELLED) };
            undo_target::make_way(path, &*device).with_context(|| self.source.name())?;
        }
        let seen = Seen::of(&device);
        let reader: &dyn ReadBlocks = &*device;
        let repair = match floe_repair::repair(reader, &options, policy) {
            Ok(repair) => repair,
            Err(error) => return self.failed(&error, reader),
        };
        let options = CommitOptions {
            seen: &seen,
            undo: self.undo.map(|path| UndoTarget { path, fs_offset_bytes }),
            // As e2fsck does: what cannot be read is lost already, and writing may mend the sector.
            overwrite_unreadable: true,
            interrupt: Some(&interrupt),
            progress: None,
        };
        let committed = match commit(&repair.staged, &*device, &options) {
            Ok(committed) => committed,
            Err(CommitError::Interrupted) => return Ok(CANCELLED),
            Err(error) => {
                eprintln!("floe: {}: {error}", self.source.name());
                return Ok(Outcome { damaged: true, ..Outcome::FAILED });
            }
        };
        self.report(&repair, out)?;
        self.report_undo(&committed, out)?;
        Ok(outcome(&repair))
    }

    /// What was saved, and what could not be.
    fn report_undo(&self, committed: &Committed, out: &mut impl Write) -> anyhow::Result<()> {
        let (Some(path), true) = (self.undo, committed.undo_bytes > 0) else { return Ok(()) };
        let (path, name) = (path.display(), self.source.name());
        writeln!(out, "To undo this: floe undo {path} {name}")?;
        for offset in &committed.not_saved {
            writeln!(out, "    but for the block at byte {offset}, which could not be read")?;
        }
        Ok(())
    }

    fn failed(&self, error: &RepairError, device: &dyn ReadBlocks) -> anyhow::Result<Outcome> {
        match error {
            RepairError::Check(error) => {
                eprintln!("floe: {}", failure::of_check(error, device, &self.source.name()));
                let damaged = matches!(error, floe_check::CheckError::Fatal { .. });
                Ok(Outcome { damaged, ..Outcome::FAILED })
            }
            RepairError::Stage(error) => Err(anyhow::anyhow!("{}: {error}", self.source.name())),
        }
    }

    fn report(&self, repair: &Repair<'_>, out: &mut impl Write) -> anyhow::Result<()> {
        for deed in &repair.deeds {
            if let Some(problem) = &deed.problem {
                writeln!(out, "{problem}")?;
            }
            if self.verbose {
                writeln!(out, "    {:?} (round {})", deed.edit, deed.round)?;
            }
            for note in &deed.notes {
                writeln!(out, "    {note}")?;
            }
        }
        for (problem, reason) in &repair.left {
            writeln!(out, "LEFT: {problem}: {reason:?}")?;
        }
        writeln!(
            out,
            "{}: {} edits in {} rounds, {} left",
            self.source.name(),
            repair.deeds.len(),
            repair.rounds,
            repair.left.len()
        )?;
        Ok(())
    }
}

/// The user ended it before anything was written.
const CANCELLED: Outcome = Outcome { cancelled: true, ..Outcome::CLEAN };

fn outcome(repair: &Repair<'_>) -> Outcome {
    Outcome {
        repaired: repair.repaired(),
        damaged: !repair.is_clean() || repair.halted.is_some(),
        ..Outcome::CLEAN
    }
}

/// Bytes for identifiers that must be unique.
fn random() -> anyhow::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let mut source = File::open("/dev/urandom").context("/dev/urandom")?;
    source.read_exact(&mut bytes).context("/dev/urandom")?;
    Ok(bytes)
}
