//! `floe`: checks ext2, ext3 and ext4 file systems.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

mod check_run;
mod commands;
mod device;
mod dump;
mod estimate;
mod exit;
mod failure;
mod fsck_options;
mod sheet;
mod usage;

use commands::Command;
use exit::Outcome;

/// Checks ext2, ext3 and ext4 file systems. Reads only: nothing is ever written to a device.
///
/// Exit codes are those of e2fsck: 0 clean, 4 damage found, 8 the work could not be done, 16 wrong
/// command line.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let mut out = std::io::stdout().lock();
    let outcome = match run(&arguments, &mut out) {
        Ok(outcome) => outcome,
        // Whoever read our output has seen enough; that is not a failure of the check, but its
        // verdict was not delivered either.
        Err(error) if is_broken_pipe(&error) => Outcome::FAILED,
        Err(error) => {
            eprintln!("floe: {error:#}");
            Outcome::FAILED
        }
    };
    match out.flush() {
        Ok(()) => ExitCode::from(outcome.code()),
        Err(_) => ExitCode::from(Outcome { failed: true, ..outcome }.code()),
    }
}

fn run(arguments: &[OsString], out: &mut impl Write) -> anyhow::Result<Outcome> {
    // e2fsck's own command line is not clap's: bundled flags, and its own exit codes.
    if arguments.get(1).is_some_and(|verb| verb == "fsck") {
        return commands::fsck::run(&arguments[2..], out);
    }
    match Cli::try_parse_from(arguments) {
        Ok(cli) => cli.command.run(out),
        Err(error) => {
            error.print()?;
            Ok(if error.use_stderr() { Outcome::USAGE } else { Outcome::CLEAN })
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
