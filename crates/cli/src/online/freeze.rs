//! Freezes a file system for a moment, and guarantees that it is thawed.
//!
//! A file system that stays frozen blocks the whole system, so a process of its own, the *holder*,
//! does the freezing: it freezes, waits for a message, and thaws. It also thaws when its time limit
//! expires and when the check dies in any way, because that closes the pipe between them. It has
//! its own process group and ignores termination signals. If the holder itself is killed, the check
//! thaws.
//!
//! fsfreeze(8) of util-linux makes the system call, which would require unsafe code here.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::command;
use crate::exit::Outcome;
use crate::input::files::InputPath;
use crate::message::message;
use crate::terminal::signals;

/// Name of the holder's internal command.
pub(crate) const HOLDER: &str = "hold-freeze";

/// The holder's command line.
#[derive(Debug, clap::Args)]
pub(crate) struct HolderArgs {
    mount_point: InputPath,
    limit_seconds: u64,
}

/// A frozen file system; thawed explicitly or on drop.
pub(super) struct Freeze {
    point: PathBuf,
    holder: Child,
    /// Closing it makes the holder thaw.
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    since: Instant,
}

impl Freeze {
    /// Freezes the file system mounted at `point` for at most `limit`. Dirty data is written back
    /// first, to shorten the wait of writers.
    pub(super) fn new(point: &Path, limit: Duration) -> anyhow::Result<Self> {
        let folder = File::open(point).with_context(|| point.display().to_string())?;
        rustix::fs::syncfs(&folder).with_context(|| point.display().to_string())?;
        drop(folder);
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut holder = Command::new(program)
            // Other names would select e2fsck's command line.
            .arg0("floe")
            .arg(HOLDER)
            .arg(point)
            .arg(limit.as_secs().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("cannot start the process that freezes and thaws")?;
        let since = Instant::now();
        let (to, from) = (holder.stdin.take(), holder.stdout.take());
        let from = BufReader::new(from.context("the holder has no output")?);
        let mut freeze = Self { point: point.to_owned(), holder, to, from, since };
        match freeze.hear().as_str() {
            "frozen" => Ok(freeze),
            "" => bail!("the process that freezes {} ended", point.display()),
            said => bail!("{} cannot be frozen: {said}", point.display()),
        }
    }

    /// Thaws, and returns how long writers waited; fails if the file system was thawed earlier,
    /// because the snapshot is then useless.
    pub(super) fn thaw(mut self) -> anyhow::Result<Duration> {
        if let Some(to) = &mut self.to {
            // If the holder is gone, the answer below is empty.
            let _ = to.write_all(b"thaw\n");
        }
        let said = self.hear();
        let waited = self.since.elapsed();
        match said.as_str() {
            "thawed" => Ok(waited),
            "late" => bail!(
                "the snapshot took too long: {} was thawed before it was complete, so it was \
                 discarded; --freeze-limit allows a longer freeze",
                self.point.display()
            ),
            said => bail!("{} was thawed too early, so the snapshot was discarded {said}", {
                self.point.display()
            }),
        }
    }

    /// A line from the holder; empty if it is gone.
    fn hear(&mut self) -> String {
        let mut line = String::new();
        let _ = self.from.read_line(&mut line);
        line.trim().to_owned()
    }
}

impl Drop for Freeze {
    fn drop(&mut self) {
        self.to = None;
        let ended = self.holder.wait();
        // The holder thaws as its last action; if it failed to, thaw here.
        if !ended.is_ok_and(|status| status.success())
            && let Err(error) = unfreeze(&self.point)
        {
            message!("floe: {error:#}");
        }
    }
}

fn unfreeze(point: &Path) -> anyhow::Result<()> {
    let path = point.to_string_lossy();
    command::run("fsfreeze", &["--unfreeze", &path]).map(drop)
}

impl HolderArgs {
    /// Freezes, waits, thaws. A failing output must not stop it, because the reader may be gone.
    pub(crate) fn run(self) -> anyhow::Result<Outcome> {
        signals::ignore()?;
        let mut out = io::stdout();
        let mut say = |line: &str| {
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        };
        let path = self.mount_point.to_string_lossy().into_owned();
        if let Err(error) = command::run("fsfreeze", &["--freeze", &path]) {
            say(&format!("{error:#}").replace('\n', " "));
            // The freeze failed: another program's freeze must not be thawed.
            return Ok(Outcome::CLEAN);
        }
        say("frozen");
        let in_time = wait(Duration::from_secs(self.limit_seconds));
        let thawed = unfreeze(&self.mount_point);
        match (&thawed, in_time) {
            (Ok(()), true) => say("thawed"),
            (Ok(()), false) => say("late"),
            (Err(error), _) => say(&format!("({error:#})").replace('\n', " ")),
        }
        thawed.map(|()| Outcome::CLEAN)
    }
}

/// Waits for input or its end; `false` if the time limit expired first.
fn wait(limit: Duration) -> bool {
    let until = Instant::now() + limit;
    let input = io::stdin();
    loop {
        let rest = until.saturating_duration_since(Instant::now());
        let Ok(timeout) = Timespec::try_from(rest) else { return false };
        let mut one = [PollFd::new(&input, PollFlags::IN)];
        match poll(&mut one, Some(&timeout)) {
            Ok(0) => return false,
            Ok(_) => {
                let _ = input.lock().read(&mut [0; 16]);
                return true;
            }
            Err(rustix::io::Errno::INTR) => {}
            // Thaw too early rather than never.
            Err(_) => return true,
        }
    }
}
