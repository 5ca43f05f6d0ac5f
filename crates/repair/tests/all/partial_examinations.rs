//! Partial examinations in the middle of a repair: they happen, save reads, do not change the
//! staged result, and the last examination is a full one.

use floe_blockdev::{Counted, ReadBlocks};
use floe_check::{CheckOptions, JournalUse};
use floe_format::ext::inode::{FileType, Inode};
use floe_format::{BlockNr, InodeNr};
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
    scattered_over(|image, volume| {
        let is_file = |inode: &InodeNr| {
            let raw = volume.inode_bytes(*inode).unwrap();
            Inode::decode(&raw).unwrap().file_type() == Some(FileType::Regular)
        };
        let files = (20_000..21_000).map(InodeNr).filter(is_file);
        for (inode, (at, bytes)) in files.step_by(50).zip(DAMAGE.iter().cycle()) {
            image.write(volume.inode_offset(inode).unwrap() + at, bytes).unwrap();
        }
    })
}

/// 40,000 files, some of which `damage` damages.
fn scattered_over(damage: impl FnOnce(&Image, &Volume<'_>)) -> (tempfile::TempDir, Image) {
    let folder = tool::scratch("floe-again-").unwrap();
    let image = fill(&folder.path().join("image"), Shape::file_intensive(40_000)).unwrap();
    damage(&image, &Volume::open(&image).unwrap());
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

/// Whether the bitmaps mark a block as used.
fn is_used(volume: &Volume<'_>, block: BlockNr) -> bool {
    let geometry = &volume.geometry;
    let Some(group) = geometry.group_of(block) else { return true };
    let desc = volume.desc(group).unwrap();
    let at = block.0 - geometry.blocks_of(group).start.0;
    let bitmap = volume.block(desc.block_bitmap).unwrap();
    !desc.block_uninit() && bitmap[at as usize / 8] >> (at % 8) & 1 == 1
}

/// A flipped bit moves a file to a free block: the bitmaps disagree, too, until the bit is flipped back. So the
/// examination that was to lead to their repair is one in part and finds nothing to do, and a whole one must
/// follow.
#[test]
fn an_examination_in_part_that_finds_nothing_is_followed_by_a_whole_one() {
    if tool::missing() {
        return;
    }
    let (_folder, image) = scattered_over(|_, _| {});
    let volume = Volume::open(&image).unwrap();
    let start_at = 0x3c;
    let file = (20_000..21_000).map(InodeNr).find_map(|inode| {
        let raw = volume.inode_bytes(inode).unwrap();
        let mode = Inode::decode(&raw).unwrap().file_type();
        let start = u32::from_le_bytes(*raw[start_at..].first_chunk().unwrap());
        let bit = (0..20).find(|bit| !is_used(&volume, BlockNr(u64::from(start ^ 1 << bit))));
        (mode == Some(FileType::Regular)).then_some((inode, start, bit?))
    });
    let (inode, start, bit) = file.expect("a file beside a free block");
    let at = volume.inode_offset(inode).unwrap() + start_at as u64;
    image.write(at, &(start ^ 1 << bit).to_le_bytes()).unwrap();
    let repaired = repair(&image, &options(2, 25), &mut Yes).unwrap();
    assert!(repaired.is_clean() && repaired.left.is_empty(), "{:?}", repaired.left);
    let bitmaps = repaired.before.found.iter().filter(|problem| problem.group().is_some());
    assert!(bitmaps.count() > 0, "{:?}", repaired.before.found);
    assert_eq!(repaired.deeds.len(), 1, "the bit alone");
    // Whole, in part, whole.
    assert_eq!((repaired.rounds, repaired.rescans.len()), (3, 1), "{:?}", repaired.rescans);
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
