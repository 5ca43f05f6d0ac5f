//! `cargo xtask crash`: fails the power at every write of journals and of their recovery, for as many seeds as wanted, of
//! all pairs of operations, and of random calls of programs through the whole stack.

use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The command line.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds: about 3,000 states each
    #[arg(long, default_value_t = 4)]
    seeds: u64,
}

/// Runs the tests that explore all states, optimised: random changes of each seed, then all pairs of operations.
pub(crate) fn run(args: &Args) -> Result<()> {
    let last = args.seed.checked_add(args.seeds.max(1) - 1).context("too many seeds")?;
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let status = Command::new(&cargo)
        .args(["test", "--release", "-p", "floe-disk", "--test", "all", "--", "--ignored"])
        .args(["--nocapture", "journal_crash", "journal_ops", "cube_crash"])
        .env("FLOE_CRASH_SEEDS", format!("{}-{last}", args.seed))
        .status()
        .context("starting cargo")?;
    ensure!(status.success(), "a state was not recovered as it should be");
    let status = Command::new(&cargo)
        .args(["test", "--release", "-p", "floe-fs", "--test", "all", "--", "--ignored"])
        .args(["--nocapture", "memory", "power_fails"])
        .status()
        .context("starting cargo")?;
    ensure!(status.success(), "a promise of fsync was not kept");
    let status = Command::new(cargo)
        .args([
            "test",
            "--release",
            "-p",
            "floe",
            "--bin",
            "floe",
            "--",
            "--ignored",
            "--nocapture",
        ])
        .arg("power_fails")
        .status()
        .context("starting cargo")?;
    ensure!(status.success(), "a move into a cube was not finished or undone");
    Ok(())
}
