//! `cargo xtask mount-suite`: programs that others wrote use a mount of Floe's. After each, e2fsck
//! must find the image clean, and Linux must show the tree that the mount showed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use floe_testkit::tree::{self, Tree};
use floe_testkit::{Image, kernel, oracle, tool};

use crate::mounted::{Kind, Mounted};
use floe_testkit::tool::built_floe;

/// The command line.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The program to test; by default target/release/floe or target/debug/floe
    #[arg(long)]
    floe: Option<PathBuf>,
    /// Run only the suites with these names, also those that run by name only
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Seconds of each suite that runs for a time
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Operations of fsx
    #[arg(long, default_value_t = 20_000)]
    operations: u64,
    /// Seconds after which a suite is stopped and has failed
    #[arg(long, default_value_t = 300)]
    limit: u32,
    /// Size of the file system in MiB
    #[arg(long, default_value_t = 1024)]
    size_mib: u64,
    /// Mount options of a run; repeat for several runs
    #[arg(long, short, default_values = ["rw", "rw,nodelalloc,nowriteback_cache"])]
    options: Vec<String>,
    /// Kinds of file systems, each with all options
    #[arg(long, value_delimiter = ',', default_values = ["ext4"])]
    kind: Vec<Kind>,
    /// Print the output of suites that pass, too
    #[arg(long)]
    verbose: bool,
}

/// A program, and the shell script that lets it use the current folder. `$SCRATCH` is a folder
/// elsewhere.
struct Suite {
    name: &'static str,
    program: &'static str,
    script: &'static str,
    /// Runs only if `--only` names it.
    by_name_only: bool,
}

const fn suite(name: &'static str, program: &'static str, script: &'static str) -> Suite {
    Suite { name, program, script, by_name_only: false }
}

const SUITES: &[Suite] = &[
    suite("pjdfstest", "pjdfstest", include_str!("mount_suite/pjdfstest.sh")),
    suite("fsx", "fsx", include_str!("mount_suite/fsx.sh")),
    suite("fio", "fio", include_str!("mount_suite/fio.sh")),
    suite("stress-ng", "stress-ng", include_str!("mount_suite/stress-ng.sh")),
    suite("dbench", "dbench", include_str!("mount_suite/dbench.sh")),
    suite("git", "git", include_str!("mount_suite/git.sh")),
    suite("sqlite", "sqlite3", include_str!("mount_suite/sqlite.sh")),
    suite("tar", "tar", include_str!("mount_suite/tar.sh")),
    suite("rsync", "rsync", include_str!("mount_suite/rsync.sh")),
    suite("cargo", "cargo", include_str!("mount_suite/cargo.sh")),
    suite("postgres", "pgbench", include_str!("mount_suite/postgres.sh")),
    // Fetches a Debian system.
    Suite {
        name: "debian",
        program: "debootstrap",
        script: include_str!("mount_suite/debian.sh"),
        by_name_only: true,
    },
];

/// Runs all suites whose programs are installed, with each list of mount options; fails if one does,
/// or leaves damage.
pub(crate) fn run(args: &Args) -> Result<()> {
    let floe = args.floe.clone().map_or_else(built_floe, Ok)?;
    let unknown = args.only.iter().find(|name| SUITES.iter().all(|suite| suite.name != **name));
    ensure!(unknown.is_none(), "there is no suite {unknown:?}");
    let mut failed = Vec::new();
    let all = args.kind.iter().flat_map(|kind| args.options.iter().map(move |list| (*kind, list)));
    for (kind, options) in all {
        for suite in SUITES {
            let named = args.only.iter().any(|name| name == suite.name);
            if !named && (suite.by_name_only || !args.only.is_empty()) {
                continue;
            }
            let name = format!("{} ({kind}, {options})", suite.name);
            if !is_installed(suite.program) {
                println!("{name}: skipped: {} is not installed", suite.program);
                continue;
            }
            let begin = Instant::now();
            match run_suite(suite, args, (kind, options), &floe) {
                Ok(files) => {
                    let seconds = begin.elapsed().as_secs_f64();
                    println!("{name}: passed, clean, {files} paths equal ({seconds:.0} s)");
                }
                Err(error) => {
                    println!("{name}: failed: {error:#}");
                    failed.push(name);
                }
            }
        }
    }
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

fn is_installed(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    found.is_ok_and(|output| output.status.success())
}

/// Runs one suite; the number of paths that Linux shows as the mount showed them.
fn run_suite(
    suite: &Suite,
    args: &Args,
    (kind, options): (Kind, &str),
    floe: &Path,
) -> Result<usize> {
    let image = Image::empty(args.size_mib << 20)?;
    kind.make(floe, image.path())?;
    let scratch = tool::scratch("floe-suite-")?;
    let ours = Mounted::new(floe, image.path(), &kind.options(options))?;
    let ran = script(suite, args, ours.path(), scratch.path());
    let shown = tree::mounted(ours.path());
    ours.unmount()?;
    ran?;
    let verdict = oracle::e2fsck(&image)?;
    ensure!(verdict.clean(), "e2fsck: {}", verdict.text);
    if let Err(reason) = kernel::mount_available() {
        eprintln!("{}: not compared with Linux: {reason}", suite.name);
        return Ok(0);
    }
    let theirs = kernel::Mounted::new(image.path(), "ro")?;
    let seen = tree::mounted(theirs.path());
    theirs.unmount()?;
    let seen = seen?;
    compare(&shown?, &seen)?;
    Ok(seen.len())
}

/// Runs the script of a suite in a folder.
fn script(suite: &Suite, args: &Args, folder: &Path, scratch: &Path) -> Result<()> {
    let log = scratch.join("output");
    let output = std::fs::File::create(&log)?;
    let status = Command::new("timeout")
        .args(["-k", "5", &args.limit.to_string(), "bash", "-eu", "-o", "pipefail", "-c"])
        .arg(suite.script)
        .current_dir(folder)
        .env("SCRATCH", scratch)
        .env("SECONDS_EACH", args.seconds.to_string())
        .env("OPERATIONS", args.operations.to_string())
        .stdin(std::process::Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .status()
        .context("starting bash")?;
    let said = std::fs::read(&log)?;
    let said = String::from_utf8_lossy(&said);
    if status.success() {
        if args.verbose {
            println!("{said}");
        }
        return Ok(());
    }
    let last: Vec<&str> = said.lines().rev().take(30).collect();
    bail!("{status}:\n{}", last.into_iter().rev().collect::<Vec<_>>().join("\n"))
}

/// `Err` if two trees differ.
fn compare(ours: &Tree, theirs: &Tree) -> Result<()> {
    for (path, node) in theirs {
        let name = String::from_utf8_lossy(path);
        ensure!(ours.get(path) == Some(node), "{name} differs: {:?} {node:?}", ours.get(path));
    }
    ensure!(ours.len() == theirs.len(), "names that Linux does not show");
    Ok(())
}
