//! Partial examinations in the middle of a repair: they happen, save reads, do not change the
//! staged result, and the last examination is a full one.

use floe_blockdev::{Counted, ReadBlocks};
use floe_check::{CheckOptions, JournalUse};
use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, Inode};
use floe_repair::policy::Yes;
use floe_repair::{Repair, RepairOptions, repair};
use floe_testkit::rng::Rng;
use floe_testkit::tool::NOW;
use floe_testkit::volume::Volume;
use floe_testkit::{Image, Profile, build, tool};
use floe_workload::fill::{Shape, fill};

fn options(threads: usize, rescan_percent: u32) -> RepairOptions<'static> {
    let check = CheckOptions {
        threads,
        journal: JournalUse::Replay,
        now_seconds: i64::from(NOW),
        ..CheckOptions::default()
    };
    RepairOptions { check, random: [7; 16], rescan_percent, ..RepairOptions::default() }
}

/// Staged pages, changes and findings left, as text.
fn result(repaired: &Repair<'_>) -> String {
    let mut staged = Vec::new();
    for range in repaired.staged.staged_ranges() {
        let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
        repaired.staged.read_at(range.start, &mut bytes).unwrap();
        staged.push((range, bytes));
    }
    let deeds: Vec<_> =
        repaired.deeds.iter().map(|deed| (&deed.edit, &deed.problem, &deed.path)).collect();
    format!("{deeds:#?}\n{:#?}\n{:?}\n{staged:?}", repaired.left, repaired.after.found)
}

/// 40,000 files; some that lie close together are damaged as `bench --repair` does it.
fn scattered() -> (tempfile::TempDir, Image) {
    const DAMAGE: [(u64, &[u8]); 4] =
        [(0x1a, &[7, 0]), (0x00, &[0, 0]), (0x28 + 20, &[0xf0, 0xff, 0xff, 0xff]), (0x70, &[55])];
    let folder = tool::scratch("floe-again-").unwrap();
    let image = fill(&folder.path().join("image"), Shape::file_intensive(40_000)).unwrap();
    {
        let volume = Volume::open(&image).unwrap();
        let is_file = |inode: &InodeNr| {
            let raw = volume.inode_bytes(*inode).unwrap();
            Inode::decode(&raw).unwrap().file_type() == Some(FileType::Regular)
        };
        let files = (20_000..21_000).map(InodeNr).filter(is_file);
        for (inode, (at, bytes)) in files.step_by(50).zip(DAMAGE.iter().cycle()) {
            image.write(volume.inode_offset(inode).unwrap() + at, bytes).unwrap();
        }
    }
    (folder, image)
}

#[test]
fn scattered_damage_is_examined_in_part_and_proved_in_whole() {
    if tool::missing() {
        return;
    }
    let (_folder, image) = scattered();
    let counted = Counted::new(&image);
    let read = |percent: u32| {
        let before = counted.counts().bytes;
        let repaired = repair(&counted, &options(2, percent), &mut Yes).unwrap();
        assert!(repaired.is_clean() && repaired.left.is_empty(), "{:?}", repaired.left);
        (
            counted.counts().bytes - before,
            repaired.rounds,
            repaired.rescans.clone(),
            result(&repaired),
        )
    };
    let (whole_bytes, whole_rounds, none, expected) = read(0);
    let (bytes, rounds, rescans, got) = read(25);
    assert_eq!((none, whole_rounds), (vec![], 3));
    // The middle examination re-read a few of about twenty chunks.
    assert_eq!((rounds, rescans.len()), (3, 1), "{rescans:?}");
    assert!((1..=5).contains(&rescans[0]), "{rescans:?}");
    assert!(got == expected, "whole: {expected}\nin part: {got}");
    let tables = 40_000 * 256;
    assert!(bytes + tables / 2 < whole_bytes, "{bytes} bytes, with whole ones {whole_bytes}");
}

#[test]
fn what_concerns_all_inodes_has_all_of_them_read() {
    if tool::missing() {
        return;
    }
    let (_folder, image) = scattered();
    let rescans = |percent: u32| {
        let repaired = repair(&image, &options(2, percent), &mut Yes).unwrap();
        assert!(repaired.is_clean());
        (repaired.rounds, repaired.rescans)
    };
    assert!(!rescans(25).1.is_empty());
    // More inodes changed than the percentage allows.
    assert!(rescans(1).1.is_empty());
    // One of the damaged files also claims blocks of another one.
    {
        let volume = Volume::open(&image).unwrap();
        let root_of = |inode: u32| volume.inode_bytes(InodeNr(inode)).unwrap()[0x28..0x64].to_vec();
        let at = volume.inode_offset(InodeNr(20_013)).unwrap() + 0x28;
        image.write(at, &root_of(20_014)).unwrap();
    }
    assert!(rescans(25).1.is_empty());
}

/// Writes random words into some inodes: the damage is of many kinds, so that the repair takes
/// several rounds.
fn damage_inodes(image: &Image, rng: &mut Rng) {
    let volume = Volume::open(image).unwrap();
    let used = volume.used_inodes().unwrap();
    for _ in 0..6 {
        let inode = *rng.pick(&used).unwrap();
        let at = volume.inode_offset(inode).unwrap() + rng.below(32) * 4;
        let word = if rng.chance(3) { 0 } else { rng.below(1 << 20) as u32 };
        image.write(at, &word.to_le_bytes()).unwrap();
    }
}

#[test]
fn short_examinations_are_not_seen_in_what_is_staged() {
    if tool::missing() {
        return;
    }
    let seeds: u64 = std::env::var("FLOE_AGAIN_SEEDS").map_or(2, |text| text.parse().unwrap());
    let mut short = 0;
    for &profile in Profile::ALL {
        let base = build::base(profile).unwrap();
        for seed in 0..seeds {
            let image = base.copy().unwrap();
            damage_inodes(&image, &mut Rng::new(seed));
            let Ok(whole) = repair(&image, &options(1, 0), &mut Yes) else { continue };
            let again = repair(&image, &options(2, 100), &mut Yes).unwrap();
            let (expected, got) = (result(&whole), result(&again));
            assert!(got == expected, "{profile}, seed {seed}:\nwhole: {expected}\nshort: {got}");
            assert!(whole.rescans.is_empty());
            // The first and the last examination are full ones.
            assert!(
                again.rescans.len() as u32 + 2 <= again.rounds.max(2),
                "{profile}, seed {seed}"
            );
            short += again.rescans.len();
        }
    }
    println!("{short} short examinations");
    assert!(short as u64 > seeds * 5, "only {short} partial examinations");
}
