//! `cargo xtask ci`: the steps of continuous integration, in its order: fast ones first and all
//! tests last, so that their summary is the last line.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::tools::has_toolchain;
use crate::{fuzz, tidy};

/// Tests that explore thread interleavings with shuttle: those in modules of that name, because
/// others need locks that work outside an exploration.
const INTERLEAVINGS: [&str; 16] = [
    "test",
    "--quiet",
    "--lib",
    "-p",
    "floe-sync",
    "-p",
    "floe-exec",
    "-p",
    "floe-blockdev",
    "-p",
    "floe-disk",
    "-p",
    "floe-fs",
    "--features",
    "floe-sync/shuttle,floe-exec/shuttle,floe-blockdev/shuttle,floe-disk/shuttle,floe-fs/shuttle",
    "interleavings",
];
/// Number of damaged images whose checks are compared with e2fsck's.
const DIFFERENTIAL_SEEDS: &str = "120";
/// Damaged images whose repairs are compared with e2fsck's: one or two per profile.
const REPAIR_SEEDS: [&str; 4] = ["--seeds", "57", "--from", "100"];
/// Damaged images whose reports by shards are compared with those by one machine.
const SHARD_SEEDS: &str = "8";

/// Runs every step; stops at the first failure.
pub(crate) fn run() -> Result<()> {
    step("fmt", &["fmt", "--all", "--check"])?;
    tidy::check()?;
    step("clippy", &["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    // The program without its optional features, and so without unsafe code.
    let bare = ["clippy", "--quiet", "-p", "floe", "--no-default-features", "--", "-D", "warnings"];
    step("clippy, no features", &bare)?;
    step("doc", &["doc", "--quiet", "--workspace", "--no-deps"])?;
    deny()?;
    step("interleavings", &INTERLEAVINGS)?;
    let bare = ["test", "--quiet", "-p", "floe-blockdev", "--no-default-features", "--lib"];
    step("tests, no features", &bare)?;
    oldest_rust()?;
    miri()?;
    // This builds the programs with all tests, too. Building them alone would choose other features
    // of dependencies, and compile most of those twice.
    step("build", &["test", "--quiet", "--workspace", "--no-run"])?;
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/debug");
    fuzz::smoke(&built.join("floe-trials"))?;
    differential(&built)?;
    tests()
}

/// Builds with the MSRV in `Cargo.toml`, if that toolchain is installed. (Clippy's
/// `incompatible_msrv` finds newer library items on any toolchain.)
fn oldest_rust() -> Result<()> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let text = std::fs::read_to_string(manifest).context("reading Cargo.toml")?;
    let version = text
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = "))
        .context("Cargo.toml names the MSRV")?
        .trim_matches('"')
        .to_owned();
    if !has_toolchain(&version, &[]) {
        println!(
            "oldest Rust: skipped, as {version} is not installed (rustup toolchain install {version})"
        );
        return Ok(());
    }
    rustup("oldest Rust", &["run", &version, "cargo", "check", "--quiet", "--workspace"])
}

/// Runs Miri on the decoders, if it is installed.
fn miri() -> Result<()> {
    if !has_toolchain("nightly", &["cargo", "miri"]) {
        println!("miri: skipped, as it is not installed (rustup +nightly component add miri)");
        return Ok(());
    }
    rustup("miri", &["run", "nightly", "cargo", "miri", "test", "-p", "floe-format", "--lib"])
}

fn rustup(name: &str, args: &[&str]) -> Result<()> {
    let begin = Instant::now();
    // Toolchains cannot share build artifacts.
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/other-toolchains");
    let status = Command::new("rustup").args(args).env("CARGO_TARGET_DIR", target).status()?;
    ensure!(status.success(), "rustup {} failed", args.join(" "));
    println!("{name}: {:.1} s", begin.elapsed().as_secs_f64());
    Ok(())
}

fn step(name: &str, args: &[&str]) -> Result<()> {
    let begin = Instant::now();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(args).env("RUSTDOCFLAGS", "-D warnings");
    ensure!(cargo.status()?.success(), "cargo {} failed", args.join(" "));
    println!("{name}: {:.1} s", begin.elapsed().as_secs_f64());
    Ok(())
}

/// Checks licences, sources and duplicates of dependencies, if cargo-deny is installed. Advisories
/// need network access: `cargo deny check`.
fn deny() -> Result<()> {
    let found = Command::new(env!("CARGO")).args(["deny", "--version"]).output()?;
    if !found.status.success() {
        println!(
            "deny: skipped, as cargo-deny is not installed (cargo install --locked cargo-deny)"
        );
        return Ok(());
    }
    // cargo-deny reads the crates of all targets; a build fetches only those of this one.
    for (name, manifest) in [("deny", "Cargo.toml"), ("deny, fuzz", "fuzz/Cargo.toml")] {
        step("fetch", &["fetch", "--quiet", "--locked", "--manifest-path", manifest])?;
        let quiet = ["deny", "--offline", "--log-level", "error", "--config", "deny.toml"];
        let of = ["--manifest-path", manifest, "check", "licenses", "bans", "sources"];
        step(name, &[&quiet[..], &of].concat())?;
    }
    Ok(())
}

/// Short differential runs of checks and repairs with the programs just built, in this folder.
fn differential(built: &Path) -> Result<()> {
    let (trials, floe) = (built.join("floe-trials"), built.join("floe"));
    let checks = vec!["--verdicts", "--seeds", DIFFERENTIAL_SEEDS];
    let repairs = [&["--repair"][..], &REPAIR_SEEDS].concat();
    let shards = vec!["--shards", "--seeds", SHARD_SEEDS];
    for (name, args) in [("checks", checks), ("repairs", repairs), ("shards", shards)] {
        let begin = Instant::now();
        let status = Command::new(&trials)
            .arg("differential")
            .args(args)
            .arg("--floe")
            .arg(&floe)
            .status()?;
        ensure!(status.success(), "the differential of {name} failed");
        println!("differential of {name}: {:.1} s", begin.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Totals of all tests.
#[derive(Default)]
struct Tally {
    passed: u64,
    failed: u64,
    ignored: u64,
    /// Distinct messages of tests that skipped something.
    skipped: Vec<String>,
}

impl Tally {
    /// Processes a line of output from a test or the test harness.
    fn add(&mut self, line: &str) {
        if let Some(counts) = line.strip_prefix("test result: ") {
            let count = |what: &str| -> u64 {
                counts
                    .split([';', '.'])
                    .filter_map(|part| part.trim().strip_suffix(what))
                    .find_map(|number| number.trim().parse().ok())
                    .unwrap_or(0)
            };
            self.passed += count("passed");
            self.failed += count("failed");
            self.ignored += count("ignored");
        } else if line.starts_with("skipped: ") && !self.skipped.iter().any(|seen| seen == line) {
            self.skipped.push(line.to_owned());
        }
    }
}

/// Runs all tests of all crates including doc tests, and prints the totals last.
fn tests() -> Result<()> {
    let begin = Instant::now();
    // --show-output makes the reasons of skipped tests visible; the complete output goes to a file.
    let log = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/ci-tests.log");
    let mut file = std::fs::File::create(&log).context("making target/ci-tests.log")?;
    let mut cargo = Command::new(env!("CARGO"))
        .args(["test", "--workspace", "--no-fail-fast", "--", "--show-output"])
        .stdout(Stdio::piped())
        .spawn()?;
    let (mut tally, mut in_failures) = (Tally::default(), false);
    let output = cargo.stdout.take().context("cargo's output")?;
    // Programs under test may print arbitrary bytes.
    for line in BufReader::new(output).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        writeln!(file, "{line}")?;
        tally.add(&line);
        in_failures |= line == "failures:";
        in_failures &= !line.starts_with("test result: ");
        if in_failures || line.starts_with("test result: ") {
            println!("{line}");
        }
    }
    let status = cargo.wait()?;
    println!("tests: {:.1} s", begin.elapsed().as_secs_f64());
    for line in &tally.skipped {
        println!("{line}");
    }
    let skipped = tally.ignored + tally.skipped.len() as u64;
    println!("{} passed, {} failed, {skipped} skipped", tally.passed, tally.failed);
    ensure!(status.success(), "tests failed; their complete output is in target/ci-tests.log");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_added_up() {
        let mut tally = Tally::default();
        tally.add("test result: ok. 14 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out");
        tally.add("test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured");
        tally.add("skipped: mke2fs cannot be started");
        tally.add("skipped: mke2fs cannot be started");
        tally.add("anything else: 7 passed");
        assert_eq!((tally.passed, tally.failed, tally.ignored), (16, 3, 1));
        assert_eq!(tally.skipped.len(), 1);
    }
}
