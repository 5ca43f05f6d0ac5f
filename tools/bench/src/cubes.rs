//! `cargo xtask cubes`: makes many cubes on a sparse image, mounts it and checks it: time and memory. For root.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use floe_testkit::tool::built_floe;
use serde_json::Value;

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many cubes
    #[arg(long, default_value_t = 1000)]
    cubes: u32,
    /// MiB of a lot
    #[arg(long, default_value_t = 32)]
    lot_mib: u32,
    /// Blocks of a journal of each; 0: none
    #[arg(long, default_value_t = 0)]
    journal_blocks: u32,
    /// Folder for the image and the mount point
    #[arg(long, default_value = "target/cubes")]
    folder: PathBuf,
    /// The program to measure; by default the newest built floe
    #[arg(long)]
    floe: Option<PathBuf>,
}

/// Makes them, and prints the memory_kib.
pub(crate) fn run(args: &Args) -> Result<()> {
    let floe = args.floe.clone().map_or_else(built_floe, Ok)?;
    fs::create_dir_all(&args.folder)?;
    let (image, mount) = (args.folder.join("cubes.img"), args.folder.join("mnt"));
    fs::create_dir_all(&mount)?;
    let plain_kib = look(args, &floe, (&image, &mount), 0)?;
    let with_kib = look(args, &floe, (&image, &mount), args.cubes)?;
    fs::remove_file(&image)?;
    println!("memory of the mount, without and with, all touched: {plain_kib} and {with_kib} KiB");
    let each = with_kib.saturating_sub(plain_kib) as f64 / f64::from(args.cubes.max(1));
    println!("that is {each:.2} KiB a cube");
    Ok(())
}

/// Makes an image, checks, mounts and uses it; returns KiB of memory of the mount.
fn look(args: &Args, floe: &Path, (image, mount): (&Path, &Path), cubes: u32) -> Result<u64> {
    let _ = fs::remove_file(image);
    let size = u64::from(args.cubes + 24) * u64::from(args.lot_mib);
    let mut make = Command::new(floe);
    make.args(["mkfs", "-q", "-F", "-t", "native", "-N", &(args.cubes * 64).to_string(), "-E"]);
    make.arg(format!("lot_size={}m", args.lot_mib));
    for cube in 0..cubes {
        make.arg("--cube").arg(format!("/c{cube}:journal_blocks={}", args.journal_blocks));
    }
    timed(&format!("{cubes} cubes made"), make.arg(image).arg(format!("{size}m")))?;
    println!("  the sparse image has {} MiB", fs::metadata(image)?.blocks() >> 11);
    timed("  listed", Command::new(floe).args(["cube", "list", "--json"]).arg(image))?;
    timed("  checked", Command::new(floe).arg("check").arg(image))?;
    if cubes > 0 {
        timed("  one checked", Command::new(floe).args(["check", "--cube", "cube:1"]).arg(image))?;
    }
    timed("  mounted", Command::new(floe).arg("mount").arg(image).arg(mount))?;
    let memory_kib = touched(floe, mount, cubes);
    timed("  unmounted", Command::new(floe).arg("umount").arg(mount))?;
    memory_kib
}

/// Uses each cube of a mount.
fn touched(floe: &Path, mount: &Path, cubes: u32) -> Result<u64> {
    for cube in 0..cubes {
        let found = fs::read_dir(mount.join(format!("c{cube}")))?.count();
        ensure!(found == 0, "cube {cube} is not empty");
    }
    let status = Command::new(floe).arg("status").arg(mount).output()?;
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    let process = status.lines().find_map(|line| line.strip_prefix("process: "));
    let process = process.context("the mount does not say its process")?;
    let memory = fs::read_to_string(format!("/proc/{process}/status"))?;
    let kib = memory.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = kib.and_then(|text| text.split_whitespace().next()?.parse().ok());
    kib.context("no RssAnon")
}

/// Runs a command and prints how long it took.
fn timed(what: &str, command: &mut Command) -> Result<Duration> {
    let since = Instant::now();
    let output = command.output().context("starting floe")?;
    let took = since.elapsed();
    let failed = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{what}: {failed}");
    if let Ok(listed) = serde_json::from_slice::<Value>(&output.stdout) {
        println!(
            "{what}: {} in {:.0} ms",
            listed["cubes"].as_array().map_or(0, Vec::len),
            took.as_secs_f64() * 1e3
        );
    } else {
        println!("{what}: {:.0} ms", took.as_secs_f64() * 1e3);
    }
    Ok(took)
}
