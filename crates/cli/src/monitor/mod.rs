//! Reports checks to monitoring systems: a file for Prometheus, a record in the systemd journal.
//! `docs/monitoring.md` lists the fields.

use std::cell::RefCell;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use floe_check::problem::Severity;
use floe_check::report::{Cost, Report, Verdict};

use crate::exit::Outcome;
use crate::input::clock::now_seconds;
use crate::input::files::OutputPath;
use crate::message::message;
use crate::online;

mod journald;
mod prometheus;

/// The requested receivers.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MonitorArgs {
    /// Write metrics to FILE for Prometheus (textfile collector), whatever the result of the check;
    /// see docs/monitoring.md
    #[arg(long, value_name = "FILE")]
    metrics: Option<OutputPath>,
    /// Write a record with fields to the systemd journal; see docs/monitoring.md
    #[arg(long)]
    journald: bool,
}

/// The metrics of a check.
#[derive(Clone, Debug, PartialEq)]
struct Checked {
    verdict: Verdict,
    label: String,
    uuid: String,
    severities: [(Severity, usize); 4],
    damage: usize,
    cost: Cost,
    phases: Vec<(&'static str, Duration)>,
    inodes: u64,
    inodes_used: u64,
    block_bytes: u64,
    blocks: u64,
    blocks_used: u64,
    /// Method of the snapshot, and how long writers waited for it.
    snapshot: Option<(&'static str, Option<Duration>)>,
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq)]
struct Sample {
    device: String,
    end_seconds: i64,
    elapsed: Duration,
    exit_code: u8,
    /// `None`: nothing could be examined.
    checked: Option<Checked>,
}

/// Collects the metrics of a check, and reports them at its end.
pub(crate) struct Monitor<'a> {
    args: &'a MonitorArgs,
    started: Instant,
    checked: RefCell<Option<Checked>>,
}

impl<'a> Monitor<'a> {
    /// Starts the metrics of a check.
    pub(crate) fn new(args: &'a MonitorArgs) -> Self {
        Self { args, started: Instant::now(), checked: RefCell::new(None) }
    }

    /// Records a complete examination.
    pub(crate) fn saw(&self, report: &Report, cost: &Cost, snapshot: Option<&online::About>) {
        self.checked.replace(Some(Checked {
            verdict: report.verdict(),
            label: report.superblock.label(),
            uuid: report.superblock.uuid_text(),
            severities: report.counts(),
            damage: report.damage_count(),
            cost: *cost,
            phases: report.phases.iter().map(|phase| (phase.name, phase.time)).collect(),
            inodes: u64::from(report.geometry.inodes_count),
            inodes_used: report.totals.inodes_used,
            block_bytes: u64::from(report.geometry.block_size),
            blocks: report.geometry.blocks_count,
            blocks_used: report.blocks_used(),
            snapshot: snapshot.map(|about| (about.method, about.frozen)),
        }));
    }

    /// Reports the end of a check. Returns its outcome, marked as failed if a receiver could not be
    /// reached.
    pub(crate) fn tell(
        &self,
        device: String,
        result: anyhow::Result<Outcome>,
    ) -> anyhow::Result<Outcome> {
        let outcome = *result.as_ref().unwrap_or(&Outcome::FAILED);
        let sample = Sample {
            device,
            end_seconds: now_seconds(),
            elapsed: self.started.elapsed(),
            exit_code: outcome.code(),
            checked: self.checked.take(),
        };
        match self.send(&sample) {
            Ok(()) => result,
            Err(error) => {
                message!("floe: {error:#}");
                result.map(|outcome| Outcome { failed: true, ..outcome })
            }
        }
    }

    fn send(&self, sample: &Sample) -> anyhow::Result<()> {
        if let Some(file) = &self.args.metrics {
            prometheus::write(file, sample)
                .with_context(|| format!("{}: cannot write the metrics", file.display()))?;
        }
        if self.args.journald {
            journald::send(Path::new(journald::SOCKET), sample)
                .context("cannot leave a record in the journal")?;
        }
        Ok(())
    }
}

impl Sample {
    /// `clean`, `damaged` or `incomplete`.
    fn verdict(&self) -> &'static str {
        self.checked.as_ref().map_or(Verdict::Incomplete, |checked| checked.verdict).name()
    }
}

/// A check of a file system with two findings, for the tests of the receivers.
#[cfg(test)]
fn sample() -> Sample {
    let cost = Cost {
        elapsed: Duration::from_millis(1500),
        threads: 2,
        reads: 30,
        bytes_read: 4096,
        peak_memory_bytes: Some(1 << 20),
    };
    Sample {
        device: "/mnt/a \"b\"\\\n".to_owned(),
        end_seconds: 1_700_000_000,
        elapsed: Duration::from_millis(1750),
        exit_code: 4,
        checked: Some(Checked {
            verdict: Verdict::Damaged,
            label: "data".to_owned(),
            uuid: "01234567-89ab-cdef-0123-456789abcdef".to_owned(),
            severities: [
                (Severity::Cosmetic, 1),
                (Severity::Metadata, 2),
                (Severity::DataRisk, 0),
                (Severity::Fatal, 0),
            ],
            damage: 2,
            cost,
            phases: vec![("inodes", Duration::from_millis(1000))],
            inodes: 100,
            inodes_used: 12,
            block_bytes: 1024,
            blocks: 8192,
            blocks_used: 500,
            snapshot: Some(("reflink", Some(Duration::from_millis(20)))),
        }),
    }
}
