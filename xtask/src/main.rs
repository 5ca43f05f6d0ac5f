//! Floe's development commands: `cargo xtask tidy | ci | fuzz | crash`, and those of the programs in
//! `tools/` (`cargo xtask bench`, `cargo xtask differential`, ...).

mod ci;
mod crash;
mod faults;
mod fuzz;
mod tidy;
mod tools;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

#[derive(Parser)]
#[command(name = "xtask", about = "Floe's own chores")]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Verify the rules of the repository layout
    Tidy(tidy::Args),
    /// Run everything that continuous integration runs
    Ci,
    /// Fail the power at every write of journals and of their recovery
    Crash(crash::Args),
    /// Let more than 300 faults happen in all structures of a cube: each stays there
    Faults,
    /// Fuzz the decoders, or the checker with whole images (needs nightly and cargo-fuzz)
    Fuzz(fuzz::Args),
    #[command(external_subcommand)]
    Tool(Vec<OsString>),
}

fn main() -> ExitCode {
    let matches = Args::command().after_help(tools::help()).get_matches();
    let args = Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match run(args.chore) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(chore: Chore) -> Result<()> {
    match chore {
        Chore::Tidy(args) => tidy::run(&args),
        Chore::Ci => ci::run(),
        Chore::Crash(args) => crash::run(&args),
        Chore::Faults => faults::run(),
        Chore::Fuzz(args) => fuzz::run(&args, None),
        Chore::Tool(words) => tools::run(&words),
    }
}
