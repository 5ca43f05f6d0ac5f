//! A process that watches over a mount: it ends the connection if the server dies and leaves a thread behind.
//!
//! A thread that has the kernel write back a file, or forget a name, waits in the kernel for answers that other threads of the
//! server give. If the server is killed then, nobody gives them; SIGKILL does not end such a wait, and the thread keeps `/dev/fuse` and
//! the locked image open. Neither a pipe nor a pidfd tells of that death, because a part of the process lives on. But the kernel sends
//! the *watcher* a signal when the thread that started it ends, and that thread never calls the kernel to wait for the mount.
//!
//! The watcher holds nothing but the file that ends the connection and a pipe, whose end says that no thread is left. Where fusectl cannot
//! be used, it holds a descriptor of the connection instead, and answers in the server's place, with errors, what the thread waits for.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use floe_blockdev::{Use, mounted_at};
use floe_fuse::{DevFuse, open_abort, refuse_requests, set_name_of_watcher};
use floe_sync::atomic::{AtomicBool, Ordering};
use floe_sync::{Arc, Mutex, PoisonError, thread};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::process::{getppid, set_parent_process_death_signal};

use super::daemon::Log;
use super::descriptors;
use crate::commands::umount::has_ended;
use crate::exit::Outcome;
use crate::terminal::failure::with_causes;
use crate::terminal::signals;

/// Name of the watcher's internal command.
pub(crate) const WATCHER: &str = "watch-mount";
/// How long the threads of a dying server get to end by themselves.
const GRACE: Duration = Duration::from_millis(300);
/// Pause before a watcher that was killed is replaced.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a watcher gets to end with its mount. One that is stopped takes longer, and is killed.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The watcher's command line.
#[derive(Debug, clap::Args)]
pub(crate) struct WatcherArgs {
    /// The server
    server: u32,
    /// Standard output is a descriptor of the connection, not the file that ends it
    #[arg(long)]
    answer: bool,
}

/// By which the watcher ends a connection.
enum Means {
    /// A file of fusectl.
    Abort(File),
    /// The connection itself.
    Connection(File),
}

/// Facts about the watcher that threads of the server share.
#[derive(Default)]
struct Shared {
    /// The mount has ended.
    over: AtomicBool,
    /// The watcher that runs.
    watcher: Mutex<Option<Arc<OwnedFd>>>,
}

/// A mount that is watched over until this is dropped.
pub(super) struct Watch {
    /// Closing it ends the watcher.
    to: Option<PipeWriter>,
    shared: Arc<Shared>,
    keeper: Option<thread::JoinHandle<()>>,
}

impl Watch {
    /// Watches over the mount at a mount point, which has no links in its path; `None` if it is not known. Without a watcher the mount
    /// serves as well; the log says why there is none.
    pub(super) fn begin(
        mount_point: Option<&Path>,
        carrier: &DevFuse,
        log: &Arc<Log>,
    ) -> Option<Self> {
        let told = Self::try_begin(mount_point, carrier, log).inspect_err(|error| {
            let why = with_causes(error);
            log.line(&format!(
                "no process watches over the mount, which can hang if this one is killed: {why}"
            ));
        });
        told.ok()
    }

    fn try_begin(mount_point: Option<&Path>, carrier: &DevFuse, log: &Arc<Log>) -> Result<Self> {
        let means = match mount_point.map_or_else(|| bail!("it is not known"), abort_of) {
            Ok(abort) => Means::Abort(abort),
            Err(_) => Means::Connection(carrier.duplicate()?),
        };
        let (from, to) = io::pipe()?;
        let shared = Arc::new(Shared::default());
        let (log, known) = (Arc::clone(log), Arc::clone(&shared));
        let keeper = thread::Builder::new().spawn(move || keep(&means, &from, &known, &log))?;
        Ok(Self { to: Some(to), shared, keeper: Some(keeper) })
    }
}

/// The file that ends the connection of the mount at a mount point.
fn abort_of(mount_point: &Path) -> Result<File> {
    let Some(Use::Mounted { device, .. }) = mounted_at(mount_point) else {
        bail!("it is not in /proc/self/mountinfo");
    };
    open_abort(device.minor).context("/sys/fs/fuse/connections is not there")
}

impl Shared {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    fn watcher(&self) -> Option<Arc<OwnedFd>> {
        self.watcher.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_watcher(&self, watcher: Option<Arc<OwnedFd>>) {
        *self.watcher.lock().unwrap_or_else(PoisonError::into_inner) = watcher;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.to = None;
        // It has nothing to do any more, and the image is kept until it is gone.
        if let Some(watcher) = self.shared.watcher()
            && !has_ended(&watcher, Some(LAST_WORDS))
        {
            let _ = pidfd_send_signal(&*watcher, Signal::KILL);
        }
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

/// Keeps a watcher running. If this thread ends before the mount does, the watcher ends the connection.
fn keep(means: &Means, from: &PipeReader, shared: &Shared, log: &Log) {
    while !shared.is_over() {
        match start(means, from).and_then(|watcher| wait_for(watcher, shared)) {
            _ if shared.is_over() => return,
            Ok(()) => {
                log.line("the process that watches over the mount was ended; starting another");
            }
            Err(error) => log.line(&format!("no process watches over the mount: {error}")),
        }
        thread::sleep(PAUSE);
    }
}

fn wait_for(mut watcher: Child, shared: &Shared) -> io::Result<()> {
    let process = i32::try_from(watcher.id()).ok().and_then(Pid::from_raw);
    let known = process.and_then(|process| pidfd_open(process, PidfdFlags::empty()).ok());
    shared.set_watcher(known.map(Arc::new));
    if shared.is_over() {
        // Whoever ended the mount may not have known it.
        watcher.kill()?;
    }
    watcher.wait()?;
    shared.set_watcher(None);
    Ok(())
}

fn start(means: &Means, from: &PipeReader) -> io::Result<Child> {
    let (Means::Abort(output) | Means::Connection(output)) = means;
    let answer = matches!(means, Means::Connection(_)).then_some("--answer");
    Command::new(std::env::current_exe()?)
        // Other names would select e2fsck's command line.
        .arg0("floe")
        .arg(WATCHER)
        .arg(std::process::id().to_string())
        .args(answer)
        .current_dir("/")
        .stdin(from.try_clone()?)
        .stdout(output.try_clone()?)
        .stderr(Stdio::null())
        // Ctrl-C is for the server.
        .process_group(0)
        .spawn()
}

impl WatcherArgs {
    /// Waits until the server has ended, and ends the connection if a part of the server is left.
    pub(crate) fn run(self) -> Result<Outcome> {
        descriptors::close(&descriptors::of_the_caller());
        signals::ignore()?;
        set_name_of_watcher();
        // The main thread has locked the other one.
        let output = Arc::new(File::from(rustix::io::fcntl_dupfd_cloexec(io::stdout(), 3)?));
        let end_connection = move || {
            thread::sleep(GRACE);
            // Both fail if the connection has ended.
            let _ = match self.answer {
                true => refuse_requests(&output.as_fd()),
                false => (&*output).write_all(b"1"),
            };
        };
        signals::on_user_signal(end_connection.clone())?;
        set_parent_process_death_signal(Some(Signal::USR1))?;
        let parent = getppid().map(|parent| parent.as_raw_nonzero().get().unsigned_abs());
        if parent != Some(self.server) {
            // The server died before it could be told.
            thread::Builder::new().spawn(end_connection)?;
        }
        // The end of the pipe: no thread of the server is left, or the mount has ended.
        let _ = io::stdin().read_to_end(&mut Vec::new());
        Ok(Outcome::CLEAN)
    }
}
