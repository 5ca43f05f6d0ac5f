//! Repairs of damaged images, interrupted at any write.

use anyhow::{Context, Result, ensure};
use floe_blockdev::{Crash, MemDevice, ReadBlocks, Recorder, UndoFile, WriteBlocks};
use floe_repair::commit::{CommitOptions, Seen, UndoTarget};
use floe_repair::policy::Yes;
use floe_repair::repair;
use floe_repair::undo::{Standing, standing, undo};
use floe_testkit::crash::{Effort, each_state};
use floe_testkit::{Image, Profile, build, damage, tool};

use crate::yes_to_all::options;

/// Repairs a device and commits the result, with or without an undo file.
fn repair_and_commit(device: &dyn WriteBlocks, undo: Option<UndoTarget<'_>>) -> Result<bool> {
    let seen = Seen::of(&device);
    let reader: &dyn ReadBlocks = device;
    let repair = repair(reader, &options(), &mut Yes)?;
    let options = CommitOptions { undo, ..CommitOptions::of(&seen) };
    repair.commit(device, &options)?;
    Ok(repair.is_clean())
}

/// A damaged image.
fn damaged(profile: &str, seed: u64) -> Image {
    let (image, _) = damage::damaged_image(Profile::by_name(profile).unwrap(), seed).unwrap();
    image
}

/// A damaged image whose journal holds a transaction.
fn with_a_full_journal() -> Image {
    let image = build::base(Profile::by_name("ext4-1k").unwrap()).unwrap();
    let folder = tool::scratch("floe-crash-").unwrap();
    let blocks = folder.path().join("blocks");
    std::fs::write(&blocks, vec![0x5a; 3 * 1024]).unwrap();
    build::debugfs(&image, "clri <13>\nsif <15> links_count 7\n").unwrap();
    let script = format!("jo\njw -b 7000,7001,7002 {}\njc\n", blocks.display());
    build::debugfs(&image, &script).unwrap();
    image
}

/// Interrupts the repair of an image in every way, and calls `judge` with the resulting device, the
/// original bytes and those of a complete repair.
fn cut_off(
    image: &Image,
    effort: Effort,
    mut judge: impl FnMut(MemDevice, &Crash, &Cut<'_>) -> Result<()>,
) -> Result<usize> {
    let folder = tool::scratch("floe-crash-")?;
    let path = folder.path().join("undo");
    let before = image.to_vec()?;
    let device = Recorder::new(MemDevice::new(before.clone()));
    let target = UndoTarget { path: &path, fs_offset_bytes: 0 };
    ensure!(repair_and_commit(&device, Some(target))?, "the repair is not clean");
    let (device, trace) = device.into_parts();
    let after = device.to_vec();
    ensure!(after != before, "nothing was repaired");
    let file = UndoFile::open(&path)?;
    let cut = Cut { before: &before, after: &after, file: &file };
    each_state(&trace, &before, effort, |device, crash| judge(device, crash, &cut))
}

struct Cut<'a> {
    before: &'a [u8],
    after: &'a [u8],
    file: &'a UndoFile,
}

/// Images whose repairs write several blocks.
fn images() -> Vec<(String, Image)> {
    let mut all = vec![("full journal".to_owned(), with_a_full_journal())];
    for (profile, seed) in [
        ("ext4-1k", 1),
        ("ext4-1k", 3),
        ("ext4-1k", 4),
        ("ext2-1k", 1),
        ("bigalloc-1k", 1),
        ("quota", 1),
        ("inline-data", 1),
        // Its early writes include evidence for the rest: see below.
        ("ext4-1k", 2),
        ("ext4-1k", 5),
    ] {
        all.push((format!("{profile} {seed}"), damaged(profile, seed)));
    }
    all
}

/// From every state, undo restores the original bytes, and a repair then ends like one that was
/// never interrupted.
#[test]
fn a_repair_that_was_cut_off_is_undone_and_made_anew() {
    if tool::missing() {
        return;
    }
    for (name, image) in images() {
        let mut partly = 0;
        let judged = cut_off(&image, Effort::default(), |device, _, cut| {
            let standing = standing(cut.file, &device)?;
            ensure!(standing != Standing::Foreign, "{standing:?}");
            ensure!((standing == Standing::Untouched) == (device.holds(cut.before)));
            partly += u32::from(standing == Standing::Partly);
            undo(cut.file, &device)?;
            ensure!(device.holds(cut.before), "not the original bytes");
            if partly % 4 == 1 {
                ensure!(repair_and_commit(&device, None)?, "not clean");
                ensure!(device.holds(cut.after), "not the same repair");
            }
            Ok(())
        });
        let states = judged.with_context(|| name.clone()).unwrap();
        assert!(states > 15 && partly > 8, "{name}: {partly} of {states}");
    }
}

/// Without an undo file, another repair continues from the half-written state and always ends
/// clean. It ends with the same bytes as an uninterrupted repair if each block shows its own
/// damage. If the first half destroyed evidence for the rest, it may not: only an undo file
/// guarantees that. A superblock torn between its sectors is not tested here: its checksum is
/// wrong, and a backup must be named.
#[test]
fn a_repair_that_was_cut_off_goes_on_without_an_undo_file() {
    if tool::missing() {
        return;
    }
    for (name, image) in images() {
        let differs_sometimes = ["ext4-1k 2", "ext4-1k 5"].contains(&name.as_str());
        let (mut whole, mut all) = (0, 0);
        let judged =
            cut_off(&image, Effort { random_per_epoch: 3, seed: 8 }, |device, crash, cut| {
                if crash.torn_bytes.is_some() || !crash.lost_sectors.is_empty() {
                    return Ok(());
                }
                ensure!(repair_and_commit(&device, None)?, "not clean");
                let same = device.holds(cut.after);
                (whole, all) = (whole + u32::from(same), all + 1);
                let in_order = crash.lost.is_empty();
                ensure!(same || differs_sometimes || !in_order, "not the same repair");
                ensure!(repair_and_commit(&device, None)?, "not clean after the second repair");
                Ok(())
            });
        judged.with_context(|| name.clone()).unwrap();
        println!("{name}: {whole} of {all} states end with the same bytes");
        let most = differs_sometimes || whole * 4 >= all * 3;
        assert!(whole > 5 && most, "{name}: {whole} of {all}");
    }
}
