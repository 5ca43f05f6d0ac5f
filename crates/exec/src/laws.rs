//! The law of accumulators, as a property test: [`accumulator_laws!`](crate::accumulator_laws).
//!
//! For tests alone (feature `laws` makes it available to the tests of other crates).

use std::fmt::Debug;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};

use crate::Accumulator;

/// Workers that share the items of one case, at most.
const MOST_WORKERS: usize = 8;
/// Items of one case, at most.
const MOST_ITEMS: usize = 64;

/// Makes the property test of an [`Accumulator`]: neither the order of merges, nor the division of
/// the work, nor the order within a worker affects the result.
///
/// - the accumulator's type;
/// - a proptest strategy for one item of work (`Value: Clone + Debug`);
/// - a function that adds an item: `Fn(&mut Type, Item)`;
/// - a function that extracts the visible result: `Fn(Type) -> impl PartialEq + Debug`.
///
/// Use it once per module, because it defines a test with a fixed name.
///
/// ```ignore
/// accumulator_laws!(LinkCounts, 1u32..20, |all: &mut LinkCounts, inode| all.add(inode, 1),
///     |all: LinkCounts| all.into_sorted_vec());
/// ```
#[macro_export]
macro_rules! accumulator_laws {
    ($accumulator:ty, $items:expr, $add:expr, $observe:expr $(,)?) => {
        #[test]
        fn neither_division_nor_order_of_merges_can_be_seen() {
            $crate::laws::check::<$accumulator, _, _>(file!(), $items, $add, $observe);
        }
    };
}

/// One division of the work: which worker gets each item, the order of the items, and the order
/// (and nesting) of the merges.
#[derive(Clone, Debug)]
struct Division {
    workers: Vec<usize>,
    order: Vec<u32>,
    merges: Vec<(usize, usize)>,
}

fn divisions() -> impl Strategy<Value = Division> {
    let merge = (0..MOST_WORKERS, 0..MOST_WORKERS);
    (
        prop::collection::vec(0..MOST_WORKERS, MOST_ITEMS),
        prop::collection::vec(any::<u32>(), MOST_ITEMS),
        prop::collection::vec(merge, MOST_WORKERS),
    )
        .prop_map(|(workers, order, merges)| Division { workers, order, merges })
}

impl Division {
    /// Adds all items with these workers and merges the accumulators in this order.
    fn accumulate<A: Accumulator, I: Clone>(&self, items: &[I], add: &impl Fn(&mut A, I)) -> A {
        let mut shares: Vec<A> = (0..MOST_WORKERS).map(|_| A::default()).collect();
        let mut taken: Vec<usize> = (0..items.len()).collect();
        taken.sort_by_key(|&index| self.order.get(index));
        for index in taken {
            let worker = self.workers.get(index).copied().unwrap_or(0);
            add(&mut shares[worker], items[index].clone());
        }
        for &(into, from) in &self.merges {
            if shares.len() > 1 {
                let share = shares.swap_remove(from % shares.len());
                let into = into % shares.len();
                shares[into].merge(share);
            }
        }
        // Merges the rest into an empty accumulator, because that must have no effect, either.
        let mut all = A::default();
        shares.into_iter().for_each(|share| all.merge(share));
        all
    }
}

/// The test behind [`accumulator_laws!`](crate::accumulator_laws); `file` is its source file, so
/// that a failing case is stored next to it.
///
/// # Panics
/// If the law is broken, with the smallest case found.
#[allow(clippy::panic)] // Tests fail by panicking.
pub fn check<A, S, O>(
    file: &'static str,
    items: S,
    add: impl Fn(&mut A, S::Value),
    observe: impl Fn(A) -> O,
) where
    A: Accumulator,
    S: Strategy,
    S::Value: Clone,
    O: PartialEq + Debug,
{
    let mut runner = TestRunner::new(Config::with_source_file(file));
    let cases = (prop::collection::vec(items, 0..MOST_ITEMS), divisions());
    let outcome = runner.run(&cases, |(items, division)| {
        let mut alone = A::default();
        items.iter().cloned().for_each(|item| add(&mut alone, item));
        let (alone, shared) = (observe(alone), observe(division.accumulate(&items, &add)));
        if alone == shared {
            return Ok(());
        }
        Err(TestCaseError::fail(format!("alone: {alone:?}\nshared: {shared:?}")))
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(why, case)) => {
            panic!("the division of the work affects the result: {why}\n{case:#?}")
        }
        Err(TestError::Abort(why)) => panic!("no verdict: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Sum(u64);
    impl Accumulator for Sum {
        fn merge(&mut self, other: Self) {
            self.0 += other.0;
        }
    }

    crate::accumulator_laws!(Sum, 0u64..1000, |sum: &mut Sum, item| sum.0 += item, |sum: Sum| sum
        .0);

    /// Breaks the law: keeps the first item it sees.
    #[derive(Default)]
    struct First(Option<u64>);
    impl Accumulator for First {
        fn merge(&mut self, other: Self) {
            self.0 = self.0.or(other.0);
        }
    }

    /// Breaks the law: counts merges of empty accumulators.
    #[derive(Default)]
    struct Merges(u64);
    impl Accumulator for Merges {
        fn merge(&mut self, other: Self) {
            self.0 += other.0 + 1;
        }
    }

    #[test]
    fn a_broken_law_is_found() {
        let first = std::panic::catch_unwind(|| {
            let add = |first: &mut First, item| first.0 = first.0.or(Some(item));
            check("", 0u64..9, add, |first: First| first.0);
        });
        assert!(first.is_err());
        let merges = std::panic::catch_unwind(|| {
            check("", 0u64..9, |merges: &mut Merges, item| merges.0 += item, |merges| merges.0);
        });
        assert!(merges.is_err());
    }
}
