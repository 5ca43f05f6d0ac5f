//! `floe report`: one report on the results of many checks.

use std::fs::File;
use std::io::{BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use floe_report::fleet::{PARQUET_MAGIC, Run, State, Totals, html, human, prometheus};

use crate::exit::{Ended, Outcome};
use crate::input::clock::now_seconds;
use crate::input::device::shown;
use crate::input::files::{self, FLEET_METRICS_HEAD, InputPath, OutputPath};
use crate::run::html_page;

/// Report on a fleet: count the results of many checks, and compare them with earlier runs.
///
/// The exit code is that of all checks of the last run together: 4 if anything is damaged, 8 if
/// anything could not be checked.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Results of checks, for each run a file or a folder, the oldest first: documents of `floe check --json`, one after
    /// another, or Parquet as `floe_spark.check` writes it
    #[arg(long, value_name = "RESULTS", num_args = 1.., required = true)]
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

/// Reads the results of a run: a file, or a folder of files such as Spark writes it.
fn read(path: &Path) -> anyhow::Result<Run> {
    let is_folder = std::fs::metadata(path).is_ok_and(|of| of.is_dir());
    // In the folder of `floe_spark.check` the results of images lie in a folder of that name.
    let images = path.join("images");
    let folder = if is_folder && images.is_dir() { &images } else { path };
    let mut run = Run::new(&name_of(folder));
    if !is_folder {
        add(&mut run, path)?;
        return Ok(run);
    }
    for part in parts(folder).with_context(|| cannot_read(folder))? {
        add(&mut run, &part)?;
        // A check that was killed leaves the file that its shell made for it. (Spark leaves Parquet without rows.)
        if std::fs::metadata(&part).is_ok_and(|of| of.len() == 0) {
            run.add_lost(&shown(&part), "the file of its result is empty");
        }
    }
    Ok(run)
}

/// The name of a run: that of its file or folder, or of the folder around `images`.
fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    let around = path.parent().and_then(Path::file_name).filter(|_| name == "images");
    around.unwrap_or(name).to_string_lossy().into_owned()
}

/// The files of results in a folder, by name. As for Spark, other names than theirs begin with `_` or a dot.
fn parts(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut parts = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        anyhow::ensure!(
            name != "_temporary",
            "the job that writes this folder has not ended, or has failed: there is {}",
            path.display()
        );
        if !name.starts_with(['_', '.']) {
            anyhow::ensure!(
                !path.is_dir(),
                "{} is a folder, not a file of results",
                path.display()
            );
            parts.push(path);
        }
    }
    parts.sort_unstable();
    Ok(parts)
}

/// Adds the results in a file: Parquet, or documents of JSON.
fn add(run: &mut Run, path: &Path) -> anyhow::Result<()> {
    let file = File::open(path).with_context(|| cannot_read(path))?;
    if starts_as_parquet(&file) {
        run.add_parquet(&file).with_context(|| cannot_read(path))
    } else {
        run.add_json(BufReader::new(file)).with_context(|| cannot_read(path))
    }
}

fn cannot_read(path: &Path) -> String {
    format!("cannot read the results in {}", path.display())
}

/// Whether a file that can be read again from its start is Parquet. (A pipe cannot.)
fn starts_as_parquet(file: &File) -> bool {
    let mut magic = [0; PARQUET_MAGIC.len()];
    file.read_at(&mut magic, 0).is_ok_and(|len| len == magic.len() && magic == PARQUET_MAGIC)
}
