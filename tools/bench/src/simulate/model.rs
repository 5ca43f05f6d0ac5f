//! The event loop of the simulation: workers arrive at the queues one after the other.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use floe_exec::Policy;
use floe_exec::scheduler::{Scheduler, StageLoad};

/// The work, and the time of each part. Directories are distributed evenly over the inodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model {
    /// Inodes in use.
    pub(crate) inodes: u64,
    /// Inodes per entry of the first queue.
    pub(crate) chunk: u64,
    /// Directory blocks, which are found while inodes are checked.
    pub(crate) blocks: u64,
    /// Directory blocks per batch.
    pub(crate) batch_blocks: u64,
    /// Maximum number of queued directory blocks.
    pub(crate) most_blocks: u64,
    /// Nanoseconds per inode.
    pub(crate) inode_ns: f64,
    /// Nanoseconds per directory block.
    pub(crate) block_ns: f64,
    /// Nanoseconds of serial work.
    pub(crate) serial_ns: f64,
    /// Nanoseconds that a visit holds the lock.
    pub(crate) visit_ns: f64,
    /// Additional nanoseconds per entry for sorting and taking it; adding an entry only appends it.
    pub(crate) entry_ns: f64,
    /// Nanoseconds until a woken worker runs.
    pub(crate) wake_ns: f64,
    /// Nanoseconds to merge the results of one worker.
    pub(crate) merge_ns: f64,
}

/// Result of a simulated run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Simulated {
    /// Total time.
    pub(crate) end_ns: f64,
    /// Time for which the lock was held.
    pub(crate) lock_ns: f64,
    /// Inodes and blocks processed: fewer than all would be a bug in the model.
    pub(crate) done: (u64, u64),
}

const INODES: usize = 0;
const BLOCKS: usize = 1;

/// State of a worker until its next arrival.
#[derive(Clone, Copy, Debug, Default)]
struct Worker {
    /// The stage in which it is working, and the previous one.
    busy: Option<usize>,
    last: Option<usize>,
    /// Stage and number of elements of its current batch.
    doing: Option<(usize, u64)>,
    /// Blocks that it found and has not enqueued yet.
    found: u64,
}

struct Run<'m> {
    model: &'m Model,
    scheduler: Scheduler,
    workers: Vec<Worker>,
    /// Arrival times of active workers in nanoseconds; the worker number breaks ties.
    arrivals: BinaryHeap<Reverse<(u64, usize)>>,
    asleep: Vec<usize>,
    loads: [StageLoad; 2],
    /// Inodes not yet in a batch.
    inodes_left: u64,
    /// Inodes processed, which determine how many blocks were found.
    inodes_done: u64,
    lock_free: f64,
    now_moved: u64,
    result: Simulated,
}

impl Model {
    /// The same with all work slowed down by `factor`, in accordingly larger time units.
    pub(crate) fn with_work_slower(&self, factor: f64) -> Self {
        Self {
            visit_ns: self.visit_ns / factor,
            entry_ns: self.entry_ns / factor,
            wake_ns: self.wake_ns / factor,
            merge_ns: self.merge_ns / factor,
            ..*self
        }
    }

    /// Time of one worker without queues.
    pub(crate) fn alone_ns(&self) -> f64 {
        self.serial_ns + self.inodes as f64 * self.inode_ns + self.blocks as f64 * self.block_ns
    }

    /// Simulates a run.
    pub(crate) fn run(&self, policy: Policy, workers: usize) -> Simulated {
        let workers = workers.max(1);
        let mut run = Run {
            model: self,
            scheduler: Scheduler::new(policy),
            workers: vec![Worker::default(); workers],
            arrivals: (0..workers).map(|me| Reverse((0, me))).collect(),
            asleep: Vec::new(),
            loads: [StageLoad::default(); 2],
            inodes_left: self.inodes,
            inodes_done: 0,
            lock_free: 0.0,
            now_moved: 0,
            result: Simulated::default(),
        };
        run.loads[INODES].entries = self.inodes.div_ceil(self.chunk);
        run.loads[INODES].elements = self.inodes;
        while let Some(Reverse((at, me))) = run.arrivals.pop() {
            run.arrive(at as f64, me);
        }
        run.result.end_ns = run.lock_free + self.serial_ns + self.merge_ns * (workers - 1) as f64;
        run.result
    }
}

impl Run<'_> {
    /// A worker comes to the queues, as in `floe_exec`'s dispatcher.
    fn arrive(&mut self, at: f64, me: usize) {
        let begin = at.max(self.lock_free);
        self.now_moved = 0;
        self.report(me);
        let next = self.next(me);
        let held = self.model.visit_ns + self.now_moved as f64 * self.model.entry_ns;
        self.lock_free = begin + held;
        self.result.lock_ns += held;
        match next {
            Some((stage, elements)) => {
                self.workers[me].doing = Some((stage, elements));
                let end = self.lock_free + elements as f64 * self.each_ns(stage);
                self.arrivals.push(Reverse((end.round() as u64, me)));
            }
            None => self.asleep.push(me),
        }
        // Wakes one sleeping worker if there is work for it; that one wakes the next.
        if !self.asleep.is_empty() && self.pick(None).is_some() {
            let woken = self.asleep.swap_remove(0);
            let at = self.lock_free + self.model.wake_ns;
            self.arrivals.push(Reverse((at.round() as u64, woken)));
        }
    }

    fn each_ns(&self, stage: usize) -> f64 {
        if stage == INODES { self.model.inode_ns } else { self.model.block_ns }
    }

    /// Records the worker's completed batch, and enqueues the blocks that it found.
    fn report(&mut self, me: usize) {
        if let Some((stage, elements)) = self.workers[me].doing.take() {
            let nanos = elements as f64 * self.each_ns(stage);
            self.loads[stage].meter.add(elements, Duration::from_nanos(nanos as u64));
            if stage == INODES {
                let found = |inodes: u64| {
                    let blocks = u128::from(self.model.blocks) * u128::from(inodes);
                    (blocks / u128::from(self.model.inodes)) as u64
                };
                self.workers[me].found +=
                    found(self.inodes_done + elements) - found(self.inodes_done);
                self.inodes_done += elements;
                self.result.done.0 += elements;
            } else {
                self.result.done.1 += elements;
            }
        }
        let room = self.model.most_blocks.saturating_sub(self.loads[BLOCKS].entries);
        let moved = self.workers[me].found.min(room);
        self.workers[me].found -= moved;
        self.loads[BLOCKS].entries += moved;
        self.loads[BLOCKS].elements += moved;
    }

    /// The worker's next batch; `None` if it must sleep.
    fn next(&mut self, me: usize) -> Option<(usize, u64)> {
        let found = self.workers[me].found;
        if found > 0 {
            let batch = found.min(self.model.batch_blocks);
            self.workers[me].found -= batch;
            return Some((BLOCKS, batch));
        }
        if let Some(stage) = self.workers[me].busy.take() {
            self.loads[stage].workers -= 1;
        }
        let stage = self.pick(self.workers[me].last)?;
        self.loads[stage].workers += 1;
        self.workers[me].busy = Some(stage);
        self.workers[me].last = Some(stage);
        let elements = if stage == INODES {
            let elements = self.inodes_left.min(self.model.chunk);
            self.inodes_left -= elements;
            self.loads[INODES].entries -= 1;
            self.now_moved += 1;
            elements
        } else {
            let elements = self.loads[BLOCKS].entries.min(self.model.batch_blocks);
            self.loads[BLOCKS].entries -= elements;
            self.now_moved += elements;
            elements
        };
        self.loads[stage].elements -= elements;
        Some((stage, elements))
    }

    fn pick(&mut self, was_in: Option<usize>) -> Option<usize> {
        self.scheduler.pick(&self.loads, self.workers.len(), was_in)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        Model {
            inodes: 100_000,
            chunk: 1000,
            blocks: 50_000,
            batch_blocks: 100,
            most_blocks: 2000,
            inode_ns: 100.0,
            block_ns: 1000.0,
            serial_ns: 0.0,
            visit_ns: 0.0,
            entry_ns: 0.0,
            wake_ns: 0.0,
            merge_ns: 0.0,
        }
    }

    #[test]
    fn all_is_done_and_never_faster_than_can_be() {
        let model = model();
        for policy in Policy::ALL {
            for workers in [1, 2, 3, 16, 128] {
                let run = model.run(policy, workers);
                assert_eq!(run.done, (100_000, 50_000), "{policy} {workers}");
                let ideal = model.alone_ns() / workers as f64;
                assert!(run.end_ns >= ideal * 0.9999, "{policy} {workers}: {run:?}");
                let most = if policy == Policy::SplitEqual { 2.1 } else { 1.3 };
                assert!(workers > 16 || run.end_ns <= ideal * most, "{policy} {workers}: {run:?}");
            }
        }
    }

    #[test]
    fn a_lock_that_is_held_long_is_the_limit() {
        let model = Model { visit_ns: 100_000.0, ..model() };
        let run = model.run(Policy::Dynamic, 128);
        // At least 100 chunks and 500 batches, one after the other.
        assert!(run.end_ns >= 600.0 * 100_000.0);
        assert!(run.lock_ns <= run.end_ns);
    }

    #[test]
    fn what_is_serial_stays() {
        let model = Model { serial_ns: 5e6, merge_ns: 1e6, ..model() };
        let run = model.run(Policy::Dynamic, 4);
        assert!(run.end_ns >= model.serial_ns + 3e6 + (model.alone_ns() - model.serial_ns) / 4.0);
    }
}
