//! Programs in several cubes at the same time, on a device whose writes and flushes overlap: after a power failure each cube has what
//! fsync acknowledged to its program. A flush covers the writes that had ended when it began, and nothing else.

use std::io;
use std::time::Duration;

use anyhow::{Context, Result};
use floe_blockdev::WriteBlocks;
use floe_blockdev::{Crash, Event, MemDevice, Model, Modelled, ReadBlocks, Recorder, Trace};
use floe_disk::recovery::recover;
use floe_fs::{Dependencies, FsError, Limits, Live, MemFs, Store};
use floe_sync::{Barrier, Condvar, Mutex, thread};
use floe_testkit::crash::{Effort, each_state_beside, one_in};
use floe_testkit::tool;

use super::acts::{Act, find, run, tree_below};
use super::crash::{Call, Told, Tree, backups_of, cannot_be, tears_any, tree_of};
use super::cube_queues::within_zone;
use super::cubes::{judge_cubes, with_cubes, with_journals};
use super::live::{mounted, mounted_depending};
use super::{SMALL, patterns, story};

/// Directories of programs: two in each of two cubes with journals, whose commits serve both, and two in the root cube.
const PLACES: Places = ["a/1", "a/2", "b/1", "b/2", "c/1", "c/2"];
/// The same where the root cube has several journals, to which directories of the root are dealt.
const DEALT: Places = ["1", "2", "3", "4", "5", "6"];
/// Calls of a program have numbers of their own, so that content of one in another is noticed.
const TURNS: u32 = 40;

type Places = [&'static str; 6];

/// A file system, the places of programs in it, and how changes of several journals depend on each other.
type Ground = (&'static [u8], Places, Dependencies);

/// A device with the content of another one, whose requests take so long that those of several threads overlap.
type Slow = Recorder<Modelled<MemDevice>>;

fn slow(base: &[u8]) -> Slow {
    let model = Model {
        queues: 4,
        write: Duration::from_micros(150),
        flush: Duration::from_micros(900),
        ..Model::flushes(Duration::ZERO)
    };
    let device = Modelled::new(MemDevice::new(base.to_vec()), &model);
    Recorder::new(device.waiting().with_flushes(4))
}

/// Programs that ran at the same time, each in its place.
struct Beside {
    base: &'static [u8],
    places: Places,
    trace: Trace,
    programs: Vec<Vec<Call>>,
}

/// Lets a program in each place make its calls, and records what reaches the device.
fn record<V: WriteBlocks>(
    device: V,
    recorder: &Slow,
    (base, places, dependencies): Ground,
    stories: &[Vec<Act>],
    limits: Limits,
) -> Result<Beside> {
    let programs = mounted_depending(device, dependencies, limits, |memory| {
        for directory in ["c"].into_iter().chain(places) {
            run(memory, 0, &Act::Mkdir(directory.to_owned()))?;
        }
        memory.sync()?;
        let start = Barrier::new(places.len());
        thread::scope(|scope| {
            let tell = |at: usize| {
                start.wait();
                tell(memory, recorder, (places[at], at), &stories[at])
            };
            let programs: Vec<_> =
                (0..places.len()).map(|at| scope.spawn(move || tell(at))).collect();
            programs.into_iter().map(|one| one.join().expect("a program panicked")).collect()
        })
    })?;
    Ok(Beside { base, places, trace: recorder.trace(), programs })
}

/// Makes the calls of a program.
fn tell<D: WriteBlocks>(
    memory: &MemFs<Live<'_, '_, D>>,
    recorder: &Slow,
    (place, at): (&str, usize),
    acts: &[Act],
) -> Result<Vec<Call>> {
    let mut calls = Vec::new();
    let top = find(memory, place)?;
    let mut before = tree_below(memory, format!("/{place}"), top);
    for (turn, act) in (1..).zip(acts) {
        let began = recorder.count();
        let done = run(memory, at as u32 * TURNS + turn, act);
        let ended = recorder.count();
        if let Err(FsError::Ended(_) | FsError::Damaged { .. } | FsError::Lost { .. }) = &done {
            anyhow::bail!("{place}, call {turn}, {act:?}: {done:?}");
        }
        let after = tree_below(memory, format!("/{place}"), top);
        let (act, done) = (act.clone(), done.is_ok());
        calls.push(Call { began, ended, act, done, before, after: after.clone() });
        before = after;
    }
    Ok(calls)
}

impl Beside {
    /// Flushes that ran while another one did, and flushes during which a write began or ended.
    fn overlaps(&self) -> (usize, usize) {
        let Trace { events, spans } = &self.trace;
        let spans = || events.iter().zip(spans);
        let over = |flush: usize, is_flush: bool| {
            let (own, mut all) = (self.trace.spans[flush], spans().enumerate());
            all.any(|(other, (event, span))| {
                other != flush
                    && (*event == Event::Flush) == is_flush
                    && span.began < own.ended
                    && own.began < span.ended
            })
        };
        let flushes = || (0..events.len()).filter(|&at| events[at] == Event::Flush);
        let count = |is_flush| flushes().filter(|&at| over(at, is_flush)).count();
        (count(true), count(false))
    }

    /// Judges what a crash left in all places.
    fn judge(&self, found: &Tree, crash: &Crash) -> Result<()> {
        for (place, calls) in self.places.iter().zip(&self.programs) {
            let (top, inside) = (format!("/{place}"), format!("/{place}/"));
            let own = found.iter().filter(|(path, _)| **path == top || path.starts_with(&inside));
            let own = own.map(|(path, seen)| (path.clone(), seen.clone())).collect();
            Told(calls).judge(&own, crash.issued).with_context(|| format!("in /{place}"))?;
        }
        Ok(())
    }

    /// Every state, recovered, judged, mounted again and checked. Returns how many there are.
    fn explore(&self, effort: Effort) -> Result<usize> {
        let backups = backups_of(self.base)?;
        each_state_beside(&self.trace, self.base, effort, |device, crash| {
            if cannot_be(&self.trace, crash) || tears_any(&self.trace, crash, &backups) {
                return Ok(());
            }
            let recovered = recover(&device)?;
            anyhow::ensure!(recovered.cubes.iter().all(|cube| cube.failed.is_none()));
            self.judge(&tree_of(&device)?, crash)?;
            mounted(&device, Limits::default(), |_| Ok(()))?;
            judge_cubes(&device, false)
        })
    }
}

/// The calls of a program, many of them followed by an fsync of what they concern.
fn often_durable(acts: Vec<Act>, place: &str) -> Vec<Act> {
    let mut all = Vec::new();
    for (at, act) in acts.into_iter().enumerate() {
        let act = within_zone(&act, place, place);
        let path = match &act {
            Act::Create(path) | Act::Mkdir(path) | Act::Write(path, ..) => Some(path.clone()),
            Act::Rename(_, path) | Act::Link(_, path) => Some(path.clone()),
            Act::Unlink(_) | Act::Rmdir(_) => Some(place.to_owned()),
            _ => None,
        };
        all.push(act);
        all.extend(path.filter(|_| at % 3 < 2).map(Act::Fsync));
    }
    all
}

/// A program that makes each change durable: content that is appended and overwritten, and files that replace others.
fn storm(len: usize, place: &str) -> Vec<Act> {
    let mut all = vec!["create a".to_owned(), "create b".to_owned(), "fsync b".to_owned()];
    for at in 0..len {
        all.push(format!("write a {} {}", at * 2900, 3000 + at * 100));
        all.push("fsync a".to_owned());
        match at % 3 {
            0 => all.push("write b 100 7000".to_owned()),
            1 => all.extend(["create c", "write c 0 4000", "rename c b"].map(str::to_owned)),
            _ => all.extend(["unlink b", "create b", "write b 0 9000"].map(str::to_owned)),
        }
        all.push("fsync b".to_owned());
    }
    all.iter().map(|call| within_zone(&patterns::parse(call), place, place)).collect()
}

/// Stories of a seed: patterns of programs by turns, calls by chance, or a storm of fsyncs.
fn stories(seed: u8, len: usize, places: Places) -> Vec<Vec<Act>> {
    let known: Vec<_> = patterns::patterns().collect();
    let one = |at: usize, place: &str| match seed % 3 {
        0 => {
            let acts = &known[(usize::from(seed) / 3 + at) % known.len()].1;
            acts.iter().map(|act| within_zone(act, place, place)).collect()
        }
        1 => often_durable(story(seed.wrapping_mul(3).wrapping_add(at as u8), len), place),
        _ => storm(len.div_ceil(2), place),
    };
    places.iter().enumerate().map(|(at, place)| one(at, place)).collect()
}

/// States of some seeds; flushes that overlapped others, and those that overlapped writes.
fn explore(
    ground: Ground,
    seeds: std::ops::Range<u8>,
    len: usize,
    effort: Effort,
) -> (usize, usize, usize) {
    let mut sums = (0, 0, 0);
    for seed in seeds {
        let limits = if seed % 2 == 0 { SMALL } else { Limits::default() };
        let recorder = slow(ground.0);
        let acts = stories(seed, len, ground.1);
        let told = record(&recorder, &recorder, ground, &acts, limits);
        let told = told.unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
        let states = told.explore(effort);
        let states = states.unwrap_or_else(|error| panic!("seed {seed}: {error:#}"));
        let (flushes, writes) = told.overlaps();
        sums = (sums.0 + states, sums.1 + flushes, sums.2 + writes);
    }
    eprintln!("{} states, {} flushes beside others, {} beside writes", sums.0, sums.1, sums.2);
    sums
}

#[test]
fn cubes_that_flush_beside_each_other_survive_any_crash() {
    if tool::missing() {
        return;
    }
    let effort = Effort { random_per_epoch: 1, seed: 21 };
    let (states, flushes, writes) =
        explore((with_cubes(), PLACES, Dependencies::Listed), 2..3, 3, effort);
    assert!(states > 200 && flushes > 5 && writes > 5);
}

/// Thousands of states: `cargo xtask crash`. The overlaps differ from run to run.
#[test]
#[ignore = "minutes; run by cargo xtask crash"]
fn many_overlaps_in_cubes_survive_any_crash() {
    let effort = Effort { random_per_epoch: 2, seed: 22 };
    let (states, flushes, writes) =
        explore((with_cubes(), PLACES, Dependencies::Listed), 3..15, 8, effort);
    assert!(states * one_in() > 3000 && flushes > 100 && writes > 100);
}

#[test]
fn journals_of_the_root_cube_that_flush_beside_each_other_survive_any_crash() {
    if tool::missing() {
        return;
    }
    let effort = Effort { random_per_epoch: 1, seed: 31 };
    // Which directories are dealt to which journal is a matter of luck: all to one, now and then.
    let overlaps = (0..12).any(|_| {
        let ground = (with_journals(2), DEALT, Dependencies::Listed);
        let (states, flushes, writes) = explore(ground, 2..3, 3, effort);
        states > 200 && flushes > 5 && writes > 5
    });
    assert!(overlaps);
}

/// They flush beside each other as long as their changes concern one journal each.
#[test]
fn journals_of_the_root_cube_that_wait_for_each_other_survive_any_crash() {
    if tool::missing() {
        return;
    }
    let effort = Effort { random_per_epoch: 1, seed: 31 };
    let ground = (with_journals(2), DEALT, Dependencies::Awaited);
    assert!(explore(ground, 2..3, 3, effort).0 > 200);
}

/// Thousands of states: `cargo xtask crash`.
#[test]
#[ignore = "minutes; run by cargo xtask crash"]
fn many_overlaps_of_several_journals_survive_any_crash() {
    let effort = Effort { random_per_epoch: 2, seed: 32 };
    let both = [Dependencies::Listed, Dependencies::Awaited];
    for (journals, dependencies) in [2, 4].into_iter().flat_map(|many| both.map(|how| (many, how)))
    {
        let ground = (with_journals(journals), DEALT, dependencies);
        let (states, flushes, writes) = explore(ground, 3..12, 8, effort);
        let overlaps = dependencies == Dependencies::Awaited || flushes > 50 && writes > 50;
        assert!(states * one_in() > 2000 && overlaps);
    }
}

/// A device on which a flush that runs counts for all who ask for one meanwhile, whatever they wrote since it began.
struct Joins<'r> {
    device: &'r Slow,
    running: Mutex<bool>,
    ended: Condvar,
}

impl ReadBlocks for Joins<'_> {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.device.read_at(offset_bytes, into)
    }
}

impl WriteBlocks for Joins<'_> {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        self.device.write_at(offset_bytes, from)
    }

    fn flush(&self) -> io::Result<()> {
        let mut running = self.running.lock().unwrap();
        if *running {
            while *running {
                running = self.ended.wait(running).unwrap();
            }
            return Ok(());
        }
        *running = true;
        drop(running);
        let flushed = self.device.flush();
        *self.running.lock().unwrap() = false;
        self.ended.notify_all();
        flushed
    }

    fn most_flushes(&self) -> usize {
        self.device.most_flushes()
    }
}

/// A device that says at once that content is written, and writes it behind the next flush but one.
struct Late<'r> {
    device: &'r Slow,
    /// Each with the flushes that have ended since.
    held: Mutex<Vec<(u64, Vec<u8>, u32)>>,
}

/// Whether these are bytes of a file: programs here write one byte again and again.
fn is_content(bytes: &[u8]) -> bool {
    let first = bytes.first().copied().unwrap_or_default();
    first != 0 && bytes.iter().take(64).all(|byte| *byte == first)
}

impl ReadBlocks for Late<'_> {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        let held = self.held.lock().unwrap();
        self.device.read_at(offset_bytes, into)?;
        for (start, bytes, _) in held.iter() {
            for (at, byte) in (*start..).zip(bytes) {
                if let Some(place) = at.checked_sub(offset_bytes)
                    && let Some(known) = into.get_mut(place as usize)
                {
                    *known = *byte;
                }
            }
        }
        Ok(())
    }
}

impl WriteBlocks for Late<'_> {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        if is_content(from) {
            self.held.lock().unwrap().push((offset_bytes, from.to_vec(), 0));
            return Ok(());
        }
        self.device.write_at(offset_bytes, from)
    }

    fn flush(&self) -> io::Result<()> {
        self.device.flush()?;
        let mut held = self.held.lock().unwrap();
        held.iter_mut().for_each(|one| one.2 += 1);
        let due = held.extract_if(.., |one| one.2 > 1);
        due.into_iter().try_for_each(|(at, bytes, _)| self.device.write_at(at, &bytes))
    }

    fn most_flushes(&self) -> usize {
        self.device.most_flushes()
    }
}

/// A careless device, on which programs run.
type Careless<'c> = &'c dyn Fn(&Slow, &[Vec<Act>]) -> Result<Beside>;

/// Two canaries: a flush that had begun before a write ended counts for it; content is mapped before it is on the device.
#[test]
fn flushes_that_come_too_early_are_found() {
    if tool::missing() {
        return;
    }
    let effort = Effort { random_per_epoch: 1, seed: 23 };
    // Which flushes overlap is a matter of luck.
    let is_found = |careless: Careless<'_>| {
        (0..6).any(|_| {
            let recorder = slow(with_cubes());
            let told = careless(&recorder, &stories(2, 4, PLACES)).unwrap();
            let found = told.explore(effort).map_err(|error| format!("{error:#}"));
            found.is_err_and(|why| why.contains("in /") || why.contains("failed"))
        })
    };
    let joins = |recorder: &Slow, acts: &[Vec<Act>]| {
        let (running, ended) = (Mutex::default(), Condvar::new());
        let device = Joins { device: recorder, running, ended };
        record(
            &device,
            recorder,
            (with_cubes(), PLACES, Dependencies::Listed),
            acts,
            Limits::default(),
        )
    };
    assert!(is_found(&joins), "flushes that began before");
    let late = |recorder: &Slow, acts: &[Vec<Act>]| {
        let device = Late { device: recorder, held: Mutex::default() };
        record(&device, recorder, (with_cubes(), PLACES, Dependencies::Listed), acts, SMALL)
    };
    assert!(is_found(&late), "content that is late");
}
