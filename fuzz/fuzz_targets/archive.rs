//! Arbitrary bytes, read as a tar archive.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/archive/tests/all/any_bytes/mod.rs"]
mod any_bytes;

fuzz_target!(|bytes: &[u8]| any_bytes::read_all(bytes));
