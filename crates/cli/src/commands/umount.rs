//! `floe umount`: unmounts, and returns when the server is gone.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result, bail};
use floe_fuse::STATUS;
use floe_fuse::mount::unmount;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::getxattr;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::exit::Outcome;

/// Bytes of a status at most.
const STATUS_BYTES: usize = 64 << 10;

/// Unmount what `floe mount` mounted, and wait until its server has ended.
///
/// umount(8) and `fusermount3 -u` unmount too, but return before the server has let go of the image.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory that it is mounted on
    directory: OsString,
    /// Unmount even if it is in use: it leaves the tree at once, and ends when nobody uses it any more
    #[arg(long, short)]
    lazy: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let directory = Path::new(&self.directory);
        let status = match status(directory) {
            // The server is dead, and its mount still there.
            Err(error) if is_dead(&error) => String::new(),
            other => other?,
        };
        let number = status.lines().find_map(|line| line.strip_prefix("process: "));
        let process = number.and_then(|number| number.parse().ok()).and_then(Pid::from_raw);
        // Before the unmount: afterwards the number may be another's.
        let server = process.and_then(|process| pidfd_open(process, PidfdFlags::empty()).ok());
        unmount(directory, self.lazy)
            .with_context(|| format!("cannot unmount {}", directory.display()))?;
        if let Some(server) = server.filter(|_| !self.lazy) {
            let mut wait = [PollFd::new(&server, PollFlags::IN)];
            while let Err(Errno::INTR) = poll(&mut wait, None) {}
        }
        Ok(Outcome::CLEAN)
    }
}

/// Whether a mount has no server any more.
fn is_dead(error: &anyhow::Error) -> bool {
    let source = error.downcast_ref::<std::io::Error>();
    source.and_then(Errno::from_io_error) == Some(Errno::NOTCONN)
}

/// What the server of a mount says about itself.
pub(super) fn status(directory: &Path) -> Result<String> {
    let name = std::str::from_utf8(STATUS)?;
    let mut value = vec![0; STATUS_BYTES];
    match getxattr(directory, name, &mut value[..]) {
        Ok(len) => {
            value.truncate(len);
            Ok(String::from_utf8_lossy(&value).into_owned())
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => {
            bail!("{}: no mount of floe; name its top directory", directory.display())
        }
        Err(errno) => {
            Err(std::io::Error::from(errno)).with_context(|| directory.display().to_string())
        }
    }
}
