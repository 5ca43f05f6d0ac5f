//! Opening and the whole-file-system checks on images with one fault each: which superblock is
//! taken, what a cut image says, bitmaps, orphan file. e2fsck judges the same images.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;

use floe_blockdev::FileDevice;
use floe_check::{CheckError, CheckOptions, JournalUse, Report, check};
use floe_testkit::recipe::{Recipe, block_bits, bytes, descriptor, inode_bits, superblock};
use floe_testkit::{Profile, oracle, tool};

/// Checks the image of a recipe as `e2fsck -n` would, with 1 and 3 workers.
fn judged(recipe: &Recipe) -> Option<(Result<Report, CheckError>, oracle::Verdict)> {
    if let Err(missing) = tool::available() {
        println!("skipped: {missing}");
        return None;
    }
    let image = recipe.build().unwrap();
    let theirs = oracle::e2fsck(&image).unwrap();
    let device = FileDevice::open(image.path()).unwrap();
    let of = |threads| {
        let journal = JournalUse::Ignore;
        check(&device, &CheckOptions { threads, journal, ..CheckOptions::default() })
    };
    let (one, three) = (of(1), of(3));
    if let (Ok(one), Ok(three)) = (&one, &three) {
        assert_eq!(one.found, three.found, "{}: the number of workers shows", recipe.name());
    }
    Some((one, theirs))
}

/// The ids that Floe finds; `both`: e2fsck must call the file system damaged too.
fn finds(recipe: Recipe, ids: &[&str], both: bool) {
    let Some((report, theirs)) = judged(&recipe) else { return };
    let report = report.unwrap();
    let found: BTreeSet<_> = report.found.iter().map(|problem| problem.row().id).collect();
    for id in ids {
        assert!(found.contains(id), "{}: {id} is not in {found:?}", recipe.name());
    }
    assert!(!report.is_clean());
    if both {
        assert!(theirs.damaged(), "{}: {}", recipe.name(), theirs.text);
    }
}

#[test]
fn a_backup_is_taken_for_a_primary_that_does_not_open() {
    let recipe = Recipe::new("magic").on(Profile::Ext4K1).edit(bytes(1024 + 0x38, vec![0, 0]));
    let Some((report, theirs)) = judged(&recipe) else { return };
    let report = report.unwrap();
    // Its groups are smaller than usual: e2fsck looks elsewhere and gives up.
    assert!(report.used_backup.is_some());
    assert!(!theirs.clean(), "{}", theirs.text);
    finds(recipe, &["primary-superblock-open-failed"], false);
    let recipe = Recipe::new("checksum").on(Profile::Ext4K1).edit(bytes(1024 + 0x78, vec![b'x']));
    finds(recipe, &["superblock-checksum-bad", "primary-superblock-open-failed"], false);
}

#[test]
fn a_backup_is_taken_for_insane_descriptors() {
    let recipe = Recipe::new("insane")
        .on(Profile::Ext4K1)
        .edit(descriptor(1, |desc| desc.inode_table = floe_format::BlockNr(2)));
    let Some((report, _)) = judged(&recipe) else { return };
    assert!(report.unwrap().used_backup.is_some());
    finds(recipe, &["group-descriptors-insane"], false);
}

#[test]
fn unknown_features_are_refused_by_name() {
    let recipe = Recipe::new("feature").edit(superblock(|sb| sb.feature_incompat |= 1 << 29));
    let Some((report, theirs)) = judged(&recipe) else { return };
    let Err(CheckError::UnknownFeatures { names }) = report else { panic!("not refused") };
    assert_eq!(names, ["FEATURE_I29"]);
    assert!(theirs.text.contains("unsupported feature"), "{}", theirs.text);
}

#[test]
fn a_cut_image_is_a_finding() {
    let recipe = Recipe::new("cut").on(Profile::Ext4K1).cut(3 << 20);
    finds(recipe, &["filesystem-exceeds-device"], false);
}

#[test]
fn nothing_but_zeroes_is_no_file_system() {
    let device = floe_blockdev::MemDevice::new(vec![0; 1 << 20]);
    let Err(CheckError::NoSuperblock { backups, .. }) = check(&device, &CheckOptions::default())
    else {
        panic!("it was opened")
    };
    assert!(backups.is_empty());
    let device = floe_blockdev::MemDevice::new(vec![0; 100]);
    assert!(matches!(check(&device, &CheckOptions::default()), Err(CheckError::Read { .. })));
}

#[test]
fn bitmaps_are_compared_with_what_is_in_use() {
    let recipe = Recipe::new("missing").edit(block_bits("/", 0, 1, false));
    finds(recipe, &["block-bitmap-missing-block"], true);
    let recipe = Recipe::new("missing inode").edit(inode_bits("/", false));
    finds(recipe, &["inode-bitmap-missing-inode"], true);
    let recipe = Recipe::new("counts").edit(descriptor(0, |desc| {
        desc.free_blocks_count += 1;
        desc.used_dirs_count += 1;
    }));
    finds(recipe, &["group-free-block-count-wrong", "group-directory-count-wrong"], true);
}
