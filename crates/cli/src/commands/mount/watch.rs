//! A process that watches over a mount: it ends the connection if the server dies and leaves a thread behind.
//!
//! A thread that has the kernel write back a file, or forget a name, waits in the kernel for answers that other threads of the
//! server give. If the server is killed then, nobody gives them; SIGKILL does not end such a wait, and the thread keeps `/dev/fuse` and
//! the locked image open. Neither a pipe nor a pidfd tells of that death, because a part of the process lives on. But the kernel sends
//! the *watcher* a signal when the thread that started it ends, and that thread never calls the kernel to wait for the mount.
//!
//! The watcher holds nothing but the file that ends the connection and a pipe, whose end says that no thread is left.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use floe_blockdev::{Use, mounted_at};
use floe_fuse::open_abort;
use floe_sync::atomic::{AtomicBool, Ordering};
use floe_sync::{Arc, thread};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::daemon::Log;
use crate::exit::Outcome;
use crate::terminal::failure::with_causes;
use crate::terminal::signals;

/// Name of the watcher's internal command.
pub(crate) const WATCHER: &str = "watch-mount";
/// How long the threads of a dying server get to end by themselves.
const GRACE: Duration = Duration::from_millis(300);
/// Pause before a watcher that was killed is replaced.
const PAUSE: Duration = Duration::from_secs(1);

/// The watcher's command line.
#[derive(Debug, clap::Args)]
pub(crate) struct WatcherArgs {
    /// The server
    server: u32,
}

/// A mount that is watched over until this is dropped.
pub(super) struct Watch {
    /// Closing it ends the watcher.
    to: Option<PipeWriter>,
    over: Arc<AtomicBool>,
    keeper: Option<thread::JoinHandle<()>>,
}

impl Watch {
    /// Watches over the mount at a mount point, which has no links in its path. Without a watcher the mount serves as well; the log
    /// says why there is none.
    pub(super) fn begin(mount_point: io::Result<PathBuf>, log: &Arc<Log>) -> Option<Self> {
        let begun = mount_point.map_err(Into::into).and_then(|place| Self::try_begin(&place, log));
        let told = begun.inspect_err(|error| {
            let why = with_causes(error);
            log.line(&format!(
                "no process watches over the mount, which can hang if this one is killed: {why}"
            ));
        });
        told.ok()
    }

    fn try_begin(mount_point: &Path, log: &Arc<Log>) -> Result<Self> {
        let Some(Use::Mounted { device, .. }) = mounted_at(mount_point) else {
            bail!("it is not in /proc/self/mountinfo");
        };
        let abort = open_abort(device.minor).context("/sys/fs/fuse/connections is not there")?;
        let (from, to) = io::pipe()?;
        let over = Arc::new(AtomicBool::new(false));
        let (log, ended) = (Arc::clone(log), Arc::clone(&over));
        let keeper = thread::spawn(move || keep(&abort, &from, &ended, &log));
        Ok(Self { to: Some(to), over, keeper: Some(keeper) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.to = None;
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

/// Keeps a watcher running. If this thread ends before the mount does, the watcher ends the connection.
fn keep(abort: &File, from: &PipeReader, over: &AtomicBool, log: &Log) {
    loop {
        match start(abort, from).and_then(|mut watcher| watcher.wait()) {
            _ if over.load(Ordering::Relaxed) => return,
            Ok(_) => {
                log.line("the process that watches over the mount was ended; starting another")
            }
            Err(error) => log.line(&format!("no process watches over the mount: {error}")),
        }
        thread::sleep(PAUSE);
    }
}

fn start(abort: &File, from: &PipeReader) -> io::Result<Child> {
    Command::new(std::env::current_exe()?)
        // Other names would select e2fsck's command line.
        .arg0("floe")
        .arg(WATCHER)
        .arg(std::process::id().to_string())
        .current_dir("/")
        .stdin(from.try_clone()?)
        .stdout(abort.try_clone()?)
        .stderr(Stdio::null())
        // Ctrl-C is for the server.
        .process_group(0)
        .spawn()
}

impl WatcherArgs {
    /// Waits until the server has ended, and ends the connection if a part of the server is left.
    pub(crate) fn run(self) -> Result<Outcome> {
        signals::ignore()?;
        // The main thread has locked the other one.
        let abort = Arc::new(File::from(rustix::io::dup(io::stdout())?));
        let end_connection = move || {
            thread::sleep(GRACE);
            // Fails if the connection has ended.
            let _ = (&*abort).write_all(b"1");
        };
        signals::on_user_signal(end_connection.clone())?;
        set_parent_process_death_signal(Some(Signal::USR1))?;
        let parent = getppid().map(|parent| parent.as_raw_nonzero().get().unsigned_abs());
        if parent != Some(self.server) {
            // The server died before it could be told.
            end_connection();
        }
        // The end of the pipe: no thread of the server is left, or the mount has ended.
        let _ = io::stdin().read_to_end(&mut Vec::new());
        Ok(Outcome::CLEAN)
    }
}
