//! The laws of the fuzz target, on bytes similar to real archives.

use std::io::Write;

use floe_archive::{Entry, Kind, Part, Writer};
use proptest::prelude::*;

use crate::any_bytes;

fn archive() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    let list = b"user.a".to_vec();
    let long = [b'n'; 300];
    for path in [&b"a"[..], &long, b"d/"] {
        let attributes = vec![(list.clone(), vec![0; 9])];
        let entry = Entry { size: 700, attributes, ..Entry::new(path, Kind::File) };
        writer.append(&entry).unwrap();
        writer.write_all(&[b'7'; 700]).unwrap();
    }
    let parts = vec![Part { at: 512, len: 100, from: 0 }];
    let sparse = Entry { size: 4096, parts, ..Entry::new(b"sparse", Kind::File) };
    writer.append_sparse(&sparse).unwrap();
    writer.write_all(&[1; 100]).unwrap();
    writer.append(&Entry { link: b"a".to_vec(), ..Entry::new(b"h", Kind::HardLink) }).unwrap();
    writer.finish().unwrap()
}

proptest! {
    #[test]
    fn changed_archives(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12)) {
        let mut bytes = archive();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        any_bytes::read_all(&bytes);
    }

    #[test]
    fn changed_types(flags in proptest::collection::vec("[0-7xgLKSDVXNM]", 16)) {
        let mut bytes = archive();
        for (block, flag) in bytes.as_chunks_mut::<512>().0.iter_mut().zip(flags) {
            block[156] = flag.as_bytes()[0];
        }
        any_bytes::read_all(&bytes);
    }

    #[test]
    fn noise(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
        any_bytes::read_all(&bytes);
    }
}
