//! How much work the same calls are on a native file system with metadata regions, on one without, and on a stock ext4 of the same
//! size: requests and bytes of the device, flushes, and processor time; used by `cargo xtask counts`:
//!
//! ```text
//! cargo run --release -p floe-fs --example counts -- compare ROUNDS [LOAD...]
//! cargo run --release -p floe-fs --example counts -- one LAYOUT LOAD
//! cargo run --release -p floe-fs --example counts -- list
//! ```
//!
//! One thread, in process, over a device in memory; no clock but that of processor time decides anything, so counts are the
//! same on every run. `one` is for programs that count instructions: what is to be counted happens in `counted_part`.

mod loads;

use std::io;

use anyhow::{Context, Result, bail};
use floe_blockdev::{MemDevice, ReadBlocks, WriteBlocks};
use floe_disk::mkfs::{self, Fresh, FsType, Options, Plan};
use floe_fs::{Disk, FileSystem, Limits, Live, MemFs, Timestamp};
use floe_sync::atomic::{AtomicU64, Ordering};

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
    inner: MemDevice,
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
        Ok(())
    }
}

/// The cost of a load.
#[derive(Clone, Copy, Debug)]
struct Cost {
    counts: [u64; 5],
    microseconds: f64,
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
    let (before, began) = (device.counts(), used_microseconds()?);
    run(&fs)?;
    let microseconds = used_microseconds()? - began;
    let after = device.counts();
    let (live, lost) = fs.into_store().finish()?;
    lost?;
    live.finish(NOW)?;
    drop(files);
    disk.close()?;
    let counts = [0, 1, 2, 3, 4].map(|at: usize| after[at] - before[at]);
    Ok(Cost { counts, microseconds })
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
    let device = Counting { inner, counts: Default::default() };
    layout.make(&device)?;
    // Unmounted in between, so that the load finds nothing in memory.
    mounted(&device, |calls| (load.prepare)(calls))?;
    mounted(&device, |calls| counted_part(load, calls))
}

fn find(name: &str) -> Result<&'static Load> {
    LOADS.iter().find(|load| load.name == name).with_context(|| format!("no load {name}"))
}

/// The mean of ratios, and how far it may be from the true one (twice the standard error), both as factors.
fn ratio(all: &[(f64, f64)]) -> (f64, f64) {
    let logs: Vec<f64> = all.iter().map(|(one, other)| (one / other).ln()).collect();
    let count = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / count;
    let squares = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>();
    let error = (squares / (count - 1.0).max(1.0) / count).sqrt();
    (mean.exp(), (2.0 * error).exp())
}

fn compare(rounds: usize, names: &[String]) -> Result<()> {
    println!(
        "load           layout      reads    KiB read     writes KiB written    flushes  processor time of native over it"
    );
    for load in
        LOADS.iter().filter(|load| names.is_empty() || names.iter().any(|name| name == load.name))
    {
        let rounds = if load.is_long { rounds.div_ceil(10) } else { rounds };
        let mut all: Vec<Vec<Cost>> = vec![Vec::new(); LAYOUTS.len()];
        for round in 0..rounds {
            // In turns, so that none is always the first.
            for at in 0..LAYOUTS.len() {
                let at = (at + round) % LAYOUTS.len();
                all[at].push(cost(LAYOUTS[at], load)?);
            }
        }
        for (layout, costs) in LAYOUTS.iter().zip(&all) {
            let [reads, read, writes, written, flushes] = costs[0].counts;
            let pairs: Vec<_> = all[0]
                .iter()
                .zip(costs)
                .map(|(one, other)| (one.microseconds, other.microseconds))
                .collect();
            let (mean, error) = ratio(&pairs);
            let time = match layout {
                Layout::Native => format!("{:.1} ms", costs[0].microseconds / 1e3),
                _ => format!("{mean:.3} ({:.3} to {:.3})", mean / error, mean * error),
            };
            println!(
                "{:14} {:8} {reads:>8} {:>11} {writes:>10} {:>11} {flushes:>10}  {time}",
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
        [way, rounds, loads @ ..] if way == "compare" => compare(rounds.parse()?, loads)?,
        [way, layout, load] if way == "one" => {
            let layout = LAYOUTS.iter().find(|one| one.name() == layout);
            let layout = layout.context("layouts are native, plain and stock")?;
            let cost = cost(*layout, find(load)?)?;
            println!("{:?}", cost.counts);
        }
        _ => bail!("compare ROUNDS [LOAD...], one LAYOUT LOAD, or list"),
    }
    Ok(())
}
