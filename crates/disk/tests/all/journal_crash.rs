//! Power fails at every write of a journal, and of the recovery that follows: what was acknowledged is there, what is there is
//! whole, and the file system is clean.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use floe_blockdev::{
    Crash, Event, MemDevice, ReadBlocks, Recorder, SECTOR_BYTES, Trace, WriteBlocks,
};
use floe_check::{CheckOptions, Problem, check};
use floe_disk::journal::{Barriers, Journal};
use floe_disk::recovery::recover;
use floe_ext4::files::Files;
use floe_ext4::fs::FileSystem;
use floe_ext4::journal;
use floe_format::InodeNr;
use floe_format::ext::jbd2;
use floe_testkit::crash::{Effort, each_state, tears};
use floe_testkit::{Image, Profile, Rng, build, oracle, tool};

use crate::changes::Changes;

/// New names in the root directory with their content; directories have none.
type Names = BTreeMap<String, Option<Vec<u8>>>;

/// Blocks of the log, so few that it wraps every few transactions.
const LOG_BLOCKS: u32 = 128;

/// A run of changes that was recorded.
struct Run {
    before: Vec<u8>,
    trace: Trace,
    /// The names after each change, from none on, and how many events had ended when it began.
    history: Vec<(usize, Names)>,
    /// By the number of events that had ended: changes that were acknowledged as durable by then.
    acknowledged: Vec<(usize, usize)>,
}

fn located(device: &dyn ReadBlocks) -> journal::Journal {
    let fs = FileSystem::open(device).unwrap();
    let descs = fs.space.groups.descs();
    journal::find(device, &fs.superblock, fs.geometry(), descs, None).0.unwrap()
}

/// Shortens the log of an image.
fn shorten_log(image: &Image) {
    let place = located(image);
    let mut superblock = place.superblock.clone();
    superblock.maxlen = LOG_BLOCKS;
    let mut bytes = [0; 1024];
    superblock.encode_into(&mut bytes);
    image.write(place.offset_bytes(0).unwrap(), &bytes).unwrap();
}

/// Changes an image at random through a journal on `device`, which ends at the recorder; `reuse` hands the block of a removed
/// directory out as data before its removal is durable.
fn run<D: WriteBlocks>(
    recorder: &Recorder<MemDevice>,
    device: D,
    seed: u64,
    changes_count: usize,
    reuse: bool,
) -> Run {
    run_with(recorder, device, seed, changes_count, reuse, Barriers::Two)
}

/// The same with a number of barriers for each transaction. With one, most content is logged.
fn run_with<D: WriteBlocks>(
    recorder: &Recorder<MemDevice>,
    device: D,
    seed: u64,
    changes_count: usize,
    reuse: bool,
    barriers: Barriers,
) -> Run {
    let before = recorder_bytes(recorder);
    let recovered = recover(&device).unwrap();
    let journal = Journal::open_recovered(device, &recovered, barriers).unwrap();
    let mut changes = Changes::open(&journal);
    changes.credits = 20;
    let (mut history, mut acknowledged) = (vec![(0, Names::new())], vec![(0, 0)]);
    let mut rng = Rng::new(seed);
    let mut names: Vec<String> = Vec::new();
    for at in 0..changes_count {
        let name = format!("new-{at}");
        let began = recorder.trace().events.len();
        let id = match rng.below(3) {
            0 => {
                let mut content = vec![0; 1 + rng.index(900)];
                rng.fill(&mut content);
                names.push(name.clone());
                changes.logs_content = barriers == Barriers::One && !rng.chance(4);
                changes.create(&journal, &name, &content)
            }
            1 => {
                names.push(name.clone());
                changes.mkdir(&journal, &name)
            }
            _ if names.is_empty() => continue,
            _ => {
                let (id, run) =
                    changes.remove(&journal, &names.swap_remove(rng.index(names.len())));
                if reuse {
                    journal.write_data(run.start.0 * 1024, &[0xda; 1024]).unwrap();
                }
                id
            }
        };
        history.push((began, changes.model.clone()));
        if rng.chance(2) {
            journal.commit(id).unwrap();
            acknowledged.push((recorder.trace().events.len(), history.len() - 1));
        }
        if rng.chance(12) {
            journal.checkpoint().unwrap();
        }
    }
    journal.close().unwrap();
    acknowledged.push((recorder.trace().events.len(), history.len() - 1));
    Run { before, trace: recorder.trace(), history, acknowledged }
}

fn recorder_bytes(device: &dyn ReadBlocks) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(device.size_bytes()).unwrap()];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

/// The new names that a recovered device holds, as they are read.
fn names(device: &dyn ReadBlocks) -> Result<Names> {
    let fs = FileSystem::open(device)?;
    let groups = fs.space.groups.descs().to_vec();
    let files = Files::new(device, fs.superblock.clone(), fs.geometry().clone(), groups);
    let listing = files.list(&files.node(InodeNr::ROOT)?)?;
    ensure!(listing.faults.is_empty(), "{:?}", listing.faults);
    let mut names = Names::new();
    for entry in listing.entries {
        let name = String::from_utf8_lossy(&entry.name).into_owned();
        if !name.starts_with("new-") {
            continue;
        }
        let node = files.node(entry.inode)?;
        let content = if node.is_directory() {
            None
        } else {
            let (content, mut faults) = files.content(&node)?;
            let mut bytes = vec![0; usize::try_from(content.size_bytes())?];
            content.read_at(0, &mut bytes, &mut faults);
            ensure!(faults.is_empty(), "{faults:?}");
            Some(bytes)
        };
        names.insert(name, content);
    }
    Ok(names)
}

impl Run {
    /// Judges a recovered device after a crash behind so many events.
    fn judge(&self, device: &dyn ReadBlocks, ended: usize) -> Result<()> {
        let after = self.acknowledged.iter().take_while(|(events, _)| *events <= ended);
        let least = after.last().map_or(0, |(_, change)| *change);
        let found = names(device)?;
        let mut possible = self.history[least..].iter().take_while(|(began, _)| *began <= ended);
        ensure!(
            possible.any(|(_, names)| *names == found),
            "neither change {least} nor a later one"
        );
        let report = check(device, &CheckOptions { threads: 1, ..CheckOptions::default() })?;
        // Linux wants a log of 1,024 blocks at least; this one is shorter so that it wraps around often.
        let others = report.found.iter();
        let others = others.filter(|one| !matches!(one, Problem::JournalBoundsWrong { .. }));
        let others: Vec<_> = others.collect();
        ensure!(others.is_empty(), "{others:?}");
        Ok(())
    }

    /// All states of the run, recovered by Floe; every `deep`-th recovery is cut off everywhere, too, and every `by_e2fsck`-th
    /// state recovered by e2fsck as well. Returns how many states were judged.
    fn explore(&self, effort: Effort, deep: usize, by_e2fsck: usize) -> Result<usize> {
        let (mut at, mut nested) = (0, 0);
        let states = each_state(&self.trace, &self.before, effort, |device, crash| {
            at += 1;
            if cannot_be(&self.trace, crash) {
                return Ok(());
            }
            let crashed = (at % deep == 0 || at % by_e2fsck == 0).then(|| device.to_vec());
            recover(&device)?;
            self.judge(&device, crash.issued)?;
            let Some(crashed) = crashed else { return Ok(()) };
            if at % deep == 0 {
                nested += self.cut_recovery_off(&crashed, crash.issued)?;
            }
            if at % by_e2fsck == 0 {
                self.ask_e2fsck(&crashed, &device)?;
            }
            Ok(())
        })?;
        Ok(states + nested)
    }

    fn cut_recovery_off(&self, crashed: &[u8], ended: usize) -> Result<usize> {
        let recorder = Recorder::new(MemDevice::new(crashed.to_vec()));
        recover(&recorder)?;
        let trace = recorder.trace();
        let effort = Effort { random_per_epoch: 2, seed: 5 };
        each_state(&trace, crashed, effort, |device, crash| {
            if cannot_be(&trace, crash) {
                return Ok(());
            }
            recover(&device)?;
            self.judge(&device, ended)
        })
        .context("while recovery was cut off")
    }

    /// e2fsck recovers the same names, and has nothing to mend.
    fn ask_e2fsck(&self, crashed: &[u8], recovered: &dyn ReadBlocks) -> Result<()> {
        let image = Image::empty(crashed.len() as u64)?;
        image.write(0, crashed)?;
        let verdict = oracle::run(image.path(), &["-fy"])?;
        ensure!(verdict.problems.is_empty(), "e2fsck: {}", verdict.text);
        ensure!(names(&image)? == names(recovered)?, "e2fsck recovers other names");
        Ok(())
    }
}

/// Whether a crash tore a sector, or the superblock: neither is expected of devices (docs/journal.md).
fn cannot_be(trace: &Trace, crash: &Crash) -> bool {
    let torn_sector = crash.torn_bytes.is_some_and(|bytes| !bytes.is_multiple_of(SECTOR_BYTES));
    torn_sector || tears(trace, crash, 1024..2048)
}

fn recorder() -> Recorder<MemDevice> {
    let image = build::base(Profile::Ext4K1).unwrap();
    shorten_log(&image);
    Recorder::new(MemDevice::new(image.to_vec().unwrap()))
}

#[test]
fn after_any_crash_what_was_acknowledged_is_there() {
    if tool::missing() {
        return;
    }
    let recorder = recorder();
    let run = run(&recorder, &recorder, 1, 14, false);
    let states = run.explore(Effort { random_per_epoch: 4, seed: 1 }, 40, 60).unwrap();
    eprintln!("{states} states");
    assert!(states > 300);
}

#[test]
fn after_any_crash_what_one_barrier_acknowledged_is_there() {
    if tool::missing() {
        return;
    }
    let recorder = recorder();
    let run = run_with(&recorder, &recorder, 11, 24, false, Barriers::One);
    let states = run.explore(Effort { random_per_epoch: 8, seed: 1 }, 60, 50).unwrap();
    eprintln!("{states} states");
    assert!(states > 300);
}

/// Thousands of states: `cargo xtask crash`. `FLOE_CRASH_SEEDS` says from which seed to which, such as `1-8`.
#[test]
#[ignore = "minutes; run by cargo xtask crash"]
fn thousands_of_states() {
    let seeds = std::env::var("FLOE_CRASH_SEEDS").unwrap_or_else(|_| "1-2".to_owned());
    let (first, last) = seeds.split_once('-').unwrap();
    let mut states = 0;
    for seed in first.parse::<u64>().unwrap()..=last.parse().unwrap() {
        for barriers in [Barriers::Two, Barriers::One] {
            let recorder = recorder();
            let run = run_with(&recorder, &recorder, seed, 60, false, barriers);
            let effort = Effort { random_per_epoch: 6, seed };
            let judged = run.explore(effort, 50, 100);
            let judged = judged.with_context(|| format!("seed {seed}, {barriers:?}")).unwrap();
            eprintln!("seed {seed}, {barriers:?}: {judged} states");
            states += judged;
        }
    }
    eprintln!("{states} states in all");
}

/// Which flushes a device loses: it says that they were done.
enum Lost {
    /// This one, counted from 1.
    One(usize),
    /// Those right behind home blocks: the tail of the log may be durable before what it passes is home.
    BehindHome,
}

/// A device that loses flushes.
struct LosesFlushes<'d> {
    inner: &'d Recorder<MemDevice>,
    lost: Lost,
    flushes: AtomicUsize,
    /// Bytes at which the blocks of the journal start.
    log: Vec<u64>,
    /// Offset and length of the last write.
    last: Mutex<(u64, usize)>,
}

impl<'d> LosesFlushes<'d> {
    fn new(inner: &'d Recorder<MemDevice>, lost: Lost) -> Self {
        let place = located(inner);
        let log = (0..place.blocks).filter_map(|at| place.offset_bytes(at)).collect();
        Self { inner, lost, flushes: AtomicUsize::new(0), log, last: Mutex::new((0, 0)) }
    }
}

impl ReadBlocks for LosesFlushes<'_> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset_bytes, into)
    }
}

impl WriteBlocks for LosesFlushes<'_> {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        *self.last.lock().unwrap() = (offset_bytes, from.len());
        self.inner.write_at(offset_bytes, from)
    }

    fn flush(&self) -> io::Result<()> {
        let number = self.flushes.fetch_add(1, Ordering::SeqCst) + 1;
        let (offset, len) = *self.last.lock().unwrap();
        let is_lost = match self.lost {
            Lost::One(lost) => number == lost,
            // Not where the file system is marked as in use.
            Lost::BehindHome => !self.log.contains(&offset) && (offset, len) != (1024, 1024),
        };
        if is_lost { Ok(()) } else { self.inner.flush() }
    }
}

const CANARY_EFFORT: Effort = Effort { random_per_epoch: 30, seed: 3 };

#[test]
fn canary_a_flush_that_is_left_out_is_caught() {
    if tool::missing() {
        return;
    }
    // A run without a checkpoint but the last, in which no change undoes another: else it could be lost unseen.
    let honest = |seed: &u64| {
        let honest = recorder();
        let run = run(&honest, &honest, *seed, 6, false);
        let states: BTreeSet<_> = run.history.iter().map(|(_, names)| names).collect();
        let events = &run.trace.events;
        let flushes = events.iter().filter(|event| **event == Event::Flush).count();
        // Opening, closing, and two for each commit: those that were waited for, and one when closing if anything is left.
        let acknowledged = &run.acknowledged[1..];
        let left = acknowledged.windows(2).last().is_some_and(|pair| pair[0].1 < pair[1].1);
        let commits = acknowledged.len() - 1 + usize::from(left);
        (states.len() == run.history.len() && commits > 2 && flushes == 1 + 2 * commits + 4)
            .then_some((*seed, flushes))
    };
    let (seed, flushes) = (1..50).find_map(|seed| honest(&seed)).unwrap();
    // Both barriers of the first commit, and the flush of what went home at the end. Those behind it may be lost.
    for lost in [2, 3, flushes - 3] {
        let recorder = recorder();
        let device = LosesFlushes::new(&recorder, Lost::One(lost));
        let run = run(&recorder, &device, seed, 6, false);
        let caught = run.explore(CANARY_EFFORT, usize::MAX, usize::MAX);
        assert!(caught.is_err(), "flush {lost} of {flushes}, seed {seed}");
    }
}

/// A device that loses the checksums of transactions, so that recovery accepts them unverified.
struct LosesSums<'d>(&'d Recorder<MemDevice>);

impl ReadBlocks for LosesSums<'_> {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset_bytes, into)
    }
}

impl WriteBlocks for LosesSums<'_> {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        let mut bytes = from.to_vec();
        for block in bytes.chunks_exact_mut(1024) {
            if jbd2::header(block).is_some_and(|header| header.blocktype == jbd2::COMMIT_BLOCK) {
                block[0xc..0x14].fill(0);
            }
        }
        self.0.write_at(offset_bytes, &bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
}

#[test]
fn canary_a_commit_block_without_its_checksum_or_its_flush_is_caught() {
    if tool::missing() {
        return;
    }
    let recorded = recorder();
    let device = LosesSums(&recorded);
    let unproved = run_with(&recorded, &device, 3, 10, false, Barriers::One);
    let caught = unproved.explore(CANARY_EFFORT, usize::MAX, usize::MAX).unwrap_err();
    eprintln!("without checksums: {caught:#}");
    let one_at_least = (3..9).filter(|lost| {
        let recorded = recorder();
        let device = LosesFlushes::new(&recorded, Lost::One(*lost));
        let run = run_with(&recorded, &device, 3, 10, false, Barriers::One);
        run.explore(CANARY_EFFORT, usize::MAX, usize::MAX).is_err()
    });
    assert!(one_at_least.count() >= 3);
}

#[test]
fn canary_a_block_that_is_used_again_before_its_freeing_is_durable_is_caught() {
    if tool::missing() {
        return;
    }
    let recorder = recorder();
    let run = run(&recorder, &recorder, 2, 10, true);
    let caught = run.explore(CANARY_EFFORT, usize::MAX, usize::MAX).unwrap_err();
    eprintln!("{caught:#}");
}

#[test]
fn canary_a_tail_that_moves_early_is_caught() {
    if tool::missing() {
        return;
    }
    let recorder = recorder();
    let device = LosesFlushes::new(&recorder, Lost::BehindHome);
    let run = run(&recorder, &device, 2, 40, false);
    let caught = run.explore(CANARY_EFFORT, usize::MAX, usize::MAX).unwrap_err();
    eprintln!("{caught:#}");
}
