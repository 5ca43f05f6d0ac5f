//! How the journal writes: changes that are dropped, escapes, checksums of each version, torn commit blocks, shared flushes.

use std::io;
use std::time::Duration;

use floe_blockdev::{Event, MemDevice, Model, Modelled, ReadBlocks, Recorder, WriteBlocks};
use floe_disk::journal::Journal;
use floe_disk::recovery::recover;
use floe_ext4::fs::FileSystem;
use floe_ext4::tx::Tx;
use floe_format::ext::jbd2::{self, COMMIT_BLOCK};
use floe_format::features::Incompat;
use floe_format::{BlockNr, BlockRun};
use floe_testkit::{Image, Profile, build, oracle, tool};

use crate::traced::{device, fill, first_byte, free_blocks, recovered, set_log_features};

#[test]
fn a_dropped_change_changes_nothing() {
    if tool::missing() {
        return;
    }
    let device = device(Profile::Ext4K1);
    let block = free_blocks(&device, 2);
    let journal = Journal::open(&device).unwrap();
    let id = fill(&journal, &block[..1], 1);
    let mut tx = journal.begin(2).unwrap();
    tx.block_mut(block[0]).unwrap().fill(2);
    tx.zeroed(block[1]).unwrap().fill(2);
    tx.revoke(BlockRun::new(block[0], 1));
    drop(tx);
    assert_eq!(first_byte(&journal, block[0], 1024), 1);
    journal.sync().unwrap();
    assert_eq!(journal.durable(), id);
    assert_eq!(first_byte(&recovered(&device), block[0], 1024), 1);
    // A change of nothing is durable with what there was before.
    assert_eq!(journal.begin(1).unwrap().finish().unwrap(), id);
}

#[test]
fn a_block_that_begins_like_the_journal_is_escaped() {
    if tool::missing() {
        return;
    }
    let image = build::base(Profile::Ext4K1).unwrap();
    let block = free_blocks(&image, 1);
    let journal = Journal::open(&image).unwrap();
    let mut tx = journal.begin(1).unwrap();
    tx.zeroed(block[0]).unwrap()[..4].copy_from_slice(&jbd2::MAGIC.to_be_bytes());
    tx.block_mut(block[0]).unwrap()[4] = 5;
    journal.commit(tx.finish().unwrap()).unwrap();
    drop(journal);
    let by_e2fsck = image.copy().unwrap();
    assert_eq!(oracle::run(by_e2fsck.path(), &["-fy"]).unwrap().exit, Some(0));
    recover(&image).unwrap();
    for image in [image, by_e2fsck] {
        let mut bytes = [0; 5];
        image.read(block[0].0 * 1024, &mut bytes).unwrap();
        assert_eq!(bytes, [0xc0, 0x3b, 0x39, 0x98, 5]);
    }
}

#[test]
fn a_logged_superblock_still_needs_recovery() {
    if tool::missing() {
        return;
    }
    let device = device(Profile::Ext4);
    let mut fs = FileSystem::open(&device).unwrap();
    let journal = Journal::open(&device).unwrap();
    let mut tx = journal.begin(1).unwrap();
    // Read before the journal was opened, so that it does not say so.
    fs.finish(&mut tx).unwrap();
    journal.commit(tx.finish().unwrap()).unwrap();
    let flagged = |device: &dyn ReadBlocks| {
        let fs = FileSystem::open(&device).unwrap();
        fs.geometry().features.incompat.contains(Incompat::RECOVER)
    };
    assert!(flagged(&journal));
    journal.checkpoint().unwrap();
    assert!(flagged(&device), "written home without it");
    let device = journal.close().unwrap();
    assert!(!flagged(device));
}

/// So that a torn commit block is whole or none: its second sector is zeroes before and after.
#[test]
fn the_place_of_a_commit_block_is_zeroed_with_the_blocks_before_it() {
    if tool::missing() {
        return;
    }
    let device = device(Profile::Ext4K1);
    let blocks = free_blocks(&device, 3);
    let journal = Journal::open(&device).unwrap();
    for byte in 1..4 {
        journal.commit(fill(&journal, &blocks, byte)).unwrap();
    }
    let events = device.trace().events;
    let mut seen = 0;
    for (at, event) in events.iter().enumerate() {
        let Event::Write { offset_bytes: place, bytes } = event else { continue };
        if jbd2::header(bytes).is_none_or(|header| header.blocktype != COMMIT_BLOCK) {
            continue;
        }
        let [Event::Write { offset_bytes, bytes }, Event::Flush] = &events[at - 2..at] else {
            panic!("{:?}", &events[at - 2..at])
        };
        let within = usize::try_from(place - offset_bytes).unwrap();
        assert_eq!(bytes[within..], [0; 1024]);
        seen += 1;
    }
    assert_eq!(seen, 3);
}

/// Many threads that each wait for their own change: flushes are shared.
#[test]
fn one_flush_serves_all_who_wait() {
    if tool::missing() {
        return;
    }
    struct Slow(Recorder<MemDevice>);
    impl ReadBlocks for Slow {
        fn size_bytes(&self) -> u64 {
            self.0.size_bytes()
        }
        fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
            self.0.read_at(offset_bytes, into)
        }
    }
    impl WriteBlocks for Slow {
        fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
            self.0.write_at(offset_bytes, from)
        }
        fn flush(&self) -> io::Result<()> {
            std::thread::sleep(Duration::from_millis(2));
            self.0.flush()
        }
    }
    let (threads, rounds) = (8, 20);
    let device = Slow(device(Profile::Ext4K1));
    let blocks = free_blocks(&device, threads);
    let journal = Journal::open(&device).unwrap();
    let from = device.0.trace().events.len();
    std::thread::scope(|scope| {
        for block in &blocks {
            let journal = &journal;
            scope.spawn(move || {
                for round in 0..rounds {
                    let id = fill(journal, &[*block], round);
                    journal.commit(id).unwrap();
                    assert!(journal.durable() >= id);
                }
            });
        }
    });
    let events = device.0.trace().events;
    let flushes = events[from..].iter().filter(|event| **event == Event::Flush).count();
    let acknowledged = blocks.len() * usize::from(rounds);
    // Alone, each would take two.
    assert!(flushes < acknowledged, "{flushes} flushes for {acknowledged} commits");
    let copy = recovered(&device.0);
    assert!(blocks.iter().all(|block| first_byte(&copy, *block, 1024) == rounds - 1));
}

/// Lets workers change a block each, and wait for it, on a device whose flush takes so long; each works for some time between two
/// changes, which they have by turns.
/// Returns flushes and acknowledged commits.
fn flushes_of(flush: Duration, (workers, rounds): (u64, u8), between: &[Duration]) -> (u64, u64) {
    let device = Modelled::new(device(Profile::Ext4K1), &Model::flushes(flush)).waiting();
    let blocks = free_blocks(&device, workers);
    let journal = Journal::open(&device).unwrap();
    let before = device.flushes();
    std::thread::scope(|scope| {
        for (block, between) in blocks.iter().zip(between.iter().cycle()) {
            let journal = &journal;
            scope.spawn(move || {
                for round in 0..rounds {
                    journal.commit(fill(journal, &[*block], round)).unwrap();
                    std::thread::sleep(*between);
                }
            });
        }
    });
    let (flushes, acknowledged) = (device.flushes() - before, workers * u64::from(rounds));
    eprintln!("{flushes} flushes for {acknowledged} commits");
    (flushes, acknowledged)
}

/// Sixteen workers on a device whose flush takes 2 ms: less than a quarter of a flush for each acknowledged commit.
#[test]
fn sixteen_workers_share_flushes() {
    if tool::missing() {
        return;
    }
    let (flushes, acknowledged) = flushes_of(Duration::from_millis(2), (16, 15), &[Duration::ZERO]);
    assert!(4 * flushes < acknowledged, "{flushes} flushes for {acknowledged} commits");
}

/// Two workers on a slow device: whoever writes the next transaction waits a little for the other, so that each flush serves a
/// commit of both, or of one and the log of the other. Alone, each commit would take two.
#[test]
fn two_workers_wait_for_each_other() {
    if tool::missing() {
        return;
    }
    // A program works until it has the next change.
    let between = Duration::from_micros(300);
    let (flushes, acknowledged) = flushes_of(Duration::from_millis(30), (2, 12), &[between]);
    // A fourth more than one each: the first and the last, and a thread that the machine kept away.
    assert!(100 * flushes <= 125 * acknowledged, "{flushes} flushes for {acknowledged} commits");
}

/// One worker is slower than the other, by less than a flush takes: both still share each commit. Without a wait for the slower one
/// every second flush would serve one alone.
#[test]
fn a_worker_waits_for_a_slower_one() {
    if tool::missing() {
        return;
    }
    let between = [Duration::ZERO, Duration::from_millis(12)];
    let (flushes, acknowledged) = flushes_of(Duration::from_millis(30), (2, 12), &between);
    assert!(100 * flushes <= 125 * acknowledged, "{flushes} flushes for {acknowledged} commits");
}

/// Each checksum version that a journal may have: recovered by e2fsck and by Floe.
#[test]
fn every_checksum_version_is_written_as_e2fsck_reads_it() {
    if tool::missing() {
        return;
    }
    // compat, incompat.
    for (compat, incompat) in [(0, 0), (1, 0), (0, 0x8), (0, 0x10), (0, 0x12), (0, 0xa), (0, 0x4)] {
        let image = build::base(Profile::NoCsum).unwrap();
        set_log_features(&image, compat, incompat);
        let block = free_blocks(&image, 300);
        let journal = Journal::open(&image).unwrap();
        for (byte, blocks) in (1..).zip(block.chunks(100)) {
            journal.commit(fill(&journal, blocks, byte)).unwrap();
        }
        let mut tx = journal.begin(1).unwrap();
        tx.revoke(BlockRun::new(block[7], 1));
        journal.commit(tx.finish().unwrap()).unwrap();
        drop(journal);
        image.write(block[7].0 * 1024, &[0xee; 1024]).unwrap();

        let by_e2fsck = image.copy().unwrap();
        let verdict = oracle::run(by_e2fsck.path(), &["-fy"]).unwrap();
        assert!(verdict.clean(), "{compat:#x} {incompat:#x}: {}", verdict.text);
        assert_eq!(recover(&image).unwrap().transactions, 4, "{compat:#x} {incompat:#x}");
        check_filled(&image, &block);
        check_filled(&by_e2fsck, &block);
    }
}

fn check_filled(image: &Image, blocks: &[BlockNr]) {
    for (at, block) in blocks.iter().enumerate() {
        let expected = if at == 7 { 0xee } else { (at / 100) as u8 + 1 };
        assert_eq!(first_byte(image, *block, 1024), expected, "{block}");
    }
}

/// Blocks that wait in memory for their log are limited, however long the log is; all are there after a crash.
#[test]
fn a_journal_keeps_to_its_share_of_memory() {
    if tool::missing() {
        return;
    }
    let mut most = Vec::new();
    for share_bytes in [u64::MAX, 64 << 10] {
        let device = device(Profile::Ext4K1);
        let blocks = free_blocks(&device, 700);
        let journal = Journal::open(&device).unwrap();
        journal.keep_within(share_bytes);
        let mut most_now = 0;
        for (at, some) in blocks.chunks(5).enumerate() {
            let id = fill(&journal, some, at as u8);
            most_now = most_now.max(journal.kept_bytes());
            if at % 10 == 0 {
                journal.commit(id).unwrap();
            }
        }
        journal.sync().unwrap();
        most_now = most_now.max(journal.kept_bytes());
        drop(journal);
        let recovered = recovered(&device);
        for (at, some) in blocks.chunks(5).enumerate() {
            assert!(some.iter().all(|block| first_byte(&recovered, *block, 1024) == at as u8));
        }
        most.push(most_now);
    }
    // Half of it is the running transaction, and what goes home comes in transactions.
    assert!(most[0] > 400 << 10 && most[1] <= 192 << 10, "{most:?} bytes");
}
