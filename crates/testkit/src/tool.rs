//! Runs the tools of e2fsprogs, with a time limit and a fixed environment.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

/// Seconds since 1970 that the tools take for "now", so that images do not depend on the clock:
/// 2024-01-01.
pub const NOW: u32 = 1_704_067_200;

/// What a program said and how it ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Exit status; `None` after a signal.
    pub exit: Option<i32>,
    /// Whether it was killed because its time was up.
    pub timed_out: bool,
    /// Standard output and standard error, one after the other.
    pub text: String,
}

impl Outcome {
    /// `self` if the exit status is one of `allowed`.
    ///
    /// # Errors
    /// Any other end, with everything the program said.
    pub fn expect(self, program: &str, allowed: &[i32]) -> Result<Self> {
        match self.exit {
            Some(exit) if !self.timed_out && allowed.contains(&exit) => Ok(self),
            exit => bail!("{program} ended with {exit:?} (time up: {}): {}", self.timed_out, {
                self.text.trim()
            }),
        }
    }
}

/// A command of the given program with a fixed clock, language and configuration.
///
/// Programs of e2fsprogs lie in `sbin`, which is not in everyone's `PATH`.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(locate(program));
    command
        .env("LC_ALL", "C")
        .env("E2FSPROGS_FAKE_TIME", NOW.to_string())
        .env("SOURCE_DATE_EPOCH", NOW.to_string())
        .env("E2FSCK_TIME", NOW.to_string());
    command
}

/// A new temporary folder in memory where the system has one (`/dev/shm`), because the tools
/// flush what they write; set `FLOE_TEST_TMP` to name another place.
///
/// # Errors
/// No folder can be made there.
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

/// The program in `sbin` if it is there, else its bare name, to be found by `PATH`.
pub fn locate(program: &str) -> String {
    ["/usr/sbin", "/sbin", "/usr/local/sbin"]
        .iter()
        .map(|folder| format!("{folder}/{program}"))
        .find(|path| Path::new(path).exists())
        .unwrap_or_else(|| program.to_owned())
}

/// Whether all programs that build and judge images are installed; the reason if not.
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

/// Whether a test must be skipped because programs that build and judge images are missing; says so.
pub fn missing() -> bool {
    available().inspect_err(|reason| eprintln!("skipped: {reason}")).is_err()
}

/// Runs `command` and kills it after `limit_seconds`.
///
/// # Errors
/// The program (or coreutils' `timeout`, which keeps the time) cannot be started.
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
    // `timeout -s KILL` kills itself the same way, so both look like a KILL signal.
    let exit = output.status.code();
    let timed_out = exit == Some(137) || exit == Some(124) || exit.is_none();
    Ok(Outcome { exit, timed_out, text })
}

/// Runs a program of e2fsprogs to its end and wants one of the exit statuses `allowed`.
///
/// # Errors
/// As [`run`] and [`Outcome::expect`].
pub fn must<S: AsRef<OsStr>>(program: &str, args: &[S], allowed: &[i32]) -> Result<Outcome> {
    let mut command = command(program);
    command.args(args);
    run(&command, 120)?.expect(program, allowed)
}
