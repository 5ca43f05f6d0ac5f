//! `cargo xtask memory`: peak memory of checks for several shares of inodes in use (table 2 and
//! figure 7 of lwFSCK, SAC '25): e2fsck, and Floe with each link counting structure and with
//! fingerprints. Fits a formula of groups, inodes and directories, and verifies that a check stays
//! within its estimate and within a memory limit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use floe_testkit::tool;
use floe_workload::fill::{Shape, empty, fill_of};
use serde_json::Value;

use crate::bench::kept;
use crate::measure::measure;
use floe_testkit::tool::built_floe;

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Inode capacity of each file system
    #[arg(long, default_value_t = 1 << 20)]
    inodes: u32,
    /// Inodes in use, in percent
    #[arg(long, value_delimiter = ',', default_values_t = [1, 25, 50, 100])]
    used: Vec<u32>,
    /// Sizes of empty file systems, in GiB
    #[arg(long, value_delimiter = ',', default_values_t = [1024, 4096, 16_380])]
    empty: Vec<u64>,
    /// Thread counts
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    threads: Vec<usize>,
    /// Memory limits to verify, in MiB
    #[arg(long, value_delimiter = ',', default_values_t = [16, 24, 32, 64])]
    budgets: Vec<u64>,
    /// Fail if a check exceeds its estimate
    #[arg(long)]
    strict: bool,
    /// Folder of the images, which are kept and reused
    #[arg(long, default_value = "target/memory")]
    folder: PathBuf,
    /// The program; by default the newest built floe
    #[arg(long)]
    floe: Option<PathBuf>,
}

/// Methods of checking, with their options.
const WAYS: [(&str, [&str; 4]); 4] = [
    ("array", ["--accounting", "exact", "--link-counts", "array"]),
    ("TwinTree", ["--accounting", "exact", "--link-counts", "twin-tree"]),
    ("bits", ["--accounting", "exact", "--link-counts", "bits"]),
    ("sums", ["--accounting", "fingerprint", "--link-counts", "bits"]),
];

/// An image, and its content.
struct Subject {
    name: String,
    path: PathBuf,
}

/// One check.
#[derive(Clone, Copy, Debug, Default)]
struct Check {
    peak_bytes: f64,
    estimate_bytes: f64,
    seconds: f64,
    groups: f64,
    files: f64,
    directories: f64,
}

const MIB: f64 = 1_048_576.0;

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let floe = match &args.floe {
        Some(path) => path.clone(),
        None => built_floe()?,
    };
    fs::create_dir_all(&args.folder)?;
    let subjects = subjects(args)?;
    for &threads in &args.threads {
        let mut checks = Vec::new();
        println!("\n**Peak MiB with {threads} thread(s)**\n");
        println!("| file system | e2fsck | {} |", WAYS.map(|(name, _)| name).join(" | "));
        println!("|---|---:|{}", "---:|".repeat(WAYS.len()));
        for subject in &subjects {
            print!("| {} | {} ", subject.name, e2fsck(&subject.path)?);
            let mut row = Vec::new();
            for (name, options) in WAYS {
                let check = check(&floe, &subject.path, threads, &options)
                    .with_context(|| format!("{}, {name}", subject.name))?;
                print!("| {:.1} ", check.peak_bytes / MIB);
                row.push(check);
            }
            println!("|");
            checks.push(row);
        }
        print_estimates(args, &subjects, &checks)?;
        print_formula(&checks);
    }
    print_budgets(args, &floe, &subjects)
}

/// The images: both shapes of the papers with several shares of inodes in use, and empty ones.
fn subjects(args: &Args) -> Result<Vec<Subject>> {
    let mut subjects = Vec::new();
    for (shape, files) in [("file-intensive", 99), ("directory-intensive", 1)] {
        for &used in &args.used {
            let name = format!("{shape}, {used} % of {}", args.inodes);
            let path = args.folder.join(format!("{shape}-{used}-{}.img", args.inodes));
            kept(&path, |path| {
                // mke2fs uses some inodes itself, and 64 directories hold the others.
                let inodes = u64::from(args.inodes) * u64::from(used) / 100;
                let dirs = u32::try_from(inodes.saturating_sub(100))? / (files + 1);
                let size_bytes = (u64::from(args.inodes) * 32768).next_multiple_of(1 << 27);
                let shape = Shape { dirs, files_per_dir: files, file_blocks: 1, size_bytes };
                fill_of(path, shape, u64::from(args.inodes))
            })?;
            subjects.push(Subject { name, path });
        }
    }
    for &gib in &args.empty {
        let path = args.folder.join(format!("empty-{gib}.img"));
        kept(&path, |path| empty(path, gib << 30))?;
        subjects.push(Subject { name: format!("empty, {gib} GiB"), path });
    }
    Ok(subjects)
}

/// Peak memory of e2fsck in MiB.
fn e2fsck(image: &Path) -> Result<String> {
    let image_path = image.to_str().context("a plain path")?.to_owned();
    let cost = measure(&[tool::locate("e2fsck"), "-fn".to_owned(), image_path])?;
    ensure!(cost.exit == 0, "e2fsck ended with {} on {}", cost.exit, image.display());
    Ok(format!("{:.1}", cost.peak_mib))
}

fn floe_check(floe: &Path, image: &Path, threads: usize, options: &[&str]) -> Result<(i32, Value)> {
    let output = Command::new(floe)
        .args(["check", "--json", "--threads", &threads.to_string()])
        .args(options)
        .arg(image)
        .output()?;
    let code = output.status.code().context("floe was killed by a signal")?;
    let value = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    Ok((code, value))
}

fn check(floe: &Path, image: &Path, threads: usize, options: &[&str]) -> Result<Check> {
    let (code, report) = floe_check(floe, image, threads, options)?;
    // Verify the exit code: a lean wrong verdict is worthless.
    ensure!(code == 0, "ended with {code} on a clean image");
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let (cost, totals) = (&report["cost"], &report["totals"]);
    let directories = number(&totals["directories"]);
    Ok(Check {
        peak_bytes: number(&cost["peak_memory_bytes"]),
        estimate_bytes: number(&cost["memory"]["estimate_bytes"]),
        seconds: number(&cost["seconds"]),
        groups: number(&report["filesystem"]["groups"]),
        files: number(&totals["inodes_used"]) - directories,
        directories,
    })
}

/// Compares each check with its estimate.
fn print_estimates(args: &Args, subjects: &[Subject], checks: &[Vec<Check>]) -> Result<()> {
    println!("\nEstimate in MiB, and the share that was used:\n");
    println!("| file system | {} |", WAYS.map(|(name, _)| name).join(" | "));
    println!("|---|{}", "---:|".repeat(WAYS.len()));
    for (subject, row) in subjects.iter().zip(checks) {
        print!("| {} ", subject.name);
        for check in row {
            let part = check.peak_bytes / check.estimate_bytes;
            print!("| {:.1}, {:.0} % ", check.estimate_bytes / MIB, part * 100.0);
            ensure!(!args.strict || part <= 1.0, "{}: exceeds its estimate", subject.name);
        }
        println!("|");
    }
    Ok(())
}

/// Fits bytes = base + a * groups + b * files + c * directories to each method, by least squares;
/// and prints the time of the slowest file system, in which the structures differ.
fn print_formula(checks: &[Vec<Check>]) {
    println!("\nBytes, fitted to the checks above:\n");
    println!(
        "| method | base MiB | per group | per file | per directory | largest error MiB | slowest s |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|");
    for (at, (name, _)) in WAYS.iter().enumerate() {
        let rows: Vec<Check> = checks.iter().filter_map(|row| row.get(at).copied()).collect();
        let Some([base, group, file, directory]) = fit(&rows) else { continue };
        let of = |row: &Check| {
            base + group * row.groups + file * row.files + directory * row.directories
        };
        let miss = rows.iter().map(|row| (of(row) - row.peak_bytes).abs()).fold(0.0, f64::max);
        let slowest = rows.iter().map(|row| row.seconds).fold(0.0, f64::max);
        println!(
            "| {name} | {:.1} | {group:.0} | {file:.2} | {directory:.0} | {:.1} | {slowest:.2} |",
            base / MIB,
            miss / MIB
        );
    }
}

/// Least squares by the normal equations. Scales the columns to similar size first.
fn fit(rows: &[Check]) -> Option<[f64; 4]> {
    const SCALE: [f64; 4] = [1.0, 1e5, 1e6, 1e6];
    let mut equations = [[0.0; 5]; 4];
    for row in rows {
        let terms = [1.0, row.groups / SCALE[1], row.files / SCALE[2], row.directories / SCALE[3]];
        for (equation, left) in equations.iter_mut().zip(terms) {
            for (sum, right) in equation.iter_mut().zip(terms.into_iter().chain([row.peak_bytes])) {
                *sum += left * right;
            }
        }
    }
    // Gauss-Jordan elimination with partial pivoting.
    for column in 0..4 {
        let pivot = (column..4)
            .max_by(|&one, &other| {
                equations[one][column].abs().total_cmp(&equations[other][column].abs())
            })
            .filter(|&row| equations[row][column].abs() > 1e-9)?;
        equations.swap(column, pivot);
        let pivot = equations[column].map(|value| value / equations[column][column]);
        equations[column] = pivot;
        for row in (0..4).filter(|&row| row != column) {
            let factor = equations[row][column];
            for (value, pivot) in equations[row].iter_mut().zip(pivot) {
                *value -= factor * pivot;
            }
        }
    }
    Some(std::array::from_fn(|at| equations[at][4] / SCALE[at]))
}

/// Checks with memory limits: each stays below its limit, or fails and prints a sufficient one.
fn print_budgets(args: &Args, floe: &Path, subjects: &[Subject]) -> Result<()> {
    println!("\n**Peak MiB with a budget (`--memory`)**\n");
    let header: Vec<String> = args.budgets.iter().map(|mib| format!("{mib} MiB")).collect();
    println!("| file system | {} |", header.join(" | "));
    println!("|---|{}", "---:|".repeat(header.len()));
    for subject in subjects {
        print!("| {} ", subject.name);
        for mib in &args.budgets {
            let budget = format!("{mib}M");
            let (code, report) = floe_check(floe, &subject.path, 2, &["--memory", &budget])?;
            if code == 8 {
                print!("| refused ");
                continue;
            }
            ensure!(code == 0, "{}: ended with {code}", subject.name);
            let cost = &report["cost"];
            let peak = cost["peak_memory_bytes"].as_f64().unwrap_or(f64::NAN) / MIB;
            ensure!(peak <= *mib as f64, "{}: {peak:.1} of {mib} MiB", subject.name);
            let how = cost["memory"]["accounting"].as_str().unwrap_or("?");
            print!("| {peak:.1} ({how}, {}) ", cost["threads"]);
        }
        println!("|");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_formula_is_found_again() {
        let rows: Vec<Check> = (0..9u32)
            .map(|at| {
                let (groups, files) = (f64::from(at * at), f64::from(at * 7 % 5) * 1e5);
                let directories = f64::from(at % 3) * 1e4;
                let peak_bytes = 5e6 + 60.0 * groups + 2.5 * files + 70.0 * directories;
                Check { peak_bytes, groups, files, directories, ..Check::default() }
            })
            .collect();
        let found = fit(&rows).unwrap();
        for (found, expected) in found.into_iter().zip([5e6, 60.0, 2.5, 70.0]) {
            assert!((found / expected - 1.0).abs() < 1e-3, "{found} for {expected}");
        }
        assert!(fit(&rows[..2]).is_none(), "too few to tell");
    }
}
