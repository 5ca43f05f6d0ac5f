//! A pipeline of stages with a queue each: workers take batches, do them, and hand on what they find.
//!
//! Stages overlap unless the policy says otherwise, and every policy gives the same results: workers
//! share nothing but the queues, and what they accumulate does not depend on order or division.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use crate::accumulate::Accumulator;
use crate::board::{Board, Counts, Done, Lists, Next};
use crate::core_share::CoreShare;
use crate::pool::work_together;
use crate::queue::{AnyQueue, Entry, Limits, Queue, list, take_from_end};
use crate::scheduler::Policy;

/// A stage of a [`Pipeline`] whose queue holds entries of type `T`.
pub struct StageId<T> {
    /// How many stages were declared before.
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

/// Where a handler leaves work that it found. It is handed on when the batch is done.
pub struct Found<'a, T> {
    lists: &'a mut Lists,
    own: usize,
    of: PhantomData<fn(T)>,
}

impl<T: Entry> Found<'_, T> {
    /// More work for the handler's own stage.
    pub fn again(&mut self, entry: T) {
        list::<T>(&mut *self.lists[self.own]).push(entry);
    }

    /// Work for a later stage.
    ///
    /// # Panics
    /// If the stage is one of another pipeline.
    pub fn push<U: Entry>(&mut self, stage: StageId<U>, entry: U) {
        let at = self.lists.len().checked_sub(stage.declared + 1);
        let at = at.expect("the stage is one of this pipeline");
        list::<U>(&mut *self.lists[at]).push(entry);
    }
}

/// Stages of work. `A` is what a worker accumulates, over all stages.
///
/// A stage is declared *before* those that feed it, so that work can only be handed on, never back:
/// a run ends if each stage adds only finitely much to itself.
///
/// Memory: of what waits, at most `most_entries` of each stage (or what it began with), and with
/// each worker what one batch finds. Where a queue is full, the worker does at once what it found,
/// the latest first.
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
/// // The last stage first: who feeds it needs its name.
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
    /// As declared: the last stage first.
    stages: Vec<Box<dyn AnyStage<A> + 'a>>,
}

/// How a pipeline is run.
#[derive(Clone, Copy)]
pub struct Schedule<'a> {
    /// Most workers, at least one. The caller is one of them.
    pub workers: usize,
    /// How workers are shared between stages.
    pub policy: Policy,
    /// Work that is done sooner starts no thread.
    pub alone_for: Duration,
    /// The budget of cores: no more workers are busy than it allows, and it is adjusted meanwhile.
    pub cores: Option<&'a CoreShare<'a>>,
    /// Asked before each batch; `true` ends the run.
    pub stop: Option<&'a (dyn Fn() -> bool + Sync)>,
    /// Time since some moment, instead of the system's clock: for tests.
    pub clock: Option<&'a (dyn Fn() -> Duration + Sync)>,
}

/// What came of a run.
#[derive(Debug)]
pub struct Outcome<A> {
    /// All that the workers accumulated.
    pub all: A,
    /// Whether the run was stopped before all was done.
    pub stopped: bool,
    /// What it took.
    pub counts: Counts,
}

impl Schedule<'_> {
    /// All of `workers` all the time, alone for the first millisecond, and no stop.
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

    /// Declares a stage that comes before all that are declared so far, and begins with `entries`.
    ///
    /// `handler` is given a batch, sorted by address, and may take entries out of it; what stays is
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

    /// Does all the work. With one worker, no thread is started.
    ///
    /// # Panics
    /// If a handler does: no further batch is begun, and the panic goes on in the caller.
    pub fn run(mut self, schedule: &Schedule<'_>) -> Outcome<A> {
        self.stages.reverse();
        let queues = self.stages.iter_mut().map(|stage| stage.queue()).collect();
        let workers = schedule.workers.max(1);
        let budget = schedule.cores.map_or(workers, |cores| cores.budget().min(workers));
        let priors = self.stages.iter().map(|stage| stage.weight()).collect();
        let board = Board::new(queues, priors, schedule.policy, (workers, budget));
        let begin = Instant::now();
        let run = Run { stages: &self.stages, board: &board, schedule, begin };
        let mut first = Worker::new(&run, 0);
        let alone_until = (workers > 1).then_some(schedule.alone_for);
        let all = if run.work(&mut first, alone_until, &|| ()) {
            first.share
        } else {
            run.work_together(first, workers)
        };
        let (counts, stopped) = board.into_counts(self.stages.iter().map(|stage| stage.name()));
        Outcome { all, stopped, counts }
    }
}

/// A stage whose entries are of a type that the caller does not know. Each `dyn Any` is a `Vec` of
/// that type.
trait AnyStage<A>: Sync {
    fn name(&self) -> &'static str;
    /// What an element costs, before any was measured.
    fn weight(&self) -> Option<Duration>;
    /// The queue, with what the stage begins with; once.
    fn queue(&mut self) -> Box<dyn AnyQueue>;
    /// An empty list of entries.
    fn list(&self) -> Box<dyn Any>;
    /// Does a batch, and empties its list.
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

/// What the workers of a run look at.
struct Run<'r, 'a, A> {
    stages: &'r [Box<dyn AnyStage<A> + 'a>],
    board: &'r Board,
    schedule: &'r Schedule<'r>,
    begin: Instant,
}

/// What a worker keeps to itself.
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

    /// Starts the other workers, goes on with the first, and merges what they all have.
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

    /// Works until all is done, or until it is later than `until`; `true` if all is done. `more` starts
    /// workers for which there are cores now.
    fn work(&self, worker: &mut Worker<A>, until: Option<Duration>, more: &dyn Fn()) -> bool {
        let stop = StopOnPanic(self.board);
        let ended = loop {
            let now = self.now();
            if self.schedule.stop.is_some_and(|stop| stop()) {
                self.board.stop();
            }
            if until.is_some_and(|until| now >= until) {
                break false;
            }
            let Worker { me, found, batches, done, .. } = worker;
            if let (0, Some(cores)) = (*me, self.schedule.cores) {
                if cores.look() {
                    self.board.set_budget(cores.budget());
                }
                more();
            }
            match self.board.visit(*me, done.take(), found, batches) {
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

/// Ends the run once a worker has panicked: dropped only while unwinding.
struct StopOnPanic<'a>(&'a Board);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[cfg(test)]
mod tests;
