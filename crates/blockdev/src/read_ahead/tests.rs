use floe_sync::Barrier;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::pieces::{ASKED_TOGETHER, Bytes, MOST_HELD_BYTES, MOST_PIECES, PIECE_BYTES};
use super::*;

/// Bytes that encode their offset.
fn bytes_of(range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(|at| ((at % 251) ^ (at >> 12)) as u8).collect()
}

/// Files of `len` bytes with their prefetchers: by threads, and by io_uring if available. Empty
/// where direct I/O is not supported.
fn made(len: u64) -> Vec<(tempfile::NamedTempFile, ReadAhead)> {
    let mut all = Vec::new();
    for by_threads in [true, false] {
        let file = tempfile::NamedTempFile::new_in(".").unwrap();
        file.as_file().write_all_at(&bytes_of(0..len), 0).unwrap();
        file.as_file().sync_all().unwrap();
        let own = File::open(file.path()).unwrap();
        let Ok(way) = DirectReads::of(&own) else {
            println!("skipped: no direct I/O here");
            continue;
        };
        let ahead = match by_threads {
            true => ReadAhead::idle(own, way).by_threads(),
            false => ReadAhead::of(own, way),
        };
        let ahead = ahead.unwrap();
        if !by_threads && ahead.threads.len() == helpers::COUNT {
            println!("skipped: no io_uring here");
            continue;
        }
        all.push((file, ahead));
    }
    all
}

/// Waits until no thread has anything to read.
fn settle(ahead: &ReadAhead) {
    let began = Instant::now();
    loop {
        let state = ahead.shared.lock();
        let busy = state.pieces.all.values().any(|piece| match piece.bytes {
            Bytes::BeingRead => true,
            Bytes::Announced => state.pieces.has_next(),
            Bytes::Here(_) | Bytes::Failed => false,
        });
        drop(state);
        if !busy {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "nobody reads");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a range was prefetched, with the right bytes.
fn take(ahead: &ReadAhead, start: u64, len: u64) -> bool {
    let mut into = vec![0; len as usize];
    let taken = ahead.take(start, &mut into);
    assert!(!taken || into == bytes_of(start..start + len), "{start} + {len}");
    taken
}

#[test]
fn what_was_announced_is_read_without_being_asked_for() {
    for (file, ahead) in made(1 << 20) {
        ahead.announce(4096, 300_000);
        ahead.announce(491_520, 77);
        settle(&ahead);
        file.as_file().set_len(0).unwrap();
        assert!(!take(&ahead, 0, 4096), "not announced");
        assert!(!take(&ahead, 4096, PIECE_BYTES + 1), "a range of two pieces");
        // A whole piece, one in small parts, and one out of order.
        assert!(take(&ahead, 4096, PIECE_BYTES));
        let second = 4096 + PIECE_BYTES;
        assert!((0..PIECE_BYTES / 1024).all(|at| take(&ahead, second + at * 1024, 1024)));
        assert!(take(&ahead, 491_520, 77));
        assert!(take(&ahead, second + PIECE_BYTES, 300_000 - 2 * PIECE_BYTES));
        let pieces = &ahead.shared.lock().pieces;
        assert!(pieces.all.is_empty() && pieces.here.is_empty() && pieces.held_bytes == 0);
        assert!(ahead.shared.empty.load(Ordering::Relaxed));
    }
}

#[test]
fn what_is_announced_from_any_byte_on_is_read_from_where_reads_may_begin() {
    for (file, ahead) in made(1 << 20) {
        ahead.announce(500_001, 77);
        settle(&ahead);
        file.as_file().set_len(0).unwrap();
        assert!(take(&ahead, 500_001, 70));
        assert!(take(&ahead, 500_071, 7));
        assert!(!take(&ahead, 500_078, 1), "not announced");
    }
}

#[test]
fn what_nobody_asks_for_makes_room() {
    let pieces = 3 * MOST_HELD_BYTES / PIECE_BYTES;
    for (_file, ahead) in made(pieces * PIECE_BYTES) {
        ahead.announce(0, pieces * PIECE_BYTES);
        settle(&ahead);
        assert_eq!(ahead.shared.lock().pieces.held_bytes, MOST_HELD_BYTES);
        // The first third is never requested.
        let rest = pieces / 3..pieces;
        let taken = rest.filter(|at| {
            let taken = take(&ahead, at * PIECE_BYTES, PIECE_BYTES);
            settle(&ahead);
            assert!(ahead.shared.lock().pieces.held_bytes <= MOST_HELD_BYTES);
            taken
        });
        let taken = taken.count() as u64;
        assert!(taken >= pieces / 2, "{taken} of {pieces}");
    }
}

/// Like mapping blocks, which are announced with the gaps between them.
#[test]
fn what_is_asked_for_in_part_makes_room_later() {
    let pieces = 4 * MOST_HELD_BYTES / 8192;
    for (_file, ahead) in made(pieces * 8192) {
        for at in 0..pieces {
            ahead.announce(at * 8192, 8192);
        }
        let taken = (0..pieces).filter(|at| {
            settle(&ahead);
            assert!(ahead.shared.lock().pieces.held_bytes <= MOST_HELD_BYTES);
            take(&ahead, at * 8192, 4096)
        });
        assert_eq!(taken.count() as u64, pieces);
        let kept = ahead.shared.lock().pieces.all.len() as u64;
        assert!((ASKED_TOGETHER..pieces / 2).contains(&kept), "{kept} of {pieces}");
    }
}

#[test]
fn what_cannot_be_read_ahead_is_not_there() {
    for (file, ahead) in made(1 << 20) {
        file.as_file().set_len(8192).unwrap();
        ahead.announce(0, 8192);
        ahead.announce(1 << 19, 4096);
        settle(&ahead);
        assert!(!take(&ahead, 1 << 19, 4096));
        assert!(take(&ahead, 0, 8192));
        let pieces = &ahead.shared.lock().pieces;
        assert!(pieces.all.is_empty() && pieces.held_bytes == 0);
    }
}

#[test]
fn announcements_beyond_all_measure_are_not_kept() {
    for (_file, ahead) in made(4096) {
        (0..2 * MOST_PIECES as u64).for_each(|at| ahead.announce(at << 30, u64::MAX));
        assert!(ahead.shared.lock().pieces.all.len() <= MOST_PIECES);
        assert!(!take(&ahead, 0, 4096), "the file ends within its first piece");
    }
}

#[test]
fn many_threads_read_what_is_there() {
    let len = 2 * MOST_HELD_BYTES;
    for (_file, ahead) in made(len) {
        ahead.announce(0, 5 * PIECE_BYTES);
        settle(&ahead);
        let barrier = Barrier::new(5);
        thread::scope(|scope| {
            for worker in 0..5 {
                let (ahead, barrier) = (&ahead, &barrier);
                scope.spawn(move || {
                    assert!(take(ahead, worker * PIECE_BYTES, PIECE_BYTES));
                    // Pieces announced now may evict those that were never requested.
                    barrier.wait();
                    // A sequence of numbers that differs between threads.
                    let mut some = 0x9e37_79b9 + worker;
                    let mut next = |below: u64| {
                        some = some * 48_271 % 0x7fff_ffff;
                        some % below
                    };
                    for _ in 0..400 {
                        let start = next(len - 70_000);
                        let told = 1 + next(60_000);
                        ahead.announce(start, told);
                        let skipped = next(told);
                        let asked = 1 + next(told - skipped);
                        // If it was prefetched, its bytes are right.
                        take(ahead, start + skipped, asked);
                    }
                });
            }
        });
        settle(&ahead);
        assert!(ahead.shared.lock().pieces.held_bytes <= MOST_HELD_BYTES);
    }
}
