//! The first process of the guest: creates volumes, runs a load on their file systems, and checks
//! them meanwhile.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use floe_workload::load;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};

use crate::guest::disk;
use crate::guest::inside::{self, say};

/// The volumes under test.
const VOLUMES: [&str; 2] = ["thick", "thin"];
/// Total number of tests: three on each volume, and one on the thick one only.
pub(super) const PARTS: usize = 7;
const THREADS: u64 = 3;
const FOLDER: &str = "/mnt";
/// Maximum attempts to interrupt a check while its snapshot exists.
const TRIES: usize = 20;

/// Options of the guest's program.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Checks of each file system under load
    #[arg(long)]
    checks: u32,
}

/// Runs all tests. Returns only outside of a guest, where there is nothing to shut down.
pub(crate) fn run(args: &Args) -> Result<()> {
    inside::run("online-lvm", || all(args))
}

fn all(args: &Args) -> Result<()> {
    let disk = disk(0).display().to_string();
    lvm(&["pvcreate", "--yes", &disk])?;
    lvm(&["vgcreate", "vg", &disk])?;
    lvm(&["lvcreate", "--yes", "--size", "96M", "--name", "thick", "vg"])?;
    lvm(&["lvcreate", "--yes", "--size", "200M", "--thinpool", "pool", "vg"])?;
    lvm(&["lvcreate", "--yes", "--virtualsize", "96M", "--thin", "--name", "thin", "vg/pool"])?;
    for volume in VOLUMES {
        let device = format!("/dev/vg/{volume}");
        tell("mke2fs", &["-q", "-t", "ext4", &device])?;
        under_load(volume, &device, args.checks)?;
        interrupted(volume, &device)?;
        if volume == "thick" {
            overflown(&device)?;
        }
        damaged(volume, &device)?;
    }
    say("done");
    Ok(())
}

/// Under any load, checks are clean and leave no snapshot.
fn under_load(volume: &str, device: &str, checks: u32) -> Result<()> {
    mounted(device, || {
        let stop = AtomicBool::new(false);
        let (operations, checked) = std::thread::scope(|scope| {
            let load = scope.spawn(|| load::run(Path::new(FOLDER), 1, THREADS, &stop));
            // Let the load create some files first.
            std::thread::sleep(Duration::from_secs(1));
            let checked = (0..checks).try_for_each(|_| {
                ensure!(check()? == Some(0), "a check under load is not clean");
                no_snapshot()
            });
            stop.store(true, Ordering::Relaxed);
            (load.join(), checked)
        });
        checked?;
        let operations = operations.map_err(|_| anyhow::anyhow!("the load panicked"))?;
        say(&format!(
            "tried {volume}: {checks} checks while {operations} operations were carried \
             out: all clean, no snapshot left"
        ));
        Ok(())
    })
}

/// A signal while the snapshot exists removes it.
fn interrupted(volume: &str, device: &str) -> Result<()> {
    mounted(device, || {
        for _ in 0..TRIES {
            let mut child = Command::new("/bin/floe")
                .args(CHECK)
                .env("PATH", PATH)
                .stdout(Stdio::null())
                .spawn()?;
            let begin = Instant::now();
            // The device node appears with the snapshot; asking LVM would take too long.
            let node = format!("/dev/vg/floe-check-{}", child.id());
            while !Path::new(&node).exists() && begin.elapsed() < Duration::from_secs(30) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("a pid")?;
            kill_process(pid, Signal::INT)?;
            let status = child.wait()?;
            no_snapshot()?;
            if status.code() == Some(0) {
                continue;
            }
            say(&format!("tried {volume}: interrupted ({status}): no snapshot left"));
            return Ok(());
        }
        bail!("no check was interrupted while its snapshot existed")
    })
}

/// If the snapshot runs out of space while the check is stopped, its result does not count.
fn overflown(device: &str) -> Result<()> {
    mounted(device, || {
        for _ in 0..TRIES {
            let (mut child, pid) = at_snapshot(&["--snapshot-size", "4M"])?;
            kill_process(pid, Signal::STOP)?;
            let path = Path::new(FOLDER).join("much");
            let mut file = fs::File::create(&path)?;
            let written = file.write_all(&vec![1; 20 << 20]).and_then(|()| file.sync_all());
            kill_process(pid, Signal::CONT)?;
            written.context("writing while there is a snapshot")?;
            fs::remove_file(path)?;
            let status = child.wait()?;
            no_snapshot()?;
            // The check may have completed before it was stopped.
            if status.code() == Some(0) {
                continue;
            }
            ensure!(
                status.code() == Some(8),
                "a check of an overflowed snapshot ended with {status}"
            );
            say("tried thick: the snapshot ran out of space, the check said so, no snapshot left");
            return Ok(());
        }
        bail!("no check was stopped in time")
    })
}

/// A check whose snapshot exists.
fn at_snapshot(options: &[&str]) -> Result<(Child, Pid)> {
    let mut command = Command::new("/bin/floe");
    command.args(CHECK).args(options).env("PATH", PATH).stdout(Stdio::null());
    let child = command.spawn()?;
    let begin = Instant::now();
    // The device node appears with the snapshot; asking LVM would take too long.
    let node = format!("/dev/vg/floe-check-{}", child.id());
    while !Path::new(&node).exists() && begin.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("a pid")?;
    Ok((child, pid))
}

/// Damage from before the mount is found.
fn damaged(volume: &str, device: &str) -> Result<()> {
    tell("debugfs", &["-w", "-R", "clri <11>", device])?;
    mounted(device, || {
        ensure!(check()? == Some(4), "damage was not found");
        no_snapshot()
    })?;
    say(&format!("tried {volume}: damage was found, no snapshot left"));
    Ok(())
}

fn mounted(device: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    mount(device, FOLDER, "ext4", MountFlags::empty(), None)
        .with_context(|| format!("mounting {device}"))?;
    let worked = work();
    unmount(FOLDER, UnmountFlags::empty()).context("unmounting")?;
    worked
}

const CHECK: [&str; 3] = ["check", "--online", FOLDER];
const PATH: &str = "/sbin:/bin";

/// The exit status of a check; an error with its output if that is not a verdict.
fn check() -> Result<Option<i32>> {
    let output = Command::new("/bin/floe").args(CHECK).env("PATH", PATH).output()?;
    let code = output.status.code();
    if !matches!(code, Some(0 | 4)) || !String::from_utf8_lossy(&output.stdout).contains("napshot")
    {
        bail!(
            "floe check --online: {}: {}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(code)
}

fn no_snapshot() -> Result<()> {
    let volumes = lvm(&["lvs", "--noheadings", "--options", "lv_name"])?;
    ensure!(!volumes.contains("floe-check"), "a snapshot is left: {volumes}");
    Ok(())
}

fn lvm(args: &[&str]) -> Result<String> {
    tell("lvm", args)
}

/// Runs a program in `/sbin`, and fails unless it succeeds.
fn tell(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(Path::new("/sbin").join(program))
        .args(args)
        .env("PATH", PATH)
        .output()
        .with_context(|| format!("starting {program}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{program} {args:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(said)
}
