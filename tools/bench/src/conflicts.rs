//! `cargo xtask conflicts`: which pairs of calls of the file system in memory that commute touch the same memory.
//!
//! The program that runs the pairs is an example of `floe-fs`. It is built with the compiler's instrumentation for thread
//! sanitizers and linked with a run-time of our own (`conflicts/trace.c`), which records accesses. That instrumentation is
//! unstable in `rustc`, so `RUSTC_BOOTSTRAP` is set for this build alone. It sees Floe, its dependencies and the generic
//! code of the standard library, but not the C library: the allocator makes no noise.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Instrument the build and leave the run-time to us.
const FLAGS: &str = "-Zsanitizer=thread -Zexternal-clangrt -Cunsafe-allow-abi-mismatch=sanitizer";

/// The command line.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Fail if fewer percent of the pairs without fsync and sync are free of conflicts
    #[arg(long, default_value_t = 0.0)]
    at_least: f64,
    /// Fail if fewer percent of all pairs are
    #[arg(long, default_value_t = 0.0)]
    at_least_all: f64,
    /// Print the code of both sides of each conflict of these calls, such as `create,unlink`
    #[arg(long)]
    explain: Option<String>,
}

/// A pair that ran.
struct Ran {
    calls: [String; 2],
    pair: String,
    /// Addresses of code, those of both sides, for each line of memory.
    codes: Vec<[String; 2]>,
}

/// Builds and runs the pairs, and prints how many conflict.
pub(crate) fn run(args: &Args) -> Result<()> {
    let program = build()?;
    let out = Command::new(&program).output().context("running the pairs")?;
    let errors = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "the pairs did not run:\n{errors}");
    let ran: Vec<Ran> = String::from_utf8_lossy(&out.stdout).lines().filter_map(parse).collect();
    ensure!(!ran.is_empty(), "no pair ran");
    print!("{}", table(&ran));
    let is_sync = |ran: &&Ran| ran.calls.iter().any(|call| call.ends_with("sync"));
    let without = share(ran.iter().filter(|ran| !is_sync(ran)));
    let all = share(ran.iter());
    println!("without fsync and sync: {}", without.text());
    println!("with them:              {}", all.text());
    if let Some(calls) = &args.explain {
        explain(&program, &ran, calls)?;
    }
    ensure!(without.percent() >= args.at_least, "below {} % without fsync", args.at_least);
    ensure!(all.percent() >= args.at_least_all, "below {} % with fsync", args.at_least_all);
    Ok(())
}

fn build() -> Result<PathBuf> {
    let folder = Path::new("target/trace");
    std::fs::create_dir_all(folder).context("creating target/trace")?;
    let (object, library) = (folder.join("trace.o"), folder.join("libtrace.a"));
    let source = "tools/bench/src/conflicts/trace.c";
    // The archive would otherwise keep members of an earlier run.
    let _ = std::fs::remove_file(&library);
    quiet(Command::new("cc").args(["-O2", "-fPIC", "-Wall", "-c", source, "-o"]).arg(&object))?;
    quiet(Command::new("ar").arg("rcs").args([&library, &object]))?;
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let place = std::env::current_dir().context("the current folder")?.join(folder);
    let flags = format!("{FLAGS} -Lnative={} -lstatic=trace", place.display());
    let status = Command::new(cargo)
        .args(["build", "--release", "--target", &target, "--target-dir"])
        .arg(folder)
        .args(["--package", "floe-fs", "--example", "conflicts"])
        .args(["--config", "profile.release.lto=false"])
        .args(["--config", "profile.release.codegen-units=16"])
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", flags)
        .status()
        .context("starting cargo")?;
    ensure!(status.success(), "the instrumented build failed");
    Ok(folder.join(target).join("release/examples/conflicts"))
}

fn quiet(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("starting {command:?}"))?;
    ensure!(status.success(), "{command:?} failed");
    Ok(())
}

fn parse(line: &str) -> Option<Ran> {
    let mut fields = line.split('\t');
    let calls = [fields.next()?.to_owned(), fields.next()?.to_owned()];
    let (_count, pair, codes) = (fields.next()?, fields.next()?.to_owned(), fields.next()?);
    let both = |code: &str| code.split_once(',').map(|(a, b)| [a.to_owned(), b.to_owned()]);
    Some(Ran { calls, pair, codes: codes.split(' ').filter_map(both).collect() })
}

/// How many pairs are free of conflicts, of how many.
struct Share {
    free: usize,
    all: usize,
}

fn share<'r>(ran: impl Iterator<Item = &'r Ran>) -> Share {
    let mut share = Share { free: 0, all: 0 };
    for ran in ran {
        share.all += 1;
        share.free += usize::from(ran.codes.is_empty());
    }
    share
}

impl Share {
    fn percent(&self) -> f64 {
        100.0 * self.free as f64 / self.all.max(1) as f64
    }

    fn text(&self) -> String {
        let Self { free, all } = self;
        format!("{free} of {all} commutative pairs are free of conflicts, {:.2} %", self.percent())
    }
}

/// Conflicting pairs of all pairs, by calls.
fn table(ran: &[Ran]) -> String {
    let names: BTreeSet<&str> = ran.iter().flat_map(|ran| &ran.calls).map(String::as_str).collect();
    let mut cells: BTreeMap<[&str; 2], (usize, usize)> = BTreeMap::new();
    for ran in ran {
        let mut key = ran.calls.each_ref().map(String::as_str);
        key.sort_unstable();
        let cell = cells.entry(key).or_default();
        cell.0 += usize::from(!ran.codes.is_empty());
        cell.1 += 1;
    }
    let mut text = format!("{:9}", "");
    for name in &names {
        let _ = write!(text, "{name:>9}");
    }
    for (row, one) in names.iter().enumerate() {
        let _ = write!(text, "\n{one:9}");
        for (column, other) in names.iter().enumerate() {
            let cell = cells.get(&[*other, *one]).filter(|_| column <= row);
            let cell = cell.map_or_else(String::new, |(met, all)| format!("{met}/{all}"));
            let _ = write!(text, "{cell:>9}");
        }
    }
    text + "\n"
}

/// Prints where the conflicts of two kinds of calls lie in the source.
fn explain(program: &Path, ran: &[Ran], calls: &str) -> Result<()> {
    let wanted: BTreeSet<&str> = calls.split(',').collect();
    let fits = |ran: &&Ran| ran.calls.iter().map(String::as_str).collect::<BTreeSet<_>>() == wanted;
    for ran in ran.iter().filter(fits).filter(|ran| !ran.codes.is_empty()) {
        println!("\n{}", ran.pair);
        for codes in &ran.codes {
            for code in codes {
                println!("  {}", source(program, code)?);
            }
            println!();
        }
    }
    Ok(())
}

fn source(program: &Path, code: &str) -> Result<String> {
    let out = Command::new("addr2line")
        .args(["-i", "-f", "-C", "-s", "-e"])
        .args([program.as_os_str(), format!("0x{code}").as_ref()])
        .output()
        .context("starting addr2line")?;
    let text = String::from_utf8_lossy(&out.stdout);
    let lines: Vec<&str> = text.lines().collect();
    let frames = lines.chunks(2).map(|frame| frame.join(" "));
    Ok(frames.collect::<Vec<_>>().join(" < "))
}
