//! `floe repair`: mends a file system.

use std::io::{self, IsTerminal, Write};

use floe_repair::Extras;
use floe_repair::SharedBlocks;
use floe_repair::policy::{Preen, Yes};

use crate::apply_plan::ApplyPlan;
use crate::ask::Ask;
use crate::device::{InUse, Source};
use crate::exit::{Ended, Outcome};
use crate::files::{InputPath, OutputPath};
use crate::ladder::{Ladder, Named};
use crate::progress::{Watch, When};
use crate::repair_run::RepairRun;
use crate::sharing::SharingArgs;
use crate::size::bytes;

/// Repair a file system: plan, stage and verify, then write.
///
/// Everything is staged in memory and checked again until it is clean, before the first byte is
/// written. Without --yes, --preen or --dry-run, findings are shown and you are asked what to do.
///
/// Exit codes are those of e2fsck: 0 clean, 1 repaired, 4 damage left, 8 the work could not be
/// done, 16 wrong command line, 32 ended by you. --dry-run exits as a real run would.
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
    /// For programs: try these stages in order, and make the first that mends everything and costs no
    /// more than is allowed; else the last that may be made (see docs/automation.md)
    #[arg(
        long,
        value_name = "STAGE,...",
        value_enum,
        value_delimiter = ',',
        conflicts_with_all = ["yes", "preen", "apply_plan"]
    )]
    policy: Vec<Named>,
    /// Make no repair that loses more than this many files, names or parts of the file system
    #[arg(long, value_name = "N", requires = "policy")]
    max_loss: Option<u64>,
    /// Make no repair by which files lose more than this many bytes (K, M, G and T are units)
    #[arg(long, value_name = "BYTES", requires = "policy", value_parser = bytes)]
    max_loss_bytes: Option<u64>,
    /// Show what would be done, and write nothing; what --yes would do, unless --preen is given
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// Work with this many threads; all processors if not given
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    #[command(flatten)]
    sharing: SharingArgs,
    /// The journal is on this device or in this file
    #[arg(long, short = 'j', value_name = "PATH")]
    external_journal: Option<InputPath>,
    /// Save the old content of everything that is written in a new file at FILE, from which `floe
    /// undo` or `e2undo` bring it back; after a repair that was cut off, name the same file again
    #[arg(long, value_name = "FILE")]
    undo: Option<OutputPath>,
    /// Write over blocks that cannot be read where a repair needs to, and give up what was in them. Without
    /// this they are left as they are, with all that depends on them, because a copy of the device may
    /// bring them back (see docs/safety.md)
    #[arg(long)]
    overwrite_unreadable: bool,
    /// What to do about blocks that several files claim: give each its own copy (`clone`, the default
    /// with --yes), delete the file that is damaged otherwise too, if the others are sound
    /// (`drop-culprit`), or ask for each group of files (`ask`, the default where you are asked)
    #[arg(long, value_name = "HOW", value_enum)]
    shared_blocks: Option<Shared>,
    /// Save what would be done in a new file, and write nothing to the device
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dry_run", "undo"])]
    plan: Option<OutputPath>,
    /// Make the repair that was saved with --plan; refused if the device changed since
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["yes", "preen", "plan", "json", "html", "external_journal"]
    )]
    apply_plan: Option<InputPath>,
    /// Take no more memory than this (K, M, G and T are units): fewer threads, leaner structures, and what
    /// is staged goes to a temporary file; refused where that is not enough. What is written is the same
    /// (see docs/memory.md)
    #[arg(long, value_name = "BYTES", value_parser = bytes, conflicts_with = "apply_plan")]
    memory: Option<u64>,
    /// Show how far the repair is: a bar on a terminal, nothing, or lines of JSON
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    progress: When,
    /// Report as JSON (see docs/json-schema.md)
    #[arg(long)]
    json: bool,
    /// Write the report as a page to FILE, too, with a map of the disk; an earlier page is replaced
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
                "there is no terminal to ask at. Say what to do: --yes repairs everything that can be \
                 repaired, --preen only what is safe without a person, --dry-run shows what --yes would \
                 do. Nothing was looked at or changed.",
            ));
        }
        if decided && matches!(self.shared_blocks, Some(Shared::Ask)) {
            return Err(Ended::usage(
                "--shared-blocks ask is for a dialogue; with --yes, --preen or --dry-run, say clone or \
                 drop-culprit. Nothing was looked at or changed.",
            ));
        }
        let only_look = self.dry_run || self.plan.is_some();
        self.source.mind_users(if only_look { InUse::Refuse } else { InUse::RefuseRepair })?;
        let sharing = self.sharing.enter();
        let watch = Watch::new(self.progress);
        let (things, bytes) = (self.max_loss, self.max_loss_bytes);
        let ladder = (!self.policy.is_empty()).then(|| Ladder::new(&self.policy, things, bytes));
        let run = RepairRun {
            source: &self.source,
            threads: self.threads.map_or_else(floe_exec::default_threads, usize::from),
            sharing: &sharing,
            external_journal: self.external_journal.as_deref(),
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
            ladder: ladder.as_ref(),
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
