//! Runs programs that create and remove snapshots.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// Runs a program to completion and returns its output.
///
/// It has its own process group: Ctrl-C at the terminal ends Floe, which cleans up, but must not
/// interrupt a program halfway through a snapshot.
pub(super) fn run(program: impl AsRef<Path>, arguments: &[&str]) -> anyhow::Result<String> {
    let program = program.as_ref();
    let mut command = Command::new(program);
    command.args(arguments).env("LC_ALL", "C").stdin(Stdio::null()).process_group(0);
    output(command, &format!("{} {}", program.display(), arguments.join(" ")))
}

/// The same with a prepared command; `line` is its name in messages.
pub(super) fn output(mut command: Command, line: &str) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("cannot start \"{line}\""))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("\"{line}\" failed ({}): {}", output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
