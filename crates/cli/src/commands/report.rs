//! `floe report`: one report on the results of many checks.

use std::fs::File;
use std::io::{BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Context;
use floe_report::fleet::{Run, State, Totals, html, human, prometheus};

use crate::exit::{Ended, Outcome};
use crate::input::clock::now_seconds;
use crate::input::files::{self, FLEET_METRICS_HEAD, InputPath, OutputPath};
use crate::run::html_page;

/// Report on a fleet: count the results of many checks, and compare them with earlier runs.
///
/// The exit code is that of all checks of the last run together: 4 if anything is damaged, 8 if
/// anything could not be checked.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Results of `floe check --json`, one after another: a file for each run, the oldest first
    #[arg(long, value_name = "JSONL", num_args = 1.., required = true)]
    fleet: Vec<InputPath>,
    /// Also write the report as an HTML page to FILE, replacing an earlier one
    #[arg(long, value_name = "FILE")]
    html: Option<OutputPath>,
    /// Also write the counts to FILE for Prometheus (textfile collector); see docs/fleet.md
    #[arg(long, value_name = "FILE")]
    metrics: Option<OutputPath>,
}

impl Args {
    pub(crate) fn run(self, out: &mut impl Write) -> anyhow::Result<Outcome> {
        self.html.as_deref().map_or(Ok(()), html_page::probe)?;
        let runs: Vec<Run> = self.fleet.iter().map(|path| read(path)).collect::<Result<_, _>>()?;
        let Some(last) = runs.last().filter(|run| !run.images.is_empty()) else {
            let name = self.fleet.last().map(|path| path.display().to_string());
            return Err(Ended::usage(format!(
                "{}: there are no results",
                name.unwrap_or_default()
            )));
        };
        if let Some(path) = self.html.as_deref() {
            html_page::write(path, &html::page(&runs, now_seconds()))?;
        }
        if let Some(path) = self.metrics.as_deref() {
            files::replace(path, 0o644, FLEET_METRICS_HEAD, prometheus::text(&runs).as_bytes())
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        human::write(out, &runs)?;
        let totals = Totals::of(last);
        let count = |state| totals.count(state);
        Ok(Outcome {
            damaged: count(State::Damaged) + count(State::AtRisk) > 0,
            failed: count(State::Incomplete) > 0,
            ..Outcome::CLEAN
        })
    }
}

/// Reads the results of a run.
fn read(path: &Path) -> anyhow::Result<Run> {
    let context = || format!("cannot read the results in {}", path.display());
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let file = File::open(path).with_context(context)?;
    // A folder is that of many files of Parquet, as Spark writes them.
    let is_parquet = file.metadata().is_ok_and(|of| of.is_dir()) || starts_as_parquet(&file);
    anyhow::ensure!(
        !is_parquet,
        "{} is Parquet, or a folder: `python -m floe to-json-lines {0} > FILE` makes a file that can be read",
        path.display()
    );
    Run::read(&name, BufReader::new(file)).with_context(context)
}

/// Whether a file that can be read again from its start is Parquet. (A pipe cannot.)
fn starts_as_parquet(file: &File) -> bool {
    let mut magic = [0; 4];
    file.read_at(&mut magic, 0).is_ok_and(|len| len == magic.len() && &magic == b"PAR1")
}
