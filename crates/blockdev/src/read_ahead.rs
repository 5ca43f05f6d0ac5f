//! Prefetching for reads that bypass the page cache: announced ranges are read in the background
//! and kept until they are requested.
//!
//! A device serves many reads concurrently, but a thread that reads past the page cache waits for
//! one. A dedicated thread keeps many reads in flight with io_uring ([`ring`]). If io_uring is
//! missing or forbidden, several threads each wait for one read ([`helpers`]).

mod helpers;
#[cfg(all(test, feature = "shuttle"))]
mod interleavings;
mod pieces;
#[cfg(feature = "io-uring")]
mod ring;

use floe_sync::atomic::{AtomicBool, Ordering};
use floe_sync::thread::{self, JoinHandle};
use floe_sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::fs::File;
use std::io;

use crate::direct::DirectReads;
use pieces::{Found, Pieces};

/// Upper limit of the memory used for prefetching.
pub(crate) const MEMORY_BYTES: u64 = pieces::MEMORY_BYTES + helpers::MEMORY_BYTES;

/// The announced ranges of one file, and the threads that read them.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    file: File,
    way: DirectReads,
    state: Mutex<State>,
    /// Signals that there is something to read, and memory for it; or that the threads must end.
    to_read: Condvar,
    /// Signals that a piece arrived that a reader waits for.
    came: Condvar,
    /// Nothing is announced, so readers can skip the lookup. Only a hint, but exact for the thread
    /// that announced.
    empty: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    pieces: Pieces,
    /// Threads that wait for work; only these need to be woken.
    idle: usize,
    ended: bool,
}

impl ReadAhead {
    /// A prefetcher for a file that is open for direct reads.
    ///
    /// # Errors
    /// The system's error, if a thread cannot be started.
    pub(crate) fn of(file: File, way: DirectReads) -> io::Result<Self> {
        #[cfg(feature = "io-uring")]
        if let Some(ring) = ring::of(&file) {
            let mut all = Self::idle(file, way);
            all.start(move |shared| ring::read_announced(shared, ring))?;
            return Ok(all);
        }
        Self::idle(file, way).by_threads()
    }

    /// A prefetcher without threads.
    fn idle(file: File, way: DirectReads) -> Self {
        let shared = Arc::new(Shared {
            file,
            way,
            state: Mutex::default(),
            to_read: Condvar::new(),
            came: Condvar::new(),
            empty: AtomicBool::new(true),
        });
        Self { shared, threads: Vec::new() }
    }

    /// Adds threads that each wait for one read.
    fn by_threads(mut self) -> io::Result<Self> {
        for _ in 0..helpers::COUNT {
            self.start(helpers::read_announced)?;
        }
        Ok(self)
    }

    /// Starts a reading thread.
    fn start(&mut self, read: impl FnOnce(&Shared) + Send + 'static) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name("floe-read-ahead".to_owned());
        self.threads.push(thread.spawn(move || read(&shared))?);
        Ok(())
    }

    /// Prefetches a range, which must lie inside the file.
    pub(crate) fn announce(&self, offset_bytes: u64, len_bytes: u64) {
        // Starting at an aligned offset avoids copies.
        let before = offset_bytes % self.shared.way.align_bytes();
        let mut state = self.shared.lock();
        state.pieces.announce(offset_bytes - before, len_bytes.saturating_add(before));
        self.shared.end_change(state);
    }

    /// Fills `into` if its whole range was prefetched. `false`: the caller must read the range
    /// itself.
    pub(crate) fn take(&self, offset_bytes: u64, into: &mut [u8]) -> bool {
        if self.shared.empty.load(Ordering::Relaxed) {
            return false;
        }
        match self.shared.find(offset_bytes, into) {
            Found::Nothing | Found::Soon => false,
            Found::Copied => true,
            Found::Whole(bytes) => {
                into.copy_from_slice(&bytes.bytes()[..into.len()]);
                let mut state = self.shared.lock();
                state.pieces.release(bytes, into.len() as u64);
                self.shared.end_change(state);
                true
            }
        }
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.to_read.notify_all();
        for thread in self.threads.drain(..) {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes a change of the state, and wakes one thread if there is something for it to read.
    /// That thread wakes the next one.
    fn end_change(&self, state: MutexGuard<'_, State>) {
        self.empty.store(state.pieces.all.is_empty(), Ordering::Relaxed);
        let to_do = state.idle > 0 && state.pieces.has_next();
        drop(state);
        if to_do {
            self.to_read.notify_one();
        }
    }

    /// Waits until there is something to read, or the threads must end.
    fn wait_for_work<'s>(&self, mut state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        state.idle += 1;
        let mut state = self.to_read.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.idle -= 1;
        state
    }

    /// Looks up a range, and waits for it if it is being read.
    fn find(&self, offset_bytes: u64, into: &mut [u8]) -> Found {
        let mut state = self.lock();
        loop {
            match state.pieces.find(offset_bytes, into) {
                Found::Soon => {
                    state = self.came.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                found => {
                    self.end_change(state);
                    return found;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
