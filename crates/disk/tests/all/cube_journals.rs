//! Journals of cubes: each block in the journal of its lot, the bit that keeps others out, shared flushes, lots that move, and
//! what others may not replay.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use floe_blockdev::{Event, MemDevice, Model, Modelled, ReadBlocks, Recorder, WriteBlocks};
use floe_check::{CheckOptions, check};
use floe_disk::journal::{Barriers, Journal, JournalError};
use floe_disk::ops::{NewCube, NewInode};
use floe_disk::recovery::recover;
use floe_ext4::fs::FileSystem;
use floe_ext4::journal::{self, CubeJournal};
use floe_ext4::tx::Tx;
use floe_format::ext::jbd2::{self, COMMIT_BLOCK, Checksums, DESCRIPTOR_BLOCK, JournalIncompat};
use floe_format::ext::superblock::Superblock;
use floe_format::native::cube::Policies;
use floe_format::native::{LOCK, is_locked};
use floe_format::{BlockNr, InodeNr};
use floe_testkit::crash::{Effort, each_state};
use floe_testkit::{Image, oracle, tool};

use crate::areas::{backups, cannot_be, options, sound};
use crate::journal_ops::{Mounted, NOW, native, tree, unmount};
use crate::traced::{BaseBytes, first_byte, located};

pub(crate) const LOT_GROUPS: u32 = 4;

/// A cube with a journal of 64 blocks.
pub(crate) fn new_cube(path: &'static str) -> NewCube<'static> {
    let path = path.as_bytes();
    NewCube {
        parent: InodeNr::ROOT,
        name: &path[1..],
        path,
        permissions: 0o755,
        journal_blocks: 64,
        policies: Policies::default(),
    }
}

/// Five lots of 4 MiB, of which the cubes `a` and `b` have one each; in each a file `foo`.
pub(crate) fn base() -> &'static [u8] {
    static BASE: OnceLock<Vec<u8>> = OnceLock::new();
    BASE.get_or_init(|| {
        let device = native(20 << 20);
        let mut mounted = Mounted::new(device).unwrap();
        for path in ["/a", "/b"] {
            make_cube(&mut mounted, path);
        }
        for path in ["a/foo", "b/foo", "foo"] {
            let file = mounted.make(path, &NewInode::regular(0o644)).unwrap();
            mounted.write(file, 0, &[0xaa; 3000]).unwrap();
        }
        unmount(mounted).unwrap().to_vec()
    })
}

pub(crate) fn make_cube<D: WriteBlocks>(mounted: &mut Mounted<D>, path: &'static str) -> u32 {
    mounted.run(|volume, tx, _, caller| volume.create_cube(tx, caller, &new_cube(path))).unwrap()
}

pub(crate) fn create<D: WriteBlocks>(mounted: &mut Mounted<D>, path: &str) {
    mounted.make(path, &NewInode::regular(0o644)).unwrap();
}

pub(crate) fn cubes_of(device: &dyn ReadBlocks) -> BTreeMap<u32, CubeJournal> {
    let fs = FileSystem::open(device).unwrap();
    let groups = fs.space.groups.descs();
    let found = journal::find_cubes(device, &fs.superblock, fs.geometry(), groups);
    assert!(found.unusable.is_empty(), "{:?}", found.unusable);
    found.usable.into_iter().map(|own| (own.cube, own)).collect()
}

/// Which log a byte of the device lies in: a cube's, or (0) that of inode 8.
fn log_at(device: &dyn ReadBlocks) -> impl Fn(u64) -> Option<u32> + use<> {
    let mut logs: Vec<(u32, journal::Journal)> = vec![(0, located(device))];
    logs.extend(cubes_of(device).into_iter().map(|(cube, own)| (cube, own.journal)));
    let offsets: BTreeMap<u64, u32> = logs
        .iter()
        .flat_map(|(cube, log)| (0..log.blocks).map(|at| (log.offset_bytes(at).unwrap(), *cube)))
        .collect();
    move |offset| offsets.get(&(offset / 4096 * 4096)).copied()
}

/// Logs that were written behind the first `from` events, their superblocks aside.
pub(crate) fn logs_written(device: &Recorder<MemDevice>, from: usize) -> Vec<u32> {
    let log = log_at(device);
    let mut logs: Vec<u32> = device.trace().events[from..]
        .iter()
        .filter_map(|event| match event {
            Event::Write { offset_bytes, bytes } if bytes.len() > 1024 => log(*offset_bytes),
            _ => None,
        })
        .collect();
    logs.sort_unstable();
    logs.dedup();
    logs
}

fn is_flagged(bytes: &[u8]) -> bool {
    let superblock = Superblock::decode(bytes.first_chunk().unwrap());
    superblock.feature_incompat & LOCK != 0
}

/// Whether the bit is set in the primary superblock, and in each backup.
fn locks(bytes: &[u8]) -> (bool, Vec<bool>) {
    let fs = FileSystem::open(&MemDevice::new(bytes.to_vec())).unwrap();
    let geo = fs.geometry();
    let groups = (1..geo.group_count).map(floe_format::GroupNr);
    let backups = groups.filter_map(|group| geo.superblock_of(group));
    let flags = backups.map(|block| is_flagged(&bytes[geo.offset_bytes(block) as usize..]));
    (is_flagged(&bytes[1024..]), flags.collect())
}

#[test]
fn r1_each_block_is_logged_in_the_journal_of_its_lot_and_superblocks_in_none() {
    let device = Recorder::new(MemDevice::new(base().to_vec()));
    let mut mounted = Mounted::new(&device).unwrap();
    for round in 0..6 {
        for area in ["a/", "b/", ""] {
            create(&mut mounted, &format!("{area}new{round}"));
        }
        mounted.sync();
    }
    let (log, fs) = (log_at(&device), FileSystem::open(&device).unwrap());
    let owners = floe_disk::volume::cubes::owners(&device, &fs.superblock, fs.geometry(), &[]);
    let mut seen = BTreeMap::new();
    for event in device.trace().events {
        let Event::Write { offset_bytes, bytes } = event else { continue };
        let Some(cube) = log(offset_bytes) else { continue };
        for block in bytes.chunks_exact(4096) {
            if jbd2::header(block).is_none_or(|header| header.blocktype != DESCRIPTOR_BLOCK) {
                continue;
            }
            for tag in located(&device).superblock.format().tags(block) {
                let group = fs.geometry().group_of(BlockNr(tag.block)).unwrap();
                let owner = owners.get(&(group.0 / LOT_GROUPS)).copied().unwrap_or(0);
                assert_eq!(owner, cube, "{} in the log of cube {cube}", tag.block);
                assert!(tag.block > 0, "a superblock is logged");
                *seen.entry(cube).or_insert(0) += 1;
            }
        }
    }
    assert!(seen.len() == 3 && seen.values().all(|count| *count > 10), "{seen:?}");
    unmount(mounted).unwrap();
    let report = check(&device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.found);
}

#[test]
fn the_bit_is_set_everywhere_before_the_second_journal_is_used_and_gone_when_it_is_sealed() {
    let device = Recorder::new(MemDevice::new(base().to_vec()));
    let mut mounted = Mounted::new(&device).unwrap();
    create(&mut mounted, "new");
    mounted.sync();
    assert!(!locks(&device.base_bytes()).0, "inode 8 alone needs no bit");
    let from = device.trace().events.len();
    create(&mut mounted, "a/new");
    mounted.sync();
    let log = log_at(&device);
    let trace = device.trace();
    let first = trace.events[from..]
        .iter()
        .position(|event| match event {
            Event::Write { offset_bytes, .. } => log(*offset_bytes) == Some(1),
            Event::Flush => false,
        })
        .unwrap();
    let before = MemDevice::new(base().to_vec());
    trace.replay(&floe_blockdev::Crash::after(from + first), &before).unwrap();
    let (primary, backups) = locks(&before.to_vec());
    assert!(primary && backups.iter().all(|flag| *flag) && backups.len() > 1, "{backups:?}");
    assert_eq!(trace.durable_until(from + first), from + first, "and flushed");
    // A volume that writes its superblock afterwards keeps it.
    mounted.run(|volume, tx, _, _| volume.settle(tx, NOW)).unwrap();
    mounted.sync();
    assert!(locks(&device.base_bytes()).0);
    if !tool::missing() {
        let image = Image::of(&MemDevice::new(device.base_bytes())).unwrap();
        let verdict = oracle::run(image.path(), &["-fy"]).unwrap();
        assert_eq!(verdict.exit, Some(8), "{}", verdict.text);
        assert_eq!(image.to_vec().unwrap(), device.base_bytes(), "e2fsck touched it");
    }
    unmount(mounted).unwrap();
    let (primary, backups) = locks(&device.base_bytes());
    assert!(!primary && backups.iter().all(|flag| !flag));
    if !tool::missing() {
        let image = Image::of(&MemDevice::new(device.base_bytes())).unwrap();
        let verdict = oracle::run(image.path(), &["-fn"]).unwrap();
        assert!(verdict.clean() && verdict.problems.is_empty(), "{}", verdict.text);
    }
}

#[test]
fn an_fsync_of_one_cube_writes_no_other_journal() {
    let device = Recorder::new(MemDevice::new(base().to_vec()));
    let mut mounted = Mounted::new(&device).unwrap();
    mounted.sync();
    for area in ["a/", "b/", ""] {
        create(&mut mounted, &format!("{area}new"));
    }
    let from = device.trace().events.len();
    mounted.journal.commit_cube(1).unwrap();
    assert_eq!(logs_written(&device, from), [1]);
    let crashed = MemDevice::new(device.base_bytes());
    recover(&crashed).unwrap();
    let names = tree(&crashed).unwrap();
    assert!(names.contains_key("/a/new") || names.contains_key("a/new"), "{:?}", names.keys());
    assert!(!names.keys().any(|name| name.ends_with("b/new")));
    let from = device.trace().events.len();
    mounted.journal.commit_cube(2).unwrap();
    assert_eq!(logs_written(&device, from), [2]);
    mounted.journal.commit_cube(0).unwrap();
    assert_eq!(logs_written(&device, from), [0, 2]);
    let from = device.trace().events.len();
    mounted.sync();
    assert_eq!(logs_written(&device, from), [] as [u32; 0], "all is durable");
}

/// Threads that each wait for a cube of their own: a flush serves all of them.
#[test]
fn r4_one_flush_serves_all_journals_that_wait() {
    let model = Model::flushes(Duration::from_millis(2));
    let device = Modelled::new(MemDevice::new(base().to_vec()), &model).waiting();
    let orphans = cubes_of(&device);
    let mut blocks: Vec<BlockNr> = [1, 2].map(|cube| orphans[&cube].orphan_block).to_vec();
    blocks.extend(crate::traced::free_blocks(&device, 1));
    let journal = Journal::open(&device).unwrap();
    // The bit is set by the first one.
    let touch = |block: BlockNr| {
        let changed = journal.change(2, |tx| {
            let last = tx.block_mut(block)?.len() - 8;
            tx.block_mut(block)?[last] ^= 0;
            Ok(())
        });
        journal.commit(changed.unwrap().unwrap().1).unwrap();
    };
    blocks.iter().for_each(|block| touch(*block));
    let (before, rounds) = (device.flushes(), 20);
    std::thread::scope(|scope| {
        for block in &blocks {
            scope.spawn(move || (0..rounds).for_each(|_| touch(*block)));
        }
    });
    let flushes = device.flushes() - before;
    // Alone, each commit takes two: 120 where nothing is shared.
    assert!(flushes < 90, "{flushes} flushes for {} commits", 3 * rounds);
}

#[test]
fn lots_move_when_nothing_of_them_is_left_in_the_old_journal() {
    let device = Recorder::new(MemDevice::new(base().to_vec()));
    let mut mounted = Mounted::new(&device).unwrap();
    let from = device.trace().events.len();
    make_cube(&mut mounted, "/c");
    mounted.sync();
    assert_eq!(logs_written(&device, from), [0], "a free lot is logged by inode 8");
    let from = device.trace().events.len();
    create(&mut mounted, "c/new");
    mounted.journal.commit_cube(3).unwrap();
    let own = cubes_of(&device)[&3].journal.clone();
    let (log, tail) = (own.offset_bytes(1).unwrap(), located(&device).offset_bytes(0).unwrap());
    let events = device.trace().events;
    let write_of = |at: u64| {
        events[from..].iter().position(
            |event| matches!(event, Event::Write { offset_bytes, .. } if *offset_bytes == at),
        )
    };
    let (moved, logged) = (write_of(tail).unwrap(), write_of(log).unwrap());
    assert!(moved < logged, "the tail of inode 8's log passes the lot first");
    assert!(events[from + moved..from + logged].contains(&Event::Flush));
    assert_eq!(mounted.journal.cube_state(3).failed, None);
    assert!(mounted.journal.cube_state(3).has_own && !mounted.journal.cube_state(9).has_own);
    // And back, with the cube.
    let top = mounted.find("c").unwrap();
    mounted.run(|volume, tx, _, caller| volume.unlink(tx, caller, top, b"new")).unwrap();
    for orphan in mounted.volume.orphans() {
        mounted.finish_orphan(orphan).unwrap();
    }
    let place = Some((InodeNr::ROOT, &b"c"[..]));
    mounted.run(|volume, tx, _, caller| volume.remove_cube(tx, caller, 3, place)).unwrap();
    mounted.sync();
    for orphan in mounted.volume.orphans() {
        mounted.finish_orphan(orphan).unwrap();
    }
    mounted.sync();
    assert!(!mounted.journal.cube_state(3).has_own);
    make_cube(&mut mounted, "/d");
    create(&mut mounted, "d/new");
    unmount(mounted).unwrap();
    let report = check(&device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.found);
    assert_eq!(cubes_of(&device).len(), 3);
}

/// A journal that does not fit into the first lot of its cube could not be found again: it is refused, and nothing is changed.
#[test]
fn a_journal_that_does_not_fit_into_a_lot_is_refused() {
    let mut made = Vec::new();
    for journal_blocks in [64, 200, 300, 400, 500, 600, 1000, 2000] {
        let mut mounted = Mounted::new(native(20 << 20)).unwrap();
        let new = NewCube { journal_blocks, ..new_cube("/a") };
        let done = mounted.run(|volume, tx, _, caller| volume.create_cube(tx, caller, &new));
        made.push(done.as_ref().map(drop).map_err(ToString::to_string));
        if done.is_ok() {
            create(&mut mounted, "a/file");
        }
        let device = unmount(mounted).unwrap();
        assert_eq!(cubes_of(&device).len(), usize::from(done.is_ok()), "{done:?}");
        let report = check(&device, &CheckOptions::default()).unwrap();
        assert!(report.is_clean(), "{journal_blocks}: {:?}", report.found);
    }
    assert!(made[1].is_ok() && made[7].is_err(), "{made:?}");
}

#[test]
fn a_cube_that_grows_logs_its_new_lot() {
    let device = Recorder::new(MemDevice::new(base().to_vec()));
    let mut mounted = Mounted::new(&device).unwrap();
    create(&mut mounted, "a/large");
    let file = mounted.find("a/large").unwrap();
    for at in 0..60 {
        mounted.write(file, at * 100_000, &[7; 100_000]).unwrap();
    }
    mounted.journal.commit_cube(1).unwrap();
    let before = tree(&mounted.journal).unwrap();
    let crashed = MemDevice::new(device.base_bytes());
    recover(&crashed).unwrap();
    let after = tree(&crashed).unwrap();
    let differs = |path: &&String| !path.starts_with(".cubes/") && before[*path] != after[*path];
    let differ: Vec<_> = before.keys().filter(differs).collect();
    assert!(differ.is_empty(), "an fsync covers the new lot, too: {differ:?}");
    assert_eq!(cubes_of(&crashed)[&1].lots.len(), 2);
    create(&mut mounted, "a/more");
    let from = device.trace().events.len();
    mounted.journal.commit_cube(1).unwrap();
    assert_eq!(logs_written(&device, from), [1], "it has moved");
    unmount(mounted).unwrap();
    let report = check(&device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.found);
}

#[test]
fn orphans_of_a_cube_are_listed_behind_its_journal() {
    let device = Recorder::new(MemDevice::new(base().to_vec()));
    let mut mounted = Mounted::new(&device).unwrap();
    mounted.sync();
    let top = mounted.find("a").unwrap();
    let file = mounted.find("a/foo").unwrap();
    let from = device.trace().events.len();
    mounted.run(|volume, tx, _, caller| volume.unlink(tx, caller, top, b"foo")).unwrap();
    mounted.journal.commit_cube(1).unwrap();
    assert_eq!(logs_written(&device, from), [1], "the orphan file is inode 8's");
    let crashed = MemDevice::new(device.base_bytes());
    let report = check(&crashed, &CheckOptions::default()).unwrap();
    let others = report.found.iter().filter(|one| !one.row().id.contains("orphan"));
    assert_eq!(others.count(), 0, "{:?}", report.found);
    let again = Mounted::new(crashed).unwrap();
    assert!(again.volume.orphans().is_empty(), "the mount deletes them");
    let device = unmount(again).unwrap();
    assert!(!is_locked(&FileSystem::open(&device).unwrap().superblock));
    let report = check(&device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.found);
    let fs = FileSystem::open(&device).unwrap();
    let group = fs.geometry().place_of(file).unwrap().0;
    assert_eq!(fs.space.groups.desc(group).unwrap().used_dirs_count, 1);
}

/// An image whose cubes `a` and `b` hold durable changes that are in their logs alone.
fn left_in_the_logs() -> MemDevice {
    let device = Recorder::new(MemDevice::new(base().to_vec()));
    let mut mounted = Mounted::new(&device).unwrap();
    for area in ["a/", "b/", ""] {
        create(&mut mounted, &format!("{area}new"));
        mounted.sync();
    }
    MemDevice::new(device.base_bytes())
}

#[test]
fn a_damaged_journal_of_one_cube_does_no_harm_to_the_others() {
    let device = left_in_the_logs();
    let own = cubes_of(&device)[&1].journal.clone();
    // An image behind the descriptor.
    let at = own.offset_bytes(own.superblock.start + 1).unwrap();
    let byte = first_byte(&device, BlockNr(at / 4096), 4096);
    device.write_at(at, &[byte ^ 1]).unwrap();
    let found = recover(&device.clone()).unwrap();
    assert!(found.cubes.iter().any(|cube| cube.failed.is_some()), "{found:?}");
    let mut mounted = Mounted::new(device).unwrap();
    let state = mounted.journal.cube_state(1);
    assert!(state.has_own && state.failed.is_some(), "{state:?}");
    let names = tree(&mounted.journal).unwrap();
    let has = |name: &str| names.keys().any(|path| path.trim_start_matches('/') == name);
    assert!(has("b/new") && has("new") && !has("a/new"), "{:?}", names.keys());
    create(&mut mounted, "b/more");
    mounted.journal.commit_cube(2).unwrap();
    let in_failed = mounted.make("a/more", &NewInode::regular(0o644));
    assert!(in_failed.is_err(), "the journal of a has ended");
    create(&mut mounted, "b/last");
    mounted.sync();
    mounted.run(|volume, tx, _, _| volume.end_writing(tx, NOW)).unwrap();
    let device = mounted.journal.close().unwrap();
    let superblock = FileSystem::open(&device).unwrap().superblock;
    assert!(is_locked(&superblock), "its journal still has to be recovered");
    assert!(cubes_of(&device)[&1].journal.needs_replay);
    let again = Mounted::new(device).unwrap();
    let names = tree(&again.journal).unwrap();
    assert!(names.keys().any(|path| path.ends_with("b/last")));
}

/// A commit block in the middle of the log of inode 8 is damaged: recovery is refused, and the logs of the cubes stay as they are.
#[test]
fn damage_in_the_log_of_inode_8_is_found_before_anything_is_written() {
    let device = Recorder::new(MemDevice::new(base().to_vec()));
    let mut mounted = Mounted::new(&device).unwrap();
    for round in 0..3 {
        for area in ["a/", "b/", ""] {
            create(&mut mounted, &format!("{area}new{round}"));
            mounted.sync();
        }
    }
    let device = MemDevice::new(device.base_bytes());
    assert!(cubes_of(&device).values().all(|own| own.journal.needs_replay));
    let root = located(&device);
    let commits: Vec<u64> = (1..root.blocks)
        .filter_map(|at| root.offset_bytes(at))
        .filter(|at| {
            let mut block = [0; 1024];
            device.read_at(*at, &mut block).unwrap();
            let header = jbd2::header(&block);
            header.is_some_and(|header| {
                header.blocktype == COMMIT_BLOCK && header.sequence >= root.superblock.sequence
            })
        })
        .collect();
    assert!(commits.len() > 2, "{commits:?}");
    // The checksum of the block.
    let (at, mut byte) = (commits[commits.len() / 2] + 16, [0]);
    device.read_at(at, &mut byte).unwrap();
    device.write_at(at, &[byte[0] ^ 1]).unwrap();
    let before = device.to_vec();
    let why = recover(&device).unwrap_err();
    assert!(matches!(why, JournalError::Damaged(_)), "{why}");
    assert!(device.holds(&before), "something was written");
}

#[test]
fn an_aborted_cube_writes_nothing_and_the_others_go_on() {
    let device = Recorder::new(MemDevice::new(base().to_vec()));
    let mut mounted = Mounted::new(&device).unwrap();
    mounted.sync();
    create(&mut mounted, "a/lost");
    assert!(mounted.journal.abort_cube(1, "a test") && !mounted.journal.abort_cube(0, "root"));
    let aborted = mounted.journal.commit_cube(1);
    assert!(matches!(aborted, Err(JournalError::Aborted { .. })), "{aborted:?}");
    let from = device.trace().events.len();
    create(&mut mounted, "b/new");
    mounted.sync();
    assert_eq!(logs_written(&device, from), [2]);
    let crashed = MemDevice::new(device.base_bytes());
    recover(&crashed).unwrap();
    let names = tree(&crashed).unwrap();
    assert!(names.keys().any(|path| path.ends_with("b/new")));
    assert!(!names.keys().any(|path| path.ends_with("a/lost")));
}

/// The seven steps after others wrote: journals of cubes are discarded, never replayed.
#[test]
fn a_journal_that_others_made_stale_is_never_replayed() {
    let device = left_in_the_logs();
    // Somebody takes the bit away, as the page on emergencies says, and writes.
    let fs = FileSystem::open(&device).unwrap();
    let mut superblock = fs.superblock.clone();
    superblock.feature_incompat &= !LOCK;
    let mut bytes = [0; 1024];
    superblock.encode_with_checksum(&mut bytes);
    device.write_at(1024, &bytes).unwrap();
    let mounted = Mounted::new(device).unwrap();
    let names = tree(&mounted.journal).unwrap();
    let has = |name: &str| names.keys().any(|path| path.trim_start_matches('/') == name);
    assert!(has("new") && !has("a/new") && !has("b/new"), "{:?}", names.keys());
    assert_eq!(mounted.journal.cube_state(1).failed, None);
    let device = unmount(mounted).unwrap();
    assert!(cubes_of(&device).values().all(|own| !own.journal.needs_replay));
    let report = check(&device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.found);
}

#[test]
fn a_crashed_image_is_checked_with_all_its_journals() {
    let device = left_in_the_logs();
    let before = device.to_vec();
    let report = check(&device, &CheckOptions::default()).unwrap();
    let others = report.found.iter().filter(|one| !one.row().id.contains("orphan"));
    assert_eq!(others.count(), 0, "{:?}", report.found);
    assert_eq!(device.to_vec(), before, "a check writes nothing");
}

/// With inode 8's journal alone one flush makes a change durable. As soon as a cube has a journal, there are two again, because
/// transactions depend on each other: inode 8's log is emptied first, and gets checksums of blocks.
#[test]
fn r4_a_native_file_system_has_one_barrier_until_a_cube_has_a_journal() {
    let device = Recorder::new(native(20 << 20));
    let mut mounted = Mounted::with(&device, Barriers::One).unwrap();
    let flushes = |from: usize| {
        let events = &device.trace().events[from..];
        events.iter().filter(|event| **event == Event::Flush).count()
    };
    let one_more = |mounted: &mut Mounted<_>, name: &str| {
        create(mounted, name);
        let from = device.trace().events.len();
        mounted.journal.sync().unwrap();
        flushes(from)
    };
    // The first one in an empty log has two.
    one_more(&mut mounted, "first");
    let made = ["second", "third"].map(|name| one_more(&mut mounted, name));
    assert_eq!((made, mounted.journal.has_one_barrier()), ([1, 1], true));
    assert_eq!(located(&device).superblock.format().checksums, Checksums::V1);
    make_cube(&mut mounted, "/a");
    mounted.sync();
    create(&mut mounted, "a/new");
    mounted.sync();
    assert!(!mounted.journal.has_one_barrier());
    let superblock = located(&device).superblock;
    assert_eq!(superblock.format().checksums, Checksums::V3);
    assert!(!superblock.incompat().contains(JournalIncompat::ASYNC_COMMIT));
    assert_eq!(one_more(&mut mounted, "fourth"), 2);
    let expected = tree(&mounted.journal).unwrap();
    let crashed = MemDevice::new(device.base_bytes());
    recover(&crashed).unwrap();
    assert_eq!(tree(&crashed).unwrap().len(), expected.len());
    unmount(mounted).unwrap();
    let superblock = located(&device).superblock;
    assert!(!superblock.incompat().contains(JournalIncompat::ASYNC_COMMIT));
}

/// A crash anywhere on the way from one barrier to two.
#[test]
fn a_first_journal_of_a_cube_survives_any_crash_where_there_was_one_barrier() {
    let image = native(20 << 20).to_vec();
    let device = Recorder::new(MemDevice::new(image.clone()));
    let mut mounted = Mounted::with(&device, Barriers::One).unwrap();
    for name in ["first", "second"] {
        create(&mut mounted, name);
        mounted.sync();
    }
    let kept = device.trace().events.len();
    make_cube(&mut mounted, "/a");
    for name in ["a/new", "third"] {
        create(&mut mounted, name);
        mounted.sync();
    }
    unmount(mounted).unwrap();
    let (trace, backups) = (device.trace(), backups(&device));
    let mut at = 0;
    let explored =
        each_state(&trace, &image, Effort { random_per_epoch: 2, seed: 9 }, |device, crash| {
            at += 1;
            if at % 5 != 0 || cannot_be(&trace, crash, &backups) {
                return Ok(());
            }
            recover(&device)?;
            let found = tree(&device)?;
            let all = ["first", "second"].iter().all(|name| found.contains_key(*name));
            anyhow::ensure!(all || crash.issued < kept, "{:?}", found.keys());
            sound(&device)?;
            let device = unmount(Mounted::with(device, Barriers::One)?)?;
            let report = check(&device, &options())?;
            anyhow::ensure!(report.is_clean(), "{:?}", report.found);
            Ok(())
        });
    assert!(explored.unwrap() > 200);
}
