//! The claimants of a shared block, and the names of an inode, are found by reading only a small
//! part of a file system again.

use floe_blockdev::Counted;
use floe_check::{CheckOptions, Observer, Report, check};
use floe_format::{BlockNr, InodeNr};
use floe_testkit::{Image, tool};
use floe_workload::fill::{Shape, fill, share_block};

/// A check of an image, with what it read in each phase.
fn run(image: &Image, threads: usize) -> Report {
    let device = Counted::new(image);
    let reads = || device.counts();
    let observer = Observer { reads: Some(&reads), ..Observer::default() };
    let options = CheckOptions { threads, observer, ..Default::default() };
    check(&device, &options).unwrap()
}

fn bytes_of(report: &Report, phase: &str) -> u64 {
    report.phases.iter().find(|of| of.name == phase).unwrap().reads.bytes
}

#[test]
fn a_shared_block_costs_little() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-rescan-").unwrap();
    let shape = Shape { size_bytes: 1 << 30, ..Shape::file_intensive(60_000) };
    let image = fill(&folder.path().join("image"), shape).unwrap();
    let clean = run(&image, 1);
    assert!(clean.found.is_empty(), "{:?}", clean.found);
    let (one, other) = (InodeNr(9_001), InodeNr(50_001));
    let block = share_block(&image, one, other).unwrap();
    for threads in [1, 3] {
        let report = run(&image, threads);
        let ids: Vec<_> = report.found.iter().map(|problem| problem.row().id).collect();
        let claims = ids.iter().filter(|id| **id == "multiply-claimed-block").count();
        assert_eq!(claims, 2, "{:#?}", report.found);
        assert!(report.paths.contains_key(&one) && report.paths.contains_key(&other));
        // Two parts of the tables, of some thirty; and the blocks that name the two files.
        let (all, again) = (bytes_of(&clean, "inodes"), bytes_of(&report, "shared blocks"));
        assert!(again > 0 && again * 10 < all, "{again} bytes of {all} were read again");
        let (all, again) = (bytes_of(&clean, "directories"), bytes_of(&report, "paths"));
        assert!(again > 0 && again * 4 < all, "{again} bytes of {all} were read again");
    }
    assert_ne!(block, BlockNr(0));
}
