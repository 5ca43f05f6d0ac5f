//! A pipeline of stages with a queue each: workers take batches, process them, and deliver the
//! entries they produce.
//!
//! Stages overlap unless the policy forbids it, and every policy gives the same results: workers
//! share only the queues, and accumulators do not depend on order or division of the work.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use crate::accumulate::Accumulator;
use crate::core_share::CoreShare;
use crate::dispatcher::{Counts, Dispatcher, Done, Lists, Next};
use crate::pool::work_together;
use crate::queue::{AnyQueue, Entry, Limits, Queue, list, take_from_end};
use crate::scheduler::Policy;

/// A stage of a [`Pipeline`] whose queue holds entries of type `T`.
pub struct StageId<T> {
    /// The number of stages declared before.
    declared: usize,
    of: PhantomData<fn(T)>,
}

impl<T> Clone for StageId<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for StageId<T> {}

impl<T> fmt::Debug for StageId<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StageId({})", self.declared)
    }
}

/// Receives the entries that a handler produces. They are delivered when the batch is done.
pub struct Found<'a, T> {
    lists: &'a mut Lists,
    own: usize,
    of: PhantomData<fn(T)>,
}

impl<T: Entry> Found<'_, T> {
    /// Adds work for the handler's own stage.
    pub fn again(&mut self, entry: T) {
        list::<T>(&mut *self.lists[self.own]).push(entry);
    }

    /// Adds work for a later stage.
    ///
    /// # Panics
    /// If the stage belongs to another pipeline.
    pub fn push<U: Entry>(&mut self, stage: StageId<U>, entry: U) {
        let at = self.lists.len().checked_sub(stage.declared + 1);
        let at = at.expect("the stage is one of this pipeline");
        list::<U>(&mut *self.lists[at]).push(entry);
    }
}

/// Stages of work. `A` is the accumulator of a worker, for all stages.
///
/// Declare a stage *before* those that feed it, so that work can only be passed on, never back: a
/// run ends if each stage adds only finitely much to itself.
///
/// Memory: in each queue at most `most_entries` (or the initial entries), and per worker the
/// entries that one batch produces. If a queue is full, the worker processes the entries it
/// produced itself, the latest first.
///
/// ```
/// use floe_exec::{Accumulator, Entry, Found, Limits, Pipeline, Policy, Schedule};
///
/// struct Chunk(u64);
/// struct DirBlock(u64);
/// impl Entry for Chunk {
///     fn address(&self) -> u64 { self.0 }
///     fn elements(&self) -> u64 { 2048 } // inodes in use
/// }
/// impl Entry for DirBlock {
///     fn address(&self) -> u64 { self.0 }
/// }
///
/// #[derive(Default)]
/// struct Seen { chunks: u64, blocks: u64 }
/// impl Accumulator for Seen {
///     fn merge(&mut self, other: Self) {
///         self.chunks += other.chunks;
///         self.blocks += other.blocks;
///     }
/// }
///
/// let limits = Limits { batch_elements: 256, most_entries: 16_384, weight: None };
/// let mut pipeline = Pipeline::new();
/// // The last stage first, because the stage that feeds it needs its id.
/// let blocks = pipeline.stage("directories", limits, vec![],
///     |seen: &mut Seen, batch: &mut Vec<DirBlock>, _| seen.blocks += batch.len() as u64);
/// pipeline.stage("inodes", limits, (0..10).map(Chunk).collect(),
///     |seen: &mut Seen, batch: &mut Vec<Chunk>, found: &mut Found<'_, Chunk>| {
///         for chunk in batch.drain(..) {
///             seen.chunks += 1;
///             found.push(blocks, DirBlock(chunk.0 * 100));
///         }
///     });
/// let outcome = pipeline.run(&Schedule::new(2, Policy::Dynamic));
/// assert_eq!((outcome.all.chunks, outcome.all.blocks), (10, 10));
/// ```
pub struct Pipeline<'a, A> {
    /// In the order of declaration: the last stage first.
    stages: Vec<Box<dyn AnyStage<A> + 'a>>,
}

/// The parameters of a run.
#[derive(Clone, Copy)]
pub struct Schedule<'a> {
    /// Workers, at most; at least one. The caller is one of them.
    pub workers: usize,
    /// The scheduling policy.
    pub policy: Policy,
    /// Time that the caller works alone; if the run ends earlier, no thread is started.
    pub alone_for: Duration,
    /// The budget of cores, which limits the busy workers, and which the run adjusts.
    pub cores: Option<&'a CoreShare<'a>>,
    /// Called before each batch; `true` ends the run.
    pub stop: Option<&'a (dyn Fn() -> bool + Sync)>,
    /// A clock (time since any fixed moment) instead of the system's: for tests.
    pub clock: Option<&'a (dyn Fn() -> Duration + Sync)>,
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome<A> {
    /// The merged accumulators.
    pub all: A,
    /// Whether the run was stopped before all was done.
    pub stopped: bool,
    /// Its statistics.
    pub counts: Counts,
}

impl Schedule<'_> {
    /// All `workers` all the time, after one millisecond alone, without a stop.
    pub fn new(workers: usize, policy: Policy) -> Self {
        Self {
            workers,
            policy,
            alone_for: Duration::from_millis(1),
            cores: None,
            stop: None,
            clock: None,
        }
    }
}

impl<A: Accumulator> Default for Pipeline<'_, A> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a, A: Accumulator> Pipeline<'a, A> {
    /// A pipeline without stages.
    pub fn new() -> Self {
        Self { stages: Vec::new() }
    }

    /// Declares a stage that precedes all those declared so far, with initial `entries`.
    ///
    /// `handler` is given a batch, sorted by address, and may take entries out of it; the rest is
    /// dropped.
    pub fn stage<T, F>(
        &mut self,
        name: &'static str,
        limits: Limits,
        entries: Vec<T>,
        handler: F,
    ) -> StageId<T>
    where
        T: Entry,
        F: Fn(&mut A, &mut Vec<T>, &mut Found<'_, T>) + Sync + 'a,
    {
        let declared = self.stages.len();
        self.stages.push(Box::new(Stage { name, limits, entries, handler }));
        StageId { declared, of: PhantomData }
    }

    /// Runs the pipeline to the end. With one worker, no thread is started.
    ///
    /// # Panics
    /// If a handler panics: no worker starts another batch, and the panic continues in the caller.
    pub fn run(mut self, schedule: &Schedule<'_>) -> Outcome<A> {
        self.stages.reverse();
        let queues = self.stages.iter_mut().map(|stage| stage.queue()).collect();
        let workers = schedule.workers.max(1);
        let budget = schedule.cores.map_or(workers, |cores| cores.budget().min(workers));
        let priors = self.stages.iter().map(|stage| stage.weight()).collect();
        let dispatcher = Dispatcher::new(queues, priors, schedule.policy, (workers, budget));
        let begin = Instant::now();
        let run = Run { stages: &self.stages, dispatcher: &dispatcher, schedule, begin };
        let mut first = Worker::new(&run, 0);
        let alone_until = (workers > 1).then_some(schedule.alone_for);
        let all = if run.work(&mut first, alone_until, &|| ()) {
            first.share
        } else {
            run.work_together(first, workers)
        };
        let (counts, stopped) =
            dispatcher.into_counts(self.stages.iter().map(|stage| stage.name()));
        Outcome { all, stopped, counts }
    }
}

/// A stage with a type of entries that the caller does not know. Each `dyn Any` is a `Vec` of that
/// type.
trait AnyStage<A>: Sync {
    fn name(&self) -> &'static str;
    /// The expected cost of an element, before any was measured.
    fn weight(&self) -> Option<Duration>;
    /// The queue with the stage's initial entries; call it once.
    fn queue(&mut self) -> Box<dyn AnyQueue>;
    /// An empty list of entries.
    fn list(&self) -> Box<dyn Any>;
    /// Processes a batch, and empties its list.
    fn handle(&self, share: &mut A, batch: &mut dyn Any, lists: &mut Lists, own: usize);
    /// Moves a batch from the end of `found` to `batch`, sorted; returns its elements.
    fn spill(&self, found: &mut dyn Any, batch: &mut dyn Any) -> u64;
}

struct Stage<T, F> {
    name: &'static str,
    limits: Limits,
    entries: Vec<T>,
    handler: F,
}

impl<A, T, F> AnyStage<A> for Stage<T, F>
where
    T: Entry,
    F: Fn(&mut A, &mut Vec<T>, &mut Found<'_, T>) + Sync,
{
    fn name(&self) -> &'static str {
        self.name
    }

    fn weight(&self) -> Option<Duration> {
        self.limits.weight
    }

    fn queue(&mut self) -> Box<dyn AnyQueue> {
        Box::new(Queue::new(std::mem::take(&mut self.entries), self.limits))
    }

    fn list(&self) -> Box<dyn Any> {
        Box::new(Vec::<T>::new())
    }

    fn handle(&self, share: &mut A, batch: &mut dyn Any, lists: &mut Lists, own: usize) {
        let batch = list::<T>(batch);
        (self.handler)(share, batch, &mut Found { lists, own, of: PhantomData });
        batch.clear();
    }

    fn spill(&self, found: &mut dyn Any, batch: &mut dyn Any) -> u64 {
        let batch = list::<T>(batch);
        let elements = take_from_end(list(found), batch, self.limits.batch_elements);
        batch.sort_unstable_by_key(Entry::address);
        elements
    }
}

/// The state that the workers of a run share.
struct Run<'r, 'a, A> {
    stages: &'r [Box<dyn AnyStage<A> + 'a>],
    dispatcher: &'r Dispatcher,
    schedule: &'r Schedule<'r>,
    begin: Instant,
}

/// The private state of a worker.
struct Worker<A> {
    me: usize,
    share: A,
    found: Lists,
    batches: Lists,
    done: Option<Done>,
}

impl<A: Accumulator> Worker<A> {
    fn new(run: &Run<'_, '_, A>, me: usize) -> Self {
        let lists = || run.stages.iter().map(|stage| stage.list()).collect();
        Self { me, share: A::default(), found: lists(), batches: lists(), done: None }
    }
}

impl<A: Accumulator> Run<'_, '_, A> {
    fn now(&self) -> Duration {
        self.schedule.clock.map_or_else(|| self.begin.elapsed(), |clock| clock())
    }

    /// Starts the other workers, continues as the first, and merges the accumulators.
    fn work_together(&self, mut first: Worker<A>, workers: usize) -> A {
        let own = |more: &dyn Fn()| {
            self.work(&mut first, None, more);
            first.share
        };
        work_together(workers, self.schedule.cores, own, |me| {
            let mut worker = Worker::new(self, me);
            self.work(&mut worker, None, &|| ());
            worker.share
        })
    }

    /// Works until everything is done, or until `until`; returns whether everything is done. `more`
    /// starts workers for cores that have become free.
    fn work(&self, worker: &mut Worker<A>, until: Option<Duration>, more: &dyn Fn()) -> bool {
        let stop = StopOnPanic(self.dispatcher);
        let ended = loop {
            let now = self.now();
            if self.schedule.stop.is_some_and(|stop| stop()) {
                self.dispatcher.stop();
            }
            if until.is_some_and(|until| now >= until) {
                break false;
            }
            let Worker { me, found, batches, done, .. } = worker;
            if let (0, Some(cores)) = (*me, self.schedule.cores) {
                if cores.look() {
                    self.dispatcher.set_budget(cores.budget());
                }
                more();
            }
            match self.dispatcher.visit(*me, done.take(), found, batches) {
                Next::End => break true,
                Next::Batch { stage, elements } => {
                    self.handle(worker, stage, elements);
                }
                Next::Spill { stage } => {
                    let elements =
                        self.stages[stage].spill(&mut *found[stage], &mut *batches[stage]);
                    self.handle(worker, stage, elements);
                }
            }
        };
        std::mem::forget(stop);
        ended
    }

    fn handle(&self, worker: &mut Worker<A>, stage: usize, elements: u64) {
        let Worker { share, found, batches, done, .. } = worker;
        let begin = self.now();
        self.stages[stage].handle(share, &mut *batches[stage], found, stage);
        *done = Some(Done { stage, elements, time: self.now().saturating_sub(begin) });
    }
}

/// Ends the run when a worker panics: dropped only while unwinding.
struct StopOnPanic<'a>(&'a Dispatcher);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[cfg(test)]
mod tests;
