//! No bytes can make a decoder panic, loop or lose information: random bytes, and those with which
//! a fuzzer once found a fault (`fuzz/regressions/decode`).

use std::path::Path;

use proptest::prelude::*;

use crate::every_decoder::decode_everything;

#[test]
fn inputs_that_once_hurt_do_not_any_more() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/regressions/decode");
    let Ok(listing) = std::fs::read_dir(&folder) else { return };
    for file in listing.map(|entry| entry.expect("listed").path()) {
        eprintln!("{}", file.display());
        decode_everything(&std::fs::read(&file).expect("readable"));
    }
}

#[test]
fn plain_patterns_of_every_length() {
    for len in (0..300).chain([1023, 1024, 1025, 4096, 65535, 65536]) {
        for byte in [0, 1, 0x7f, 0x80, 0xff] {
            decode_everything(&vec![byte; len]);
        }
    }
}

proptest! {
    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..2100)) {
        decode_everything(&bytes);
    }
}
