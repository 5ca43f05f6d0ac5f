//! Commits per second of workers that each wait for their own changes (`fsync`) to files that have nothing in common, in
//! process, beside the kernel's ext4 on the same backing file; used by `cargo xtask commits`:
//!
//! ```text
//! cargo run --release -p floe-fs --example commits -- beside FOLDER MILLISECONDS ROUNDS WORKERS...
//! cargo run --release -p floe-fs --example commits -- model MICROSECONDS ROUNDS WORKERS...
//! cargo run --release -p floe-fs --example commits -- journals MICROSECONDS ROUNDS WORKERS...
//! cargo run --release -p floe-fs --example commits -- files FOLDER MILLISECONDS ROUNDS WORKERS...
//! ```
//!
//! `beside` alternates: one file in FOLDER has a stock ext4; Floe opens and uses it, then the kernel mounts it by a loop device
//! (for root). Each line has, of both, fsyncs in a second and for each of them: flushes of the device, and of the threads of the
//! workers microseconds on a processor, microseconds ready to run without one, and how often they were put on one, that is, were
//! woken or displaced. Threads of the kernel's own, which write its journal and serve the loop device, are not counted.
//!
//! `model` has a device in memory whose flush takes so long, and nothing else any time.
//!
//! `journals` has two of these as one, in stripes of a lot, or in short ones, and native file systems with 1, 2 and 4 journals: with two, and
//! stripes of a lot, each device has the lots of one journal. With several, changes of more than one list each other or wait. `files` has native file systems with 1 and 2 journals in one file, which
//! take turns.

use std::fmt;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use floe_blockdev::{MemDevice, Model, Modelled, Striped, WritableFile, WriteBlocks};
use floe_disk::mkfs::{self, Fresh, FsType, Options, Plan};
use floe_disk::ops::Caller;
use floe_format::InodeNr;
use floe_fs::{
    Dependencies, Disk, FileSystem, FsError, Limits, Live, Lower, MemFs, NewInode, Op, OpKind,
    Place, RenameMode, now,
};
use floe_sync::{Barrier, thread};
use floe_testkit::kernel::Mounted;
use rustix::fs::{major, minor};

/// Bytes of the file system.
const IMAGE_BYTES: u64 = 1 << 30;
/// Bytes of a write.
const WRITE_BYTES: usize = 4096;
/// A file that grows begins again at this size.
const MOST_BYTES: u64 = 16 << 20;
/// Files of a worker that are not removed yet.
const MOST_FILES: u64 = 64;

/// The changes that a worker makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// 4 KiB more of a file of its own.
    Append,
    /// A new file of 4 KiB in a directory of its own.
    Create,
    /// The same, moved to the directory of the next worker before the fsync.
    Move,
}

/// The same calls of both. Each worker has a directory of its own.
trait Side: Sync {
    type File;
    fn make(&self, worker: usize, name: &str) -> Result<Self::File>;
    fn write(&self, file: &Self::File, at: u64, bytes: &[u8]) -> Result<()>;
    fn sync(&self, file: &Self::File) -> Result<()>;
    fn remove(&self, worker: usize, name: &str) -> Result<()>;
    fn rename(&self, from: (usize, &str), to: (usize, &str)) -> Result<()>;
}

struct Floe<L> {
    fs: FileSystem<MemFs<L>>,
    directories: Vec<InodeNr>,
}

impl<L: Lower> Floe<L> {
    fn new(lower: L, workers: usize) -> Result<Self> {
        let fs = FileSystem::new(MemFs::new(lower, Limits::default()));
        let mut new = Self { fs, directories: Vec::new() };
        for worker in 0..workers {
            let name = worker.to_string();
            let place = Place { directory: InodeNr::ROOT, name: name.as_bytes() };
            let kind = OpKind::Create { place, new: NewInode::directory(0o755) };
            new.directories.push(new.apply(kind)?.context("no directory")?);
        }
        new.fs.sync()?;
        Ok(new)
    }

    fn apply(&self, kind: OpKind<'_>) -> Result<Option<InodeNr>, FsError> {
        let made = self.fs.apply(&Op { uid: 0, gid: 0, time: now(), kind })?;
        let Some(made) = made else { return Ok(None) };
        self.fs.forget(made.inode, 1)?;
        Ok(Some(made.inode))
    }

    fn end(self) -> Result<L> {
        let (lower, lost) = self.fs.into_store().finish()?;
        lost?;
        Ok(lower)
    }
}

impl<L: Lower + Sync> Side for Floe<L>
where
    FileSystem<MemFs<L>>: Sync,
{
    type File = InodeNr;

    fn make(&self, worker: usize, name: &str) -> Result<InodeNr> {
        let place = Place { directory: self.directories[worker], name: name.as_bytes() };
        let kind = OpKind::Create { place, new: NewInode::regular(0o644) };
        self.apply(kind)?.context("nothing was created")
    }

    fn write(&self, file: &InodeNr, at: u64, bytes: &[u8]) -> Result<()> {
        self.apply(OpKind::Write { inode: *file, offset_bytes: at, bytes })?;
        Ok(())
    }

    fn sync(&self, file: &InodeNr) -> Result<()> {
        Ok(self.fs.sync_inode(*file, None)?)
    }

    fn remove(&self, worker: usize, name: &str) -> Result<()> {
        let place = Place { directory: self.directories[worker], name: name.as_bytes() };
        self.apply(OpKind::Unlink(place))?;
        Ok(())
    }

    fn rename(&self, from: (usize, &str), to: (usize, &str)) -> Result<()> {
        let [from, to] = [from, to].map(|(worker, name)| Place {
            directory: self.directories[worker],
            name: name.as_bytes(),
        });
        self.apply(OpKind::Rename { from, to, mode: RenameMode::Replace })?;
        Ok(())
    }
}

/// A mount of the kernel's.
struct Kernel(PathBuf);

impl Side for Kernel {
    type File = fs::File;

    fn make(&self, worker: usize, name: &str) -> Result<fs::File> {
        let path = self.0.join(worker.to_string()).join(name);
        Ok(fs::OpenOptions::new().write(true).create_new(true).open(path)?)
    }

    fn write(&self, file: &fs::File, at: u64, bytes: &[u8]) -> Result<()> {
        Ok(file.write_all_at(bytes, at)?)
    }

    fn sync(&self, file: &fs::File) -> Result<()> {
        Ok(file.sync_all()?)
    }

    fn remove(&self, worker: usize, name: &str) -> Result<()> {
        Ok(fs::remove_file(self.0.join(worker.to_string()).join(name))?)
    }

    fn rename(&self, from: (usize, &str), to: (usize, &str)) -> Result<()> {
        let [from, to] =
            [from, to].map(|(worker, name)| self.0.join(worker.to_string()).join(name));
        Ok(fs::rename(from, to)?)
    }
}

/// The time of threads.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    running_ns: u64,
    ready_ns: u64,
    starts: u64,
}

impl Spent {
    /// That of this thread until now.
    fn now() -> Result<Self> {
        let text = fs::read_to_string("/proc/thread-self/schedstat")?;
        let mut words = text.split_whitespace().map(str::parse);
        let mut next = || words.next().context("too few fields")?.context("a field");
        Ok(Self { running_ns: next()?, ready_ns: next()?, starts: next()? })
    }

    fn each(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            running_ns: of(self.running_ns, other.running_ns),
            ready_ns: of(self.ready_ns, other.ready_ns),
            starts: of(self.starts, other.starts),
        }
    }
}

/// The result of a run.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Changes that were acknowledged.
    done: u64,
    seconds: f64,
    spent: Spent,
}

/// Figures of a run, as they are printed: the last four for each change.
#[derive(Clone, Copy, Debug)]
struct Figures {
    per_second: f64,
    flushes: f64,
    running_us: f64,
    ready_us: f64,
    starts: f64,
}

impl Figures {
    fn of(run: &Run, flushes: u64) -> Self {
        let done = run.done as f64;
        Self {
            per_second: done / run.seconds,
            flushes: flushes as f64 / done,
            running_us: run.spent.running_ns as f64 / 1000.0 / done,
            ready_us: run.spent.ready_ns as f64 / 1000.0 / done,
            starts: run.spent.starts as f64 / done,
        }
    }

    /// The medians of runs.
    fn medians(all: &[Self]) -> Self {
        let median = |of: fn(&Self) -> f64| {
            let mut all: Vec<f64> = all.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        Self {
            per_second: median(|one| one.per_second),
            flushes: median(|one| one.flushes),
            running_us: median(|one| one.running_us),
            ready_us: median(|one| one.ready_us),
            starts: median(|one| one.starts),
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, into: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            into,
            "{:6.0} /s, {:4.2} flushes, {:4.0} us running, {:5.0} us ready, {:4.1} starts",
            self.per_second, self.flushes, self.running_us, self.ready_us, self.starts
        )
    }
}

/// When a worker ends.
#[derive(Clone, Copy, Debug)]
enum Until {
    Elapsed(Duration),
    Done(u64),
}

/// Works until the end; how many changes were acknowledged.
fn work<S: Side>(
    side: &S,
    load: Load,
    (worker, workers): (usize, usize),
    until: Until,
    began: Instant,
) -> Result<u64> {
    let bytes = [7; WRITE_BYTES];
    let mut growing = None;
    let mut done = 0;
    loop {
        let over = match until {
            Until::Elapsed(most) => began.elapsed() >= most,
            Until::Done(most) => done >= most,
        };
        if over {
            return Ok(done);
        }
        let name = format!("file {done}");
        match (load, &growing) {
            (Load::Create, _) => {
                let file = side.make(worker, &name)?;
                side.write(&file, 0, &bytes)?;
                side.sync(&file)?;
                if let Some(old) = done.checked_sub(MOST_FILES) {
                    side.remove(worker, &format!("file {old}"))?;
                }
            }
            (Load::Move, _) => {
                let next = (worker + 1) % workers;
                let file = side.make(worker, &name)?;
                side.write(&file, 0, &bytes)?;
                let moved = |done| format!("moved from {worker}: {done}");
                side.rename((worker, &name), (next, &moved(done)))?;
                side.sync(&file)?;
                if let Some(old) = done.checked_sub(MOST_FILES) {
                    side.remove(next, &moved(old))?;
                }
            }
            (Load::Append, Some((file, at))) if *at < MOST_BYTES => {
                side.write(file, *at, &bytes)?;
                side.sync(file)?;
                growing = growing.map(|(file, at)| (file, at + WRITE_BYTES as u64));
            }
            (Load::Append, _) => {
                growing = Some((side.make(worker, &name)?, 0));
                continue;
            }
        }
        done += 1;
    }
}

/// Lets workers work at the same time.
fn measure<S: Side>(side: &S, load: Load, workers: usize, until: Until) -> Result<Run> {
    let barrier = Barrier::new(workers);
    let barrier = &barrier;
    thread::scope(|scope| {
        let run = |worker| {
            scope.spawn(move || {
                barrier.wait();
                let (began, before) = (Instant::now(), Spent::now()?);
                let done = work(side, load, (worker, workers), until, began)?;
                let spent = Spent::now()?.each(before, |after, before| after - before);
                Ok::<_, anyhow::Error>(Run { done, seconds: began.elapsed().as_secs_f64(), spent })
            })
        };
        let running: Vec<_> = (0..workers).map(run).collect();
        let mut all = Run { done: 0, seconds: 0.0, spent: Spent::default() };
        for worker in running {
            let ended = worker.join().map_err(|_| anyhow::anyhow!("a worker panicked"))?;
            let Run { done, seconds, spent } = ended?;
            all = Run {
                done: all.done + done,
                seconds: all.seconds.max(seconds),
                spent: all.spent.each(spent, |one, other| one + other),
            };
        }
        Ok(all)
    })
}

/// A stock ext4 on all of a device.
fn format(device: &dyn WriteBlocks) -> Result<()> {
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now: now() };
    let params = Options::of_type(FsType::Ext4).params(device.size_bytes(), None, &fresh)?;
    Ok(mkfs::write(&Plan::new(&params)?, &device)?)
}

/// Numbers of journals, and how their changes depend on each other.
const SCHEMES: [(u32, Dependencies, &str); 5] = [
    (1, Dependencies::Listed, ""),
    (2, Dependencies::Listed, " that list"),
    (2, Dependencies::Awaited, " that wait"),
    (4, Dependencies::Listed, " that list"),
    (4, Dependencies::Awaited, " that wait"),
];

/// Bytes of a lot of native file systems.
const LOT_BYTES: u64 = 16 << 20;
/// Bytes of short stripes.
const SHORT_BYTES: u64 = 64 << 10;

/// A native file system on all of a device, with so many journals.
fn format_native(device: &dyn WriteBlocks, journals: u32) -> Result<()> {
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now: now() };
    let mut options = Options::of_type(FsType::Native);
    options.set('E', &format!("lot_size={LOT_BYTES}"))?;
    options.set('J', "size=4")?;
    let params = options.params(device.size_bytes(), None, &fresh)?;
    mkfs::write(&Plan::new(&params)?, &device)?;
    let (disk, volume) = Disk::open(device)?;
    let files = disk.files()?;
    let live = Live::new(&disk, &files, volume, now())?;
    live.make_journals(&Caller::system(now()), journals)?;
    live.finish(now())?;
    drop(files);
    disk.close()?;
    Ok(())
}

/// One run of Floe on a device that counts flushes.
fn of_floe<D: WriteBlocks>(
    device: &Modelled<D>,
    load: Load,
    workers: usize,
    until: Until,
) -> Result<Figures> {
    of_floe_on(device, || device.flushes(), load, (workers, Dependencies::Listed), until)
}

/// The same on any device.
fn of_floe_on<D: WriteBlocks>(
    device: D,
    flushes: impl Fn() -> u64,
    load: Load,
    (workers, dependencies): (usize, Dependencies),
    until: Until,
) -> Result<Figures> {
    let (disk, volume) = Disk::open(device)?;
    disk.set_dependencies(dependencies);
    let files = disk.files()?;
    let floe = Floe::new(Live::new(&disk, &files, volume, now())?, workers)?;
    let before = flushes();
    let run = measure(&floe, load, workers, until)?;
    let flushes = flushes() - before;
    floe.end()?.finish(now())?;
    drop(files);
    disk.close()?;
    Ok(Figures::of(&run, flushes))
}

/// Flushes that the block device below a folder has done.
fn kernel_flushes(folder: &Path) -> Result<u64> {
    let device = fs::metadata(folder)?.dev();
    let path = format!("/sys/dev/block/{}:{}/stat", major(device), minor(device));
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let field = text.split_whitespace().nth(15).context("this kernel does not count flushes")?;
    Ok(field.parse()?)
}

/// The same of the kernel.
fn of_kernel(image: &Path, load: Load, workers: usize, until: Until) -> Result<Figures> {
    let mount = Mounted::new(image, "noinit_itable")?;
    let top = mount.path().to_owned();
    (0..workers).try_for_each(|worker| fs::create_dir(top.join(worker.to_string())))?;
    fs::File::open(&top)?.sync_all()?;
    let before = kernel_flushes(&top)?;
    let run = measure(&Kernel(top.clone()), load, workers, until)?;
    let flushes = kernel_flushes(&top)? - before;
    mount.unmount()?;
    Ok(Figures::of(&run, flushes))
}

fn beside(folder: &Path, most: Duration, rounds: usize, workers: &[usize]) -> Result<()> {
    let image = folder.join("commits.img");
    let made = WritableFile::create(&image, IMAGE_BYTES)?;
    // All of it has its place: otherwise the system below would allocate for some.
    let zeroes = vec![0; 1 << 20];
    for at in (0..IMAGE_BYTES).step_by(zeroes.len()) {
        made.write_at(at, &zeroes)?;
    }
    made.flush()?;
    drop(made);
    let fresh = || -> Result<WritableFile> {
        let device = WritableFile::open(&image)?;
        format(&device)?;
        device.flush()?;
        Ok(device)
    };
    let until = Until::Elapsed(most);
    for load in [Load::Append, Load::Create] {
        for &workers in workers {
            let (mut floe, mut kernel) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                let device = Modelled::new(fresh()?, &Model::flushes(Duration::ZERO));
                floe.push(of_floe(&device, load, workers, until)?);
                drop((device, fresh()?));
                kernel.push(of_kernel(&image, load, workers, until)?);
            }
            let (floe, kernel) = (Figures::medians(&floe), Figures::medians(&kernel));
            let times = floe.per_second / kernel.per_second;
            println!("{load:?} {workers:2} workers, Floe:   {floe}; {times:5.2} times");
            println!("{load:?} {workers:2} workers, kernel: {kernel}");
        }
    }
    fs::remove_file(&image)?;
    Ok(())
}

fn model(flush: Duration, rounds: u64, workers: &[usize]) -> Result<()> {
    for load in [Load::Append, Load::Create] {
        for &workers in workers {
            let memory = MemDevice::new(vec![0; IMAGE_BYTES as usize / 4]);
            format(&memory)?;
            let device = Modelled::new(memory, &Model::flushes(flush)).waiting();
            let figures = of_floe(&device, load, workers, Until::Done(rounds))?;
            println!("{load:?} {workers:2} workers: {figures}");
        }
    }
    Ok(())
}

fn journals(flush: Duration, rounds: u64, workers: &[usize]) -> Result<()> {
    for (stripes, chunk_bytes) in [("of a lot", LOT_BYTES), ("of 64 KiB", SHORT_BYTES)] {
        for load in [Load::Append, Load::Create, Load::Move] {
            for &workers in workers {
                for (journals, dependencies, scheme) in SCHEMES {
                    let part = || {
                        let memory = MemDevice::new(vec![0; IMAGE_BYTES as usize / 8]);
                        Modelled::new(memory, &Model::flushes(flush)).waiting().with_flushes(4)
                    };
                    let device = Striped::new(vec![part(), part()], chunk_bytes)?;
                    format_native(&device, journals)?;
                    let flushes = || device.devices().map(Modelled::flushes).sum();
                    let until = Until::Done(rounds);
                    let figures =
                        of_floe_on(&device, flushes, load, (workers, dependencies), until)?;
                    println!(
                        "stripes {stripes}, {load:?} {workers:2} workers, {journals} journals{scheme}: {figures}"
                    );
                }
            }
        }
    }
    Ok(())
}

fn files(folder: &Path, most: Duration, rounds: usize, workers: &[usize]) -> Result<()> {
    let image = folder.join("journals.img");
    let until = Until::Elapsed(most);
    for load in [Load::Append, Load::Create] {
        for &workers in workers {
            let mut all = [(1, Vec::new()), (2, Vec::new())];
            for _ in 0..rounds {
                for (journals, figures) in &mut all {
                    let device = WritableFile::create(&image, IMAGE_BYTES / 4)?;
                    let zeroes = vec![0; 1 << 20];
                    for at in (0..IMAGE_BYTES / 4).step_by(zeroes.len()) {
                        device.write_at(at, &zeroes)?;
                    }
                    format_native(&device, *journals)?;
                    let device =
                        Modelled::new(device, &Model::flushes(Duration::ZERO)).with_flushes(4);
                    figures.push(of_floe(&device, load, workers, until)?);
                    drop(device);
                    fs::remove_file(&image)?;
                }
            }
            for (journals, figures) in all {
                let figures = Figures::medians(&figures);
                println!("a file, {load:?} {workers:2} workers, {journals} journals: {figures}");
            }
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [way, first, rest @ ..] = &words[..] else { bail!("too few arguments") };
    let numbers: Vec<u64> = rest.iter().map(|word| word.parse()).collect::<Result<_, _>>()?;
    let counts = |from: usize| -> Vec<usize> {
        let all = numbers.get(from..).unwrap_or_default();
        all.iter().filter_map(|&count| usize::try_from(count).ok()).collect()
    };
    match (way.as_str(), &numbers[..]) {
        ("beside", &[milliseconds, rounds, ..]) => {
            let rounds = usize::try_from(rounds)?;
            ensure!(rounds > 0, "at least one round");
            beside(first.as_ref(), Duration::from_millis(milliseconds), rounds, &counts(2))
        }
        ("files", &[milliseconds, rounds, ..]) => {
            let rounds = usize::try_from(rounds)?;
            ensure!(rounds > 0, "at least one round");
            files(first.as_ref(), Duration::from_millis(milliseconds), rounds, &counts(2))
        }
        ("journals", &[rounds, ..]) => {
            journals(Duration::from_micros(first.parse()?), rounds, &counts(1))
        }
        ("model", &[rounds, ..]) => {
            model(Duration::from_micros(first.parse()?), rounds, &counts(1))
        }
        _ => bail!(
            "beside|files FOLDER MILLISECONDS ROUNDS WORKERS..., or \
             model|journals MICROSECONDS ROUNDS WORKERS..."
        ),
    }
}
