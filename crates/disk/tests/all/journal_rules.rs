//! The rules of the journal (docs/journal.md), each with a test that fails without it.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use floe_blockdev::{MemDevice, ReadBlocks, Recorder, WriteBlocks};
use floe_disk::journal::{Barriers, Journal, JournalError, TransactionId};
use floe_disk::recovery::recover;
use floe_ext4::tx::{Refusal, Tx};
use floe_format::BlockRun;
use floe_format::ext::fast_commit::{FcTag, FcWriter};
use floe_format::ext::jbd2::{Checksums, JournalIncompat};
use floe_testkit::{Profile, tool};

use crate::changes::{CREDITS, Changes};
use crate::traced::{
    Kind, commits, device, fill, first_byte, free_blocks, kinds, located, recovered,
    set_log_features,
};

#[test]
fn r2_room_is_there_before_the_first_change_and_no_change_outgrows_a_transaction() {
    if tool::missing() {
        return;
    }
    let device = device(Profile::Ext4K1);
    let limit = u64::from(located(&device).ring().unwrap().len_blocks() / 4);
    let blocks = free_blocks(&device, limit);
    let journal = Journal::open(&device).unwrap();
    let first = fill(&journal, &blocks[..100], 1);
    // Together they would be too long: the first one is committed before the second one begins.
    let mut tx = journal.begin(200).unwrap();
    assert_eq!(journal.durable(), first);
    let mut changed = 0;
    for &block in &blocks {
        match tx.zeroed(block) {
            Ok(bytes) => bytes.fill(2),
            Err(Refusal::TooMuch(_)) => break,
            Err(refusal) => panic!("{refusal}"),
        }
        changed += 1;
    }
    assert!((limit - 10..limit).contains(&changed), "{changed} of {limit}");
    assert!(matches!(tx.block_mut(blocks[limit as usize - 1]), Err(Refusal::TooMuch(_))));
    tx.block_mut(blocks[0]).unwrap()[0] = 3;
    journal.commit(tx.finish().unwrap()).unwrap();
    assert_eq!(first_byte(&recovered(&device), blocks[0], 1024), 3);
}

/// Two threads are inside of changes at the same time: each waits in its change until the other is in its own.
#[test]
fn r2_changes_of_other_blocks_go_on_beside_each_other() {
    if tool::missing() {
        return;
    }
    let device = device(Profile::Ext4K1);
    let blocks = free_blocks(&device, 2);
    let journal = Journal::open(&device).unwrap();
    let both = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for &block in &blocks {
            let (journal, both) = (&journal, &both);
            scope.spawn(move || {
                let changed = journal.change(2, |tx| {
                    tx.zeroed(block)?.fill(1);
                    both.wait();
                    Ok(())
                });
                journal.commit(changed.unwrap().unwrap().1).unwrap();
            });
        }
    });
    let copy = recovered(&device);
    assert!(blocks.iter().all(|block| first_byte(&copy, *block, 1024) == 1));
}

/// Threads that take the same blocks in other orders neither wait in a circle nor lose a change.
#[test]
fn r2_blocks_are_taken_in_order_of_their_numbers() {
    if tool::missing() {
        return;
    }
    let device = device(Profile::Ext4K1);
    let blocks = free_blocks(&device, 3);
    let journal = Journal::open(&device).unwrap();
    fill(&journal, &blocks, 0);
    let rounds = 30;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (journal, blocks) = (&journal, &blocks);
            scope.spawn(move || {
                for _ in 0..rounds {
                    let mut order = blocks.clone();
                    order.rotate_left(thread % 3);
                    let changed = journal.change(3, |tx| {
                        for block in &order {
                            tx.block_mut(*block)?[0] += 1;
                            std::thread::yield_now();
                        }
                        Ok(())
                    });
                    changed.unwrap().unwrap();
                }
            });
        }
    });
    journal.sync().unwrap();
    let copy = recovered(&device);
    assert!(blocks.iter().all(|block| first_byte(&copy, *block, 1024) == 4 * rounds));
    // Alone means alone: a change beside others waits for it.
    let alone = journal.begin(1).unwrap();
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| journal.change(1, |tx| tx.block(blocks[0]).map(|_| ())));
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!beside.is_finished());
        drop(alone);
        beside.join().unwrap().unwrap().unwrap();
    });
}

/// A checkpoint that makes room frees a part of the log, and leaves the rest to recovery.
#[test]
fn r6_a_full_log_gives_up_its_older_half() {
    if tool::missing() {
        return;
    }
    let device = device(Profile::Ext4K1);
    let log_blocks = u64::from(located(&device).ring().unwrap().len_blocks());
    let blocks = free_blocks(&device, 200);
    let journal = Journal::open(&device).unwrap();
    let (mut byte, mut written) = (0, 0);
    while written <= log_blocks {
        byte += 1;
        // The first block is in all of them: its newest image goes home with the oldest.
        let own = [&blocks[..1], &blocks[usize::from(byte) * 3..][..60]].concat();
        journal.commit(fill(&journal, &own, byte)).unwrap();
        written += 63;
    }
    let left = located(&device);
    let behind = u64::from(left.superblock.start).saturating_sub(1);
    assert!((log_blocks / 3..log_blocks * 2 / 3).contains(&behind), "{behind} of {log_blocks}");
    let copy = recovered(&device);
    assert_eq!(first_byte(&copy, blocks[0], 1024), byte);
    assert_eq!(first_byte(&copy, blocks[usize::from(byte) * 3 + 59], 1024), byte);
}

#[test]
fn r3_and_r4_two_barriers_and_an_answer_behind_the_second() {
    if tool::missing() {
        return;
    }
    let device = device(Profile::Ext4);
    let block = free_blocks(&device, 2);
    let journal = Journal::open(&device).unwrap();
    for round in 0..3 {
        let from = device.trace().events.len();
        let id = fill(&journal, &block[..1], 1);
        // R8: ordered data, of a handle that was finished before.
        journal.write_data(block[1].0 * 4096, &[7; 4096]).unwrap();
        assert_eq!(journal.durable(), TransactionId(id.0 - 1));
        journal.commit(id).unwrap();
        assert_eq!(journal.durable(), id);
        use Kind::{Commit, Flush, Log, LogSuperblock, Other};
        let first = [Other, LogSuperblock, Log, Flush, Commit, Flush];
        let later = [Other, Log, Flush, Commit, Flush];
        let expected: &[Kind] = if round == 0 { &first } else { &later };
        assert_eq!(kinds(&device, from), expected);
    }
    // Durable already: no more flushes. Data alone: one.
    let from = device.trace().events.len();
    journal.sync().unwrap();
    journal.commit(journal.durable()).unwrap();
    assert_eq!(kinds(&device, from), []);
    journal.write_data(block[1].0 * 4096, &[8; 4096]).unwrap();
    journal.sync().unwrap();
    journal.sync().unwrap();
    assert_eq!(kinds(&device, from), [Kind::Other, Kind::Flush]);
}

/// With checksums of transactions, one barrier is enough where all is in the log, and its revoke block in one sector.
#[test]
fn r4_one_barrier_where_commit_blocks_prove_what_is_in_the_log() {
    if tool::missing() {
        return;
    }
    let device = device(Profile::Ext4);
    let blocks = free_blocks(&device, 101);
    let before = located(&device).superblock;
    let open = |device| {
        let found = recover(device).unwrap();
        Journal::open_recovered(device, &found, Barriers::One).unwrap()
    };
    let journal = open(&device);
    use Kind::{Commit, Flush, Log, LogSuperblock, Other};
    let made = |byte: u8, data: bool, freed: &[floe_format::BlockNr]| {
        let from = device.trace().events.len();
        let mut tx = journal.begin(CREDITS).unwrap();
        freed.iter().for_each(|block| tx.revoke(BlockRun::new(*block, 1)));
        tx.zeroed(blocks[0]).unwrap().fill(byte);
        if data {
            journal.write_data(blocks[100].0 * 4096, &[byte; 4096]).unwrap();
        }
        let id = tx.finish().unwrap();
        journal.commit(id).unwrap();
        assert_eq!(journal.durable(), id);
        kinds(&device, from)
    };
    let two = [Log, Flush, Commit, Flush];
    assert_eq!(made(1, false, &[]), [LogSuperblock, Log, Flush, Commit, Flush]);
    assert_eq!(made(2, false, &[]), [Log, Flush]);
    assert_eq!(made(3, true, &[]), [&[Other][..], &two].concat());
    assert_eq!(made(4, false, &[]), [Log, Flush]);
    // Revoked: 62 numbers lie in the first sector of their block, 63 do not.
    for (byte, count, expected) in [(5, 62, &[Log, Flush][..]), (6, 63, &two)] {
        journal.commit(fill(&journal, &blocks[1..64], byte)).unwrap();
        assert_eq!(made(byte, false, &blocks[1..=count]), expected);
        assert_eq!(first_byte(&recovered(&device), blocks[0], 4096), byte);
    }
    assert!(located(&device).superblock.incompat().contains(JournalIncompat::ASYNC_COMMIT));
    journal.close().unwrap();
    // Nothing of it is left in an empty log.
    let after = located(&device).superblock;
    assert_eq!(after.format().checksums, Checksums::V3);
    assert_eq!(after.compat(), before.compat());
    assert!(!after.incompat().contains(JournalIncompat::ASYNC_COMMIT));
    // So it is with a log that a crash left.
    let journal = open(&device);
    journal.commit(fill(&journal, &blocks[..3], 7)).unwrap();
    journal.commit(fill(&journal, &blocks[..3], 8)).unwrap();
    drop(journal);
    assert_eq!(recover(&device).unwrap().transactions, 2);
    assert_eq!(first_byte(&device, blocks[2], 4096), 8);
    Journal::open(&device).unwrap().close().unwrap();
    assert_eq!(located(&device).superblock.format().checksums, Checksums::V3);
}

#[test]
fn r5_only_durable_images_go_home() {
    if tool::missing() {
        return;
    }
    let device = device(Profile::Ext4K1);
    let block = free_blocks(&device, 1);
    let before = first_byte(&device, block[0], 1024);
    let journal = Journal::open(&device).unwrap();
    let id = fill(&journal, &block, 1);
    journal.checkpoint().unwrap();
    assert_eq!(first_byte(&device, block[0], 1024), before, "not durable, yet home");
    journal.commit(id).unwrap();
    fill(&journal, &block, 2);
    journal.checkpoint().unwrap();
    assert_eq!(first_byte(&device, block[0], 1024), 1, "the durable image goes home");
    assert_eq!(first_byte(&journal, block[0], 1024), 2, "readers see the last change");
    journal.close().unwrap();
    assert_eq!(first_byte(&device, block[0], 1024), 2);
}

#[test]
fn r6_the_tail_moves_behind_a_flush_and_space_is_free_behind_another() {
    if tool::missing() {
        return;
    }
    let device = device(Profile::Ext4K1);
    let block = free_blocks(&device, 4);
    let journal = Journal::open(&device).unwrap();
    journal.commit(fill(&journal, &block, 1)).unwrap();
    let from = device.trace().events.len();
    journal.checkpoint().unwrap();
    use Kind::{Flush, LogSuperblock, Other};
    assert_eq!(kinds(&device, from), [Other, Flush, LogSuperblock, Flush]);
    // Nothing is due: nothing happens.
    journal.checkpoint().unwrap();
    assert_eq!(device.trace().events.len(), from + kinds(&device, from).len());
}

/// Several rounds of the log, left after each of many transactions: recovery finds the last one acknowledged.
#[test]
fn r6_a_log_that_wraps_loses_nothing() {
    if tool::missing() {
        return;
    }
    let device = device(Profile::Ext4K1);
    let blocks = free_blocks(&device, 200);
    let journal = Journal::open(&device).unwrap();
    let log_blocks = u64::from(located(&device).ring().unwrap().len_blocks());
    let (mut byte, mut written) = (0u8, 0);
    while written < 5 * log_blocks {
        byte = byte.wrapping_add(1);
        let count = 1 + usize::from(byte) * 7 % 200;
        // Each block of a transaction before must be overwritten, lest an older byte survive.
        let id = fill(&journal, &blocks[..count], byte);
        journal.commit(id).unwrap();
        written += count as u64 + 2;
        if byte % 9 == 0 {
            let copy = recovered(&device);
            for block in &blocks[..count] {
                assert_eq!(first_byte(&copy, *block, 1024), byte, "{block}");
            }
        }
    }
}

/// A directory block is logged, freed, and used for data: no older copy may come back over the data.
#[test]
fn r7_a_revoked_block_is_never_replayed_nor_written_home() {
    if tool::missing() {
        return;
    }
    for by_checkpoint in [false, true] {
        let device = device(Profile::Ext4K1);
        let journal = Journal::open(&device).unwrap();
        let mut changes = Changes::open(&journal);
        let id = changes.mkdir(&journal, "new-dir");
        journal.commit(id).unwrap();
        let (id, run) = changes.remove(&journal, "new-dir");
        assert!(journal.durable() < id, "its block may not be used yet");
        journal.commit(id).unwrap();
        assert!(journal.durable() >= id);
        journal.write_data(run.start.0 * 1024, &[0xda; 1024]).unwrap();
        if by_checkpoint {
            journal.checkpoint().unwrap();
            assert_eq!(first_byte(&device, run.start, 1024), 0xda, "written home over the data");
        }
        let copy = recovered(&device);
        assert_eq!(first_byte(&copy, run.start, 1024), 0xda, "replayed over the data");
    }
}

#[test]
fn r7_a_revoke_is_dropped_where_the_block_is_written_again() {
    if tool::missing() {
        return;
    }
    let device = device(Profile::Ext4K1);
    let block = free_blocks(&device, 1);
    let journal = Journal::open(&device).unwrap();
    journal.commit(fill(&journal, &block, 1)).unwrap();
    // Freed and used again, by one handle or by two.
    for (byte, handles) in [(2, 1), (3, 2)] {
        let mut tx = journal.begin(CREDITS).unwrap();
        tx.revoke(BlockRun::new(block[0], 1));
        if handles == 2 {
            tx.finish().unwrap();
            tx = journal.begin(CREDITS).unwrap();
        }
        tx.zeroed(block[0]).unwrap().fill(byte);
        journal.commit(tx.finish().unwrap()).unwrap();
        let copy = recovered(&device);
        assert_eq!(first_byte(&copy, block[0], 1024), byte);
    }
    // Revoked and logged again later: the later copy counts.
    let mut tx = journal.begin(CREDITS).unwrap();
    tx.revoke(BlockRun::new(block[0], 1));
    journal.commit(tx.finish().unwrap()).unwrap();
    journal.commit(fill(&journal, &block, 9)).unwrap();
    assert_eq!(first_byte(&recovered(&device), block[0], 1024), 9);
}

/// A clock that stands still, then goes back.
fn odd_clock() -> (u64, u32) {
    static TICKS: AtomicU64 = AtomicU64::new(0);
    (2_000_000_000 - TICKS.fetch_add(1, Ordering::SeqCst) / 3, 999_999_999)
}

#[test]
fn r9_numbers_and_times_go_on_after_a_recovery() {
    if tool::missing() {
        return;
    }
    let device = device(Profile::FastCommit);
    set_log_features(&device, 0, 0x20);
    let block = free_blocks(&device, 1);
    let journal = Journal::open_with(&device, odd_clock).unwrap();
    for byte in 0..8 {
        journal.commit(fill(&journal, &block, byte)).unwrap();
    }
    let last = journal.durable();
    drop(journal);
    // Left by a crash: the next transaction without its commit block, and a fast commit of a later one.
    let place = located(&device);
    let stray = (last.0 + 3) as u32;
    let head = place.ring().unwrap().first() + 700;
    let mut bytes = vec![0; 1024];
    place.superblock.format().write_revoke(&mut bytes, stray - 1, &[]);
    device.write_at(place.offset_bytes(head).unwrap(), &bytes).unwrap();
    let mut fast = FcWriter::new(1024);
    fast.push(&FcTag::Head { features: 0, tid: stray }).unwrap();
    fast.end(stray);
    let area = place.offset_bytes(place.blocks - place.fast_commit_blocks + 1).unwrap();
    device.write_at(area, &fast.into_bytes()).unwrap();

    let journal = Journal::open_with(&device, odd_clock).unwrap();
    journal.commit(fill(&journal, &block, 9)).unwrap();
    assert!(journal.durable().0 > u64::from(stray), "the number of a stray transaction came again");
    let commits = commits(&device);
    assert_eq!(commits.len(), 9);
    assert!(commits.is_sorted_by(|a, b| a < b), "{commits:?}");
    let times: Vec<_> = commits.iter().map(|(_, time)| time).collect();
    assert!(times.is_sorted_by(|a, b| a < b), "{times:?}");
}

/// A device whose flush or write number `fails_at` fails, once: the next one would succeed.
struct FailsOnce<'a> {
    inner: &'a Recorder<MemDevice>,
    flushes: bool,
    left: AtomicUsize,
}

impl FailsOnce<'_> {
    fn strike(&self, flush: bool) -> io::Result<()> {
        if flush == self.flushes && self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            return Err(io::Error::other("the device said no"));
        }
        Ok(())
    }
}

impl ReadBlocks for FailsOnce<'_> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset_bytes, into)
    }
}

impl WriteBlocks for FailsOnce<'_> {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        self.strike(false)?;
        self.inner.write_at(offset_bytes, from)
    }

    fn flush(&self) -> io::Result<()> {
        self.strike(true)?;
        self.inner.flush()
    }
}

#[test]
fn r10_the_first_failure_ends_the_journal() {
    if tool::missing() {
        return;
    }
    for (flushes, fails_at) in [(true, 2), (true, 3), (true, 4), (true, 5), (false, 3), (false, 6)]
    {
        let recorder = device(Profile::Ext4K1);
        let block = free_blocks(&recorder, 1);
        let failing = FailsOnce { inner: &recorder, flushes, left: AtomicUsize::new(fails_at) };
        let journal = Journal::open(&failing).unwrap();
        let mut failed = None;
        for byte in 1..9 {
            let id = fill(&journal, &block, byte);
            if let Err(error) = journal.commit(id).and_then(|()| journal.checkpoint()) {
                failed = Some((error, id, recorder.trace().events.len()));
                break;
            }
        }
        let (error, id, events) = failed.unwrap_or_else(|| panic!("{flushes}, {fails_at}"));
        assert!(matches!(error, JournalError::Io { .. }), "{error}");
        let aborted = |result| matches!(result, Err(JournalError::Aborted { .. }));
        assert!(aborted(journal.sync()));
        assert!(journal.durable() >= id || aborted(journal.commit(id)));
        assert!(aborted(journal.begin(1).map(|_| ())));
        assert!(aborted(journal.checkpoint()));
        assert!(aborted(journal.write_data(0, &[1])));
        assert!(aborted(journal.close().map(|_| ())));
        assert_eq!(recorder.trace().events.len(), events, "written or flushed after the failure");
    }
}

#[test]
fn r11_no_transaction_is_longer_than_a_quarter_of_the_log() {
    if tool::missing() {
        return;
    }
    let device = device(Profile::Ext4K1);
    let limit = located(&device).ring().unwrap().len_blocks() / 4;
    let blocks = free_blocks(&device, u64::from(limit));
    let journal = Journal::open(&device).unwrap();
    let from = device.trace().events.len();
    let refused = journal.begin(limit).map(|_| ());
    assert!(matches!(refused, Err(JournalError::TooLong { .. })));
    assert_eq!(device.trace().events.len(), from, "refused before anything is changed");
    // Changes that fit one by one are spread over transactions, even if nobody commits.
    let mut last = TransactionId(0);
    for blocks in blocks.chunks(60) {
        last = fill(&journal, blocks, 1);
    }
    assert!(last.0 > journal.durable().0, "and the last of them still waits");
    journal.sync().unwrap();
    assert!(commits(&device).len() > 1);
    let copy = recovered(&device);
    assert!(blocks.iter().all(|block| first_byte(&copy, *block, 1024) == 1));
}
