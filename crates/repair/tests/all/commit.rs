//! Commits of arbitrary changes to real images: write order, failures, crashes and undo.

use std::fs;
use std::path::PathBuf;

use anyhow::ensure;
use floe_blockdev::{
    Crash, Event, Fault, Faulty, MemDevice, Overlay, ReadBlocks, Recorder, Trace, UndoFile,
    WriteBlocks,
};
use floe_exec::Interrupt;
use floe_exec::interrupt::Answer;
use floe_format::BlockNr;
use floe_format::ext::superblock::{STATE_VALID, Superblock};
use floe_repair::commit::{CommitError, CommitOptions, Seen, UndoTarget, commit};
use floe_repair::undo::{Standing, standing, undo};
use floe_testkit::crash::{Effort, each_state};
use floe_testkit::{Image, oracle};

use crate::crash_support::{Scene, staged_changes};

fn options<'a>(seen: &'a Seen, undo: Option<UndoTarget<'a>>) -> CommitOptions<'a> {
    CommitOptions { seen, undo, overwrite_unreadable: false, interrupt: None, progress: None }
}

/// Stages changes, commits them to a recorded copy, and returns the bytes before and after and the
/// trace of writes.
fn committed(scene: &Scene, undo: Option<&PathBuf>) -> (Vec<u8>, Vec<u8>, Trace) {
    let before = scene.before.clone();
    let device = Recorder::new(MemDevice::new(before.clone()));
    let seen = Seen::of(&device);
    let staged = Overlay::new(&device as &dyn ReadBlocks, scene.block_bytes);
    staged_changes(scene, &staged);
    let mut expected = vec![0; before.len()];
    staged.read_at(0, &mut expected).unwrap();
    let undo = undo.map(|path| UndoTarget { path, fs_offset_bytes: 0 });
    let done = commit(&staged, &device, &options(&seen, undo)).unwrap();
    assert!(done.bytes > 0 && done.not_saved.is_empty());
    assert_eq!(done.undo_bytes != 0, undo.is_some());
    drop(staged);
    let (device, trace) = device.into_parts();
    let after = device.to_vec();
    assert!(after == expected, "the device holds what was staged, copies included");
    (before, after, trace)
}

fn state(superblock: &[u8]) -> u16 {
    Superblock::decode(superblock[1024..2048].try_into().unwrap()).state
}

#[test]
fn only_what_differs_is_written_and_in_order() {
    for profile in ["ext4-1k", "ext4", "ext2-1k"] {
        let Some(scene) = Scene::of(profile) else { return };
        let (before, after, trace) = committed(&scene, None);
        let block = scene.block_bytes as usize;
        let mut written = vec![0u32; before.len() / block];
        let mut epochs: Vec<Vec<(u64, usize)>> = vec![Vec::new()];
        for event in &trace.events {
            match event {
                Event::Flush => epochs.push(Vec::new()),
                Event::Write { offset_bytes, bytes } => {
                    epochs.last_mut().unwrap().push((*offset_bytes, bytes.len()));
                    if bytes.len() >= block {
                        let first = *offset_bytes as usize / block;
                        written[first..first + bytes.len() / block]
                            .iter_mut()
                            .for_each(|w| *w += 1);
                    }
                }
            }
        }
        for (index, times) in written.iter().enumerate() {
            let range = index * block..(index + 1) * block;
            let differs = before[range.clone()] != after[range];
            let is_superblock = index == 1024 / block;
            // With 1 KiB blocks, clearing the clean flag writes just the block of the superblock.
            let most = 1 + u32::from(is_superblock && block == 1024);
            assert!(*times >= u32::from(differs) && *times <= most * u32::from(differs), "{index}");
        }
        let [mark, early, descriptors, journals, last, end] = &epochs[..] else {
            panic!("{epochs:?}")
        };
        assert_eq!(mark[..], [(1024, 1024)]);
        assert!(early.len() > 10 && early.is_sorted(), "ascending");
        assert!(early.len() < scene.pages_changed / 2, "joined: {} writes", early.len());
        assert_eq!(descriptors[..], [(scene.descriptors(), block)]);
        assert_eq!(journals[..], [(scene.journal_superblock, block)]);
        assert_eq!(last[..], [((1024 / block * block) as u64, block)]);
        assert!(end.is_empty(), "the commit ends with a flush");
    }
}

#[test]
fn nothing_is_done_where_nothing_differs() {
    let Some(scene) = Scene::of("ext4") else { return };
    let device = Recorder::new(MemDevice::new(scene.before.clone()));
    let seen = Seen::of(&device);
    let staged = Overlay::new(&device as &dyn ReadBlocks, 4096);
    staged.write_at(0, &scene.before[..100_000]).unwrap();
    let path = scene.folder.path().join("undo");
    let target = UndoTarget { path: &path, fs_offset_bytes: 0 };
    let done = commit(&staged, &device, &options(&seen, Some(target))).unwrap();
    assert_eq!(done, floe_repair::commit::Committed::default());
    drop(staged);
    assert!(device.into_parts().1.events.is_empty());
    assert!(!path.exists());
}

/// The clean flag is cleared while other blocks are written and set again at the end, even if the
/// superblock does not change otherwise.
#[test]
fn a_superblock_that_stays_is_marked_all_the_same() {
    for (profile, stage_superblock) in [("ext4-1k", true), ("ext4-1k", false), ("ext4", false)] {
        let Some(scene) = Scene::of(profile) else { return };
        let block = u64::from(scene.block_bytes);
        let device = Recorder::new(MemDevice::new(scene.before.clone()));
        let seen = Seen::of(&device);
        let staged = Overlay::new(&device as &dyn ReadBlocks, scene.block_bytes);
        staged.write_at(500 * block, &[7; 100]).unwrap();
        if stage_superblock {
            staged.write_at(1024, &scene.before[1024..2048]).unwrap();
        }
        let path = scene.folder.path().join("undo");
        let target = UndoTarget { path: &path, fs_offset_bytes: 0 };
        let done = commit(&staged, &device, &options(&seen, Some(target))).unwrap();
        // The superblock is marked before, in its own kilobyte.
        assert_eq!(done.bytes, 2 * block + 1024);
        drop(staged);
        let (device, trace) = device.into_parts();
        let mut expected = scene.before.clone();
        expected[500 * block as usize..][..100].fill(7);
        assert!(device.holds(&expected));
        let file = UndoFile::open(&path).unwrap();
        let mut marked = 0;
        each_state(&trace, &scene.before, Effort::default(), |device, _| {
            let now = device.to_vec();
            marked += u32::from(state(&now) & STATE_VALID == 0);
            let whole = now == scene.before || now == expected;
            let sound = Superblock::checksum_ok(now[1024..2048].try_into()?);
            ensure!(whole || !sound || state(&now) & STATE_VALID == 0, "half written, and clean");
            ensure!(standing(&file, &device)? != Standing::Foreign);
            undo(&file, &device)?;
            ensure!(device.holds(&scene.before), "not the original bytes");
            Ok(())
        })
        .unwrap();
        assert!(marked > 2);
    }
}

/// Undo restores the original bytes from every state that a crash can leave, even if undo itself is
/// interrupted.
#[test]
fn from_every_crash_there_is_a_way_back() {
    for (profile, effort) in [
        ("ext4-1k", Effort { random_per_epoch: 24, seed: 3 }),
        ("ext2-4k", Effort { random_per_epoch: 6, seed: 4 }),
    ] {
        let Some(scene) = Scene::of(profile) else { return };
        let path = scene.folder.path().join("undo");
        let (before, after, trace) = committed(&scene, Some(&path));
        let file = UndoFile::open(&path).unwrap();
        let mut met = [0; 3];
        let states = each_state(&trace, &before, effort, |device, _| {
            let standing = standing(&file, &device)?;
            let now = device.to_vec();
            let index = match standing {
                Standing::Untouched => 0,
                Standing::Partly => 1,
                Standing::Committed => 2,
                Standing::Changed { .. } | Standing::Foreign => {
                    anyhow::bail!("its own device is foreign to the undo file")
                }
            };
            met[index] += 1;
            ensure!((index == 0) == (now == before), "{standing:?}");
            ensure!((index == 2) == (now == after), "{standing:?}");
            // No half-written state carries the clean flag.
            let wrong = state(&now) & STATE_VALID != 0
                && Superblock::checksum_ok(now[1024..2048].try_into()?);
            ensure!(!wrong || index != 1, "half written, and called clean");
            if index == 1 && met[index] % 60 == 1 {
                undo_cut_off_anywhere(&file, &now, &before)?;
            }
            undo(&file, &device)?;
            ensure!(device.holds(&before), "not the original bytes");
            let standing = floe_repair::undo::standing(&file, &device)?;
            ensure!(standing == Standing::Untouched, "{standing:?}");
            Ok(())
        });
        let states = states.unwrap();
        assert!(states > 60 && met[1] > 40 && met[0] > 0 && met[2] > 0, "{states}: {met:?}");
    }
}

fn undo_cut_off_anywhere(file: &UndoFile, now: &[u8], before: &[u8]) -> anyhow::Result<()> {
    let device = Recorder::new(MemDevice::new(now.to_vec()));
    undo(file, &device)?;
    let (_, trace) = device.into_parts();
    for issued in (0..=trace.events.len()).rev().step_by(5) {
        let device = MemDevice::new(now.to_vec());
        trace.replay(&Crash::after(issued), &device)?;
        ensure!(standing(file, &device)? != Standing::Foreign, "undoing, {issued} done");
        undo(file, &device)?;
        ensure!(device.holds(before), "undoing, {issued} done");
    }
    Ok(())
}

/// e2fsck restores the same bytes from our undo file, and does not skip its check of a half-written
/// state.
#[test]
fn the_tools_of_e2fsprogs_agree() {
    let Some(scene) = Scene::of("ext4-1k") else { return };
    let path = scene.folder.path().join("undo");
    let (before, after, trace) = committed(&scene, Some(&path));
    let image = Image::empty(after.len() as u64).unwrap();
    image.write(0, &after).unwrap();
    floe_testkit::tool::must("e2undo", &[path.as_path(), image.path()], &[0]).unwrap();
    assert!(image.to_vec().unwrap() == before);
    // Only the clean flag was cleared.
    let device = MemDevice::new(before.clone());
    trace.replay(&Crash::after(2), &device).unwrap();
    for (bytes, checked) in [(before, false), (device.to_vec(), true)] {
        image.write(0, &bytes).unwrap();
        let said = oracle::run(image.path(), &["-n"]).unwrap();
        assert_eq!(said.text.contains("Pass 1"), checked, "{}", said.text);
    }
}

#[test]
fn a_device_that_others_changed_is_left_alone() {
    let Some(scene) = Scene::of("ext4-1k") else { return };
    let device = MemDevice::new(scene.before.clone());
    let seen = Seen::of(&device);
    let staged = Overlay::new(&device as &dyn ReadBlocks, 1024);
    staged_changes(&scene, &staged);
    let path = scene.folder.path().join("undo");
    let target = Some(UndoTarget { path: &path, fs_offset_bytes: 0 });
    let untouched = |error: CommitError, before: &[u8]| {
        assert!(error.nothing_written() && !path.exists(), "{error}");
        assert!(device.holds(before), "{error}");
    };
    let interrupt = Interrupt::new();
    let _ = interrupt.ask();
    let wish = CommitOptions { interrupt: Some(&interrupt), ..options(&seen, target) };
    let error = commit(&staged, &device, &wish).unwrap_err();
    assert!(matches!(error, CommitError::Interrupted), "{error}");
    untouched(error, &scene.before);

    // A mount increments its count in the superblock.
    device.write_at(1024 + 0x34, &[77]).unwrap();
    let error = commit(&staged, &device, &options(&seen, target)).unwrap_err();
    assert!(matches!(error, CommitError::ChangedMeanwhile), "{error}");
    let mounted = device.to_vec();
    untouched(error, &mounted);
}

/// A device on which the user presses Ctrl-C at every write.
struct Impatient<'a> {
    inner: MemDevice,
    interrupt: &'a Interrupt,
}

impl ReadBlocks for Impatient<'_> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> std::io::Result<()> {
        self.inner.read_at(offset_bytes, into)
    }
}

impl WriteBlocks for Impatient<'_> {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> std::io::Result<()> {
        assert_eq!(self.interrupt.ask(), Answer::Later, "the program ends in the middle");
        self.inner.write_at(offset_bytes, from)
    }
    fn flush(&self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

#[test]
fn a_wish_to_stop_is_noted_while_the_device_is_written() {
    let Some(scene) = Scene::of("ext4-1k") else { return };
    let (_, after, _) = committed(&scene, None);
    let interrupt = Interrupt::new();
    let device = Impatient { inner: MemDevice::new(scene.before.clone()), interrupt: &interrupt };
    let seen = Seen::of(&device);
    let staged = Overlay::new(&device as &dyn ReadBlocks, 1024);
    staged_changes(&scene, &staged);
    let options = CommitOptions { interrupt: Some(&interrupt), ..options(&seen, None) };
    commit(&staged, &device, &options).unwrap();
    assert!(device.inner.holds(&after));
    assert!(interrupt.asked());
    assert_eq!(interrupt.ask(), Answer::EndNow, "and the program may end now");
}

#[test]
fn a_device_that_shrank_is_left_alone() {
    let Some(scene) = Scene::of("ext4-1k") else { return };
    let path = scene.folder.path().join("image");
    fs::write(&path, &scene.before).unwrap();
    let device = floe_blockdev::WritableFile::open_exclusive(&path).unwrap();
    let seen = Seen::of(&device);
    let staged = Overlay::new(&device as &dyn ReadBlocks, 1024);
    staged_changes(&scene, &staged);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(scene.before.len() as u64 - 1024).unwrap();
    let error = commit(&staged, &device, &options(&seen, None)).unwrap_err();
    assert!(matches!(error, CommitError::Shrank { .. }), "{error}");
    assert!(fs::read(&path).unwrap() == scene.before[..scene.before.len() - 1024]);
}

#[test]
fn an_undo_file_that_cannot_be_made_stops_the_commit() {
    let Some(scene) = Scene::of("ext4-1k") else { return };
    let device = MemDevice::new(scene.before.clone());
    let seen = Seen::of(&device);
    let staged = Overlay::new(&device as &dyn ReadBlocks, 1024);
    staged_changes(&scene, &staged);
    let there = scene.folder.path().join("there");
    fs::write(&there, b"precious").unwrap();
    for path in
        [there.clone(), scene.folder.path().join("no/such/folder"), PathBuf::from("/dev/full")]
    {
        let target = Some(UndoTarget { path: &path, fs_offset_bytes: 0 });
        let error = commit(&staged, &device, &options(&seen, target)).unwrap_err();
        assert!(matches!(error, CommitError::Undo(_)) && error.nothing_written(), "{error}");
        assert!(device.holds(&scene.before));
    }
    assert_eq!(fs::read(&there).unwrap(), b"precious");
}

#[test]
fn write_errors_say_how_far_it_got_and_can_be_undone() {
    let Some(scene) = Scene::of("ext4-1k") else { return };
    let (_, _, trace) = committed(&scene, None);
    // A block in the middle of the writes, and the last one.
    let writes: Vec<u64> = trace
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Write { offset_bytes, .. } => Some(*offset_bytes),
            Event::Flush => None,
        })
        .collect();
    for (number, fault) in [
        (writes[writes.len() / 2], Fault::Unwritable),
        (writes[writes.len() / 2], Fault::LosesWrites),
        (1024, Fault::Unwritable),
        (1024, Fault::LosesWrites),
    ] {
        let path = scene.folder.path().join(format!("undo-{number}-{fault:?}"));
        let bad = BlockNr(number / 1024);
        let device =
            Faulty::new(MemDevice::new(scene.before.clone()), 1024, [(bad, fault.clone())]);
        let seen = Seen::of(&device);
        let staged = Overlay::new(&device as &dyn ReadBlocks, 1024);
        staged_changes(&scene, &staged);
        let target = Some(UndoTarget { path: &path, fs_offset_bytes: 0 });
        let error = commit(&staged, &device, &options(&seen, target)).unwrap_err();
        let text = error.to_string();
        assert!(!error.nothing_written() && text.contains("restores the original state"), "{text}");
        // The superblock is marked first: if that fails, nothing was done.
        let has_begun = number != 1024 || matches!(fault, Fault::LosesWrites);
        let begun = if has_begun { "half done" } else { "No write succeeded" };
        assert!(text.contains(begun), "{fault:?} at {number}: {text}");
        match (&error, &fault) {
            (CommitError::Write { offset_bytes, .. }, Fault::Unwritable)
            | (CommitError::Verify { offset_bytes, .. }, Fault::LosesWrites) => {
                assert!(*offset_bytes <= number, "{text}");
            }
            _ => panic!("{fault:?}: {text}"),
        }
        // The final superblock must not be written if other blocks did not arrive.
        let now = device.inner().to_vec();
        assert!(now[1024..2048] != scene.after_superblock[..]);
        let file = UndoFile::open(&path).unwrap();
        let sound = MemDevice::new(now);
        undo(&file, &sound).unwrap();
        assert!(sound.holds(&scene.before), "{fault:?} at {number}");
    }
}

#[test]
fn unreadable_blocks_are_overwritten_only_on_request_and_never_lost_silently() {
    let Some(scene) = Scene::of("ext4-1k") else { return };
    let bad = BlockNr(scene.a_changed_page / 1024);
    let device = MemDevice::new(scene.before.clone());
    let staged = Overlay::new(&device as &dyn ReadBlocks, 1024);
    staged_changes(&scene, &staged);
    let broken =
        Faulty::new(MemDevice::new(scene.before.clone()), 1024, [(bad, Fault::Unreadable)]);
    let seen = Seen::of(&broken);
    let path = scene.folder.path().join("undo");
    let target = Some(UndoTarget { path: &path, fs_offset_bytes: 0 });
    let refusing = options(&seen, target);
    let error = commit(&staged, &broken, &refusing).unwrap_err();
    assert!(matches!(error, CommitError::Unreadable { pages: 1, .. }), "{error}");
    assert!(broken.inner().holds(&scene.before) && !path.exists());
    // The sector stays bad, so verification fails; everything else is written and saved.
    let willing = CommitOptions { overwrite_unreadable: true, ..refusing };
    let error = commit(&staged, &broken, &willing).unwrap_err();
    assert!(!error.nothing_written(), "{error}");
    let file = UndoFile::open(&path).unwrap();
    assert!(file.saved().iter().all(|saved| !saved.range().contains(&scene.a_changed_page)));
    assert_eq!(file.not_saved(), [scene.a_changed_page]);
    let sound = broken.inner().clone();
    undo(&file, &sound).unwrap();
    let mut now = sound.to_vec();
    let lost = scene.a_changed_page as usize;
    assert!(now[lost..lost + 1024] != scene.before[lost..lost + 1024]);
    now[lost..lost + 1024].copy_from_slice(&scene.before[lost..lost + 1024]);
    assert!(now == scene.before, "all but the block that could not be read");
}

#[test]
fn an_undo_file_of_another_file_system_is_foreign() {
    let (Some(scene), Some(other)) = (Scene::of("ext4-1k"), Scene::of("ext2-1k")) else { return };
    let path = scene.folder.path().join("undo");
    let (_, after, _) = committed(&scene, Some(&path));
    let file = UndoFile::open(&path).unwrap();
    let device = MemDevice::new(other.before.clone());
    assert_eq!(standing(&file, &device).unwrap(), Standing::Foreign);
    // The same file system after further writes: its write time differs.
    let device = MemDevice::new(after);
    assert_eq!(standing(&file, &device).unwrap(), Standing::Committed);
    // A later write may leave the superblock as it is.
    let at = scene.a_changed_page;
    let mut block = [0; 1024];
    device.read_at(at, &mut block).unwrap();
    let changed = block.map(|byte| !byte);
    device.write_at(at, &changed).unwrap();
    let standing_now = standing(&file, &device).unwrap();
    assert_eq!(standing_now, Standing::Changed { blocks: 1, first_bytes: at });
    device.write_at(at, &scene.before[at as usize..][..1024]).unwrap();
    assert_eq!(standing(&file, &device).unwrap(), Standing::Committed, "undone in part");
    device.write_at(at, &block).unwrap();
    device.write_at(1024 + 0x30, &[1, 2, 3]).unwrap();
    assert_eq!(standing(&file, &device).unwrap(), Standing::Foreign);
}
