//! The one source of progress: for bars, `-C` output and logs.
//!
//! Workers count the work done, phase by phase. One reader takes [`snapshot`]s and predicts the
//! remaining time ([`crate::eta`]).
//!
//! [`snapshot`]: Progress::snapshot

use std::time::{Duration, Instant};

use floe_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use floe_sync::{Mutex, PoisonError};

/// Separates data that many threads write from everything else, to avoid false sharing: two cache
/// lines, because processors prefetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct OwnLine<T>(pub(crate) T);

/// The progress of a run, phase by phase. Workers add to it; one reader takes snapshots.
///
/// It is for people: no result may depend on it. Adding costs one relaxed atomic addition per unit
/// of work, which [`crate::Pool::watched`] does automatically.
///
/// Phases run one after the other. A repair runs them several times, in rounds.
#[derive(Debug)]
pub struct Progress {
    start: Instant,
    phases: Vec<Phase>,
    /// Index of the running phase; the number of phases if none is running.
    running: AtomicUsize,
    rounds: Mutex<Rounds>,
    /// Something was found that may require further rounds.
    found: AtomicBool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Rounds {
    begun: u32,
    /// Rounds known to be necessary, including those that have begun.
    expected: u32,
    /// During the first round: the number of rounds expected if something is found.
    if_found: u32,
    /// Nanoseconds that ended rounds spent in phases, and the number of those rounds.
    past_ns: u64,
    past: u32,
}

/// One phase of a run.
#[derive(Debug)]
pub struct Phase {
    name: &'static str,
    done: OwnLine<AtomicU64>,
    /// May grow while the phase runs, as more work is discovered.
    total: OwnLine<AtomicU64>,
    /// The expected work of the whole phase, by a model that need not know this machine; zero while
    /// unknown.
    work: Mutex<Work>,
    /// Work done that the plan could not know: nanoseconds of processors, seeks and transfers.
    met: OwnLine<[AtomicU64; 3]>,
    /// The number of objects of the phase (inodes, blocks) for display; 0 while unknown.
    objects: AtomicU64,
    /// Nanoseconds from the start of the run to the begin and end of the phase, each plus 1; 0: not
    /// yet.
    begun: AtomicU64,
    ended: AtomicU64,
    shape: Mutex<Shape>,
}

/// The work of a phase, as time on the machine that the model describes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Processor time, of all threads together.
    pub busy: Duration,
    /// Seek time of a device if nothing is cached, for any number of threads.
    pub places: Duration,
    /// Time to transfer the bytes, likewise.
    pub bytes: Duration,
    /// Threads that share the processor time; 0 counts as 1.
    pub threads: usize,
}

impl Work {
    /// Whether nothing was planned.
    pub fn is_zero(&self) -> bool {
        [self.busy, self.places, self.bytes].iter().all(Duration::is_zero)
    }

    /// The work of a share (0 to 1) of the whole.
    #[must_use]
    pub fn part(&self, share: f64) -> Self {
        let part = |time: Duration| time.mul_f64(share.clamp(0.0, 1.0));
        let [busy, places, bytes] = [self.busy, self.places, self.bytes].map(part);
        Self { busy, places, bytes, threads: self.threads }
    }
}

/// The distribution of a phase's work over its units: pairs of units done and work done by then.
/// Ascending in both; empty: even.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape(Vec<(u64, u64)>);

/// Points of a shape, at most.
const MOST_POINTS: usize = 1024;

impl Shape {
    /// The shape of consecutive parts, each with its units and its work.
    pub fn of(parts: impl ExactSizeIterator<Item = (u64, u64)>) -> Self {
        let every = parts.len().div_ceil(MOST_POINTS).max(1);
        let (mut units, mut work, mut points) = (0u64, 0u64, Vec::new());
        let last = parts.len();
        for (at, (more_units, more_work)) in (1..).zip(parts) {
            units = units.saturating_add(more_units);
            work = work.saturating_add(more_work);
            if at % every == 0 || at == last {
                points.push((units, work));
            }
        }
        Self(points)
    }

    /// Total units; 0 for an even shape.
    fn units(&self) -> u64 {
        self.0.last().map_or(0, |&(units, _)| units)
    }

    /// The share of the work, from 0 to 1, that is done after `done` units.
    pub fn share(&self, done: u64) -> f64 {
        let after = self.0.partition_point(|&(units, _)| units <= done);
        let (units, work) = match after.checked_sub(1) {
            Some(before) => self.0[before],
            None => (0, 0),
        };
        let all = self.0.last().map_or(0, |&(_, work)| work);
        if all == 0 {
            return 1.0;
        }
        let more = self.0.get(after).map_or(0.0, |&(next_units, next_work)| {
            // Both ascend, and `units <= done < next_units`.
            (done - units) as f64 / (next_units - units) as f64 * (next_work - work) as f64
        });
        ((work as f64 + more) / all as f64).min(1.0)
    }
}

/// The state of one phase in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PhaseState {
    /// The phase's name.
    pub name: &'static str,
    /// Units done.
    pub done: u64,
    /// Units known so far; 0 before any are known. May still grow.
    pub total: u64,
    /// The share of its work that is done, from 0 to 1.
    pub share: f64,
    /// The number of objects of the phase (inodes, blocks) for display; 0 while unknown.
    pub objects: u64,
    /// The modelled work of the whole phase, with the unplanned work met so far, extrapolated to
    /// the rest.
    pub work: Work,
    /// Elapsed time, up to now or to its end; `None` before it began.
    pub time: Option<Duration>,
    /// Whether it has ended.
    pub ended: bool,
}

impl PhaseState {
    /// Work done in thousandths, 0 to 1000; 0 while no total is known.
    pub fn per_mille(&self) -> u16 {
        if self.total == 0 {
            return 0;
        }
        let per_mille = u128::from(self.done.min(self.total)) * 1000 / u128::from(self.total);
        // At most 1000.
        per_mille as u16
    }
}

/// The state of a run at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Time since the start.
    pub elapsed: Duration,
    /// Index of the running phase; `None` between rounds, before the first phase and after the
    /// last.
    pub running: Option<usize>,
    /// All phases.
    pub phases: Vec<PhaseState>,
    /// The round, from 1 on; 0 before the first.
    pub round: u32,
    /// Rounds known to be necessary: at least [`Snapshot::round`].
    pub rounds: u32,
    /// Average time of the rounds that ended; `None` before the first has ended.
    pub round_time: Option<Duration>,
}

impl Progress {
    /// Phases with these names, in the order in which they run, without work yet.
    pub fn new(names: &[&'static str]) -> Self {
        let phase = |&name: &&'static str| Phase {
            name,
            done: OwnLine(AtomicU64::new(0)),
            total: OwnLine(AtomicU64::new(0)),
            work: Mutex::new(Work::default()),
            met: OwnLine::default(),
            objects: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            shape: Mutex::new(Shape::default()),
        };
        Self {
            start: Instant::now(),
            phases: names.iter().map(phase).collect(),
            running: AtomicUsize::new(names.len()),
            rounds: Mutex::new(Rounds::default()),
            found: AtomicBool::new(false),
        }
    }

    /// The phase at that index of the names given; `None` past the end.
    pub fn phase(&self, index: usize) -> Option<&Phase> {
        self.phases.get(index)
    }

    /// The phase of that name; `None` if there is none.
    pub fn named(&self, name: &str) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.name == name)
    }

    /// The phase that is running.
    pub fn running(&self) -> Option<&Phase> {
        // Relaxed, here and below: the numbers are for people and order nothing.
        self.phases.get(self.running.load(Ordering::Relaxed))
    }

    /// Begins a phase and ends the running one. With an unknown name, no phase is running
    /// afterwards.
    pub fn begin(&self, name: &str) {
        self.end();
        let index = self.phases.iter().position(|phase| phase.name == name);
        let Some((index, phase)) = index.and_then(|at| Some((at, self.phases.get(at)?))) else {
            return;
        };
        phase.begun.store(self.now_ns(), Ordering::Relaxed);
        phase.ended.store(0, Ordering::Relaxed);
        self.running.store(index, Ordering::Relaxed);
    }

    /// Ends the running phase.
    pub fn end(&self) {
        if let Some(phase) = self.running() {
            phase.ended.store(self.now_ns(), Ordering::Relaxed);
        }
        self.running.store(self.phases.len(), Ordering::Relaxed);
    }

    /// Begins another round at the phase `first`: that phase and all after it are repeated.
    pub fn begin_round(&self, first: &str) {
        self.end();
        let from = self.phases.iter().position(|phase| phase.name == first).unwrap_or(0);
        let again = self.phases.get(from..).unwrap_or(&[]);
        let past_ns: u64 = again.iter().filter_map(|phase| phase.time_ns(0)).sum();
        let mut rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        if rounds.begun > 0 {
            rounds.past_ns = rounds.past_ns.saturating_add(past_ns);
            rounds.past += 1;
        }
        rounds.begun += 1;
        rounds.expected = rounds.expected.max(rounds.begun);
        again.iter().for_each(Phase::reset);
    }

    /// Announces how many rounds will be necessary, including those that have begun; `0`: no more
    /// than those.
    pub fn expect_rounds(&self, rounds: u32) {
        let mut known = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        known.expected = rounds.max(known.begun);
        known.if_found = 0;
    }

    /// Sets how many rounds to expect if something is found in the first round, until
    /// [`Progress::expect_rounds`] gives the number. Without this call, one round is expected.
    pub fn expect_rounds_if_found(&self, rounds: u32) {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner).if_found = rounds;
    }

    /// Records that something was found.
    pub fn note_found(&self) {
        // Written only once, because frequent writes by many threads would slow them down.
        if !self.found.load(Ordering::Relaxed) {
            self.found.store(true, Ordering::Relaxed);
        }
    }

    /// The state of each phase. While workers run, the phases are not from exactly the same moment.
    pub fn snapshot(&self) -> Snapshot {
        let now_ns = self.now_ns();
        let rounds = *self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        let average = rounds.past_ns.checked_div(u64::from(rounds.past));
        let running = self.running.load(Ordering::Relaxed);
        Snapshot {
            elapsed: Duration::from_nanos(now_ns),
            running: (running < self.phases.len()).then_some(running),
            phases: self.phases.iter().map(|phase| phase.state_at(now_ns)).collect(),
            round: rounds.begun,
            rounds: match rounds.begun {
                1 if self.found.load(Ordering::Relaxed) => rounds.expected.max(rounds.if_found),
                _ => rounds.expected,
            },
            round_time: average.map(Duration::from_nanos),
        }
    }

    /// Nanoseconds since the start, plus 1: never 0.
    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_add(1)
    }
}

impl Phase {
    /// Adds `units` to the total.
    pub fn expect(&self, units: u64) {
        self.total.0.fetch_add(units, Ordering::Relaxed);
    }

    /// Adds `units` to those done.
    pub fn advance(&self, units: u64) {
        self.done.0.fetch_add(units, Ordering::Relaxed);
    }

    /// Sets the modelled work of the whole phase: only the proportions between phases matter.
    /// `objects` is the number of objects to display; `shape` is the distribution of the work over
    /// the units.
    pub fn plan(&self, work: Work, objects: u64, shape: Shape) {
        *self.work.lock().unwrap_or_else(PoisonError::into_inner) = work;
        self.objects.store(objects, Ordering::Relaxed);
        *self.shape.lock().unwrap_or_else(PoisonError::into_inner) = shape;
    }

    /// Adds work done in the phase that its plan could not know. The same amount, in proportion, is
    /// expected for the rest.
    pub fn met(&self, work: &Work) {
        for (sum, time) in self.met.0.iter().zip([work.busy, work.places, work.bytes]) {
            // 2^64 nanoseconds are centuries.
            sum.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// The modelled work of the whole phase, if unplanned work continues at the rate seen in the
    /// share done.
    fn whole_work(&self, share: f64) -> Work {
        let planned = *self.work.lock().unwrap_or_else(PoisonError::into_inner);
        if planned.is_zero() || share <= 0.0 {
            return planned;
        }
        let [busy, places, bytes] = &self.met.0;
        let met = |sum: &AtomicU64| {
            Duration::from_nanos(sum.load(Ordering::Relaxed)).div_f64(share.clamp(1e-6, 1.0))
        };
        Work {
            busy: planned.busy + met(busy),
            places: planned.places + met(places),
            bytes: planned.bytes + met(bytes),
            threads: planned.threads,
        }
    }

    /// Ignores the plan's shape from now on: all units weigh the same.
    pub(crate) fn spread_evenly(&self) {
        *self.shape.lock().unwrap_or_else(PoisonError::into_inner) = Shape::default();
    }

    /// Resets counts and times; the plan stays.
    fn reset(&self) {
        let counts = [&self.done.0, &self.total.0, &self.begun, &self.ended];
        for value in counts.into_iter().chain(&self.met.0) {
            value.store(0, Ordering::Relaxed);
        }
    }

    /// Nanoseconds from its begin to its end, or to `now_ns` if it is running.
    fn time_ns(&self, now_ns: u64) -> Option<u64> {
        let begun = self.begun.load(Ordering::Relaxed);
        let ended = match self.ended.load(Ordering::Relaxed) {
            0 => now_ns,
            ended => ended,
        };
        (begun > 0).then(|| ended.saturating_sub(begun))
    }

    fn state_at(&self, now_ns: u64) -> PhaseState {
        let done = self.done.0.load(Ordering::Relaxed);
        let total = self.total.0.load(Ordering::Relaxed);
        let ended = self.ended.load(Ordering::Relaxed) > 0;
        let share = if ended { 1.0 } else { self.share(done, total) };
        PhaseState {
            name: self.name,
            done,
            total,
            share,
            objects: self.objects.load(Ordering::Relaxed),
            work: self.whole_work(share),
            time: self.time_ns(now_ns).map(Duration::from_nanos),
            ended,
        }
    }

    /// The share of the work done. Units beyond the plan weigh as much as the planned ones on
    /// average.
    fn share(&self, done: u64, total: u64) -> f64 {
        let shape = self.shape.lock().unwrap_or_else(PoisonError::into_inner);
        let planned = shape.units();
        let all = total.max(planned);
        if all == 0 {
            return 0.0;
        }
        if planned == 0 {
            return done.min(all) as f64 / all as f64;
        }
        let of_plan = shape.share(done.min(planned)) * planned as f64;
        (of_plan + done.saturating_sub(planned) as f64).min(all as f64) / all as f64
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use floe_sync::thread;

    #[test]
    fn all_that_is_added_is_seen() {
        let progress = Progress::new(&["inodes", "directories"]);
        let (inodes, directories) = (progress.phase(0).unwrap(), progress.phase(1).unwrap());
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        inodes.expect(2);
                        inodes.advance(1);
                    }
                });
            }
        });
        directories.advance(3);
        assert!(progress.phase(2).is_none());
        let [inodes, directories] = progress.snapshot().phases[..] else { panic!("two phases") };
        assert_eq!((inodes.name, inodes.done, inodes.total), ("inodes", 4000, 8000));
        assert_eq!((inodes.per_mille(), directories.per_mille()), (500, 0));
        assert_eq!((inodes.share, directories.share), (0.5, 0.0));
        let over = PhaseState { done: u64::MAX, total: u64::MAX - 1, ..inodes };
        assert_eq!(over.per_mille(), 1000);
    }

    #[test]
    fn what_is_met_is_expected_of_the_rest_too() {
        let progress = Progress::new(&["inodes"]);
        progress.begin_round("inodes");
        progress.begin("inodes");
        let phase = progress.named("inodes").unwrap();
        let seconds = Duration::from_secs;
        let planned =
            Work { busy: seconds(100), bytes: seconds(10), threads: 3, ..Work::default() };
        phase.plan(planned, 0, Shape::default());
        phase.expect(10);
        // Before any unit is done, the unplanned work cannot be extrapolated.
        phase.met(&Work { busy: seconds(20), places: seconds(1), ..Work::default() });
        assert_eq!(progress.snapshot().phases[0].work, planned);
        phase.met(&Work { busy: seconds(30), ..Work::default() });
        phase.advance(5);
        let whole = Work { busy: seconds(200), places: seconds(2), ..planned };
        assert_eq!(progress.snapshot().phases[0].work, whole);
        progress.end();
        let all = Work { busy: seconds(150), places: seconds(1), ..planned };
        assert_eq!(progress.snapshot().phases[0].work, all);
        progress.begin_round("inodes");
        assert_eq!(progress.snapshot().phases[0].work, planned);
    }

    #[test]
    fn phases_follow_each_other() {
        let progress = Progress::new(&["one", "two"]);
        assert!(progress.running().is_none());
        progress.begin("one");
        assert_eq!(progress.snapshot().running, Some(0));
        progress.begin("two");
        let now = progress.snapshot();
        assert!(now.phases[0].ended && now.phases[0].share == 1.0 && now.phases[0].time.is_some());
        assert!(!now.phases[1].ended && now.running == Some(1));
        progress.begin("no such phase");
        assert!(progress.running().is_none() && progress.snapshot().phases[1].ended);
    }

    #[test]
    fn a_round_begins_anew_and_its_time_is_kept() {
        let progress = Progress::new(&["once", "again"]);
        progress.begin("once");
        progress.begin_round("again");
        progress.expect_rounds(3);
        progress.begin("again");
        thread::sleep(Duration::from_millis(3));
        progress.begin_round("again");
        let now = progress.snapshot();
        assert_eq!((now.round, now.rounds), (2, 3));
        assert!(now.round_time.unwrap() >= Duration::from_millis(3));
        assert!(now.phases[0].ended && now.phases[1].time.is_none());
        progress.expect_rounds(0);
        assert_eq!(progress.snapshot().rounds, 2);
    }

    #[test]
    fn what_is_found_in_the_first_round_asks_for_others() {
        let progress = Progress::new(&["one"]);
        progress.begin_round("one");
        progress.expect_rounds_if_found(3);
        assert_eq!(progress.snapshot().rounds, 1);
        progress.note_found();
        assert_eq!(progress.snapshot().rounds, 3);
        progress.expect_rounds(2);
        assert_eq!(progress.snapshot().rounds, 2, "the second round has begun");
    }

    #[test]
    fn a_shape_says_where_the_work_is() {
        // Ten units without work, then ten with all the work.
        let shape = Shape::of([(10, 0), (10, 100)].into_iter());
        let phase = Progress::new(&["inodes"]);
        let inodes = phase.phase(0).unwrap();
        let work = Work { busy: Duration::from_secs(1), ..Work::default() };
        inodes.plan(work, 20, shape);
        for (done, share) in [(0, 0.0), (10, 0.0), (15, 0.5), (20, 1.0)] {
            inodes.reset();
            inodes.advance(done);
            assert_eq!(phase.snapshot().phases[0].share, share, "{done}");
        }
        // Twenty units more than planned.
        inodes.expect(40);
        assert_eq!(phase.snapshot().phases[0].share, 0.5);
        let long = Shape::of((0..100_000u32).map(|_| (1, 2)));
        assert!(long.0.len() <= MOST_POINTS + 1);
        assert!((long.share(25_000) - 0.25).abs() < 1e-9);
        assert_eq!(Shape::of([(5, 0)].into_iter()).share(1), 1.0, "a shape without work");
    }
}
