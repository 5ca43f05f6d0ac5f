//! Repairs with an undo file, and the continuation of interrupted ones.

use std::fs;
use std::path::{Path, PathBuf};

use floe_blockdev::{MemDevice, ReadBlocks, Recorder, UndoFile};
use floe_check::{CheckOptions, JournalUse};
use floe_repair::commit::{CommitOptions, Seen, UndoTarget};
use floe_repair::policy::Yes;
use floe_repair::undo::{Standing, standing};
use floe_repair::{RepairOptions, repair as stage};
use floe_testkit::crash::{Effort, each_state};
use floe_testkit::{Image, Profile, damage, tool};

use super::{Ran, floe_env, image};

/// A damaged image, and a folder for undo files.
fn damaged() -> Option<(Image, tempfile::TempDir)> {
    let image = image("ext4-1k")?;
    // Directory blocks, bitmaps and inodes: the repair writes several blocks.
    floe_testkit::build::debugfs(
        &image,
        "clri <12>\nclri <13>\nclri <20>\nsif <15> links_count 7\n",
    )
    .unwrap();
    Some((image, tool::scratch("floe-repair-").unwrap()))
}

fn repair(options: &[&str], undo: &Path, image: &Image) -> Ran {
    let mut line = options.to_vec();
    line.extend([undo.to_str().unwrap(), image.path().to_str().unwrap()]);
    floe_env(&line, &[("E2FSCK_TIME", "1704067200")])
}

#[test]
fn a_repair_can_be_undone_by_floe_and_by_e2undo() {
    for options in [&["repair", "--yes", "--undo"][..], &["fsck", "-fy", "-z"]] {
        let Some((image, folder)) = damaged() else { return };
        let undo = folder.path().join("undo");
        let before = image.to_vec().unwrap();
        let ran = repair(options, &undo, &image);
        assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
        assert!(ran.out.contains("To undo this: floe undo"), "{}", ran.out);
        let after = image.to_vec().unwrap();
        assert!(after != before);
        let theirs = image.copy().unwrap();
        tool::must("e2undo", &[undo.as_path(), theirs.path()], &[0]).unwrap();
        assert!(theirs.to_vec().unwrap() == before, "e2undo gives something else");
        // The undo file exists and is still needed.
        let ran = repair(options, &undo, &image);
        assert_eq!(ran.code, 8, "{}{}", ran.out, ran.err);
        assert!(ran.err.contains("needed to undo"), "{}", ran.err);
        assert!(image.to_vec().unwrap() == after);
        let ran = repair(&["undo"], &undo, &image);
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(image.to_vec().unwrap() == before);
        // The undo file is obsolete, so its name can be reused.
        let ran = repair(options, &undo, &image);
        assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
        assert!(image.to_vec().unwrap() == after, "the same repair, the same bytes");
    }
}

/// A change of an inode leaves the superblock as it was, and lies in a block that the repair wrote.
#[test]
fn undoing_does_not_revert_what_was_changed_since() {
    let Some((image, folder)) = damaged() else { return };
    let undo = folder.path().join("undo");
    let before = image.to_vec().unwrap();
    assert_eq!(repair(&["repair", "--yes", "--undo"], &undo, &image).code, 1);
    let repaired = image.to_vec().unwrap();
    floe_testkit::build::debugfs(&image, "sif <14> uid 77\n").unwrap();
    let used = image.to_vec().unwrap();
    assert!(used != repaired && used[1024..2048] == repaired[1024..2048]);
    for options in [&["undo"][..], &["undo", "--dry-run"]] {
        let ran = repair(options, &undo, &image);
        assert_eq!(ran.code, 8, "{}{}", ran.out, ran.err);
        assert!(ran.err.contains("was used since"), "{}", ran.err);
        assert!(image.to_vec().unwrap() == used);
    }
    let ran = repair(&["undo", "--force"], &undo, &image);
    assert_eq!(ran.code, 4, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("was used since"), "{}", ran.err);
    assert!(image.to_vec().unwrap() == before);
}

/// The second one leaves the superblock and all blocks of the first as they were, so nothing tells of it.
#[test]
fn undoing_the_first_of_two_repairs_says_that_the_second_stays() {
    let Some(image) = image("ext4-1k") else { return };
    let folder = tool::scratch("floe-repair-").unwrap();
    let undos = ["first", "second"].map(|name| folder.path().join(name));
    for (undo, damage) in undos.iter().zip(["sif <15> links_count 7\n", "sif <11> links_count 9\n"])
    {
        floe_testkit::build::debugfs(&image, damage).unwrap();
        assert_eq!(repair(&["repair", "--yes", "--undo"], undo, &image).code, 1);
    }
    let ran = repair(&["undo"], &undos[0], &image);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(!ran.out.contains("the device is as it was"), "{}", ran.out);
    assert!(ran.out.contains("as those of a later repair, stay"), "{}", ran.out);
}

#[test]
fn a_repair_that_was_cut_off_is_undone_and_made_anew() {
    let Some((image, folder)) = damaged() else { return };
    let undo = folder.path().join("undo");
    let before = image.to_vec().unwrap();
    assert_eq!(repair(&["repair", "--yes", "--undo"], &undo, &image).code, 1);
    let after = image.to_vec().unwrap();
    let changed: Vec<usize> = (0..after.len() / 1024)
        .filter(|block| after[block * 1024..][..1024] != before[block * 1024..][..1024])
        .collect();
    assert!(changed.len() > 4, "{changed:?}");
    let saved = fs::read(&undo).unwrap();
    for written in [1, changed.len() / 2, changed.len() - 1] {
        // Some blocks were written, from the end backwards; the superblock was not.
        let mut half = before.clone();
        for block in changed.iter().rev().take(written) {
            half[block * 1024..][..1024].copy_from_slice(&after[block * 1024..][..1024]);
        }
        image.write(0, &half).unwrap();
        fs::write(&undo, &saved).unwrap();
        let ran = repair(&["repair", "--yes", "--undo"], &undo, &image);
        assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
        assert!(ran.err.contains("was cut off"), "{}", ran.err);
        assert!(image.to_vec().unwrap() == after, "{written} blocks had been written");
        let ran = repair(&["undo"], &undo, &image);
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(image.to_vec().unwrap() == before);
    }
}

/// The writes of a repair, and its undo file.
fn traced(before: &[u8], undo: &Path) -> (floe_blockdev::Trace, Vec<u8>) {
    let device = Recorder::new(MemDevice::new(before.to_vec()));
    let reader: &dyn ReadBlocks = &device;
    let check = CheckOptions {
        threads: 2,
        journal: JournalUse::Replay,
        now_seconds: i64::from(tool::NOW),
        ..CheckOptions::default()
    };
    let staged = stage(reader, &RepairOptions { check, ..RepairOptions::default() }, &mut Yes);
    let seen = Seen::of(&device);
    let options = CommitOptions {
        seen: &seen,
        undo: Some(UndoTarget { path: undo, fs_offset_bytes: 0 }),
        overwrite_unreadable: true,
        interrupt: None,
        progress: None,
    };
    staged.unwrap().commit(&device, &options).unwrap();
    let (device, trace) = device.into_parts();
    (trace, device.to_vec())
}

/// From every state in which a crash can leave a repair (after any write, with torn, lost and
/// reordered writes between two flushes), the same command ends as if nothing had happened.
#[test]
fn the_same_command_again_ends_in_the_same_bytes_from_every_crash() {
    if tool::missing() {
        return;
    }
    // "ext4-1k" 2 and 5 are those that end in different bytes without an undo file.
    for (profile, seed) in [("ext4-1k", 2), ("ext4-1k", 5), ("ext2-1k", 1), ("quota", 1)] {
        let profile = Profile::by_name(profile).unwrap();
        let (image, _) = damage::damaged_image(profile, seed).unwrap();
        let folder = tool::scratch("floe-repair-").unwrap();
        let (saved, undo) = (folder.path().join("saved"), folder.path().join("undo"));
        let before = image.to_vec().unwrap();
        let (trace, after) = traced(&before, &saved);
        let (mut rolled_back, effort) = (0, Effort { random_per_epoch: 3, seed });
        let states = each_state(&trace, &before, effort, |device, _| {
            let state = device.to_vec();
            image.write(0, &state)?;
            fs::copy(&saved, &undo)?;
            let standing = standing(&UndoFile::open(&saved)?, &device)?;
            let ran = repair(&["repair", "--yes", "--undo"], &undo, &image);
            if standing == Standing::Committed {
                // It was complete: the undo file is needed, and nothing is touched.
                anyhow::ensure!(ran.code == 8, "{}{}", ran.out, ran.err);
                anyhow::ensure!(ran.err.contains("needed to undo"), "{}", ran.err);
                anyhow::ensure!(fs::read(&undo)? == fs::read(&saved)?, "another undo file");
                anyhow::ensure!(image.to_vec()? == state, "something was written");
            } else {
                anyhow::ensure!(ran.code == 1, "{}{}", ran.out, ran.err);
                let told = ran.err.contains("an earlier repair was cut off");
                anyhow::ensure!(told == (standing == Standing::Partly), "{}", ran.err);
                rolled_back += u32::from(told);
                anyhow::ensure!(image.to_vec()? == after, "not the same repair");
            }
            let ran = repair(&["undo"], &undo, &image);
            anyhow::ensure!(ran.code == 0, "{}", ran.err);
            anyhow::ensure!(image.to_vec()? == before, "not the original bytes");
            Ok(fs::remove_file(&undo)?)
        });
        let states = states.unwrap_or_else(|error| panic!("{profile}:{seed}: {error:#}"));
        assert!(states > 15 && rolled_back > 8, "{profile}:{seed}: {rolled_back} of {states}");
    }
}

/// The undo file of another file system, or of this one before it was used, is not changed.
#[test]
fn the_undo_file_of_something_else_is_never_replaced() {
    let Some((image, folder)) = damaged() else { return };
    let undo = folder.path().join("undo");
    let Some((other, _)) = damaged() else { return };
    floe_testkit::build::debugfs(&other, "ssv volume_name other\n").unwrap();
    assert_eq!(repair(&["repair", "--yes", "--undo"], &undo, &other).code, 1);
    let (saved, before) = (fs::read(&undo).unwrap(), image.to_vec().unwrap());
    let ran = repair(&["repair", "--yes", "--undo"], &undo, &image);
    assert_eq!(ran.code, 8, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("exists already"), "{}", ran.err);
    assert!(fs::read(&undo).unwrap() == saved && image.to_vec().unwrap() == before);
}

#[test]
fn an_undo_file_that_cannot_be_made_stops_the_repair() {
    let Some((image, folder)) = damaged() else { return };
    let before = image.to_vec().unwrap();
    let precious = folder.path().join("precious");
    fs::write(&precious, b"not an undo file").unwrap();
    for undo in [precious.clone(), folder.path().join("no/such/folder"), PathBuf::from("/dev/full")]
    {
        let ran = repair(&["repair", "--yes", "--undo"], &undo, &image);
        assert_eq!(ran.code & 8, 8, "{undo:?}: {}{}", ran.out, ran.err);
        assert!(image.to_vec().unwrap() == before, "{undo:?}");
    }
    assert_eq!(fs::read(&precious).unwrap(), b"not an undo file");
}

#[test]
fn two_repairs_do_not_meet() {
    let Some((image, folder)) = damaged() else { return };
    let before = image.to_vec().unwrap();
    let _owner = floe_blockdev::WritableFile::open_exclusive(image.path()).unwrap();
    let ran = repair(&["repair", "--yes", "--undo"], &folder.path().join("undo"), &image);
    assert_eq!(ran.code, 8, "{}", ran.out);
    assert!(ran.err.contains("another"), "{}", ran.err);
    assert!(image.to_vec().unwrap() == before);
}
