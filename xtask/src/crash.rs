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
    /// Judge one state in so many, to take less time
    #[arg(long, default_value_t = 1)]
    one_in: u64,
    /// Only what concerns cubes
    #[arg(long)]
    cubes: bool,
}

/// A program of tests: its arguments for cargo, the names of tests, those of tests of cubes, and the meaning of a failure.
type Part =
    (&'static [&'static str], &'static [&'static str], &'static [&'static str], &'static str);

const PARTS: [Part; 4] = [
    (
        &["-p", "floe-disk", "--test", "all"],
        &["journal_crash", "journal_ops", "cube_crash", "several_journals", "that_wait"],
        &["cube_crash"],
        "a state was not recovered as it should be",
    ),
    (
        &["-p", "floe-fs", "--test", "all"],
        &["survive_any_crash", "may_fail", "power_fails"],
        &["in_cubes_survive_any_crash", "power_fails"],
        "a promise of fsync was not kept",
    ),
    (
        &["-p", "floe-repair", "--test", "all"],
        &["cubes::moved"],
        &["cubes::moved"],
        "a repair that moves files was not finished by the next one",
    ),
    (
        &["-p", "floe", "--bin", "floe"],
        &["power_fails"],
        &["power_fails"],
        "a move into a cube was not finished or undone",
    ),
];

/// Runs the tests that explore all states, optimised: random changes of each seed, then all pairs of operations.
pub(crate) fn run(args: &Args) -> Result<()> {
    let last = args.seed.checked_add(args.seeds.max(1) - 1).context("too many seeds")?;
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    for (program, all, of_cubes, failure) in PARTS {
        let status = Command::new(&cargo)
            .args(["test", "--release"])
            .args(program)
            .args(["--", "--ignored", "--nocapture"])
            .args(if args.cubes { of_cubes } else { all })
            .env("FLOE_CRASH_SEEDS", format!("{}-{last}", args.seed))
            .env("FLOE_CRASH_ONE_IN", args.one_in.to_string())
            .status()
            .context("starting cargo")?;
        ensure!(status.success(), "{failure}");
    }
    Ok(())
}
