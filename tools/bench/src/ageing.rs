//! `cargo xtask ageing`: ages file systems of several layouts alike, with the load of the paper on ffsck and rext3 (section 3.2), and
//! replays the reads of checks by Floe and e2fsck on models of a disk and of an SSD.

mod trace;
mod workload;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use floe_blockdev::{FileDevice, Model, Modelled, ReadBlocks, Request, WritableFile, WriteBlocks};
use floe_check::scan::forecast::Forecast;
use floe_check::{CheckOptions, check};
use floe_disk::mkfs::{self, Fresh, FsType, Options, Plan};
use floe_disk::volume::{Volume, seal};
use floe_ext4::tx::DirectTx;

use floe_testkit::oracle;
use floe_testkit::pairs::median;

use crate::bench::forget;
use trace::Traced;
use workload::{Dropped, Load, NOW};

/// Bytes of a request of a sequential read.
const SEQUENTIAL_BYTES: u64 = 1 << 20;
/// A reader that goes on within so many bytes does not seek: disks and systems read ahead.
const NEAR_BYTES: u64 = 128 << 10;

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Size of the file systems in MiB
    #[arg(long, default_value_t = 4096)]
    size_mib: u64,
    /// Bytes per inode
    #[arg(long, default_value_t = 524_288)]
    inode_ratio: u64,
    /// Blocks of the largest new file; sizes are uniform
    #[arg(long, default_value_t = 512)]
    most_blocks: u64,
    /// Layouts to age
    #[arg(long, value_delimiter = ',', default_values = ["ext3", "rext3", "ext4", "ext4-colocate", "native"])]
    layouts: Vec<String>,
    /// Rounds of ageing
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Operations in each directory per round
    #[arg(long, default_value_t = 20)]
    operations: u32,
    /// The seed of the load
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for the images, which are sparse
    #[arg(long, default_value = "target/ageing")]
    folder: PathBuf,
    /// Size of the modelled disk in GB, over which its seeks are spread; 0: the file system fills it
    #[arg(long, default_value_t = 1000)]
    disk_gb: u64,
    /// Bytes of a lot of native file systems, as `lot_size=` of mkfs has it
    #[arg(long)]
    lot_size: Option<String>,
    /// Checks on the disk of this machine with nothing of the image in memory, too: so many, of which medians are printed
    #[arg(long, default_value_t = 0)]
    cold: usize,
    /// Leave e2fsck out
    #[arg(long)]
    no_e2fsck: bool,
}

impl Args {
    fn disk(&self) -> Model {
        match self.disk_gb {
            0 => Model::rotating_of(self.size_mib << 20),
            size => Model::rotating_of(size * 1_000_000_000),
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    fs::create_dir_all(&args.folder)?;
    println!(
        "{} MiB, a file per {} KiB, seed {}; a check with an empty page cache, one request at a time",
        args.size_mib,
        args.inode_ratio >> 10,
        args.seed
    );
    println!(
        "{:14} {:>3} {:>6} {:>4}  {:7} {:>9} {:>7} {:>7} {:>9} {:>8} {:>5} {:>9} {:>8}",
        "layout",
        "age",
        "files",
        "use",
        "checker",
        "bytes",
        "reads",
        "seeks",
        "disk ms",
        "ms/MB",
        "seq",
        "SSD ms",
        "ms/MB"
    );
    for layout in &args.layouts {
        age(args, layout)?;
    }
    Ok(())
}

/// Makes a file system of a layout, ages it and measures its checks.
fn age(args: &Args, layout: &str) -> Result<()> {
    let path = args.folder.join(format!("{layout}.img"));
    let device = Modelled::new(empty(args, layout, &path)?, &args.disk());
    let mut load = None;
    for round in 0..=args.rounds {
        let before = (device.reads(), device.writes(), device.elapsed());
        {
            let mut volume = match layout {
                "rext3" => Volume::open_rext3(&device)?,
                _ => Volume::open(&device)?,
            };
            if layout.ends_with("-colocate") {
                volume.colocate();
            }
            let mut tx = DirectTx::new(&device, volume.geometry().clone());
            volume.begin_writing(&mut tx, NOW)?;
            let data = Dropped(device.size_bytes());
            let load = load.get_or_insert_with(|| Load::new(args.seed, args.most_blocks));
            match round {
                0 => load.fill(&mut volume, &mut tx, &data)?,
                _ => load.age(&mut volume, &mut tx, &data, args.operations)?,
            }
            load.leave(&mut volume, &mut tx)?;
        }
        seal(&device)?;
        let (reads, writes) = (device.reads() - before.0, device.writes() - before.1);
        let time = ms(device.elapsed() - before.2);
        let about =
            load.as_ref().map(|load| (load.files(), load.used_percent())).unwrap_or_default();
        println!(
            "{layout:14} {round:>3}  load without contents: {reads} reads, {writes} writes, {time:.0} ms on the disk"
        );
        measure(args, layout, round, about, device.inner(), &path)?;
    }
    drop(device);
    fs::remove_file(&path)?;
    Ok(())
}

/// An empty file system in a sparse file.
fn empty(args: &Args, layout: &str, path: &Path) -> Result<WritableFile> {
    let kind = layout.trim_end_matches("-colocate").trim_end_matches("-without-regions");
    let kind = match kind {
        "ext3" => FsType::Ext3,
        "rext3" => FsType::Rext3,
        "ext4" => FsType::Ext4,
        "native" => FsType::Native,
        _ => anyhow::bail!(
            "{layout} is none of ext3, rext3, ext4 and native, with -colocate, -without-regions or neither"
        ),
    };
    let bytes = args.size_mib << 20;
    let _ = fs::remove_file(path);
    let device = WritableFile::create(path, bytes)?;
    if args.cold > 0 {
        // So that distances are those of the image.
        let file = fs::OpenOptions::new().write(true).open(path)?;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)?;
    }
    let mut options = Options::of_type(kind);
    let ratio = args.inode_ratio.to_string();
    for (letter, value) in [('i', ratio.as_str()), ('m', "0"), ('b', "4096")] {
        options.set(letter, value)?;
    }
    if let Some(size) = args.lot_size.as_ref().filter(|_| kind == FsType::Native) {
        options.set('E', &format!("lot_size={size}"))?;
    }
    if layout.ends_with("-without-regions") {
        options.set('E', "region_size=0")?;
    }
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now: NOW };
    mkfs::write(&Plan::new(&options.params(bytes, None, &fresh)?)?, &device)?;
    Ok(device)
}

/// Checks a file system with both programs and prints a line for each.
fn measure(
    args: &Args,
    layout: &str,
    age: u32,
    (files, used): (usize, u64),
    device: &WritableFile,
    path: &Path,
) -> Result<()> {
    let about = format!("{layout:14} {age:>3} {files:>6} {used:>3}%");
    let traced = Traced::new(device);
    let report = check(&traced, &CheckOptions::default())?;
    ensure!(report.found.is_empty(), "{layout}, age {age}: {:?}", report.found);
    let requests = traced.requests();
    print(args, &about, "floe", &requests);
    let bytes = requests.iter().map(|request| request.len_bytes).sum();
    if let Some(forecast) = Forecast::of(device) {
        let took = args.disk().replay(requests);
        let told = args.disk().replay(forecast.requests());
        let off = (told.as_secs_f64() / took.as_secs_f64() - 1.0) * 100.0;
        println!(
            "{about}  told by descriptors: {:.1} ms on the disk, {off:+.1} %, {} places",
            ms(told),
            forecast.runs.len()
        );
    }
    // Which refuses rext3.
    if !args.no_e2fsck && layout != "rext3" {
        match trace::of_e2fsck(path)? {
            Some(requests) => print(args, &about, "e2fsck", &requests),
            None => println!("{about}  e2fsck  left out: strace or e2fsck is missing"),
        }
    }
    if args.cold > 0 {
        device.flush()?;
        cold(args, &about, layout, path, bytes)?;
    }
    Ok(())
}

/// Times checks on the disk of this machine of an image of which nothing is in memory, by turns with a sequential read of as many
/// bytes.
fn cold(args: &Args, about: &str, layout: &str, path: &Path, bytes: u64) -> Result<()> {
    let same = path.with_extension("same");
    let content = vec![7; usize::try_from(bytes)?];
    fs::write(&same, &content)?;
    let (mut checks, mut reads, mut others) = (Vec::new(), Vec::new(), Vec::new());
    let has_other = !args.no_e2fsck && layout != "rext3";
    for _ in 0..args.cold {
        forget(path)?;
        let begin = Instant::now();
        check(&FileDevice::open(path)?, &CheckOptions { threads: 2, ..CheckOptions::default() })?;
        checks.push(begin.elapsed().as_secs_f64() * 1e3);
        forget(&same)?;
        let begin = Instant::now();
        ensure!(fs::read(&same)?.len() == content.len(), "a file became shorter");
        reads.push(begin.elapsed().as_secs_f64() * 1e3);
        if has_other {
            forget(path)?;
            let begin = Instant::now();
            oracle::run(path, &["-fn"])?;
            others.push(begin.elapsed().as_secs_f64() * 1e3);
        }
    }
    fs::remove_file(&same)?;
    let (check, read) = (median(&mut checks), median(&mut reads));
    let megabytes = bytes as f64 / 1e6;
    println!(
        "{about}  cold, this disk: {check:.1} ms, {:.2} ms/MB; the same bytes in sequence {read:.1} ms; e2fsck {:.1} ms",
        check / megabytes,
        median(&mut others)
    );
    Ok(())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Requests that begin far from the end of the one before.
fn seeks(requests: &[Request]) -> usize {
    let ends = requests.iter().map(|request| request.offset_bytes + request.len_bytes);
    let ends = std::iter::once(0).chain(ends);
    let far = |(request, end): &(&Request, u64)| request.offset_bytes.abs_diff(*end) > NEAR_BYTES;
    requests.iter().zip(ends).filter(far).count()
}

/// Prints what requests cost.
fn print(args: &Args, about: &str, checker: &str, requests: &[Request]) {
    let bytes: u64 = requests.iter().map(|request| request.len_bytes).sum();
    let disk = args.disk().replay(requests.iter().copied());
    let ssd = Model::ssd().replay(requests.iter().copied());
    let whole = (0..bytes.div_ceil(SEQUENTIAL_BYTES)).map(|at| {
        let at = at * SEQUENTIAL_BYTES;
        Request::read(at, SEQUENTIAL_BYTES.min(bytes - at))
    });
    let sequential = args.disk().replay(whole);
    let megabytes = bytes as f64 / 1e6;
    println!(
        "{about}  {checker:7} {bytes:>9} {:>7} {:>7} {:>9.1} {:>8.2} {:>4.0}% {:>9.2} {:>8.3}",
        requests.len(),
        seeks(requests),
        ms(disk),
        ms(disk) / megabytes,
        sequential.as_secs_f64() / disk.as_secs_f64() * 100.0,
        ms(ssd),
        ms(ssd) / megabytes,
    );
}
