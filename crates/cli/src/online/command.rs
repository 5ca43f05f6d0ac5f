//! Programs that are run to make and drop snapshots.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// Runs a program to its end and returns what it printed.
///
/// It has a process group of its own: Ctrl-C at the terminal ends Floe, which cleans up, but must not
/// cut off a program that is half way through with a snapshot.
pub(super) fn run(program: impl AsRef<Path>, arguments: &[&str]) -> anyhow::Result<String> {
    let program = program.as_ref();
    let mut command = Command::new(program);
    command.args(arguments).env("LC_ALL", "C").stdin(Stdio::null()).process_group(0);
    output(command, &format!("{} {}", program.display(), arguments.join(" ")))
}

/// Likewise, with a command that is set up already; `line` is its name in messages.
pub(super) fn output(mut command: Command, line: &str) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("cannot start \"{line}\""))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("\"{line}\" failed ({}): {}", output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
