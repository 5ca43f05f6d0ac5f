//! Arbitrary bytes, passed to every decoder.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/format/tests/all/every_decoder/mod.rs"]
mod every_decoder;

fuzz_target!(|bytes: &[u8]| every_decoder::decode_everything(bytes));
