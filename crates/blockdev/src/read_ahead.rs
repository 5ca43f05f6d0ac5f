//! Reads ahead where the system does not: what was announced is read in the background and kept until it is asked
//! for.
//!
//! A device works at many reads at a time, and a thread that reads past the page cache waits for one. One thread
//! of its own has many under way with io_uring ([`ring`]); where there is none, or the process must not use it,
//! several threads wait for a read each ([`helpers`]).

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

/// Memory that all of it takes, at most.
pub(crate) const MEMORY_BYTES: u64 = pieces::MEMORY_BYTES + helpers::MEMORY_BYTES;

/// What was announced of one file, and the threads that read it.
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
    /// There is something to read, and room for it; or the end.
    to_read: Condvar,
    /// A piece came that somebody waits for.
    came: Condvar,
    /// Nothing is announced, so nobody need look: a hint, right for who announced something.
    empty: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    pieces: Pieces,
    /// Threads that wait for something to read: nobody else is woken.
    idle: usize,
    ended: bool,
}

impl ReadAhead {
    /// For a file that is open for direct reads.
    ///
    /// # Errors
    /// What the system said when a thread was to be started.
    pub(crate) fn of(file: File, way: DirectReads) -> io::Result<Self> {
        #[cfg(feature = "io-uring")]
        if let Some(ring) = ring::of(&file) {
            let mut all = Self::idle(file, way);
            all.start(move |shared| ring::read_announced(shared, ring))?;
            return Ok(all);
        }
        Self::idle(file, way).by_threads()
    }

    /// With nobody who reads.
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

    /// With threads that each wait for a read.
    fn by_threads(mut self) -> io::Result<Self> {
        for _ in 0..helpers::COUNT {
            self.start(helpers::read_announced)?;
        }
        Ok(self)
    }

    /// Starts a thread that reads.
    fn start(&mut self, read: impl FnOnce(&Shared) + Send + 'static) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name("floe-read-ahead".to_owned());
        self.threads.push(thread.spawn(move || read(&shared))?);
        Ok(())
    }

    /// This range will be read soon. It lies inside the file.
    pub(crate) fn announce(&self, offset_bytes: u64, len_bytes: u64) {
        // Nothing has to be copied to where it is aligned, then.
        let before = offset_bytes % self.shared.way.align_bytes();
        let mut state = self.shared.lock();
        state.pieces.announce(offset_bytes - before, len_bytes.saturating_add(before));
        self.shared.end_change(state);
    }

    /// Fills `into` if its range was announced as a whole. `false`: the range has to be read.
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
            // A panic was told of when it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says what others need know of a change, and wakes a thread if there is something for it to read. It wakes the
    /// next one.
    fn end_change(&self, state: MutexGuard<'_, State>) {
        self.empty.store(state.pieces.all.is_empty(), Ordering::Relaxed);
        let to_do = state.idle > 0 && state.pieces.has_next();
        drop(state);
        if to_do {
            self.to_read.notify_one();
        }
    }

    /// Waits until there is something to read, or the end.
    fn wait_for_work<'s>(&self, mut state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        state.idle += 1;
        let mut state = self.to_read.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.idle -= 1;
        state
    }

    /// Looks for a range in what was announced, and waits for it if it is being read.
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
