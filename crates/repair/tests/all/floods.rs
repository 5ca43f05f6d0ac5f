//! Damage that affects many objects at once: one repair of few rounds is enough.

use std::collections::BTreeSet;

use floe_blockdev::ReadBlocks;
use floe_check::CheckOptions;
use floe_format::InodeNr;
use floe_repair::edit::{Edit, InodeEdit};
use floe_repair::policy::Yes;
use floe_repair::{Repair, RepairOptions, repair};
use floe_testkit::tree::stored;
use floe_testkit::{Image, Profile, Volume, build, oracle, tool};

/// Repairs an image, and checks that neither Floe nor e2fsck finds anything after that; returns the
/// resulting image too.
fn repaired(image: &Image) -> (Repair<'_>, Image) {
    let check =
        CheckOptions { threads: 2, now_seconds: i64::from(tool::NOW), ..CheckOptions::default() };
    let options = RepairOptions { check, random: [7; 16], ..RepairOptions::default() };
    let repaired = repair(image, &options, &mut Yes).unwrap();
    assert!(repaired.is_clean() && repaired.left.is_empty(), "{:?}", repaired.left);
    let copy = image.copy().unwrap();
    for range in repaired.staged.staged_ranges() {
        let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
        repaired.staged.read_at(range.start, &mut bytes).unwrap();
        copy.write(range.start, &bytes).unwrap();
    }
    let verdict = oracle::e2fsck(&copy).unwrap();
    assert!(verdict.clean(), "{}", verdict.text);
    (repaired, copy)
}

fn many(volume: &Volume<'_>) -> Vec<InodeNr> {
    (0..60).map(|nr| volume.lookup(&format!("/many/f{nr:03}")).unwrap()).collect()
}

/// An inode of a file with one byte in one block of 1 KiB.
fn with_block(mut raw: Vec<u8>, block: u32) -> Vec<u8> {
    raw[0x04] = 1;
    raw[0x1c] = 2;
    if raw[0x22] & 8 == 0 {
        raw[0x28..0x2c].copy_from_slice(&block.to_le_bytes());
    } else {
        // One extent after the header: `ee_len`, `ee_start_lo`.
        raw[0x2a] = 1;
        raw[0x38] = 1;
        raw[0x3c..0x40].copy_from_slice(&block.to_le_bytes());
    }
    raw
}

/// Simulates inode table blocks written to the wrong place: one inode appears again and again, and
/// there is space for few copies of its blocks.
#[test]
fn copies_of_one_inode_go_together_where_there_is_no_room() {
    if tool::missing() {
        return;
    }
    const BLOCKS: u16 = 1000;
    let image = build::base(Profile::Ext4K1).unwrap();
    let volume = Volume::open(&image).unwrap();
    let copied = volume.lookup("/dir/sub/deep/file").unwrap();
    let mut raw = volume.inode_bytes(copied).unwrap();
    // One extent: `ee_len`, then `i_size` and `i_blocks`.
    raw[0x38..0x3a].copy_from_slice(&BLOCKS.to_le_bytes());
    raw[0x04..0x08].copy_from_slice(&(u32::from(BLOCKS) * 1024).to_le_bytes());
    raw[0x1c..0x20].copy_from_slice(&(u32::from(BLOCKS) * 2).to_le_bytes());
    let mut copies: BTreeSet<InodeNr> = many(&volume).into_iter().collect();
    copies.insert(copied);
    for &inode in &copies {
        volume.put_inode(inode, &raw).unwrap();
        volume.fix_inode(inode).unwrap();
    }
    let (repaired, _) = repaired(&image);
    let gone: BTreeSet<InodeNr> = repaired
        .deeds
        .iter()
        .filter_map(|deed| match deed.edit {
            Edit::Inode { inode, edit: InodeEdit::Clear } => Some(inode),
            _ => None,
        })
        .collect();
    assert!(gone.is_subset(&copies), "others were deleted: {gone:?}");
    assert!((40..copies.len()).contains(&gone.len()), "{} go", gone.len());
    assert!(repaired.rounds < 16, "{} rounds", repaired.rounds);
}

/// All orphans at once, in a lost+found that must be created and must grow.
#[test]
fn whatever_lost_its_name_is_in_lost_and_found() {
    if tool::missing() {
        return;
    }
    for profile in ["ext4-1k", "ext2-plain", "no-dir-index"] {
        let image = build::base(Profile::by_name(profile).unwrap()).unwrap();
        let volume = Volume::open(&image).unwrap();
        let mut nameless: BTreeSet<InodeNr> = many(&volume).into_iter().collect();
        let big = volume.lookup("/big").unwrap();
        let names = volume.entries(big).unwrap();
        // Hard links to objects with another name keep that name.
        let file = volume.lookup("/file").unwrap();
        let in_big =
            names.iter().filter(|entry| ![b"." as &[u8], b"..", b""].contains(&&*entry.name));
        nameless.extend(
            in_big.map(|entry| entry.inode).filter(|inode| ![InodeNr(0), file].contains(inode)),
        );
        // Unattached empty files are released, so each gets a block from the end of the image.
        let end = u32::try_from(volume.geometry.blocks_count).unwrap();
        for (&inode, block) in nameless.iter().zip(end - 400..) {
            let raw = volume.inode_bytes(inode).unwrap();
            if raw[0x1c..0x20] == [0; 4] {
                volume.put_inode(inode, &with_block(raw, block)).unwrap();
                volume.fix_inode(inode).unwrap();
            }
        }
        for path in ["/big", "/many", "/lost+found"] {
            let inode = volume.lookup(path).unwrap();
            let empty = vec![0; volume.inode_bytes(inode).unwrap().len()];
            volume.put_inode(inode, &empty).unwrap();
        }
        let before = stored(&image).unwrap();
        let (_, after) = repaired(&image);
        let volume = Volume::open(&after).unwrap();
        let lost_found = volume.entries(volume.lookup("/lost+found").unwrap()).unwrap();
        let found: BTreeSet<InodeNr> = lost_found
            .iter()
            .filter(|entry| entry.name == format!("#{}", entry.inode.0).as_bytes())
            .map(|entry| entry.inode)
            .collect();
        assert!(found.is_superset(&nameless), "{profile}: {found:?}");
        assert!(stored(&after).unwrap().len() >= before.len(), "{profile}");
    }
}

/// Deeper than any stack, and than any path that Linux accepts.
#[test]
fn a_very_deep_tree_is_mended() {
    if tool::missing() {
        return;
    }
    const LEVELS: usize = 6_000;
    let image = Image::empty(24 << 20).unwrap();
    let format = ["-t", "ext4", "-b", "1024", "-N", "8000", "-O", "^has_journal"];
    build::mke2fs(image.path(), &format).unwrap();
    build::debugfs(&image, &"mkdir d\ncd d\n".repeat(LEVELS)).unwrap();
    let volume = Volume::open(&image).unwrap();
    let below = |dir| {
        let entries = volume.entries(dir).unwrap();
        entries.into_iter().find(|entry| entry.name == b"d").map(|entry| entry.inode)
    };
    let chain: Vec<InodeNr> =
        std::iter::successors(below(InodeNr::ROOT), |dir| below(*dir)).collect();
    assert_eq!(chain.len(), LEVELS);
    // All have a wrong link count, and one in the middle is missing.
    let lost = chain[LEVELS / 2];
    for &dir in &chain {
        let mut raw = volume.inode_bytes(dir).unwrap();
        raw[0x1a] = 7;
        if dir == lost {
            raw.fill(0);
        }
        volume.put_inode(dir, &raw).unwrap();
        volume.fix_inode(dir).unwrap();
    }
    let (repaired, after) = repaired(&image);
    assert!(repaired.rounds < 16, "{} rounds", repaired.rounds);
    let lengths = || repaired.before.paths.values().map(Vec::len);
    assert!(lengths().count() >= LEVELS - 2 && lengths().all(|bytes| bytes <= 4096));
    let volume = Volume::open(&after).unwrap();
    let found = volume.lookup(&format!("/lost+found/#{}", chain[LEVELS / 2 + 1].0)).unwrap();
    assert_eq!(found, chain[LEVELS / 2 + 1]);
}
