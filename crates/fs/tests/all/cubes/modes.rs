//! Promises of a cube's journal and fsync modes, over crash states: power fails at every request, and in the middle of one.

use std::collections::BTreeSet;

use floe_blockdev::{Crash, Event, MemDevice, Recorder, SECTOR_BYTES, Trace};
use floe_check::problem::Weight;
use floe_check::{CheckOptions, check};
use floe_format::InodeNr;
use floe_format::native::cube::{FsyncMode, JournalMode, Policies};
use floe_fs::{CubeCall, Disk, FileSystem, Live, MemFs, NewInode, OpKind, Settings, now};

use super::struck::{BLOCK, Tenants, find, laid_out, make, op, read, used, write};

/// Blocks of the file.
const LEN: u64 = 8;

/// A file `/a/file` with one letter, durable, in cubes with these policies.
fn prepared(policies: Policies) -> MemDevice {
    let device = MemDevice::new(laid_out(Tenants::Apart, policies));
    let ((), closed) = used(&device, |fs| {
        let a = find(fs, InodeNr::ROOT, "a").unwrap();
        let file = make(fs, a, "file", NewInode::regular(0o644)).unwrap();
        write(fs, file, 0, &[b'A'; (LEN * BLOCK) as usize]).unwrap();
    });
    closed.unwrap();
    device
}

/// Records a program's changes before the power fails: the device's requests, and how many were the mount's.
fn recorded(base: &MemDevice) -> (Trace, usize) {
    let device = Recorder::new(base.clone());
    let (disk, volume) = Disk::open(&device).unwrap();
    let files = disk.files().unwrap();
    let live = Live::new(&disk, &files, volume, now()).unwrap();
    let fs = FileSystem::new(MemFs::new(live, Default::default()));
    let a = find(&fs, InodeNr::ROOT, "a").unwrap();
    let file = find(&fs, a, "file").unwrap();
    let before = device.count();
    write(&fs, file, 0, &[b'B'; (LEN * BLOCK) as usize]).unwrap();
    fs.sync_inode(file, None).unwrap();
    (device.trace(), before)
}

/// The letters of the file in each state that a failure of the power may leave; each state is sound.
fn states(base: &MemDevice, (trace, before): &(Trace, usize)) -> Vec<BTreeSet<u8>> {
    let mut all = Vec::new();
    for issued in *before..=trace.events.len() {
        for torn_bytes in [None, Some(3 * BLOCK as usize + SECTOR_BYTES)] {
            let device = base.clone();
            let crash = Crash { issued, torn_bytes, ..Crash::default() };
            trace.replay(&crash, &device).unwrap();
            let ((), closed) = used(&device, |fs| {
                let a = find(fs, InodeNr::ROOT, "a").unwrap();
                let file = find(fs, a, "file").unwrap();
                let bytes = read(fs, file, (LEN * BLOCK) as usize).unwrap();
                assert_eq!(bytes.len() as u64, LEN * BLOCK);
                all.push(bytes.into_iter().collect());
            });
            closed.unwrap();
            let found = check(&device, &CheckOptions::default()).unwrap().found;
            let is_sound = found.iter().all(|problem| problem.row().weight == Weight::Remark);
            assert!(is_sound, "after {issued} requests: {found:?}");
        }
    }
    all
}

#[test]
fn a_journal_with_data_has_each_write_as_a_whole_or_not_at_all() {
    let (old, new) = (BTreeSet::from([b'A']), BTreeSet::from([b'B']));
    for mode in [JournalMode::Data, JournalMode::Ordered] {
        let base = prepared(Policies { journal_mode: mode, ..Policies::default() });
        let all = states(&base, &recorded(&base));
        assert_eq!(all[all.len() - 2], new, "{mode:?}: fsync promised it");
        assert!(all.contains(&old));
        let mixed = all.iter().filter(|letters| letters.len() > 1).count();
        // The other mode shows that the test would notice.
        assert_eq!(mixed == 0, mode == JournalMode::Data, "{mode:?}: {mixed} of {}", all.len());
    }
}

#[test]
fn fsync_that_is_off_asks_nothing_of_the_device_and_leaves_a_sound_cube() {
    for fsync_mode in [FsyncMode::Off, FsyncMode::Strict] {
        let base = prepared(Policies { fsync_mode, ..Policies::default() });
        let device = Recorder::new(base.clone());
        let (disk, volume) = Disk::open(&device).unwrap();
        let files = disk.files().unwrap();
        let live = Live::new(&disk, &files, volume, now()).unwrap();
        let fs = FileSystem::new(MemFs::new(live, Default::default()));
        let a = find(&fs, InodeNr::ROOT, "a").unwrap();
        let flushes = |device: &Recorder<MemDevice>| {
            device.trace().events.iter().filter(|event| **event == Event::Flush).count()
        };
        let (before, first) = (flushes(&device), device.count());
        for at in 0..20 {
            let file = make(&fs, a, &format!("new{at}"), NewInode::regular(0o644)).unwrap();
            write(&fs, file, 0, &[7; 5000]).unwrap();
            fs.sync_inode(file, None).unwrap();
        }
        let (in_between, requests) = (flushes(&device) - before, device.count() - first);
        assert_eq!(in_between == 0, fsync_mode == FsyncMode::Off, "{in_between} flushes");
        // Nothing is written for them, so that no mode is faster.
        assert_eq!(requests == 0, fsync_mode == FsyncMode::Off, "{requests} requests");
        // The mount makes all durable now and then.
        fs.sync().unwrap();
        let trace = device.trace();
        for issued in (first..=trace.events.len()).step_by(5).chain([trace.events.len()]) {
            let device = base.clone();
            trace.replay(&Crash::after(issued), &device).unwrap();
            let ((), closed) = used(&device, |fs| {
                let a = find(fs, InodeNr::ROOT, "a").unwrap();
                let whole = (0..20).take_while(|at| find(fs, a, &format!("new{at}")).is_ok());
                let whole = whole.count();
                // No later one is there without an earlier one.
                assert!((whole..20).all(|at| find(fs, a, &format!("new{at}")).is_err()));
                assert!(issued < trace.events.len() || whole == 20);
            });
            closed.unwrap();
            let found = check(&device, &CheckOptions::default()).unwrap().found;
            let is_sound = found.iter().all(|problem| problem.row().weight == Weight::Remark);
            assert!(is_sound, "after {issued} requests: {found:?}");
        }
    }
}

/// Content that was logged never comes back over what was written past the log, nor over blocks that another file has by now.
#[test]
fn content_that_was_logged_stays_where_it_was() {
    let base = prepared(Policies { journal_mode: JournalMode::Data, ..Policies::default() });
    let device = Recorder::new(base.clone());
    let (disk, volume) = Disk::open(&device).unwrap();
    let files = disk.files().unwrap();
    let live = Live::new(&disk, &files, volume, now()).unwrap();
    let fs = FileSystem::new(MemFs::new(live, Default::default()));
    let a = find(&fs, InodeNr::ROOT, "a").unwrap();
    let file = find(&fs, a, "file").unwrap();
    write(&fs, file, 0, &[b'B'; (LEN * BLOCK) as usize]).unwrap();
    fs.sync_inode(file, None).unwrap();
    let ordered = Settings::parse("journal_mode=ordered").unwrap();
    fs.cube_call(&CubeCall::Set(file, ordered)).unwrap();
    write(&fs, file, 0, &[b'C'; (LEN * BLOCK) as usize]).unwrap();
    fs.sync_inode(file, None).unwrap();
    let data = Settings::parse("journal_mode=data").unwrap();
    fs.cube_call(&CubeCall::Set(file, data)).unwrap();
    write(&fs, file, 0, &[b'D'; (LEN * BLOCK) as usize]).unwrap();
    fs.sync_inode(file, None).unwrap();
    // Its blocks are free, and directories of the same cube take some of them.
    let place = floe_fs::Place { directory: a, name: b"file" };
    fs.apply(&op(OpKind::Unlink(place))).unwrap();
    fs.sync().unwrap();
    let other = make(&fs, a, "other", NewInode::regular(0o644)).unwrap();
    write(&fs, other, 0, &[b'E'; 64 * BLOCK as usize]).unwrap();
    fs.sync_inode(other, None).unwrap();
    let trace = device.trace();
    let device = base.clone();
    trace.replay(&Crash::after(trace.events.len()), &device).unwrap();
    let ((), closed) = used(&device, |fs| {
        let a = find(fs, InodeNr::ROOT, "a").unwrap();
        assert!(find(fs, a, "file").is_err());
        let other = find(fs, a, "other").unwrap();
        assert!(read(fs, other, 64 * BLOCK as usize).unwrap() == vec![b'E'; 64 * BLOCK as usize]);
    });
    closed.unwrap();
    assert!(check(&device, &CheckOptions::default()).unwrap().found.is_empty());
}
