//! `floe repair`: repairs a file system.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};

use floe_check::cube::CubeName;
use floe_repair::Extras;
use floe_repair::SharedBlocks;
use floe_repair::policy::{Preen, Yes};

use crate::exit::{Ended, Outcome};
use crate::image_files::place;
use crate::input::block_devices;
use crate::input::device::{InUse, Source};
use crate::input::files::{InputPath, OutputPath};
use crate::input::scheduling::SharingArgs;
use crate::input::size::bytes;
use crate::run::apply_plan::ApplyPlan;
use crate::run::escalation::{Escalation, Named};
use crate::run::repair::RepairRun;
use crate::terminal::ask::Ask;
use crate::terminal::progress::{Watch, When};

/// Repair a file system: plan, stage and verify, then write.
///
/// Everything is staged in memory and checked again until it is clean, before the first byte is
/// written. Without --yes, --preen or --dry-run, findings are shown and you are asked for
/// decisions.
///
/// Exit codes are those of e2fsck: 0 clean, 1 repaired, 4 damage left, 8 operational error, 16
/// usage error, 32 cancelled. --dry-run exits as a real run would.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// Make all possible repairs without asking
    #[arg(long, short)]
    yes: bool,
    /// Make only repairs that are safe unattended; halt at anything else
    #[arg(long, short, conflicts_with = "yes")]
    preen: bool,
    /// For automation: try these stages in order, and make the first repair that is complete and
    /// within the allowed loss; else the last that is within it (see docs/automation.md)
    #[arg(
        long,
        value_name = "STAGE,...",
        value_enum,
        value_delimiter = ',',
        conflicts_with_all = ["yes", "preen", "apply_plan"]
    )]
    policy: Vec<Named>,
    /// Make no repair that loses more than this many files, names or parts of the file system
    #[arg(long, value_name = "N", requires = "policy", conflicts_with_all = ["yes", "preen"])]
    max_loss: Option<u64>,
    /// Make no repair that loses more than this many bytes of file data (units K, M, G and T)
    #[arg(
        long,
        value_name = "BYTES",
        requires = "policy",
        conflicts_with_all = ["yes", "preen"],
        value_parser = bytes
    )]
    max_loss_bytes: Option<u64>,
    /// Show the repairs that --yes (or --preen) would make, and write nothing
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// Number of threads; by default all processors
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    #[command(flatten)]
    sharing: SharingArgs,
    /// The external journal: a device or file
    #[arg(long, short = 'j', value_name = "PATH")]
    external_journal: Option<InputPath>,
    /// Save the old content of all overwritten blocks in a new file FILE, from which `floe undo` or
    /// `e2undo` restore it; after an interrupted repair, give the same file again
    #[arg(long, value_name = "FILE")]
    undo: Option<OutputPath>,
    /// Overwrite unreadable blocks if a repair requires it, and give up their content. Otherwise
    /// they and everything that depends on them stay untouched, because a copy of the device may
    /// recover them (see docs/safety.md)
    #[arg(long)]
    overwrite_unreadable: bool,
    /// Resolution of blocks that several files claim: give each its own copy (`clone`, the default
    /// with --yes), delete the one file that has other damage too (`drop-culprit`), or ask for each
    /// group of files (`ask`, the default in a dialogue)
    #[arg(long, value_name = "HOW", value_enum)]
    shared_blocks: Option<Shared>,
    /// Save the repair as a plan in a new file, and write nothing to the device
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dry_run", "undo"])]
    plan: Option<OutputPath>,
    /// Apply a repair that was saved with --plan; fails if the device has changed since
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["yes", "preen", "plan", "json", "html", "external_journal"]
    )]
    apply_plan: Option<InputPath>,
    /// Repair one cube alone (a directory in the image, or `cube:` and its number): changes blocks of the
    /// cube, and the free totals of the superblock (see docs/cubes.md)
    #[arg(
        long,
        value_name = "CUBE",
        conflicts_with_all = ["html", "plan", "apply_plan", "policy", "external_journal", "superblock"]
    )]
    cube: Option<OsString>,
    /// Limit the memory to this size (units K, M, G and T): uses fewer threads, leaner structures,
    /// and a temporary file for staged blocks; fails if that is not enough. The result is the same
    /// (see docs/memory.md)
    #[arg(long, value_name = "BYTES", value_parser = bytes, conflicts_with = "apply_plan")]
    memory: Option<u64>,
    /// Progress display: a bar on a terminal, nothing, or JSON lines
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    progress: When,
    /// Report as JSON (see docs/json-schema.md)
    #[arg(long)]
    json: bool,
    /// Also write the report as an HTML page with a map of the disk to FILE, replacing an earlier
    /// one
    #[arg(long, value_name = "FILE")]
    html: Option<OutputPath>,
    /// Show every change, with codes, rounds and all findings
    #[arg(long, short)]
    verbose: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Shared {
    Clone,
    DropCulprit,
    Ask,
}

impl Args {
    /// Whether the report is all that it makes.
    pub(crate) fn only_looks(&self) -> bool {
        self.dry_run
    }

    /// Refuses a device that is in use, and a plan for an image to which it could not be applied.
    fn mind_source(&self) -> anyhow::Result<()> {
        if self.plan.is_some() {
            self.source.refuse_image()?;
        }
        let only_look = self.dry_run || self.plan.is_some();
        self.source.mind_users(if only_look { InUse::Refuse } else { InUse::RefuseRepair })?;
        Ok(())
    }

    pub(crate) fn run(self, out: &mut impl Write) -> anyhow::Result<Outcome> {
        if let Some(file) = &self.apply_plan {
            let how = if self.dry_run { InUse::Refuse } else { InUse::RefuseRepair };
            self.source.mind_users(how)?;
            let apply = ApplyPlan {
                file,
                source: &self.source,
                threads: self.threads.map_or_else(floe_exec::default_threads, usize::from),
                dry_run: self.dry_run,
                undo: self.undo.as_deref(),
                overwrite_unreadable: self.overwrite_unreadable,
            };
            return apply.run(out);
        }
        let decided = self.yes || self.preen || self.dry_run || !self.policy.is_empty();
        if !decided && !io::stdin().is_terminal() {
            return Err(Ended::usage(
                "there is no terminal for questions. Choose: --yes makes all possible repairs, --preen \
                 only those that are safe unattended, --dry-run shows those of --yes. Nothing was \
                 looked at or changed.",
            ));
        }
        if decided && matches!(self.shared_blocks, Some(Shared::Ask)) {
            return Err(Ended::usage(
                "--shared-blocks ask is for a dialogue; with --yes, --preen or --dry-run, say clone or \
                 drop-culprit. Nothing was looked at or changed.",
            ));
        }
        self.mind_source()?;
        let sharing = self.sharing.enter();
        let watch = Watch::new(self.progress);
        let cube = self.cube.as_deref().map(|name| CubeName::of(place::bytes(name)));
        let (things, bytes) = (self.max_loss, self.max_loss_bytes);
        let escalation =
            (!self.policy.is_empty()).then(|| Escalation::new(&self.policy, things, bytes));
        let journal = block_devices::journal_of(&self.source, self.external_journal.as_deref())?;
        let run = RepairRun {
            source: &self.source,
            threads: self.threads.map_or_else(floe_exec::default_threads, usize::from),
            sharing: &sharing,
            external_journal: journal.as_deref(),
            memory_bytes: self.memory,
            verbose: self.verbose,
            json: self.json,
            dry_run: self.dry_run,
            plan: self.plan.as_deref(),
            shared_blocks: match self.shared_blocks {
                Some(Shared::Clone) => SharedBlocks::Clone,
                Some(Shared::DropCulprit) => SharedBlocks::DropCulprit,
                Some(Shared::Ask) => SharedBlocks::Ask,
                None if decided => SharedBlocks::Clone,
                None => SharedBlocks::Ask,
            },
            undo: self.undo.as_deref(),
            overwrite_unreadable: self.overwrite_unreadable,
            extras: Extras::default(),
            bad_blocks: None,
            front: None,
            watch: &watch,
            html: self.html.as_deref(),
            escalation: escalation.as_ref(),
            cube: cube.as_ref(),
            skip: None,
        };
        if self.preen {
            run.run(&mut Preen, out)
        } else if decided {
            run.run(&mut Yes, out)
        } else {
            // Standard output is for the report.
            run.run(&mut Ask::new(io::stdin().lock(), io::stderr()), out)
        }
    }
}
