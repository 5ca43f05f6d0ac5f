//! `floe repair`: mends a file system.

use std::io::Write;
use std::path::PathBuf;

use floe_repair::policy::{Preen, Yes};

use crate::device::{InUse, Source};
use crate::exit::Outcome;
use crate::repair_run::RepairRun;

/// Repair a file system: plan, stage and verify, then write.
///
/// Everything is staged in memory and checked again until it is clean, before the first byte is
/// written.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// Repair everything that can be repaired, without a question
    #[arg(long, short)]
    yes: bool,
    /// Repair only what is safe without a person; halt at anything else
    #[arg(long, short, conflicts_with = "yes")]
    preen: bool,
    /// Show what would be done, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Work with this many threads; all processors if not given
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// The journal is on this device or in this file
    #[arg(long, short = 'j', value_name = "PATH")]
    external_journal: Option<PathBuf>,
    /// Save the old content of everything that is written in a new file at FILE, from which `floe
    /// undo` or `e2undo` bring it back; after a repair that was cut off, name the same file again
    #[arg(long, value_name = "FILE")]
    undo: Option<PathBuf>,
    /// Show every change
    #[arg(long, short)]
    verbose: bool,
}

impl Args {
    pub(crate) fn run(self, out: &mut impl Write) -> anyhow::Result<Outcome> {
        self.source.mind_users(InUse::Refuse)?;
        let run = RepairRun {
            source: &self.source,
            threads: self.threads.map_or_else(floe_exec::default_threads, usize::from),
            external_journal: self.external_journal.as_deref(),
            verbose: self.verbose,
            dry_run: self.dry_run,
            undo: self.undo.as_deref(),
        };
        if self.preen { run.run(&mut Preen, out) } else { run.run(&mut Yes, out) }
    }
}
