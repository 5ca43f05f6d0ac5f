//! Bitmaps.

use crate::Profile;
use crate::recipe::{Edit, Recipe, block_bits, descriptor, inode_bits};

use super::Case;
use super::edits::{Bitmap, bitmap, bits};

fn case(name: &str, profile: Profile, edit: impl Into<Edit>, ids: &[&'static str]) -> Case {
    Recipe::new(name).on(profile).edit(edit).expect(ids).into()
}

/// The recipes of this module, on ext3 because it has no uninitialised groups.
pub(super) fn cases() -> Vec<Case> {
    use Profile::*;
    let blocks = |group, range, used| bits(Bitmap::Blocks, group, range, used);
    let inodes = |group, range, used| bits(Bitmap::Inodes, group, range, used);
    vec![
        case(
            "block free",
            Ext3,
            block_bits("/blocks", 3, 1, false),
            &["block-bitmap-missing-block"],
        ),
        case(
            "blocks free",
            Ext3,
            block_bits("/blocks", 3, 8, false),
            &["block-bitmap-missing-range"],
        ),
        case("block leaked", Ext3, blocks(3, 2000..2001, true), &["block-bitmap-leaked-block"]),
        case("blocks leaked", Ext3, blocks(3, 2000..2010, true), &["block-bitmap-leaked-range"]),
        case("inode free", Ext3, inode_bits("/empty", false), &["inode-bitmap-missing-inode"]),
        case("inodes free", Ext3, inodes(0, 20..25, false), &["inode-bitmap-missing-range"]),
        case("inode leaked", Ext3, inodes(3, 200..201, true), &["inode-bitmap-leaked-inode"]),
        case("inodes leaked", Ext3, inodes(3, 200..205, true), &["inode-bitmap-leaked-range"]),
        case(
            "inode padding",
            Ext3,
            bitmap(Bitmap::Inodes, 0, |bytes| bytes[1023] = 0),
            &["inode-bitmap-padding-clear"],
        ),
        case(
            "block padding",
            Ext3,
            bitmap(Bitmap::Blocks, 0, |bytes| bytes[1023] = 0),
            &["block-bitmap-padding-clear"],
        ),
        case(
            "inode checksum",
            Ext4K1,
            descriptor(0, |desc| desc.inode_bitmap_csum ^= 1),
            &["inode-bitmap-checksum-bad"],
        ),
        case(
            "block checksum",
            Ext4K1,
            descriptor(0, |desc| desc.block_bitmap_csum ^= 1),
            &["block-bitmap-checksum-bad"],
        ),
    ]
}
