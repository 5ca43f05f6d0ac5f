//! `cargo xtask bench`: compares Floe, e2fsck and the roofline on large images, alternating, in one
//! run on one machine.

pub(crate) mod aged;
pub(crate) mod same_bytes;
pub(crate) mod scattered;
mod share_cores;
mod shared_blocks;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use floe_blockdev::{FileDevice, ReadBlocks, WritableFile, WriteBlocks};
use floe_testkit::pairs::median_interval;
use floe_testkit::{oracle, tool};
use floe_workload::fill::aged::Map;
use floe_workload::fill::{Shape, fill};

use crate::measure::{Cost, measure};
use floe_testkit::tool::built_floe;

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Inodes of each image
    #[arg(long, default_value_t = 1_000_000)]
    inodes: u32,
    /// Only this shape; by default file-intensive and directory-intensive
    #[arg(long, value_enum)]
    shape: Option<Kind>,
    /// Thread counts of Floe to measure
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    threads: Vec<usize>,
    /// Floe's accounting methods to measure: exact, fingerprint, auto
    #[arg(long, value_delimiter = ',', default_value = "auto")]
    accounting: Vec<String>,
    /// Floe's scheduling policies to measure side by side: data, split-equal, dynamic; by default
    /// its own choice
    #[arg(long, value_delimiter = ',')]
    schedule: Vec<String>,
    /// Floe's ways to split a pass, side by side: in-order, by-use; by default its own choice
    #[arg(long, value_delimiter = ',')]
    split: Vec<String>,
    /// Measure the mutual slowdown of checks and a program that uses all cores (xz), with and
    /// without Floe's --share-cores
    #[arg(long, conflicts_with_all = ["repair", "cold", "without_floe"])]
    share_cores: bool,
    /// MiB that each copy of xz compresses
    #[arg(long, default_value_t = 24)]
    busy_mib: usize,
    /// Runs of each program; the median is reported
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Drop the image from the page cache before each run; also measure a sequential reader of the
    /// same bytes, and checks with --drop-cache
    #[arg(long)]
    cold: bool,
    /// Number of ageing steps (--shape aged)
    #[arg(long, default_value_t = 5)]
    ages: u32,
    /// Damage one file in ten thousand of a copy, and measure repairs with `-fy` by both programs
    #[arg(long)]
    repair: bool,
    /// Also repair within these memory limits
    #[arg(long, value_name = "BYTES", value_delimiter = ',', requires = "repair")]
    memory: Vec<String>,
    /// Print tables in Markdown
    #[arg(long)]
    markdown: bool,
    /// Folder of the images, which are kept and reused
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
    /// The program to measure; by default the newest built floe
    #[arg(long)]
    floe: Option<PathBuf>,
    /// Omit Floe: measure only e2fsck and the roofline
    #[arg(long)]
    without_floe: bool,
    /// Do not build anything first
    #[arg(long)]
    no_build: bool,
}

/// The image shapes of the papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// 99 files in each directory
    FileIntensive,
    /// One file in each directory
    DirectoryIntensive,
    /// File-intensive with two files that claim one block, compared with a check of the undamaged
    /// image
    SharedBlocks,
    /// Files created, appended to, truncated and removed at random, with extents and with indirect
    /// blocks
    Aged,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::FileIntensive => "file-intensive",
            Self::DirectoryIntensive => "directory-intensive",
            Self::SharedBlocks => "shared-blocks",
            Self::Aged => "aged",
        }
    }
}

/// Runs the command in a release build of this program, which contains the roofline and the image builder.
pub(crate) fn run(args: &Args) -> Result<()> {
    if cfg!(debug_assertions) && !args.no_build {
        return in_release(args);
    }
    let kinds = args
        .shape
        .map_or_else(|| vec![Kind::FileIntensive, Kind::DirectoryIntensive], |kind| vec![kind]);
    println!("{}", machine());
    fs::create_dir_all(&args.folder)?;
    for kind in kinds {
        match kind {
            Kind::Aged => {
                aged::run(args)?;
                continue;
            }
            Kind::SharedBlocks => {
                shared_blocks::run(args, &image(&args.folder, args.inodes, Kind::FileIntensive)?)?;
                continue;
            }
            Kind::FileIntensive | Kind::DirectoryIntensive => {}
        }
        let image = image(&args.folder, args.inodes, kind)?;
        if args.share_cores {
            share_cores::run(&share_cores::Plan {
                floe: &floe(args)?,
                image: &image,
                schedule: args.schedule.first().map(String::as_str),
                folder: &args.folder,
                mib: args.busy_mib,
                runs: args.runs,
                markdown: args.markdown,
            })?;
            continue;
        }
        let rows =
            if args.repair { measure_repairs(args, &image)? } else { measure_all(args, &image)? };
        print_table(args, kind, &rows);
    }
    Ok(())
}

fn in_release(args: &Args) -> Result<()> {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--release", "-p", "floe-bench"]);
    if !args.without_floe && args.floe.is_none() {
        build.args(["-p", "floe"]);
    }
    ensure!(build.status()?.success(), "the release build failed");
    let bench = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release/floe-bench");
    let status = Command::new(bench).args(std::env::args_os().skip(1)).status()?;
    ensure!(status.success(), "the bench failed");
    Ok(())
}

/// The image of a shape; builds it and verifies that it is clean if it does not exist yet.
pub(crate) fn image(folder: &Path, inodes: u32, kind: Kind) -> Result<PathBuf> {
    let path = folder.join(format!("{}-{inodes}.img", kind.name()));
    kept(&path, |unproved| {
        let begin = std::time::Instant::now();
        match kind {
            Kind::FileIntensive => drop(fill(unproved, Shape::file_intensive(inodes))?),
            Kind::DirectoryIntensive => drop(fill(unproved, Shape::directory_intensive(inodes))?),
            Kind::Aged => aged::build(unproved, Map::Indirect, inodes)?,
            Kind::SharedBlocks => bail!("{} is no shape of its own", kind.name()),
        }
        let built = begin.elapsed().as_secs_f64();
        prove(unproved)?;
        eprintln!("built {} in {built:.1} s", path.display());
        Ok(())
    })?;
    Ok(path)
}

/// Creates the file at `path` if it does not exist yet: under a temporary name, so that an
/// incomplete file never appears at `path`.
pub(crate) fn kept<T>(path: &Path, make: impl FnOnce(&Path) -> Result<T>) -> Result<()> {
    if !path.exists() {
        let unfinished = path.with_extension("new");
        drop(make(&unfinished)?);
        fs::rename(&unfinished, path)?;
    }
    Ok(())
}

/// Time limit in seconds of e2fsck on the largest images, on a busy machine.
const LIMIT_SECONDS: u32 = 3600;

/// Fails unless e2fsck finds the image clean.
fn prove(image: &Path) -> Result<()> {
    let verdict = oracle::run_within(image, &["-fn"], LIMIT_SECONDS)?;
    ensure!(!verdict.timed_out, "e2fsck was not done within {LIMIT_SECONDS} s");
    ensure!(verdict.clean(), "the image is not clean: {}", verdict.text);
    Ok(())
}

/// One program and its runs.
struct Row {
    name: String,
    costs: Vec<Cost>,
}

impl Row {
    fn median(&self, of: impl Fn(&Cost) -> f64) -> f64 {
        median(&self.costs, of)
    }
}

/// Maximum share of its time that the hypervisor may steal from a run that counts as undisturbed.
const MOST_STOLEN: f64 = 0.02;

/// Minimum number of undisturbed runs for a median.
const FEW_RUNS: usize = 3;

impl Row {
    /// Number of runs with almost no stolen time, and their median wall time, if there are any.
    fn undisturbed(&self) -> (usize, Option<f64>) {
        let runs = self.costs.iter().filter(|cost| cost.stolen <= cost.wall * MOST_STOLEN);
        let runs: Vec<Cost> = runs.copied().collect();
        (runs.len(), (runs.len() >= FEW_RUNS).then(|| median(&runs, |cost| cost.wall)))
    }

    /// Interval of the factor by which this is faster than `base`, from runs made in alternation:
    /// see [`median_interval`].
    fn faster_than(&self, base: &Row) -> Option<(f64, f64)> {
        let pairs = base.costs.iter().zip(&self.costs);
        let mut factors: Vec<f64> = pairs.map(|(base, own)| base.wall / own.wall).collect();
        median_interval(&mut factors)
    }
}

fn median_wall(row: &Row) -> f64 {
    row.median(|cost| cost.wall)
}

/// A program to measure, its image, and its expected exit code.
struct Program {
    name: String,
    command: Vec<String>,
    image: PathBuf,
    exit: i64,
}

impl Program {
    fn new(name: &str, command: &[&str], image: &Path, exit: i64) -> Self {
        let command = command.iter().map(|&word| word.to_owned()).collect();
        Self { name: name.to_owned(), command, image: image.to_owned(), exit }
    }

    fn e2fsck(image: &Path, exit: i64) -> Self {
        let (e2fsck, path) = (tool::locate("e2fsck"), image.display().to_string());
        Self::new("e2fsck -fn", &[&e2fsck, "-fn", &path], image, exit)
    }

    fn roofline(image: &Path) -> Result<Self> {
        let (own, path) = (this_program()?, image.display().to_string());
        Ok(Self::new("roofline", &[&own, "roofline", &path], image, 0))
    }

    /// The sequential reader of the ranges in `list`.
    fn sequential(image: &Path, list: &Path) -> Result<Self> {
        let (own, path) = (this_program()?, image.display().to_string());
        let list = list.display().to_string();
        Ok(Self::new("sequential reader", &[&own, "read-same-bytes", &path, &list], image, 0))
    }
}

fn this_program() -> Result<String> {
    Ok(std::env::current_exe()?.display().to_string())
}

impl Args {
    /// Floe's checks of an image, in all variants to measure.
    fn checks(&self, image: &Path, exit: i64) -> Result<Vec<Program>> {
        let mut programs = Vec::new();
        if self.without_floe {
            return Ok(programs);
        }
        let (floe, path) = (floe(self)?.display().to_string(), image.display().to_string());
        let mut ways: Vec<Vec<&str>> = match (&self.schedule[..], &self.split[..]) {
            ([], []) => vec![Vec::new()],
            (policies, _) => policies.iter().map(|policy| vec!["--schedule", policy]).collect(),
        };
        ways.extend(self.split.iter().map(|split| vec!["--split", split]));
        for how in &self.accounting {
            for threads in self.threads.iter().map(ToString::to_string) {
                for way in &ways {
                    let mut name = format!("floe --threads {threads}");
                    let mut command = vec![&*floe, "check", "--threads", &threads];
                    command.extend(["--accounting", how]);
                    if how != "auto" {
                        name.push_str(&format!(" --accounting {how}"));
                    }
                    if !way.is_empty() {
                        name.push_str(&format!(" {}", way.join(" ")));
                        command.extend(way);
                    }
                    command.push(&path);
                    programs.push(Program::new(&name, &command, image, exit));
                    if self.cold {
                        name.push_str(" --drop-cache");
                        command.insert(2, "--drop-cache");
                        programs.push(Program::new(&name, &command, image, exit));
                    }
                }
            }
        }
        Ok(programs)
    }

    fn title(&self, what: &str) -> String {
        let cache = if self.cold { "cold" } else { "warm" };
        let (inodes, runs) = (self.inodes, self.runs);
        format!("{what}, {inodes} inodes, {cache} cache, median of {runs} alternating runs")
    }
}

/// Runs the programs in alternation.
fn alternate(args: &Args, programs: &[Program]) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> =
        programs.iter().map(|of| Row { name: of.name.clone(), costs: Vec::new() }).collect();
    if !args.cold {
        let mut images: Vec<&Path> = programs.iter().map(|of| &*of.image).collect();
        images.dedup();
        images.into_iter().try_for_each(warm)?;
    }
    // Run 0 only warms the cache and is not counted.
    let first = usize::from(args.cold);
    for run in first..=args.runs {
        for (row, program) in rows.iter_mut().zip(programs) {
            if args.cold {
                forget(&program.image)?;
            }
            let cost = measure(&program.command)?;
            // Verify the exit code: a fast wrong verdict is worthless.
            let (name, exit) = (&program.name, program.exit);
            ensure!(cost.exit == exit, "{name} ended with {}, not {exit}", cost.exit);
            if run > 0 {
                row.costs.push(cost);
            }
        }
    }
    Ok(rows)
}

fn measure_all(args: &Args, image: &Path) -> Result<Vec<Row>> {
    let mut programs = vec![Program::e2fsck(image, 0), Program::roofline(image)?];
    if args.cold {
        programs.push(Program::sequential(image, &same_bytes::list(image)?)?);
    }
    programs.extend(args.checks(image, 0)?);
    alternate(args, &programs)
}

/// The program to measure.
fn floe(args: &Args) -> Result<PathBuf> {
    match &args.floe {
        Some(path) => Ok(path.clone()),
        None => built_floe(),
    }
}

/// Repairs of one damaged image by both programs, each run on a fresh copy.
fn measure_repairs(args: &Args, image: &Path) -> Result<Vec<Row>> {
    let damaged = scattered::damaged(image, args.inodes)?;
    let scratch = image.with_extension("scratch.img");
    let floe = floe(args)?.display().to_string();
    let target = scratch.to_str().context("a plain path")?.to_owned();
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let mut programs =
        vec![("e2fsck -fy".to_owned(), words(&[&tool::locate("e2fsck"), "-fy", &target]))];
    for threads in &args.threads {
        let threads = threads.to_string();
        let command = words(&[&floe, "repair", "--yes", "--threads", &threads, &target]);
        programs.push((format!("floe --threads {threads}"), command));
    }
    for memory in &args.memory {
        let command = words(&[&floe, "repair", "--yes", "--memory", memory, &target]);
        programs.push((format!("floe --memory {memory}"), command));
    }
    let mut rows: Vec<Row> =
        programs.iter().map(|(name, _)| Row { name: name.clone(), costs: Vec::new() }).collect();
    for run in 0..=args.runs {
        for (row, (name, command)) in rows.iter_mut().zip(&programs) {
            scattered::copy(&damaged, &scratch)?;
            if args.cold {
                forget(&scratch)?;
            }
            let cost = measure(command)?;
            ensure!(cost.exit == 1, "{name} ended with {} on a damaged image", cost.exit);
            if run == 0 {
                // Verify the result: a fast incomplete repair is worthless.
                let verdict = oracle::run(&scratch, &["-fn"])?;
                ensure!(verdict.clean(), "{name} left damage: {}", verdict.text);
            } else {
                row.costs.push(cost);
            }
        }
    }
    fs::remove_file(&scratch)?;
    Ok(rows)
}

/// Drops an image from the page cache and reads it sequentially, so that its pages lie in memory
/// like those of any copied file: the order of page allocation changes the time of a check by a
/// sixth.
pub(crate) fn warm(image: &Path) -> Result<()> {
    const STEP: usize = 1 << 20;
    forget(image)?;
    let file = FileDevice::open(image)?;
    let mut bytes = vec![0; STEP];
    for offset in (0..file.size_bytes()).step_by(STEP) {
        let len = (file.size_bytes() - offset).min(STEP as u64);
        if !file.is_hole(offset, len) {
            file.read_at(offset, &mut bytes[..len as usize])?;
        }
    }
    Ok(())
}

/// Writes back the dirty pages of an image and drops it from the page cache; leaves other files
/// cached.
pub(crate) fn forget(image: &Path) -> Result<()> {
    let file = WritableFile::open(image)?;
    file.flush()?;
    file.forget(0, file.size_bytes());
    Ok(())
}

pub(crate) fn median(costs: &[Cost], of: impl Fn(&Cost) -> f64) -> f64 {
    let mut values: Vec<f64> = costs.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

fn print_table(args: &Args, kind: Kind, rows: &[Row]) {
    let work = if args.repair { "repair of scattered damage, " } else { "" };
    let title = args.title(&format!("{work}{}", kind.name()));
    let base = rows.first().map_or(f64::NAN, median_wall);
    let (_, quiet_base) = rows.first().map_or((0, None), Row::undisturbed);
    let header = [
        "program",
        "wall s",
        "min..max",
        "x e2fsck",
        "95 %",
        "user+sys s",
        "peak MiB",
        "read MB",
        "undisturbed runs",
        "their s",
        "x e2fsck",
    ];
    let mut lines = vec![header.map(str::to_owned)];
    for row in rows {
        let least = row.costs.iter().map(|cost| cost.wall).fold(f64::INFINITY, f64::min);
        let most = row.costs.iter().map(|cost| cost.wall).fold(0.0, f64::max);
        let (quiet_runs, quiet) = row.undisturbed();
        lines.push([
            row.name.clone(),
            format!("{:.3}", median_wall(row)),
            format!("{least:.3}..{most:.3}"),
            format!("{:.2}", base / median_wall(row)),
            rows.first()
                .filter(|base| !std::ptr::eq(*base, row))
                .and_then(|base| row.faster_than(base))
                .map_or_else(String::new, |(low, high)| format!("{low:.1}..{high:.1}")),
            format!("{:.3}", row.median(|cost| cost.cpu)),
            format!("{:.1}", row.median(|cost| cost.peak_mib)),
            format!("{:.1}", row.median(|cost| cost.read_mb)),
            quiet_runs.to_string(),
            quiet.map_or_else(String::new, |wall| format!("{wall:.3}")),
            quiet_base
                .zip(quiet)
                .map_or_else(String::new, |(base, wall)| format!("{:.2}", base / wall)),
        ]);
    }
    print_lines(args, &title, &lines);
}

/// Prints a table whose first line is its header.
fn print_lines<L: AsRef<[String]>>(args: &Args, title: &str, lines: &[L]) {
    if args.markdown {
        println!("\n**{title}**\n");
        for (at, line) in lines.iter().map(AsRef::as_ref).enumerate() {
            println!("| {} |", line.join(" | "));
            if at == 0 {
                println!("|---{}|", "|---:".repeat(line.len() - 1));
            }
        }
        return;
    }
    println!("\n{title}");
    for line in lines.iter().map(AsRef::as_ref) {
        let Some((name, rest)) = line.split_first() else { continue };
        let rest: Vec<String> = rest.iter().map(|cell| format!("{cell:>16}")).collect();
        println!("{name:<18}{}", rest.concat());
    }
}

/// The machine on which the figures depend: processor, cores, memory, kernel, e2fsck.
pub(crate) fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let value = |text: &str, key: &str| -> String {
        text.lines()
            .find(|line| line.starts_with(key))
            .and_then(|line| line.split_once(':'))
            .map_or_else(|| "?".to_owned(), |(_, value)| value.trim().to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let version = Command::new(tool::locate("e2fsck")).arg("-V").output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
    let version = version.unwrap_or_default();
    format!(
        "{}, {cores} cores, {} memory, Linux {}, {}",
        value(&read("/proc/cpuinfo"), "model name"),
        value(&read("/proc/meminfo"), "MemTotal"),
        read("/proc/sys/kernel/osrelease").trim(),
        version.lines().next().unwrap_or("no e2fsck"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        let costs = |walls: &[f64]| -> Vec<Cost> {
            walls.iter().map(|&wall| Cost { wall, ..Cost::default() }).collect()
        };
        let of = |walls: &[f64]| median(&costs(walls), |cost| cost.wall);
        assert_eq!(of(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(of(&[]).is_nan());
    }
}
