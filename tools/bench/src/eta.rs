//! `cargo xtask eta`: compares progress predictions with the actual times, on images of several
//! shapes; also measures the weights of the work model (`weights.rs` of `floe_check::estimate`).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use floe_workload::fill::aged::Map;
use floe_workload::fill::{Shape, fill};
use serde_json::Value;

use crate::bench::{aged, forget, kept, scattered};
use floe_testkit::tool::built_floe;

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Inodes of the largest image
    #[arg(long, default_value_t = 4_000_000)]
    inodes: u32,
    /// Threads
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Runs; the median error is reported
    #[arg(long, default_value_t = 7)]
    runs: usize,
    /// Drop the image from the page cache before each run
    #[arg(long)]
    cold: bool,
    /// Use processor time instead of wall time: for machines with other load, which may take half
    /// of the processors now and none later
    #[arg(long, conflicts_with = "cold")]
    by_processor: bool,
    /// Predict repairs of scattered damage instead of checks
    #[arg(long)]
    repair: bool,
    /// Print the time of each phase per unit of each weighted quantity, and predict nothing
    #[arg(long)]
    weights: bool,
    /// Fail if a prediction after a tenth of the run is off by more than this percentage
    #[arg(long, value_name = "PERCENT")]
    within: Option<f64>,
    /// Folder of the images, which are kept and reused
    #[arg(long, default_value = "target/eta")]
    folder: PathBuf,
    /// The program; by default the newest built floe
    #[arg(long)]
    floe: Option<PathBuf>,
}

/// Fractions of the run after which the prediction is judged.
const AFTER: [f64; 3] = [0.1, 0.25, 0.5];

pub(crate) fn run(args: &Args) -> Result<()> {
    let floe = match &args.floe {
        Some(path) => path.clone(),
        None => built_floe()?,
    };
    // With several threads, the relation of processor time to wall time differs between phases.
    ensure!(!args.by_processor || args.threads == 1, "--by-processor is for one thread");
    std::fs::create_dir_all(&args.folder)?;
    if !args.weights {
        println!("| image | run s | left after 10 %: said / was s | off | 25 % | 50 % |");
        println!("|---|---:|---:|---:|---:|---:|");
    }
    let mut worst = 0.0f64;
    for (name, content) in contents(args.inodes) {
        let path = args.folder.join(format!("{name}-{}.img", args.inodes));
        kept(&path, |path| content.build(path).with_context(|| format!("the image {name}")))?;
        if args.weights {
            weights(args, &floe, name, &path)?;
        } else {
            worst = worst.max(predict(args, &floe, name, &path)?);
        }
    }
    if let Some(within) = args.within {
        ensure!(worst <= within, "a prediction was {worst:.0} % off; {within} % are allowed");
    }
    Ok(())
}

/// Content of an image.
enum Content {
    New(Shape),
    /// This many inodes, with block maps of a kind, after random operations.
    Aged(Map, u32),
}

impl Content {
    fn build(self, path: &Path) -> Result<()> {
        match self {
            Self::New(shape) => fill(path, shape).map(drop),
            Self::Aged(map, inodes) => aged::build(path, map, inodes),
        }
    }
}

/// Many files in few directories; as many directories as files; few files in very many groups;
/// fragmented files, with either kind of block map.
fn contents(inodes: u32) -> [(&'static str, Content); 5] {
    let wide = Shape {
        dirs: inodes / 1000,
        files_per_dir: 99,
        file_blocks: 1,
        size_bytes: u64::from(inodes) << 20,
    };
    [
        ("files", Content::New(Shape::file_intensive(inodes))),
        ("directories", Content::New(Shape::directory_intensive(inodes / 4))),
        ("wide", Content::New(wide)),
        ("aged", Content::Aged(Map::Extents, inodes / 10)),
        ("aged-ext3", Content::Aged(Map::Indirect, inodes / 10)),
    ]
}

/// A progress sample: seconds since the start, and the predicted remaining seconds.
type Look = (f64, f64);

/// Runs the program; returns the samples and the duration of the run in seconds. With processor
/// time, durations are in processor seconds, and a prediction is scaled by the ratio of remaining
/// to elapsed time.
fn watched(args: &Args, floe: &Path, image: &Path) -> Result<(Vec<Look>, f64)> {
    if args.cold {
        forget(image)?;
    }
    let mut command = Command::new(floe);
    if args.repair {
        command.args(["repair", "--dry-run"]);
    } else {
        command.arg("check");
    }
    command.args(["--progress", "json", "--threads", &args.threads.to_string()]).arg(image);
    let begin = Instant::now();
    let output = command.stdout(Stdio::null()).output()?;
    let seconds = begin.elapsed().as_secs_f64();
    let wanted = i32::from(args.repair);
    ensure!(output.status.code() == Some(wanted), "floe ended with {:?}", output.status);
    let lines = String::from_utf8(output.stderr)?
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<Vec<Value>, _>>()
        .context("the progress is not JSON")?;
    let look = |line: &Value| {
        let [at, left] = [line["seconds"].as_f64()?, line["left_seconds"].as_f64()?];
        let processor = line["processor_seconds"].as_f64()?;
        Some(if args.by_processor { (processor, left / at * processor) } else { (at, left) })
    };
    let all = lines.last().and_then(|line| line["processor_seconds"].as_f64());
    let all = if args.by_processor { all.context("no processor time")? } else { seconds };
    Ok((lines.iter().filter_map(look).collect(), all))
}

/// A copy whose large directories have indexes, as Linux builds them: otherwise building them would
/// dominate a repair.
fn indexed(floe: &Path, image: &Path) -> Result<PathBuf> {
    let path = image.with_extension("indexed.img");
    kept(&path, |path| {
        scattered::copy(image, path)?;
        let mut repair = Command::new(floe);
        repair.args(["repair", "--yes"]).arg(path).stdout(Stdio::null());
        let status = repair.status()?;
        ensure!(matches!(status.code(), Some(0 | 1)), "floe repair ended with {status}");
        Ok(())
    })?;
    Ok(path)
}

/// Prints a row; returns the error of the first prediction in percent of the remaining time.
fn predict(args: &Args, floe: &Path, name: &str, image: &Path) -> Result<f64> {
    let image = match args.repair {
        true => scattered::damaged(&indexed(floe, image)?, args.inodes)?,
        false => image.to_owned(),
    };
    let mut rows: Vec<Vec<[f64; 3]>> = vec![Vec::new(); AFTER.len()];
    let mut times = Vec::new();
    // Run 0 fills the page cache and is not counted.
    for run in usize::from(args.cold)..=args.runs {
        let (looks, seconds) = watched(args, floe, &image)?;
        if run == 0 {
            continue;
        }
        times.push(seconds);
        for (row, after) in rows.iter_mut().zip(AFTER) {
            let look = looks.iter().find(|(at, _)| *at >= after * seconds);
            let &(at, said) = look.context("too short a run to be predicted: --inodes")?;
            let was = seconds - at;
            row.push([said, was, (said - was) / was * 100.0]);
        }
    }
    let median = |row: &[[f64; 3]], of: usize| {
        let mut values: Vec<f64> = row.iter().map(|look| look[of]).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    times.sort_by(f64::total_cmp);
    println!(
        "| {name} | {:.2} | {:.2} / {:.2} | {:+.0} % | {:+.0} % | {:+.0} % |",
        times[times.len() / 2],
        median(&rows[0], 0),
        median(&rows[0], 1),
        median(&rows[0], 2),
        median(&rows[1], 2),
        median(&rows[2], 2),
    );
    Ok(median(&rows[0], 2).abs())
}

/// Prints the minimum time of each phase over several runs, per unit of each weighted quantity.
fn weights(args: &Args, floe: &Path, name: &str, image: &Path) -> Result<()> {
    let mut least: Vec<(String, f64)> = Vec::new();
    let mut report = Value::Null;
    for _ in 0..=args.runs {
        let output = Command::new(floe)
            .args(["check", "--json", "--threads", &args.threads.to_string()])
            .arg(image)
            .output()?;
        report = serde_json::from_slice(&output.stdout)?;
        let phases = report["cost"]["phases"].as_array().context("no phases")?;
        for (at, phase) in phases.iter().enumerate() {
            let name = phase["name"].as_str().unwrap_or_default().to_owned();
            let seconds = phase["seconds"].as_f64().unwrap_or(f64::NAN);
            match least.get_mut(at) {
                Some((_, known)) => *known = known.min(seconds),
                None => least.push((name, seconds)),
            }
        }
    }
    let count = |part: &str, of: &str| report[part][of].as_f64().unwrap_or(f64::NAN);
    let (inodes, directories) = (count("totals", "inodes_used"), count("totals", "directories"));
    let groups = count("filesystem", "groups");
    println!("{name}: {inodes} inodes, {directories} directories, {groups} groups");
    println!("  {:<14} {:>9} {:>9} {:>9} {:>9}", "phase", "ms", "ns/inode", "ns/dir", "ns/group");
    for (phase, seconds) in least {
        println!(
            "  {phase:<14} {:>9.2} {:>9.1} {:>9.1} {:>9.1}",
            seconds * 1e3,
            seconds * 1e9 / inodes,
            seconds * 1e9 / directories,
            seconds * 1e9 / groups,
        );
    }
    Ok(())
}
