//! Multiple-mount protection: machines that have the file system mounted are noticed, and see the mark of a checker while it is
//! written.

use std::time::Duration;

use anyhow::ensure;
use floe_blockdev::{
    Crash, Fault, Faulty, MemDevice, Overlay, ReadBlocks, Recorder, UndoFile, WriteBlocks,
};
use floe_check::Problem;
use floe_format::BlockNr;
use floe_format::ext::mmp::{Mmp, SEQ_CLEAN, SEQ_FSCK};
use floe_format::ext::superblock::Superblock;
use floe_repair::commit::{CommitError, CommitOptions, Seen, UndoTarget, commit};
use floe_repair::multi_mount::active;
use floe_repair::policy::Yes;
use floe_repair::undo::undo;
use floe_repair::{RepairOptions, repair};
use floe_testkit::crash::{Effort, each_state};

use crate::crash_support::{Scene, staged_changes};

fn options<'a>(seen: &'a Seen, undo: Option<UndoTarget<'a>>) -> CommitOptions<'a> {
    CommitOptions { seen, undo, overwrite_unreadable: false, interrupt: None, progress: None }
}

/// Byte offset of the block.
fn place(device: &dyn ReadBlocks) -> u64 {
    let mut bytes = [0; 1024];
    device.read_at(1024, &mut bytes).unwrap();
    let superblock = Superblock::decode(&bytes);
    superblock.mmp_block * (1024 << superblock.log_block_size)
}

fn mmp(device: &dyn ReadBlocks) -> Mmp {
    let mut bytes = [0; 1024];
    device.read_at(place(device), &mut bytes).unwrap();
    Mmp::decode(&bytes)
}

/// Changes the block as another machine does.
fn beat(device: &dyn WriteBlocks, change: impl FnOnce(&mut Mmp)) {
    let mut superblock = [0; 1024];
    device.read_at(1024, &mut superblock).unwrap();
    let seed = Superblock::decode(&superblock).seed();
    let mut found = mmp(&device);
    change(&mut found);
    let mut bytes = [0; 1024];
    found.encode_into(&mut bytes);
    found.checksum = Mmp::compute_checksum(seed, &bytes);
    found.encode_into(&mut bytes);
    device.write_at(place(&device), &bytes).unwrap();
}

/// The finding, and the waits in seconds. `meanwhile` runs during a wait.
fn seen_active(
    device: &dyn WriteBlocks,
    mut meanwhile: impl FnMut(),
) -> (Option<Problem>, Vec<u64>) {
    let mut waits = Vec::new();
    let found = active(device, &[2049 << 10], &mut |time: Duration| {
        waits.push(time.as_secs());
        meanwhile();
    });
    (found, waits)
}

#[test]
fn a_sequence_that_moves_is_another_machine() {
    let Some(scene) = Scene::of("mmp") else { return };
    let device = MemDevice::new(scene.before.clone());
    assert_eq!(seen_active(&device, || ()), (None, vec![]), "nobody, by its own word");
    beat(&device, |mmp| mmp.seq = 17);
    assert_eq!(seen_active(&device, || ()), (None, vec![11]), "a machine that crashed");
    let (found, waits) = seen_active(&device, || beat(&device, |mmp| mmp.seq += 1));
    assert!(matches!(found, Some(Problem::MmpInUse { sequence: 18, .. })), "{found:?}");
    assert_eq!(waits, [11]);
    // The longer interval counts, and a long one is not waited for twice.
    beat(&device, |mmp| mmp.check_interval = 20);
    assert_eq!(seen_active(&device, || ()).1, [41]);
    beat(&device, |mmp| mmp.check_interval = 300);
    assert_eq!(seen_active(&device, || ()).1, [360]);
    // A damaged block may be one that was half written.
    device.write_at(place(&device), &[9]).unwrap();
    let (found, waits) = seen_active(&device, || beat(&device, |mmp| mmp.seq += 1));
    assert!(found.is_some() && waits == [11], "{found:?} {waits:?}");
    // The primary superblock is lost.
    let mut primary = [0; 1024];
    device.read_at(1024, &mut primary).unwrap();
    beat(&device, |mmp| mmp.check_interval = 5);
    let at = place(&device);
    device.write_at(1024, &[0; 1024]).unwrap();
    let meanwhile = || device.write_at(at + 4, &[99]).unwrap();
    let (found, waits) = seen_active(&device, meanwhile);
    assert!(found.is_some() && waits == [11], "{found:?} {waits:?}");
}

#[test]
fn the_mark_of_a_checker_is_there_from_the_first_write_to_the_last() {
    let Some(scene) = Scene::of("mmp") else { return };
    let path = scene.folder.path().join("undo");
    let device = Recorder::new(MemDevice::new(scene.before.clone()));
    let at = place(&device);
    let seen = Seen::of(&device);
    let staged = Overlay::new(&device as &dyn ReadBlocks, scene.block_bytes);
    staged_changes(&scene, &staged);
    let target = UndoTarget { path: &path, fs_offset_bytes: 0 };
    commit(&staged, &device, &options(&seen, Some(target))).unwrap();
    drop(staged);
    let (device, trace) = device.into_parts();
    let after = device.to_vec();
    assert!(after[at as usize..][..1024] == scene.before[at as usize..][..1024], "as before");
    let file = UndoFile::open(&path).unwrap();
    let effort = Effort { random_per_epoch: 1, seed: 5 };
    let states = each_state(&trace, &scene.before, effort, |device, _| {
        let now = device.to_vec();
        // But for the block itself, it is as before or as after: the mark may be gone.
        let (from, to) = (at as usize, at as usize + 1024);
        let is = |other: &[u8]| now[..from] == other[..from] && now[to..] == other[to..];
        let is_whole = is(&scene.before) || is(&after);
        ensure!(is_whole || mmp(&device).seq == SEQ_FSCK, "no mark");
        undo(&file, &device)?;
        ensure!(device.holds(&scene.before), "not the original bytes");
        Ok(())
    });
    assert!(states.unwrap() > 40);
    // Undoing leaves the mark, too.
    let device = Recorder::new(MemDevice::new(after.clone()));
    undo(&file, &device).unwrap();
    let (_, trace) = device.into_parts();
    for issued in 0..=trace.events.len() {
        let device = MemDevice::new(after.clone());
        trace.replay(&Crash::after(issued), &device).unwrap();
        let now = device.to_vec();
        let done = now == after || now == scene.before;
        assert!(done || mmp(&device).seq == SEQ_FSCK, "{issued}");
    }
}

/// Its own mark, left by a repair that was killed, stops neither a repair nor undoing; that of another checker does.
#[test]
fn a_killed_repair_does_not_lock_everybody_out() {
    let Some(scene) = Scene::of("mmp") else { return };
    let device = Recorder::new(MemDevice::new(scene.before.clone()));
    let seen = Seen::of(&device);
    let staged = Overlay::new(&device as &dyn ReadBlocks, scene.block_bytes);
    staged.write_at(1024, &scene.after_superblock).unwrap();
    commit(&staged, &device, &options(&seen, None)).unwrap();
    drop(staged);
    let (_, trace) = device.into_parts();
    let device = MemDevice::new(scene.before.clone());
    trace.replay(&Crash::after(2), &device).unwrap();
    let mark = mmp(&device);
    assert_eq!(mark.seq, SEQ_FSCK);
    assert!(mark.nodename[0] != 0 && mark.bdevname.starts_with(b"floe "), "{mark:?}");
    assert_eq!(seen_active(&device, || ()), (None, vec![]));
    let seen = Seen::of(&device);
    let staged = repair(&device, &RepairOptions::default(), &mut Yes).unwrap();
    commit(&staged.staged, &device, &options(&seen, None)).unwrap();
    assert_eq!(mmp(&device).seq, SEQ_CLEAN);
    beat(&device, |mmp| *mmp = Mmp { bdevname: [b'x'; 32], ..mark });
    let error = repair(&device, &RepairOptions::default(), &mut Yes).err().unwrap();
    assert!(error.to_string().contains("another machine or checker"), "{error}");
}

#[test]
fn a_machine_that_begins_meanwhile_and_a_write_that_fails_are_noticed() {
    let Some(scene) = Scene::of("mmp") else { return };
    let device = MemDevice::new(scene.before.clone());
    let seen = Seen::of(&device);
    let staged = Overlay::new(&device as &dyn ReadBlocks, scene.block_bytes);
    staged_changes(&scene, &staged);
    beat(&device, |mmp| mmp.seq = 17);
    let before = device.to_vec();
    let error = commit(&staged, &device, &options(&seen, None)).unwrap_err();
    assert!(matches!(error, CommitError::OtherMachine) && error.nothing_written(), "{error}");
    assert!(device.holds(&before));
    // After an error nobody is kept out.
    let bad = BlockNr(scene.a_changed_page / u64::from(scene.block_bytes));
    let faulty = Faulty::new(device, scene.block_bytes, [(bad, Fault::Unwritable)]);
    let seen = Seen::of(&faulty);
    let staged = Overlay::new(&faulty as &dyn ReadBlocks, scene.block_bytes);
    staged_changes(&scene, &staged);
    let error = commit(&staged, &faulty, &options(&seen, None)).unwrap_err();
    assert!(matches!(error, CommitError::Write { .. }), "{error}");
    assert_eq!(mmp(&faulty).seq, SEQ_CLEAN);
}
