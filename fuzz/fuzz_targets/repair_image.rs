//! A whole image, damaged by a script, repaired, checked again, and undone.
#![no_main]

use std::sync::{LazyLock, Mutex, PoisonError};

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/repair/tests/all/repaired_image/mod.rs"]
mod repaired_image;

use repaired_image::Stages;

/// libFuzzer calls the target from a single thread, but its type does not express that.
static STAGES: LazyLock<Mutex<Stages>> = LazyLock::new(Mutex::default);

fuzz_target!(|script: &[u8]| {
    STAGES.lock().unwrap_or_else(PoisonError::into_inner).repair(script);
});
