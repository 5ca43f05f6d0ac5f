//! `floe umount`: unmounts, and returns when the server has exited.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use floe_blockdev::{DeviceNumber, Place, Use, mounted_at, places_of};
use floe_fuse::mount::unmount;
use floe_fuse::{STATUS, WRITTEN, open_abort, servers_of};
use floe_sync::thread;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::getxattr;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::exit::{Ended, Outcome};
use crate::message::message;

/// Maximum size of a status in bytes.
const STATUS_BYTES: usize = 64 << 10;
/// The exit code if the server is still there when the time is over: a failure of umount(8).
const STILL_THERE: u8 = 32;
/// Time after which it is told what is waited for.
const TELL_AFTER: Duration = Duration::from_secs(1);
/// Time that a server gets to say how it serves. It answers between two requests, so that only one that hangs takes so long.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time that a server whose connection has ended gets to end, too.
const LAST_WORDS: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Unmount a mount of `floe mount`, and wait until its server has exited.
///
/// If the mount is still there in another place (a bind mount, another mount namespace), the server goes on until that
/// has ended; after a second a line says what the command waits for.
///
/// umount(8) does the same where it finds this program as /sbin/umount.fuse.floe; without that link, and as `fusermount3 -u`,
/// it returns before the server has closed the image.
///
/// Exit codes: 0 all is written and the image is closed, 8 changes are lost or it cannot be unmounted, 32 the time given by
/// --timeout is over, or the mount was ended by --force: the server still has the image.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Mount point
    directory: OsString,
    /// Unmount even if it is in use: detach it now, and end it once it is unused. Does not wait for
    /// that without --timeout
    #[arg(long, short)]
    lazy: bool,
    /// End the mount even if its server does not answer, or has died and programs use the mount;
    /// what was not durable is lost then (exit code 8)
    #[arg(long, short)]
    force: bool,
    /// Wait for the server at most so long (default: without limit)
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
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
            Some("-f") => line.push("--force".into()),
            Some("-n" | "-r" | "-v") => {}
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
        // Before anything that the server would have to answer.
        let device = device_of(directory);
        let mut forced = false;
        let status = match self.ask(directory, device, &mut forced) {
            // The server answers no more, and its mount is still there.
            Err(error) if is_dead(&error) => return self.unmount_dead(directory, device, forced),
            other => other?,
        };
        let number = status.lines().find_map(|line| line.strip_prefix("process: "));
        let process = number.and_then(|number| number.parse().ok()).and_then(Pid::from_raw);
        // Before the unmount, because afterwards the process id may be reused.
        let server = process.and_then(|process| pidfd_open(process, PidfdFlags::empty()).ok());
        let written = write_all(directory);
        self.unmount(directory)?;
        if let Some((server, process)) = server.zip(process) {
            self.wait_for(&server, process, device)?;
        }
        written.map(|()| Outcome::CLEAN)
    }

    /// Asks the server how it serves. If it does not answer soon, that is told, or with `--force` the mount is ended, and `forced` set.
    fn ask(
        &self,
        directory: &Path,
        device: Option<DeviceNumber>,
        forced: &mut bool,
    ) -> Result<String> {
        let place = directory.to_owned();
        let Ok(asked) = thread::Builder::new().spawn(move || attribute(&place, STATUS)) else {
            // Without a thread there is no limit.
            return attribute(directory, STATUS);
        };
        let begin = Instant::now();
        while !asked.is_finished() && begin.elapsed() < PATIENCE {
            thread::sleep(LOOK_EVERY);
        }
        let is_answered = asked.is_finished();
        let answer = || asked.join().unwrap_or_else(|_| bail!("a thread panicked"));
        if is_answered {
            return answer();
        }
        let name = directory.display();
        if self.force {
            message!("floe: {name}: its server does not answer; ending the mount");
            let device = device.with_context(|| format!("{name} is not a mount point"))?;
            let ended = open_abort(device.minor).and_then(|mut abort| abort.write_all(b"1"));
            ended.with_context(|| format!("{name}: the mount cannot be ended"))?;
            *forced = true;
        } else {
            message!("floe: {name}: its server does not answer; waiting (--force ends the mount)");
        }
        answer()
    }

    /// Waits until the server has let go of the image.
    fn wait_for(&self, server: &OwnedFd, process: Pid, device: Option<DeviceNumber>) -> Result<()> {
        let limit = self.timeout.map(Duration::from_secs);
        if has_ended(server, Some(limit.unwrap_or(TELL_AFTER).min(TELL_AFTER))) {
            return Ok(());
        }
        let (name, process) = (Path::new(&self.directory).display(), process.as_raw_nonzero());
        let places = device.map_or_else(Vec::new, places_of);
        let mut why = match &places[..] {
            [] if self.lazy => "it is detached, but programs still use it".to_owned(),
            [] => format!(
                "it is unmounted, and the server (process {process}) writes the last changes"
            ),
            places => {
                let all: Vec<String> = places.iter().map(Place::to_string).collect();
                format!("it is unmounted here, but still mounted on {}", all.join(", "))
            }
        };
        if self.lazy || !places.is_empty() {
            why = format!("{why}; until that has ended, the server (process {process}) goes on");
        }
        if self.lazy && limit.is_none() {
            message!("floe: {name}: {why} and has the image");
            return Ok(());
        }
        if limit.is_none_or(|limit| limit > TELL_AFTER) {
            message!("floe: {name}: {why}; waiting");
            if has_ended(server, limit.map(|limit| limit - TELL_AFTER)) {
                return Ok(());
            }
        }
        let text =
            format!("{name}: {why}. It still has the image after the time given by --timeout");
        Err(Ended::with(Outcome::own(STILL_THERE), text))
    }

    fn unmount(&self, directory: &Path) -> Result<()> {
        unmount(directory, self.lazy)
            .with_context(|| format!("cannot unmount {}", directory.display()))
    }

    /// Unmounts what no server answers for any more.
    fn unmount_dead(
        &self,
        directory: &Path,
        device: Option<DeviceNumber>,
        forced: bool,
    ) -> Result<Outcome> {
        let name = directory.display();
        let was_written = takes_writes(directory);
        // They may be stopped, or wait for a device; one that ended before is not among them. Before the unmount, as above.
        let servers = device.map_or_else(Vec::new, |device| servers_of(device.minor));
        let servers: Vec<(Pid, OwnedFd)> = servers.into_iter().filter_map(opened).collect();
        let unmounted = unmount(directory, self.lazy);
        let is_busy = |error: &io::Error| Errno::from_io_error(error) == Some(Errno::BUSY);
        match unmounted {
            Err(error) if self.force && is_busy(&error) => {
                unmount(directory, true).with_context(|| format!("cannot detach {name}"))?;
                message!(
                    "floe: {name}: programs still use it: it is detached, and gone once they do not"
                );
            }
            other => other.with_context(|| format!("cannot unmount {name}"))?,
        }
        let wait = self.timeout.map_or(LAST_WORDS, Duration::from_secs);
        let until = Instant::now() + wait;
        let rest = || until.saturating_duration_since(Instant::now());
        if let Some((process, _)) =
            servers.iter().find(|(_, server)| !has_ended(server, Some(rest())))
        {
            let text = format!(
                "{name}: it is unmounted, but its server (process {process}) does not answer and still has the image: it is \
                 stopped, or waits for a device. `kill -CONT {process}` lets a stopped one write its changes, `kill -KILL {process}` \
                 ends it without them"
            );
            return Err(Ended::with(Outcome::own(STILL_THERE), text));
        }
        if !was_written {
            return Ok(Outcome::CLEAN);
        }
        let why = if forced { "its server did not answer" } else { "its server had ended before" };
        bail!(
            "{name}: it is unmounted, but {why}: changes that were not durable yet are lost; the next mount or `floe repair` \
             recovers the others from the journal"
        );
    }
}

/// A process, and a descriptor that tells of its end.
fn opened(number: u32) -> Option<(Pid, OwnedFd)> {
    let process = Pid::from_raw(i32::try_from(number).ok()?)?;
    Some((process, pidfd_open(process, PidfdFlags::empty()).ok()?))
}

/// Whether a process ends within a time, or at any time.
pub(super) fn has_ended(process: &OwnedFd, within: Option<Duration>) -> bool {
    let until = within.map(|within| Instant::now() + within);
    loop {
        let rest = until.map(|until| until.saturating_duration_since(Instant::now()));
        let rest = rest.and_then(|rest| Timespec::try_from(rest).ok());
        match poll(&mut [PollFd::new(process, PollFlags::IN)], rest.as_ref()) {
            Err(Errno::INTR) => {}
            ended => return ended != Ok(0),
        }
    }
}

/// The number of the device that is mounted there.
fn device_of(directory: &Path) -> Option<DeviceNumber> {
    // The mount itself is not asked.
    let place = directory.canonicalize().or_else(|_| std::path::absolute(directory)).ok()?;
    match mounted_at(&place)? {
        Use::Mounted { device, .. } => Some(device),
        _ => None,
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
    let source = error.downcast_ref::<io::Error>();
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
        Err(errno) => Err(io::Error::from(errno)).with_context(|| directory.display().to_string()),
    }
}
