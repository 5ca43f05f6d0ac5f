//! A file that a repair deletes stays deleted, whatever else was found about its inode: in one piece with the file's flags, mode and
//! owner it could come back with a map that leads to blocks of others.

use std::collections::BTreeSet;

use floe_check::CheckOptions;
use floe_format::InodeNr;
use floe_repair::edit::{Edit, InodeEdit};
use floe_repair::policy::Yes;
use floe_repair::{RepairOptions, repair};
use floe_testkit::problems::cases;
use floe_testkit::recipe::{Recipe, inode};
use floe_testkit::tree::stored;
use floe_testkit::{Image, Profile, Rng, Volume, tool};

/// An inode in use may have this deletion time, as a deleted one.
const DTIME: u32 = 0x6600_0000;

/// Repairs an image in place. Returns the inodes that were deleted.
fn cleared(image: &Image, now_seconds: i64) -> BTreeSet<InodeNr> {
    let check = CheckOptions { now_seconds, ..CheckOptions::default() };
    let options = RepairOptions { check, ..RepairOptions::default() };
    let Ok(repaired) = repair(image, &options, &mut Yes) else { return BTreeSet::new() };
    image.write_staged(&repaired.staged).unwrap();
    let clears = |edit: &Edit| match edit {
        Edit::Inode { inode, edit: InodeEdit::Clear } => Some(*inode),
        _ => None,
    };
    repaired.deeds.iter().filter_map(|deed| clears(&deed.edit)).collect()
}

/// Which of some inodes have links, or a map.
fn alive(image: &Image, inodes: &BTreeSet<InodeNr>) -> Vec<InodeNr> {
    let volume = Volume::open(image).unwrap();
    // The root is made again. So is lost+found, by the first free number.
    let is_remade = |inode: InodeNr| inode.0 <= 11;
    let lives = |inode: InodeNr| {
        let bytes = volume.inode_bytes(inode).unwrap();
        bytes[0x1a..0x1c] != [0, 0] || bytes[0x28..0x64].iter().any(|byte| *byte != 0)
    };
    inodes.iter().copied().filter(|inode| !is_remade(*inode) && lives(*inode)).collect()
}

fn set_dtime(image: &Image, inodes: &BTreeSet<InodeNr>) {
    let volume = Volume::open(image).unwrap();
    for &inode in inodes {
        let mut bytes = volume.inode_bytes(inode).unwrap();
        bytes[0x14..0x18].copy_from_slice(&DTIME.to_le_bytes());
        volume.put_inode(inode, &bytes).unwrap();
        volume.fix_inode(inode).unwrap();
    }
}

#[test]
fn a_deleted_file_with_blocks_of_another_is_not_revived() {
    if tool::missing() {
        return;
    }
    let whole = Recipe::new("whole").on(Profile::Ext4K1).build().unwrap();
    let volume = Volume::open(&whole).unwrap();
    let foreign = volume.map(volume.lookup("/fragmented").unwrap()).unwrap();
    let word = u32::try_from(foreign.data.first_key_value().unwrap().1.0).unwrap();
    let damaged = Recipe::new("revived").on(Profile::Ext4K1).edit(
        inode("/blocks").block_word(0, 0x1234).block_word(1, word).base(|base| base.dtime = DTIME),
    );
    let before = stored(&whole).unwrap();
    for now_seconds in [0, i64::from(tool::NOW)] {
        let image = damaged.build().unwrap();
        let gone = cleared(&image, now_seconds);
        assert_eq!(gone.len(), 1);
        assert_eq!(alive(&image, &gone), [], "at {now_seconds}");
        let after = stored(&image).unwrap();
        assert!(!after.contains_key(&b"/blocks"[..]));
        for (name, node) in before.iter().filter(|(name, _)| **name != b"/blocks"[..]) {
            assert_eq!(after.get(name), Some(node), "{}", String::from_utf8_lossy(name));
        }
        assert_eq!(cleared(&image, now_seconds), BTreeSet::new());
    }
}

/// All recipes that make a repair delete a file, as they are and with a deletion time in that inode.
#[test]
fn no_recipe_revives_a_deleted_file() {
    if tool::missing() {
        return;
    }
    let (mut tried, mut wrong) = (0, Vec::new());
    for case in cases() {
        if case.has_unreadable_blocks() || case.external_journal.is_some() {
            continue;
        }
        let now_seconds = case.now_seconds.unwrap_or(i64::from(tool::NOW));
        let image = case.recipe.build().unwrap();
        let first = cleared(&image, now_seconds);
        if first.is_empty() {
            continue;
        }
        tried += 1;
        let back = alive(&image, &first);
        let image = case.recipe.build().unwrap();
        set_dtime(&image, &first);
        let second = cleared(&image, now_seconds);
        let back_later = alive(&image, &second);
        if !back.is_empty() || !back_later.is_empty() {
            wrong.push((case.recipe.name().to_owned(), back, back_later));
        }
    }
    assert!(tried > 20, "{tried} recipes");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Noise of 64 bytes over an inode may leave any finding about it.
#[test]
fn noise_over_an_inode_revives_nothing() {
    if tool::missing() {
        return;
    }
    let whole = Recipe::new("whole").on(Profile::Ext4K1).build().unwrap();
    let number = Volume::open(&whole).unwrap().lookup("/blocks").unwrap();
    let (mut rng, mut deleted) = (Rng::new(17), 0);
    for round in 0..24 {
        let image = whole.copy().unwrap();
        let volume = Volume::open(&image).unwrap();
        let mut bytes = volume.inode_bytes(number).unwrap();
        let at = [0, 0x10, 0x20, 0x28][round % 4];
        for byte in &mut bytes[at..at + 64] {
            *byte = (rng.next_u64() & 0xff) as u8;
        }
        volume.put_inode(number, &bytes).unwrap();
        let gone = cleared(&image, i64::from(tool::NOW));
        deleted += gone.len();
        assert_eq!(alive(&image, &gone), [], "round {round}");
    }
    assert!(deleted > 4, "{deleted}");
}
