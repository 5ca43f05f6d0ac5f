//! A repair that moves files into their cubes, and that is cut off at any write: the next one has every file, and finishes what was begun.

use std::collections::BTreeSet;

use super::home::{can_mount, entangled, files, image_of, relay, same, swap};
use super::*;
use floe_blockdev::{Crash, Recorder};
use floe_repair::Repair;
use floe_repair::undo::{Standing, standing, undo};
use floe_testkit::crash::{Effort, crashes, tears};

/// Repairs, and writes it. Returns what `look` says of the repair.
fn repaired_by<T>(
    device: &dyn WriteBlocks,
    undo: Option<UndoTarget<'_>>,
    look: impl FnOnce(&Repair<'_>) -> T,
) -> T {
    let seen = Seen::of(&device);
    let reader: &dyn ReadBlocks = device;
    let planned = repair(reader, &RepairOptions::default(), &mut Yes).unwrap();
    let options = CommitOptions { undo, ..CommitOptions::of(&seen) };
    planned.commit(device, &options).unwrap();
    look(&planned)
}

/// Whether a crash tore a sector, or the superblock: neither is expected of devices (docs/journal.md).
fn cannot_be(trace: &floe_blockdev::Trace, crash: &Crash) -> bool {
    let torn_sector = crash.torn_bytes.is_some_and(|bytes| !bytes.is_multiple_of(512));
    torn_sector || tears(trace, crash, 1024..2048)
}

/// Cuts off a repair of the image in each state of which `wanted` takes one; returns how many were tried. `left`: names and files that
/// cannot move.
fn cut_off(before: &MemDevice, wanted: usize, left: (usize, usize)) -> usize {
    let base = before.to_vec();
    let tree = files(&image_of(before));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("undo");
    let recorder = Recorder::new(before.clone());
    let target = UndoTarget { path: &path, fs_offset_bytes: 0 };
    repaired_by(&recorder, Some(target), |planned| {
        assert!(planned.moves.writes.is_some() && planned.moves.refused.is_none());
    });
    let (after, trace) = recorder.into_parts();
    assert_eq!(entangled(&after), left);
    assert!(same(&files(&image_of(&after)), &tree));
    let file = UndoFile::open(&path).unwrap();
    let all = crashes(&trace, Effort::default()).into_iter();
    let all: Vec<Crash> = all.filter(|crash| !cannot_be(&trace, crash)).step_by(wanted).collect();
    for (at, crash) in all.iter().enumerate() {
        let device = before.clone();
        trace.replay(crash, &device).unwrap();
        // The way back, as far as the file system is known by it.
        let standing = standing(&file, &device).unwrap();
        assert_ne!(standing, Standing::Foreign, "{crash:?}");
        let undone = device.clone();
        undo(&file, &undone).unwrap();
        assert!(undone.holds(&base), "not undone: {crash:?}");
        // And the way on.
        repaired_by(&device, None, |planned| {
            assert!(planned.left.is_empty(), "{crash:?}: {:?}", planned.left);
        });
        assert_eq!(entangled(&device), left, "{crash:?}");
        let image = image_of(&device);
        assert!(same(&files(&image), &tree), "{crash:?}");
        if at % 8 == 0 {
            let judged = oracle::e2fsck(&image).unwrap();
            assert!(judged.clean(), "{crash:?}: {}", judged.text);
            repaired_by(&device, None, |planned| {
                assert!(planned.deeds.is_empty(), "{crash:?}: {:?}", planned.deeds);
            });
        }
    }
    all.len()
}

/// Content and attributes of two cubes have changed places.
fn swapped() -> MemDevice {
    let device = cubes(2, 24);
    swap(&device);
    device
}

/// The same, where each cube has a journal of its own.
fn swapped_with_journals() -> MemDevice {
    let device = cubes_with(64, 5, 2, 24);
    swap(&device);
    device
}

/// As Linux leaves it, names in other cubes included.
fn of_linux() -> MemDevice {
    let image = image_of(&cubes_in(24, 3, 24));
    relay(&image, 7, true);
    MemDevice::new(image.to_vec().unwrap())
}

#[test]
fn a_repair_that_is_cut_off_amid_moves_loses_nothing() {
    if tool::missing() {
        return;
    }
    let states = cut_off(&swapped(), 11, (0, 0));
    assert!(states > 15, "{states}");
}

#[test]
fn journals_of_cubes_have_their_part_of_a_move() {
    if tool::missing() {
        return;
    }
    let states = cut_off(&swapped_with_journals(), 23, (0, 0));
    assert!(states > 10, "{states}");
}

#[test]
fn inodes_that_move_are_there_after_a_cut() {
    if !can_mount() {
        return;
    }
    let states = cut_off(&of_linux(), 131, (0, 1));
    assert!(states > 10, "{states}");
}

#[test]
#[ignore = "all states; `cargo xtask crash` runs it"]
fn a_repair_that_is_cut_off_anywhere_amid_moves_loses_nothing() {
    eprintln!("{} states", cut_off(&swapped(), 1, (0, 0)));
    eprintln!("{} states with journals", cut_off(&swapped_with_journals(), 1, (0, 0)));
}

#[test]
#[ignore = "all states; `cargo xtask crash` runs it"]
fn inodes_that_move_are_there_after_any_cut() {
    if can_mount() {
        eprintln!("{} states", cut_off(&of_linux(), 1, (0, 1)));
    }
}

/// Everything that is written is in the undo file, and each page of it once.
#[test]
fn moves_are_undone_byte_for_byte() {
    let device = swapped();
    let before = device.to_vec();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("undo");
    let target = UndoTarget { path: &path, fs_offset_bytes: 0 };
    repaired_by(&device, Some(target), |planned| assert!(planned.moves_files()));
    let file = UndoFile::open(&path).unwrap();
    assert_eq!(standing(&file, &device).unwrap(), Standing::Committed);
    let between: BTreeSet<_> = file.superblocks_in_between().iter().collect();
    assert!(between.len() > 2 && between.len() < 100, "{}", between.len());
    undo(&file, &device).unwrap();
    assert!(device.holds(&before));
}

/// A plan holds the same writes and flushes in the same order.
#[test]
fn a_plan_moves_files() {
    use floe_repair::plan_file::{PlanFileError, save, stage};
    let device = swapped();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan");
    let planned = repair(&device, &RepairOptions::default(), &mut Yes).unwrap();
    assert!(save(&planned, &device, &path).unwrap().moves_files);
    drop(planned);
    let recorders = [0, 1].map(|_| Recorder::new(device.clone()));
    let [by_plan, at_once] = &recorders;
    repaired_by(at_once, None, |_| ());
    let seen = Seen::of(by_plan);
    let options = CommitOptions::of(&seen);
    let (header, planned) = stage(&path, by_plan, 1 << 20).unwrap();
    assert!(header.moves_files && header.clean);
    planned.commit(by_plan, &options).unwrap();
    assert!(by_plan.trace().events == at_once.trace().events, "another order");
    // A byte that moves write is another one now; a byte of the plan is.
    let plan = std::fs::read(&path).unwrap();
    let mut pages = BTreeSet::new();
    for event in by_plan.trace().events {
        if let floe_blockdev::Event::Write { offset_bytes, .. } = event {
            pages.insert(offset_bytes);
        }
    }
    for offset in pages.into_iter().step_by(7).chain([1024]) {
        let other = device.clone();
        let mut byte = [0];
        other.read_at(offset, &mut byte).unwrap();
        other.write_at(offset, &[byte[0] ^ 4]).unwrap();
        assert!(matches!(stage(&path, &other, 1 << 20), Err(PlanFileError::Changed { .. })));
    }
    let damaged = folder.path().join("damaged");
    for at in (0..plan.len()).step_by(plan.len() / 200) {
        let mut bytes = plan.clone();
        bytes[at] ^= 0x10;
        std::fs::write(&damaged, bytes).unwrap();
        assert!(stage(&damaged, &device, 1 << 20).is_err(), "byte {at}");
    }
}
