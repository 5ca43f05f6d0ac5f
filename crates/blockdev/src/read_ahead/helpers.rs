//! Threads that each wait for one read at a time (`pread`).

use super::Shared;
use super::pieces::{PIECE_BYTES, ToRead};

/// Threads, each with one read in flight.
pub(super) const COUNT: usize = 8;
/// Memory of all threads: bounce buffers for unaligned pieces, and stacks.
pub(super) const MEMORY_BYTES: u64 = COUNT as u64 * (PIECE_BYTES + (64 << 10));

/// The body of a thread.
pub(super) fn read_announced(shared: &Shared) {
    let mut state = shared.lock();
    while !state.ended {
        let Some(ToRead { at, len, mut memory }) = state.pieces.begin_next(shared.way) else {
            state = shared.wait_for_work(state);
            continue;
        };
        shared.end_change(state);
        let into = &mut memory.bytes_mut()[..len as usize];
        let outcome = shared.way.read_exact_at(&shared.file, into, at);
        state = shared.lock();
        if state.pieces.finish(at, outcome.is_ok().then_some(memory)) {
            shared.came.notify_all();
        }
    }
}
