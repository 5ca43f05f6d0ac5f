//! The first process of a guest: mounts the disk and runs a load on it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use floe_workload::load;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::guest::disk;
use crate::guest::inside::{self, say};

/// Placeholder in mount options for the journal device.
pub(super) const JOURNAL_DISK: &str = "JOURNAL";

/// Number of threads that work on the file system.
const THREADS: u64 = 4;
/// After this duration the process that would cut the power must be gone.
const FORGOTTEN: Duration = Duration::from_secs(120);

/// Options of the guest's program.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seed of the load
    #[arg(long)]
    seed: u64,
    /// Mount options
    #[arg(long, default_value = "")]
    options: String,
    /// Stop after this many milliseconds (0: no load at all), unmount and shut down; without it,
    /// continue until the power fails
    #[arg(long)]
    millis: Option<u64>,
}

/// Runs the load. Returns only outside of a guest, where there is nothing to shut down.
pub(crate) fn run(args: &Args) -> Result<()> {
    inside::run("kernel-load", || load_mounted(args))
}

fn load_mounted(args: &Args) -> Result<()> {
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

/// Runs the load for the given milliseconds, or indefinitely; returns the number of operations.
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
