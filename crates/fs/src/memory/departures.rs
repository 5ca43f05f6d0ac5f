//! Names that a file with several loses, counted by thread, so that threads that remove its names share no memory.
//!
//! Whoever removes a name has the lock of a cell of the file until that is logged; whoever else changes the file has the
//! locks of all its cells, and adds them to its number of links first. So between two other changes names only go, and names that go
//! commute: on the disk, too, in whichever batches they get there. A thread that gives a file a name waits for all that go, and
//! knows whether any is left.
//!
//! Whether a name was the last one is not known to the thread that removes it, but to the one who adds them up. A file has
//! cells from its second name in memory on.

use floe_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use floe_sync::{Mutex, MutexGuard, PoisonError, thread_number};

use super::apart::Apart;
use super::pages::{pack, unpack};
use super::record::Stamp;
use super::status::Version;
use crate::Timestamp;

/// Cells of a file, which threads have by turns.
const CELLS: usize = 4;
/// A file with cells takes as much memory as so many names more.
pub(super) const NAMES_PER_DEPARTURES: usize = 3;

/// The names that a file lost since the last sum.
#[derive(Debug)]
pub(crate) struct Departures {
    cells: [Apart<Cell>; CELLS],
    /// The thread that gave the file its second name. It most likely removes the first one, as mail servers do, and counts that in
    /// the file itself, so that it learns whether it was the last.
    giver: usize,
}

#[derive(Debug, Default)]
struct Cell {
    /// The last change by whoever had this lock.
    last: Mutex<Stamp>,
    version: Version,
    links: AtomicU32,
    /// The last time a name went, packed; 0 for never.
    time: AtomicU64,
}

impl Cell {
    fn lock(&self) -> MutexGuard<'_, Stamp> {
        // A panic in a change ends all changes.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self) -> (u32, Option<Timestamp>) {
        let load = || (self.links.load(Ordering::Relaxed), self.time.load(Ordering::Relaxed));
        let (links, time) = self.version.read(load);
        (links, unpack(time))
    }

    fn set(&self, links: u32, time: u64) {
        self.version.begin();
        self.links.store(links, Ordering::Relaxed);
        self.time.store(time, Ordering::Relaxed);
        self.version.end();
    }
}

impl Departures {
    /// Those of a file that this thread gives its second name.
    pub(crate) fn new(stamp: Stamp) -> Self {
        let cell = |()| Apart(Cell { last: Mutex::new(stamp), ..Cell::default() });
        Self { cells: [(); CELLS].map(cell), giver: thread_number() }
    }

    /// The right of this thread to remove a name, beside others who do; `None` if it is to count that in the file itself.
    pub(crate) fn share(&self) -> Option<Departing<'_>> {
        let number = thread_number();
        let cell = &self.cells[number % CELLS];
        (number != self.giver).then(|| Departing { cell, last: cell.lock() })
    }

    /// Keeps all others away who remove names.
    pub(crate) fn lock(&self) -> [MutexGuard<'_, Stamp>; CELLS] {
        self.cells.each_ref().map(|cell| cell.lock())
    }

    /// The names that went, and when the last one did.
    pub(crate) fn sum(&self) -> (u32, Option<Timestamp>) {
        let cells = self.cells.iter().map(|cell| cell.get());
        cells.fold((0, None), |(sum, last), (links, time)| (sum + links, last.max(time)))
    }

    /// The file counts them now. The caller has the locks of all cells, or is alone.
    pub(crate) fn forget(&self) {
        let set = self.cells.iter().filter(|cell| cell.get() != (0, None));
        set.for_each(|cell| cell.set(0, 0));
    }
}

/// The locks of all cells of a file.
pub(crate) type AllDepartures<'s> = [MutexGuard<'s, Stamp>; CELLS];

/// The right to remove a name of a file beside others who do.
pub(crate) struct Departing<'s> {
    cell: &'s Cell,
    last: MutexGuard<'s, Stamp>,
}

impl Departing<'_> {
    /// The last change that this one must be behind.
    pub(crate) fn last(&self) -> Stamp {
        *self.last
    }

    /// A name goes.
    pub(crate) fn count(&mut self, stamp: Stamp, time: Timestamp) {
        *self.last = stamp;
        let links = self.cell.links.load(Ordering::Relaxed);
        let before = self.cell.time.load(Ordering::Relaxed);
        self.cell.set(links + 1, before.max(pack(time)));
    }
}
