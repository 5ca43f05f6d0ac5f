//! `cargo xtask tenants`: SQLite and mail servers in cubes, on a model of a device. The program is an example of `floe-fs`.

use anyhow::{Context, Result, ensure};

use crate::fs_memory::example;

/// The command line.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds of each case in a round
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Rounds, whose median is printed
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// Milliseconds of a flush
    #[arg(long, default_value_t = 3)]
    flush_ms: u64,
    /// Compare modes of cubes
    #[arg(long)]
    modes: bool,
}

/// Runs the program.
pub(crate) fn run(args: &Args) -> Result<()> {
    let words = [args.seconds, args.rounds, args.flush_ms].map(|word| word.to_string());
    let modes = args.modes.then_some("modes");
    let done =
        example("tenants").args(words).args(modes).status().context("running the example")?;
    ensure!(done.success(), "it failed");
    Ok(())
}
