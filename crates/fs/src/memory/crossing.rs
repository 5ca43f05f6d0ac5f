//! Waits of one cube for another: changes on their way to the disk are made one after the other.

use std::time::{Duration, Instant};

use floe_format::InodeNr;
use floe_sync::Alone;
use floe_sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::lower::Lower;
use super::{MemFs, before_waiting};

/// The cube that changes the disk, and how often somebody waited meanwhile for another cube.
#[derive(Debug, Default)]
pub(super) struct Crossings {
    /// The cube that changes something, plus 1; 0: none does.
    holder: AtomicU32,
    waits: AtomicU64,
    nanoseconds: AtomicU64,
}

/// The right to change the disk.
pub(super) struct Below<'m> {
    crossings: &'m Crossings,
    _alone: Alone<'m, (), ()>,
}

impl Drop for Below<'_> {
    fn drop(&mut self) {
        self.crossings.holder.store(0, Ordering::Relaxed);
    }
}

impl<L: Lower> MemFs<L> {
    /// Waits until nobody else changes the disk, or reads it, for a change in the cube of an inode.
    pub(super) fn changing_below(&self, home: InodeNr) -> Below<'_> {
        before_waiting();
        let (crossings, own) = (&self.crossings, self.cube_of(home) + 1);
        let holder = crossings.holder.load(Ordering::Relaxed);
        let since = (holder != 0 && holder != own).then(Instant::now);
        let alone = self.below.alone();
        if let Some(since) = since {
            let waited = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
            crossings.waits.fetch_add(1, Ordering::Relaxed);
            crossings.nanoseconds.fetch_add(waited, Ordering::Relaxed);
        }
        crossings.holder.store(own, Ordering::Relaxed);
        Below { crossings, _alone: alone }
    }

    /// How often a change of one cube waited on its way to the disk because one of another cube was being made, and how long in
    /// all.
    pub fn crossings(&self) -> (u64, Duration) {
        let (waits, time) = (&self.crossings.waits, &self.crossings.nanoseconds);
        (waits.load(Ordering::Relaxed), Duration::from_nanos(time.load(Ordering::Relaxed)))
    }
}
