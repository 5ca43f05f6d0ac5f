//! Runs e2fsprogs tools, with a time limit and a fixed environment.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

/// The fixed clock of the tools, in seconds since 1970, so that images do not depend on the time:
/// 2024-01-01.
pub const NOW: u32 = 1_704_067_200;

/// Output and exit status of a program.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Exit status; `None` after a signal.
    pub exit: Option<i32>,
    /// Whether it was killed at the time limit.
    pub timed_out: bool,
    /// Standard output followed by standard error.
    pub text: String,
}

impl Outcome {
    /// Returns `self` if the exit status is one of `allowed`.
    ///
    /// # Errors
    /// Any other exit status, with all output.
    pub fn expect(self, program: &str, allowed: &[i32]) -> Result<Self> {
        match self.exit {
            Some(exit) if !self.timed_out && allowed.contains(&exit) => Ok(self),
            exit => bail!("{program} ended with {exit:?} (timed out: {}): {}", self.timed_out, {
                self.text.trim()
            }),
        }
    }
}

/// A command for the given program, with a fixed clock, language and configuration.
///
/// e2fsprogs tools are in `sbin`, which `PATH` may lack.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(locate(program));
    command
        .env("LC_ALL", "C")
        .env("E2FSPROGS_FAKE_TIME", NOW.to_string())
        .env("SOURCE_DATE_EPOCH", NOW.to_string())
        .env("E2FSCK_TIME", NOW.to_string());
    command
}

/// The newest floe that cargo built, optimised or not.
///
/// # Errors
/// There is none.
pub fn built_floe() -> Result<PathBuf> {
    ["target/release/floe", "target/debug/floe"]
        .into_iter()
        .map(|path| Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path))
        .filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)))
        .max()
        .map(|(_, path)| path)
        .context("floe is not built: cargo build -p floe, or name it with --floe")
}

/// A new temporary folder, in memory if the system has `/dev/shm`, because the tools flush their
/// writes. `FLOE_TEST_TMP` selects another place.
///
/// # Errors
/// No folder can be created there.
pub fn scratch(prefix: &str) -> Result<TempDir> {
    let place = match std::env::var_os("FLOE_TEST_TMP") {
        Some(place) => place.into(),
        None if Path::new("/dev/shm").is_dir() => Path::new("/dev/shm").to_owned(),
        None => std::env::temp_dir(),
    };
    tempfile::Builder::new()
        .prefix(prefix)
        .tempdir_in(&place)
        .with_context(|| format!("making a folder in {}", place.display()))
}

/// The path of the program in `sbin` if it exists, else its bare name for a search in `PATH`.
pub fn locate(program: &str) -> String {
    ["/usr/sbin", "/sbin", "/usr/local/sbin"]
        .iter()
        .map(|folder| format!("{folder}/{program}"))
        .find(|path| Path::new(path).exists())
        .unwrap_or_else(|| program.to_owned())
}

/// Whether all programs for building and judging images are installed.
///
/// # Errors
/// The first program that cannot be started.
pub fn available() -> Result<(), String> {
    for program in ["mke2fs", "e2fsck", "debugfs"] {
        Command::new(locate(program))
            .arg("-V")
            .output()
            .map_err(|error| format!("{program} cannot be started: {error}"))?;
    }
    Ok(())
}

/// Whether a test must be skipped because such programs are missing; prints the reason.
pub fn missing() -> bool {
    available().inspect_err(|reason| eprintln!("skipped: {reason}")).is_err()
}

/// Runs `command` and kills it after `limit_seconds`.
///
/// # Errors
/// The program cannot be started, or coreutils' `timeout`, which enforces the limit.
pub fn run(command: &Command, limit_seconds: u32) -> Result<Outcome> {
    let mut timed = Command::new("timeout");
    timed.args(["-s", "KILL", &limit_seconds.to_string()]);
    timed.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => timed.env(name, value),
            None => timed.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        timed.current_dir(folder);
    }
    let output = timed
        .stdin(std::process::Stdio::null())
        .output()
        .with_context(|| format!("starting {}", command.get_program().display()))?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    // `timeout -s KILL` kills itself in the same way, so both exits look like SIGKILL.
    let exit = output.status.code();
    let timed_out = exit == Some(137) || exit == Some(124) || exit.is_none();
    Ok(Outcome { exit, timed_out, text })
}

/// Runs an e2fsprogs tool to completion, and requires one of the exit statuses `allowed`.
///
/// # Errors
/// As [`run`] and [`Outcome::expect`].
pub fn must<S: AsRef<OsStr>>(program: &str, args: &[S], allowed: &[i32]) -> Result<Outcome> {
    let mut command = command(program);
    command.args(args);
    run(&command, 120)?.expect(program, allowed)
}
