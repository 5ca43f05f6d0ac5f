//! `cargo xtask fuzz TARGET`: seeds the corpus from real images and runs a fuzz target for a
//! limited time.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use crate::tools::{self, has_toolchain};

/// The fuzz targets.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Target {
    /// Every decoder of floe-format, on arbitrary bytes.
    Decode,
    /// A whole image, damaged by a script, checked with 1 and with 2 threads.
    CheckImage,
    /// A whole image, damaged by a script, repaired, checked again, and undone.
    RepairImage,
    /// A whole image, damaged by a script, mounted in memory and changed.
    MountImage,
    /// Arbitrary bytes, read as a tar archive.
    Archive,
}

/// The command line.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The fuzz target
    target: Target,
    /// Duration in minutes
    #[arg(long, default_value_t = 15)]
    minutes: u32,
    /// Duration in seconds instead
    #[arg(long, conflicts_with = "minutes")]
    seconds: Option<u32>,
    /// Only write the seeds into fuzz/corpus
    #[arg(long)]
    seeds_only: bool,
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::CheckImage => "check_image",
            Self::RepairImage => "repair_image",
            Self::MountImage => "mount_image",
            Self::Archive => "archive",
        }
    }

    /// Whether inputs are damage scripts rather than bytes to decode.
    fn mutates_scripts(self) -> bool {
        match self {
            Self::Decode | Self::Archive => false,
            Self::CheckImage | Self::RepairImage | Self::MountImage => true,
        }
    }

    /// Maximum input length in bytes.
    fn max_len(self) -> u32 {
        match self {
            Self::Decode | Self::Archive => 8192,
            // Three bytes and eight edits; see `floe_testkit::damage::script`.
            Self::CheckImage | Self::RepairImage | Self::MountImage => 3 + 8 * 13,
        }
    }
}

/// Seconds per target in a smoke run.
const SMOKE_SECONDS: u32 = 15;

/// Fuzzes each target briefly, if cargo-fuzz and a nightly compiler are installed, to show that the
/// targets build and find nothing at once. `trials` is the program that writes the seeds.
pub(crate) fn smoke(trials: &Path) -> Result<()> {
    if !has_toolchain("nightly", &["cargo", "fuzz"]) {
        println!("fuzz: skipped, as cargo-fuzz or the nightly compiler is not installed");
        return Ok(());
    }
    let begin = Instant::now();
    for &target in Target::value_variants() {
        let seconds = Some(SMOKE_SECONDS);
        run(&Args { target, minutes: 0, seconds, seeds_only: false }, Some(trials))?;
    }
    println!("fuzz: {:.1} s", begin.elapsed().as_secs_f64());
    Ok(())
}

/// Writes the seeds, by a program that was built already or by a new one, then fuzzes.
pub(crate) fn run(args: &Args, trials: Option<&Path>) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the tree")?;
    let corpus = root.join("fuzz/corpus").join(args.target.name());
    let words = ["fuzz-seeds".into(), args.target.name().into(), corpus.clone().into_os_string()];
    match trials {
        Some(trials) => {
            ensure!(Command::new(trials).args(words).status()?.success(), "no seeds were written");
        }
        None => tools::run_in("floe-trials", &words)?,
    }
    let regressions = root.join("fuzz/regressions").join(args.target.name());
    if args.seeds_only {
        return Ok(());
    }
    // A target that never failed has no folder of regressions.
    let corpora = [corpus, regressions].into_iter().filter(|folder| folder.is_dir());
    fuzz(root, args, &corpora.collect::<Vec<_>>())
}

fn fuzz(root: &Path, args: &Args, corpora: &[PathBuf]) -> Result<()> {
    let mut command = Command::new("cargo");
    command.current_dir(root.join("fuzz")).args(["+nightly", "fuzz", "run"]);
    // The code is safe, so a sanitizer would only cost time; overflow checks are on.
    command.args(["--sanitizer", "none"]);
    if args.target.mutates_scripts() {
        // Compared values come from the image and hardly ever appear in the script.
        command.arg("--no-trace-compares");
    }
    command.arg(args.target.name()).args(corpora).arg("--");
    let seconds = args.seconds.map_or(u64::from(args.minutes) * 60, u64::from);
    command.arg(format!("-max_total_time={seconds}"));
    command.arg(format!("-max_len={}", args.target.max_len()));
    // Wall-clock limit: see docs/fuzzing.md.
    command.args(["-timeout=60", "-rss_limit_mb=4096", "-print_final_stats=1"]);
    let status = command.status().context("starting cargo")?;
    if status.code() == Some(101) {
        bail!("cargo cannot fuzz: `rustup toolchain install nightly; cargo install cargo-fuzz`");
    }
    ensure!(status.success(), "the fuzzer found a failure; its input is in fuzz/artifacts");
    Ok(())
}
