//! One thread that keeps many reads in flight (io_uring), without a wake-up for each.

use std::fs::File;

use super::{Shared, helpers};
use crate::uring::{Read, Ring};

/// Reads in flight, at most: about the number of mapping blocks that two chunks of an inode table
/// name.
pub(super) const DEPTH: u32 = 256;

/// `None` if io_uring is missing or forbidden to this process.
pub(super) fn of(file: &File) -> Option<Ring> {
    Ring::of(file.try_clone().ok()?, DEPTH).ok()
}

/// The body of the thread.
pub(super) fn read_announced(shared: &Shared, mut ring: Ring) {
    let (mut to_read, mut done) = (Vec::new(), Vec::new());
    let mut state = shared.lock();
    while !state.ended {
        while ring.room() > to_read.len()
            && let Some(next) = state.pieces.begin_next(shared.way)
        {
            to_read.push(next);
        }
        if to_read.is_empty() && ring.is_idle() {
            state = shared.wait_for_work(state);
            continue;
        }
        drop(state);
        for piece in to_read.drain(..) {
            let ask_bytes = shared.way.whole_units(piece.len as usize);
            let read =
                Read { at: piece.at, len: piece.len as usize, ask_bytes, memory: piece.memory };
            done.extend(ring.begin(read).err().map(|read| (read.at, None)));
        }
        // Pieces announced meanwhile are started when the first of these reads completes.
        let outcome = ring.wait();
        ring.finished(|read, bytes| {
            // A file need not end at a unit boundary. A reader that requests the missing bytes gets
            // the error when it reads them itself.
            let whole = bytes.is_ok_and(|bytes| bytes >= read.len);
            done.push((read.at, whole.then_some(read.memory)));
        });
        if outcome.is_err() {
            done.extend(ring.offsets().map(|at| (at, None)));
        }
        state = shared.lock();
        let mut awaited = false;
        for (at, memory) in done.drain(..) {
            awaited |= state.pieces.finish(at, memory);
        }
        if awaited {
            shared.came.notify_all();
        }
        if outcome.is_err() {
            // The system has no more resources: fall back to one read at a time.
            drop(state);
            drop(ring);
            return helpers::read_announced(shared);
        }
    }
}
