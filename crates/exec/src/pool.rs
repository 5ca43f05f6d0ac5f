//! Workers that take units of work from one queue and keep what they find to themselves.

use std::cell::RefCell;

use crate::accumulate::Accumulator;
use crate::core_share::{CoreShare, Gate};
use crate::placement::Placement;
use crate::progress::{OwnLine, Phase, Progress};
use crate::turn::{Turn, take_turns};
use floe_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use floe_sync::thread;

/// How the units of a pass are dealt to its workers. The results are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dealing {
    /// One at a time and in order, as with [`Pool::run`]: all workers together read a disk in the order of
    /// the units.
    #[default]
    InOrder,
    /// A range of about the same weight for each worker, as with [`Pool::run_weighted`] (lwFSCK's split by
    /// inodes in use): each reads a stretch of the disk of its own.
    Ranges,
}

/// How many workers serve a pass.
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

    /// The same workers; each unit counts in the phase that is running when [`Pool::run`] begins.
    pub const fn watched(self, progress: Option<&'p Progress>) -> Self {
        Self { progress, ..self }
    }

    /// The same workers, dealt units that have a weight in this way ([`Pool::run_dealt`]).
    pub const fn dealing(self, dealing: Dealing) -> Self {
        Self { dealing, ..self }
    }

    /// How units that have a weight are dealt.
    pub const fn dealt(&self) -> Dealing {
        self.dealing
    }

    /// The same workers; no more of them are busy than the budget of cores allows.
    pub const fn sharing(self, cores: Option<&'p CoreShare<'p>>) -> Self {
        Self { cores, ..self }
    }

    /// The budget of cores.
    pub const fn cores(&self) -> Option<&'p CoreShare<'p>> {
        self.cores
    }

    /// What workers go through before each unit.
    pub(crate) fn gate(&self) -> Gate<'p> {
        Gate::new(self.cores)
    }

    /// The phase in which units count.
    pub fn phase(&self) -> Option<&'p Phase> {
        self.progress.and_then(Progress::running)
    }

    /// Says in the progress that something was found.
    pub fn note_found(&self) {
        if let Some(progress) = self.progress {
            progress.note_found();
        }
    }

    /// Says in the phase that is running that so many units are to come.
    pub fn expect(&self, units: usize) {
        if let Some(phase) = self.phase() {
            phase.expect(units as u64);
        }
    }

    /// Number of workers.
    pub const fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `work` on each of `units`, in order of their index within a worker, and merges what
    /// the workers accumulated. With one worker, or one unit, no thread is started.
    ///
    /// Units are handed out one at a time and in order, so a slow unit delays only its own worker,
    /// and all workers together read a disk in the order of the units. Put large units first, or
    /// make units small, if their sizes differ much.
    ///
    /// # Panics
    /// If `work` does: no further unit is begun, and the panic goes on in the caller.
    pub fn run<U, A, F>(&self, units: &[U], work: F) -> A
    where
        U: Sync,
        A: Accumulator,
        F: Fn(&mut A, &U) + Sync,
    {
        self.expect(units.len());
        self.run_until(units, |all: &mut A, turn| work(all, turn.unit()), || false).0
    }

    /// [`Pool::run`] or [`Pool::run_weighted`], as the pool was told; `work` can learn which unit is its worker's next.
    ///
    /// # Panics
    /// As these do.
    pub fn run_dealt<U, A, F>(&self, units: &[U], weight: impl Fn(&U) -> u64 + Sync, work: F) -> A
    where
        U: Sync,
        A: Accumulator,
        F: Fn(&mut A, &mut Turn<'_, '_, U>) + Sync,
    {
        match self.dealing {
            Dealing::InOrder => {
                self.expect(units.len());
                self.run_until(units, work, || false).0
            }
            Dealing::Ranges => self.weighted_turns(units, weight, work),
        }
    }

    /// As [`Pool::run`], until `pause` says so, which each worker asks after each unit: what was
    /// accumulated up to then, and the number of units that were done, which are the first ones; all
    /// if nobody asked for a pause. One unit at least is done, if there is one. `work` can learn which unit is its
    /// worker's next; one that it has learnt of is done before the pause.
    ///
    /// For long work in several legs: the caller says how many units there are ([`Pool::expect`]),
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
        F: Fn(&mut A, &mut Turn<'_, '_, U>) + Sync,
    {
        let workers = self.threads.min(units.len());
        let phase = self.phase();
        let work = |all: &mut A, turn: &mut Turn<'_, '_, U>| {
            work(all, turn);
            if let Some(phase) = phase {
                phase.advance(1);
            }
        };
        let next = OwnLine(AtomicUsize::new(0));
        // What is handed out is done, too: a worker pauses between units only.
        let paused = AtomicBool::new(false);
        // Relaxed: the counter hands out indexes and orders nothing else. It cannot wrap: a worker goes past the last
        // unit a few times at most.
        let take = || {
            let more = !paused.load(Ordering::Relaxed);
            more.then(|| units.get(next.0.fetch_add(1, Ordering::Relaxed))).flatten()
        };
        if workers <= 1 {
            let mut all = A::default();
            take_turns(take, |turn| {
                work(&mut all, turn);
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
            take_turns(take, |turn| {
                work(&mut own, turn);
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

/// Starts workers 1 to `workers - 1`, each on a core of its own if there are enough, goes on as worker 0,
/// and merges what they all have. With a budget of cores, no more are started than it allows, and the rest
/// when worker 0 calls the function that `first` is given, once the budget allows it.
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
            let worker = scope.spawn(move || {
                if let Some(cores) = cores {
                    cores.settle(me);
                }
                placement.take_core();
                one_worker(|| other(me))
            });
            // If it waits for this core, it runs now, and goes to another one.
            thread::yield_now();
            worker
        };
        let others = RefCell::new(Vec::new());
        let more = || {
            let may_be_busy = cores.map_or(workers, |cores| cores.budget().min(workers));
            let mut others = others.borrow_mut();
            while others.len() + 1 < may_be_busy {
                let me = others.len() + 1;
                others.push(start(me));
            }
        };
        more();
        let mut all = one_worker(|| first(&more));
        for other in others.take() {
            match other.join() {
                Ok(own) => merge_one(&mut all, own),
                // A worker's panic is a bug of ours: let it end the run as it would have.
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    })
}

/// What one worker does: a function of its own, so that a profiler tells it from what only one does
/// (`cargo xtask scaling`).
#[inline(never)]
fn one_worker<A>(work: impl FnOnce() -> A) -> A {
    work()
}

/// Likewise for merging.
#[inline(never)]
fn merge_one<A: Accumulator>(all: &mut A, own: A) {
    all.merge(own);
}

/// Hands out no further unit once a worker has panicked: dropped only while unwinding.
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

    /// What was done, in the order in which one worker did it; shares one after the other.
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
            assert!(share.is_sorted_by(|a, b| a < b), "out of order in a worker: {share:?}");
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
            assert_eq!((one.done, one.total), (0, 0), "nothing was running");
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
                        |done: &mut Done, turn| {
                            done.note(*turn.unit());
                            if turn.unit() % 3 == 0 {
                                turn.next_unit();
                            }
                        },
                        pause,
                    );
                    done.extend(share.0.concat());
                    begin += units;
                    legs += 1;
                    done.sort_unstable();
                    assert_eq!(done, list[..begin], "{threads} threads: not the first ones");
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
                    let work = |done: &mut Done, turn: &mut Turn<'_, '_, usize>| {
                        let unit = *turn.unit();
                        // The next one is done before the pause, then.
                        turn.next_unit();
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
                    assert!(units >= 2, "whoever paused had unit 1");
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

        #[test]
        fn reservations_never_exceed_the_budget() {
            shuttle::check_random(
                || {
                    let budget = crate::MemoryBudget::new(100);
                    let list: Vec<u64> = vec![60, 50, 40, 30];
                    Pool::new(3).run(&list, |(): &mut (), &bytes| {
                        if let Ok(held) = budget.reserve("a test", bytes) {
                            assert!(budget.used_bytes() <= 100);
                            thread::yield_now();
                            assert!(budget.used_bytes() >= held.bytes());
                        }
                    });
                    assert_eq!(budget.used_bytes(), 0);
                },
                2000,
            );
        }
    }
}
