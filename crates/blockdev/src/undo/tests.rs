//! Saved bytes are restored, and no others change.

use std::fs;
use std::io::ErrorKind;

use proptest::prelude::*;

use super::*;
use crate::{Crash, Fault, Faulty, MemDevice, ReadBlocks, Recorder, WriteBlocks};

const SUPERBLOCK: [u8; 1024] = [0x5c; 1024];

fn options(block_bytes: u32) -> UndoWriterOptions {
    UndoWriterOptions { block_bytes, fs_offset_bytes: 0, superblock_after: SUPERBLOCK }
}

/// Saves `stretches` of `device` in a new undo file at `path`.
fn saved(
    path: &Path,
    device: &MemDevice,
    block_bytes: u32,
    stretches: &[(u64, usize)],
) -> UndoFile {
    let mut writer = UndoWriter::create(path, &options(block_bytes)).unwrap();
    for &(offset, len) in stretches {
        let mut old = vec![0; len];
        device.read_at(offset, &mut old).unwrap();
        writer.save(offset, &old).unwrap();
    }
    assert_eq!(writer.finish().unwrap(), fs::metadata(path).unwrap().len());
    UndoFile::open(path).unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index.wrapping_mul(13) >> 4) as u8).collect()
}

/// The device is changed only once there is a way back.
#[test]
fn an_undo_file_that_reads_back_differently_is_an_error_and_goes_away() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("undo");
    let mut writer = UndoWriter::create(&path, &options(1024)).unwrap();
    writer.save(2048, &pattern(4096)).unwrap();
    // The header, the superblock and the keys come first.
    let unfinished = fs::File::options().write(true).open(folder.path().join("undo.unfinished"));
    std::os::unix::fs::FileExt::write_all_at(&unfinished.unwrap(), b"lost", 3 * 1024 + 100)
        .unwrap();
    let error = writer.finish().unwrap_err().to_string();
    assert!(error.contains("loses writes") && error.contains("offset 2048"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_was_written_over_comes_back(
        // Up to 400 keys: several key blocks of 63 keys each.
        pages in proptest::collection::btree_set(0u64..500, 1..400),
        tail in 1usize..=1024,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let before = pattern(499 * 1024 + tail);
        let device = MemDevice::new(before.clone());
        let stretches: Vec<_> = pages
            .iter()
            .map(|page| (page * 1024, if *page == 499 { tail } else { 1024 }))
            .collect();
        let file = saved(&folder.path().join("undo"), &device, 1024, &stretches);
        prop_assert!(file.differing(&device).unwrap().is_empty());
        for &(offset, len) in &stretches {
            device.write_at(offset, &vec![0xee; len]).unwrap();
        }
        let mut old = vec![0; before.len()];
        file.read_old(&device, 0, &mut old).unwrap();
        prop_assert!(old == before, "the old content can be read");
        let mut part = [0; 3000];
        file.read_old(&device, 500, &mut part).unwrap();
        prop_assert!(part == before[500..3500]);
        let restored = file.restore(&device).unwrap();
        prop_assert_eq!(restored.bytes, file.saved_bytes());
        prop_assert!(device.to_vec() == before);
        prop_assert_eq!(file.superblock_after(), &SUPERBLOCK);
    }
}

#[test]
fn long_stretches_are_cut_into_keys() {
    let folder = tempfile::tempdir().unwrap();
    let before = pattern(3 << 20);
    let device = MemDevice::new(before.clone());
    let file = saved(&folder.path().join("undo"), &device, 1024, &[(1024, (3 << 20) - 1024)]);
    assert_eq!(file.saved().len(), 6, "512 blocks a key");
    device.write_at(0, &vec![1; 3 << 20]).unwrap();
    file.restore(&device).unwrap();
    let now = device.to_vec();
    assert!(now[1024..] == before[1024..] && now[..1024] == [1; 1024]);
}

#[test]
fn an_undo_file_is_never_replaced_and_an_unfinished_one_goes_away() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("undo");
    let unfinished = folder.path().join("undo.unfinished");
    let mut writer = UndoWriter::create(&path, &options(4096)).unwrap();
    // A second writer is refused.
    assert!(UndoWriter::create(&path, &options(4096)).is_err());
    writer.save(4096, &[1; 4096]).unwrap();
    assert!(matches!(UndoFile::open(&unfinished), Err(UndoReadError::Unfinished { .. })));
    let kept = fs::read(&unfinished).unwrap();
    drop(writer);
    assert!(!path.exists() && !unfinished.exists());
    // The remains of a crash do not prevent a new undo file.
    fs::write(&unfinished, &kept).unwrap();
    UndoWriter::create(&path, &options(4096)).unwrap().finish().unwrap();
    assert!(path.exists() && !unfinished.exists());
    // Undo files of other programs carry a flag that says whether they are complete.
    fs::write(&path, kept).unwrap();
    assert!(matches!(UndoFile::open(&path), Err(UndoReadError::Unfinished { .. })));
    let error = UndoWriter::create(&path, &options(4096)).unwrap_err();
    assert!(matches!(error, UndoWriteError::Exists { .. }), "{error}");
    assert!(path.exists());
}

#[test]
fn odd_places_and_units_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("undo");
    for unit in [0, 512, 1000, 3072, 2 << 20] {
        let error = UndoWriter::create(&path, &options(unit)).unwrap_err();
        assert!(matches!(error, UndoWriteError::Unsuitable { .. }), "{unit}: {error}");
    }
    let mut writer = UndoWriter::create(&path, &options(4096)).unwrap();
    let error = writer.save(1024, &[0; 1024]).unwrap_err();
    assert!(matches!(error, UndoWriteError::Unsuitable { .. }), "{error}");
}

#[test]
fn an_empty_undo_file_restores_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let device = MemDevice::new(pattern(8192));
    let file = saved(&folder.path().join("undo"), &device, 4096, &[]);
    assert_eq!(file.restore(&device).unwrap(), Restored::default());
    assert!(device.to_vec() == pattern(8192));
}

/// Every changed byte of the file is detected, or has no meaning.
#[test]
fn damage_of_the_undo_file_is_noticed_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("undo");
    let before = pattern(64 << 10);
    let device = MemDevice::new(before.clone());
    let file = saved(&path, &device, 1024, &[(0, 3072), (8192, 1024), (20480, 2048)]);
    drop(file);
    let sound = fs::read(&path).unwrap();
    device.write_at(0, &[9; 64 << 10]).unwrap();
    let damaged = folder.path().join("damaged");
    let (mut noticed, mut harmless) = (0, 0);
    for at in (0..sound.len()).step_by(7).chain(0..512).chain(2048..2120) {
        let mut bytes = sound.clone();
        bytes[at] ^= 0x10;
        fs::write(&damaged, &bytes).unwrap();
        match UndoFile::open(&damaged) {
            Err(UndoReadError::Damaged { .. } | UndoReadError::NotUndo { .. }) => noticed += 1,
            Err(error) => panic!("byte {at}: {error}"),
            Ok(file) => {
                harmless += 1;
                let copy = device.clone();
                file.restore(&copy).unwrap();
                let now = copy.to_vec();
                assert!(now[..3072] == before[..3072] && now[20480..22528] == before[20480..22528]);
            }
        }
    }
    assert!(noticed > 1000, "{noticed} noticed, {harmless} without meaning");
    // Only the rest of the header's block is unused: the superblock copy fills its block.
    assert!(harmless < 100, "{noticed} noticed, {harmless} without meaning");
    for len in [0, 1, 511, 512, 1024, 2048, 3072, sound.len() - 1024, sound.len() - 1] {
        fs::write(&damaged, &sound[..len]).unwrap();
        assert!(UndoFile::open(&damaged).is_err(), "cut at {len}");
    }
}

proptest! {
    // Each case syncs a file once and tries many changes of it.
    #![proptest_config(ProptestConfig::with_cases(8))]
    /// Any field values, with valid checksums: no panic, no endless loop.
    #[test]
    fn a_hostile_undo_file_does_no_harm(
        changes in proptest::collection::vec(
            proptest::collection::vec((0usize..4096, any::<u8>()), 1..30), 100),
    ) {
        use floe_format::ext::undo::{UndoHeader, key_block_crc};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("undo");
        let device = MemDevice::new(pattern(32 << 10));
        saved(&path, &device, 1024, &[(0, 2048), (8192, 1024)]);
        let sound = fs::read(&path).unwrap();
        for fields in changes {
            let mut bytes = sound.clone();
            for (at, byte) in fields {
                // Fields of the header, and the first keys.
                let at = if at < 2048 { 8 + at % 112 } else { 2048 + 8 + at % 48 };
                bytes[at] = byte;
            }
            let crc = key_block_crc(&bytes[2048..3072]);
            bytes[2052..2056].copy_from_slice(&crc.to_le_bytes());
            let crc = UndoHeader::compute_checksum(bytes.first_chunk().unwrap());
            bytes[508..512].copy_from_slice(&crc.to_le_bytes());
            fs::write(&path, bytes).unwrap();
            if let Ok(file) = UndoFile::open(&path) {
                let before = device.to_vec();
                if file.restore(&device).is_err() {
                    prop_assert!(device.to_vec() == before, "the device was written despite an error");
                }
            }
        }
    }
}

/// Neither the old bytes nor those of the change, as far as these are in the file.
#[test]
fn later_writes_are_recognised_and_a_damaged_list_of_sums_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("undo");
    let before = pattern(16 << 10);
    let device = MemDevice::new(before.clone());
    let after = vec![7; 3072];
    let mut writer = UndoWriter::create(&path, &options(1024)).unwrap();
    writer.save(0, &before[..1024]).unwrap();
    let old = &before[4096..4096 + 3072];
    writer.save_both(4096, old, &after, |at| at != 5120).unwrap();
    writer.not_saved(&[9216]).unwrap();
    writer.finish().unwrap();
    let file = UndoFile::open(&path).unwrap();
    let changed = || file.changed_since(&device).unwrap();
    assert_eq!((changed(), file.not_saved()), (vec![], &[9216][..]));
    device.write_at(4096, &after).unwrap();
    assert_eq!(changed(), []);
    for (at, is_known) in [(0, false), (4096, true), (5120, false), (6144, true), (7168, false)] {
        device.write_at(at + 1023, &[0x99]).unwrap();
        assert_eq!(changed(), if is_known { vec![at] } else { vec![] }, "byte {at}");
        device.write_at(4096, &after).unwrap();
    }
    file.restore(&device).unwrap();
    let sound = fs::read(&path).unwrap();
    // Magic number, checksum, place and length of the list; and the list itself, which is the last block.
    for at in [0x60, 0x64, 0x68, 0x70, sound.len() - 1024] {
        let mut bytes = sound.clone();
        bytes[at] ^= 1;
        if at < 512 {
            let crc =
                floe_format::ext::undo::UndoHeader::compute_checksum(bytes.first_chunk().unwrap());
            bytes[508..512].copy_from_slice(&crc.to_le_bytes());
        }
        fs::write(&path, bytes).unwrap();
        match UndoFile::open(&path) {
            // Without its magic number there is no list.
            Ok(file) => assert!(at == 0x60 && file.changed_since(&device).unwrap().is_empty()),
            Err(error) => assert!(matches!(error, UndoReadError::Damaged { .. }), "{at}: {error}"),
        }
    }
}

#[test]
fn a_device_that_is_too_small_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let device = MemDevice::new(pattern(16384));
    let file = saved(&folder.path().join("undo"), &device, 4096, &[(0, 4096), (12288, 4096)]);
    let small = MemDevice::new(vec![1; 16383]);
    assert!(matches!(file.restore(&small), Err(RestoreError::TooSmall { .. })));
    assert!(small.to_vec() == vec![1; 16383]);
}

#[test]
fn write_errors_and_lost_writes_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let device = MemDevice::new(pattern(65536));
    let stretches = [(0, 4096), (8192, 4096), (32768, 8192)];
    let file = saved(&folder.path().join("undo"), &device, 4096, &stretches);
    device.write_at(0, &[3; 65536]).unwrap();
    let block = floe_format::BlockNr(9);
    let bad = Faulty::new(device.clone(), 4096, [(block, Fault::Unwritable)]);
    let error = file.restore(&bad).unwrap_err();
    assert!(
        matches!(error, RestoreError::Write { offset_bytes: 32768, restored_bytes: 4096, .. }),
        "{error}"
    );
    let bad = Faulty::new(device.clone(), 4096, [(block, Fault::LosesWrites)]);
    let error = file.restore(&bad).unwrap_err();
    assert!(matches!(error, RestoreError::Verify { offset_bytes: 32768 }), "{error}");
}

#[test]
fn restoring_can_be_interrupted_anywhere_and_done_again() {
    let folder = tempfile::tempdir().unwrap();
    let before = pattern(65536);
    let device = MemDevice::new(before.clone());
    let file = saved(&folder.path().join("undo"), &device, 4096, &[(0, 16384), (40960, 4096)]);
    device.write_at(0, &[3; 65536]).unwrap();
    let changed = device.to_vec();
    let recorder = Recorder::new(MemDevice::new(changed.clone()));
    file.restore(&recorder).unwrap();
    let (_, trace) = recorder.into_parts();
    // The block with the superblock is written last and alone.
    let flushes = trace.events.iter().filter(|event| **event == crate::Event::Flush).count();
    assert_eq!((trace.events.len(), flushes), (5, 2), "{trace:?}");
    for issued in 0..=trace.events.len() {
        for torn_bytes in [None, Some(100)] {
            let state = MemDevice::new(changed.clone());
            let crash = Crash { issued, torn_bytes, ..Crash::default() };
            trace.replay(&crash, &state).unwrap();
            file.restore(&state).unwrap();
            let now = state.to_vec();
            assert!(now[..16384] == before[..16384] && now[40960..45056] == before[40960..45056]);
        }
    }
}

#[test]
fn a_full_disk_is_told_and_leaves_no_file() {
    // On a file system of 64 KiB, which only root can mount.
    let folder = tempfile::tempdir().unwrap();
    let mount = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k", "none"])
        .arg(folder.path())
        .output();
    if !mount.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no small file system can be mounted here");
        return;
    }
    let path = folder.path().join("undo");
    let outcome = UndoWriter::create(&path, &options(4096)).and_then(|mut writer| {
        (0..64u64).try_for_each(|page| writer.save(page * 4096, &[1; 4096]))?;
        writer.finish()
    });
    let left = path.exists();
    let overlay = crate::Overlay::with_spill(
        MemDevice::new(vec![0; 1 << 20]),
        4096,
        crate::SpillOptions { budget_bytes: 4096, folder: folder.path().to_owned() },
    );
    let staged = overlay.write_at(0, &vec![1; 1 << 20]);
    let pages = overlay.staged_offsets().len();
    // The scratch file keeps the file system busy.
    overlay.clear();
    let unmounted = std::process::Command::new("umount").arg(folder.path()).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    assert!(matches!(outcome, Err(UndoWriteError::NoRoom { saved_bytes: 1.., .. })), "{outcome:?}");
    assert!(!left, "the undo file was left behind");
    assert_eq!(staged.unwrap_err().kind(), ErrorKind::StorageFull);
    assert!((2..20).contains(&pages), "{pages} pages staged");
}
