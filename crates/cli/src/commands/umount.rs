//! `floe umount`: unmounts, and returns when the server has exited.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, bail};
use floe_blockdev::{Use, mounted_at};
use floe_fuse::mount::unmount;
use floe_fuse::{STATUS, WRITTEN};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::getxattr;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::exit::Outcome;

/// Maximum size of a status in bytes.
const STATUS_BYTES: usize = 64 << 10;

/// Unmount a mount of `floe mount`, and wait until its server has exited.
///
/// umount(8) does the same where it finds this program as /sbin/umount.fuse.floe; without that link, and as `fusermount3 -u`,
/// it returns before the server has closed the image.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Mount point
    directory: OsString,
    /// Unmount even if it is in use: detach it now, and end it once it is unused
    #[arg(long, short)]
    lazy: bool,
}

/// Translates the command line of `umount.floe`, which umount(8) runs for a mount of the type `floe` or `fuse.floe`
/// (DIRECTORY and options), to that of `floe umount`.
pub(crate) fn of_helper(arguments: &[OsString]) -> Vec<OsString> {
    let mut line: Vec<OsString> = ["floe", "umount"].map(OsString::from).into();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("-l") => line.push("--lazy".into()),
            // A server that answers is never aborted.
            Some("-f" | "-n" | "-r" | "-v") => {}
            // File system type or namespace; both take an argument.
            Some("-t" | "-N") => {
                arguments.next();
            }
            _ => line.push(argument.clone()),
        }
    }
    line
}

/// Whether umount(8) runs this program through its link for the types `floe` and `fuse.floe`.
pub(crate) fn is_helper(program: &OsString) -> bool {
    let name = Path::new(program).file_name();
    name.is_some_and(|name| name == "umount.floe" || name == "umount.fuse.floe")
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let directory = Path::new(&self.directory);
        let status = match attribute(directory, STATUS) {
            // The server is dead, and its mount still there.
            Err(error) if is_dead(&error) => return self.unmount_dead(directory),
            other => other?,
        };
        let number = status.lines().find_map(|line| line.strip_prefix("process: "));
        let process = number.and_then(|number| number.parse().ok()).and_then(Pid::from_raw);
        // Before the unmount, because afterwards the process id may be reused.
        let server = process.and_then(|process| pidfd_open(process, PidfdFlags::empty()).ok());
        let written = write_all(directory);
        self.unmount(directory)?;
        if let Some(server) = server.filter(|_| !self.lazy) {
            let mut wait = [PollFd::new(&server, PollFlags::IN)];
            while let Err(Errno::INTR) = poll(&mut wait, None) {}
        }
        written.map(|()| Outcome::CLEAN)
    }

    fn unmount(&self, directory: &Path) -> Result<()> {
        unmount(directory, self.lazy)
            .with_context(|| format!("cannot unmount {}", directory.display()))
    }

    /// Unmounts what has no server any more.
    fn unmount_dead(&self, directory: &Path) -> Result<Outcome> {
        let was_written = takes_writes(directory);
        self.unmount(directory)?;
        if was_written {
            bail!(
                "{}: it is unmounted, but its server had ended before: changes that were not durable yet are lost; the \
                 next mount or `floe repair` recovers the others from the journal",
                directory.display()
            );
        }
        Ok(Outcome::CLEAN)
    }
}

/// Whether the system has a mount there that is not read-only.
fn takes_writes(directory: &Path) -> bool {
    // The mount itself answers nothing, so that only the name can be looked for.
    let mounted = std::path::absolute(directory).ok().and_then(|place| mounted_at(&place));
    !matches!(mounted, Some(Use::Mounted { read_only: true, .. }))
}

/// Has the server write everything while its errors can still be told: nobody learns of those of an unmount.
fn write_all(directory: &Path) -> Result<()> {
    // First the kernel lets the server have what it keeps of files, such as those that were mapped.
    let kept = File::open(directory).and_then(|opened| {
        match rustix::fs::syncfs(&opened) {
            // The kernel remembers each error until somebody calls syncfs. The programs were told of what did not fit, by write,
            // fsync or close; what the server accepted and could not write is another error.
            Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => Ok(()),
            synced => Ok(synced?),
        }
    });
    let written = kept.map_err(anyhow::Error::from);
    written.and_then(|()| attribute(directory, WRITTEN)).map(drop).with_context(|| {
        let name = directory.display();
        format!("{name}: the last changes could not be written; it is unmounted without them")
    })
}

/// Whether a mount has no server any more.
fn is_dead(error: &anyhow::Error) -> bool {
    let source = error.downcast_ref::<std::io::Error>();
    // The second if the server died while it was asked, the third if its rings end at that moment.
    let dead = [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED];
    source.and_then(Errno::from_io_error).is_some_and(|errno| dead.contains(&errno))
}

/// An attribute by which the server of a mount tells about itself.
pub(super) fn attribute(directory: &Path, name: &[u8]) -> Result<String> {
    let name = std::str::from_utf8(name)?;
    let mut value = vec![0; STATUS_BYTES];
    match getxattr(directory, name, &mut value[..]) {
        Ok(len) => {
            value.truncate(len);
            Ok(String::from_utf8_lossy(&value).into_owned())
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => {
            bail!("{} is not the mount point of a floe mount", directory.display())
        }
        Err(errno) => {
            Err(std::io::Error::from(errno)).with_context(|| directory.display().to_string())
        }
    }
}
