//! Assigns workers to the stages of a pipeline: how many each stage gets, and which stage a free
//! worker takes. Pure: it is given the state of the queues, and neither locks nor waits.
//!
//! The policies are those of Domingo and Kannan, *pFSCK: Accelerating File System Checking and
//! Repair for Modern Storage*, FAST '21, sections 5.1 to 5.3. pFSCK inspects the queues
//! periodically from a separate thread; here each worker that needs work does, because it holds the
//! lock anyway.

use std::fmt;
use std::time::Duration;

/// The scheduling policy: how workers are shared between the stages of a pipeline. The results are
/// the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// All workers on one stage after the other (`datapara` in the paper).
    #[default]
    Data,
    /// The workers divided equally between the stages that are not finished
    /// (`datapara+pipeline-split-equal`).
    SplitEqual,
    /// Workers in proportion to the outstanding work of each stage, by equations 1 and 2 with
    /// measured weights (`sched`). A worker that would be idle takes any work there is.
    Dynamic,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::Data, Self::SplitEqual, Self::Dynamic];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::SplitEqual => "split-equal",
            Self::Dynamic => "dynamic",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The measured cost of a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    /// Elements done.
    pub elements: u64,
    /// Their time, summed over workers.
    pub time: Duration,
}

impl Meter {
    /// Adds a batch.
    pub fn add(&mut self, elements: u64, time: Duration) {
        self.elements += elements;
        self.time = self.time.saturating_add(time);
    }

    /// w_i of equation 1: measured seconds per element. `None` before anything was measured.
    pub fn weight(&self) -> Option<f64> {
        (self.elements > 0).then(|| self.time.as_secs_f64() / self.elements as f64)
    }
}

/// The scheduler's view of a stage. Stages are listed in the order of the pipeline.
#[derive(Clone, Copy, Debug, Default)]
pub struct StageLoad {
    /// Entries in the queue: q_i of equation 1.
    pub entries: u64,
    /// Elements in these entries: q_i n_i, as a sum, because entries differ in size.
    pub elements: u64,
    /// Its cost so far, which gives w_i.
    pub meter: Meter,
    /// w_i from earlier runs, used until this run has measured it.
    pub expected: Option<Duration>,
    /// Workers that are busy in it.
    pub workers: usize,
}

impl StageLoad {
    /// w_i: seconds per element. `None` while unknown.
    fn weight(&self) -> Option<f64> {
        self.meter.weight().or_else(|| self.expected.map(|time| time.as_secs_f64()))
    }
}

/// Computes how many workers each stage should have.
///
/// Keeps its buffers between calls, so that no call allocates.
#[derive(Clone, Debug, Default)]
pub struct Scheduler {
    policy: Policy,
    work: Vec<f64>,
    targets: Vec<usize>,
}

impl Scheduler {
    /// A scheduler with that policy.
    pub fn new(policy: Policy) -> Self {
        Self { policy, work: Vec::new(), targets: Vec::new() }
    }

    /// The policy.
    pub const fn policy(&self) -> Policy {
        self.policy
    }

    /// t_i: the number of the `budget` workers that each stage should have now.
    pub fn targets(&mut self, stages: &[StageLoad], budget: usize) -> &[usize] {
        self.targets.clear();
        self.targets.resize(stages.len(), 0);
        let first = stages.iter().position(|stage| stage.entries > 0 || stage.workers > 0);
        match (self.policy, first) {
            (_, None) => {}
            (Policy::Data, Some(first)) => self.targets[first] = budget,
            (Policy::SplitEqual, Some(first)) => split_equally(&mut self.targets[first..], budget),
            (Policy::Dynamic, Some(_)) => self.split_by_work(stages, budget),
        }
        &self.targets
    }

    /// The stage from which a worker should take a batch: one that has entries and fewer workers
    /// than its target; preferably the one where the worker was last. `None`: the worker should
    /// sleep.
    ///
    /// Never `None` while entries wait and no worker is busy, so that the run always continues.
    pub fn pick(
        &mut self,
        stages: &[StageLoad],
        budget: usize,
        was_in: Option<usize>,
    ) -> Option<usize> {
        let busy: usize = stages.iter().map(|stage| stage.workers).sum();
        if busy >= budget.max(1) {
            return None;
        }
        self.targets(stages, budget.max(1));
        let lacking = |at: usize| {
            let stage = stages.get(at).filter(|stage| stage.entries > 0)?;
            self.targets[at].checked_sub(stage.workers).filter(|&lacking| lacking > 0)
        };
        if let Some(own) = was_in.filter(|&own| lacking(own).is_some()) {
            return Some(own);
        }
        // Among equal stages, prefer the last, because finishing work frees space in queues.
        let most = (0..stages.len()).filter_map(|at| Some((lacking(at)?, at))).max();
        match (most, self.policy) {
            (Some((_, at)), _) => Some(at),
            (None, Policy::Dynamic) => self.most_outstanding(stages),
            (None, _) => None,
        }
    }

    /// Equations 1 and 2: t_i = C q_i n_i w_i / W_total, in whole workers. Workers left over by
    /// rounding go to the stages with the largest remainders.
    fn split_by_work(&mut self, stages: &[StageLoad], budget: usize) {
        self.weigh(stages);
        let total: f64 = self.work.iter().sum();
        let mut left = budget;
        for (work, target) in self.work.iter_mut().zip(&mut self.targets) {
            let share = if total > 0.0 { budget as f64 * *work / total } else { 0.0 };
            *target = (share as usize).min(left);
            left -= *target;
            // From here on, `work` holds the remainders.
            *work = share - *target as f64;
        }
        while left > 0 {
            let lost = (0..stages.len())
                .filter(|&at| stages[at].entries > 0 && self.work[at] > f64::MIN)
                .max_by(|&a, &b| self.work[a].total_cmp(&self.work[b]));
            let Some(lost) = lost else { break };
            self.targets[lost] += 1;
            self.work[lost] = f64::MIN;
            left -= 1;
        }
    }

    /// Stores q_i n_i w_i of each stage in `work`. The weight is the one measured in this run, or
    /// else in earlier runs. A stage without either gets the weight of the heaviest other stage, so
    /// that it is measured soon.
    fn weigh(&mut self, stages: &[StageLoad]) {
        let measured = stages.iter().filter_map(StageLoad::weight);
        // If the clock is too coarse to measure anything, only elements count.
        let heaviest = Some(measured.fold(0.0, f64::max)).filter(|&weight| weight > 0.0);
        let weight = |stage: &StageLoad| match heaviest {
            Some(heaviest) => stage.weight().unwrap_or(heaviest).max(heaviest / 1e6),
            None => 1.0,
        };
        self.work.clear();
        self.work.extend(stages.iter().map(|stage| {
            if stage.entries == 0 { 0.0 } else { stage.elements.max(1) as f64 * weight(stage) }
        }));
    }

    /// The stage with the most outstanding work per worker, counting one more worker.
    fn most_outstanding(&mut self, stages: &[StageLoad]) -> Option<usize> {
        self.weigh(stages);
        let each = |at: usize| self.work[at] / (stages[at].workers + 1) as f64;
        (0..stages.len())
            .filter(|&at| stages[at].entries > 0)
            .max_by(|&a, &b| each(a).total_cmp(&each(b)))
    }
}

/// Equal parts, the first ones larger by one if needed; at least one worker each, because a free
/// worker takes any work there is.
fn split_equally(targets: &mut [usize], budget: usize) {
    let (each, more) = (budget / targets.len(), budget % targets.len());
    for (at, target) in targets.iter_mut().enumerate() {
        *target = (each + usize::from(at < more)).max(1);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stage(entries: u64, elements: u64, nanos_each: u64, workers: usize) -> StageLoad {
        let meter = Meter { elements: 1000, time: Duration::from_nanos(1000 * nanos_each) };
        StageLoad { entries, elements, meter, expected: None, workers }
    }

    #[test]
    fn equations_1_and_2() {
        // 10 x 100 x 1, 5 x 100 x 2, and 20 x 10 x 10: 1000, 1000 and 2000 of 4000.
        let stages = [stage(10, 1000, 1, 0), stage(5, 500, 2, 0), stage(20, 200, 10, 0)];
        let mut scheduler = Scheduler::new(Policy::Dynamic);
        assert_eq!(scheduler.targets(&stages, 16), [4, 4, 8]);
        assert_eq!(scheduler.targets(&stages, 4), [1, 1, 2]);
        // 1.25, 1.25 and 2.5: the half is rounded up.
        assert_eq!(scheduler.targets(&stages, 5), [1, 1, 3]);
        assert_eq!(scheduler.targets(&[stage(0, 0, 1, 3), stage(0, 0, 1, 0)], 8), [0, 0]);
    }

    #[test]
    fn an_unmeasured_stage_counts_as_a_heavy_one() {
        let unmeasured = StageLoad { meter: Meter::default(), ..stage(1, 100, 0, 0) };
        let mut scheduler = Scheduler::new(Policy::Dynamic);
        assert_eq!(scheduler.targets(&[stage(1, 100, 5, 0), unmeasured], 8), [4, 4]);
        assert_eq!(scheduler.targets(&[unmeasured, unmeasured], 8), [4, 4], "no stage is measured");
        let expected = Some(Duration::from_nanos(35));
        let known = StageLoad { expected, ..unmeasured };
        assert_eq!(scheduler.targets(&[stage(1, 100, 5, 0), known], 8), [1, 7]);
        let measured = StageLoad { expected, ..stage(1, 100, 5, 0) };
        assert_eq!(scheduler.targets(&[stage(1, 100, 5, 0), measured], 8), [4, 4], "this run's");
    }

    #[test]
    fn data_is_one_stage_after_the_other() {
        let mut scheduler = Scheduler::new(Policy::Data);
        let early = [stage(1, 1, 1, 2), stage(9, 9, 9, 0)];
        assert_eq!(scheduler.targets(&early, 4), [4, 0]);
        assert_eq!(scheduler.pick(&early, 4, Some(1)), Some(0));
        let last_worker = [stage(0, 0, 1, 1), stage(9, 9, 9, 0)];
        assert_eq!(scheduler.pick(&last_worker, 4, None), None, "the stage is not finished");
        let later = [stage(0, 0, 1, 0), stage(9, 9, 9, 3)];
        assert_eq!(scheduler.pick(&later, 4, Some(0)), Some(1));
        assert_eq!(scheduler.pick(&later, 3, Some(0)), None, "the budget is used up");
    }

    #[test]
    fn equal_parts_for_stages_that_overlap() {
        let mut scheduler = Scheduler::new(Policy::SplitEqual);
        let all = [stage(5, 5, 1, 2), stage(0, 0, 1, 0), stage(7, 7, 1, 0)];
        assert_eq!(scheduler.targets(&all, 8), [3, 3, 2]);
        assert_eq!(
            scheduler.pick(&all, 8, Some(1)),
            Some(2),
            "the third stage lacks two workers, the first one"
        );
        let saturated = [stage(5, 5, 1, 3), stage(0, 0, 1, 0), stage(7, 7, 1, 2)];
        assert_eq!(scheduler.pick(&saturated, 8, Some(1)), None, "the third stage has no entries");
        let first_done = [stage(0, 0, 1, 0), stage(1, 1, 1, 0), stage(7, 7, 1, 2)];
        assert_eq!(scheduler.targets(&first_done, 8), [0, 4, 4]);
        assert_eq!(scheduler.targets(&all, 1), [1, 1, 1]);
    }

    #[test]
    fn who_would_be_idle_takes_what_there_is() {
        let mut scheduler = Scheduler::new(Policy::Dynamic);
        // One entry is left, which is worth one worker, but two are busy there.
        let stages = [stage(1, 1, 1, 2), stage(0, 0, 1, 0)];
        assert_eq!(scheduler.pick(&stages, 3, Some(1)), Some(0));
    }

    #[test]
    fn a_worker_stays_where_it_is_needed() {
        let mut scheduler = Scheduler::new(Policy::Dynamic);
        let stages = [stage(9, 90, 1, 1), stage(9, 90, 1, 0)];
        assert_eq!(scheduler.pick(&stages, 4, Some(0)), Some(0));
        assert_eq!(scheduler.pick(&stages, 4, None), Some(1), "the stage that lacks most workers");
    }

    proptest! {
        #[test]
        fn somebody_always_works_and_never_more_than_may(
            stages in prop::collection::vec((0u64..4, 0u64..100, 0u64..100, 0usize..3), 1..6),
            budget in 0usize..20,
            was_in in prop::option::of(0usize..6),
            policy in 0usize..3,
        ) {
            let mut scheduler = Scheduler::new(Policy::ALL[policy]);
            let stages: Vec<StageLoad> = stages
                .into_iter()
                .map(|(entries, elements, nanos, workers)| stage(entries, elements, nanos, workers))
                .collect();
            let busy: usize = stages.iter().map(|stage| stage.workers).sum();
            let waiting = stages.iter().any(|stage| stage.entries > 0);
            let picked = scheduler.pick(&stages, budget, was_in);
            if let Some(at) = picked {
                prop_assert!(stages[at].entries > 0 && busy < budget.max(1));
            }
            prop_assert!(picked.is_some() || busy > 0 || !waiting);
            if scheduler.policy() == Policy::Dynamic && waiting && busy < budget {
                prop_assert!(picked.is_some(), "work waits and a worker is idle");
                let sum: usize = scheduler.targets(&stages, budget).iter().sum();
                prop_assert!(sum <= budget);
            }
        }
    }
}
