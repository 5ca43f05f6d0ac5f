//! `floe mount`: serves an image as a mounted file system.

mod address_space;
mod cgroup;
mod daemon;
mod descriptors;
mod foreign;
mod memory;
mod notify;
mod open;
mod options;
mod threads;
pub(crate) mod watch;

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::Path;

use anyhow::{Context, Result};
use floe_fuse::mount::{MountPoint, unmount};
use floe_fuse::{METRICS, STATUS, Transport};
use floe_sync::Arc;

use crate::commands::umount::attribute;
use crate::exit::{Ended, Outcome};
use crate::input::block_devices;
use crate::input::device::Source;
use crate::input::files::{InputPath, not_empty};
use crate::terminal::failure::with_causes;
use crate::terminal::signals;
use daemon::Log;
use options::{Options, refused};

/// The exit code of mount(8) for a system error.
const SYSTEM_ERROR: u8 = 2;

/// Mount an image or a device, without the kernel's ext4 and without root.
///
/// Raw images and devices are mounted read-write, and changes go through their journal: data that
/// fsync acknowledged survives a crash. Everything else that can be checked is mounted read-only, as
/// with -o ro: qcow2, VHD, VHDX, gzip and zstd images, and file systems with features that Floe
/// cannot write safely. A read-only mount never writes, and replays a journal that needs recovery in
/// memory. Without root, fusermount3 is required; root needs only /dev/fuse.
///
/// The command returns when the mount is ready; the server continues in the background until `floe
/// umount`, `umount` or `fusermount3 -u`, and logs to syslog. SIGTERM unmounts cleanly.
///
/// Exit codes are those of mount(8): 0 mounted, 1 usage error, 2 system error, 32 mount refused.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
    /// Mount point, or /dev/fd/N: a descriptor of /dev/fuse that is already mounted
    #[arg(value_parser = not_empty())]
    directory: OsString,
    /// Mount options, those of ext4 and fuse2fs, and threads=N. Unknown ones are refused (exit code
    /// 32)
    #[arg(long, short, value_name = "LIST")]
    options: Vec<String>,
    /// Stay in the foreground, and log to standard error
    #[arg(long, short)]
    foreground: bool,
    /// Log every request; stays in the foreground
    #[arg(long, short)]
    debug: bool,
    /// Take requests by io_uring (`ring`), by /dev/fuse (`dev`), or by io_uring where root has enabled it and the kernel is 6.18 or newer (`auto`)
    #[arg(long, value_name = "auto|ring|dev", value_parser = transport_of)]
    transport: Option<Transport>,
    /// Serve requests with a single thread
    #[arg(long, short)]
    single_thread: bool,
    /// Ignore unknown mount options
    #[arg(long)]
    sloppy: bool,
    /// The external journal: a device or file
    #[arg(long, value_name = "PATH")]
    external_journal: Option<InputPath>,
    /// Run as the server, whose standard output the starting command reads
    #[arg(long, hide = true)]
    serve: bool,
    /// Descriptors that the starting command got from its caller
    #[arg(skip)]
    inherited: Vec<RawFd>,
}

fn transport_of(name: &str) -> Result<Transport, String> {
    options::transport(name).ok_or_else(|| "must be auto, ring or dev".to_owned())
}

/// Translates the command line of `mount.floe`, which mount(8) runs (SOURCE DIRECTORY and options
/// with other meanings), to that of `floe mount`. `None` if nothing is to be done (`-f`, a fake
/// mount).
pub(crate) fn of_helper(arguments: &[OsString]) -> Option<Vec<OsString>> {
    let mut line: Vec<OsString> = ["floe", "mount"].map(OsString::from).into();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("-f") => return None,
            Some("-n" | "-v") => {}
            Some("-s") => line.push("--sloppy".into()),
            // File system type or namespace; both take an argument.
            Some("-t" | "-N") => {
                arguments.next();
            }
            Some("-r") => line.extend(["-o", "ro"].map(OsString::from)),
            Some("-w") => line.extend(["-o", "rw"].map(OsString::from)),
            _ => line.push(argument.clone()),
        }
    }
    Some(line)
}

/// Whether mount(8) runs this program through its link for the types `floe` and `fuse.floe`.
pub(crate) fn is_helper(program: &OsString) -> bool {
    let name = Path::new(program).file_name();
    name.is_some_and(|name| name == "mount.floe" || name == "mount.fuse.floe")
}

/// The arguments of this process for the server, which is not run through the link.
fn command_line() -> Vec<OsString> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let helper = arguments.first().is_some_and(is_helper);
    let line = if helper { of_helper(&arguments[1..]) } else { Some(arguments) };
    let own = line.unwrap_or_default().into_iter().skip(1);
    own.chain([OsString::from("--serve")]).collect()
}

impl Args {
    pub(crate) fn run(mut self) -> Result<Outcome> {
        let options =
            Options::parse(&self.options, self.sloppy)?.within(cgroup::memory_limit_bytes());
        self.source.offset = options.offset.unwrap_or(self.source.offset);
        self.make_absolute()?;
        let background = !self.foreground && !self.debug;
        if background && !self.serve {
            let started = daemon::start(&command_line());
            return started
                .map_err(|error| Ended::with(Outcome::own(SYSTEM_ERROR), with_causes(&error)));
        }
        if self.serve {
            self.inherited = descriptors::of_the_caller();
        }
        let found = block_devices::journal_of(&self.source, self.external_journal.as_deref())
            .map_err(|error| refused(with_causes(&error)))?;
        self.external_journal = found.map(InputPath::from);
        match self.open_and_serve(&options) {
            Ok(()) => Ok(Outcome::CLEAN),
            Err(error) => Err(refused(with_causes(&error))),
        }
    }

    /// Makes paths absolute, because the server leaves the current folder.
    fn make_absolute(&mut self) -> Result<()> {
        let absolute = |path: &Path| std::path::absolute(path).context("cannot find the folder");
        self.source.device = InputPath::from(absolute(&self.source.device)?);
        self.directory = absolute(Path::new(&self.directory))?.into();
        if let Some(journal) = &self.external_journal {
            self.external_journal = Some(InputPath::from(absolute(journal)?));
        }
        Ok(())
    }
}

/// The first signal unmounts, so that the server exits once the mount is unused; the second one
/// ends the server at once.
fn unmount_on_signals(place: &MountPoint, log: &Arc<Log>) -> Result<()> {
    let (place, log) = (place.clone(), Arc::clone(log));
    signals::on_each_signal(move |before| {
        let MountPoint::Directory(directory) = &place else { std::process::exit(0) };
        if before > 0 {
            log.line("ended by a second signal");
            std::process::exit(0);
        }
        notify::stopping();
        let gone = unmount(directory, false).or_else(|_| {
            log.line("the mount is in use: detached, and removed once it is unused");
            unmount(directory, true)
        });
        if let Err(error) = gone {
            log.line(&format!("cannot unmount {}: {error}", directory.display()));
        }
    })
}

/// SIGUSR1 logs how the mount is served and what it has done, as `floe status` shows it.
fn log_status_on_signal(place: &MountPoint, log: &Arc<Log>) -> Result<()> {
    let (place, log) = (place.clone(), Arc::clone(log));
    signals::on_user_signal(move || {
        let MountPoint::Directory(directory) = &place else { return };
        let all = [STATUS, METRICS].map(|name| attribute(directory, name).unwrap_or_default());
        let lines: Vec<&str> = all.iter().flat_map(|text| text.lines()).collect();
        log.line(&lines.join("; "));
    })
}
