//! How long a commit waits for others, so that one flush serves them, too.
//!
//! Programs that each wait for their own changes come back soon after the flush that served them. Whoever writes the next
//! transaction waits for as many as there were then, an eighth of the time of a flush at most; where flushes are fast, or where
//! nobody else waited, not at all.

use std::time::Duration;

use floe_blockdev::WriteBlocks;
use floe_sync::atomic::{AtomicUsize, Ordering};
use floe_sync::thread;

use super::Journal;
use super::shared::Flushes;

/// A commit waits for the time of a flush, divided by this, at most.
const PART: u128 = 8;
/// From one look whether the others are there to the next.
const SLICE: Duration = Duration::from_micros(50);
/// Most looks.
const MOST_SLICES: u32 = 200;

/// How often a flush lets others go first that are about to ask for one, before it waits for them.
pub(super) const MOST_YIELDS: u32 = 3;

impl Flushes {
    /// How often a commit looks for others, by the time that the last flush took.
    pub(super) fn patience(&self) -> u32 {
        let slices = self.took.as_micros() / PART / SLICE.as_micros();
        u32::try_from(slices).unwrap_or(MOST_SLICES).min(MOST_SLICES)
    }
}

/// A thread that waits for its changes; dropped when it has them.
pub(super) struct Waiter<'w>(&'w AtomicUsize);

impl<'w> Waiter<'w> {
    pub(super) fn new(count: &'w AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<D: WriteBlocks> Journal<D> {
    /// Waits a little until as many wait for their changes as when the last flush ended.
    pub(super) fn let_others_join(&self) {
        let (mut left, known) = {
            let shared = self.lock();
            (shared.flushes.patience(), shared.flushes.waiters)
        };
        while left > 0 && self.waiting.load(Ordering::SeqCst) < known {
            thread::sleep(SLICE);
            left -= 1;
        }
    }

    /// Lets others go first that are about to ask for a flush; `turns` counts how often.
    pub(super) fn let_others_write(turns: u32) {
        if turns < MOST_YIELDS { thread::yield_now() } else { thread::sleep(SLICE) }
    }
}
