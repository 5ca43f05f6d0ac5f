//! Repairs that save what they write over, and what becomes of one that was cut off.

use std::fs;
use std::path::{Path, PathBuf};

use floe_testkit::{Image, tool};

use super::{Ran, floe_env, image};

/// A damaged image, and a folder for undo files.
fn damaged() -> Option<(Image, tempfile::TempDir)> {
    let image = image("ext4-1k")?;
    // Directory blocks, bitmaps and inodes: several blocks are written to mend these.
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
        // The name is taken, and what is there is needed.
        let ran = repair(options, &undo, &image);
        assert_eq!(ran.code, 8, "{}{}", ran.out, ran.err);
        assert!(ran.err.contains("needed to undo"), "{}", ran.err);
        assert!(image.to_vec().unwrap() == after);
        let ran = repair(&["undo"], &undo, &image);
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(image.to_vec().unwrap() == before);
        // The file is of no more use, and its name may be taken again.
        let ran = repair(options, &undo, &image);
        assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
        assert!(image.to_vec().unwrap() == after, "the same repair, the same bytes");
    }
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
        // Some blocks arrived, from the end on; the superblock did not.
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
