//! What runs as the first process of a guest: it mounts the disk and puts load on it.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use floe_testkit::load;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::system::RebootCommand;

use crate::guest::{MARK, MODULES, disk};

/// What stands in the options of a mount for the disk with the journal.
pub(super) const JOURNAL_DISK: &str = "JOURNAL";

/// Threads that work on the file system.
const THREADS: u64 = 4;
/// After this long under load nobody is left who would fail the power.
const FORGOTTEN: Duration = Duration::from_secs(120);
/// `MODULE_INIT_COMPRESSED_FILE`: the kernel unpacks the module.
const COMPRESSED_FILE: i32 = 4;

/// Options of the program inside.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What the load depends on
    #[arg(long)]
    seed: u64,
    /// Options of the mount
    #[arg(long, default_value = "")]
    options: String,
    /// Stop after so many milliseconds (0: no load at all), unmount and switch off; without it, go on
    /// until the power fails
    #[arg(long)]
    millis: Option<u64>,
}

/// Runs the load; comes back only if there is nothing to switch off, which is no guest.
pub(crate) fn run(args: &Args) -> Result<()> {
    if std::process::id() != 1 {
        bail!("this is the first process of a guest; see cargo xtask kernel-load --help");
    }
    if let Err(error) = load_mounted(args) {
        // In one line, for the program outside.
        say(&format!("failed {}", format!("{error:#}").replace('\n', " ")));
    }
    switch_off()
}

/// Ends the guest.
pub(crate) fn switch_off() -> Result<()> {
    rustix::system::reboot(RebootCommand::PowerOff).context("switching off")
}

/// Tells the program outside something.
pub(crate) fn say(what: &str) {
    println!("{MARK} {what}");
    // Nobody is left to whom it could be said that nothing can be said.
    let _ = std::io::stdout().flush();
}

/// Mounts what every program wants to have, and loads all modules of the root.
pub(crate) fn prepare() -> Result<()> {
    for (kind, place) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        mount(kind, place, kind, MountFlags::empty(), None)
            .with_context(|| format!("mounting {place}"))?;
    }
    let mut waiting: Vec<_> = match fs::read_dir(Path::new("/").join(MODULES)) {
        Ok(files) => files.flatten().map(|file| file.path()).collect(),
        Err(_) => Vec::new(),
    };
    waiting.sort();
    // A module may need others that come later: again until nothing changes.
    loop {
        let before = waiting.len();
        waiting.retain(|path| load_module(path).is_err());
        if waiting.len() == before {
            break;
        }
    }
    for path in waiting {
        if let Err(error) = load_module(&path) {
            // It may be of no use for this kernel or processor.
            say(&format!("no module {}: {error:#}", path.display()));
        }
    }
    Ok(())
}

fn load_module(path: &Path) -> Result<()> {
    let file = fs::File::open(path)?;
    let flags = if path.extension() == Some("ko".as_ref()) { 0 } else { COMPRESSED_FILE };
    Ok(rustix::system::finit_module(&file, c"", flags)?)
}

fn load_mounted(args: &Args) -> Result<()> {
    prepare()?;
    let folder = Path::new("/mnt");
    let second = disk(1).display().to_string();
    let options = args.options.replace(JOURNAL_DISK, &second);
    let options = std::ffi::CString::new(options)?;
    mount(disk(0), folder, "ext4", MountFlags::NODEV, Some(options.as_c_str()))
        .with_context(|| format!("refused to mount with \"{}\"", args.options))?;
    let done = match args.millis {
        Some(0) => 0,
        millis => under_load(folder, args.seed, millis)?,
    };
    unmount(folder, UnmountFlags::empty()).context("unmounting")?;
    say(&format!("done {done}"));
    Ok(())
}

/// The load, for so many milliseconds or for long; comes back with the number of operations.
fn under_load(folder: &Path, seed: u64, millis: Option<u64>) -> Result<u64> {
    let stop = AtomicBool::new(false);
    let done = std::thread::scope(|scope| {
        let load = scope.spawn(|| load::run(folder, seed, THREADS, &stop));
        say("loading");
        match millis {
            Some(millis) => std::thread::sleep(Duration::from_millis(millis)),
            None => std::thread::sleep(FORGOTTEN),
        }
        stop.store(true, Ordering::Relaxed);
        load.join()
    });
    done.map_err(|_| anyhow::anyhow!("the load panicked"))
}
