//! Tenants of one file system on a model of a device, in process, as section 5.4 and 5.5 of the IceFS paper have them: SQLite with
//! a write-ahead log, and a mail server (varmail), alone, in one cube, in cubes of their own, in file systems of their own on two
//! partitions; four mail servers; and both while a third cube is checked. With the word `modes`, both in cubes with each pair of
//! modes, as figure 9 of the paper has them:
//!
//! ```text
//! cargo run --release -p floe-fs --example tenants [SECONDS] [ROUNDS] [FLUSH_MS] [modes]
//! ```
//!
//! SQLite writes as its format documentation says: frames of 24 bytes and a page to the log, without fsync; every 1,000 frames it makes the
//! log durable, copies the pages to the database, and makes that durable. A mail server is a few threads, each of which deletes a
//! file, creates one and appends 16 KiB, and appends 16 KiB to another, with an fsync each, and reads a third. Each figure is the
//! median of the rounds; in each round all settings take their turn, so that other programs of the machine slow all of them. The last
//! columns say how many processors the process kept busy, and how often, and how long in all, a change of one cube waited on its way
//! to the disk for one of another cube.

use std::io;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use floe_blockdev::{MemDevice, Model, Modelled, ReadBlocks, Window, WriteBlocks};
use floe_disk::mkfs::{self, Fresh, FsType, Options, Plan};
use floe_format::InodeNr;
use floe_fs::{
    CubeCall, Disk, FileSystem, Limits, Live, MemFs, NewInode, Settings, Timestamp, Which, now,
};
use floe_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use floe_sync::thread;

mod cases;
mod loads;

use cases::{CASES, Case, MODES, Place, is_both};
use loads::{Fs, Load, make};

/// Bytes of the device.
const SIZE: u64 = 1 << 30;
/// Flushes that the device takes at the same time, as a file or a device of the system does.
const FLUSHES: usize = 4;

/// A modelled device of which the system has all in its cache, as it has of a file or a disk that was read or written once: reads
/// take no time.
struct Cached(Modelled<MemDevice>);

impl ReadBlocks for Cached {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.inner().read_at(offset_bytes, into)
    }
}

impl WriteBlocks for Cached {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        self.0.write_at(offset_bytes, from)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }

    fn most_flushes(&self) -> usize {
        self.0.most_flushes()
    }
}

/// The work of loads in a second, and flushes of the device.
struct Rates {
    loads: Vec<f64>,
    flushes: f64,
    checks: u64,
    /// Processors that the process kept busy.
    cores: f64,
    /// Waits of one cube for another on the way to the disk, and milliseconds of them, by seconds.
    waits: (f64, f64),
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let word = |at: usize, usual: u64| words.get(at).map_or(Ok(usual), |word| word.parse());
    let (seconds, rounds, flush_ms) = (word(0, 3)?, word(1, 3)?, word(2, 3)?);
    ensure!(seconds > 0 && rounds > 0, "at least one second and one round");
    let cases = if words.get(3).is_some_and(|word| word == "modes") { MODES } else { CASES };
    let flush = Duration::from_millis(flush_ms);
    let model = Model { flush, bytes_per_second: 500_000_000, ..Model::ssd() };
    println!(
        "a flush takes {flush_ms} ms, a write 20 us and 500 MB/s, a read nothing; {rounds} rounds of {seconds} s"
    );
    let mut all: Vec<Vec<Rates>> = cases.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (case, rates) in cases.iter().zip(&mut all) {
            let run = run(case, &model, Duration::from_secs(seconds));
            rates.push(run.with_context(|| case.name.to_owned())?);
        }
    }
    println!(
        "{:<36} {:>13} {:>13} {:>10} {:>6} {:>9} {:>8}",
        "", "SQLite MB/s", "varmail ops/s", "flushes/s", "cores", "waits/s", "ms/s"
    );
    for (case, rates) in cases.iter().zip(&all) {
        print(case, rates);
    }
    aims(
        &cases.iter().zip(&all).map(|(case, rates)| (case, both(case, rates))).collect::<Vec<_>>(),
    );
    Ok(())
}

/// The work of SQLite and of the mail servers in a second.
fn both(case: &Case, rates: &[Rates]) -> (f64, f64) {
    let of = |wanted: fn(&Load) -> bool| {
        let sums = rates.iter().map(|rates| {
            let own = case.loads.iter().zip(&rates.loads);
            own.filter(|((load, _), _)| wanted(load)).map(|(_, rate)| rate).sum::<f64>()
        });
        median(sums)
    };
    (of(|load| matches!(load, Load::Sqlite)), of(|load| matches!(load, Load::Mail { .. })))
}

fn print(case: &Case, rates: &[Rates]) {
    let (sqlite, mail) = both(case, rates);
    let text = |rate: f64, digits: usize| match rate > 0.0 {
        true => format!("{rate:.digits$}"),
        false => "-".to_owned(),
    };
    let flushes = median(rates.iter().map(|rates| rates.flushes));
    let cores = median(rates.iter().map(|rates| rates.cores));
    let waits = median(rates.iter().map(|rates| rates.waits.0));
    let waited = median(rates.iter().map(|rates| rates.waits.1));
    let checks: u64 = rates.iter().map(|rates| rates.checks).sum();
    let tail = if checks > 0 { format!("  {checks} checks") } else { String::new() };
    println!(
        "{:<36} {:>13} {:>13} {flushes:>10.0} {cores:>6.2} {waits:>9.0} {waited:>8.1}{tail}",
        case.name,
        text(sqlite, 1),
        text(mail, 0)
    );
}

/// Compares cases in which both loads run with each load alone, and with both in one cube.
fn aims(all: &[(&Case, (f64, f64))]) {
    let of = |name: &str| all.iter().find(|(case, _)| case.name == name).map(|(_, both)| *both);
    let (Some((sqlite, _)), Some((_, mail)), Some(one)) =
        (of(cases::SQLITE_ALONE), of(cases::MAIL_ALONE), of(cases::IN_ONE))
    else {
        return;
    };
    println!("\n{:<36} {:>20} {:>22}", "", "% of alone", "times both in one cube");
    for (case, (own, of_mail)) in all.iter().filter(|(case, _)| is_both(case)) {
        let parts = (100.0 * own / sqlite, 100.0 * of_mail / mail);
        let times = (own / one.0, of_mail / one.1);
        println!(
            "{:<36} {:>9.0} and {:>6.0} {:>11.1} and {:>6.1}",
            case.name, parts.0, parts.1, times.0, times.1
        );
    }
}

fn median(rates: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = rates.collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or_default()
}

/// Makes an empty native file system with lots of 64 MiB.
fn format(device: &dyn WriteBlocks) -> Result<()> {
    let mut options = Options::of_type(FsType::Native);
    for (letter, value) in [('E', "lot_size=64m"), ('J', "size=32"), ('N', "60000")] {
        options.set(letter, value)?;
    }
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now: now() };
    let params = options.params(device.size_bytes(), None, &fresh)?;
    mkfs::write(&Plan::new(&params)?, device)?;
    Ok(())
}

/// A load at work, as one of its threads, until it is told to end.
type Work<'w> = Box<dyn Fn((u64, &AtomicU64), &AtomicBool) -> Result<()> + Sync + 'w>;
/// Somebody who tends a file system until it is told to end, and tells how often a cube was checked.
type Tends<'w> = Box<dyn Fn(&AtomicBool) -> Result<u64> + Sync + 'w>;

/// A file system with loads.
struct Side<'w> {
    work: Vec<Work<'w>>,
    tends: Tends<'w>,
    crossings: Box<dyn Fn() -> (u64, Duration) + Sync + 'w>,
}

/// Runs the loads of a case for a while.
fn run(case: &Case, model: &Model, time: Duration) -> Result<Rates> {
    let device = MemDevice::new(vec![0; usize::try_from(SIZE)?]);
    if !case.is_apart {
        format(&device)?;
        let device = Cached(Modelled::new(device, model).waiting().with_flushes(FLUSHES));
        return mounted(&device, &mut |fs| {
            let sides = [side(case, fs, case.places, case.loads)?];
            together(case, &sides, (&device.0, time))
        });
    }
    for half in halves(&device)? {
        format(&half)?;
    }
    let device = Cached(Modelled::new(device, model).waiting().with_flushes(FLUSHES));
    let [first, second] = halves(&device)?;
    mounted(&first, &mut |one| {
        mounted(&second, &mut |other| {
            let sides = [
                side(case, one, &case.places[..1], &case.loads[..1])?,
                side(case, other, &case.places[1..], &case.loads[1..])?,
            ];
            together(case, &sides, (&device.0, time))
        })
    })
}

/// The partitions of a device.
fn halves(device: &dyn WriteBlocks) -> Result<[Window<&dyn WriteBlocks>; 2]> {
    let half = |at: u64| Window::new(device, at * SIZE / 2, Some(SIZE / 2));
    Ok([half(0)?, half(1)?])
}

/// Mounts a device, and unmounts it afterwards.
fn mounted(
    device: &dyn WriteBlocks,
    work: &mut dyn FnMut(&Fs<'_>) -> Result<Rates>,
) -> Result<Rates> {
    let (disk, volume) = Disk::open(device)?;
    let rates = {
        let files = disk.files_of(&volume)?;
        let live = Live::new(&disk, &files, volume, now())?;
        let fs = FileSystem::new(MemFs::new(live, Limits::default()));
        let rates = work(&fs)?;
        let (live, lost) = fs.into_store().finish()?;
        live.finish(now())?;
        lost?;
        rates
    };
    disk.close()?;
    Ok(rates)
}

/// Makes the places of a file system, and what its loads need.
fn side<'w>(
    case: &'w Case,
    fs: &'w Fs<'_>,
    places: &[Place],
    loads: &'w [(Load, &'static str)],
) -> Result<Side<'w>> {
    for (name, settings) in places {
        let name = name.as_bytes();
        match settings {
            None => drop(make(fs, InodeNr::ROOT, name, NewInode::directory(0o755))?),
            Some(settings) => {
                let settings = Settings::parse(settings)?;
                fs.cube_call(&CubeCall::Create { parent: InodeNr::ROOT, name, settings })?;
            }
        }
    }
    let mut work: Vec<Work<'w>> = Vec::new();
    for (at, (load, place)) in loads.iter().enumerate() {
        let top = loads::find(fs, InodeNr::ROOT, place.as_bytes())?;
        let name = format!("load{at}");
        let own = make(fs, top, name.as_bytes(), NewInode::directory(0o755))?;
        load.prepare(fs, own)?;
        work.push(Box::new(move |counts, ended| load.work(fs, own, counts, ended)));
    }
    if let Some(place) = case.checked {
        loads::fill(fs, loads::find(fs, InodeNr::ROOT, place.as_bytes())?)?;
    }
    fs.sync()?;
    let tends = Box::new(|ended: &AtomicBool| tend(case, fs, ended));
    Ok(Side { work, tends, crossings: Box::new(|| fs.store().crossings()) })
}

/// Seconds of processor time that this process has used.
fn processor_seconds() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    // User and system time, in ticks of 10 ms.
    let ticks = fields.skip(11).take(2).map(str::parse::<f64>).sum::<Result<f64, _>>()?;
    Ok(ticks / 100.0)
}

/// Lets loads run beside each other, and somebody who tends the file systems as a mount does.
fn together(
    case: &Case,
    sides: &[Side<'_>],
    (device, time): (&Modelled<MemDevice>, Duration),
) -> Result<Rates> {
    let ended = AtomicBool::new(false);
    let counts: Vec<AtomicU64> = case.loads.iter().map(|_| AtomicU64::new(0)).collect();
    let crossed = || {
        let all = sides.iter().map(|side| (side.crossings)());
        all.fold((0, Duration::ZERO), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    };
    let (since, flushes, before) = (Instant::now(), device.flushes(), crossed());
    let used = processor_seconds()?;
    let checks = thread::scope(|scope| {
        let mut workers = Vec::new();
        let work = sides.iter().flat_map(|side| &side.work);
        for (((load, _), work), count) in case.loads.iter().zip(work).zip(&counts) {
            for number in 0..load.threads() {
                let ended = &ended;
                workers.push(scope.spawn(move || work((number, count), ended)));
            }
        }
        let tending = sides.iter().map(|side| scope.spawn(|| (side.tends)(&ended)));
        let tending: Vec<_> = tending.collect();
        thread::sleep(time);
        ended.store(true, Ordering::SeqCst);
        let failed = |_| anyhow!("a load panicked");
        workers.into_iter().try_for_each(|worker| worker.join().map_err(failed)?)?;
        let checks = tending.into_iter().map(|tending| tending.join().map_err(failed)?);
        checks.sum::<Result<u64>>()
    })?;
    let seconds = since.elapsed().as_secs_f64();
    let cores = (processor_seconds()? - used) / seconds;
    let rate = |count: &AtomicU64| count.load(Ordering::SeqCst) as f64 / seconds;
    let flushes = (device.flushes() - flushes) as f64 / seconds;
    let after = crossed();
    let waited = (after.1 - before.1).as_secs_f64() * 1000.0;
    let waits = ((after.0 - before.0) as f64 / seconds, waited / seconds);
    Ok(Rates { loads: counts.iter().map(rate).collect(), flushes, checks, cores, waits })
}

/// Tends the file system until loads end. Returns how often a cube was checked.
fn tend(case: &Case, fs: &Fs<'_>, ended: &AtomicBool) -> Result<u64> {
    let (mut checks, mut synced) = (0, Instant::now());
    while !ended.load(Ordering::SeqCst) {
        if let Some(place) = case.checked {
            let cube = Which::Of(loads::find(fs, InodeNr::ROOT, place.as_bytes())?);
            fs.cube_call(&CubeCall::Check { cube, repairs: false, undo: None })?;
            fs.tend()?;
            let report = String::from_utf8(fs.cube_call(&CubeCall::Report(cube))?)?;
            ensure!(report.starts_with("state: sound"), "{report}");
            checks += 1;
        } else {
            thread::sleep(Duration::from_millis(100));
            fs.tend()?;
        }
        if synced.elapsed() > Duration::from_secs(5) {
            fs.sync()?;
            synced = Instant::now();
        }
    }
    Ok(checks)
}

/// The time that all changes have: nobody looks at it.
pub(crate) fn time() -> Timestamp {
    now()
}
