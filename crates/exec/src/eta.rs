//! Predicts the remaining time of a run: from a model of the work, calibrated by the work done so
//! far.
//!
//! The model gives an expected time for each phase ([`Work`]) without knowing this machine or its
//! disk: processor time, seek time, and transfer time. Each of the three has a *pace*: the time
//! that it took on this machine, divided by the model's time for the same work.
//!
//! - Processors: the time that was not spent waiting for the device. The processor time of the
//!   process ([`Spent`]) shows how much was waiting, and the bytes that came from the device show
//!   whether it was for the device. If nothing came from the device, the waiting time is time that
//!   other programs had the processors.
//! - Seeks and transfers: separated by phases with different proportions of the two. A hard disk
//!   has slow seeks, and a network disk may have slow transfers. Until seeks were observed, their
//!   pace is assumed to equal that of transfers; a pace without any observation is the model's.
//!
//! The running phase is expected to continue at a pace between the average of all its time and that
//! of its second half, because a disk with a cache or a quota slows down after its first seconds.
//! Until a tenth of the phase is done, that prediction is mixed with the one by the three paces,
//! which alone count for later phases. Each further round of a repair is expected to take the
//! average of the rounds that ended, or else the model time of a whole round at these paces.

use std::collections::VecDeque;
use std::time::Duration;

use crate::progress::{PhaseState, Snapshot, Work};

/// Share of a phase from which on only its own pace counts; below, it is mixed with the general
/// paces.
const OWN_PACE_SHARE: f64 = 0.1;
/// The range of plausible paces.
const PACES: std::ops::RangeInclusive<f64> = 0.01..=10_000.0;
/// Model seconds at which the confidence in a pace is 0.5 (at twice as many it is 0.8), for
/// processors and for the device: the time of opening a small file system, and of about sixty seeks
/// or 5 MB. In less time, a slow start may dominate.
const LITTLE_BUSY: f64 = 0.005;
const LITTLE_WAIT: f64 = 0.002_5;
/// Regularisation of the device paces towards the usual ones where phases do not tell seeks from
/// transfers, in model seconds.
const FIRMNESS: f64 = 0.000_05;
/// If this share of the bytes or more came from the device, all waiting is for the device.
const FROM_DEVICE: f64 = 0.05;
/// Samples of the running phase that are kept, about.
const MOST_LOOKS: usize = 256;

/// The prediction for the rest of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Eta {
    /// Remaining time.
    pub left: Duration,
    /// The elapsed share of the whole time, from 0 to 1.
    pub share: f64,
}

/// The resources that the run used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// Processor time, of all threads together.
    pub processor: Duration,
    /// Bytes read.
    pub bytes_read: u64,
    /// The part of these bytes that came from the device instead of the page cache. Readahead may
    /// make it larger than `bytes_read`.
    pub bytes_from_device: u64,
}

/// Predicts the rest of a run, sample by sample.
#[derive(Debug, Default)]
pub struct Estimator {
    round: u32,
    elapsed: f64,
    spent: Spent,
    /// The resources that each phase used in this round, in phase order.
    phases: Vec<Taken>,
    /// The paces of earlier rounds.
    earlier: Option<Paces>,
    last: Option<Paces>,
    own: OwnPace,
}

/// The resources that a phase used so far.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    /// Its elapsed time at the last sample, in this or an earlier round.
    time: f64,
    /// In this round: elapsed seconds, processor seconds, bytes.
    seconds: f64,
    processor: f64,
    bytes_read: f64,
    bytes_from_device: f64,
}

impl Estimator {
    /// Predicts the rest of a run from `now`, which must be later than all samples before. `None`
    /// while nothing was planned or done. Without `spent`, all time counts as processor time.
    pub fn look(&mut self, now: &Snapshot, spent: Option<Spent>) -> Option<Eta> {
        self.take(now, spent);
        self.last = self.paces(now, spent.is_some()).or(self.last);
        let paces = self.last?;
        let mut left = 0.0;
        for (at, phase) in now.phases.iter().enumerate().filter(|(_, phase)| !phase.ended) {
            let by_model = paces.time(&phase.work) * (1.0 - phase.share);
            left += match phase.time {
                // The phase has no counter of work done.
                Some(time) if phase.share == 0.0 => (by_model - time.as_secs_f64()).max(0.0),
                Some(time) => {
                    let own = self.own.look(at, time.as_secs_f64(), phase.share);
                    let trust = (phase.share / OWN_PACE_SHARE).min(1.0);
                    // Without a plan, the phase's own pace is the only source.
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

    /// Distributes the resources used since the last sample over the phases, by their elapsed time.
    fn take(&mut self, now: &Snapshot, spent: Option<Spent>) {
        if now.round != self.round {
            self.round = now.round;
            self.earlier = self.last;
            for (taken, phase) in self.phases.iter_mut().zip(&now.phases) {
                // Phases that are not repeated in this round keep their time; the others start
                // again.
                let time = phase.time.map_or(0.0, |time| time.as_secs_f64());
                let again = !phase.ended || time < taken.time;
                *taken = Taken { time: if again { 0.0 } else { time }, ..Taken::default() };
            }
        }
        self.phases.resize(now.phases.len(), Taken::default());
        let elapsed = now.elapsed.as_secs_f64();
        let passed = (elapsed - self.elapsed).max(f64::MIN_POSITIVE);
        let spent = spent.unwrap_or_default();
        let more = |now: u64, before: u64| now.saturating_sub(before) as f64;
        let processor = spent.processor.saturating_sub(self.spent.processor).as_secs_f64();
        let read = more(spent.bytes_read, self.spent.bytes_read);
        let from_device = more(spent.bytes_from_device, self.spent.bytes_from_device);
        for (taken, phase) in self.phases.iter_mut().zip(&now.phases) {
            let Some(time) = phase.time else { continue };
            let seconds = (time.as_secs_f64() - taken.time).max(0.0);
            let share = (seconds / passed).min(1.0);
            taken.time = time.as_secs_f64();
            taken.seconds += seconds;
            taken.processor += processor * share;
            taken.bytes_read += read * share;
            taken.bytes_from_device += from_device * share;
        }
        (self.elapsed, self.spent) = (elapsed, spent);
    }

    /// `None` while there is no observation in this round.
    fn paces(&self, now: &Snapshot, spent_is_known: bool) -> Option<Paces> {
        // The work of a phase without a counter is known only when it ends.
        let done: Vec<Done> = (self.phases.iter().zip(&now.phases))
            .filter(|(taken, phase)| {
                taken.seconds > 0.0 && !phase.work.is_zero() && phase.share > 0.0
            })
            .map(|(taken, phase)| Done::of(taken, phase, spent_is_known))
            .collect();
        let sum = |of: fn(&Done) -> f64| done.iter().map(of).sum::<f64>();
        let (busy, model) = (sum(|done| done.busy), sum(|done| done.model[0]));
        if busy + sum(|done| done.waited) == 0.0 || model == 0.0 {
            return None;
        }
        let usual = self.earlier.unwrap_or(Paces { busy: 1.0, place: 1.0, byte: 1.0 });
        let known_busy = known(model, LITTLE_BUSY);
        let busy =
            between(known_busy, (busy / model).clamp(*PACES.start(), *PACES.end()), usual.busy);
        let read = sum(|done| done.read).max(1.0);
        let any = (sum(|done| done.from_device) / read / FROM_DEVICE).clamp(0.0, 1.0);
        let (usual_place, usual_byte) = (usual.place * any, usual.byte * any);
        let (_, byte) = of_device(&done, usual_place, usual_byte);
        // A phase with little of a kind of work says little about its pace.
        let place_seen =
            sum(|done| done.model[1].powi(2) / (done.model[1] + done.model[2]).max(1e-9));
        let byte_seen =
            sum(|done| done.model[2].powi(2) / (done.model[1] + done.model[2]).max(1e-9));
        // Until seeks were observed, assume that a disk with slow (or fast) transfers has slow (or
        // fast) seeks.
        let like_bytes = byte.max(f64::MIN_POSITIVE) / usual_byte.max(f64::MIN_POSITIVE);
        let usual_place = between(known(byte_seen, LITTLE_WAIT), like_bytes, 1.0) * usual_place;
        let (place, byte) = of_device(&done, usual_place, usual_byte);
        let place = between(known(place_seen, LITTLE_WAIT), place, usual_place);
        let byte = between(known(byte_seen, LITTLE_WAIT), byte, usual_byte);
        Some(Paces { busy, place, byte })
    }
}

/// Confidence (0 to 1) in a measured pace, given how many modelled seconds it is based on.
fn known(model: f64, little: f64) -> f64 {
    model * model / (model * model + little * little)
}

/// The geometric mean of `seen` and `usual`, weighted by the confidence `known` in `seen`.
fn between(known: f64, seen: f64, usual: f64) -> f64 {
    seen.powf(known) * usual.powf(1.0 - known)
}

/// The paces of seeks and transfers, fitted to the waiting times of the phases: least squares of
/// the relative error, weighted by the amount of work, regularised towards the usual paces.
fn of_device(done: &[Done], usual_place: f64, usual_byte: f64) -> (f64, f64) {
    let (mut pp, mut pb, mut bb) = (FIRMNESS, 0.0, FIRMNESS);
    let (mut py, mut by) = (FIRMNESS * usual_place, FIRMNESS * usual_byte);
    for Done { waited, model: [_, places, bytes], .. } in done {
        let all = places + bytes;
        if all > 0.0 {
            let (place, byte, pace) = (places / all, bytes / all, waited / all);
            pp += all * place * place;
            pb += all * place * byte;
            bb += all * byte * byte;
            py += all * place * pace;
            by += all * byte * pace;
        }
    }
    // Not singular, because `FIRMNESS` was added.
    let of = pp * bb - pb * pb;
    let (place, byte) = ((py * bb - by * pb) / of, (by * pp - py * pb) / of);
    let most = *PACES.end();
    // A pace cannot be negative; the other one then explains all waiting.
    if place < 0.0 {
        (0.0, (by / bb).clamp(0.0, most))
    } else if byte < 0.0 {
        ((py / pp).clamp(0.0, most), 0.0)
    } else {
        (place.min(most), byte.min(most))
    }
}

/// Seconds on this machine for each second of the model.
#[derive(Clone, Copy, Debug)]
struct Paces {
    busy: f64,
    place: f64,
    byte: f64,
}

impl Paces {
    /// Predicted seconds of some work on this machine.
    fn time(self, work: &Work) -> f64 {
        let [busy, places, bytes] = on_the_clock(work);
        self.busy * busy + self.place * places + self.byte * bytes
    }
}

/// The work done in a phase so far, in elapsed seconds.
#[derive(Clone, Copy, Debug)]
struct Done {
    /// Seconds of computing, and of waiting for the device.
    busy: f64,
    waited: f64,
    /// Model seconds: processors, seeks, transfers.
    model: [f64; 3],
    /// Bytes in all, and from the device.
    read: f64,
    from_device: f64,
}

impl Done {
    fn of(taken: &Taken, phase: &PhaseState, spent_is_known: bool) -> Self {
        let seconds = taken.seconds;
        let threads = phase.work.threads.max(1) as f64;
        let (read, from_device) = (taken.bytes_read, taken.bytes_from_device);
        let for_device = (from_device / read.max(1.0) / FROM_DEVICE).clamp(0.0, 1.0);
        let waited = match spent_is_known {
            true => (seconds - taken.processor / threads).max(0.0) * for_device,
            false => 0.0,
        };
        let model = on_the_clock(&phase.work).map(|time| time * phase.share);
        Self { busy: seconds - waited, waited, model, read, from_device }
    }
}

/// Elapsed seconds of processors (shared by the threads), of seeks and of transfers. The device's
/// times do not depend on the number of threads, because most reads are prefetched.
fn on_the_clock(work: &Work) -> [f64; 3] {
    let threads = work.threads.max(1) as f64;
    let [busy, places, bytes] = [work.busy, work.places, work.bytes].map(|time| time.as_secs_f64());
    [busy / threads, places, bytes]
}

/// The samples of the running phase: elapsed time and share done.
#[derive(Debug, Default)]
struct OwnPace {
    phase: usize,
    looks: VecDeque<(f64, f64)>,
}

impl OwnPace {
    /// Adds a sample and returns the remaining seconds of the phase.
    fn look(&mut self, phase: usize, time: f64, share: f64) -> f64 {
        let last = self.looks.back().copied().unwrap_or_default();
        // Another phase, the same phase in another round, or a changed plan.
        if phase != self.phase || time < last.0 || share < last.1 {
            (self.phase, self.looks) = (phase, VecDeque::new());
        }
        while self.looks.get(1).is_some_and(|(at, _)| *at <= time / 2.0) {
            self.looks.pop_front();
        }
        let from = self.looks.front().copied().filter(|(at, _)| *at <= time / 2.0);
        // So far apart that those of the second half are few, however often somebody looks.
        let apart = time / MOST_LOOKS as f64;
        if self.looks.back().is_none_or(|(at, _)| time - at >= apart) {
            self.looks.push_back((time, share));
        }
        let (since, done) = from.unwrap_or_default();
        let whole = time * (1.0 - share) / share;
        match share > done {
            true => whole.midpoint((time - since) * (1.0 - share) / (share - done)),
            // No progress since.
            false => whole,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(busy: u64, places: u64, bytes: u64) -> Work {
        let [busy, places, bytes] = [busy, places, bytes].map(Duration::from_secs);
        Work { busy, places, bytes, threads: 1 }
    }

    fn phase(name: &'static str, work: Work, time: Option<f64>, share: f64) -> PhaseState {
        PhaseState {
            name,
            done: 0,
            total: 0,
            share,
            objects: 0,
            work,
            time: time.map(Duration::from_secs_f64),
            ended: share == 1.0,
        }
    }

    fn at(elapsed: f64, phases: &[PhaseState]) -> Snapshot {
        Snapshot {
            elapsed: Duration::from_secs_f64(elapsed),
            running: None,
            phases: phases.to_vec(),
            round: 1,
            rounds: 1,
            round_time: None,
        }
    }

    /// `processor` seconds, and the share of the bytes read that came from the device.
    fn spent(processor: f64, from_device: f64) -> Option<Spent> {
        let bytes_from_device = (from_device * 1e6) as u64;
        let processor = Duration::from_secs_f64(processor);
        Some(Spent { processor, bytes_read: 1_000_000, bytes_from_device })
    }

    /// The remaining seconds, predicted from a single sample.
    fn left(now: &Snapshot, spent: Option<Spent>) -> f64 {
        Estimator::default().look(now, spent).unwrap().left.as_secs_f64()
    }

    fn is_about(said: f64, wanted: f64) {
        assert!((said / wanted - 1.0).abs() < 0.03, "{said} instead of {wanted}");
    }

    #[test]
    fn later_phases_go_at_the_pace_so_far() {
        // Three times as slow as the model: 30 s done, 30 s left of this phase, 60 s of the next.
        let phases =
            [phase("a", work(20, 0, 0), Some(30.0), 0.5), phase("b", work(20, 0, 0), None, 0.0)];
        let eta = Estimator::default().look(&at(30.0, &phases), None).unwrap();
        is_about(eta.left.as_secs_f64(), 90.0);
        is_about(eta.share, 0.25);
    }

    #[test]
    fn a_phase_slower_than_its_weight_goes_on_at_its_own_pace() {
        let phases = [
            phase("a", work(10, 0, 0), Some(10.0), 1.0),
            phase("b", work(10, 0, 0), Some(100.0), 0.5),
        ];
        is_about(left(&at(110.0, &phases), None), 100.0);
        // A phase that has hardly begun is predicted by the others: the model predicts 99 s, its
        // own pace 9900 s.
        let phases = [
            phase("a", work(100, 0, 0), Some(100.0), 1.0),
            phase("b", work(100, 0, 0), Some(100.0), 0.01),
        ];
        let left = left(&at(200.0, &phases), None);
        assert!(left > 900.0 && left < 1500.0, "{left}");
    }

    #[test]
    fn a_phase_that_becomes_slower_is_judged_by_its_second_half() {
        // A hundredth per second for 20 s, until the disk's burst quota is used up; then a tenth of
        // that rate.
        let mut estimator = Estimator::default();
        let mut said = 0.0;
        for second in 1..=60 {
            let time = f64::from(second);
            let share = time.min(20.0) * 0.01 + (time - 20.0).max(0.0) * 0.001;
            let phases = [phase("a", work(5, 0, 50), Some(time), share)];
            said = estimator.look(&at(time, &phases), spent(1.0, 1.0)).unwrap().left.as_secs_f64();
        }
        // By its average pace 190 s are left; by its second half, 760 s.
        is_about(said, (60.0 / 0.24 * 0.76 + 0.76 / 0.001) / 2.0);
    }

    #[test]
    fn a_slow_device_makes_those_phases_long_that_wait_for_it() {
        // 10 s of processor time as modelled, 90 s of a device that is nine times slower; left: 10
        // s of processor time, then 20 model seconds of that device.
        let phases = [
            phase("a", work(10, 5, 5), Some(100.0), 1.0),
            phase("b", work(10, 0, 0), None, 0.0),
            phase("c", work(0, 10, 10), None, 0.0),
        ];
        let now = at(100.0, &phases);
        is_about(left(&now, spent(10.0, 1.0)), 10.0 + 9.0 * 20.0);
        // All bytes were cached, so other programs had the processors for nine tenths of the time.
        is_about(left(&now, spent(10.0, 0.0)), 10.0 * 10.0);
        // There was no waiting although the device was read: little waiting is expected.
        is_about(left(&now, spent(100.0, 1.0)), 10.0 * 10.0);
        // The cause is unknown: expect the same pace.
        is_about(left(&now, None), 10.0 * 10.0);
    }

    /// `work` in milliseconds instead of seconds.
    fn milliseconds(work: Work) -> Work {
        Work {
            busy: work.busy / 1000,
            places: work.places / 1000,
            bytes: work.bytes / 1000,
            ..work
        }
    }

    #[test]
    fn places_and_bytes_have_a_pace_each() {
        // A hard disk, modelled by a faster one: seeks take fifty times as long, transfers three
        // times. Only a few seeks were observed, in a short phase.
        let phases = [
            phase("a", milliseconds(work(10, 100, 10)), Some(5.04), 1.0),
            phase("b", milliseconds(work(100, 7, 2000)), Some(3.225), 0.5),
            phase("c", milliseconds(work(100, 6000, 400)), None, 0.0),
        ];
        let said = left(&at(8.265, &phases), spent(0.06, 1.0));
        assert!((said / (3.225 + 301.3) - 1.0).abs() < 0.2, "{said}");
        // If only slow transfers were observed, seeks are expected to be as slow.
        let phases = [
            phase("b", milliseconds(work(1, 0, 2000)), Some(10.001), 1.0),
            phase("c", milliseconds(work(0, 6000, 0)), None, 0.0),
        ];
        is_about(left(&at(10.001, &phases), spent(0.001, 1.0)), 5.0 * 6.0);
    }

    #[test]
    fn a_phase_that_waits_is_told_from_one_that_works() {
        // All phases share one processor; only two samples show that the first phase only waits.
        let mut estimator = Estimator::default();
        let device = |share: f64| phase("a", work(1, 0, 10), Some(20.0 * share), share);
        let phases = [device(0.5), phase("b", work(10, 0, 0), None, 0.0)];
        let _ = estimator.look(&at(10.0, &phases), spent(0.5, 1.0));
        let phases = [device(1.0), phase("b", work(10, 0, 0), Some(10.0), 0.5)];
        let _ = estimator.look(&at(20.0, &[device(1.0), phases[1]]), spent(1.0, 1.0));
        let phases = [phases[0], phases[1], phase("c", work(10, 0, 0), None, 0.0)];
        let eta = estimator.look(&at(30.0, &phases), spent(11.0, 1.0)).unwrap();
        // 10 s of b, and 11/6 times as long for c.
        is_about(eta.left.as_secs_f64(), 10.0 + 11.0 / 6.0 * 10.0);
    }

    #[test]
    fn a_slow_beginning_says_little() {
        // 1 ms of 1000 modelled milliseconds of waiting was done; it took 51 ms.
        let phases = [
            phase("a", milliseconds(work(1, 0, 1)), Some(0.051), 1.0),
            phase("b", milliseconds(work(1000, 0, 999)), None, 0.0),
        ];
        let left = left(&at(0.051, &phases), spent(0.001, 1.0));
        assert!(left > 2.0 && left < 10.0, "{left}");
    }

    #[test]
    fn threads_share_the_work() {
        let shared = Work { threads: 4, ..work(40, 40, 40) };
        let phases = [phase("a", work(10, 5, 5), Some(20.0), 1.0), phase("b", shared, None, 0.0)];
        // Threads share the computing, but not the waiting.
        is_about(left(&at(20.0, &phases), spent(10.0, 1.0)), 10.0 + 40.0 + 40.0);
        let phases = [phase("a", shared, Some(90.0), 1.0), phase("b", work(10, 5, 5), None, 0.0)];
        is_about(left(&at(90.0, &phases), spent(40.0, 1.0)), 20.0);
    }

    #[test]
    fn a_phase_that_counts_nothing_goes_on_as_planned() {
        let phases = [
            phase("a", work(10, 0, 0), Some(20.0), 1.0),
            phase("b", work(10, 0, 0), Some(15.0), 0.0),
            phase("c", work(10, 0, 0), None, 0.0),
        ];
        is_about(left(&at(35.0, &phases), None), 5.0 + 20.0);
    }

    #[test]
    fn rounds_to_come_count() {
        let phases =
            [phase("a", work(10, 0, 0), Some(10.0), 1.0), phase("b", work(10, 0, 0), None, 0.0)];
        let mut now = at(10.0, &phases);
        now.rounds = 3;
        is_about(left(&now, None), 10.0 + 2.0 * 20.0);
        now.round_time = Some(Duration::from_secs(7));
        is_about(left(&now, None), 10.0 + 2.0 * 7.0);
    }

    #[test]
    fn a_new_round_begins_with_the_paces_of_the_last() {
        let mut estimator = Estimator::default();
        let open = phase("open", work(1, 0, 0), Some(1.0), 1.0);
        let ended = [open, phase("a", work(10, 0, 0), Some(50.0), 1.0)];
        let _ = estimator.look(&Snapshot { rounds: 2, ..at(51.0, &ended) }, None);
        let anew = [open, phase("a", work(10, 0, 0), None, 0.0)];
        let mut now = Snapshot { round: 2, rounds: 2, ..at(52.0, &anew) };
        let said = estimator.look(&now, None).unwrap().left.as_secs_f64();
        is_about(said, 51.0 / 11.0 * 10.0);
        // Later its own pace counts.
        now.phases[1] = phase("a", work(10, 0, 0), Some(10.0), 0.5);
        now.elapsed = Duration::from_secs(62);
        is_about(estimator.look(&now, None).unwrap().left.as_secs_f64(), 10.0);
    }

    /// Half of the time each phase has half of the resources; what one of them reads is no sign of what the other waits for.
    #[test]
    fn what_was_read_counts_for_the_phases_that_ran_then() {
        let mut estimator = Estimator::default();
        // 10 s in which all comes from the device, in the first phase; then 10 s of the second one, from the cache.
        let first = phase("a", work(1, 0, 9), Some(10.0), 1.0);
        let begun = [first, phase("b", work(10, 0, 0), None, 0.0)];
        let read = |from_device: u64, processor: u64| {
            let processor = Duration::from_secs(processor);
            Some(Spent { processor, bytes_read: 2 * from_device, bytes_from_device: from_device })
        };
        let _ = estimator.look(&at(10.0, &begun), read(1_000_000, 1));
        let phases = [
            first,
            phase("b", work(10, 0, 0), Some(10.0), 1.0),
            phase("c", work(10, 0, 0), None, 0.0),
            phase("d", work(0, 0, 10), None, 0.0),
        ];
        let spent = Spent {
            processor: Duration::from_secs(3),
            bytes_read: 9_000_000,
            bytes_from_device: 1_000_000,
        };
        let eta = estimator.look(&at(20.0, &phases), Some(spent)).unwrap();
        // The second phase waited for processors for 8 s, which others had: c takes as long; d waits for the device, as a did.
        is_about(eta.left.as_secs_f64(), 10.0 + 10.0);
    }

    /// A twentieth from the device makes all waiting the device's; half of that makes half of it so.
    #[test]
    fn little_that_comes_from_the_device_explains_a_part_of_the_waiting() {
        let phases =
            [phase("a", work(10, 0, 10), Some(110.0), 1.0), phase("b", work(0, 0, 10), None, 0.0)];
        for (from_device, waited) in [(0.05, 100.0), (0.025, 50.0), (0.012_5, 25.0)] {
            is_about(left(&at(110.0, &phases), spent(10.0, from_device)), waited);
        }
    }

    /// Work that is left counts once, whether its phase has begun or not, and whatever share of it is done.
    #[test]
    fn a_phase_that_has_just_begun_is_what_the_model_says() {
        let done = phase("a", work(10, 0, 0), Some(10.0), 1.0);
        let whole = |share| [done, phase("b", work(100, 0, 0), Some(100.0 * share), share)];
        for share in [0.001, 0.01, 0.05] {
            let now = at(10.0 + 100.0 * share, &whole(share));
            is_about(left(&now, None), 100.0 * (1.0 - share));
        }
        // Its own pace is ten times as slow, and half trusted when a twentieth is done.
        let slow = [done, phase("b", work(100, 0, 0), Some(50.0), 0.05)];
        let said = left(&at(60.0, &slow), None);
        let model = 60.0 / 15.0 * 100.0 * 0.95;
        is_about(said, (50.0 * 0.95 / 0.05 + model) / 2.0);
    }

    /// Transfers explain all waiting where seeks would have to give time back, and the other way round.
    #[test]
    fn no_pace_is_negative() {
        let seeks = |seconds: f64| phase("a", work(0, 100, 10), Some(seconds), 1.0);
        let transfers = |seconds: f64| phase("b", work(0, 10, 100), Some(seconds), 1.0);
        let later = [
            phase("c", work(0, 1000, 0), None, 0.0),
            phase("d", work(0, 0, 1000), None, 0.0),
            phase("p", work(1, 0, 0), Some(0.1), 1.0),
        ];
        let left_of = |one: f64, other: f64, at_last: usize| {
            let phases = [seeks(one), transfers(other), later[2], later[at_last]];
            left(&at(one + other + 0.1, &phases), spent(0.1, 1.0))
        };
        // 11 s for a hundred seeks and ten transfers, 1100 s for ten seeks and a hundred transfers.
        assert!(left_of(11.0, 1100.0, 0) < 1.0, "seeks take no time");
        let of_transfers = left_of(11.0, 1100.0, 1);
        assert!((9_000.0..12_000.0).contains(&of_transfers), "{of_transfers}");
        assert!(left_of(1100.0, 11.0, 1) < 1.0, "transfers take no time");
        let of_seeks = left_of(1100.0, 11.0, 0);
        assert!((9_000.0..12_000.0).contains(&of_seeks), "{of_seeks}");
    }

    /// Samples of another phase, or of the same one before it began anew, say nothing of this one.
    #[test]
    fn samples_of_another_phase_are_forgotten() {
        let mut own = OwnPace::default();
        // Fast at first: a tenth a second.
        (1..=5).for_each(|second| _ = own.look(0, f64::from(second), 0.1 * f64::from(second)));
        // Another phase, of which a hundredth is done in a second.
        is_about(own.look(1, 1.0, 0.01), 99.0);
        is_about(own.look(1, 2.0, 0.02), 98.0);
        // It begins anew: less time, and later less of it done because more is known to do.
        is_about(own.look(1, 1.0, 0.5), 1.0);
        is_about(own.look(1, 4.0, 0.4), 6.0);
        // No progress since the last sample is no reason to expect none: the average counts.
        is_about(own.look(1, 8.0, 0.4), 12.0);
    }

    /// A long phase is judged by its second half however many samples were taken.
    #[test]
    fn a_long_phase_is_judged_by_its_second_half() {
        let mut own = OwnPace::default();
        let mut said = 0.0;
        // A thousandth a second for 500 s, then a tenth of that, in samples of a tenth of a second.
        for tenth in 1..=20_000 {
            let time = f64::from(tenth) / 10.0;
            let share = 0.001 * time.min(500.0) + 0.000_1 * (time - 500.0).max(0.0);
            said = own.look(0, time, share);
            assert!(own.looks.len() <= MOST_LOOKS, "{}", own.looks.len());
        }
        let (average, second_half) = (2000.0 / 0.65 * 0.35, 0.35 / 0.000_1);
        is_about(said, (average + second_half) / 2.0);
    }

    /// Between two looks several phases may run: each has the share of the resources that it has of the time.
    #[test]
    fn phases_of_one_look_share_what_was_spent_by_their_time() {
        let first = phase("a", work(20, 0, 0), Some(20.0), 1.0);
        let none = |name| phase(name, work(10, 0, 0), None, 0.0);
        let spent = |seconds| {
            let processor = Duration::from_secs(seconds);
            Some(Spent { processor, bytes_read: seconds, bytes_from_device: seconds })
        };
        let phases = [
            first,
            phase("b", work(5, 0, 1), Some(5.0), 1.0),
            phase("c", work(15, 0, 1), Some(15.0), 1.0),
            none("d"),
        ];
        // Both computed all the time, or each of them half of it.
        for (processor, left) in [(40, 10.0), (30, 7.5)] {
            let mut estimator = Estimator::default();
            let before = [first, none("b"), none("c"), none("d")];
            let _ = estimator.look(&at(20.0, &before), spent(20));
            let eta = estimator.look(&at(40.0, &phases), spent(processor)).unwrap();
            is_about(eta.left.as_secs_f64(), left);
        }
    }

    /// Phases of another round that are not repeated keep their time: only what is spent from then on counts.
    #[test]
    fn a_phase_that_is_not_repeated_is_not_counted_twice() {
        let mut estimator = Estimator::default();
        let open = phase("open", work(10, 0, 0), Some(100.0), 1.0);
        let ended = [open, phase("a", work(10, 0, 0), Some(10.0), 1.0)];
        let _ = estimator.look(&Snapshot { rounds: 2, ..at(110.0, &ended) }, None);
        // In the second round a phase takes as long as the model says; that of the first round was a slow one.
        let again = [open, phase("a", work(10, 0, 0), Some(5.0), 0.5)];
        let now = Snapshot { round: 2, rounds: 3, ..at(115.0, &again) };
        let said = estimator.look(&now, None).unwrap().left.as_secs_f64();
        // 5 s of this round; a third one as long as the phases by the paces of the second.
        is_about(said, 5.0 + 20.0);
    }

    #[test]
    fn nothing_is_known_at_first() {
        let look = |now: &Snapshot, spent| Estimator::default().look(now, spent);
        assert_eq!(look(&at(0.0, &[phase("a", work(10, 0, 0), None, 0.0)]), None), None);
        let unplanned = [phase("a", Work::default(), Some(3.0), 0.5)];
        assert_eq!(look(&at(3.0, &unplanned), spent(1.0, 1.0)), None, "without a plan");
    }
}
