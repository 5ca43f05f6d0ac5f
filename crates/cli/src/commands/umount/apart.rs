//! Calls of the kernel that may never return, each in a process of its own. A request that a stopped server has in its ring ends neither
//! with the connection nor with the program that waits for it, which then outlives SIGKILL: so this program must not be the one.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Result;
use floe_blockdev::DeviceNumber;
use floe_fuse::mount::unmount;
use floe_fuse::{STATUS, open_abort};
use floe_sync::thread;
use rustix::fs::getxattr;
use rustix::io::Errno;
use rustix::process::{Signal, set_parent_process_death_signal};

use super::{LOOK_EVERY, device_of, has_ended, opened};
use crate::exit::Outcome;

/// Maximum size of a status in bytes.
const STATUS_BYTES: usize = 64 << 10;

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Call {
    /// Asks the server how it serves.
    Ask,
    /// Unmounts what nobody uses.
    Unmount,
    /// Unmounts what is in use, too.
    Detach,
}

/// A call that another process makes.
pub(super) struct Apart {
    child: Child,
    end: OwnedFd,
}

/// Starts this program again for a mount point, as `floe umount`.
pub(super) fn umount_again<'a>(
    arguments: impl IntoIterator<Item = &'a OsStr>,
    directory: &Path,
) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    // Other names would select e2fsck's command line.
    command.arg0("floe").arg("umount").args(arguments).arg("--").arg(directory);
    // Whoever reads the standard error of this process waits until nobody has it any more.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

impl Call {
    /// The word on the command line.
    const fn word(self) -> &'static str {
        match self {
            Self::Ask => "--call=ask",
            Self::Unmount => "--call=unmount",
            Self::Detach => "--call=detach",
        }
    }

    /// Makes the call in this process, and writes what came of it to `out`: the number of the error or 0, and a text behind it.
    pub(super) fn run(self, directory: &Path, out: &mut impl Write) -> Result<Outcome> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        match self.make(directory) {
            Ok(text) => write!(out, "0\n{text}")?,
            Err(error) => write!(out, "{}\n{error}", error.raw_os_error().unwrap_or(-1))?,
        }
        Ok(Outcome::CLEAN)
    }

    fn make(self, directory: &Path) -> io::Result<String> {
        let is_detached = match self {
            Self::Ask => return ask(directory),
            Self::Unmount => false,
            Self::Detach => true,
        };
        unmount(directory, is_detached).map(|()| String::new())
    }
}

/// Ends the connection of a mount. The kernel does not wait for anything then.
pub(super) fn end(device: DeviceNumber) -> io::Result<()> {
    open_abort(device.minor)?.write_all(b"1")
}

/// Asks the server how it serves.
fn ask(directory: &Path) -> io::Result<String> {
    loop {
        match read_attribute(directory, STATUS) {
            // The thread of the server that was to get it has ended, which says nothing of the others, nor of the mount.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::CANCELED) => {
                thread::sleep(LOOK_EVERY);
            }
            answer => return answer,
        }
    }
}

/// An attribute, which the server answers.
pub(super) fn read_attribute(directory: &Path, name: &[u8]) -> io::Result<String> {
    let name = std::str::from_utf8(name).map_err(io::Error::other)?;
    let mut value = vec![0; STATUS_BYTES];
    let len = getxattr(directory, name, &mut value[..])?;
    value.truncate(len);
    Ok(String::from_utf8_lossy(&value).into_owned())
}

impl Apart {
    /// Starts a call.
    pub(super) fn start(call: Call, directory: &Path) -> io::Result<Self> {
        let child = umount_again([OsStr::new(call.word())], directory)?.spawn()?;
        let known = opened(child.id());
        let (_, end) = known.ok_or_else(|| io::Error::other("a process cannot be waited for"))?;
        Ok(Self { child, end })
    }

    /// The result of the call, if it returns within a time, or ever.
    pub(super) fn result(&mut self, within: Option<Duration>) -> Option<io::Result<String>> {
        has_ended(&self.end, within).then(|| self.returned())
    }

    /// The result of an unmount. A mount leaves the tree at once; if the kernel waits for its requests then, that counts as done after a
    /// time.
    pub(super) fn leaves_tree(
        &mut self,
        directory: &Path,
        device: Option<DeviceNumber>,
        within: Duration,
    ) -> io::Result<()> {
        loop {
            let has_left = device_of(directory) != device;
            let result = self.result(Some(if has_left { within } else { LOOK_EVERY }));
            match result {
                Some(done) => return done.map(drop),
                None if has_left => return Ok(()),
                None => {}
            }
        }
    }

    fn returned(&mut self) -> io::Result<String> {
        self.child.wait()?;
        let mut text = String::new();
        if let Some(mut told) = self.child.stdout.take() {
            told.read_to_string(&mut text)?;
        }
        let (number, rest) = text.split_once('\n').unwrap_or_default();
        match number.parse() {
            Ok(0) => Ok(rest.to_owned()),
            Ok(number) if number > 0 => Err(io::Error::from_raw_os_error(number)),
            Ok(_) => Err(io::Error::other(rest.to_owned())),
            Err(_) => Err(io::Error::other("the process that was to call the kernel has failed")),
        }
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        // One that has ended is known to the system until it was waited for; another one may take for ever to end.
        let _ = self.child.kill();
        let _ = self.child.try_wait();
    }
}
