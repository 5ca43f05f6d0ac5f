//! Explores interleavings of an overlay that is written while other threads read it.

use floe_sync::{Arc, shuttle, thread};

use super::*;
use crate::MemDevice;

/// A reader sees a page before or after a write, never a mixture, and never an older page after a
/// newer one.
fn read_while_writing() {
    let overlay = Arc::new(Overlay::new(MemDevice::new(vec![1; 4096]), 1024));
    let writer = Arc::clone(&overlay);
    let writing = thread::spawn(move || {
        writer.write_at(1024, &[2; 1024]).unwrap();
        writer.write_at(1024, &[3; 1024]).unwrap();
    });
    let (mut into, mut seen) = ([0; 1024], 0);
    for _ in 0..3 {
        overlay.read_at(1024, &mut into).unwrap();
        assert!(into.iter().all(|&byte| byte == into[0]), "half of a write was read");
        assert!(into[0] >= seen, "an older page came back");
        seen = into[0];
    }
    writing.join().unwrap();
    overlay.read_at(1024, &mut into).unwrap();
    assert_eq!((into, overlay.staged_pages()), ([3; 1024], 1));
}

#[test]
fn a_write_is_seen_whole() {
    shuttle::check_random(read_while_writing, 1000);
    shuttle::check_pct(read_while_writing, 500, 3);
}

/// Two threads write parts of one page: neither loses the other's write.
#[test]
fn no_part_of_a_page_is_lost() {
    shuttle::check_dfs(
        || {
            let overlay = Arc::new(Overlay::new(MemDevice::new(vec![1; 2048]), 1024));
            let other = Arc::clone(&overlay);
            let writing = thread::spawn(move || other.write_at(0, &[2; 512]).unwrap());
            overlay.write_at(512, &[3; 512]).unwrap();
            writing.join().unwrap();
            let mut into = [0; 2048];
            overlay.read_at(0, &mut into).unwrap();
            assert!(into[..512] == [2; 512] && into[512..1024] == [3; 512]);
            assert!(into[1024..] == [1; 1024]);
        },
        Some(20_000),
    );
}
