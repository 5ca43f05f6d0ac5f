//! Splits units of work between workers by weight, into ranges that each worker processes in order.
//! A worker that finishes early takes half of another worker's remaining range.

use crate::accumulate::Accumulator;
use crate::pool::{Pool, work_together};
use crate::progress::OwnLine;
use crate::work_item::{WorkItem, process_items};
use floe_sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The remaining units of a worker: `next..end`, packed into one word so that one compare-and-swap
/// takes units, its own worker from the front or another one from the back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    next: u32,
    end: u32,
}

impl Range {
    const EMPTY: Self = Self { next: 0, end: 0 };

    const fn pack(self) -> u64 {
        (self.next as u64) << 32 | self.end as u64
    }

    const fn unpack(word: u64) -> Self {
        // The two halves of the word.
        Self { next: (word >> 32) as u32, end: word as u32 }
    }

    const fn is_empty(self) -> bool {
        self.next >= self.end
    }
}

/// The ranges of all workers.
struct Split {
    /// Prefix sums of the weights, with the total at the end.
    before: Vec<u64>,
    ranges: Vec<OwnLine<AtomicU64>>,
    stopped: AtomicBool,
}

impl Split {
    /// Divides units of these weights into one range per worker, of about equal weight.
    fn new(weights: impl Iterator<Item = u64>, workers: usize) -> Self {
        let mut before = vec![0u64];
        for weight in weights {
            let sum = before.last().copied().unwrap_or(0);
            before.push(sum.saturating_add(weight.max(1)));
        }
        let total = u128::from(before.last().copied().unwrap_or(0));
        // The end of the first `worker` workers' share; units fit 32 bits.
        let cut = |worker: usize| {
            if worker == workers {
                return (before.len() - 1) as u32;
            }
            let weight = total * worker as u128 / workers as u128;
            before.partition_point(|&sum| u128::from(sum) < weight) as u32
        };
        let range = |worker| Range { next: cut(worker), end: cut(worker + 1) };
        let ranges = (0..workers).map(|me| OwnLine(AtomicU64::new(range(me).pack()))).collect();
        Self { before, ranges, stopped: AtomicBool::new(false) }
    }

    fn weight(&self, range: Range) -> u64 {
        if range.is_empty() {
            return 0;
        }
        self.before[range.end as usize] - self.before[range.next as usize]
    }

    /// The next unit for worker `me`; `None` if it can take none.
    fn next(&self, me: usize) -> Option<usize> {
        loop {
            // Relaxed, here and below: the words hand out indexes and order nothing else.
            if self.stopped.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(unit) = self.take_own(me) {
                return Some(unit);
            }
            if !self.steal(me) {
                return None;
            }
        }
    }

    fn take_own(&self, me: usize) -> Option<usize> {
        let own = &self.ranges[me].0;
        let one_less = |word| {
            let range = Range::unpack(word);
            (!range.is_empty()).then(|| Range { next: range.next + 1, end: range.end }.pack())
        };
        let before = own.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).ok()?;
        Some(Range::unpack(before).next as usize)
    }

    /// Moves the later half, by weight, of the heaviest range to `me`, whose own is empty. `false`
    /// if all are empty. A range that is moving between two other workers is not seen, but not
    /// lost.
    fn steal(&self, me: usize) -> bool {
        loop {
            let victim = self
                .ranges
                .iter()
                .map(|range| (range, range.0.load(Ordering::Relaxed)))
                .filter(|&(_, word)| !Range::unpack(word).is_empty())
                .max_by_key(|&(_, word)| self.weight(Range::unpack(word)));
            let Some((victim, word)) = victim else { return false };
            let range = Range::unpack(word);
            let half = self.before[range.next as usize] + self.weight(range) / 2;
            let middle = self.before.partition_point(|&sum| sum <= half) as u32;
            // Takes at least one unit. The first stays with its worker if there is another.
            let least = if range.end - range.next > 1 { range.next + 1 } else { range.next };
            let middle = middle.clamp(least, range.end - 1);
            let left = Range { next: range.next, end: middle };
            let left = if left.is_empty() { Range::EMPTY } else { left };
            let swapped =
                victim.0.compare_exchange(word, left.pack(), Ordering::Relaxed, Ordering::Relaxed);
            if swapped.is_ok() {
                let stolen = Range { next: middle, end: range.end };
                self.ranges[me].0.store(stolen.pack(), Ordering::Relaxed);
                return true;
            }
        }
    }
}

impl Pool<'_> {
    /// Runs `work` on each of `units`, and merges the accumulators, like [`Pool::run`]; but each
    /// worker processes a range of its own, of about the same weight (such as inodes in use), in
    /// order. So each worker reads one region of the disk, and workers share no cache lines until
    /// one finishes its range and takes the later half of the heaviest one.
    ///
    /// At most 2^32 - 1 units; more are assigned as by [`Pool::run`]. A weight of 0 counts as 1.
    ///
    /// # Panics
    /// If `work` panics: no worker starts another unit, and the panic continues in the caller.
    pub fn run_weighted<U, A, F>(
        &self,
        units: &[U],
        weight: impl Fn(&U) -> u64 + Sync,
        work: F,
    ) -> A
    where
        U: Sync,
        A: Accumulator,
        F: Fn(&mut A, &U) + Sync,
    {
        self.weighted_items(units, weight, |all: &mut A, item| work(all, item.unit()))
    }

    /// Like [`Pool::run_weighted`]; `work` can ask for its worker's next unit.
    pub(crate) fn weighted_items<U, A, F>(
        &self,
        units: &[U],
        weight: impl Fn(&U) -> u64 + Sync,
        work: F,
    ) -> A
    where
        U: Sync,
        A: Accumulator,
        F: Fn(&mut A, &mut WorkItem<'_, '_, U>) + Sync,
    {
        let workers = self.threads().min(units.len());
        if workers <= 1 || u32::try_from(units.len()).is_err() {
            self.expect(units.len());
            return self.run_until(units, work, || false).0;
        }
        let split = Split::new(units.iter().map(&weight), workers);
        let phase = self.phase();
        if let Some(phase) = phase {
            // Several regions are processed at once, so progress is the sum of weights, not a
            // position.
            phase.spread_evenly();
            phase.expect(units.iter().map(|unit| weight(unit).max(1)).sum());
        }
        let gate = self.gate();
        let share = |me, more: &dyn Fn()| {
            let _open = gate.opened_by(me);
            let stop = StopOnPanic(&split.stopped);
            let mut own = A::default();
            gate.pass(me, more);
            let take = || split.next(me).map(|unit| &units[unit]);
            process_items(take, |item| {
                work(&mut own, item);
                if let Some(phase) = phase {
                    phase.advance(weight(item.unit()).max(1));
                }
                gate.pass(me, more);
            });
            std::mem::forget(stop);
            own
        };
        work_together(workers, self.cores(), |more| share(0, more), |me| share(me, &|| ()))
    }
}

/// Stops handing out units when a worker panics: dropped only while unwinding.
struct StopOnPanic<'a>(&'a AtomicBool);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_sync::thread;

    /// The units of each worker, in the order of processing.
    #[derive(Default)]
    struct Done(Vec<Vec<usize>>);

    impl Accumulator for Done {
        fn merge(&mut self, other: Self) {
            self.0.extend(other.0);
        }
    }

    fn run(threads: usize, weights: &[u64], work: impl Fn(usize) + Sync) -> Vec<Vec<usize>> {
        let units: Vec<usize> = (0..weights.len()).collect();
        let note = |done: &mut Done, &unit: &usize| {
            work(unit);
            match done.0.first_mut() {
                Some(own) => own.push(unit),
                None => done.0.push(vec![unit]),
            }
        };
        let Done(shares) = Pool::new(threads).run_weighted(&units, |&unit| weights[unit], note);
        let mut all = shares.concat();
        all.sort_unstable();
        assert_eq!(all, units, "not each unit once");
        shares
    }

    #[cfg(not(feature = "shuttle"))]
    mod real_threads {
        use std::panic::{AssertUnwindSafe, catch_unwind};
        use std::time::Duration;

        use proptest::prelude::*;

        use super::*;

        #[test]
        fn ranges_are_of_about_equal_weight() {
            let weights = (0..1000).map(|unit| if unit < 10 { 1000 } else { 1 });
            let split = Split::new(weights, 4);
            let range = |me: usize| Range::unpack(split.ranges[me].0.load(Ordering::Relaxed));
            let total: u64 = (0..4).map(|me| split.weight(range(me))).sum();
            assert_eq!(total, 10_990);
            for me in 0..4 {
                assert!(split.weight(range(me)).abs_diff(total / 4) <= 1000, "{:?}", range(me));
            }
            assert_eq!((range(0).next, range(3).end), (0, 1000));
        }

        #[test]
        fn who_is_done_takes_from_who_is_slow() {
            // The first range takes long; the other workers finish theirs and take parts of it.
            let shares = run(4, &[1; 400], |unit| {
                if unit < 100 {
                    thread::sleep(Duration::from_millis(1));
                }
            });
            let slow = |share: &Vec<usize>| share.iter().any(|&unit| unit < 100);
            assert!(shares.iter().filter(|share| slow(share)).count() > 1, "nobody helped");
        }

        #[test]
        fn a_panic_reaches_the_caller_and_ends_the_run() {
            let begun = AtomicU64::new(0);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                run(4, &[1; 100_000], |unit| {
                    begun.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(Duration::from_micros(50));
                    assert!(unit != 7, "unit seven");
                });
            }));
            let panic = outcome.expect_err("the panic was lost");
            assert!(panic.downcast_ref::<&str>().is_some_and(|text| *text == "unit seven"));
            assert!(begun.into_inner() < 10_000, "units were handed out after the panic");
        }

        proptest! {
            #[test]
            fn every_unit_is_done_once(
                weights in prop::collection::vec(prop_oneof![0u64..9, Just(u64::MAX / 3)], 0..200),
                threads in 0usize..20,
            ) {
                run(threads, &weights, |_| {});
            }
        }
    }

    #[cfg(feature = "shuttle")]
    mod interleavings {
        use floe_sync::shuttle;

        use super::*;

        #[test]
        fn every_unit_is_done_once() {
            shuttle::check_random(
                || drop(run(3, &[5, 1, 1, 1, 1, 3], |_| thread::yield_now())),
                3000,
            );
        }

        #[test]
        fn two_workers_and_three_units_in_every_interleaving() {
            shuttle::check_dfs(|| drop(run(2, &[1, 1, 1], |_| {})), Some(20_000));
        }
    }
}
