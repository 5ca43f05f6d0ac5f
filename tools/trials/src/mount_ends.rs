//! `cargo xtask mount-ends`: mounts that end while programs use them, by `floe umount`, by SIGTERM and
//! by SIGKILL. After an unmount, e2fsck must find the image clean at once, and all is there that
//! programs did. After SIGKILL, Linux, e2fsck or Floe recovers the image; then e2fsck must find it
//! clean, and all is there that fsync acknowledged.

mod load;

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use floe_testkit::rng::Rng;
use floe_testkit::{Image, kernel, oracle, tool};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::mounted::Kind;
use floe_testkit::tool::built_floe;
use load::{State, Worker, verify};

/// The command line.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The program to test; by default target/release/floe or target/debug/floe
    #[arg(long)]
    floe: Option<PathBuf>,
    /// Mounts that are unmounted, with each list of options
    #[arg(long, default_value_t = 100)]
    unmounts: u64,
    /// Servers that are killed, with each list of options
    #[arg(long, default_value_t = 200)]
    kills: u64,
    /// The load runs for so many milliseconds at most
    #[arg(long, default_value_t = 300)]
    most_ms: u64,
    /// Mount options of a run; repeat for several runs
    #[arg(long, short, default_values = ["rw", "rw,nodelalloc,nowriteback_cache"])]
    options: Vec<String>,
    /// Kinds of file systems, each with all options
    #[arg(long, value_delimiter = ',', default_values = ["ext4", "quota", "native"])]
    kind: Vec<Kind>,
    /// First seed
    #[arg(long, default_value_t = 0)]
    from: u64,
}

/// Bytes of the image, and threads of the load.
const IMAGE_BYTES: u64 = 96 << 20;
const WORKERS: u64 = 2;
/// Time that a server may take to begin or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ways to end a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// `floe umount`, after the load.
    Umount,
    /// SIGTERM, after the load.
    Signal,
    /// SIGTERM while the load runs: the mount leaves the tree, and ends with the load.
    SignalUnderLoad,
    /// SIGKILL while the load runs.
    Kill,
}

/// Runs the command; fails at the first difference, and keeps that image.
pub(crate) fn run(args: &Args) -> Result<()> {
    let floe = args.floe.clone().map_or_else(built_floe, Ok)?;
    if let Err(reason) = kernel::mount_available() {
        bail!("{reason}");
    }
    let all = args.kind.iter().flat_map(|kind| args.options.iter().map(move |list| (*kind, list)));
    for (kind, options) in all {
        let rounds = |count| args.from..args.from + count;
        let begin = Instant::now();
        for seed in rounds(args.unmounts) {
            let ends = [End::Umount, End::Signal, End::SignalUnderLoad];
            round(&floe, args, (kind, options), seed, ends[(seed % 3) as usize])?;
        }
        for seed in rounds(args.kills) {
            round(&floe, args, (kind, options), seed, End::Kill)?;
        }
        println!(
            "{kind}, {options}: {} unmounts, each clean and complete at once; {} servers killed, each image \
             recovered with all that fsync acknowledged ({:.0} s)",
            args.unmounts,
            args.kills,
            begin.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

/// Mounts a new file system, lets the load use it, ends the mount, judges.
fn round(
    floe: &Path,
    args: &Args,
    (kind, options): (Kind, &str),
    seed: u64,
    end: End,
) -> Result<()> {
    let image = Image::empty(IMAGE_BYTES)?;
    kind.make(floe, image.path())?;
    let judged = judge(floe, args, (kind, options), seed, end, &image);
    judged.with_context(|| {
        format!("{kind}, {options}, {end:?}, seed {seed}: kept {}", image.keep().display())
    })
}

fn judge(
    floe: &Path,
    args: &Args,
    (kind, options): (Kind, &str),
    seed: u64,
    end: End,
    image: &Image,
) -> Result<()> {
    let mut server = Server::start(floe, image.path(), &kind.options(options))?;
    let mut rng = Rng::new(seed ^ 0x656e_6473);
    let time = Duration::from_millis(rng.below(args.most_ms.max(1)));
    let workers = use_and_end(&mut server, floe, end, time);
    let workers = workers.with_context(|| format!("the server said: {}", server.said()))?;
    // A dead server leaves its mount behind.
    drop(server);
    if end == End::Kill {
        recover(floe, image, seed, kind)?;
    }
    let verdict = oracle::e2fsck(image)?;
    ensure!(verdict.clean(), "e2fsck -fn: {}", verdict.text);
    let seen = kernel::Mounted::new(image.path(), "ro")?;
    let compared = workers
        .iter()
        .zip(0..)
        .try_for_each(|((least, most), number)| verify(seen.path(), number, least, most));
    seen.unmount()?;
    compared
}

/// Lets the load run, and ends the mount. Each worker's state: at least, at most.
fn use_and_end(
    server: &mut Server,
    floe: &Path,
    end: End,
    time: Duration,
) -> Result<Vec<(State, State)>> {
    let ending = AtomicBool::new(false);
    let over = AtomicBool::new(false);
    let mut workers = Vec::new();
    for number in 0..WORKERS {
        workers.push(Worker::new(server.folder.path(), number)?);
    }
    let ended = thread::scope(|scope| -> Result<()> {
        let running: Vec<_> = workers
            .iter_mut()
            .map(|worker| {
                scope.spawn(|| match worker.run(|| over.load(Ordering::Relaxed)) {
                    // The server is dead.
                    Err(_) if end == End::Kill && ending.load(Ordering::Relaxed) => Ok(()),
                    other => other,
                })
            })
            .collect();
        thread::sleep(time);
        ending.store(true, Ordering::Relaxed);
        match end {
            End::Kill => server.process.kill()?,
            End::SignalUnderLoad => {
                server.signal(Signal::TERM)?;
                thread::sleep(time);
            }
            End::Umount | End::Signal => {}
        }
        over.store(true, Ordering::Relaxed);
        for worker in running {
            let ran = worker.join().map_err(|_| anyhow::anyhow!("a worker panicked"))?;
            ran.context("the load")?;
        }
        Ok(())
    });
    let killed = end == End::Kill;
    let states = workers.iter().map(|worker| match killed {
        true => (worker.durable, worker.begun),
        false => (worker.done, worker.done),
    });
    let states = states.collect();
    // The last user of a mount that has left the tree.
    drop(workers);
    ended?;
    match end {
        End::Umount => {
            let ran = Command::new(floe).arg("umount").arg(server.folder.path()).output()?;
            ensure!(ran.status.success(), "floe umount: {}", String::from_utf8_lossy(&ran.stderr));
        }
        End::Signal => server.signal(Signal::TERM)?,
        End::SignalUnderLoad | End::Kill => {}
    }
    let status = server.wait()?;
    ensure!(killed || status.success(), "the server ended with {status}");
    Ok(states)
}

/// Recovers an image whose server was killed, in turns by Linux, by Floe and by e2fsck.
fn recover(floe: &Path, image: &Image, seed: u64, kind: Kind) -> Result<()> {
    match seed % 3 {
        0 => match kernel::Mounted::new(image.path(), "rw") {
            Ok(theirs) => theirs.unmount().context("Linux"),
            // Kernels may be built without quotas, and do not write these file systems then.
            Err(_) if kind == Kind::Quota => by_e2fsck(image, &["-p"]),
            Err(error) => Err(error),
        },
        1 => {
            let mut server = Server::start(floe, image.path(), "rw")?;
            server.signal(Signal::TERM)?;
            let status = server.wait()?;
            ensure!(status.success(), "floe mount ended with {status}");
            Ok(())
        }
        // Without -f it deletes what the orphan file names, and does not clear the names.
        _ if kind == Kind::Native => by_e2fsck(image, &["-p", "-f"]),
        // Only the journal and what was deleted while in use.
        _ => by_e2fsck(image, &["-p"]),
    }
}

fn by_e2fsck(image: &Image, args: &[&str]) -> Result<()> {
    let verdict = oracle::run(image.path(), args)?;
    ensure!(matches!(verdict.exit, Some(0 | 1)), "e2fsck -p: {}", verdict.text);
    Ok(())
}

/// A server in the foreground. Dropping it kills it, and unmounts.
struct Server {
    process: Child,
    folder: TempDir,
    messages: File,
}

impl Server {
    /// Starts a server and waits until it serves.
    fn start(floe: &Path, image: &Path, options: &str) -> Result<Self> {
        let folder = tool::scratch("floe-ends-")?;
        let mut command = Command::new(floe);
        command.args(["mount", "-f", "-o", options]).arg(image).arg(folder.path());
        let messages = tempfile::tempfile()?;
        command.stdin(Stdio::null()).stderr(messages.try_clone()?);
        let process = command.spawn().context("starting floe")?;
        let mut server = Self { process, folder, messages };
        let begin = Instant::now();
        // The number of ext4's root.
        while server.folder.path().metadata().map_or(0, |found| found.ino()) != 2 {
            if let Some(status) = server.process.try_wait()? {
                bail!("floe mount: {status} {}", server.said());
            }
            ensure!(begin.elapsed() < PATIENCE, "the server does not begin");
            thread::sleep(Duration::from_millis(2));
        }
        Ok(server)
    }

    /// Messages of the server.
    fn said(&mut self) -> String {
        let mut text = String::new();
        let read = self.messages.rewind().and_then(|()| self.messages.read_to_string(&mut text));
        read.map_or_else(|error| error.to_string(), |_| text)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let number = i32::try_from(self.process.id())?;
        Ok(kill_process(Pid::from_raw(number).context("no process")?, signal)?)
    }

    /// Waits for the end of the server.
    fn wait(&mut self) -> Result<std::process::ExitStatus> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait()? {
                return Ok(status);
            }
            ensure!(begin.elapsed() < PATIENCE, "the server does not end");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing of this does anything to a mount that has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = Command::new("umount").arg("-l").arg(self.folder.path()).output();
    }
}
