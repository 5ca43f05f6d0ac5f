//! All integration tests of the crate in one program, because each program links the whole stack.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod cubes;
mod faults;
mod fuzz_inputs;
mod logs;
mod memory;
mod mounted_image;

/// The seed by which directories get their places in tests of damaged logs. `FLOE_LAYOUT` gives another, to look for rare layouts.
fn layout_seed() -> u64 {
    std::env::var("FLOE_LAYOUT").ok().and_then(|text| text.parse().ok()).unwrap_or(7)
}
