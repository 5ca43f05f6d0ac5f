//! A synthetic file system: chunks of inodes, trees of nodes, directory blocks. Numbers alone
//! determine its content, so that a recursion computes the expected result of any run.

use super::*;
use floe_sync::atomic::{AtomicU64, Ordering};

/// A chunk of inodes.
struct Chunk(u64);
/// A node of a tree, with levels below it.
struct Node(u64, u32);
/// A directory block.
struct Block(u64);

impl Entry for Chunk {
    fn address(&self) -> u64 {
        self.0
    }
    fn elements(&self) -> u64 {
        self.0 % 7
    }
}

impl Entry for Node {
    fn address(&self) -> u64 {
        self.0
    }
}

impl Entry for Block {
    fn address(&self) -> u64 {
        self.0
    }
}

/// A hash of a number.
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    number ^ (number >> 29)
}

impl Chunk {
    fn nodes(&self) -> impl Iterator<Item = Node> + use<> {
        let chunk = self.0;
        (0..mix(chunk) % 3).map(move |at| Node(mix(chunk + at), 2))
    }
    fn blocks(&self) -> impl Iterator<Item = Block> + use<> {
        let chunk = self.0;
        (0..mix(chunk) % 4).map(move |at| Block(mix(chunk ^ at)))
    }
}

impl Node {
    fn nodes(&self) -> impl Iterator<Item = Self> + use<> {
        let (node, level) = (self.0, self.1);
        let fan_out = if level > 0 { mix(node) % 4 } else { 0 };
        (0..fan_out).map(move |at| Self(mix(node + at + 1), level - 1))
    }
    fn blocks(&self) -> impl Iterator<Item = Block> + use<> {
        (self.1 == 0).then_some(Block(mix(self.0))).into_iter()
    }
}

/// The items that a run visited: the number of each kind, and a checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    counts: [u64; 3],
    sum: u64,
}

impl Accumulator for Seen {
    fn merge(&mut self, other: Self) {
        let Self { counts, sum } = other;
        self.counts.iter_mut().zip(counts).for_each(|(mine, theirs)| *mine += theirs);
        self.sum = self.sum.wrapping_add(sum);
    }
}

impl Seen {
    fn note(&mut self, stage: usize, number: u64) {
        self.counts[stage] += 1;
        self.sum = self.sum.wrapping_add(mix(number ^ (stage as u64) << 60));
    }

    fn node(&mut self, node: &Node) {
        self.note(1, node.0);
        node.nodes().for_each(|node| self.node(&node));
        node.blocks().for_each(|block| self.note(2, block.0));
    }

    /// The expected result of any run over the chunks.
    fn all_of(chunks: u64) -> Self {
        let mut seen = Self::default();
        for chunk in (0..chunks).map(Chunk) {
            seen.note(0, chunk.0);
            chunk.nodes().for_each(|node| seen.node(&node));
            chunk.blocks().for_each(|block| seen.note(2, block.0));
        }
        seen
    }
}

/// The pipeline over the synthetic file system.
fn pipeline<'a>(chunks: u64, limits: Limits) -> Pipeline<'a, Seen> {
    let mut pipeline = Pipeline::new();
    let blocks = pipeline.stage("blocks", limits, vec![], |seen: &mut Seen, batch, _| {
        assert!(batch.is_sorted_by_key(Block::address), "out of order");
        batch.iter().for_each(|block| seen.note(2, block.0));
    });
    let nodes = pipeline.stage("nodes", limits, vec![], move |seen: &mut Seen, batch, found| {
        assert!(batch.is_sorted_by_key(Node::address), "out of order");
        for node in batch.drain(..) {
            seen.note(1, node.0);
            node.nodes().for_each(|node| found.again(node));
            node.blocks().for_each(|block| found.push(blocks, block));
        }
    });
    let all = (0..chunks).map(Chunk).collect();
    pipeline.stage("chunks", limits, all, move |seen: &mut Seen, batch, found| {
        for chunk in batch {
            seen.note(0, chunk.0);
            chunk.nodes().for_each(|node| found.push(nodes, node));
            chunk.blocks().for_each(|block| found.push(blocks, block));
        }
    });
    pipeline
}

/// Runs it and checks the result.
fn run_and_judge(chunks: u64, limits: Limits, schedule: &Schedule<'_>) -> Counts {
    let Outcome { all, stopped, counts } = pipeline(chunks, limits).run(schedule);
    assert_eq!(all, Seen::all_of(chunks), "{counts:?}");
    assert!(!stopped);
    assert_eq!(counts.stages[1].meter.elements, all.counts[1]);
    assert_eq!(counts.stages[2].meter.elements, all.counts[2]);
    assert!(counts.stages[0].most_entries <= chunks as usize);
    for stage in &counts.stages[1..] {
        assert!(stage.most_entries <= limits.most_entries, "{counts:?}");
    }
    // One visit per batch, one for each worker to learn that all is done, and one for each sleep.
    let visits = counts.batches + counts.spilled + counts.sleeps;
    let ends = counts.locks - visits;
    assert!((1..=schedule.workers as u64).contains(&ends), "{counts:?}");
    counts
}

#[cfg(not(feature = "shuttle"))]
mod real_threads {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use proptest::prelude::*;

    use super::*;
    use crate::cores::{CoreSample, CoreSource};
    use floe_sync::{Mutex, thread};

    crate::accumulator_laws!(
        Seen,
        (0usize..3, any::<u64>()),
        |seen: &mut Seen, (stage, number)| seen.note(stage, number),
        |seen| seen,
    );

    proptest! {
        #[test]
        fn every_policy_gives_the_same(
            chunks in 0u64..120,
            workers in 0usize..9,
            policy in 0usize..3,
            batch_elements in 1u64..30,
            most_entries in 1usize..60,
            alone in any::<bool>(),
        ) {
            let limits = Limits { batch_elements, most_entries, weight: None };
            let mut schedule = Schedule::new(workers.max(1), Policy::ALL[policy]);
            schedule.alone_for = if alone { Duration::from_secs(60) } else { Duration::ZERO };
            run_and_judge(chunks, limits, &schedule);
        }
    }

    /// Prints a figure for the docs: `cargo test -p floe-exec -- --nocapture lock`.
    #[test]
    fn the_lock_is_taken_for_batches_and_not_for_elements() {
        let limits = Limits { batch_elements: 256, most_entries: 4096, weight: None };
        for policy in Policy::ALL {
            let mut schedule = Schedule::new(4, policy);
            schedule.alone_for = Duration::ZERO;
            let counts = run_and_judge(40_000, limits, &schedule);
            let elements: u64 = counts.stages.iter().map(|stage| stage.meter.elements).sum();
            println!(
                "{policy}: {elements} elements, {} batches from queues and {} done at once, {} \
                 locks, {} sleeps, {} migrations",
                counts.batches, counts.spilled, counts.locks, counts.sleeps, counts.migrations
            );
            assert!(counts.locks - counts.sleeps < elements / 100, "{counts:?}");
        }
    }

    #[test]
    fn data_begins_a_stage_when_the_one_before_is_finished() {
        let (begun, ended) = (AtomicU64::new(0), AtomicU64::new(0));
        let limits = Limits { batch_elements: 1, most_entries: 1000, weight: None };
        let mut pipeline = Pipeline::new();
        let second =
            pipeline.stage("second", limits, vec![], |(): &mut (), _: &mut Vec<Block>, _| {
                assert_eq!(ended.load(Ordering::SeqCst), 100);
                begun.fetch_add(1, Ordering::SeqCst);
            });
        let all = (0..100).map(Block).collect();
        pipeline.stage("first", limits, all, |(): &mut (), batch, found| {
            assert_eq!(begun.load(Ordering::SeqCst), 0);
            batch.drain(..).for_each(|block| found.push(second, block));
            thread::sleep(Duration::from_micros(100));
            ended.fetch_add(1, Ordering::SeqCst);
        });
        let mut schedule = Schedule::new(5, Policy::Data);
        schedule.alone_for = Duration::ZERO;
        let outcome = pipeline.run(&schedule);
        assert_eq!(begun.load(Ordering::SeqCst), 100);
        assert_eq!(outcome.counts.spilled, 0);
    }

    #[test]
    fn stages_overlap_with_the_other_policies() {
        for policy in [Policy::SplitEqual, Policy::Dynamic] {
            let (left, early) = (AtomicU64::new(300), AtomicU64::new(0));
            let limits = Limits { batch_elements: 1, most_entries: 1000, weight: None };
            let mut pipeline = Pipeline::new();
            let pause = || thread::sleep(Duration::from_micros(100));
            let second =
                pipeline.stage("second", limits, vec![], |(): &mut (), _: &mut Vec<Block>, _| {
                    pause();
                    early.fetch_add(u64::from(left.load(Ordering::SeqCst) > 0), Ordering::SeqCst);
                });
            let all = (0..300).map(Block).collect();
            pipeline.stage("first", limits, all, |(): &mut (), batch, found| {
                batch.drain(..).for_each(|block| found.push(second, block));
                pause();
                left.fetch_sub(1, Ordering::SeqCst);
            });
            let mut schedule = Schedule::new(4, policy);
            schedule.alone_for = Duration::ZERO;
            pipeline.run(&schedule);
            assert!(early.into_inner() > 50, "{policy}: the second stage waited for the first");
        }
    }

    #[test]
    fn who_sleeps_is_woken_when_there_is_work() {
        const WORKERS: u64 = 4;
        let (now, most) = (AtomicU64::new(0), AtomicU64::new(0));
        let limits = Limits { batch_elements: 1, most_entries: 100, weight: None };
        let mut pipeline = Pipeline::new();
        let second =
            pipeline.stage("second", limits, vec![], |(): &mut (), _: &mut Vec<Block>, _| {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                // Nobody continues before all have arrived, or a timeout passes.
                let begin = Instant::now();
                while most.load(Ordering::SeqCst) < WORKERS && begin.elapsed().as_secs() < 5 {
                    thread::yield_now();
                }
                now.fetch_sub(1, Ordering::SeqCst);
            });
        pipeline.stage("first", limits, vec![Block(0)], |(): &mut (), _, found| {
            // Long enough that the other workers run out of work and sleep.
            thread::sleep(Duration::from_millis(50));
            (0..WORKERS).for_each(|at| found.push(second, Block(at)));
        });
        let mut schedule = Schedule::new(WORKERS as usize, Policy::Dynamic);
        schedule.alone_for = Duration::ZERO;
        let outcome = pipeline.run(&schedule);
        assert_eq!(most.into_inner(), WORKERS, "{:?}", outcome.counts);
    }

    /// A tree that would be far larger than the queue if it were traversed breadth-first.
    #[test]
    fn memory_stays_bounded_however_much_is_found() {
        const LEVELS: u32 = 5;
        const FAN_OUT: u64 = 10;
        let limits = Limits { batch_elements: 2, most_entries: 8, weight: None };
        let (waiting, most) = (AtomicU64::new(1), AtomicU64::new(0));
        let mut pipeline = Pipeline::new();
        let root = vec![Node(0, LEVELS)];
        pipeline.stage("nodes", limits, root, |done: &mut Seen, batch, found| {
            for Node(node, level) in batch.drain(..) {
                done.note(1, node);
                waiting.fetch_sub(1, Ordering::SeqCst);
                let children = if level > 0 { FAN_OUT } else { 0 };
                (0..children).for_each(|at| found.again(Node(mix(node + at), level - 1)));
                let now = waiting.fetch_add(children, Ordering::SeqCst) + children;
                most.fetch_max(now, Ordering::SeqCst);
            }
        });
        let mut schedule = Schedule::new(3, Policy::Dynamic);
        schedule.alone_for = Duration::ZERO;
        let outcome = pipeline.run(&schedule);
        assert_eq!(
            outcome.all.counts[1],
            (0..=LEVELS).map(|level| FAN_OUT.pow(level)).sum::<u64>()
        );
        assert!(outcome.counts.spilled > 0);
        // Per worker: the entries that a batch produces, on each level below it.
        let bound = 8 + 3 * 2 * FAN_OUT * u64::from(LEVELS + 1);
        assert!(most.load(Ordering::SeqCst) <= bound, "{most:?} entries waited");
    }

    #[test]
    fn little_work_starts_no_thread() {
        let here = thread::current().id();
        let limits = Limits { batch_elements: 1, most_entries: 10, weight: None };
        let mut pipeline = Pipeline::new();
        pipeline.stage("all", limits, vec![Block(1), Block(2)], |(): &mut (), _, _| {
            assert_eq!(thread::current().id(), here);
        });
        let mut schedule = Schedule::new(8, Policy::Dynamic);
        schedule.alone_for = Duration::from_secs(3600);
        assert_eq!(pipeline.run(&schedule).counts.batches, 2);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_ends_the_run() {
        for workers in [1, 4] {
            let begun = AtomicU64::new(0);
            let limits = Limits { batch_elements: 1, most_entries: 10, weight: None };
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                let mut pipeline = Pipeline::new();
                let all = (0..100_000).map(Block).collect();
                pipeline.stage("all", limits, all, |(): &mut (), batch, _| {
                    begun.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(Duration::from_micros(50));
                    assert!(batch[0].0 != 7, "block seven");
                });
                pipeline.run(&Schedule::new(workers, Policy::Dynamic));
            }));
            let panic = outcome.expect_err("the panic was lost");
            assert!(panic.downcast_ref::<&str>().is_some_and(|text| *text == "block seven"));
            assert!(begun.into_inner() < 10_000, "batches were handed out after the panic");
        }
    }

    #[test]
    fn a_wish_to_stop_is_obeyed_between_batches() {
        for workers in [1, 4] {
            let begun = AtomicU64::new(0);
            let limits = Limits { batch_elements: 1, most_entries: 10, weight: None };
            let mut pipeline = Pipeline::new();
            let all = (0..100_000).map(Block).collect();
            pipeline.stage("all", limits, all, |seen: &mut Seen, batch, _| {
                begun.fetch_add(1, Ordering::SeqCst);
                batch.iter().for_each(|block| seen.note(2, block.0));
            });
            let stop = || begun.load(Ordering::SeqCst) >= 50;
            let mut schedule = Schedule::new(workers, Policy::SplitEqual);
            schedule.stop = Some(&stop);
            let outcome = pipeline.run(&schedule);
            assert!(outcome.stopped);
            assert_eq!(outcome.all.counts[2], begun.load(Ordering::SeqCst), "a batch was cut off");
            assert!(outcome.all.counts[2] < 50 + 8, "{:?}", outcome.counts);
        }
    }

    /// Returns the given samples in item, and the last one forever after.
    struct Told(Mutex<Vec<CoreSample>>);

    impl CoreSource for Told {
        fn sample(&self) -> Option<CoreSample> {
            let mut list = self.0.lock().unwrap();
            if list.len() > 1 { list.pop() } else { list.last().copied() }
        }
    }

    #[test]
    fn no_more_work_than_there_are_cores_for() {
        let busy = |idle, own| CoreSample { idle, own, allowed: 4 };
        // Taken from the end: two cores for four workers, then one, then three free ones.
        let told =
            Told(Mutex::new(vec![busy(0.0, 3.0), busy(3.0, 1.0), busy(0.0, 1.0), busy(0.0, 2.0)]));
        let (now, most) = (AtomicU64::new(0), AtomicU64::new(0));
        let limits = Limits { batch_elements: 1, most_entries: 10, weight: None };
        let mut pipeline = Pipeline::new();
        let all = (0..400).map(Block).collect();
        pipeline.stage("all", limits, all, |(): &mut (), batch, _| {
            let together = now.fetch_add(1, Ordering::SeqCst) + 1;
            if batch[0].0 > 300 {
                most.fetch_max(together, Ordering::SeqCst);
            }
            thread::sleep(Duration::from_micros(50));
            now.fetch_sub(1, Ordering::SeqCst);
        });
        let mut schedule = Schedule::new(4, Policy::Dynamic);
        schedule.alone_for = Duration::ZERO;
        let share = CoreShare::new(&told, 4, 0, Duration::ZERO);
        schedule.cores = Some(&share);
        let outcome = pipeline.run(&schedule);
        assert_eq!(outcome.counts.budgets, (1, 4));
        assert!(most.into_inner() <= 3, "the budget rises to three workers, not to four");
    }
}

#[cfg(feature = "shuttle")]
mod interleavings {
    use super::*;
    use crate::cores::{CoreSample, CoreSource};
    use floe_sync::shuttle;

    /// Every interleaving must end with the same result. It uses no clock, so that a run can be
    /// replayed from its schedule.
    fn run(workers: usize, policy: Policy, chunks: u64, most_entries: usize) {
        let clock = || Duration::ZERO;
        let mut schedule = Schedule::new(workers, policy);
        schedule.alone_for = Duration::ZERO;
        schedule.clock = Some(&clock);
        run_and_judge(chunks, Limits { batch_elements: 3, most_entries, weight: None }, &schedule);
    }

    #[test]
    fn every_policy_gives_the_same() {
        for policy in Policy::ALL {
            shuttle::check_random(move || run(3, policy, 7, 4), 1000);
            shuttle::check_pct(move || run(3, policy, 7, 2), 1000, 3);
        }
    }

    #[test]
    fn two_workers_and_few_entries_in_many_interleavings() {
        for policy in Policy::ALL {
            shuttle::check_dfs(move || run(2, policy, 4, 1), Some(20_000));
        }
    }

    /// Reports no free core and one free core in turns.
    struct Wavering(AtomicU64);

    impl CoreSource for Wavering {
        fn sample(&self) -> Option<CoreSample> {
            let look = self.0.fetch_add(1, Ordering::SeqCst);
            Some(CoreSample { idle: (look % 2) as f64, own: 1.0, allowed: 3 })
        }
    }

    #[test]
    fn a_budget_that_changes_loses_nobody() {
        shuttle::check_random(
            || {
                let clock = || Duration::ZERO;
                let cores = Wavering(AtomicU64::new(0));
                let mut schedule = Schedule::new(3, Policy::Dynamic);
                schedule.alone_for = Duration::ZERO;
                schedule.clock = Some(&clock);
                let share = CoreShare::new(&cores, 3, 0, Duration::ZERO);
                schedule.cores = Some(&share);
                let limits = Limits { batch_elements: 2, most_entries: 3, weight: None };
                assert_eq!(pipeline(6, limits).run(&schedule).all, Seen::all_of(6));
            },
            1000,
        );
    }

    #[test]
    #[should_panic(expected = "chunk one")]
    fn a_panic_reaches_the_caller() {
        shuttle::check_random(
            || {
                let limits = Limits { batch_elements: 1, most_entries: 3, weight: None };
                let mut pipeline = Pipeline::new();
                let all = (0..3).map(Block).collect();
                pipeline.stage("all", limits, all, |(): &mut (), batch, _| {
                    assert!(batch[0].0 != 1, "chunk one");
                });
                let clock = || Duration::ZERO;
                let mut schedule = Schedule::new(3, Policy::Data);
                schedule.alone_for = Duration::ZERO;
                schedule.clock = Some(&clock);
                pipeline.run(&schedule);
            },
            100,
        );
    }
}
