//! Per-thread slots, each on its own cache lines, for data that threads write often: counters, open
//! files. Without them, false sharing costs more than the reads do once there are many threads.

use floe_sync::process::{AtomicU64, AtomicUsize, Ordering};

/// Threads with a slot of their own; more threads share slots.
const SLOTS: usize = 64;

/// The slots in use by running threads, a bit each.
static TAKEN: AtomicU64 = AtomicU64::new(0);
/// Assigns slots round-robin to threads beyond [`SLOTS`].
static BEYOND: AtomicUsize = AtomicUsize::new(0);

/// The slot of a thread, released when the thread ends, because each pass starts new threads.
struct Slot {
    number: usize,
    shared: bool,
}

impl Slot {
    fn take() -> Self {
        // Relaxed: the number orders nothing.
        let lowest_free = |taken: u64| taken.checked_add(1).map(|next| taken | next);
        match TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lowest_free) {
            Ok(taken) => Self { number: taken.trailing_ones() as usize, shared: false },
            Err(_) => Self { number: BEYOND.fetch_add(1, Ordering::Relaxed) % SLOTS, shared: true },
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.shared {
            TAKEN.fetch_and(!(1 << self.number), Ordering::Relaxed);
        }
    }
}

/// The slot number of the calling thread: below [`SLOTS`], low numbers first, exclusive while there
/// are enough.
pub(crate) fn slot() -> usize {
    thread_local! {
        static SLOT: Slot = Slot::take();
    }
    // A thread that is ending may still read after it dropped its slot.
    SLOT.try_with(|slot| slot.number).unwrap_or(0)
}

/// One `T` per slot, each on two cache lines, because processors prefetch them in pairs.
#[derive(Debug)]
pub(crate) struct PerThread<T>(Box<[OwnLines<T>]>);

#[derive(Debug, Default)]
#[repr(align(128))]
struct OwnLines<T>(T);

impl<T: Default> Default for PerThread<T> {
    fn default() -> Self {
        Self((0..SLOTS).map(|_| OwnLines::default()).collect())
    }
}

impl<T> PerThread<T> {
    /// The slot of the calling thread.
    pub(crate) fn mine(&self) -> &T {
        &self.0[slot()].0
    }

    /// The slots of all threads.
    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|line| &line.0)
    }
}

#[cfg(test)]
mod tests {
    use floe_sync::{Barrier, Mutex, MutexGuard, PoisonError};

    use super::*;

    /// Held by tests of which one would take the slots of the other: both run in one process.
    static SLOTS_IN_USE: Mutex<()> = Mutex::new(());

    fn alone() -> MutexGuard<'static, ()> {
        SLOTS_IN_USE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn threads_have_slots_of_their_own_and_release_them() {
        let _alone = alone();
        // Other tests use slots at the same time.
        let together = 16;
        for _ in 0..SLOTS {
            let barrier = Barrier::new(together);
            let mut slots: Vec<usize> = floe_sync::thread::scope(|scope| {
                let one = || {
                    let mine = slot();
                    barrier.wait();
                    assert_eq!(slot(), mine);
                    mine
                };
                let threads: Vec<_> = (0..together).map(|_| scope.spawn(one)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            slots.sort_unstable();
            slots.dedup();
            assert_eq!(slots.len(), together, "after the earlier threads released theirs");
        }
    }

    #[test]
    fn more_threads_than_slots_share() {
        let _alone = alone();
        let sums = PerThread::<AtomicU64>::default();
        let barrier = Barrier::new(3 * SLOTS);
        floe_sync::thread::scope(|scope| {
            let work = || {
                sums.mine().fetch_add(1, Ordering::Relaxed);
                barrier.wait();
                sums.mine().fetch_add(1, Ordering::Relaxed);
            };
            let threads: Vec<_> = (0..3 * SLOTS).map(|_| scope.spawn(work)).collect();
            // The end of a scope does not wait until its threads have released their slots.
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        let all: Vec<u64> = sums.all().map(|sum| sum.load(Ordering::Relaxed)).collect();
        assert_eq!(all.iter().sum::<u64>(), 6 * SLOTS as u64, "{all:?}");
        assert!(all.iter().filter(|&&sum| sum > 0).count() > SLOTS / 2, "{all:?}");
    }
}
