//! A whole image, damaged by a script, checked with 1 and with 2 threads.
#![no_main]

use std::sync::{LazyLock, Mutex, PoisonError};

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/check/tests/all/fuzzed_image/mod.rs"]
mod fuzzed_image;

use fuzzed_image::Stages;

/// libFuzzer calls the target from a single thread, but its type does not express that.
static STAGES: LazyLock<Mutex<Stages>> = LazyLock::new(Mutex::default);

fuzz_target!(|script: &[u8]| {
    STAGES.lock().unwrap_or_else(PoisonError::into_inner).check(script);
});
