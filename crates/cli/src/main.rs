//! `floe`: checks and repairs ext2, ext3 and ext4 file systems.

// They end the program where they cannot write: see message.rs.
#![warn(clippy::print_stderr, clippy::print_stdout)]

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser};
use floe_sync::thread;
use rustix::process::{Resource, getrlimit};

mod commands;
mod e2fsck;
mod exit;
#[cfg(feature = "generate")]
mod generate;
mod image_files;
mod input;
mod message;
mod monitor;
mod online;
mod run;
mod terminal;

use commands::{Command, mount, umount};
use exit::Outcome;
use input::files::{Files, Refused};
use message::message;
use terminal::failure::with_causes;
use terminal::{document, panics, signals};

/// Checks, repairs, makes and mounts ext2, ext3 and ext4 file systems. Only `repair`, `undo`, `mkfs`,
/// `mount` and `fsck -y` or `-p` ever write to a device.
///
/// Exit codes are those of e2fsck: 0 clean, 1 repaired, 4 damage left, 8 operational error, 16
/// usage error, 32 cancelled.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Bytes of stack that each command finds enough, and that the system usually gives to a program.
const STACK_BYTES: usize = 8 << 20;

fn main() -> ExitCode {
    panics::end_the_program();
    signals::outlive_size_limit();
    let limit = getrlimit(Resource::Stack).current;
    if limit.is_some_and(|limit| limit < STACK_BYTES as u64 / 2) {
        // A limit (`ulimit -s`) that is too low for this thread is none for others.
        let apart = thread::Builder::new().stack_size(STACK_BYTES).spawn(run_command_line);
        if let Ok(code) = apart.map(thread::JoinHandle::join) {
            // A panic has ended the program.
            return code.unwrap_or_else(|_| ExitCode::from(Outcome::FAILED.code()));
        }
    }
    run_command_line()
}

fn run_command_line() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let mut out = Patient::new(io::stdout().lock());
    let mut device = String::new();
    let outcome = run(&arguments, &mut device, &mut out).unwrap_or_else(|error| {
        let outcome = outcome_of(&error);
        let text = with_causes(&error);
        // A caller that requests JSON gets a document for every error; a failing write is ignored.
        let _ = document::of_error(&mut out, &arguments, &device, &text, outcome);
        message!("floe: {text}");
        outcome
    });
    let flushed = out.flush();
    if let Some(error) = out.lost {
        message!("floe: the report is incomplete, because it could not be written: {error}");
    }
    match flushed {
        Ok(()) => ExitCode::from(outcome.code()),
        Err(error) => {
            // Once is enough.
            if !out.is_told {
                message!("floe: standard output: {error}");
            }
            ExitCode::from(Outcome { failed: true, ..outcome }.code())
        }
    }
}

/// The outcome for an error.
fn outcome_of(error: &anyhow::Error) -> Outcome {
    error.downcast_ref().map_or_else(|| Outcome::of_error(error), Refused::outcome)
}

/// Standard output whose reader may close it early (`floe check | head`): later output is
/// discarded, but the exit code is still correct. The same goes for a full disk, if the output only
/// tells about work that was done.
struct Patient<W> {
    out: W,
    /// The output only tells about the work of the run, such as a repair.
    tells_of_work: bool,
    /// Why output was lost.
    lost: Option<io::Error>,
    /// Whoever wrote got an error of writing, which ends the run and is told.
    is_told: bool,
}

impl<W: Write> Patient<W> {
    fn new(out: W) -> Self {
        Self { out, tells_of_work: false, lost: None, is_told: false }
    }

    fn forgive(&mut self, result: io::Result<()>) -> io::Result<()> {
        match result {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(error) if self.tells_of_work => {
                self.lost = Some(error);
                Ok(())
            }
            result => result,
        }
    }
}

impl<W: Write> Write for Patient<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        signals::reporting();
        if self.lost.is_none() {
            let result = self.out.write_all(bytes);
            let forgiven = self.forgive(result);
            self.is_told |= forgiven.is_err();
            forgiven?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.out.flush();
        self.forgive(result)
    }
}

/// The name of the program, if it is one of e2fsck's: a link that `fsck` runs.
fn e2fsck_name(program: &OsString) -> Option<&'static str> {
    let name = Path::new(program).file_name()?;
    ["e2fsck", "fsck.ext2", "fsck.ext3", "fsck.ext4", "fsck.ext4dev"]
        .into_iter()
        .find(|known| name == *known)
}

/// The file system type implied by the program's name, if it is one of mke2fs's.
fn mke2fs_type(program: &OsString) -> Option<&'static str> {
    let names =
        [("mke2fs", "ext2"), ("mkfs.ext2", "ext2"), ("mkfs.ext3", "ext3"), ("mkfs.ext4", "ext4")];
    let name = Path::new(program).file_name()?;
    names.into_iter().find(|(known, _)| name == *known).map(|(_, fs_type)| fs_type)
}

/// Runs a command line; sets `device` to the name of the device as soon as it is known.
fn run(
    arguments: &[OsString],
    device: &mut String,
    out: &mut Patient<impl Write>,
) -> anyhow::Result<Outcome> {
    // e2fsck's command line is not clap's: bundled flags, and its own exit codes.
    if let Some(program) = arguments.first().and_then(e2fsck_name) {
        out.tells_of_work = true;
        return commands::fsck::run(program, &arguments[1..], out);
    }
    if arguments.get(1).is_some_and(|verb| verb == "fsck") {
        out.tells_of_work = true;
        return commands::fsck::run("floe fsck", &arguments[2..], out);
    }
    let as_floe: Vec<OsString>;
    let mut arguments = arguments;
    if let Some(fs_type) = arguments.first().and_then(mke2fs_type) {
        let own = ["floe", "mkfs", "--as-mke2fs", fs_type].map(OsString::from);
        as_floe = own.into_iter().chain(arguments[1..].iter().cloned()).collect();
        arguments = &as_floe;
    } else if arguments.first().is_some_and(mount::is_helper) {
        let Some(line) = mount::of_helper(&arguments[1..]) else { return Ok(Outcome::CLEAN) };
        as_floe = line;
        arguments = &as_floe;
    } else if arguments.first().is_some_and(umount::is_helper) {
        as_floe = umount::of_helper(&arguments[1..]);
        arguments = &as_floe;
    }
    match Cli::parse_files(arguments) {
        Ok((cli, files)) => {
            *device = files.device();
            let judged = files.judge()?;
            out.tells_of_work = cli.command.does_work();
            let mut err = Patient { tells_of_work: true, ..Patient::new(io::stderr()) };
            // The report makes way for an output called `-`.
            let mut out: &mut dyn Write = if files.has_streamed_output() { &mut err } else { out };
            cli.command.run(&judged, &mut out)
        }
        Err(error) => {
            // To standard output or standard error; a failing write is ignored.
            let _ = error.print();
            if !error.use_stderr() {
                return Ok(Outcome::CLEAN);
            }
            let text = error.to_string();
            document::of_error(out, arguments, "", text.trim_end(), Outcome::USAGE)?;
            // Like mount(8).
            let is_mount = arguments.get(1).is_some_and(|verb| verb == "mount");
            Ok(if is_mount { Outcome::own(1) } else { Outcome::USAGE })
        }
    }
}

impl Cli {
    /// Parses a command line, and collects the files that it names.
    fn parse_files(arguments: &[OsString]) -> Result<(Self, Files), clap::Error> {
        let mut command = Self::command();
        let matches = command.try_get_matches_from_mut(arguments)?;
        let files = Files::of(&command, &matches);
        let cli = Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        Ok((cli, files))
    }
}
