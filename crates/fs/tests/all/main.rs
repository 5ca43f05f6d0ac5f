//! All integration tests of the crate in one program, because each program links the whole stack.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod cubes;
mod faults;
mod fuzz_inputs;
mod logs;
mod memory;
mod mounted_image;
