//! Threads keep apart what each of them writes often: counters, open files. What processors would hand to
//! each other with every read costs more than the read, once there are many of them.

use floe_sync::process::{AtomicU64, AtomicUsize, Ordering};

/// Threads that can be told apart; more of them share.
const LANES: usize = 64;

/// Which lanes running threads have, a bit each.
static TAKEN: AtomicU64 = AtomicU64::new(0);
/// Deals lanes to threads beyond [`LANES`].
static BEYOND: AtomicUsize = AtomicUsize::new(0);

/// The lane of a thread, given back as it ends: the next pass has new threads.
struct Lane {
    number: usize,
    shared: bool,
}

impl Lane {
    fn take() -> Self {
        // Relaxed: numbers, by which nothing is ordered.
        let lowest_free = |taken: u64| taken.checked_add(1).map(|next| taken | next);
        match TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lowest_free) {
            Ok(taken) => Self { number: taken.trailing_ones() as usize, shared: false },
            Err(_) => Self { number: BEYOND.fetch_add(1, Ordering::Relaxed) % LANES, shared: true },
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if !self.shared {
            TAKEN.fetch_and(!(1 << self.number), Ordering::Relaxed);
        }
    }
}

/// The lane of the calling thread: below [`LANES`], low numbers first, nobody else's while there are
/// enough.
pub(crate) fn mine() -> usize {
    thread_local! {
        static LANE: Lane = Lane::take();
    }
    // A thread that ends and drops its lane may still read.
    LANE.try_with(|lane| lane.number).unwrap_or(0)
}

/// One `T` for each lane, away from the others: two cache lines, since processors fetch them in pairs.
#[derive(Debug)]
pub(crate) struct Lanes<T>(Box<[OwnLines<T>]>);

#[derive(Debug, Default)]
#[repr(align(128))]
struct OwnLines<T>(T);

impl<T: Default> Default for Lanes<T> {
    fn default() -> Self {
        Self((0..LANES).map(|_| OwnLines::default()).collect())
    }
}

impl<T> Lanes<T> {
    /// That of the calling thread.
    pub(crate) fn mine(&self) -> &T {
        &self.0[mine()].0
    }

    /// Those of all threads.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|line| &line.0)
    }
}

#[cfg(test)]
mod tests {
    use floe_sync::Barrier;

    use super::*;

    #[test]
    fn threads_have_lanes_of_their_own_and_give_them_back() {
        // Other tests have lanes, too, while these run.
        let together = 16;
        for _ in 0..LANES {
            let barrier = Barrier::new(together);
            let mut lanes: Vec<usize> = floe_sync::thread::scope(|scope| {
                let one = || {
                    let lane = mine();
                    barrier.wait();
                    assert_eq!(mine(), lane);
                    lane
                };
                let threads: Vec<_> = (0..together).map(|_| scope.spawn(one)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            lanes.sort_unstable();
            lanes.dedup();
            assert_eq!(lanes.len(), together, "after all before gave theirs back");
        }
    }

    #[test]
    fn more_threads_than_lanes_share() {
        let sums = Lanes::<AtomicU64>::default();
        let barrier = Barrier::new(3 * LANES);
        floe_sync::thread::scope(|scope| {
            for _ in 0..3 * LANES {
                scope.spawn(|| {
                    sums.mine().fetch_add(1, Ordering::Relaxed);
                    barrier.wait();
                    sums.mine().fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        let all: Vec<u64> = sums.all().map(|sum| sum.load(Ordering::Relaxed)).collect();
        assert_eq!(all.iter().sum::<u64>(), 6 * LANES as u64, "{all:?}");
        assert!(all.iter().filter(|&&sum| sum > 0).count() > LANES / 2, "{all:?}");
    }
}
