//! One check, from the device to its report: the common part of `floe check` and `floe fsck`.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, bail};
use floe_blockdev::{Counted, FileDevice, ReadBlocks, ReadCounts};
use floe_check::checkpoint::{Keeper, PartRefusal, Parts};
use floe_check::cube::{CubeError, CubeName, check_cube};
use floe_check::evidence::choice::LinkChoice;
use floe_check::memory::{Plan, Way};
use floe_check::problem::{Row, Severity, Weight};
use floe_check::reader::{Reader, paths};
use floe_check::report::{Cost, Report, Verdict, inodes_of};
use floe_check::{
    Accounting, CheckError, CheckOptions, Checkpoints, JournalUse, MemoryLimit, Observer, Problem,
    Tuning,
};
use floe_format::features::RoCompat;
use floe_report::human::size;
use floe_report::{html, human, json};
use serde_json::Value;

use crate::e2fsck::front::{self, Front};
use crate::exit::Outcome;
use crate::input::clock::now_seconds;
use crate::input::device::Source;
use crate::input::scheduling::Sharing;
use crate::message::message;
use crate::monitor::Monitor;
use crate::online::Snapshot;
use crate::run::checkpoint::CheckpointFile;
use crate::run::foreign;
use crate::run::html_page;
use crate::run::shards::{PartFiles, Shard};
use crate::terminal::failure;
use crate::terminal::progress::Watch;
use crate::terminal::shell::quoted_path;
use crate::terminal::signals;
use crate::terminal::usage;

/// Maximum directory blocks read to find the paths of reported inodes.
const PATH_BLOCKS: u64 = 1 << 20;

/// Message for an interrupted check.
const INTERRUPTED: &str = "the check is not complete and has no result; nothing was \
                           written. With --checkpoint FILE, the same command resumes it";

/// Message for an interrupted shard.
const SHARD_INTERRUPTED: &str =
    "the shard is not complete and has no part; to run it again, give the same command";

/// Options of a check and its report.
pub(crate) struct Run<'a> {
    pub(crate) source: &'a Source,
    pub(crate) threads: usize,
    pub(crate) sharing: &'a Sharing,
    pub(crate) journal: JournalUse,
    pub(crate) accounting: Accounting,
    pub(crate) links: LinkChoice,
    /// Memory limit in bytes.
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) external_journal: Option<&'a Path>,
    pub(crate) json: bool,
    pub(crate) verbose: bool,
    /// Findings below this severity do not cause exit code 4; `None`: those that need repair do.
    pub(crate) fail_on: Option<Severity>,
    /// Codes of findings that do not affect the exit code, except in file systems with one of these features.
    pub(crate) tolerated: &'static [(u32, RoCompat)],
    /// Another program may write to the device during the check.
    pub(crate) in_use: bool,
    /// Additional options of e2fsck's command line.
    pub(crate) front: Option<&'a Front>,
    /// Check this snapshot instead of the device.
    pub(crate) snapshot: Option<&'a Snapshot>,
    /// Receiver of the metrics.
    pub(crate) monitor: Option<&'a Monitor<'a>>,
    /// Progress display.
    pub(crate) watch: &'a Watch<'a>,
    /// Path of an additional HTML report.
    pub(crate) html: Option<&'a Path>,
    /// Checkpoint file, from which an interrupted check can resume.
    pub(crate) checkpoint: Option<&'a CheckpointFile>,
    /// Parts of shards to merge.
    pub(crate) parts: Option<&'a PartFiles<'a>>,
    /// The only cube to check.
    pub(crate) cube: Option<&'a CubeName>,
}

impl Run<'_> {
    fn options<'r>(&'r self, journal: Option<&'r FileDevice>) -> CheckOptions<'r> {
        CheckOptions {
            threads: self.threads,
            superblock: self.source.which(),
            journal: self.journal,
            external_journal: journal.map(|device| device as &dyn ReadBlocks),
            check_encoding: self.front.is_some_and(|front| front.check_encoding),
            now_seconds: now_seconds(),
            memory: MemoryLimit {
                limit_bytes: self.memory_bytes,
                held_bytes: self.source.caching.memory_bytes(),
            },
            cores: self.sharing.cores(),
            tuning: Tuning {
                accounting: self.accounting,
                links: self.links,
                ..self.sharing.tuning()
            },
            checkpoints: Checkpoints {
                keeper: None,
                parts: self.parts.map(|parts| parts as &dyn Parts),
            },
            ..CheckOptions::default()
        }
    }

    fn observer<'r>(&'r self, reads: Option<&'r (dyn Fn() -> ReadCounts + Sync)>) -> Observer<'r> {
        let is_told = self.memory_bytes.is_some() && front::tells_plan(self.front);
        let on_plan = is_told.then_some(&tell_plan as _);
        Observer { progress: self.watch.progress(), on_plan, reads }
    }

    /// Checks and writes the report to `out`.
    pub(crate) fn run(&self, out: &mut impl Write) -> anyhow::Result<Outcome> {
        let started = Instant::now();
        self.html.map_or(Ok(()), html_page::probe)?;
        let opened;
        let device: &dyn ReadBlocks = match self.snapshot {
            Some(snapshot) => &snapshot.device,
            None => {
                match self.checkpoint {
                    Some(file) => {
                        signals::end_between_legs(file.path(), file.shared_interrupt())?;
                    }
                    None => signals::end_at_once_with(front::cancel_code(self.front), INTERRUPTED)?,
                }
                opened = self.source.open()?;
                &opened
            }
        };
        let device = Counted::new(device);
        let journal = self.external_journal.map(FileDevice::open).transpose()?;
        let reads = || device.counts();
        let mut options = self.options(journal.as_ref());
        options.observer = self.observer(Some(&reads));
        options.checkpoints.keeper = self.checkpoint.map(|file| file as &dyn Keeper);
        let checked = self.watch.during(&|| reads().bytes, || match self.cube {
            None => Ok(floe_check::check(&device, &options)?),
            Some(name) => check_cube(&device, &options, name).map(|(report, _)| report),
        });
        let mut report = match checked {
            Ok(report) => report,
            Err(CubeError::Check(error)) => return self.failed(out, &error, &device),
            Err(error) => bail!("{}: {error}", self.source.name()),
        };
        if self.in_use {
            report.found.push(Problem::MountedDuringCheck);
            report.found.sort_unstable();
        }
        self.find_paths(&mut report, &device);
        if let Some(snapshot) = self.snapshot {
            snapshot.verify()?;
        }
        let cost = self.cost(started, reads(), &report);
        if let Some(monitor) = self.monitor {
            monitor.saw(&report, &cost, self.snapshot.map(|snapshot| &snapshot.about));
        }
        let outcome = self.outcome(&report);
        self.write_page(&report, &cost, &device)?;
        self.tell(out, &report, &cost, outcome, foreign::other_signature(&device))?;
        if let Some(file) = self.checkpoint {
            // Remove the checkpoint only after the report is delivered.
            out.flush()?;
            file.remove().with_context(|| format!("cannot remove {}", file.path().display()))?;
        }
        if let Some(front) = self.front {
            front
                .log_problems(|| json::report(&report, &cost, &self.source.name(), outcome.code()));
            front.end(out, &report, &cost)?;
        }
        Ok(outcome)
    }

    /// Runs one shard, of a check or of a refinement, and writes its part; a line about it goes to `out`. The merge
    /// reports findings, so the exit code says only whether there is a part.
    pub(crate) fn run_shard(
        &self,
        shard: &Shard<'_>,
        out: &mut impl Write,
    ) -> anyhow::Result<Outcome> {
        signals::end_at_once_with(front::cancel_code(None), SHARD_INTERRUPTED)?;
        // The key is created last, so that nothing is left if there is nothing to check.
        let opened = self.source.open()?;
        let device = Counted::new(&opened);
        let journal = self.external_journal.map(FileDevice::open).transpose()?;
        shard.probe()?;
        let mut options = self.options(journal.as_ref());
        options.observer = self.observer(None);
        let (refines, mut created) = match shard.common()? {
            Some((common, created)) => {
                (options.tuning.key, options.now_seconds) = (Some(common.key), common.now_seconds);
                (false, created)
            }
            None => (true, None),
        };
        let bytes = || device.counts().bytes;
        let part = self.watch.during(&bytes, || match refines {
            false => floe_check::check_shard(&device, &options, shard.share),
            true => floe_check::refine_shard(&device, &options, shard.share),
        });
        let mut remove_key = |error: Option<&CheckError>| {
            if let Some(created) = created.take() {
                created.remove_after_failure(error);
            }
        };
        match part {
            Ok(part) => {
                let line = shard.write(&part).inspect_err(|_| remove_key(None))?;
                writeln!(out, "{line}")?;
                Ok(Outcome::CLEAN)
            }
            Err(error) => {
                remove_key(Some(&error));
                self.failed(out, &error, &device)
            }
        }
    }

    /// Writes the report; `foreign` names another format that the device seems to hold.
    fn tell(
        &self,
        out: &mut impl Write,
        report: &Report,
        cost: &Cost,
        outcome: Outcome,
        foreign: Option<&str>,
    ) -> anyhow::Result<()> {
        if self.json {
            let mut value = json::report(report, cost, &self.source.name(), outcome.code());
            value["snapshot"] = self.snapshot.map_or(Value::Null, |snapshot| snapshot.about.json());
            value["other_signature"] = foreign.into();
            writeln!(out, "{value:#}")?;
            return Ok(());
        }
        if let (Some(name), None) = (foreign, self.front) {
            writeln!(out, "{}", foreign::note(name, &quoted_path(&self.source.device)))?;
        }
        if let Some(snapshot) = self.snapshot {
            writeln!(out, "{}", snapshot.about)?;
        }
        human::write(out, report, cost, human::Style { verbose: self.verbose })?;
        if report.verdict() == Verdict::Damaged && outcome == Outcome::CLEAN {
            // Explain the apparent contradiction between verdict and exit code.
            let why = match self.fail_on {
                Some(_) => "because no finding reaches --fail-on",
                None => "as for e2fsck -n",
            };
            writeln!(out, "The exit code is nevertheless 0, {why}.")?;
        }
        Ok(())
    }

    /// The exit bits for a report.
    fn outcome(&self, report: &Report) -> Outcome {
        let incomplete = report.verdict() == Verdict::Incomplete;
        let counts = |row: &Row| match self.fail_on {
            None => row.weight > Weight::Remark,
            Some(least) => row.severity >= least,
        };
        let features = report.geometry.features.ro_compat;
        let tolerated = |code: u32| {
            let mut tolerated = self.tolerated.iter();
            tolerated.any(|&(one, unless)| one == code && !features.intersects(unless))
                || self.front.is_some_and(|front| front.tolerates(code))
        };
        let mut rows = report.found.iter().map(Problem::row);
        let damaged = incomplete || rows.any(|row| counts(row) && !tolerated(row.code));
        Outcome { damaged, failed: incomplete, ..Outcome::CLEAN }
    }

    fn cost(&self, started: Instant, counts: ReadCounts, report: &Report) -> Cost {
        Cost {
            elapsed: started.elapsed(),
            threads: report.plan.map_or(self.threads, |plan| plan.way.threads),
            reads: counts.reads,
            bytes_read: counts.bytes,
            peak_memory_bytes: usage::peak_memory_bytes(),
        }
    }

    /// Writes the HTML report, if requested.
    fn write_page(
        &self,
        report: &Report,
        cost: &Cost,
        device: &dyn ReadBlocks,
    ) -> anyhow::Result<()> {
        let Some(path) = self.html else { return Ok(()) };
        let name = self.source.name();
        let (options, word) = (self.source.place_options(), quoted_path(&self.source.device));
        let (options, word) = (options.as_str(), word.as_str());
        let occasion = html::Occasion { device: &name, options, word, now_seconds: now_seconds() };
        let disk = html_page::disk_map(report, device)?;
        html_page::write(path, &html::page(report, cost, &occasion, &disk))
    }

    /// Adds the paths of the reported inodes, unless the check already did.
    fn find_paths(&self, report: &mut Report, device: &dyn ReadBlocks) {
        let wanted = inodes_of(&report.found);
        if wanted.is_empty() || !report.paths.is_empty() || self.cube.is_some() {
            return;
        }
        let block_size = report.geometry.block_size;
        // Without a usable superblock there are no paths, but still a report.
        if let Ok(reader) = Reader::open(device, report.used_backup, Some(block_size)) {
            report.paths = paths(&reader, &wanted, PATH_BLOCKS);
        }
    }

    fn failed(
        &self,
        out: &mut impl Write,
        error: &CheckError,
        device: &dyn ReadBlocks,
    ) -> anyhow::Result<Outcome> {
        let name = self.source.name();
        let mut text = failure::of_check(error, device, &name, front::memory_option(self.front));
        if let Some(file) = self.checkpoint {
            text += &failure::of_checkpoint(error, file.path());
        }
        let (outcome, problems) = match error {
            // Like e2fsck, count a file system that stops the check as damaged.
            CheckError::Fatal { problem } => {
                (Outcome { damaged: true, ..Outcome::FAILED }, vec![problem.clone()])
            }
            CheckError::NoSuperblock { problems, .. } => (Outcome::FAILED, problems.clone()),
            CheckError::Stopped => (Outcome { cancelled: true, ..Outcome::CLEAN }, Vec::new()),
            CheckError::Parts(refusal) => (outcome_of_parts(refusal), Vec::new()),
            CheckError::UnknownFeatures { .. }
            | CheckError::Checkpoint(_)
            | CheckError::OverBudget { .. }
            | CheckError::Read { .. } => (Outcome::FAILED, Vec::new()),
        };
        if self.json {
            let value = json::failure(&name, &text, &problems, outcome.code());
            writeln!(out, "{value:#}")?;
        }
        message!("floe: {text}");
        Ok(outcome)
    }
}

/// The exit bits for parts that cannot be merged: those of a wrong command line, unless it is the device or a file
/// that is to blame.
const fn outcome_of_parts(refusal: &PartRefusal) -> Outcome {
    match refusal {
        PartRefusal::File { .. } | PartRefusal::Changed { .. } => Outcome::FAILED,
        PartRefusal::NotOurs { .. }
        | PartRefusal::Damaged { .. }
        | PartRefusal::Foreign { .. }
        | PartRefusal::Repeated { .. }
        | PartRefusal::Missing { .. }
        | PartRefusal::NothingLeft => Outcome::USAGE,
    }
}

/// Prints the resource estimate of a check before it begins.
fn tell_plan(plan: &Plan) {
    message!("floe: a check will take {}", describe(plan));
}

/// Resource estimate and method of an examination.
pub(crate) fn describe(plan: &Plan) -> String {
    let Way { threads, sums, links } = plan.way;
    let budget = plan.budget_bytes.map(|bytes| format!(" of {}", size(bytes))).unwrap_or_default();
    let s = if threads == 1 { "" } else { "s" };
    let proof = if sums { "proved by fingerprints" } else { "all evidence kept" };
    format!(
        "about {}{budget} of memory: {threads} thread{s}, {proof}, links counted in {}",
        size(plan.estimate.total()),
        links.name(),
    )
}
