//! Sorting lists that are in order but for a few places: those of several workers, one after the other.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use floe_exec::Pool;

use super::pieces::places;

/// Stretches are worth being told apart from this many elements on.
const WORTH: usize = 8;

/// As [`slice::sort_by_key`], with the same result, but fast for a list of sorted stretches, such
/// as those of workers that took chunks of a table in turns: it moves as many elements at once as
/// precede the other stretches. All workers of `pool` search for the ends of stretches.
pub(crate) fn sort_stretches<T: Copy + Sync, K: Ord>(
    all: &mut Vec<T>,
    key: impl Fn(&T) -> K + Sync,
    pool: &Pool,
) {
    // The evidence of shards is. One worker sees that sooner than all of them list that there are no ends.
    if all.is_sorted_by_key(&key) {
        return;
    }
    let pairs = all.len().saturating_sub(1);
    let ends = places(pairs, pool, |at| key(&all[at]) > key(&all[at + 1]));
    if ends.is_empty() {
        return;
    }
    if ends.len() > all.len() / WORTH + WORTH {
        all.sort_by_key(key);
        return;
    }
    let starts = std::iter::once(0).chain(ends.iter().map(|last| last + 1));
    let ends = ends.iter().map(|last| last + 1).chain(std::iter::once(all.len()));
    let mut stretches: Vec<_> = starts.zip(ends).map(|(start, end)| &all[start..end]).collect();
    let mut sorted = Vec::with_capacity(all.len());
    // The rest of each stretch, by its first key; equal keys in the order of the stretches.
    let mut heads: BinaryHeap<_> =
        stretches.iter().enumerate().map(|(at, stretch)| Reverse((key(&stretch[0]), at))).collect();
    while let Some(Reverse((_, at))) = heads.pop() {
        let rest = stretches[at];
        let before = heads.peek().map_or(rest.len(), |Reverse((next, other))| {
            how_many(rest, |element| {
                let own = key(element);
                own < *next || own == *next && at < *other
            })
        });
        let (now, later) = rest.split_at(before);
        sorted.extend_from_slice(now);
        stretches[at] = later;
        if let Some(first) = later.first() {
            heads.push(Reverse((key(first), at)));
        }
    }
    *all = sorted;
}

/// How many elements `comes_first` holds for: the first ones, at least one. Asks about those nearby first.
fn how_many<T>(elements: &[T], comes_first: impl Fn(&T) -> bool) -> usize {
    let mut beyond = 1;
    while elements.get(beyond).is_some_and(&comes_first) {
        beyond *= 2;
    }
    let (known, end) = (beyond / 2, beyond.min(elements.len()));
    known + elements[known..end].partition_point(comes_first)
}

#[cfg(test)]
mod tests {
    use floe_sync::atomic::{AtomicUsize, Ordering};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_result_is_that_of_a_stable_sort(
            stretches in proptest::collection::vec((0u16..200, 0usize..40, 0u16..3), 0..12),
        ) {
            let mut all = Vec::new();
            for (first, len, step) in stretches {
                all.extend((0..len as u16).map(|at| first + at * step));
            }
            let mut all: Vec<(u16, usize)> =
                all.into_iter().enumerate().map(|(at, key)| (key, at)).collect();
            let mut expected = all.clone();
            expected.sort_by_key(|element| element.0);
            sort_stretches(&mut all, |element| element.0, &Pool::new(2));
            prop_assert_eq!(all, expected);
        }
    }

    #[test]
    fn parts_taken_in_turns_are_not_compared_element_by_element() {
        // Four workers took parts of 1000 in turns.
        let parts = |me: u32| (0..25).map(move |turn| (turn * 4 + me) * 1000);
        let mut all: Vec<u32> =
            (0..4).flat_map(|me| parts(me).flat_map(|from| from..from + 1000)).collect();
        let asked = AtomicUsize::new(0);
        let key = |element: &u32| {
            asked.fetch_add(1, Ordering::Relaxed);
            *element
        };
        sort_stretches(&mut all, key, &Pool::new(2));
        let asked = asked.into_inner();
        assert!(all.iter().copied().eq(0..100_000));
        // Two for each element, and two more for each before the first end of a stretch.
        assert!(asked < 260_000, "{asked} keys for 100,000 elements");
    }
}
