//! The states in which a power failure can leave a device during writes.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::ops::Range;

use anyhow::{Context, Result, anyhow};
use floe_blockdev::{Crash, Event, MemDevice, SECTOR_BYTES, Trace};
use floe_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use floe_sync::thread;

use crate::rng::Rng;

/// Number of crashes of each kind to try.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Between two flushes: random subsets of writes that never arrived.
    pub random_per_epoch: usize,
    /// Seed of those subsets.
    pub seed: u64,
}

impl Default for Effort {
    fn default() -> Self {
        Self { random_per_epoch: 6, seed: 1 }
    }
}

/// Crashes after every single event of a trace, with the last write whole, torn inside a sector and between sectors,
/// and with random sectors of it lost; and, for each epoch between flushes (and what follows the last one), with random
/// writes of it lost, with random sectors of all of it lost or just one, with all but one write lost, and with just one lost. Where
/// writes overlap a flush, they may arrive before it ends.
///
/// Writes that overtake each other are among those states: the later one arrived, the earlier one did not.
pub fn crashes(trace: &Trace, effort: Effort) -> Vec<Crash> {
    let mut rng = Rng::new(effort.seed);
    let mut all = vec![Crash::default()];
    for (index, event) in trace.events.iter().enumerate() {
        let issued = index + 1;
        if let Event::Write { bytes, .. } = event {
            all.push(Crash::after(issued));
            let torn = [512, bytes.len() / 2, rng.index(bytes.len())];
            for torn_bytes in torn.into_iter().filter(|&torn| torn < bytes.len()) {
                all.push(Crash { torn_bytes: Some(torn_bytes), ..Crash::after(issued) });
            }
            if bytes.len() > SECTOR_BYTES {
                let lost_sectors = sectors(trace, index, &mut rng, 2);
                all.push(Crash { lost_sectors, ..Crash::after(issued) });
            }
        } else {
            // Just before the flush: everything since the last one may be lost.
            unflushed(trace, index, effort, &mut rng, &mut all);
            all.push(Crash::after(issued));
        }
    }
    unflushed(trace, trace.events.len(), effort, &mut rng, &mut all);
    all
}

/// Sectors of a write, each with the chance of one in `one_in`.
fn sectors(trace: &Trace, index: usize, rng: &mut Rng, one_in: u64) -> BTreeSet<(usize, usize)> {
    let Event::Write { bytes, .. } = &trace.events[index] else { return BTreeSet::new() };
    let count = bytes.len().div_ceil(SECTOR_BYTES);
    (0..count).filter(|_| rng.chance(one_in)).map(|sector| (index, sector)).collect()
}

/// Adds crashes that lose some of the writes that no flush covers after `issued` events, and those in which writes arrive that are
/// under way then: all of them, one, some, with sectors lost, each with the writes before them, without them or with some.
fn unflushed(trace: &Trace, issued: usize, effort: Effort, rng: &mut Rng, all: &mut Vec<Crash>) {
    let begun = trace.under_way(issued);
    if !begun.is_empty() {
        overtaken(trace, (issued, begun), effort, rng, all);
    }
    let epoch: Vec<usize> = (trace.durable_until(issued)..issued)
        .filter(|&index| trace.events[index] != Event::Flush)
        .collect();
    if epoch.is_empty() {
        return;
    }
    let mut lose = |lost: BTreeSet<usize>| all.push(Crash { lost, ..Crash::after(issued) });
    lose(epoch.iter().copied().collect());
    if epoch.len() > 1 {
        let kept = epoch[rng.index(epoch.len())];
        lose(epoch.iter().copied().filter(|&write| write != kept).collect());
        lose(BTreeSet::from([epoch[rng.index(epoch.len())]]));
        for _ in 0..effort.random_per_epoch {
            lose(epoch.iter().copied().filter(|_| rng.chance(2)).collect());
        }
    }
    for at in 0..effort.random_per_epoch.div_ceil(2) {
        let lost_sectors = match at % 3 {
            0 => epoch.iter().flat_map(|&write| sectors(trace, write, rng, 2)).collect(),
            1 => epoch.iter().flat_map(|&write| sectors(trace, write, rng, 8)).collect(),
            _ => {
                let all: Vec<_> =
                    epoch.iter().flat_map(|&write| sectors(trace, write, rng, 1)).collect();
                rng.pick(&all).copied().into_iter().collect()
            }
        };
        all.push(Crash { lost_sectors, ..Crash::after(issued) });
    }
}

/// Those of [`unflushed`] in which writes arrive that are under way.
fn overtaken(
    trace: &Trace,
    (issued, begun): (usize, Vec<usize>),
    effort: Effort,
    rng: &mut Rng,
    all: &mut Vec<Crash>,
) {
    let epoch: Vec<usize> = (trace.durable_until(issued)..issued)
        .filter(|&index| trace.events[index] != Event::Flush)
        .collect();
    let one = begun[rng.index(begun.len())];
    for arrived in [begun.iter().copied().collect(), BTreeSet::from([one])] {
        let lost = epoch.iter().copied().collect();
        all.push(Crash { lost, arrived, ..Crash::after(issued) });
    }
    for _ in 0..effort.random_per_epoch {
        let arrived: BTreeSet<usize> = begun.iter().copied().filter(|_| !rng.chance(3)).collect();
        let lost = epoch.iter().copied().filter(|_| rng.chance(2)).collect();
        let torn = arrived.iter().copied().filter(|_| rng.chance(2)).collect::<Vec<_>>();
        let lost_sectors = torn.into_iter().flat_map(|write| sectors(trace, write, rng, 2));
        let lost_sectors = lost_sectors.collect();
        all.push(Crash { lost, lost_sectors, arrived, ..Crash::after(issued) });
    }
}

/// Whether a crash tore a write between sectors that lie in a range of bytes of the device: some arrived, others did not.
pub fn tears(trace: &Trace, crash: &Crash, range: Range<u64>) -> bool {
    let last = crash.issued.checked_sub(1).filter(|_| crash.torn_bytes.is_some());
    let torn: BTreeSet<usize> =
        crash.lost_sectors.iter().map(|&(index, _)| index).chain(last).collect();
    torn.into_iter().any(|index| {
        let Some(Event::Write { offset_bytes, bytes }) = trace.events.get(index) else {
            return false;
        };
        let arrived: BTreeSet<bool> = (0..bytes.len().div_ceil(SECTOR_BYTES))
            .filter(|sector| range.contains(&(offset_bytes + (sector * SECTOR_BYTES) as u64)))
            .map(|sector| {
                let cut = crash.torn_bytes.filter(|_| Some(index) == last);
                let before_cut = cut.is_none_or(|cut| (sector + 1) * SECTOR_BYTES <= cut);
                before_cut && !crash.lost_sectors.contains(&(index, sector))
            })
            .collect();
        arrived.len() == 2
    })
}

/// One state in so many is judged where a run would take too long: `FLOE_CRASH_ONE_IN`, or all.
pub fn one_in() -> usize {
    let asked = std::env::var("FLOE_CRASH_ONE_IN").ok().and_then(|word| word.parse().ok());
    asked.unwrap_or(1).max(1)
}

/// Calls `judge` with the device in the state after each of [`crashes`], or after [one in some](one_in) and the last one. `before` is
/// the content of the device at the start of the trace. Returns how many states were judged.
///
/// # Errors
/// The first error of `judge`, with the crash that caused it.
pub fn each_state(
    trace: &Trace,
    before: &[u8],
    effort: Effort,
    mut judge: impl FnMut(MemDevice, &Crash) -> Result<()>,
) -> Result<usize> {
    let all = chosen(trace, effort);
    let mut states = States::new(trace, before);
    for crash in &all {
        let device = states.after(crash)?;
        judge(device, crash).with_context(|| format!("after {crash:?}"))?;
    }
    Ok(all.len())
}

/// The same, with as many states judged at the same time as the machine has processors.
///
/// # Errors
/// An error of `judge`, with the crash that caused it: the first one that was met.
pub fn each_state_beside(
    trace: &Trace,
    before: &[u8],
    effort: Effort,
    judge: impl Fn(MemDevice, &Crash) -> Result<()> + Sync,
) -> Result<usize> {
    let all = chosen(trace, effort);
    let threads = floe_sync::available_parallelism().map_or(1, NonZeroUsize::get);
    let (next, has_failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = || -> Result<()> {
        let mut states = States::new(trace, before);
        // In the order of time, as the states of each thread must come.
        while let Some(crash) = all.get(next.fetch_add(1, Ordering::SeqCst))
            && !has_failed.load(Ordering::SeqCst)
        {
            let device = states.after(crash)?;
            let judged = judge(device, crash).with_context(|| format!("after {crash:?}"));
            judged.inspect_err(|_| has_failed.store(true, Ordering::SeqCst))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let failed = |_| anyhow!("a judge panicked");
        workers.into_iter().try_for_each(|worker| worker.join().map_err(failed)?)
    })?;
    Ok(all.len())
}

/// Crashes to judge, in the order of time.
fn chosen(trace: &Trace, effort: Effort) -> Vec<Crash> {
    let mut all = crashes(trace, effort);
    all.sort_by_key(|crash| crash.issued);
    let (one_in, last) = (one_in(), all.len().saturating_sub(1));
    let all = all.into_iter().enumerate();
    all.filter(|(at, _)| at % one_in == 0 || *at == last).map(|(_, crash)| crash).collect()
}

/// Devices after crashes, in the order of time.
struct States<'t> {
    trace: &'t Trace,
    /// Durable writes are in it, so that long traces are not replayed from the start each time.
    base: MemDevice,
    replayed: usize,
}

impl<'t> States<'t> {
    fn new(trace: &'t Trace, before: &[u8]) -> Self {
        Self { trace, base: MemDevice::new(before.to_vec()), replayed: 0 }
    }

    fn after(&mut self, crash: &Crash) -> Result<MemDevice> {
        let durable = self.trace.durable_until(crash.issued);
        if durable > self.replayed {
            self.trace.replay_from(self.replayed, &Crash::after(durable), &self.base)?;
            self.replayed = durable;
        }
        let device = self.base.clone();
        let replayed = self.trace.replay_from(self.replayed, crash, &device);
        replayed.context("replaying the trace")?;
        Ok(device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_blockdev::{Recorder, Span, WriteBlocks};
    use floe_sync::Mutex;

    #[test]
    fn every_prefix_and_every_single_loss_is_met() {
        let device = Recorder::new(MemDevice::new(vec![0; 4096]));
        for byte in 1..=3u8 {
            device.write_at(u64::from(byte), &[byte]).unwrap();
        }
        device.flush().unwrap();
        device.write_at(1024, &[9; 1024]).unwrap();
        device.flush().unwrap();
        let (_, trace) = device.into_parts();
        let mut states = BTreeSet::new();
        let effort = Effort { random_per_epoch: 40, seed: 7 };
        let count = each_state(&trace, &vec![0; 4096], effort, |device, _| {
            let bytes = device.to_vec();
            let second = bytes[1024..2048].iter().filter(|&&byte| byte == 9).count();
            states.insert((bytes[1], bytes[2], bytes[3], second));
            Ok(())
        })
        .unwrap();
        assert!(count > 50);
        // Any of the first three writes with or without any other, before the flush.
        for first in [0, 1] {
            for second in [0, 2] {
                for third in [0, 3] {
                    assert!(states.contains(&(first, second, third, 0)), "{states:?}");
                }
            }
        }
        // The last write lost, torn and complete; the first three are durable by then.
        let last: Vec<_> = states.iter().filter(|state| state.3 > 0).collect();
        assert!(last.iter().all(|state| (state.0, state.1, state.2) == (1, 2, 3)), "{states:?}");
        assert!(last.len() >= 2 && states.contains(&(1, 2, 3, 1024)), "{states:?}");
    }

    /// A write that began while a flush ran may be on the disk without those that the flush was to cover.
    #[test]
    fn writes_beside_a_flush_arrive_before_others() {
        let write = |at: u64| Event::Write { offset_bytes: at, bytes: vec![1] };
        let events = vec![write(0), Event::Flush, write(1), Event::Flush];
        let spans = [(0, 1), (2, 4), (3, 5), (6, 7)].map(|(began, ended)| Span { began, ended });
        let trace = Trace { events, spans: spans.to_vec() };
        let states = Mutex::new(BTreeSet::new());
        let count = each_state_beside(&trace, &[0; 2], Effort::default(), |device, crash| {
            states.lock().unwrap().insert((device.to_vec(), crash.issued));
            Ok(())
        });
        let states = states.into_inner().unwrap();
        assert!(count.unwrap() >= states.len());
        assert!(states.contains(&(vec![0, 1], 1)), "{states:?}");
        assert!(!states.iter().any(|(bytes, issued)| bytes[0] == 0 && *issued > 1), "{states:?}");
        let failed = each_state_beside(&trace, &[0; 2], Effort::default(), |_, crash| {
            anyhow::ensure!(crash.issued == 0, "no");
            Ok(())
        });
        assert!(format!("{:#}", failed.unwrap_err()).contains("issued: "));
    }

    #[test]
    fn what_a_judge_says_names_the_crash() {
        let trace = Trace::of(vec![Event::Flush]);
        let error = each_state(&trace, &[0], Effort::default(), |_, crash| {
            anyhow::ensure!(crash.issued == 0, "no");
            Ok(())
        })
        .unwrap_err();
        assert!(format!("{error:#}").contains("issued: 1"), "{error:#}");
    }
}
