//! Panics, which are bugs of ours: each ends the program as any crash does, but while a mount serves. That catches them at the
//! gate of the cube in whose call they happen, and serves the others on (docs/cubes.md).

use std::panic;
use std::process;

use floe_sync::atomic::{AtomicBool, Ordering};

/// A mount serves.
static CAUGHT: AtomicBool = AtomicBool::new(false);

/// Lets panics end the program from now on.
pub(crate) fn end_the_program() {
    let told = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        told(info);
        if !CAUGHT.load(Ordering::Relaxed) {
            process::abort();
        }
    }));
}

/// Lets panics unwind until it is dropped.
pub(crate) struct Caught(());

impl Caught {
    pub(crate) fn begin() -> Self {
        CAUGHT.store(true, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Caught {
    fn drop(&mut self) {
        CAUGHT.store(false, Ordering::Relaxed);
    }
}
