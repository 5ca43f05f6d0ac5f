//! Tenants of one file system on a model of a device, in process, as section 5.4 and 5.5 of the IceFS paper have them: SQLite with
//! a write-ahead log, and a mail server (varmail), alone, in one cube, in cubes of their own, with other modes; four mail servers;
//! and both while a third cube is checked:
//!
//! ```text
//! cargo run --release -p floe-fs --example tenants [SECONDS] [ROUNDS] [FLUSH_MS]
//! ```
//!
//! SQLite writes as its format documentation says: frames of 24 bytes and a page to the log, without fsync; every 1,000 frames it makes the
//! log durable, copies the pages to the database, and makes that durable. A mail server is a few threads, each of which deletes a
//! file, creates one and appends 16 KiB, and appends 16 KiB to another, with an fsync each, and reads a third. Each figure is the
//! median of the rounds; in each round all settings take their turn, so that other programs of the machine slow all of them. The last
//! columns say how often, and how long in all, a change of one cube waited on its way to the disk for one of another cube.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use floe_blockdev::{MemDevice, Model, Modelled};
use floe_disk::mkfs::{self, Fresh, FsType, Options, Plan};
use floe_format::InodeNr;
use floe_fs::{
    CubeCall, Disk, FileSystem, Limits, Live, MemFs, NewInode, Settings, Timestamp, Which, now,
};
use floe_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use floe_sync::thread;

mod loads;

use loads::{Load, make};

/// Bytes of the device.
const SIZE: u64 = 1 << 30;
/// Flushes that the device takes at the same time, as a file or a device of the system does.
const FLUSHES: usize = 4;
/// Settings of a cube unless a case says otherwise.
const OWN: &str = "journal_blocks=2048";

/// A directory that is made for a case: a cube with these settings, or none.
type Place = (&'static str, Option<&'static str>);

/// Loads that run at the same time, each in a directory.
struct Case {
    name: &'static str,
    places: &'static [Place],
    loads: &'static [(Load, &'static str)],
    /// A cube that is checked all the time.
    checked: Option<&'static str>,
}

const SQL: Load = Load::Sqlite;
const MAIL: Load = Load::Mail { threads: 8 };
const SMALL_MAIL: Load = Load::Mail { threads: 4 };
const OFF: &str = "journal_blocks=2048 fsync=off";

const CASES: [Case; 12] = [
    case("SQLite alone, in a cube", &[("a", Some(OWN))], &[(SQL, "a")]),
    case("varmail alone, in a cube", &[("b", Some(OWN))], &[(MAIL, "b")]),
    case("both, no cubes", &[("a", None), ("b", None)], &[(SQL, "a"), (MAIL, "b")]),
    case("both in one cube", &[("c", Some(OWN))], &[(SQL, "c"), (MAIL, "c")]),
    case("each in a cube", &[("a", Some(OWN)), ("b", Some(OWN))], &[(SQL, "a"), (MAIL, "b")]),
    case(
        "each in a cube, one journal",
        &[("a", Some("")), ("b", Some(""))],
        &[(SQL, "a"), (MAIL, "b")],
    ),
    case(
        "SQLite's cube fsync=off",
        &[("a", Some(OFF)), ("b", Some(OWN))],
        &[(SQL, "a"), (MAIL, "b")],
    ),
    case(
        "varmail's cube fsync=off",
        &[("a", Some(OWN)), ("b", Some(OFF))],
        &[(SQL, "a"), (MAIL, "b")],
    ),
    case(
        "varmail's cube logs data",
        &[("a", Some(OWN)), ("b", Some("journal_blocks=8192 journal_mode=data"))],
        &[(SQL, "a"), (MAIL, "b")],
    ),
    case(
        "four varmails in one cube",
        &[("c", Some(OWN))],
        &[(SMALL_MAIL, "c"), (SMALL_MAIL, "c"), (SMALL_MAIL, "c"), (SMALL_MAIL, "c")],
    ),
    case(
        "four varmails in four cubes",
        &[("a", Some(OWN)), ("b", Some(OWN)), ("c", Some(OWN)), ("d", Some(OWN))],
        &[(SMALL_MAIL, "a"), (SMALL_MAIL, "b"), (SMALL_MAIL, "c"), (SMALL_MAIL, "d")],
    ),
    Case {
        checked: Some("d"),
        ..case(
            "each in a cube, a third is checked",
            &[("a", Some(OWN)), ("b", Some(OWN)), ("d", Some(OWN))],
            &[(SQL, "a"), (MAIL, "b")],
        )
    },
];

const fn case(
    name: &'static str,
    places: &'static [Place],
    loads: &'static [(Load, &'static str)],
) -> Case {
    Case { name, places, loads, checked: None }
}

/// The work of loads in a second, and flushes of the device.
struct Rates {
    loads: Vec<f64>,
    flushes: f64,
    checks: u64,
    /// Waits of one cube for another on the way to the disk, and milliseconds of them, by seconds.
    waits: (f64, f64),
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let word = |at: usize, usual: u64| words.get(at).map_or(Ok(usual), |word| word.parse());
    let (seconds, rounds, flush_ms) = (word(0, 3)?, word(1, 3)?, word(2, 3)?);
    ensure!(seconds > 0 && rounds > 0, "at least one second and one round");
    let flush = Duration::from_millis(flush_ms);
    let model = Model { flush, bytes_per_second: 500_000_000, ..Model::ssd() };
    println!(
        "a flush takes {flush_ms} ms, a write 20 us and 500 MB/s; {rounds} rounds of {seconds} s"
    );
    let mut all: Vec<Vec<Rates>> = CASES.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (case, rates) in CASES.iter().zip(&mut all) {
            let run = run(case, &model, Duration::from_secs(seconds));
            rates.push(run.with_context(|| case.name.to_owned())?);
        }
    }
    println!(
        "{:<36} {:>13} {:>13} {:>10} {:>9} {:>8}",
        "", "SQLite MB/s", "varmail ops/s", "flushes/s", "waits/s", "ms/s"
    );
    for (case, rates) in CASES.iter().zip(&all) {
        let of = |wanted: fn(&Load) -> bool| {
            let sums = rates.iter().map(|rates| {
                let own = case.loads.iter().zip(&rates.loads);
                own.filter(|((load, _), _)| wanted(load)).map(|(_, rate)| rate).sum::<f64>()
            });
            median(sums)
        };
        let sqlite = of(|load| matches!(load, Load::Sqlite));
        let mail = of(|load| matches!(load, Load::Mail { .. }));
        let text = |rate: f64, digits: usize| match rate > 0.0 {
            true => format!("{rate:.digits$}"),
            false => "-".to_owned(),
        };
        let flushes = median(rates.iter().map(|rates| rates.flushes));
        let waits = median(rates.iter().map(|rates| rates.waits.0));
        let waited = median(rates.iter().map(|rates| rates.waits.1));
        let checks: u64 = rates.iter().map(|rates| rates.checks).sum();
        let tail = if checks > 0 { format!("  {checks} checks") } else { String::new() };
        println!(
            "{:<36} {:>13} {:>13} {flushes:>10.0} {waits:>9.0} {waited:>8.1}{tail}",
            case.name,
            text(sqlite, 1),
            text(mail, 0)
        );
    }
    Ok(())
}

fn median(rates: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = rates.collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or_default()
}

/// An empty native file system with lots of 64 MiB.
fn formatted() -> Result<MemDevice> {
    let mut options = Options::of_type(FsType::Native);
    for (letter, value) in [('E', "lot_size=64m"), ('J', "size=32"), ('N', "60000")] {
        options.set(letter, value)?;
    }
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now: now() };
    let params = options.params(SIZE, None, &fresh)?;
    let device = MemDevice::new(vec![0; usize::try_from(SIZE)?]);
    mkfs::write(&Plan::new(&params)?, &device)?;
    Ok(device)
}

/// Runs the loads of a case for a while.
fn run(case: &Case, model: &Model, time: Duration) -> Result<Rates> {
    let device = Modelled::new(formatted()?, model).waiting().with_flushes(FLUSHES);
    let (disk, volume) = Disk::open(&device)?;
    let rates = {
        let files = disk.files_of(&volume)?;
        let live = Live::new(&disk, &files, volume, now())?;
        let fs = FileSystem::new(MemFs::new(live, Limits::default()));
        let mut tops = Vec::new();
        for (name, settings) in case.places {
            let name = name.as_bytes();
            match settings {
                None => make(&fs, InodeNr::ROOT, name, NewInode::directory(0o755))?,
                Some(settings) => {
                    let settings = Settings::parse(settings)?;
                    let parent = InodeNr::ROOT;
                    fs.cube_call(&CubeCall::Create { parent, name, settings })?;
                    loads::find(&fs, parent, name)?
                }
            };
        }
        for (at, (load, place)) in case.loads.iter().enumerate() {
            let top = loads::find(&fs, InodeNr::ROOT, place.as_bytes())?;
            let name = format!("load{at}");
            let own = make(&fs, top, name.as_bytes(), NewInode::directory(0o755))?;
            load.prepare(&fs, own)?;
            tops.push(own);
        }
        if let Some(place) = case.checked {
            loads::fill(&fs, loads::find(&fs, InodeNr::ROOT, place.as_bytes())?)?;
        }
        fs.sync()?;
        let rates = together(case, &fs, &tops, (&device, time))?;
        let (live, lost) = fs.into_store().finish()?;
        live.finish(now())?;
        lost?;
        rates
    };
    disk.close()?;
    Ok(rates)
}

/// Lets loads run beside each other, and somebody who tends the file system as a mount does.
fn together(
    case: &Case,
    fs: &loads::Fs<'_>,
    tops: &[InodeNr],
    (device, time): (&Modelled<MemDevice>, Duration),
) -> Result<Rates> {
    let ended = AtomicBool::new(false);
    let counts: Vec<AtomicU64> = tops.iter().map(|_| AtomicU64::new(0)).collect();
    let (since, flushes, before) = (Instant::now(), device.flushes(), fs.store().crossings());
    let checks = thread::scope(|scope| {
        let mut workers = Vec::new();
        for (((load, _), top), count) in case.loads.iter().zip(tops).zip(&counts) {
            for number in 0..load.threads() {
                let ended = &ended;
                workers.push(scope.spawn(move || load.work(fs, *top, (number, count), ended)));
            }
        }
        let tending = scope.spawn(|| tend(case, fs, &ended));
        thread::sleep(time);
        ended.store(true, Ordering::SeqCst);
        let failed = |_| anyhow!("a load panicked");
        workers.into_iter().try_for_each(|worker| worker.join().map_err(failed)?)?;
        tending.join().map_err(failed)?
    })?;
    let seconds = since.elapsed().as_secs_f64();
    let rate = |count: &AtomicU64| count.load(Ordering::SeqCst) as f64 / seconds;
    let flushes = (device.flushes() - flushes) as f64 / seconds;
    let after = fs.store().crossings();
    let waited = (after.1 - before.1).as_secs_f64() * 1000.0;
    let waits = ((after.0 - before.0) as f64 / seconds, waited / seconds);
    Ok(Rates { loads: counts.iter().map(rate).collect(), flushes, checks, waits })
}

/// Tends the file system until loads end. Returns how often a cube was checked.
fn tend(case: &Case, fs: &loads::Fs<'_>, ended: &AtomicBool) -> Result<u64> {
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
