//! `cargo xtask engines`: measures whether io_uring would make the reads of a check faster than
//! threads with blocking reads.
//!
//! Records the reads of a check, per thread and in order, and replays them with fio: with one
//! `pread` per read, and with io_uring, in one job or one per thread, at various queue depths. With
//! direct I/O, where Floe itself reads ahead, io_uring uses one job for all reads. Floe's own runs
//! alternate with the replays. A replay knows all addresses in advance, while a check learns many
//! of them from what it reads, and does no checking. The figures of io_uring are therefore lower
//! bounds for a check.

pub(crate) mod recorded;
mod replay;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::bench::{Kind, forget, image, machine, median, warm};
use crate::measure::{Cost, measure};
use floe_testkit::tool::built_floe;
use recorded::{Lane, Recorded, record};
use replay::{IO_URING, Logs, PSYNC, Replay};

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Inodes of each image
    #[arg(long, default_value_t = 1_000_000)]
    inodes: u32,
    /// Shapes of images
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Kind::FileIntensive, Kind::DirectoryIntensive])]
    shape: Vec<Kind>,
    /// Numbers of threads of Floe to record, replay and measure
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 8])]
    threads: Vec<usize>,
    /// Queue depths of an io_uring job
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32])]
    depths: Vec<u32>,
    /// Read modes
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Way::Cold, Way::Direct, Way::Warm])]
    way: Vec<Way>,
    /// Runs of each; the median is reported
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Folder of the images, which are kept and reused
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
    /// The program to measure; by default the newest built floe
    #[arg(long)]
    floe: Option<PathBuf>,
}

/// How reads use the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Way {
    /// Buffered reads with the image dropped from the page cache
    Cold,
    /// Direct reads, with the image dropped from the page cache too
    Direct,
    /// Buffered reads with the image in the page cache
    Warm,
}

impl Way {
    const fn title(self) -> &'static str {
        match self {
            Self::Cold => "cold cache",
            Self::Direct => "direct I/O",
            Self::Warm => "warm cache",
        }
    }

    /// Prepares the page cache for a run.
    fn prepare(self, image: &Path) -> Result<()> {
        if self == Self::Warm { Ok(()) } else { forget(image) }
    }
}

/// The contestants.
enum What {
    Replay(Replay),
    Floe(Vec<String>),
}

struct Row {
    name: String,
    what: What,
    costs: Vec<Cost>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let floe = args.floe.clone().map_or_else(built_floe, Ok)?.canonicalize()?;
    println!("{}, {}", machine(), fio()?);
    std::fs::create_dir_all(&args.folder)?;
    for &kind in &args.shape {
        let image = image(&args.folder, args.inodes, kind)?.canonicalize()?;
        for &way in &args.way {
            measure_way(args, &floe, &image, way).with_context(|| way.title())?.print(args, kind);
        }
    }
    Ok(())
}

/// The version of fio; fails if it is missing.
fn fio() -> Result<String> {
    let told = Command::new("fio").arg("--version").output();
    let told = told.context("fio is needed, which the Debian package fio has")?;
    Ok(String::from_utf8_lossy(&told.stdout).trim().to_owned())
}

/// A check by Floe.
fn check(floe: &Path, image: &Path, threads: usize, way: Way) -> Vec<String> {
    let mut command = vec![floe.display().to_string(), "check".to_owned()];
    command.extend(["--threads".to_owned(), threads.to_string()]);
    command.extend((way == Way::Direct).then(|| "--direct".to_owned()));
    command.push(image.display().to_string());
    command
}

/// The measurements in one read mode.
struct Table {
    way: Way,
    recorded: Vec<String>,
    rows: Vec<Row>,
}

fn measure_way(args: &Args, floe: &Path, image: &Path, way: Way) -> Result<Table> {
    let folder = tempfile::tempdir()?;
    if way == Way::Warm {
        warm(image)?;
    }
    let mut table = Table { way, recorded: Vec::new(), rows: Vec::new() };
    let mut threads = args.threads.clone();
    // Single jobs replay the recording with one thread.
    threads.push(1);
    threads.sort_unstable();
    threads.dedup();
    for &threads in &threads {
        // The reads of a check depend on the page cache: with cached pages it reads ahead less.
        way.prepare(image)?;
        let Recorded { lanes, all } = record(&check(floe, image, threads, way), image)?;
        table.recorded.push(summary(threads, &lanes));
        let direct = way == Way::Direct;
        let write = |name: &str, lanes: &[Lane]| {
            Logs::write(&folder.path().join(format!("{threads}-{name}")), image, lanes, direct)
        };
        let by_threads = write("threads", &lanes)?;
        table.add(PSYNC, threads, 1, &by_threads);
        // With direct I/O, Floe issues all reads that it can prefetch from one thread.
        let by_ring = if direct { write("ring", &[all])? } else { by_threads };
        for &depth in &args.depths {
            // Several jobs at queue depth 1 are equivalent to psync.
            if by_ring.jobs() == 1 || depth > 1 {
                table.add(IO_URING, threads, depth, &by_ring);
            }
        }
    }
    for &threads in &args.threads {
        let name = format!("floe --threads {threads}");
        let what = What::Floe(check(floe, image, threads, way));
        table.rows.push(Row { name, what, costs: Vec::new() });
    }
    // Run 0 only warms the cache and is not counted.
    for run in usize::from(way != Way::Warm)..=args.runs {
        for row in &mut table.rows {
            way.prepare(image)?;
            let cost = match &row.what {
                What::Replay(replay) => replay.run().with_context(|| row.name.clone())?,
                What::Floe(command) => {
                    let cost = measure(command)?;
                    let read_mb = if way == Way::Direct { cost.device_mb } else { cost.read_mb };
                    Cost { read_mb, ..cost }
                }
            };
            ensure!(cost.exit == 0, "{} ended with {}", row.name, cost.exit);
            if run > 0 {
                row.costs.push(cost);
            }
        }
    }
    Ok(table)
}

/// Describes a recording for the reader of the table.
fn summary(threads: usize, lanes: &[Lane]) -> String {
    let reads: usize = lanes.iter().map(Vec::len).sum();
    let bytes: u64 = lanes.iter().flatten().map(|read| read.len).sum();
    format!("--threads {threads}: {reads} reads of {:.1} MB", bytes as f64 / 1e6)
}

impl Table {
    /// Adds a way to replay a recorded check.
    fn add(&mut self, engine: &'static str, threads: usize, depth: u32, logs: &Logs) {
        let (jobs, direct) = (logs.jobs(), self.way == Way::Direct);
        let jobs = if jobs == 1 { "1 job".to_owned() } else { format!("{jobs} jobs") };
        let mut name = format!("{engine}, {jobs}");
        if engine == IO_URING {
            name = format!("{name}, depth {depth}");
        }
        if direct {
            name = format!("{name}, reads of {threads} threads");
        }
        let what = What::Replay(Replay { engine, depth, direct, reads: logs.clone() });
        self.rows.push(Row { name, what, costs: Vec::new() });
    }

    fn print(&self, args: &Args, kind: Kind) {
        let (shape, inodes, runs) = (kind.name(), args.inodes, args.runs);
        let way = self.way.title();
        println!("\n**{shape}, {inodes} inodes, {way}, median of {runs} alternating runs**\n");
        println!("{}\n", self.recorded.join("; "));
        println!("| reader | wall s | min..max | MB | MB/s | of the fastest floe |");
        println!("|---|{}", "---:|".repeat(5));
        let floes = self.rows.iter().filter(|row| matches!(row.what, What::Floe(_)));
        let fastest = floes.map(Row::wall).fold(f64::INFINITY, f64::min);
        for row in &self.rows {
            println!("{}", row.line(fastest));
        }
    }
}

impl Row {
    fn wall(&self) -> f64 {
        median(&self.costs, |cost| cost.wall)
    }

    fn line(&self, fastest: f64) -> String {
        let least = self.costs.iter().map(|cost| cost.wall).fold(f64::INFINITY, f64::min);
        let most = self.costs.iter().map(|cost| cost.wall).fold(0.0, f64::max);
        let (wall, mb) = (self.wall(), median(&self.costs, |cost| cost.read_mb));
        let (mb_s, of) = (mb / wall, wall / fastest);
        let name = &self.name;
        format!("| {name} | {wall:.3} | {least:.3}..{most:.3} | {mb:.1} | {mb_s:.0} | {of:.2} |")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_told_against_floe() {
        let cost = |wall| Cost { wall, read_mb: 300.0, ..Cost::default() };
        let what = What::Floe(Vec::new());
        let costs = vec![cost(2.0), cost(1.0), cost(3.0)];
        let row = Row { name: "floe".to_owned(), what, costs };
        assert_eq!(row.line(4.0), "| floe | 2.000 | 1.000..3.000 | 300.0 | 150 | 0.50 |");
    }

    #[test]
    fn a_direct_check_is_told_so() {
        let command = |way| check(Path::new("f"), Path::new("i"), 2, way).join(" ");
        assert_eq!(command(Way::Cold), "f check --threads 2 i");
        assert_eq!(command(Way::Direct), "f check --threads 2 --direct i");
    }
}
