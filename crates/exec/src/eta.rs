//! How long the rest of a run will take: from a model of the work, calibrated by what was done.
//!
//! Each phase has an expected time by a model ([`Work`]), which knows neither this machine nor
//! its disk: time of processors and time of waiting for the device, since a disk that is slow makes
//! other phases long than a processor that is. What the run took so far ([`Spent`]) tells the two apart,
//! and time spent over the model's time for the same work is the *pace* of each. The phase that is running goes on at
//! its own pace, those to come at the paces so far:
//!
//! - rest of the running phase = its time * (1 - share) / share, once a share is done that says
//!   something; before that, and for later phases: model time of processors * their pace + model
//!   time of waiting * its pace;
//! - each further round of a repair = the average of the rounds that ended, or the whole model time
//!   of a round at these paces.
//!
//! Where nothing came from the device, time in which no processor worked for this run is time that other
//! programs took: it slows down what processors do.

use std::time::Duration;

use crate::progress::{PhaseState, Snapshot, Work};

/// Share of a phase from which on its own pace counts alone; below, it is mixed with that of all.
const OWN_PACE_SHARE: f64 = 0.1;
/// Paces between the model and this machine that are believed.
const PACES: std::ops::RangeInclusive<f64> = 0.01..=10_000.0;
/// While less than this share of all work is done, its pace is mixed with the model's own, which weighs
/// as much as [`PRIOR_WORK`] of all work at first: what opening a file system takes says little.
const KNOWN_WORK: f64 = 0.05;
const PRIOR_WORK: f64 = 0.02;
/// From this share of bytes on that came from the device, all waiting is for the device.
const FROM_DEVICE: f64 = 0.05;

/// What is to be expected of the rest of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Eta {
    /// Time that is left.
    pub left: Duration,
    /// The share of the whole time that has passed, from 0 to 1.
    pub share: f64,
}

/// What the run took of the machine so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// Processor time, of all threads together.
    pub processor: Duration,
    /// The share of the bytes read that came from the device and not from memory, from 0 to 1.
    pub from_device: f64,
}

/// The rest of a run, seen at `now`. `None` while nothing was planned or done. Without `spent`, all
/// phases are expected to be as much slower than the model as those so far.
pub fn eta(now: &Snapshot, spent: Option<Spent>) -> Option<Eta> {
    let paces = Paces::of(now, spent)?;
    let mut left = 0.0;
    for phase in now.phases.iter().filter(|phase| !phase.ended) {
        let by_model = paces.time(&phase.work) * (1.0 - phase.share);
        left += match phase.time {
            // Nobody counts what is done in it.
            Some(time) if phase.share == 0.0 => (by_model - time.as_secs_f64()).max(0.0),
            Some(time) => {
                let own = time.as_secs_f64() * (1.0 - phase.share) / phase.share;
                let trust = (phase.share / OWN_PACE_SHARE).min(1.0);
                // Without a plan there is nothing else to go by.
                if phase.work.is_zero() { own } else { own * trust + by_model * (1.0 - trust) }
            }
            None => by_model,
        };
    }
    let round = now.round_time.map_or_else(
        || now.phases.iter().map(|phase| paces.time(&phase.work)).sum::<f64>(),
        |time| time.as_secs_f64(),
    );
    left += f64::from(now.rounds.saturating_sub(now.round.max(1))) * round;
    let elapsed = now.elapsed.as_secs_f64();
    let left = Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX);
    Some(Eta { left, share: elapsed / (elapsed + left.as_secs_f64()).max(f64::MIN_POSITIVE) })
}

/// Time that was needed for each second of the model.
#[derive(Clone, Copy, Debug)]
struct Paces {
    busy: f64,
    wait: f64,
}

impl Paces {
    /// `None` while nothing is known.
    fn of(now: &Snapshot, spent: Option<Spent>) -> Option<Self> {
        let mut done = Done::default();
        // What nobody counts in a phase is known when it ends.
        let counted = |phase: &&PhaseState| !phase.work.is_zero() && phase.share > 0.0;
        for phase in now.phases.iter().filter(counted) {
            if let Some(time) = phase.time {
                done.add(phase, time);
            }
        }
        if done.seconds == 0.0 || done.busy + done.wait == 0.0 {
            return None;
        }
        let spent =
            spent.filter(|_| done.wait > 0.0 && done.busy > 0.0 && now.elapsed > Duration::ZERO);
        let believed = |pace: f64| pace.clamp(*PACES.start(), *PACES.end());
        let Some(spent) = spent else {
            let of = if done.busy > 0.0 { done.busy } else { done.wait };
            let pace = believed(done.seconds / of);
            return Some(Self { busy: pace, wait: if done.busy > 0.0 { 0.0 } else { pace } });
        };
        // What was spent before these phases, and in earlier rounds, is no part of `done`.
        let processor = spent.processor.as_secs_f64() * done.seconds / now.elapsed.as_secs_f64();
        let busy = (processor / done.processor * done.busy).min(done.seconds);
        let waited = done.seconds - busy;
        let from_device = (spent.from_device / FROM_DEVICE).clamp(0.0, 1.0);
        let for_device = waited * from_device;
        let [all_busy, all_wait] = [|work: &Work| work.busy, |work: &Work| work.wait]
            .map(|of| now.phases.iter().map(|it| shared(of(&it.work), &it.work)).sum::<f64>());
        let [prior_busy, prior_wait] = [(done.busy, all_busy), (done.wait, all_wait)]
            .map(|(done, all)| PRIOR_WORK * all * (1.0 - done / all / KNOWN_WORK).max(0.0));
        Some(Self {
            busy: believed((done.seconds - for_device + prior_busy) / (done.busy + prior_busy)),
            // Nothing, where nothing is waited for.
            wait: ((for_device + prior_wait * from_device) / (done.wait + prior_wait))
                .min(*PACES.end()),
        })
    }

    /// Seconds of that work on this machine.
    fn time(self, work: &Work) -> f64 {
        self.busy * shared(work.busy, work) + self.wait * shared(work.wait, work)
    }
}

/// What was done so far, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    /// On the clock.
    seconds: f64,
    /// By the model: on the clock, of all threads.
    busy: f64,
    wait: f64,
    /// By the model: of processors, together.
    processor: f64,
}

impl Done {
    fn add(&mut self, phase: &PhaseState, time: Duration) {
        self.seconds += time.as_secs_f64();
        self.busy += shared(phase.work.busy, &phase.work) * phase.share;
        self.wait += shared(phase.work.wait, &phase.work) * phase.share;
        self.processor += phase.work.busy.as_secs_f64() * phase.share;
    }
}

/// Seconds on the clock of what threads share.
fn shared(time: Duration, work: &Work) -> f64 {
    time.as_secs_f64() / work.threads.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(busy: u64, wait: u64) -> Work {
        let seconds = Duration::from_secs;
        Work { busy: seconds(busy), wait: seconds(wait), threads: 1 }
    }

    fn phase(name: &'static str, work: Work, time: Option<u64>, share: f64) -> PhaseState {
        PhaseState {
            name,
            done: 0,
            total: 0,
            share,
            objects: 0,
            work,
            time: time.map(Duration::from_secs),
            ended: share == 1.0,
        }
    }

    fn at(elapsed: u64, phases: &[PhaseState]) -> Snapshot {
        Snapshot {
            elapsed: Duration::from_secs(elapsed),
            running: None,
            phases: phases.to_vec(),
            round: 1,
            rounds: 1,
            round_time: None,
        }
    }

    fn spent(processor: u64, from_device: f64) -> Option<Spent> {
        Some(Spent { processor: Duration::from_secs(processor), from_device })
    }

    fn left(now: &Snapshot, spent: Option<Spent>) -> f64 {
        eta(now, spent).unwrap().left.as_secs_f64()
    }

    #[test]
    fn later_phases_go_at_the_pace_so_far() {
        // Three times as slow as the model: 30 s done, 30 s of this phase, 60 s of the next.
        let phases = [phase("a", work(20, 0), Some(30), 0.5), phase("b", work(20, 0), None, 0.0)];
        let eta = eta(&at(30, &phases), None).unwrap();
        assert_eq!(eta.left, Duration::from_secs(90));
        assert!((eta.share - 0.25).abs() < 1e-9);
    }

    #[test]
    fn a_phase_goes_on_at_its_own_pace() {
        let phases =
            [phase("a", work(10, 0), Some(10), 1.0), phase("b", work(10, 0), Some(100), 0.5)];
        assert_eq!(left(&at(110, &phases), None), 100.0);
        // One that has hardly begun is judged by the others: the model says 99 s, it itself 9900.
        let phases =
            [phase("a", work(100, 0), Some(100), 1.0), phase("b", work(100, 0), Some(100), 0.01)];
        let left = left(&at(200, &phases), None);
        assert!(left > 900.0 && left < 1500.0, "{left}");
    }

    #[test]
    fn a_slow_device_makes_those_phases_long_that_wait_for_it() {
        // 10 s of processors as by the model, 90 of a device that is nine times as slow; to come: 10 s of
        // processors, then 20 s of that device.
        let phases = [
            phase("a", work(10, 10), Some(100), 1.0),
            phase("b", work(10, 0), None, 0.0),
            phase("c", work(0, 20), None, 0.0),
        ];
        let now = at(100, &phases);
        assert_eq!(left(&now, spent(10, 1.0)), 10.0 + 9.0 * 20.0);
        // All was in memory, so other programs had the processors for nine tenths of the time.
        assert_eq!(left(&now, spent(10, 0.0)), 10.0 * 10.0);
        // Nothing was waited for, although the device was asked: nothing will be.
        assert_eq!(left(&now, spent(100, 1.0)), 10.0 * 10.0);
        // Nobody knows: as slow as so far.
        assert_eq!(left(&now, None), 10.0 * 10.0);
    }

    #[test]
    fn a_slow_beginning_says_little() {
        // Of 1000 s of waiting by the model, 1 s was done, in 50.
        let phases =
            [phase("a", work(1, 1), Some(51), 1.0), phase("b", work(1000, 999), None, 0.0)];
        let left = left(&at(51, &phases), spent(1, 1.0));
        assert!(left > 2000.0 && left < 6000.0, "{left}");
    }

    #[test]
    fn threads_share_the_work() {
        let shared = Work { threads: 4, ..work(40, 80) };
        let phases = [phase("a", work(10, 10), Some(20), 1.0), phase("b", shared, None, 0.0)];
        assert_eq!(left(&at(20, &phases), spent(10, 1.0)), 30.0);
        let phases = [phase("a", shared, Some(30), 1.0), phase("b", work(10, 10), None, 0.0)];
        assert_eq!(left(&at(30, &phases), spent(40, 1.0)), 20.0);
    }

    #[test]
    fn a_phase_that_counts_nothing_goes_on_as_planned() {
        let phases = [
            phase("a", work(10, 0), Some(20), 1.0),
            phase("b", work(10, 0), Some(15), 0.0),
            phase("c", work(10, 0), None, 0.0),
        ];
        assert_eq!(left(&at(35, &phases), None), 5.0 + 20.0);
    }

    #[test]
    fn rounds_to_come_count() {
        let phases = [phase("a", work(10, 0), Some(10), 1.0), phase("b", work(10, 0), None, 0.0)];
        let mut now = at(10, &phases);
        now.rounds = 3;
        assert_eq!(left(&now, None), 10.0 + 2.0 * 20.0);
        now.round_time = Some(Duration::from_secs(7));
        assert_eq!(left(&now, None), 10.0 + 2.0 * 7.0);
    }

    #[test]
    fn nothing_is_known_at_first() {
        assert_eq!(eta(&at(0, &[phase("a", work(10, 0), None, 0.0)]), None), None);
        let unplanned = [phase("a", Work::default(), Some(3), 0.5)];
        assert_eq!(eta(&at(3, &unplanned), spent(1, 1.0)), None, "without a plan");
    }
}
