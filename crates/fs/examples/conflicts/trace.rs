//! Which memory a call touches, as the run-time of `cargo xtask conflicts` records it.
//!
//! That run-time stands behind the compiler's instrumentation for thread sanitizers: it sees each load and store of the
//! program. A store of a magic number to the first word of a buffer begins or ends a record of the calling thread, which it
//! leaves in the buffer. In a program that is not instrumented the records stay empty.

use std::collections::HashMap;

use floe_sync::atomic::{AtomicU64, Ordering};

const BEGIN: u64 = 0xf10e_c0de_0000_0001;
const END: u64 = 0xf10e_c0de_0000_0002;
/// Accesses that fit; two words each.
const CAPACITY: usize = 1 << 20;

/// A buffer for the accesses of one call.
pub(crate) struct Trace(Box<[AtomicU64]>);

/// Lines of 64 bytes: whether the call wrote there, and the address of the code that did so, or read.
pub(crate) type Lines = HashMap<u64, (bool, u64)>;

impl Trace {
    pub(crate) fn new() -> Self {
        Self((0..2 + 2 * CAPACITY).map(|_| AtomicU64::new(0)).collect())
    }

    /// Records what `call` touches.
    ///
    /// # Panics
    /// It touches more than fits.
    pub(crate) fn record<T>(&self, call: impl FnOnce() -> T) -> (T, Lines) {
        self.0[1].store(CAPACITY as u64, Ordering::SeqCst);
        self.0[0].store(BEGIN, Ordering::SeqCst);
        let value = call();
        self.0[0].store(END, Ordering::SeqCst);
        let word = |at: usize| self.0[at].load(Ordering::SeqCst);
        let count = if word(0) == END { 0 } else { word(1) };
        assert!(count < CAPACITY as u64, "a call touches too much memory to be recorded");
        let mut lines = Lines::new();
        for at in 0..count as usize {
            let (access, code) = (word(2 + 2 * at), word(3 + 2 * at));
            let writes = access & 1 == 1;
            let line = lines.entry(access >> 1).or_insert((writes, code));
            if writes && !line.0 {
                *line = (true, code);
            }
        }
        (value, lines)
    }
}

/// Where the first call conflicts with the second: the code of both. Two that only read do not.
pub(crate) fn conflicts(one: &Lines, other: &Lines) -> Vec<[u64; 2]> {
    let both = one.iter().filter_map(|(line, (writes, code))| {
        let (other_writes, other_code) = other.get(line)?;
        (*writes || *other_writes).then_some([*code, *other_code])
    });
    both.collect()
}
