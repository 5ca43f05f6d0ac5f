//! The claimants of a shared block, and the names of an inode, are found by reading only a small
//! part of a file system again.

use floe_blockdev::Counted;
use floe_check::{CheckOptions, Observer, Report, check};
use floe_format::{BlockNr, InodeNr};
use floe_testkit::{Image, Rng, Volume, tool};
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

/// Gives files the blocks of others, at random, as if the file system had aged: inodes of each part of the tables have blocks
/// everywhere. All have an extent, of the same length.
fn permute(image: &Image, files: &[InodeNr]) {
    /// `ee_start_hi` and `ee_start_lo` of the first extent in an inode.
    const START: std::ops::Range<usize> = 0x28 + 12 + 6..0x28 + 12 + 12;
    let volume = Volume::open(image).unwrap();
    let mut rng = Rng::new(5);
    let raws: Vec<Vec<u8>> = files.iter().map(|at| volume.inode_bytes(*at).unwrap()).collect();
    let mut order: Vec<usize> = (0..files.len()).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, rng.index(at + 1));
    }
    for ((file, raw), from) in files.iter().zip(&raws).zip(order) {
        let mut raw = raw.clone();
        raw[START].copy_from_slice(&raws[from][START]);
        volume.put_inode(*file, &raw).unwrap();
        volume.fix_inode(*file).unwrap();
    }
}

/// One block that two files share of 20,000 whose blocks lie anywhere: few parts of the tables are read again.
#[test]
fn a_shared_block_of_an_aged_file_system_costs_little() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-rescan-").unwrap();
    let shape = Shape { size_bytes: 1 << 30, ..Shape::file_intensive(20_000) };
    let image = fill(&folder.path().join("image"), shape).unwrap();
    let files: Vec<InodeNr> = {
        let volume = Volume::open(&image).unwrap();
        let is_file = |inode: &InodeNr| {
            volume.inode_bytes(*inode).is_ok_and(|raw| raw[1] & 0xf0 == 0x80 && raw[0x1a] == 1)
        };
        (76..20_000).map(InodeNr).filter(is_file).collect()
    };
    assert!(files.len() > 15_000, "{}", files.len());
    permute(&image, &files);
    let clean = run(&image, 1);
    assert!(clean.found.is_empty(), "{:?}", clean.found);
    share_block(&image, files[100], files[files.len() - 100]).unwrap();
    for threads in [1, 3] {
        let report = run(&image, threads);
        let ids: Vec<_> = report.found.iter().map(|problem| problem.row().id).collect();
        let claims = ids.iter().filter(|id| id.starts_with("multiply-claimed-")).count();
        assert!(claims >= 4, "{ids:?}");
        let (all, again) = (bytes_of(&clean, "inodes"), bytes_of(&report, "shared blocks"));
        eprintln!("{again} bytes of {all} were read again");
        assert!(again > 0 && again * 3 < all, "{again} bytes of {all} were read again");
    }
}
