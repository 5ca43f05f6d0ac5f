//! The state that the workers of a pipeline share: queues and the assignment of workers to stages,
//! behind one lock.
//!
//! A worker takes the lock once per batch, never once per element: in one visit it reports the
//! completed batch, delivers the entries it produced, and takes the next batch. [`Counts`] has the
//! number of visits.

use std::any::Any;
use std::time::Duration;

use crate::queue::AnyQueue;
use crate::scheduler::{Meter, Policy, Scheduler, StageLoad};
use floe_sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// One list of entries for each stage, private to a worker.
pub(crate) type Lists = Vec<Box<dyn Any>>;

/// A completed batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) stage: usize,
    pub(crate) elements: u64,
    pub(crate) time: Duration,
}

/// The next action of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The batch in the list of that stage, with its number of elements.
    Batch { stage: usize, elements: u64 },
    /// Do a batch of that stage from the worker's own list, because the stage's queue is full.
    Spill { stage: usize },
    /// Stop: everything is done, or the run was stopped.
    End,
}

/// Statistics of a run, for tests, logs and benchmarks. They vary from run to run, except
/// `stages[..].name`.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Times that a worker took the lock: once a batch, and once for each time it slept.
    pub locks: u64,
    /// Batches that were taken from queues.
    pub batches: u64,
    /// Batches that a worker did at once because their queue was full.
    pub spilled: u64,
    /// Times that a worker slept because it had nothing to do.
    pub sleeps: u64,
    /// Times that a worker changed to another stage.
    pub migrations: u64,
    /// Fewest and most workers that were allowed to be busy.
    pub budgets: (usize, usize),
    /// The stages, in the order of the pipeline.
    pub stages: Vec<StageCounts>,
}

/// Statistics of a stage.
#[derive(Clone, Debug, Default)]
pub struct StageCounts {
    /// Its name.
    pub name: &'static str,
    /// Elements done, and the time for them.
    pub meter: Meter,
    /// The largest number of entries in the queue.
    pub most_entries: usize,
}

pub(crate) struct Dispatcher {
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    queues: Vec<Box<dyn AnyQueue>>,
    loads: Vec<StageLoad>,
    scheduler: Scheduler,
    /// The stage that each worker is busy in.
    busy: Vec<Option<usize>>,
    /// The stage that each worker was in last.
    last: Vec<Option<usize>>,
    /// Workers that sleep: the idle pool.
    asleep: usize,
    /// Workers that may be busy.
    budget: usize,
    stopped: bool,
    counts: Counts,
}

impl Dispatcher {
    /// `weights`: the expected time per element of each stage, until it is measured. `budget`: how
    /// many of `workers` may be busy, until [`Dispatcher::set_budget`] changes it.
    pub(crate) fn new(
        queues: Vec<Box<dyn AnyQueue>>,
        weights: Vec<Option<Duration>>,
        policy: Policy,
        (workers, budget): (usize, usize),
    ) -> Self {
        let state = State {
            loads: weights
                .into_iter()
                .map(|expected| StageLoad { expected, ..StageLoad::default() })
                .collect(),
            queues,
            scheduler: Scheduler::new(policy),
            busy: vec![None; workers],
            last: vec![None; workers],
            asleep: 0,
            budget,
            stopped: false,
            counts: Counts { budgets: (budget, budget), ..Counts::default() },
        };
        Self { state: Mutex::new(state), wake: Condvar::new() }
    }

    /// A visit by worker `me`: reports `done`, delivers `found`, and waits for the next action. A
    /// new batch is put into the list of its stage in `batches`.
    pub(crate) fn visit(
        &self,
        me: usize,
        done: Option<Done>,
        found: &mut Lists,
        batches: &mut Lists,
    ) -> Next {
        let mut state = self.lock();
        if let Some(done) = done {
            state.loads[done.stage].meter.add(done.elements, done.time);
        }
        if state.stopped {
            return Next::End;
        }
        if let Some(stage) = state.deliver(found) {
            state.counts.spilled += 1;
            self.wake_another(&mut state);
            return Next::Spill { stage };
        }
        state.leave(me);
        loop {
            if state.stopped || state.all_done() {
                self.wake.notify_all();
                return Next::End;
            }
            // While fewer cores than workers are available, the first workers stay busy: those past
            // the minimum run in the idle class, so entries that they took would wait with them.
            if me < state.budget {
                let was_in = state.last[me];
                if let Some(stage) = state.pick(was_in) {
                    let elements = state.take(me, stage, batches);
                    self.wake_another(&mut state);
                    return Next::Batch { stage, elements };
                }
            } else {
                self.wake_another(&mut state);
            }
            state.counts.sleeps += 1;
            state.asleep += 1;
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.asleep -= 1;
            state.counts.locks += 1;
        }
    }

    /// Sets how many workers may be busy.
    pub(crate) fn set_budget(&self, budget: usize) {
        let mut state = self.lock();
        state.budget = budget.clamp(1, state.busy.len());
        let (fewest, most) = state.counts.budgets;
        state.counts.budgets = (fewest.min(state.budget), most.max(state.budget));
    }

    /// Stops the run: no worker starts another batch.
    pub(crate) fn stop(&self) {
        self.lock().stopped = true;
        self.wake.notify_all();
    }

    /// The statistics of the run, and whether it was stopped.
    pub(crate) fn into_counts(self, names: impl Iterator<Item = &'static str>) -> (Counts, bool) {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let stages = names.zip(&state.loads).zip(&state.queues).map(|((name, load), queue)| {
            StageCounts { name, meter: load.meter, most_entries: queue.most_seen() }
        });
        (Counts { stages: stages.collect(), ..state.counts }, state.stopped)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Handlers run without the lock, so a panic leaves no half-done state here.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.counts.locks += 1;
        state
    }

    /// Wakes a sleeping worker if there is work for it; that worker wakes the next one. If the
    /// budget excludes some workers, wakes all, because a single one might be excluded.
    fn wake_another(&self, state: &mut State) {
        if state.asleep > 0 && state.pick(None).is_some() {
            if state.budget < state.busy.len() {
                self.wake.notify_all();
            } else {
                self.wake.notify_one();
            }
        }
    }
}

impl State {
    /// Moves the entries that a worker produced into the queues. Returns the last stage whose queue
    /// is full with entries left over; the last, because handling its entries produces the fewest
    /// new ones.
    fn deliver(&mut self, found: &mut Lists) -> Option<usize> {
        let mut full = None;
        for (stage, (queue, list)) in self.queues.iter_mut().zip(found).enumerate() {
            let left = queue.offer(&mut **list);
            full = if left > 0 { Some(stage) } else { full };
        }
        full
    }

    /// Updates `loads` and asks the scheduler.
    fn pick(&mut self, was_in: Option<usize>) -> Option<usize> {
        for (load, queue) in self.loads.iter_mut().zip(&self.queues) {
            load.entries = queue.entries() as u64;
            load.elements = queue.elements();
        }
        self.scheduler.pick(&self.loads, self.budget, was_in)
    }

    fn take(&mut self, me: usize, stage: usize, batches: &mut Lists) -> u64 {
        let elements = self.queues[stage].take(&mut *batches[stage]);
        self.counts.batches += 1;
        self.counts.migrations += u64::from(self.last[me].is_some_and(|last| last != stage));
        self.busy[me] = Some(stage);
        self.last[me] = Some(stage);
        self.loads[stage].workers += 1;
        elements
    }

    fn leave(&mut self, me: usize) {
        if let Some(stage) = self.busy[me].take() {
            self.loads[stage].workers -= 1;
        }
    }

    fn all_done(&self) -> bool {
        self.busy.iter().all(Option::is_none)
            && self.queues.iter().all(|queue| queue.entries() == 0)
    }
}
