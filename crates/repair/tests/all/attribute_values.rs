//! An attribute that names a value inode although its value is stored in place, and attributes
//! without the feature bit in the superblock: nothing is lost.

use floe_blockdev::{ReadBlocks, WriteBlocks};
use floe_check::CheckOptions;
use floe_repair::policy::Yes;
use floe_repair::{RepairOptions, repair};
use floe_testkit::recipe::{self, Edit, Recipe};
use floe_testkit::tree::stored;
use floe_testkit::{Profile, tool};

/// Byte offset of the value inode number of the first attribute: in an inode with 32 extra bytes,
/// and in an attribute block.
const IN_INODE: usize = 128 + 32 + 4 + 4;
const IN_BLOCK: usize = 32 + 4;

fn in_inode(path: &'static str, number: u32) -> Edit {
    let bytes = number.to_le_bytes();
    recipe::inode(path).raw(move |raw| raw[IN_INODE..IN_INODE + 4].copy_from_slice(&bytes)).into()
}

fn in_block(path: &'static str, number: u32) -> Edit {
    recipe::xattr_block(path).put32(IN_BLOCK, number).into()
}

/// Repairs the image of a recipe; returns the number of changes, and whether all files are again as
/// they were before the damage.
fn repaired(recipe: &Recipe) -> (usize, bool) {
    let (image, whole) = (recipe.build().unwrap(), recipe.base().unwrap());
    let now_seconds = i64::from(tool::NOW);
    let check = CheckOptions { threads: 2, now_seconds, ..CheckOptions::default() };
    let options = RepairOptions { check, ..RepairOptions::default() };
    let repaired = repair(&image, &options, &mut Yes).unwrap();
    assert!(repaired.is_clean() && repaired.left.is_empty(), "{:?}", repaired.left);
    image.write_staged(&repaired.staged).unwrap();
    (repaired.deeds.len(), stored(&image).unwrap() == stored(&whole).unwrap())
}

/// One wrong byte of a block with attributes is found by its checksum, whatever it makes of the
/// block: e2fsck drops the attributes, or gives the block a new checksum with the wrong byte.
#[test]
fn one_wrong_byte_of_an_attribute_block_is_put_right() {
    if tool::missing() {
        return;
    }
    // The header of 32 bytes: magic, count of users, count of blocks. The first attribute:
    // length and index of its name, offset and size of its value, a letter. The last is of a value.
    let bytes = [0, 4, 8, 32, 33, 34, 36, 40, 44, 48, 1020];
    for profile in [Profile::Ext4K1, Profile::Quota] {
        for path in ["/ea-block", "/ea-shared-a"] {
            for at in bytes {
                let flip = recipe::xattr_block(path).stale().raw(move |raw| raw[at] ^= 3);
                let recipe = Recipe::new("a wrong byte").on(profile).edit(flip);
                assert!(repaired(&recipe).1, "{profile} {path}: byte {at:#x}");
            }
        }
    }
    // A block with two wrong bytes is not taken for one with a single wrong byte.
    let two = recipe::xattr_block("/ea-block").stale().raw(|raw| {
        raw[33] ^= 3;
        raw[50] ^= 1;
    });
    assert!(!repaired(&Recipe::new("two wrong bytes").edit(two)).1);
}

#[test]
fn a_value_beside_its_name_is_kept() {
    if tool::missing() {
        return;
    }
    use Profile::{EaInode, Ext4K1, InlineData};
    let cases = [
        ("in an inode", Ext4K1, in_inode("/ea", 200)),
        ("in a block", Ext4K1, in_block("/ea-block", 1 << 30)),
        ("in a block of two", Ext4K1, in_block("/ea-shared-a", 12)),
        ("a file's data", InlineData, in_inode("/medium", 200)),
        ("without the feature", Ext4K1, recipe::superblock(|sb| sb.feature_compat &= !0x8)),
        ("where values may be elsewhere", EaInode, in_inode("/ea", 12)),
        ("in a block where they may", EaInode, in_block("/ea-block", u32::MAX)),
    ];
    for (name, profile, edit) in cases {
        let recipe = Recipe::new(name).on(profile).edit(edit);
        let (image, whole) = (recipe.build().unwrap(), recipe.base().unwrap());
        let now_seconds = i64::from(tool::NOW);
        let check = CheckOptions { threads: 2, now_seconds, ..CheckOptions::default() };
        let options = RepairOptions { check, ..RepairOptions::default() };
        let repaired = repair(&image, &options, &mut Yes).unwrap();
        assert!(repaired.is_clean() && repaired.left.is_empty(), "{name}: {:?}", repaired.left);
        // The report covers each user of a block.
        let users = if name == "in a block of two" { 2 } else { 1 };
        assert_eq!(repaired.deeds.len(), users, "{name}: {:?}", repaired.deeds);
        let copy = image.copy().unwrap();
        for range in repaired.staged.staged_ranges() {
            let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
            repaired.staged.read_at(range.start, &mut bytes).unwrap();
            copy.write_at(range.start, &bytes).unwrap();
        }
        assert_eq!(stored(&copy).unwrap(), stored(&whole).unwrap(), "{name}");
    }
}
