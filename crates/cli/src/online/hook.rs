//! Snapshots by a user-defined command: a storage array, a cloud, a hypervisor.
//!
//! The command runs twice, in a shell. With `FLOE_ACTION=create` it creates a snapshot and prints
//! the path of a device or image file as its last line of output; with `FLOE_ACTION=drop` it
//! removes the snapshot in `FLOE_SNAPSHOT`. `FLOE_MOUNT_POINT` and `FLOE_DEVICE` identify the file
//! system.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

use super::command;
use super::freeze::Freeze;
use super::teardown::Teardown;
use super::{Mounted, Snapshot};
use crate::input::device::Source;
use crate::input::files::Judged;

/// A snapshot created by the command `line`; with `freeze`, writers are blocked meanwhile, for at
/// most that time.
pub(super) fn snapshot(
    mounted: &Mounted,
    line: &str,
    freeze: Option<Duration>,
    files: &Judged,
) -> anyhow::Result<Snapshot> {
    let prepared = |action: &str| {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", line]).env("FLOE_ACTION", action).stdin(Stdio::null());
        command.env("FLOE_MOUNT_POINT", &mounted.point).env("FLOE_DEVICE", &mounted.device);
        // Standard error goes to the user.
        command.stderr(Stdio::inherit()).process_group(0);
        command
    };
    let make = || {
        let frozen = freeze.map(|limit| Freeze::new(&mounted.point, limit)).transpose()?;
        let said = command::output(prepared("create"), line);
        // Thaw before anything else.
        let frozen = frozen.map(Freeze::thaw).transpose();
        let said = said?;
        let path = said.lines().map(str::trim).rfind(|line| !line.is_empty());
        let Some(path) = path.map(str::to_owned) else {
            bail!("\"{line}\" printed no path of a snapshot");
        };
        let mut removal = prepared("drop");
        removal.env("FLOE_SNAPSHOT", &path);
        let name = line.to_owned();
        let remove =
            move || command::output(removal, &name).map(drop).context("the snapshot may be left");
        Ok(((path, frozen), Box::new(remove) as _))
    };
    let ((path, frozen), teardown) = Teardown::after(make)?;
    // Judged only now, so that a refused snapshot is removed.
    files.admit("the snapshot", Path::new(&path))?;
    let about = mounted.about("command", frozen?);
    let device = Source::whole(Path::new(&path)).open()?;
    Ok(Snapshot { about, device, teardown, verdict_counts: Box::new(|| Ok(())) })
}
