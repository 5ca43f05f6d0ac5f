//! The one source of progress: for bars, `-C` output and logs.
//!
//! Workers count the work done, phase by phase. One reader takes [`snapshot`]s and predicts the
//! remaining time ([`crate::eta`]).
//!
//! [`snapshot`]: Progress::snapshot

mod phase;
mod planned;

use std::time::{Duration, Instant};

use floe_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use floe_sync::{Mutex, PoisonError};

pub use phase::{Phase, PhaseState};
pub use planned::{Shape, Work};

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
        Self {
            start: Instant::now(),
            phases: names.iter().map(|&name| Phase::new(name)).collect(),
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
        self.phases.iter().find(|phase| phase.name() == name)
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
        let index = self.phases.iter().position(|phase| phase.name() == name);
        let Some((index, phase)) = index.and_then(|at| Some((at, self.phases.get(at)?))) else {
            return;
        };
        phase.begin(self.now_ns());
        self.running.store(index, Ordering::Relaxed);
    }

    /// Ends the running phase.
    pub fn end(&self) {
        if let Some(phase) = self.running() {
            phase.end(self.now_ns());
        }
        self.running.store(self.phases.len(), Ordering::Relaxed);
    }

    /// Begins another round at the phase `first`: that phase and all after it are repeated.
    pub fn begin_round(&self, first: &str) {
        self.end();
        let from = self.phases.iter().position(|phase| phase.name() == first).unwrap_or(0);
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
    }
}
