//! A whole image, damaged by a script, mounted in memory, changed, and unmounted or left by a dying process.
#![no_main]

use std::sync::{LazyLock, Mutex, PoisonError};

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/fs/tests/all/mounted_image/mod.rs"]
mod mounted_image;

use mounted_image::Stages;

/// libFuzzer calls the target from a single thread, but its type does not express that.
static STAGES: LazyLock<Mutex<Stages>> = LazyLock::new(Mutex::default);

fuzz_target!(|script: &[u8]| {
    STAGES.lock().unwrap_or_else(PoisonError::into_inner).mount(script);
});
