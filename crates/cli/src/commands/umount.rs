//! `floe umount`: unmounts, and returns when the server has exited.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use floe_blockdev::{DeviceNumber, Place, Use, mounted_at, places_of};
use floe_fuse::mount::unmount;
use floe_fuse::{STATUS, WRITTEN, servers_of, stopped_watchers_of};
use floe_sync::thread;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::set_parent_process_death_signal;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::exit::{Ended, Outcome};
use crate::message::message;
use apart::{Apart, Call, end, read_attribute, umount_again};

mod apart;

/// The exit code if the server is still there when the time is over: a failure of umount(8).
const STILL_THERE: u8 = 32;
/// Time after which it is told what is waited for.
const TELL_AFTER: Duration = Duration::from_secs(1);
/// Time that a server gets to say how it serves. It answers between two requests, so that only one that hangs takes so long.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time that a server whose connection has ended gets to end, too.
const LAST_WORDS: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Time in which a request that the end of its connection has ended returns.
const TO_LET_GO: Duration = Duration::from_secs(1);
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
    /// Make one call of the kernel for another `floe umount`, and tell standard output what it returned
    #[arg(long, hide = true)]
    call: Option<Call>,
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
    pub(crate) fn run(self, out: &mut impl Write) -> Result<Outcome> {
        if let Some(call) = self.call {
            return call.run(Path::new(&self.directory), out);
        }
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
        let status = match self.ask(directory, device, until)? {
            Answer::Status(status) => status,
            Answer::Silent(asker) => {
                return self.unmount_dead(directory, device, until, Some(asker));
            }
            Answer::Dead => return self.unmount_dead(directory, device, until, None),
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
        let seconds = limit.as_secs().to_string();
        let arguments = ["--awaited", "--timeout", &seconds].into_iter();
        let arguments = arguments.chain(self.lazy.then_some("--lazy")).map(OsStr::new);
        let mut child = umount_again(arguments, directory)?.spawn()?;
        let known = opened(child.id()).context("a process cannot be waited for")?;
        let said = child.stderr.take();
        let relay = said.map(|mut said| {
            let relay = move || io::copy(&mut said, &mut io::stderr());
            thread::Builder::new().spawn(relay)
        });
        if has_ended(&known.1, Some(limit.saturating_add(TO_TELL))) {
            let code = child.wait()?.code().and_then(|code| u8::try_from(code).ok());
            if let Some(relay) = relay {
                let _ = relay?.join();
            }
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

    /// Asks the server how it serves. If it does not answer soon, that is told, or with `--force` the mount is ended.
    fn ask(
        &self,
        directory: &Path,
        device: Option<DeviceNumber>,
        until: Option<Instant>,
    ) -> Result<Answer> {
        let begin = Instant::now();
        let limit = until.map(|until| until.saturating_duration_since(begin).max(ASK_AT_LEAST));
        let patience = match (self.force, self.lazy) {
            // The rest of the time is that of a server that ends.
            (true, _) => limit.map_or(PATIENCE, |limit| limit / 2).min(PATIENCE),
            // It is detached then, and the rest of the time is the server's.
            (false, true) => limit.map_or(LAST_WORDS, |limit| limit / 2).min(LAST_WORDS),
            (false, false) => limit.unwrap_or(PATIENCE).min(PATIENCE),
        };
        let mut asker = Apart::start(Call::Ask, directory)?;
        if let Some(answer) = asker.result(Some(patience)) {
            return self.judge(directory, device, answer);
        }
        let name = directory.display();
        if self.force {
            message!("floe: {name}: its server does not answer; ending the mount");
            let device = device.with_context(|| format!("{name} is not a mount point"))?;
            end(device).with_context(|| format!("{name}: the mount cannot be ended"))?;
            // Its process uses the mount until then, and is a user as any other.
            asker.result(Some(TO_LET_GO));
        }
        if self.force || self.lazy {
            return Ok(Answer::Silent(asker));
        }
        if limit.is_none_or(|limit| limit > patience) {
            message!("floe: {name}: its server does not answer; waiting (--force ends the mount)");
        }
        match asker.result(limit.map(|limit| limit.saturating_sub(begin.elapsed()))) {
            Some(answer) => self.judge(directory, device, answer),
            None => Err(unanswered(directory, &in_words(device), true)),
        }
    }

    /// Judges what a server, or the kernel in its place, answered.
    fn judge(
        &self,
        directory: &Path,
        device: Option<DeviceNumber>,
        answer: io::Result<String>,
    ) -> Result<Answer> {
        match answer {
            Err(error) if is_dead(&error) => {
                if let Some(device) = device.filter(|_| self.force) {
                    // A thread of the server may be left that nothing else ends. If the connection has ended, there is no such file.
                    let _ = end(device);
                }
                Ok(Answer::Dead)
            }
            answer => Ok(Answer::Status(in_words_for(directory, answer)?)),
        }
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

    /// Takes a mount without a server out of the tree. With `is_asked`, a process of this program still waits for the server and uses
    /// the mount.
    fn detach_dead(
        &self,
        directory: &Path,
        device: Option<DeviceNumber>,
        is_asked: bool,
        within: Duration,
    ) -> Result<()> {
        let name = directory.display();
        let unmount = |call| Apart::start(call, directory)?.leaves_tree(directory, device, within);
        let is_busy = |error: &io::Error| Errno::from_io_error(error) == Some(Errno::BUSY);
        let first = if self.lazy || is_asked { Call::Detach } else { Call::Unmount };
        match unmount(first) {
            Err(error) if self.force && is_busy(&error) => {
                unmount(Call::Detach).with_context(|| format!("cannot detach {name}"))?;
                message!(
                    "floe: {name}: programs still use it: it is detached, and gone once they do not"
                );
                Ok(())
            }
            other => other.with_context(|| format!("cannot unmount {name}")),
        }
    }

    /// Unmounts what no server answers for any more.
    fn unmount_dead(
        &self,
        directory: &Path,
        device: Option<DeviceNumber>,
        until: Option<Instant>,
        mut asker: Option<Apart>,
    ) -> Result<Outcome> {
        let name = directory.display();
        let was_written = takes_writes(directory);
        // They may be stopped, or wait for a device; one that ended before is not among them. Before the unmount, as above.
        let servers = device.map_or_else(Vec::new, |device| servers_of(device.minor));
        let servers: Vec<(Pid, OwnedFd)> = servers.into_iter().filter_map(opened).collect();
        let watchers = device.map_or_else(Vec::new, |device| stopped_watchers_of(device.minor));
        let watchers: Vec<(Pid, OwnedFd)> = watchers.into_iter().filter_map(opened).collect();
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
        let is_ours =
            asker.as_mut().is_some_and(|asker| asker.result(Some(Duration::ZERO)).is_none());
        self.detach_dead(directory, device, is_ours, rest())?;
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
        let why = if asker.is_some() {
            "its server did not answer"
        } else {
            "its server had ended before"
        };
        bail!(
            "{name}: it is unmounted, but {why}: changes that were not durable yet are lost; the next mount or `floe repair` \
             recovers the others from the journal"
        );
    }
}

/// The result of a question to a server.
enum Answer {
    /// How it serves.
    Status(String),
    /// Nothing came in time. The mount is ended, or is to be detached nevertheless.
    Silent(Apart),
    /// The server is gone, and its mount is still there.
    Dead,
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
pub(super) fn is_dead(error: &io::Error) -> bool {
    // The second if the server died while it was asked.
    let dead = [Errno::NOTCONN, Errno::CONNABORTED];
    Errno::from_io_error(error).is_some_and(|errno| dead.contains(&errno))
}

/// An attribute by which the server of a mount tells about itself.
pub(super) fn attribute(directory: &Path, name: &[u8]) -> Result<String> {
    in_words_for(directory, read_attribute(directory, name))
}

/// Words for a person about an attribute that cannot be read.
fn in_words_for(directory: &Path, read: io::Result<String>) -> Result<String> {
    let name = directory.display();
    match read.as_ref().err().and_then(Errno::from_io_error) {
        Some(Errno::NODATA | Errno::OPNOTSUPP) => {
            bail!("{name} is not the mount point of a floe mount")
        }
        _ => read.with_context(|| name.to_string()),
    }
}
