//! One repair, from the device to its report: what `floe repair` and `floe fsck` share.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use anyhow::Context;
use floe_blockdev::{FileDevice, ReadBlocks, WriteBlocks};
use floe_check::{CheckOptions, JournalUse};
use floe_format::BlockNr;
use floe_repair::policy::Policy;
use floe_repair::{Repair, RepairError, RepairOptions};

use crate::check_run::now_seconds;
use crate::device::Source;
use crate::exit::Outcome;
use crate::failure;

/// How to repair and how to say it.
pub(crate) struct RepairRun<'a> {
    pub(crate) source: &'a Source,
    pub(crate) threads: usize,
    pub(crate) external_journal: Option<&'a Path>,
    pub(crate) verbose: bool,
    /// Show what would be done, and write nothing.
    pub(crate) dry_run: bool,
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
            let device = self.source.open()?;
            let repair = match floe_repair::repair(&device, &options, policy) {
                Ok(repair) => repair,
                Err(error) => return self.failed(&error, &device),
            };
            self.report(&repair, out)?;
            return Ok(outcome(&repair));
        }
        let device = self.source.open_for_writing()?;
        let reader: &dyn ReadBlocks = &*device;
        let repair = match floe_repair::repair(reader, &options, policy) {
            Ok(repair) => repair,
            Err(error) => return self.failed(&error, reader),
        };
        write(&repair, &*device)?;
        self.report(&repair, out)?;
        Ok(outcome(&repair))
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

fn write(repair: &Repair<'_>, device: &dyn WriteBlocks) -> anyhow::Result<()> {
    let mut page = Vec::new();
    for offset in repair.staged.staged_offsets() {
        let len = repair.staged.page_bytes().min(device.size_bytes() - offset);
        page.resize(len as usize, 0);
        repair.staged.read_at(offset, &mut page)?;
        device.write_at(offset, &page)?;
    }
    device.flush()?;
    Ok(())
}

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
