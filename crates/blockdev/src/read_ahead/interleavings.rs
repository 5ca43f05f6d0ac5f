//! Explores interleavings of prefetching: no thread waits forever, and bytes returned are those of
//! the file.

use std::os::unix::fs::FileExt;

use floe_sync::{shuttle, thread};

use super::*;

const FILE_BYTES: u64 = 64 << 10;

/// A file whose bytes encode their offset; `None` where direct I/O is not supported.
fn made() -> Option<tempfile::NamedTempFile> {
    let file = tempfile::NamedTempFile::new_in(".").unwrap();
    let bytes: Vec<u8> = (0..FILE_BYTES).map(|at| (at >> 9) as u8).collect();
    file.as_file().write_all_at(&bytes, 0).unwrap();
    file.as_file().sync_all().unwrap();
    if DirectReads::of(&File::open(file.path()).unwrap()).is_err() {
        println!("skipped: no direct I/O here");
        return None;
    }
    Some(file)
}

/// Two threads prefetch for two that announce and take; then all are told to end.
fn announce_and_take(path: &std::path::Path) {
    let own = File::open(path).unwrap();
    let way = DirectReads::of(&own).unwrap();
    let mut ahead = ReadAhead::idle(own, way);
    for _ in 0..2 {
        ahead.start(helpers::read_announced).unwrap();
    }
    let ahead = Arc::new(ahead);
    let take = |ahead: &ReadAhead, at: u64| {
        ahead.announce(at, 8192);
        let mut into = [0xff; 4096];
        for part in [at + 4096, at] {
            if ahead.take(part, &mut into) {
                assert!((part..).zip(&into).all(|(at, &byte)| byte == (at >> 9) as u8), "{part}");
            }
        }
    };
    let other = Arc::clone(&ahead);
    let taking = thread::spawn(move || take(&other, 8192));
    take(&ahead, 16_384);
    // Announced and never requested: dropping must not wait for it.
    ahead.announce(32_768, 4096);
    taking.join().unwrap();
}

#[test]
fn nobody_waits_forever() {
    let Some(file) = made() else { return };
    let (first, second) = (file.path().to_owned(), file.path().to_owned());
    shuttle::check_random(move || announce_and_take(&first), 500);
    shuttle::check_pct(move || announce_and_take(&second), 500, 3);
}
