//! Random damage whose repair once was worse than e2fsck's, and must never be again.

use floe_testkit::compare::{ReadBy, Terms, judge};
use floe_testkit::problems::Recipes;
use floe_testkit::{Profile, build, damage, tool};

use crate::judged;

/// Profile, seed, and the damage.
const SEEDS: &[(&str, u64, &str)] = &[
    ("mmp", 10178, "wrong lengths inside of wrong lengths of extents"),
    ("no-dir-index", 10069, "a wrong length at the end of a leaf, and a node's checksum"),
    ("inline-ea-inode", 11643, "wrong places and a wrong length in one leaf"),
    ("ext4-2k", 20793, "extents out of order and out of range"),
    ("casefold-strict", 21002, "extents out of order and out of range"),
    ("sparse-super2", 10699, "a device that says its data is in the inode"),
    ("casefold", 20393, "a short symbolic link with a wild attribute block"),
    ("csum-seed", 21976, "s_desc_size alone is wrong: backups where the superblock says"),
    ("stable-inodes", 21351, "the same"),
    ("inline-data", 21635, "s_r_blocks_count is wrong, and a descriptor"),
    ("inode-1024", 20244, "s_first_ino is wrong, and a descriptor"),
    ("no-flex-bg", 20276, "s_inodes_per_group is wrong"),
    ("inline-ea-inode", 20725, "the UUID is wrong, with which every checksum begins"),
    ("sparse-super2", 20237, "the same"),
    ("inode-1024", 20738, "the same"),
    ("sparse-super2", 21567, "the list of bad blocks lists itself, and half the file system"),
    ("ext3", 21588, "s_usr_quota_inum names a file"),
    ("inode-1024", 20054, "an inode table in a group that says it was never written"),
    ("inline-data", 30375, "the journal's inode is a copy of a file's: nothing is written there"),
    ("ext3", 30062, "s_journal_inum is wrong: e2fsck puts the journal into lost+found"),
    ("bigalloc", 30340, "the map of the resize inode leads into the root directory"),
    ("casefold", 600957, "s_blocks_count says a thousand times as many groups as s_inodes_count"),
    ("sparse-super2", 600611, "s_first_ino says that all files are reserved inodes"),
    ("large-dir", 601647, "a reserved inode without use has all flags"),
    ("bigalloc", 801702, "a reserved inode without use is noise, with a size that no file has"),
    ("orphan-file", 800228, "a long symbolic link has all flags, and says that it is in the inode"),
    ("inline-data", 801889, "behind the attribute of inline data one without bytes at no place"),
    ("inline-ea-inode", 801435, "a file claims half of the disk: no room for copies of the rest"),
    ("large-dir", 801261, "`..` says that it has no length; whole entries follow"),
    ("32bit", 800309, "a wrong length and a wrong place of one extent"),
    ("encrypt", 800234, "the same, and another's directory there"),
    (
        "ext2-plain",
        901629,
        "the superblock as a node of a map, with nodes below that are another's",
    ),
    (
        "stable-inodes",
        970629,
        "a file's inode is a copy of a directory's, whose block names its owner",
    ),
    ("ext2-4k", 900107, "an inode table elsewhere, and no list of bad blocks there"),
    ("casefold", 1300841, "s_rev_level says 0, so that inodes seem to have another size"),
    ("bigalloc-1k", 1301517, "s_inodes_per_group is one too many"),
    ("ext4-2k", 1301583, "an attribute names an inode for its value, which is beside it"),
    ("ea-inode", 2001550, "a leaf that says it is deep, with wrong lengths and places"),
    (
        "inode-1024",
        3000774,
        "a file's inode is a copy of a directory's, and e2fsck takes all from the right one",
    ),
    ("casefold-strict", 2000536, "valid text with a zero in it"),
    ("bigalloc-more", 400024, "a file is cleared, and quotas have two right counts of short links"),
    ("large-dir", 6002093, "an extent of a directory at the last logical block of all"),
    ("ext4", 500655, "no large_file, which only the inode that reserves blocks needs"),
];

#[test]
fn what_was_lost_once_is_not_lost_again() {
    if tool::missing() {
        return;
    }
    let mut wrong = Vec::new();
    for &(profile, seed, about) in SEEDS {
        let profile = Profile::by_name(profile).unwrap();
        let (image, _) = damage::damaged_image(profile, seed).unwrap();
        let original = build::base(profile).unwrap();
        let terms = Terms { read_by: ReadBy::Testkit, original: Some(&original) };
        let faults = judge(&image, &terms, &judged::program).unwrap().faults;
        if let Some(first) = faults.first() {
            wrong.push(format!("{profile}:{seed} ({about}): {first}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Variants and pairs of recipes (`cargo xtask differential --repair --recipes`) judged in each
/// run: every `STEP`th of each list.
const STEP: usize = 16;

#[test]
fn variants_and_pairs_of_recipes_are_mended() {
    if tool::missing() {
        return;
    }
    let recipes = Recipes::new();
    let names = Profile::ALL.iter().flat_map(|&profile| recipes.names_on(profile));
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (at, name) in names.enumerate().filter(|(at, _)| at % STEP == 0) {
        // Other objects of one recipe, then two recipes as they are.
        let (nr, parts) = if at % (2 * STEP) == 0 { (1, 1) } else { (0, 2) };
        let mixture = recipes.of(&name, nr, parts).unwrap();
        let Some(image) = recipes.build(&mixture).unwrap() else { continue };
        count += 1;
        let original = build::base(mixture.profile).unwrap();
        let terms = Terms { read_by: ReadBy::Testkit, original: Some(&original) };
        let parts = recipes.describe(&mixture).join("; ");
        let faults = judge(&image, &terms, &judged::program).unwrap().faults;
        // A list in place of one that Linux refuses gives nobody more than that did, so the mode says less, too (docs/limits.md).
        let is_meant = |fault: &str| parts.contains("access list") && fault.contains("(Owner,");
        if let Some(first) = faults.iter().find(|fault| !is_meant(&fault.to_string())) {
            wrong.push(format!("{}, {parts}: {first}", mixture.profile));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count >= 10, "{count} images");
}
