//! How much work the same calls are on a native file system with metadata regions, on one without, and on a stock ext4 of the same
//! size: requests and bytes of the device, flushes, and processor time; used by `cargo xtask counts`:
//!
//! ```text
//! cargo run --release -p floe-fs --example counts -- compare ROUNDS [LOAD...]
//! cargo run --release -p floe-fs --example counts -- pairs ROUNDS [LOAD...]
//! cargo run --release -p floe-fs --example counts -- one LAYOUT LOAD
//! cargo run --release -p floe-fs --example counts -- list
//! ```
//!
//! One thread, in process, over a device in memory; no clock decides anything, so counts are the same on every run, and so is the
//! time that the requests take on the model of a disk. Ratios of times are medians of those of alternating runs, with an interval in
//! which the true median lies with a confidence of 95 % (from 6 rounds on). `pairs` leaves stock out. `one` is for programs that count instructions: what is to be counted happens in `counted_part`.

mod loads;

use std::io;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use floe_blockdev::{MemDevice, Model, Modelled, ReadBlocks, WriteBlocks};
use floe_disk::mkfs::{self, Fresh, FsType, Options, Plan};
use floe_fs::{Disk, FileSystem, Limits, Live, MemFs, Timestamp};
use floe_sync::atomic::{AtomicU64, Ordering};
use floe_testkit::pairs::{median, median_interval};

use loads::{Calls, LOADS, Load};

/// Bytes of a file system, and its inodes.
const SIZE_BYTES: u64 = 3 << 30;
const INODES: &str = "98304";
/// Memory of the file system in memory.
const MEMORY_BYTES: u64 = 64 << 20;
const NOW: Timestamp = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };

/// Layouts, the one that is judged first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// Lots with regions.
    Native,
    /// The same lots, without regions.
    Plain,
    /// As mke2fs makes it.
    Stock,
}

const LAYOUTS: [Layout; 3] = [Layout::Native, Layout::Plain, Layout::Stock];

impl Layout {
    const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Plain => "plain",
            Self::Stock => "stock",
        }
    }

    fn make(self, device: &dyn WriteBlocks) -> Result<()> {
        let mut options = match self {
            Self::Stock => Options::of_type(FsType::Ext4),
            _ => Options::of_type(FsType::Native),
        };
        options.set('N', INODES)?;
        options.set('b', "4096")?;
        match self {
            Self::Native => {}
            Self::Plain => options.set('E', "region_size=0")?,
            Self::Stock => options.set('O', "orphan_file,^resize_inode")?,
        }
        let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now: NOW };
        let params = options.params(device.size_bytes(), None, &fresh)?;
        Ok(mkfs::write(&Plan::new(&params)?, &device)?)
    }
}

/// A device that counts.
#[derive(Debug)]
struct Counting {
    inner: Modelled<MemDevice>,
    /// Reads, bytes read, writes, bytes written, flushes.
    counts: [AtomicU64; 5],
}

impl Counting {
    fn add(&self, at: usize, len_bytes: usize) {
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        self.counts[at + 1].fetch_add(len_bytes as u64, Ordering::Relaxed);
    }

    fn counts(&self) -> [u64; 5] {
        [0, 1, 2, 3, 4].map(|at| self.counts[at].load(Ordering::Relaxed))
    }
}

impl ReadBlocks for Counting {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.add(0, into.len());
        self.inner.read_at(offset_bytes, into)
    }
}

impl WriteBlocks for Counting {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        self.add(2, from.len());
        self.inner.write_at(offset_bytes, from)
    }

    fn flush(&self) -> io::Result<()> {
        self.counts[4].fetch_add(1, Ordering::Relaxed);
        self.inner.flush()
    }
}

/// The cost of a load.
#[derive(Clone, Copy, Debug)]
struct Cost {
    counts: [u64; 5],
    /// Processor time and passed time.
    microseconds: [f64; 2],
    /// Time of all requests on the model of a disk.
    disk_ms: f64,
}

/// Processor time of this thread. Not from the clock of rustix, which valgrind cannot run.
fn used_microseconds() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds: u64 = text.split(' ').next().context("no time")?.parse()?;
    Ok(nanoseconds as f64 / 1e3)
}

/// Mounts, lets `run` use the file system, and unmounts. The work of `run` is counted, with all that it leaves to be written.
fn mounted(device: &Counting, run: impl FnOnce(&dyn Calls) -> Result<()>) -> Result<Cost> {
    let (disk, volume) = Disk::open(device)?;
    let files = disk.files()?;
    let live = Live::new(&disk, &files, volume, NOW)?;
    let fs = FileSystem::new(MemFs::new(live, Limits::of_memory(MEMORY_BYTES)));
    let (before, on_disk) = (device.counts(), device.inner.elapsed());
    let (began, used) = (Instant::now(), used_microseconds()?);
    run(&fs)?;
    let microseconds = [used_microseconds()? - used, began.elapsed().as_secs_f64() * 1e6];
    let after = device.counts();
    let (live, lost) = fs.into_store().finish()?;
    lost?;
    live.finish(NOW)?;
    drop(files);
    disk.close()?;
    let counts = [0, 1, 2, 3, 4].map(|at: usize| after[at] - before[at]);
    let disk_ms = (device.inner.elapsed() - on_disk).as_secs_f64() * 1e3;
    Ok(Cost { counts, microseconds, disk_ms })
}

/// The part that is counted.
#[inline(never)]
fn counted_part(load: &Load, calls: &dyn Calls) -> Result<()> {
    (load.run)(calls)?;
    calls.sync()
}

/// Runs a load on a new file system.
fn cost(layout: Layout, load: &Load) -> Result<Cost> {
    let inner = MemDevice::new(vec![0; usize::try_from(SIZE_BYTES)?]);
    let inner = Modelled::new(inner, &Model::rotating_of(SIZE_BYTES));
    let device = Counting { inner, counts: Default::default() };
    layout.make(&device)?;
    // Unmounted in between, so that the load finds nothing in memory.
    mounted(&device, |calls| (load.prepare)(calls))?;
    mounted(&device, |calls| counted_part(load, calls))
}

fn find(name: &str) -> Result<&'static Load> {
    LOADS.iter().find(|load| load.name == name).with_context(|| format!("no load {name}"))
}

/// The median of ratios, and its interval.
fn ratio(pairs: impl Iterator<Item = (f64, f64)>) -> String {
    let mut ratios: Vec<f64> = pairs.map(|(one, other)| one / other).collect();
    let middle = median(&mut ratios);
    match median_interval(&mut ratios) {
        Some((least, most)) => format!("{middle:.3} ({least:.3} to {most:.3})"),
        None => format!("{middle:.3}"),
    }
}

fn compare(rounds: usize, layouts: &[Layout], names: &[String]) -> Result<()> {
    println!(
        "load           layout      reads    KiB read     writes KiB written    flushes   disk ms  native over it: processor time, time"
    );
    for load in
        LOADS.iter().filter(|load| names.is_empty() || names.iter().any(|name| name == load.name))
    {
        let rounds = if load.is_long { rounds.div_ceil(10) } else { rounds };
        let mut all: Vec<Vec<Cost>> = vec![Vec::new(); layouts.len()];
        for round in 0..rounds {
            // In turns, so that none is always the first.
            for at in 0..layouts.len() {
                let at = (at + round) % layouts.len();
                all[at].push(cost(layouts[at], load)?);
            }
        }
        for (layout, costs) in layouts.iter().zip(&all) {
            let [reads, read, writes, written, flushes] = costs[0].counts;
            let over = |of: usize| {
                let pairs = all[0].iter().zip(costs);
                ratio(pairs.map(|(one, other)| (one.microseconds[of], other.microseconds[of])))
            };
            let time = match layout {
                Layout::Native => format!("{:.1} ms", costs[0].microseconds[0] / 1e3),
                _ => format!("{}, {}", over(0), over(1)),
            };
            let mut disk: Vec<f64> = costs.iter().map(|cost| cost.disk_ms).collect();
            let disk = median(&mut disk);
            println!(
                "{:14} {:8} {reads:>8} {:>11} {writes:>10} {:>11} {flushes:>10} {disk:>9.1}  {time}",
                load.name,
                layout.name(),
                read >> 10,
                written >> 10
            );
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words[..] {
        [way] if way == "list" => LOADS.iter().for_each(|load| println!("{}", load.name)),
        [way, rounds, loads @ ..] if way == "compare" => {
            compare(rounds.parse()?, &LAYOUTS, loads)?;
        }
        [way, rounds, loads @ ..] if way == "pairs" => {
            compare(rounds.parse()?, &[Layout::Native, Layout::Plain], loads)?;
        }
        [way, layout, load] if way == "one" => {
            let layout = LAYOUTS.iter().find(|one| one.name() == layout);
            let layout = layout.context("layouts are native, plain and stock")?;
            let cost = cost(*layout, find(load)?)?;
            println!("{:?}", cost.counts);
        }
        _ => bail!("compare or pairs ROUNDS [LOAD...], one LAYOUT LOAD, or list"),
    }
    Ok(())
}
