//! A superblock whose fields name a user's file or one of its blocks: the repair mends the field, and leaves what
//! it named alone.

use floe_check::CheckOptions;
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::{InodeNr, LogicalBlock};
use floe_repair::policy::Yes;
use floe_repair::{RepairOptions, repair};
use floe_testkit::recipe::{Recipe, superblock};
use floe_testkit::tree::{Tree, stored};
use floe_testkit::{Image, Profile, Volume, oracle, tool};

type Put = fn(&mut Superblock, u64);

/// Fields that name an inode.
const INODES: [(&str, Put); 8] = [
    ("s_usr_quota_inum", |sb, number| sb.usr_quota_inum = number as u32),
    ("s_grp_quota_inum", |sb, number| sb.grp_quota_inum = number as u32),
    ("s_prj_quota_inum", |sb, number| sb.prj_quota_inum = number as u32),
    ("s_journal_inum", |sb, number| sb.journal_inum = number as u32),
    ("s_last_orphan", |sb, number| sb.last_orphan = number as u32),
    ("s_orphan_file_inum", |sb, number| sb.orphan_file_inum = number as u32),
    ("s_lpf_ino", |sb, number| sb.lpf_ino = number as u32),
    ("s_first_ino", |sb, number| sb.first_ino = number as u32 + 1),
];
/// Fields that name a block.
const BLOCKS: [(&str, Put); 2] = [
    ("s_mmp_block", |sb, number| sb.mmp_block = number),
    ("s_first_meta_bg", |sb, number| sb.first_meta_bg = number as u32),
];

/// All that users see, without the times that a repair may set.
fn tree(image: &Image) -> Tree {
    stored(image).unwrap()
}

/// Sets a field, and repairs; what users had must be as it was, and e2fsck must agree.
fn spoil_and_mend(profile: Profile, field: &str, put: Put, number: u64) -> Image {
    let name = format!("{profile}: {field} is {number}");
    let whole = Recipe::new("whole").on(profile).build().unwrap();
    let spoilt = Recipe::new("spoilt").on(profile).edit(superblock(move |sb| put(sb, number)));
    let image = spoilt.build().unwrap();
    let check = CheckOptions { now_seconds: i64::from(tool::NOW), ..CheckOptions::default() };
    let options = RepairOptions { check, ..RepairOptions::default() };
    let repaired = repair(&image, &options, &mut Yes).unwrap();
    assert!(repaired.is_clean(), "{name}: {:?}", repaired.left);
    image.write_staged(&repaired.staged).unwrap();
    let (before, after) = (tree(&whole), tree(&image));
    for (path, node) in &before {
        assert_eq!(after.get(path), Some(node), "{name}: {}", String::from_utf8_lossy(path));
    }
    assert_eq!(after.len(), before.len(), "{name}: something new");
    let verdict = oracle::e2fsck(&image).unwrap();
    assert!(verdict.clean(), "{name}: {}", verdict.text);
    image
}

/// The inodes of a file and of a directory, and the first block of each.
fn of_users(profile: Profile) -> [(InodeNr, u64); 2] {
    let image = Recipe::new("whole").on(profile).build().unwrap();
    let volume = Volume::open(&image).unwrap();
    ["/dir/file", "/dir"].map(|path| {
        let inode = volume.lookup(path).unwrap();
        let map = volume.map(inode).unwrap();
        (inode, map.data[&LogicalBlock(0)].0)
    })
}

fn superblock_of(image: &Image) -> Superblock {
    let mut bytes = [0; 1024];
    image.read(OFFSET_BYTES, &mut bytes).unwrap();
    Superblock::decode(&bytes)
}

/// Each profile with each field; those that have the feature of a field, and one that has not.
#[test]
fn what_a_wrong_number_names_stays_as_it_was() {
    if tool::missing() {
        return;
    }
    // The last one has no backup superblock.
    for profile in
        [Profile::Quota, Profile::OrphanFile, Profile::Mmp, Profile::Ext3, Profile::Bigalloc]
    {
        for (inode, block) in of_users(profile) {
            let fields = INODES.map(|(field, put)| (field, put, u64::from(inode.0)));
            let blocks = BLOCKS.map(|(field, put)| (field, put, block));
            for (field, put, number) in fields.into_iter().chain(blocks) {
                spoil_and_mend(profile, field, put, number);
            }
        }
    }
}

/// The right file gets its role back, with the limits that are in it, and no new one is made.
#[test]
fn the_real_quota_files_are_found_again() {
    if tool::missing() {
        return;
    }
    let whole = superblock_of(&Recipe::new("whole").on(Profile::Quota).build().unwrap());
    let numbers = |sb: &Superblock| [sb.usr_quota_inum, sb.grp_quota_inum, sb.prj_quota_inum];
    let user = of_users(Profile::Quota)[0].0;
    let odd = [user.0, InodeNr::ROOT.0, InodeNr::GROUP_QUOTA.0, whole.prj_quota_inum, 9999];
    for (field, put) in &INODES[..2] {
        for number in odd {
            let image = spoil_and_mend(Profile::Quota, field, *put, u64::from(number));
            assert_eq!(numbers(&superblock_of(&image)), numbers(&whole), "{field} {number}");
        }
    }
    for number in [0, user.0, InodeNr::ROOT.0, InodeNr::USER_QUOTA.0, 9999] {
        let (field, put) = INODES[2];
        let image = spoil_and_mend(Profile::Quota, field, put, u64::from(number));
        assert_eq!(numbers(&superblock_of(&image)), numbers(&whole), "{field} {number}");
    }
}

/// A backup superblock knows where the block is: the protection stays on.
#[test]
fn the_real_block_against_multiple_mounts_is_found_again() {
    if tool::missing() {
        return;
    }
    let whole = superblock_of(&Recipe::new("whole").on(Profile::Mmp).build().unwrap());
    for (_, block) in of_users(Profile::Mmp) {
        let (field, put) = BLOCKS[0];
        let mended = superblock_of(&spoil_and_mend(Profile::Mmp, field, put, block));
        assert_eq!(mended.mmp_block, whole.mmp_block);
        assert_eq!(mended.feature_incompat, whole.feature_incompat);
    }
}

/// More blocks reserved for descriptors than there are: lists of a new resize inode would be written over others.
#[test]
fn no_list_of_reserved_descriptors_is_written_over_others() {
    if tool::missing() {
        return;
    }
    for profile in [Profile::Ext4, Profile::Ext4K1, Profile::Ext3] {
        let whole = superblock_of(&Recipe::new("whole").on(profile).build().unwrap());
        let stored = whole.reserved_gdt_blocks;
        let put: Put = |sb, number| sb.reserved_gdt_blocks = number as u16;
        let number = u64::from(stored) + 40;
        let image = spoil_and_mend(profile, "s_reserved_gdt_blocks", put, number);
        assert_eq!(superblock_of(&image).reserved_gdt_blocks, stored, "{profile}");
    }
}
