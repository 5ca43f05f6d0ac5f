//! Workers that take units of work from one queue and keep what they find to themselves.

use crate::accumulate::Accumulator;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::thread;

/// How many workers serve a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    threads: usize,
}

impl Pool {
    /// `threads` workers; at least one.
    pub const fn new(threads: usize) -> Self {
        Self { threads: if threads == 0 { 1 } else { threads } }
    }

    /// Number of workers.
    pub const fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `work` on each of `units`, in order of their index within a worker, and merges what
    /// the workers accumulated. With one worker, or one unit, no thread is started.
    ///
    /// Units are handed out one at a time, so a slow unit delays only its own worker.
    pub fn run<U, A, F>(&self, units: &[U], work: F) -> A
    where
        U: Sync,
        A: Accumulator,
        F: Fn(&mut A, &U) + Sync,
    {
        let workers = self.threads.min(units.len());
        if workers <= 1 {
            let mut all = A::default();
            units.iter().for_each(|unit| work(&mut all, unit));
            return all;
        }
        let next = AtomicUsize::new(0);
        let share = || {
            let mut own = A::default();
            // Relaxed: the counter hands out indexes and orders nothing else.
            while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
                work(&mut own, unit);
            }
            own
        };
        thread::scope(|scope| {
            let others: Vec<_> = (1..workers).map(|_| scope.spawn(share)).collect();
            let mut all = share();
            for other in others {
                match other.join() {
                    Ok(own) => all.merge(own),
                    // A worker's panic is a bug of ours: let it end the run as it would have.
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            all
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Sum(u64);
    impl Accumulator for Sum {
        fn merge(&mut self, other: Self) {
            self.0 += other.0;
        }
    }

    #[test]
    fn every_unit_is_done_once() {
        let units: Vec<u64> = (0..1000).collect();
        for threads in [0, 1, 2, 3, 16, 2000] {
            let Sum(sum) = Pool::new(threads).run(&units, |sum: &mut Sum, unit| sum.0 += unit);
            assert_eq!(sum, 499_500);
        }
    }
}
