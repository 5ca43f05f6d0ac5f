//! `floe umount`: unmounts, and returns when the server has exited.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use floe_blockdev::{DeviceNumber, Place, Use, mounted_at, places_of};
use floe_fuse::mount::unmount;
use floe_fuse::{STATUS, WRITTEN, open_abort, servers_of, stopped_watchers_of};
use floe_sync::thread;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::getxattr;
use rustix::io::Errno;
use rustix::process::set_parent_process_death_signal;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

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
/// Time that a server gets at least to say how it serves.
const ASK_AT_LEAST: Duration = Duration::from_millis(200);
/// Time after that of `--timeout` in which the process that unmounts can say what it waits for.
const TO_TELL: Duration = Duration::from_millis(500);

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
    /// This process is one that another `floe umount` waits for
    #[arg(long, hide = true)]
    awaited: bool,
}

/// A thread that asks a server how it serves.
type Asked = thread::JoinHandle<Result<String>>;

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
        let limit = self.timeout.map(Duration::from_secs);
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        if self.awaited {
            set_parent_process_death_signal(Some(Signal::TERM))?;
        } else if let Some(limit) = limit.filter(|_| !self.force) {
            return self.run_within(limit);
        }
        let directory = Path::new(&self.directory);
        // Before anything that the server would have to answer.
        let device = device_of(directory);
        let mut forced = false;
        let status = match self.ask(directory, device, until, &mut forced) {
            Ok(Some(status)) => status,
            // It is detached without an answer.
            Ok(None) => return self.unmount_dead(directory, device, until, true),
            // The server answers no more, and its mount is still there.
            Err(error) if is_dead(&error) => {
                return self.unmount_dead(directory, device, until, forced);
            }
            Err(error) => return Err(error),
        };
        let number = status.lines().find_map(|line| line.strip_prefix("process: "));
        let process = number.and_then(|number| number.parse().ok()).and_then(Pid::from_raw);
        // Before the unmount, because afterwards the process id may be reused.
        let server = process.and_then(|process| pidfd_open(process, PidfdFlags::empty()).ok());
        let written = write_all(directory);
        if let Some(image) = process.filter(|_| takes_writes(directory)).and_then(deleted_image) {
            let (name, image) = (directory.display(), image.display());
            message!(
                "floe: {name}: its image was deleted while it was mounted: {image}. All that was written is gone"
            );
        }
        self.unmount(directory)?;
        if let Some((server, process)) = server.zip(process) {
            self.wait_for(&server, process, device, until)?;
        }
        written.map(|()| Outcome::CLEAN)
    }

    /// Unmounts in a process of its own, which is left alone once the time is over: each call of the kernel that asks a server can wait
    /// for ever, some of them even after SIGKILL.
    fn run_within(&self, limit: Duration) -> Result<Outcome> {
        let directory = Path::new(&self.directory);
        let device = device_of(directory);
        let mut command = Command::new(std::env::current_exe()?);
        // Other names would select e2fsck's command line.
        command.arg0("floe").args(["umount", "--awaited", "--timeout"]);
        command.arg(limit.as_secs().to_string()).args(self.lazy.then_some("--lazy"));
        let mut child = command.arg("--").arg(directory).spawn()?;
        let known = opened(child.id()).context("a process cannot be waited for")?;
        if has_ended(&known.1, Some(limit.saturating_add(TO_TELL))) {
            let code = child.wait()?.code().and_then(|code| u8::try_from(code).ok());
            return Ok(Outcome::own(code.context("a process of the unmount was killed")?));
        }
        child.kill()?;
        let servers = in_words(device);
        let is_there = || device.is_some() && device_of(directory) == device;
        if self.lazy && is_there() {
            self.unmount(directory)?;
        }
        Err(unanswered(directory, &servers, is_there()))
    }

    /// Asks the server how it serves. If it does not answer soon, that is told, or with `--force` the mount is ended, and `forced` set.
    /// `None` if it does not answer, and the mount can be detached nevertheless.
    fn ask(
        &self,
        directory: &Path,
        device: Option<DeviceNumber>,
        until: Option<Instant>,
        forced: &mut bool,
    ) -> Result<Option<String>> {
        let place = directory.to_owned();
        let Ok(asked) = thread::Builder::new().spawn(move || attribute(&place, STATUS)) else {
            // Without a thread there is no limit.
            return attribute(directory, STATUS).map(Some);
        };
        let begin = Instant::now();
        let is_answered = |asked: &Asked, within: Option<Duration>| {
            while !asked.is_finished() && within.is_none_or(|within| begin.elapsed() < within) {
                thread::sleep(LOOK_EVERY);
            }
            asked.is_finished()
        };
        let limit = until.map(|until| until.saturating_duration_since(begin).max(ASK_AT_LEAST));
        let patience = match (self.force, self.lazy) {
            // The rest of the time is that of a server that ends.
            (true, _) => limit.map_or(PATIENCE, |limit| limit / 2).min(PATIENCE),
            // It is detached then, and the rest of the time is the server's.
            (false, true) => limit.map_or(LAST_WORDS, |limit| limit / 2).min(LAST_WORDS),
            (false, false) => limit.unwrap_or(PATIENCE).min(PATIENCE),
        };
        let in_time = is_answered(&asked, Some(patience));
        let answer = |asked: Asked| asked.join().unwrap_or_else(|_| bail!("a thread panicked"));
        if in_time {
            return answer(asked).map(Some);
        }
        let name = directory.display();
        if self.force {
            message!("floe: {name}: its server does not answer; ending the mount");
            let device = device.with_context(|| format!("{name} is not a mount point"))?;
            let ended = open_abort(device.minor).and_then(|mut abort| abort.write_all(b"1"));
            ended.with_context(|| format!("{name}: the mount cannot be ended"))?;
            *forced = true;
        } else if self.lazy {
            return Ok(None);
        } else if limit.is_none_or(|limit| limit > patience) {
            message!("floe: {name}: its server does not answer; waiting (--force ends the mount)");
        }
        if !self.force && !is_answered(&asked, limit) {
            return Err(unanswered(directory, &in_words(device), true));
        }
        answer(asked).map(Some)
    }

    /// Waits until the server has let go of the image.
    fn wait_for(
        &self,
        server: &OwnedFd,
        process: Pid,
        device: Option<DeviceNumber>,
        until: Option<Instant>,
    ) -> Result<()> {
        let limit = until.map(|until| until.saturating_duration_since(Instant::now()));
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
        until: Option<Instant>,
        forced: bool,
    ) -> Result<Outcome> {
        let name = directory.display();
        let was_written = takes_writes(directory);
        // They may be stopped, or wait for a device; one that ended before is not among them. Before the unmount, as above.
        let servers = device.map_or_else(Vec::new, |device| servers_of(device.minor));
        let servers: Vec<(Pid, OwnedFd)> = servers.into_iter().filter_map(opened).collect();
        let watchers = device.map_or_else(Vec::new, |device| stopped_watchers_of(device.minor));
        let watchers: Vec<(Pid, OwnedFd)> = watchers.into_iter().filter_map(opened).collect();
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
        let begin = Instant::now();
        let wait = match (self.timeout.map(Duration::from_secs), until) {
            (_, Some(until)) if self.force => {
                until.saturating_duration_since(begin).max(ASK_AT_LEAST)
            }
            (_, Some(until)) => until.saturating_duration_since(begin),
            // It waits for nothing.
            _ if self.lazy && !self.force => Duration::ZERO,
            _ => LAST_WORDS,
        };
        let rest = || wait.saturating_sub(begin.elapsed());
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
        // Its server is gone, and would have killed it.
        for (_, watcher) in watchers {
            let _ = pidfd_send_signal(&watcher, Signal::KILL);
            has_ended(&watcher, Some(LAST_WORDS));
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

/// The error for a server that has not answered in the time of `--timeout`.
fn unanswered(directory: &Path, servers: &str, is_mounted: bool) -> anyhow::Error {
    let name = directory.display();
    let place = if is_mounted { "is still mounted" } else { "is unmounted" };
    let text = format!(
        "{name}: its server{servers} has not answered in the time given by --timeout: it is stopped, or waits for a device. \
         {name} {place}, and the server has the image{}",
        if is_mounted { "; --force ends the mount" } else { "" }
    );
    Ended::with(Outcome::own(STILL_THERE), text)
}

/// The server of a mount in words, as far as it is known.
fn in_words(device: Option<DeviceNumber>) -> String {
    let servers = device.map_or_else(Vec::new, |device| servers_of(device.minor));
    servers.first().map_or_else(String::new, |process| format!(" (process {process})"))
}

/// A process, and a descriptor that tells of its end.
fn opened(number: u32) -> Option<(Pid, OwnedFd)> {
    let process = Pid::from_raw(i32::try_from(number).ok()?)?;
    Some((process, pidfd_open(process, PidfdFlags::empty()).ok()?))
}

/// Whether a process ends within a time, or at any time.
pub(super) fn has_ended(process: &OwnedFd, within: Option<Duration>) -> bool {
    let until = within.and_then(|within| Instant::now().checked_add(within));
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

/// The image of a server, as far as the system lets us look, if no name leads to it any more: a file that the server may write.
fn deleted_image(process: Pid) -> Option<PathBuf> {
    let process = process.as_raw_nonzero();
    let opened = fs::read_dir(format!("/proc/{process}/fd")).ok()?.flatten();
    // The first three are the server's standard streams.
    let number = |one: &fs::DirEntry| one.file_name().to_str().and_then(|name| name.parse().ok());
    let others = opened.filter(|one| number(one).is_some_and(|number: u32| number > 2));
    let mut deleted = others.filter(|one| {
        let is_written = one.path().symlink_metadata().is_ok_and(|link| link.mode() & 0o200 != 0);
        let file = fs::metadata(one.path());
        is_written && file.is_ok_and(|file| file.is_file() && file.nlink() == 0)
    });
    fs::read_link(deleted.next()?.path()).ok()
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
        let synced = match rustix::fs::syncfs(&opened) {
            // Told of a program that was killed while it waited for the server; what the kernel keeps is written the second time.
            Err(Errno::INTR) => rustix::fs::syncfs(&opened),
            synced => synced,
        };
        match synced {
            // The kernel remembers each error until somebody calls syncfs. The programs were told of what did not fit, by write,
            // fsync or close; what the server accepted and could not write is another error.
            Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => Ok(()),
            synced => Ok(synced?),
        }
    });
    // In any case, as the server may have errors of its own to tell.
    let asked = attribute(directory, WRITTEN).map(drop);
    let written = kept.map_err(anyhow::Error::from).and(asked);
    // The system's error is only a number.
    written.map_err(|error| why_ended(directory).map_or(error, anyhow::Error::msg)).with_context(
        || {
            let name = directory.display();
            format!("{name}: the last changes could not be written; it is unmounted without them")
        },
    )
}

/// Why the server of a mount writes nothing any more, if it says so.
fn why_ended(directory: &Path) -> Option<String> {
    let status = attribute(directory, STATUS).ok()?;
    status.lines().find_map(|line| line.strip_prefix("writing ended: ")).map(str::to_owned)
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
