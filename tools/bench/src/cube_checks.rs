//! `cargo xtask cube-checks`: the offline check of one cube of 20, of the whole file system, and of the same files in ext4, by the size of the
//! file system, as in Figure 8 of the IceFS paper. For root.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use floe_testkit::kernel;
use floe_testkit::picture::Picture;
use floe_testkit::tool::built_floe;
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use serde_json::Value;

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// GiB of the file systems
    #[arg(long, value_delimiter = ',', default_values_t = [2, 4, 8, 16])]
    sizes_gib: Vec<u64>,
    /// Cubes of each, or directories in ext4
    #[arg(long, default_value_t = 20)]
    cubes: u64,
    /// KiB of each file; all together fill half of the file system
    #[arg(long, default_value_t = 128)]
    file_kib: u64,
    /// How often each check runs: the fastest counts
    #[arg(long, default_value_t = 5)]
    runs: u32,
    /// Folder for images and mount points
    #[arg(long, default_value = "target/cube-checks")]
    folder: PathBuf,
    /// File for the picture
    #[arg(long, default_value = "target/cube-checks/cube-checks.svg")]
    picture: PathBuf,
    /// The program to measure; by default the newest built floe
    #[arg(long)]
    floe: Option<PathBuf>,
}

/// Files in a directory below the directory of a cube.
const FILES_A_DIRECTORY: u64 = 100;
/// The checks that are compared, and their colours.
const CHECKS: [(&str, &str); 4] = [
    ("floe check --cube, native", "#1b6ca8"),
    ("floe check, native", "#3c8d40"),
    ("floe check, ext4", "#8a5ca8"),
    ("e2fsck -fn, ext4", "#c0562c"),
];

/// Times and bytes of the checks of one size.
struct Row {
    size_gib: u64,
    files: u64,
    seconds: [f64; 4],
    /// MiB that Floe read.
    read_mib: [f64; 3],
}

/// Measures all sizes, prints them, and draws the picture.
pub(crate) fn run(args: &Args) -> Result<()> {
    let floe = args.floe.clone().map_or_else(built_floe, Ok)?;
    fs::create_dir_all(&args.folder)?;
    let mut rows = Vec::new();
    for &size_gib in &args.sizes_gib {
        let row = measure(args, &floe, size_gib)?;
        println!("{size_gib} GiB, {} files:", row.files);
        for (at, (name, _)) in CHECKS.iter().enumerate() {
            let read =
                row.read_mib.get(at).map_or_else(String::new, |mib| format!(", {mib:.1} MiB read"));
            println!("  {name}: {:.3} s{read}", row.seconds[at]);
        }
        rows.push(row);
    }
    fs::write(&args.picture, svg(&rows, args.cubes))?;
    println!("{}", args.picture.display());
    Ok(())
}

fn measure(args: &Args, floe: &Path, size_gib: u64) -> Result<Row> {
    let (native, ext4) = (args.folder.join("native.img"), args.folder.join("ext4.img"));
    let size = format!("{size_gib}g");
    let files = (size_gib << 19) / args.file_kib / args.cubes;
    let inodes = (files * args.cubes * 5 / 4 + 65_536).to_string();
    // 128 of them, whatever the size.
    let lots = format!("lot_size={}m", size_gib * 8);
    let mut make = Command::new(floe);
    make.args(["mkfs", "-q", "-F", "-t", "native", "-E", &lots, "-N", &inodes]);
    make.args((0..args.cubes).flat_map(|at| ["--cube".to_owned(), format!("/c{at}")]));
    done(make.arg(&native).arg(&size))?;
    let mount = args.folder.join("mnt");
    fs::create_dir_all(&mount)?;
    done(Command::new(floe).arg("mount").arg(&native).arg(&mount))?;
    let planted = plant(args, &mount, files);
    done(Command::new(floe).arg("umount").arg(&mount))?;
    planted?;
    let _ = fs::remove_file(&ext4);
    let quiet = ["-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=0", "-N", &inodes];
    done(Command::new("mke2fs").args(quiet).arg(&ext4).arg(&size))?;
    let theirs = kernel::Mounted::new(&ext4, "")?;
    plant(args, theirs.path(), files)?;
    theirs.unmount()?;
    // Any one, but always the same one.
    let cube = format!("cube:{}", size_gib * 7 % args.cubes + 1);
    let one = timed(args, &native, Command::new(floe).args(["check", "--json", "--cube", &cube]))?;
    let whole = timed(args, &native, Command::new(floe).args(["check", "--json"]))?;
    let stock = timed(args, &ext4, Command::new(floe).args(["check", "--json"]))?;
    let theirs = timed(args, &ext4, Command::new("e2fsck").args(["-f", "-n"]))?;
    fs::remove_file(&native)?;
    fs::remove_file(&ext4)?;
    let files = files * args.cubes;
    let seconds = [one.0, whole.0, stock.0, theirs.0];
    Ok(Row { size_gib, files, seconds, read_mib: [one.1, whole.1, stock.1] })
}

/// The same files in each directory. Their blocks are allocated, not written: no check reads them.
fn plant(args: &Args, top: &Path, files: u64) -> Result<()> {
    for cube in 0..args.cubes {
        let top = top.join(format!("c{cube}"));
        for at in 0..files {
            let dir = top.join(format!("dir{}", at / FILES_A_DIRECTORY));
            if at % FILES_A_DIRECTORY == 0 {
                fs::create_dir_all(&dir)?;
            }
            let file = File::create(dir.join(format!("file{at}")))?;
            fallocate(&file, FallocateFlags::empty(), 0, args.file_kib << 10)?;
        }
    }
    Ok(())
}

fn done(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    let failed = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {failed}");
    Ok(())
}

/// Seconds of the fastest run of a check, and MiB that it says it read. The image is not in the cache.
fn timed(args: &Args, image: &Path, command: &mut Command) -> Result<(f64, f64)> {
    command.arg(image);
    let (mut seconds, mut read_mib) = (f64::INFINITY, 0.0);
    for _ in 0..args.runs.max(1) {
        let file = File::open(image)?;
        file.sync_all()?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
        let since = Instant::now();
        let output = command.output().with_context(|| format!("starting {command:?}"))?;
        seconds = seconds.min(since.elapsed().as_secs_f64());
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{command:?}: {said}");
        if let Ok(report) = serde_json::from_slice::<Value>(&output.stdout) {
            let bytes = report["cost"]["bytes_read"].as_f64().context("no bytes_read")?;
            read_mib = bytes / f64::from(1 << 20);
        }
    }
    Ok((seconds, read_mib))
}

/// Sizes of the picture, in its own units.
const LEFT: f64 = 60.0;
const WIDTH: f64 = 700.0;
const HEIGHT: f64 = 240.0;
const BOTTOM: f64 = 120.0 + HEIGHT;

fn svg(rows: &[Row], cubes: u64) -> String {
    let most_gib = rows.iter().map(|row| row.size_gib).max().unwrap_or(1) as f64;
    let most = rows.iter().flat_map(|row| row.seconds).fold(0.001, f64::max);
    let x = |row: &Row| LEFT + row.size_gib as f64 / most_gib * WIDTH;
    let y = |seconds: f64| BOTTOM - seconds / most * HEIGHT;
    let mut picture = Picture::new(LEFT + WIDTH + 60.0, BOTTOM + 40.0);
    let title = format!(
        "seconds of a check of a half full file system with {cubes} cubes or directories (top: {most:.2} s)"
    );
    picture.text(LEFT, 25.0, "black", &title);
    for (at, (name, colour)) in CHECKS.iter().enumerate() {
        let of_last = rows.last().map_or(0.0, |row| row.seconds[at]);
        let text = format!("{name}: {of_last:.3} s at the right end");
        picture.text(LEFT, 45.0 + 18.0 * at as f64, colour, &text);
        picture.polyline(rows.iter().map(|row| (x(row), y(row.seconds[at]))), colour);
    }
    picture.polyline([(LEFT, BOTTOM), (LEFT + WIDTH, BOTTOM)].into_iter(), "#888");
    for row in rows {
        picture.text(x(row) - 15.0, BOTTOM + 20.0, "black", &format!("{} GiB", row.size_gib));
    }
    picture.finish()
}
