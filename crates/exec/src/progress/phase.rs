//! One phase of a run: units done and known, times, and the share of its work that is done.

use std::time::Duration;

use floe_sync::atomic::{AtomicU64, Ordering};
use floe_sync::{Mutex, PoisonError};

use super::{OwnLine, Shape, Work};

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

impl Phase {
    /// A phase without work yet.
    pub(super) fn new(name: &'static str) -> Self {
        Self {
            name,
            done: OwnLine(AtomicU64::new(0)),
            total: OwnLine(AtomicU64::new(0)),
            work: Mutex::new(Work::default()),
            met: OwnLine::default(),
            objects: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            shape: Mutex::new(Shape::default()),
        }
    }

    /// Its name.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Begins it; `now_ns` is above 0.
    pub(super) fn begin(&self, now_ns: u64) {
        // Relaxed, here and below: the numbers are for people and order nothing.
        self.begun.store(now_ns, Ordering::Relaxed);
        self.ended.store(0, Ordering::Relaxed);
    }

    /// Ends it; `now_ns` is above 0.
    pub(super) fn end(&self, now_ns: u64) {
        self.ended.store(now_ns, Ordering::Relaxed);
    }

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
    pub(super) fn reset(&self) {
        let counts = [&self.done.0, &self.total.0, &self.begun, &self.ended];
        for value in counts.into_iter().chain(&self.met.0) {
            value.store(0, Ordering::Relaxed);
        }
    }

    /// Nanoseconds from its begin to its end, or to `now_ns` if it is running.
    pub(super) fn time_ns(&self, now_ns: u64) -> Option<u64> {
        let begun = self.begun.load(Ordering::Relaxed);
        let ended = match self.ended.load(Ordering::Relaxed) {
            0 => now_ns,
            ended => ended,
        };
        (begun > 0).then(|| ended.saturating_sub(begun))
    }

    /// Its state at `now_ns`.
    pub(super) fn state_at(&self, now_ns: u64) -> PhaseState {
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

    /// Units beyond the plan weigh as much as those of the plan on average.
    #[test]
    fn units_beyond_the_plan_are_a_share_of_all() {
        let phase = Phase::new("inodes");
        let work = Work { bytes: Duration::from_secs(8), ..Work::default() };
        phase.plan(work, 10, Shape::of([(5, 0), (5, 10)].into_iter()));
        phase.expect(20);
        for (more, share) in [(5, 0.0), (5, 0.5), (5, 0.75), (5, 1.0)] {
            phase.advance(more);
            assert_eq!(phase.state_at(1).share, share);
        }
    }

    /// The work that was met so far is met in the rest as well, of each kind.
    #[test]
    fn what_is_met_is_added_to_the_plan() {
        let phase = Phase::new("inodes");
        let [one, two] = [1, 2].map(Duration::from_secs);
        phase.plan(Work { busy: one, places: one, bytes: one, threads: 2 }, 4, Shape::default());
        phase.expect(4);
        phase.advance(2);
        phase.met(&Work { busy: one, places: one / 2, bytes: two, threads: 7 });
        let whole = Work { busy: one + two, places: two, bytes: one + two * 2, threads: 2 };
        assert_eq!(phase.state_at(1).work, whole);
    }

    #[test]
    fn time_passes_from_the_begin_to_the_end() {
        let phase = Phase::new("inodes");
        assert_eq!(phase.time_ns(90), None);
        phase.begin(100);
        assert_eq!(phase.time_ns(130), Some(30));
        phase.end(150);
        assert_eq!((phase.time_ns(400), phase.state_at(400).ended), (Some(50), true));
        // As a clock that goes back would have it.
        phase.begin(200);
        assert_eq!(phase.time_ns(190), Some(0));
    }
}
