//! Several journals of the root cube where changes wait instead of listing others (`Dependencies::Awaited`): one journal has all of a
//! change, no two have copies of a block at any time, and no commit block lists anything, whenever power fails.

use floe_blockdev::{Event, MemDevice, ReadBlocks, Recorder};
use floe_disk::journal::{Dependencies, Journal};
use floe_disk::recovery::recover;
use floe_ext4::tx::Tx;
use floe_format::BlockNr;
use floe_format::ext::jbd2::{self, COMMIT_BLOCK};
use floe_format::native::commit;
use floe_testkit::crash::Effort;

use crate::cube_journals::create;
use crate::journal_ops::{Mounted, tree, unmount};
use crate::several_journals::{
    EFFORT, Fault, base, caught, empty, explore, fsync, logs_written,
    lots_become_those_of_cubes_and_back, rename,
};
use crate::traced::BaseBytes;

const AWAITED: Dependencies = Dependencies::Awaited;

/// A journal that waits, of a file system with so many.
fn awaiting(device: &Recorder<MemDevice>) -> Journal<&Recorder<MemDevice>> {
    let journal = Journal::open(device).unwrap();
    journal.set_dependencies(AWAITED);
    journal
}

/// Blocks at the ends of the lots 0, 1, 2, 3, where nothing is; the last one is that of a further journal of two, and of four.
const FREE: [BlockNr; 4] = [BlockNr(1020), BlockNr(2040), BlockNr(3060), BlockNr(4080)];

/// Fills blocks in one change, makes it durable, and tells which logs were written.
fn fill(
    (device, journal): (&Recorder<MemDevice>, &Journal<&Recorder<MemDevice>>),
    blocks: &[BlockNr],
    to: u8,
) -> Vec<usize> {
    let mut tx = journal.begin(8).unwrap();
    blocks.iter().for_each(|block| tx.zeroed(*block).unwrap().fill(to));
    let from = device.trace().events.len();
    let id = tx.finish().unwrap();
    journal.commit(id).unwrap();
    logs_written(device, from)
}

/// The first bytes of these blocks after a crash now.
fn left(device: &Recorder<MemDevice>) -> [u8; 4] {
    let crashed = MemDevice::new(device.base_bytes());
    recover(&crashed).unwrap();
    FREE.map(|block| {
        let mut byte = [0];
        crashed.read_at(block.0 * 4096, &mut byte).unwrap();
        byte[0]
    })
}

#[test]
fn a_change_of_several_journals_is_logged_by_one_which_waits_for_the_others() {
    let device = Recorder::new(MemDevice::new(empty(4)));
    let journal = awaiting(&device);
    let ground = (&device, &journal);
    assert_eq!(fill(ground, &FREE[2..3], 1), [2]);
    assert_eq!((fill(ground, &FREE[3..], 1), journal.waits()), (vec![3], 0));
    assert_eq!(left(&device), [0, 0, 1, 1]);
    // Log 3 is emptied, so that log 2 may have a copy of its block.
    assert_eq!((fill(ground, &FREE[2..], 2), journal.waits()), (vec![2], 1));
    assert_eq!(left(&device), [0, 0, 2, 2]);
    // As long as log 2 has one, it has the next ones, too, and nothing waits.
    assert_eq!((fill(ground, &FREE[3..], 3), journal.waits()), (vec![2], 1));
    assert_eq!((fill(ground, &FREE[1..], 4), journal.waits()), (vec![2], 1));
    assert_eq!(left(&device), [0, 4, 4, 4]);
    journal.checkpoint().unwrap();
    assert_eq!((fill(ground, &FREE[3..], 5), journal.waits()), (vec![3], 1));
    assert_eq!(left(&device), [0, 4, 4, 5]);
    journal.close().unwrap();
}

/// In a transaction that nobody has asked for yet, too: its log is written first.
#[test]
fn a_change_waits_for_running_transactions_of_other_logs() {
    let device = Recorder::new(MemDevice::new(empty(2)));
    let journal = awaiting(&device);
    let mut tx = journal.begin(8).unwrap();
    [FREE[1], FREE[3]].iter().for_each(|block| tx.zeroed(*block).unwrap().fill(1));
    let first = tx.finish().unwrap();
    assert!(!journal.is_durable(first));
    let mut tx = journal.begin(8).unwrap();
    [FREE[0], FREE[2]].iter().for_each(|block| tx.zeroed(*block).unwrap().fill(1));
    tx.finish().unwrap();
    let mut tx = journal.begin(8).unwrap();
    FREE[..2].iter().for_each(|block| tx.zeroed(*block).unwrap().fill(2));
    let last = tx.finish().unwrap();
    assert!(journal.is_durable(first), "it has block {}", FREE[1]);
    assert_eq!(left(&device), [0, 1, 0, 1]);
    journal.commit(last).unwrap();
    assert_eq!(left(&device), [2, 2, 1, 1]);
    journal.close().unwrap();
}

/// An fsync of an inode writes the log that has its changes.
#[test]
fn an_fsync_waits_for_changes_that_another_log_has() {
    let device = Recorder::new(MemDevice::new(empty(2)));
    let journal = awaiting(&device);
    let mut tx = journal.begin(8).unwrap();
    [FREE[0], FREE[3]].iter().for_each(|block| tx.zeroed(*block).unwrap().fill(7));
    let id = tx.finish().unwrap();
    let from = device.trace().events.len();
    // As if the inode lay there.
    journal.commit_inode_for(0, FREE[3], 1).unwrap();
    assert!(journal.is_durable(id));
    assert_eq!((logs_written(&device, from), left(&device)), (vec![0], [7, 0, 0, 7]));
    journal.close().unwrap();
}

#[test]
fn r11_a_change_that_is_too_long_for_one_log_has_another_one() {
    let device = Recorder::new(MemDevice::new(empty(2)));
    let journal = awaiting(&device);
    let ground = (&device, &journal);
    let blocks: Vec<BlockNr> = (4020..4090).map(BlockNr).chain([FREE[0]]).collect();
    assert_eq!(fill(ground, &blocks[..3], 1), [1]);
    // Most of it lies in a lot of the further log, which is too short.
    assert_eq!((fill(ground, &blocks, 2), journal.waits(), journal.loans()), (vec![0], 1, 0));
    assert_eq!(left(&device), [2, 0, 0, 2]);
    journal.close().unwrap();
}

/// Names that move between directories of several journals: one log has them, and no commit block lists another.
#[test]
fn no_commit_block_lists_others() {
    let (image, names) = base(4);
    let device = Recorder::new(MemDevice::new(image));
    let mut mounted = Mounted::new(&device).unwrap();
    mounted.journal.set_dependencies(AWAITED);
    names.iter().for_each(|name| create(&mut mounted, &format!("{name}/new")));
    mounted.sync();
    let from = device.trace().events.len();
    rename(&mut mounted, (&names[3], "new"), (&names[2], "moved"));
    fsync(&mut mounted, &format!("{}/moved", names[2]));
    assert_eq!(logs_written(&device, from).len(), 1);
    assert!(mounted.journal.waits() > 0);
    mounted.sync();
    let crashed = MemDevice::new(device.base_bytes());
    recover(&crashed).unwrap();
    assert!(tree(&crashed).unwrap().contains_key(&format!("{}/moved", names[2])));
    unmount(mounted).unwrap();
    let mut commits = 0;
    for event in device.trace().events {
        let Event::Write { bytes, .. } = event else { continue };
        for block in bytes.chunks_exact(4096) {
            if jbd2::header(block).is_some_and(|header| header.blocktype == COMMIT_BLOCK) {
                assert!(commit::of(block).is_empty());
                commits += 1;
            }
        }
    }
    assert!(commits > 4, "{commits}");
}

#[test]
fn after_any_crash_two_journals_that_wait_have_what_was_acknowledged_and_changes_of_both_whole() {
    assert!(explore((2, AWAITED), 2, EFFORT, 43, 8) > 150);
}

#[test]
fn after_any_crash_four_journals_that_wait_have_what_was_acknowledged_and_changes_of_several_whole()
{
    assert!(explore((4, AWAITED), 2, EFFORT, 101, 6) > 150);
}

/// Both schemes by turns on the same file system.
#[test]
fn what_waited_and_what_lists_others_are_recovered_together() {
    let (image, names) = base(2);
    let device = Recorder::new(MemDevice::new(image));
    let mut mounted = Mounted::new(&device).unwrap();
    for (round, dependencies) in [AWAITED, Dependencies::Listed, AWAITED].into_iter().enumerate() {
        mounted.journal.set_dependencies(dependencies);
        names.iter().for_each(|name| create(&mut mounted, &format!("{name}/new{round}")));
        let (from, to) = (format!("new{round}"), format!("moved{round}"));
        rename(&mut mounted, (&names[round % 2], &from), (&names[(round + 1) % 2], &to));
        mounted.sync();
    }
    let expected = tree(&mounted.journal).unwrap();
    drop(mounted);
    let crashed = MemDevice::new(device.base_bytes());
    recover(&crashed).unwrap();
    let found = tree(&crashed).unwrap();
    let differ = expected.iter().filter(|(path, node)| found.get(*path) != Some(*node));
    let differ = differ.map(|(path, _)| path).filter(|path| !path.starts_with(".cubes/"));
    let differ: Vec<&String> = differ.collect();
    assert!(differ.is_empty() && found.len() == expected.len(), "{differ:?}");
}

/// Cubes have journals of their own, which log all of their lots: no other log has copies of them when a lot moves.
#[test]
fn lots_of_journals_that_wait_become_those_of_cubes_and_back() {
    lots_become_those_of_cubes_and_back(AWAITED);
}

/// The wait is left out: the other log keeps its copies.
#[test]
fn canary_a_log_that_keeps_its_copies_beside_later_ones_of_another_is_caught() {
    eprintln!("{}", caught(Fault::KeepsTails, (4, AWAITED), 1));
}

/// The wait ends too early: what the change waits for is not on the disk.
#[test]
fn canary_a_wait_that_ends_before_the_other_log_is_durable_is_caught() {
    eprintln!("{}", caught(Fault::LosesFlushes, (2, AWAITED), 1));
}

/// Thousands of states, by hand: `cargo xtask crash`.
#[test]
#[ignore = "minutes"]
fn thousands_of_states_of_journals_that_wait() {
    for journals in [2, 4] {
        explore((journals, AWAITED), 6, Effort { random_per_epoch: 4, seed: 2 }, 1, 60);
    }
}
