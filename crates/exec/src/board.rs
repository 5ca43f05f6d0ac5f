//! What the workers of a pipeline share: queues and who works on what, behind one lock.
//!
//! The lock is taken once a batch, never once an element: in one visit a worker reports the batch it
//! has done, hands on what it found, and takes the next batch. [`Counts`] shows it for a run.

use std::any::Any;
use std::time::Duration;

use crate::queue::AnyQueue;
use crate::scheduler::{Meter, Policy, Scheduler, StageLoad};
use floe_sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// One list of entries for each stage, private to a worker.
pub(crate) type Lists = Vec<Box<dyn Any>>;

/// A batch that was done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) stage: usize,
    pub(crate) elements: u64,
    pub(crate) time: Duration,
}

/// What a worker does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The batch in the list of that stage, of so many elements.
    Batch { stage: usize, elements: u64 },
    /// What it found for that stage and has not been able to hand on: the queue is full.
    Spill { stage: usize },
    /// Nothing: all is done, or the run was stopped.
    End,
}

/// What a run took, for tests, logs and benchmarks. All but `stages[..].name` depends on luck.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Times that a worker took the lock: once a batch, and once for each time it slept.
    pub locks: u64,
    /// Batches that were taken from queues.
    pub batches: u64,
    /// Batches that a worker did at once, as the queue for them was full.
    pub spilled: u64,
    /// Times that a worker slept, as there was nothing that it should do.
    pub sleeps: u64,
    /// Times that a worker went to another stage than the one it was in.
    pub migrations: u64,
    /// Fewest and most workers that were allowed to work at a time.
    pub budgets: (usize, usize),
    /// The stages, in the order of the pipeline.
    pub stages: Vec<StageCounts>,
}

/// What a stage took.
#[derive(Clone, Debug, Default)]
pub struct StageCounts {
    /// Its name.
    pub name: &'static str,
    /// Elements done, and the time for them.
    pub meter: Meter,
    /// Most entries that waited at a time.
    pub most_entries: usize,
}

pub(crate) struct Board {
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

impl Board {
    /// `weights`: of an element of each stage, before any was measured. `budget`: how many of `workers`
    /// may be busy until [`Board::set_budget`] says otherwise.
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

    /// A visit to the board by worker `me`: reports `done`, hands on what is in `found`, and waits for
    /// what to do next. A batch is put in the list of its stage in `batches`.
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
            // Not any worker while there are few cores, but the first ones: those past the minimum give way to
            // other programs, and what they had taken would wait with them.
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

    /// Ends the run: no further batch is begun.
    pub(crate) fn stop(&self) {
        self.lock().stopped = true;
        self.wake.notify_all();
    }

    /// What the run took, and whether it was stopped.
    pub(crate) fn into_counts(self, names: impl Iterator<Item = &'static str>) -> (Counts, bool) {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let stages = names.zip(&state.loads).zip(&state.queues).map(|((name, load), queue)| {
            StageCounts { name, meter: load.meter, most_entries: queue.most_seen() }
        });
        (Counts { stages: stages.collect(), ..state.counts }, state.stopped)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Handlers run outside, so a panic leaves nothing half done here.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.counts.locks += 1;
        state
    }

    /// Wakes one who sleeps if there is something for it to do; it will wake the next one. Where not
    /// everybody may work, all are woken, since the one might be one who may not.
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
    /// Hands on what a worker found. The last stage for which something is left, as its queue is
    /// full: the last, so that what is done at once finds little that is new.
    fn deliver(&mut self, found: &mut Lists) -> Option<usize> {
        let mut full = None;
        for (stage, (queue, list)) in self.queues.iter_mut().zip(found).enumerate() {
            let left = queue.offer(&mut **list);
            full = if left > 0 { Some(stage) } else { full };
        }
        full
    }

    /// Brings `loads` up to date and asks the scheduler.
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
