//! Workers that take units of work from one queue and accumulate their findings privately.

use std::cell::{Cell, RefCell};

use crate::accumulate::Accumulator;
use crate::core_share::{CoreShare, Gate};
use crate::placement::Placement;
use crate::progress::{OwnLine, Phase, Progress};
use crate::work_item::{WorkItem, process_items};
use floe_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use floe_sync::thread;

/// How the units of a pass are assigned to its workers. The results are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dealing {
    /// One at a time and in order, as with [`Pool::run`]: the workers together read the disk in the
    /// order of the units.
    #[default]
    InOrder,
    /// A range of about the same weight for each worker, as with [`Pool::run_weighted`] (lwFSCK's
    /// split by inodes in use): each worker reads its own region of the disk.
    Ranges,
}

/// The workers of a pass.
#[derive(Clone, Copy, Debug)]
pub struct Pool<'p> {
    threads: usize,
    dealing: Dealing,
    progress: Option<&'p Progress>,
    cores: Option<&'p CoreShare<'p>>,
}

impl<'p> Pool<'p> {
    /// `threads` workers; at least one.
    pub const fn new(threads: usize) -> Self {
        let threads = if threads == 0 { 1 } else { threads };
        Self { threads, dealing: Dealing::InOrder, progress: None, cores: None }
    }

    /// The same workers; units count in the phase that is running when [`Pool::run`] begins.
    pub const fn watched(self, progress: Option<&'p Progress>) -> Self {
        Self { progress, ..self }
    }

    /// The same workers, with this assignment of weighted units ([`Pool::run_dealt`]).
    pub const fn dealing(self, dealing: Dealing) -> Self {
        Self { dealing, ..self }
    }

    /// The assignment of weighted units.
    pub const fn dealt(&self) -> Dealing {
        self.dealing
    }

    /// The same workers, limited by a budget of cores.
    pub const fn sharing(self, cores: Option<&'p CoreShare<'p>>) -> Self {
        Self { cores, ..self }
    }

    /// The budget of cores.
    pub const fn cores(&self) -> Option<&'p CoreShare<'p>> {
        self.cores
    }

    /// The gate that workers pass before each unit.
    pub(crate) fn gate(&self) -> Gate<'p> {
        Gate::new(self.cores)
    }

    /// The phase in which units count.
    pub fn phase(&self) -> Option<&'p Phase> {
        self.progress.and_then(Progress::running)
    }

    /// Tells the progress that something was found.
    pub fn note_found(&self) {
        if let Some(progress) = self.progress {
            progress.note_found();
        }
    }

    /// Adds `units` to the total of the running phase.
    pub fn expect(&self, units: usize) {
        if let Some(phase) = self.phase() {
            phase.expect(units as u64);
        }
    }

    /// Number of workers.
    pub const fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `work` on each of `units`, in index order within a worker, and merges the accumulators.
    /// With one worker or one unit, no thread is started.
    ///
    /// Units are handed out one at a time and in order, so a slow unit delays only its own worker,
    /// and the workers together read the disk in the order of the units. If sizes differ much, put
    /// large units first, or make units small.
    ///
    /// # Panics
    /// If `work` panics: no worker starts another unit, and the panic continues in the caller.
    pub fn run<U, A, F>(&self, units: &[U], work: F) -> A
    where
        U: Sync,
        A: Accumulator,
        F: Fn(&mut A, &U) + Sync,
    {
        self.expect(units.len());
        self.run_until(units, |all: &mut A, item| work(all, item.unit()), || false).0
    }

    /// [`Pool::run`] or [`Pool::run_weighted`], depending on [`Pool::dealing`]; `work` can ask for
    /// its worker's next unit.
    ///
    /// # Panics
    /// As those functions do.
    pub fn run_dealt<U, A, F>(&self, units: &[U], weight: impl Fn(&U) -> u64 + Sync, work: F) -> A
    where
        U: Sync,
        A: Accumulator,
        F: Fn(&mut A, &mut WorkItem<'_, '_, U>) + Sync,
    {
        match self.dealing {
            Dealing::InOrder => {
                self.expect(units.len());
                self.run_until(units, work, || false).0
            }
            Dealing::Ranges => self.weighted_items(units, weight, work),
        }
    }

    /// Like [`Pool::run`], until `pause` returns true, which each worker asks after each unit.
    /// Returns what was accumulated until then, and the number of units done, which are the first
    /// ones. At least one unit is done, if there is one. `work` can ask for its worker's next unit;
    /// that unit is then done before the pause.
    ///
    /// For long work in several legs. The caller announces the number of units ([`Pool::expect`])
    /// once.
    ///
    /// # Panics
    /// As [`Pool::run`].
    pub fn run_until<U, A, F>(
        &self,
        units: &[U],
        work: F,
        pause: impl Fn() -> bool + Sync,
    ) -> (A, usize)
    where
        U: Sync,
        A: Accumulator,
        F: Fn(&mut A, &mut WorkItem<'_, '_, U>) + Sync,
    {
        let workers = self.threads.min(units.len());
        let phase = self.phase();
        let work = |all: &mut A, item: &mut WorkItem<'_, '_, U>| {
            work(all, item);
            if let Some(phase) = phase {
                phase.advance(1);
            }
        };
        let next = OwnLine(AtomicUsize::new(0));
        // Units that were handed out are done, because a worker pauses only between units.
        let paused = AtomicBool::new(false);
        // Relaxed: the counter hands out indexes and orders nothing else. It cannot wrap, because a
        // worker passes the last unit only a few times.
        let take = || {
            let more = !paused.load(Ordering::Relaxed);
            more.then(|| units.get(next.0.fetch_add(1, Ordering::Relaxed))).flatten()
        };
        if workers <= 1 {
            let mut all = A::default();
            process_items(take, |item| {
                work(&mut all, item);
                if pause() {
                    paused.store(true, Ordering::Relaxed);
                }
            });
            return (all, next.0.into_inner().min(units.len()));
        }
        let gate = self.gate();
        let share = |me, more: &dyn Fn()| {
            let _open = gate.opened_by(me);
            let stop = StopOnPanic { next: &next.0, end: units.len() };
            let mut own = A::default();
            gate.pass(me, more);
            process_items(take, |item| {
                work(&mut own, item);
                if pause() {
                    paused.store(true, Ordering::Relaxed);
                }
                gate.pass(me, more);
            });
            std::mem::forget(stop);
            own
        };
        let all = work_together(workers, self.cores, |more| share(0, more), |me| share(me, &|| ()));
        (all, next.0.into_inner().min(units.len()))
    }
}

/// Starts workers 1 to `workers - 1`, each on a core of its own if there are enough, continues as
/// worker 0, and merges the accumulators. With a budget of cores, starts only as many as it allows;
/// worker 0 starts the rest with the function that is passed to `first`, once the budget allows it. Where the system starts no more
/// threads, those that run do all of the work.
///
/// # Panics
/// If a worker does.
pub(crate) fn work_together<A: Accumulator>(
    workers: usize,
    cores: Option<&CoreShare<'_>>,
    first: impl FnOnce(&dyn Fn()) -> A,
    other: impl Fn(usize) -> A + Sync,
) -> A {
    let placement = Placement::default();
    placement.take_core();
    thread::scope(|scope| {
        let (other, placement) = (&other, &placement);
        let start = |me| {
            let worker = floe_sync::spawn_scoped(scope, move || {
                if let Some(cores) = cores {
                    cores.settle(me);
                }
                placement.take_core();
                one_worker(|| other(me))
            });
            // If the new worker is queued on this core, it runs now and moves to another one.
            thread::yield_now();
            worker
        };
        let others = RefCell::new(Vec::new());
        let refused = Cell::new(false);
        let more = || {
            let may_be_busy = cores.map_or(workers, |cores| cores.budget().min(workers));
            let mut others = others.borrow_mut();
            while others.len() + 1 < may_be_busy && !refused.get() {
                match start(others.len() + 1) {
                    Ok(worker) => others.push(worker),
                    // The system has no more threads for us: those that there are do it all.
                    Err(_) => refused.set(true),
                }
            }
        };
        more();
        let mut all = one_worker(|| first(&more));
        for other in others.take() {
            match other.join() {
                Ok(own) => merge_one(&mut all, own),
                // A panicking worker is a bug: continue the panic in the caller.
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    })
}

/// The body of a worker: a separate function, so that a profiler can tell parallel from serial work
/// (`cargo xtask scaling`).
#[inline(never)]
fn one_worker<A>(work: impl FnOnce() -> A) -> A {
    work()
}

/// Separate for the same reason.
#[inline(never)]
fn merge_one<A: Accumulator>(all: &mut A, own: A) {
    all.merge(own);
}

/// Stops handing out units when a worker panics: dropped only while unwinding.
struct StopOnPanic<'a> {
    next: &'a AtomicUsize,
    end: usize,
}

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        self.next.fetch_max(self.end, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The units done, in the order of one worker; merging appends.
    #[derive(Default)]
    struct Done(Vec<Vec<usize>>);

    impl Accumulator for Done {
        fn merge(&mut self, other: Self) {
            self.0.extend(other.0);
        }
    }

    impl Done {
        fn note(&mut self, unit: usize) {
            match self.0.first_mut() {
                Some(own) => own.push(unit),
                None => self.0.push(vec![unit]),
            }
        }
    }

    fn run_and_judge(threads: usize, units: usize) {
        let list: Vec<usize> = (0..units).collect();
        let Done(shares) = Pool::new(threads).run(&list, |done: &mut Done, &unit| done.note(unit));
        assert!(shares.len() <= threads.max(1));
        for share in &shares {
            assert!(share.is_sorted_by(|a, b| a < b), "out of order within a worker: {share:?}");
        }
        let mut all = shares.concat();
        all.sort_unstable();
        assert_eq!(all, list, "{threads} threads");
    }

    #[cfg(not(feature = "shuttle"))]
    mod real_threads {
        use super::*;

        #[test]
        fn units_count_in_the_phase_that_is_running() {
            let progress = Progress::new(&["one", "two"]);
            for threads in [1, 3] {
                let pool = Pool::new(threads).watched(Some(&progress));
                pool.run(&[(); 5], |(): &mut (), ()| {});
                progress.begin("two");
                pool.run(&[(); 7], |(): &mut (), ()| {});
                progress.end();
            }
            let [one, two] = progress.snapshot().phases[..] else { panic!("two phases") };
            assert_eq!((one.done, one.total), (0, 0), "no phase was running");
            assert_eq!((two.done, two.total), (14, 14));
        }

        use std::panic::{AssertUnwindSafe, catch_unwind};

        #[test]
        fn every_unit_is_done_once_and_in_order() {
            for threads in [0, 1, 2, 3, 16, 200] {
                for units in [0, 1, 2, 1000] {
                    run_and_judge(threads, units);
                }
            }
        }

        #[test]
        fn legs_do_every_unit_once() {
            let list: Vec<usize> = (0..500).collect();
            for threads in [1, 2, 5] {
                let (mut begin, mut legs, mut done) = (0, 0, Vec::new());
                while begin < list.len() {
                    let count = AtomicUsize::new(0);
                    let pause = || count.fetch_add(1, Ordering::Relaxed) >= 20;
                    let (share, units) = Pool::new(threads).run_until(
                        &list[begin..],
                        |done: &mut Done, item| {
                            done.note(*item.unit());
                            if item.unit() % 3 == 0 {
                                item.next_unit();
                            }
                        },
                        pause,
                    );
                    done.extend(share.0.concat());
                    begin += units;
                    legs += 1;
                    done.sort_unstable();
                    assert_eq!(done, list[..begin], "{threads} threads: not the first units");
                    assert!(units > 0);
                }
                assert!(legs > 10, "{legs} legs");
                let always = Pool::new(threads).run_until(&list, |(): &mut (), _| {}, || true).1;
                assert!((1..=threads).contains(&always), "{always}");
                let none = Pool::new(threads).run_until(&list[..0], |(): &mut (), _| {}, || true);
                assert_eq!(none.1, 0);
            }
        }

        #[test]
        fn a_panic_reaches_the_caller_and_ends_the_run() {
            for threads in [1, 4] {
                let list: Vec<u32> = (0..100_000).collect();
                let begun = AtomicUsize::new(0);
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    Pool::new(threads).run(&list, |(): &mut (), &unit| {
                        begun.fetch_add(1, Ordering::Relaxed);
                        thread::sleep(std::time::Duration::from_micros(50));
                        assert!(unit != 7, "unit seven");
                    });
                }));
                let panic = outcome.expect_err("the panic was lost");
                assert!(panic.downcast_ref::<&str>().is_some_and(|text| *text == "unit seven"));
                assert!(begun.into_inner() < 10_000, "units were handed out after the panic");
            }
        }
    }

    #[cfg(feature = "shuttle")]
    mod interleavings {
        use floe_sync::shuttle;

        use super::*;

        #[test]
        fn every_unit_is_done_once_and_in_order() {
            shuttle::check_random(|| run_and_judge(3, 5), 2000);
        }

        #[test]
        fn two_workers_and_three_units_in_every_interleaving() {
            shuttle::check_dfs(|| run_and_judge(2, 3), None);
        }

        #[test]
        fn a_pause_leaves_the_first_units_done() {
            shuttle::check_random(
                || {
                    let list = [0, 1, 2, 3, 4];
                    let pause = AtomicBool::new(false);
                    let work = |done: &mut Done, item: &mut WorkItem<'_, '_, usize>| {
                        let unit = *item.unit();
                        // The next unit is then done before the pause.
                        item.next_unit();
                        done.note(unit);
                        if unit == 1 {
                            pause.store(true, Ordering::Relaxed);
                        }
                    };
                    let asked = || pause.load(Ordering::Relaxed);
                    let (Done(shares), units) = Pool::new(3).run_until(&list, work, asked);
                    let mut done = shares.concat();
                    done.sort_unstable();
                    assert_eq!(done, list[..units]);
                    assert!(units >= 2, "the worker that paused had asked for unit 1");
                },
                2000,
            );
        }

        #[test]
        #[should_panic(expected = "unit one")]
        fn a_panic_reaches_the_caller() {
            shuttle::check_random(
                || {
                    Pool::new(3).run(&[0, 1, 2], |(): &mut (), &unit| {
                        assert!(unit != 1, "unit one");
                    });
                },
                100,
            );
        }
    }
}
