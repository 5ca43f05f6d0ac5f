//! A budget of cores for all passes of a run: workers beyond it are not started, or wait between
//! two units of work. A fair minimum of workers always runs in the normal scheduling class; those
//! past it run in the idle class.

use std::fmt;
use std::time::{Duration, Instant};

use crate::cores::{CoreSource, next_budget};
use floe_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use floe_sync::{Condvar, Mutex, PoisonError};

/// The number of workers that may be busy while other programs need cores, too. The budget outlives
/// a pass and is adjusted while passes run (section 5.4.1 of the pFSCK paper).
pub struct CoreShare<'c> {
    source: &'c dyn CoreSource,
    look_every: Duration,
    /// Workers that never wait and stay in the normal scheduling class. With 0, all run in the idle
    /// class, and at least one works.
    minimum: usize,
    most: usize,
    budget: AtomicUsize,
    /// The time of the next adjustment. Waiting workers use this lock, too.
    look_at: Mutex<Instant>,
    wake: Condvar,
}

impl fmt::Debug for CoreShare<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoreShare")
            .field("minimum", &self.minimum)
            .field("most", &self.most)
            .field("budget", &self.budget)
            .finish()
    }
}

impl<'c> CoreShare<'c> {
    /// A budget of `minimum` to `most` workers, adjusted every `look_every` while there is work. It
    /// starts with the cores that are free now, if `source` knows, and otherwise with `most`.
    pub fn new(
        source: &'c dyn CoreSource,
        most: usize,
        minimum: usize,
        look_every: Duration,
    ) -> Self {
        let most = most.max(1);
        let minimum = minimum.min(most);
        let budget = source.free_now().unwrap_or(most).clamp(minimum.max(1), most);
        Self {
            source,
            look_every,
            minimum,
            most,
            budget: AtomicUsize::new(budget),
            look_at: Mutex::new(Instant::now()),
            wake: Condvar::new(),
        }
    }

    /// Puts the calling thread, worker `me`, into the idle class if it is past the minimum. If the
    /// system refuses, the worker stays in the normal class.
    pub(crate) fn settle(&self, me: usize) {
        // Under shuttle, all workers run on one thread of the system.
        #[cfg(not(feature = "shuttle"))]
        if me >= self.minimum {
            let _ = crate::idle_class::enter_idle_class();
        }
        #[cfg(feature = "shuttle")]
        let _ = me;
    }

    /// Workers that may be busy.
    pub fn budget(&self) -> usize {
        // Relaxed, here and below: waiting workers check again under the lock, and for all others
        // the number orders nothing.
        self.budget.load(Ordering::Relaxed)
    }

    /// Sets how many workers may be busy: at least the minimum, and at least 1.
    pub fn set(&self, budget: usize) {
        let _held = self.look_at.lock().unwrap_or_else(PoisonError::into_inner);
        self.budget.store(budget.clamp(self.minimum.max(1), self.most), Ordering::Relaxed);
        self.wake.notify_all();
    }

    /// Samples the cores and adjusts the budget, if it is time; otherwise returns `false`.
    pub(crate) fn look(&self) -> bool {
        let now = Instant::now();
        {
            let mut look_at = self.look_at.lock().unwrap_or_else(PoisonError::into_inner);
            if now < *look_at {
                return false;
            }
            *look_at = now + self.look_every;
        }
        if let Some(seen) = self.source.sample() {
            self.set(next_budget(self.budget(), self.most, seen));
        }
        true
    }
}

/// The gate that the workers of one pass go through before each unit.
#[derive(Debug)]
pub(crate) struct Gate<'g> {
    share: Option<&'g CoreShare<'g>>,
    /// The pass has no more units, so nobody needs to wait.
    open: AtomicBool,
}

impl<'g> Gate<'g> {
    pub(crate) fn new(share: Option<&'g CoreShare<'g>>) -> Self {
        Self { share, open: AtomicBool::new(false) }
    }

    /// Waits until worker `me` may be busy. The first worker always may; it samples the cores, and
    /// calls `more` to start workers after the budget has grown.
    pub(crate) fn pass(&self, me: usize, more: &dyn Fn()) {
        let Some(share) = self.share else { return };
        if me == 0 {
            share.look();
            return more();
        }
        let shut = || me >= share.budget() && !self.open.load(Ordering::Relaxed);
        if !shut() {
            return;
        }
        let mut held = share.look_at.lock().unwrap_or_else(PoisonError::into_inner);
        while shut() {
            held = share.wake.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns a guard for worker 0. Dropping it, even during a panic, releases the other workers.
    pub(crate) fn opened_by(&self, me: usize) -> Option<OpenAtEnd<'_>> {
        (me == 0).then(|| OpenAtEnd(self))
    }
}

/// Opens a gate permanently when dropped.
pub(crate) struct OpenAtEnd<'a>(&'a Gate<'a>);

impl Drop for OpenAtEnd<'_> {
    fn drop(&mut self) {
        if let Some(share) = self.0.share {
            let _held = share.look_at.lock().unwrap_or_else(PoisonError::into_inner);
            self.0.open.store(true, Ordering::Relaxed);
            share.wake.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::CoreSample;
    use crate::{Accumulator, Pool};
    use floe_sync::thread;

    /// Cores that other programs use, all or none, in turns.
    struct ByTurns(AtomicUsize);

    impl CoreSource for ByTurns {
        fn sample(&self) -> Option<CoreSample> {
            let busy = self.0.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
            Some(if busy {
                CoreSample { idle: 0.0, own: 0.0, allowed: 99 }
            } else {
                CoreSample { idle: 9.0, own: 0.0, allowed: 99 }
            })
        }
    }

    #[derive(Default)]
    struct Sum(u64);

    impl Accumulator for Sum {
        fn merge(&mut self, other: Self) {
            self.0 += other.0;
        }
    }

    fn all_is_done(workers: usize, units: u64, weighted: bool) {
        let cores = ByTurns(AtomicUsize::new(0));
        let share = CoreShare::new(&cores, workers, 0, Duration::ZERO);
        let pool = Pool::new(workers).sharing(Some(&share));
        let units: Vec<u64> = (0..units).collect();
        let work = |sum: &mut Sum, unit: &u64| {
            sum.0 += unit;
            thread::yield_now();
        };
        let Sum(sum) =
            if weighted { pool.run_weighted(&units, |_| 1, work) } else { pool.run(&units, work) };
        assert_eq!(sum, units.iter().sum());
    }

    #[cfg(not(feature = "shuttle"))]
    mod real_threads {
        use super::*;

        #[test]
        fn all_is_done_whatever_the_budget() {
            for workers in [1, 2, 3, 16] {
                for weighted in [false, true] {
                    all_is_done(workers, 1000, weighted);
                }
            }
        }

        /// Other programs use all cores, all the time.
        struct Busy;

        impl CoreSource for Busy {
            fn sample(&self) -> Option<CoreSample> {
                Some(CoreSample { idle: 0.0, own: 1.0, allowed: 4 })
            }
        }

        /// The largest number of workers that were busy at once.
        #[derive(Default)]
        struct Most(usize);

        impl Accumulator for Most {
            fn merge(&mut self, other: Self) {
                self.0 = self.0.max(other.0);
            }
        }

        #[test]
        fn one_works_where_others_need_the_cores_and_the_budget_outlives_the_pass() {
            let share = CoreShare::new(&Busy, 4, 0, Duration::ZERO);
            let pool = Pool::new(4).sharing(Some(&share));
            let at_work = AtomicUsize::new(0);
            let work = |most: &mut Most, (): &()| {
                let others = at_work.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_micros(200));
                at_work.fetch_sub(1, Ordering::Relaxed);
                most.0 = most.0.max(others + 1);
            };
            pool.run(&[(); 100], work);
            assert_eq!(share.budget(), 1);
            let Most(most) = pool.run(&[(); 200], work);
            assert_eq!(most, 1, "the second pass starts with the budget of the first");
        }

        #[test]
        fn a_minimum_works_however_busy_the_cores_are() {
            let share = CoreShare::new(&Busy, 4, 3, Duration::ZERO);
            share.set(1);
            assert_eq!(share.budget(), 3);
            Pool::new(4).sharing(Some(&share)).run(&[(); 100], |(): &mut (), ()| {
                thread::sleep(Duration::from_micros(50));
            });
            assert_eq!(share.budget(), 3);
        }

        /// A source that knows at once how many cores are free.
        struct Free(usize);

        impl CoreSource for Free {
            fn sample(&self) -> Option<CoreSample> {
                None
            }

            fn free_now(&self) -> Option<usize> {
                Some(self.0)
            }
        }

        /// The scheduling classes of the threads that did a unit: 0 normal, 5 idle.
        #[derive(Default)]
        struct Classes(Vec<u32>);

        impl Accumulator for Classes {
            fn merge(&mut self, other: Self) {
                self.0.extend(other.0);
            }
        }

        #[test]
        fn only_workers_past_the_minimum_give_way_and_none_is_started_for_a_core_that_is_not_free()
        {
            for (free, minimum, workers, usual) in [(4, 2, 4, 2), (0, 1, 1, 1), (3, 1, 3, 1)] {
                let source = Free(free);
                let share = CoreShare::new(&source, 4, minimum, Duration::ZERO);
                let met = AtomicUsize::new(0);
                let pool = Pool::new(4).sharing(Some(&share));
                let Classes(classes) = pool.run(&[(); 100], |all: &mut Classes, ()| {
                    if all.0.is_empty() {
                        all.0.extend(crate::idle_class::policy_of_this_thread());
                        met.fetch_add(1, Ordering::Relaxed);
                    }
                    // Each worker that was started gets at least one unit.
                    let begin = Instant::now();
                    while met.load(Ordering::Relaxed) < workers && begin.elapsed().as_secs() < 5 {
                        thread::yield_now();
                    }
                });
                if crate::idle_class::is_refused() {
                    eprintln!("skipped: the system refuses the idle class");
                    return;
                }
                assert_eq!(classes.len(), workers, "{free} free, minimum {minimum}");
                assert_eq!(classes.iter().filter(|&&class| class == 0).count(), usual);
            }
        }

        #[test]
        fn a_panic_of_the_first_lets_those_who_wait_end() {
            let share = CoreShare::new(&Busy, 4, 0, Duration::ZERO);
            share.set(1);
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                Pool::new(4).sharing(Some(&share)).run(
                    &[1, 2, 3, 4, 5, 6],
                    |(): &mut (), &unit| {
                        thread::sleep(Duration::from_millis(1));
                        assert!(unit != 3, "unit three");
                    },
                );
            }));
            assert!(outcome.is_err());
        }
    }

    #[cfg(feature = "shuttle")]
    mod interleavings {
        use floe_sync::shuttle;

        use super::*;

        #[test]
        fn all_is_done_and_nobody_waits_for_ever() {
            for weighted in [false, true] {
                shuttle::check_random(move || all_is_done(3, 5, weighted), 2000);
            }
        }
    }
}
