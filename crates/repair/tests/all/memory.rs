//! Repairs under a memory limit: the staged result is the same, or the repair is refused.
//! Examinations by fingerprints if the full evidence does not fit; staged blocks in a temporary
//! file.

use floe_blockdev::ReadBlocks;
use floe_check::{Accounting, CheckOptions, JournalUse, Tuning};
use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, Inode};
use floe_repair::policy::Yes;
use floe_repair::{Repair, RepairError, RepairOptions, repair};
use floe_testkit::tool::NOW;
use floe_testkit::volume::Volume;
use floe_testkit::{Image, Profile, Subject, subjects, tool};
use floe_workload::fill::{Shape, fill};

fn options(accounting: Accounting, threads: usize) -> RepairOptions<'static> {
    let check = CheckOptions {
        threads,
        tuning: Tuning { accounting, ..Tuning::default() },
        journal: JournalUse::Replay,
        now_seconds: i64::from(NOW),
        ..CheckOptions::default()
    };
    RepairOptions { check, random: [7; 16], ..RepairOptions::default() }
}

/// Staged pages, changes and findings left, as text.
fn result(repaired: &Repair<'_>) -> String {
    let mut staged = Vec::new();
    for range in repaired.staged.staged_ranges() {
        let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
        repaired.staged.read_at(range.start, &mut bytes).unwrap();
        staged.push((range, bytes));
    }
    let deeds: Vec<_> = repaired
        .deeds
        .iter()
        .map(|deed| (&deed.edit, &deed.problem, &deed.path, &deed.notes))
        .collect();
    let (before, after) = (&repaired.before.found, &repaired.after.found);
    format!("{deeds:#?}\n{:#?}\n{before:?}\n{after:?}\n{staged:?}", repaired.left)
}

/// Repairs by fingerprints, and compares with the result of full evidence. `None`: refused.
fn by_sums(subject: &Subject, threads: usize) -> Option<bool> {
    let device = subject.device();
    let expected = repair(&device, &options(Accounting::Exact, 1), &mut Yes);
    let got = repair(&device, &options(Accounting::Fingerprint, threads), &mut Yes);
    let name = &subject.name;
    match (expected, got) {
        (_, Err(RepairError::OverBudget { phase, .. })) => {
            assert_eq!(phase, "recording everything in use", "{name}");
            None
        }
        (Ok(expected), Ok(got)) => {
            let (by_all, by_sums) = (result(&expected), result(&got));
            assert!(
                by_all == by_sums,
                "{name}\nall evidence: {by_all}\nby fingerprints: {by_sums}"
            );
            Some(got.before.plan.is_some_and(|plan| plan.way.sums))
        }
        (Err(expected), Err(got)) => {
            assert_eq!(expected.to_string(), got.to_string(), "{name}");
            Some(false)
        }
        (expected, got) => {
            panic!("{name}: {:?} and {:?}", expected.map(|_| ()), got.map(|_| ()))
        }
    }
}

/// Number of repairs made by fingerprints, and number refused.
fn count(made: &[Option<bool>]) -> (usize, usize) {
    let by_sums = made.iter().filter(|made| **made == Some(true)).count();
    (by_sums, made.iter().filter(|made| made.is_none()).count())
}

#[test]
fn sound_images_need_no_evidence() {
    if tool::missing() {
        return;
    }
    let made: Vec<_> = subjects::sound().map(|subject| by_sums(&subject.unwrap(), 2)).collect();
    let (by_sums, refused) = count(&made);
    assert!(by_sums >= 10 && refused == 0, "{by_sums} by fingerprints, {refused} refused");
}

#[test]
fn the_image_of_every_problem() {
    if tool::missing() {
        return;
    }
    let made: Vec<_> =
        subjects::of_every_problem().map(|subject| by_sums(&subject.unwrap(), 1)).collect();
    let (by_sums, refused) = count(&made);
    eprintln!("{by_sums} by fingerprints, {refused} refused, of {}", made.len());
    assert!(by_sums >= 150 && refused >= 20, "{by_sums} by fingerprints, {refused} refused");
}

#[test]
fn damaged_images() {
    if tool::missing() {
        return;
    }
    let mut made = Vec::new();
    for damaged in subjects::damaged(530_000..530_003) {
        let (seed, subject) = damaged.unwrap();
        made.push(by_sums(&subject, 1 + seed as usize % 3));
    }
    let (by_sums, refused) = count(&made);
    eprintln!("{by_sums} by fingerprints, {refused} refused, of {}", made.len());
    assert!(by_sums >= 3, "{by_sums} by fingerprints, {refused} refused");
}

/// Scattered damage in several groups, as `bench --repair` makes it: no repair needs a free block.
#[test]
fn scattered_damage_is_repaired_by_sums() {
    const DAMAGE: [(u64, &[u8]); 6] = [
        (0x1a, &[7, 0]),
        (0x1c, &[0xe7, 3, 0, 0]),
        (0x00, &[0, 0]),
        (0x28 + 20, &[0xf0, 0xff, 0xff, 0xff]),
        (0x70, &[55]),
        (0x14, &[77, 0, 0, 0]),
    ];
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-memory-").unwrap();
    let image = fill(&folder.path().join("image"), Shape::file_intensive(40_000)).unwrap();
    {
        let volume = Volume::open(&image).unwrap();
        let is_file = |inode: &InodeNr| {
            let raw = volume.inode_bytes(*inode).unwrap();
            Inode::decode(&raw).unwrap().file_type() == Some(FileType::Regular)
        };
        let files = (1_000..40_000).map(InodeNr).filter(is_file);
        for (inode, (at, bytes)) in files.step_by(1_500).zip(DAMAGE.iter().cycle()) {
            image.write(volume.inode_offset(inode).unwrap() + at, bytes).unwrap();
        }
    }
    let subject = Subject::new(image, Profile::Ext4, "scattered damage");
    assert_eq!(by_sums(&subject, 2), Some(true));
}

/// Some files and directories with a wrong count, and one block bitmap with a bit too many.
fn worn() -> (tempfile::TempDir, Image) {
    let folder = tool::scratch("floe-memory-").unwrap();
    let image = fill(&folder.path().join("image"), Shape::file_intensive(40_000)).unwrap();
    {
        let volume = Volume::open(&image).unwrap();
        for inode in volume.used_inodes().unwrap().into_iter().skip(100).step_by(5_000) {
            image.write(volume.inode_offset(inode).unwrap() + 0x1a, &[9, 0]).unwrap();
        }
    }
    (folder, image)
}

#[test]
fn what_is_staged_does_not_depend_on_the_budget() {
    if tool::missing() {
        return;
    }
    let (_folder, image) = worn();
    let expected = result(&repair(&image, &options(Accounting::Auto, 3), &mut Yes).unwrap());
    let with = |memory_bytes: u64| {
        let options =
            RepairOptions { memory_bytes: Some(memory_bytes), ..options(Accounting::Auto, 3) };
        repair(&image, &options, &mut Yes)
    };
    for budget in [1 << 30, 64 << 20, 12 << 20] {
        let repaired = with(budget).unwrap();
        assert!(repaired.is_clean() && result(&repaired) == expected, "{budget} bytes");
        assert!(repaired.staged.held_bytes().0 <= budget / 8);
    }
    let Err(RepairError::OverBudget { need_bytes, budget_bytes, .. }) = with(6 << 20) else {
        panic!("6 MiB are enough");
    };
    assert!(((6 << 20)..(6 << 20) + 16).contains(&budget_bytes), "{budget_bytes}");
    // The value as given on the command line.
    let repaired = with(need_bytes.next_multiple_of(1 << 20)).unwrap();
    assert!(result(&repaired) == expected, "{need_bytes} bytes");
    assert_eq!(repaired.before.plan.unwrap().way.threads, 1);
}

#[test]
fn staged_blocks_go_to_a_file() {
    if tool::missing() {
        return;
    }
    let (_folder, image) = worn();
    let options = RepairOptions { staging_bytes: 8 << 10, ..options(Accounting::Auto, 2) };
    let expected = repair(&image, &RepairOptions { staging_bytes: 1 << 30, ..options }, &mut Yes);
    let repaired = repair(&image, &options, &mut Yes).unwrap();
    let (in_memory, in_file) = repaired.staged.held_bytes();
    assert!(in_memory <= 8 << 10 && in_file > 0, "{in_memory} {in_file}");
    assert!(result(&repaired) == result(&expected.unwrap()));
}
