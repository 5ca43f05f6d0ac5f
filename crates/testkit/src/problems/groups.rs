//! Group descriptors: locations and counts.

use crate::Profile;
use crate::recipe::{Edit, Recipe, descriptor};
use floe_format::BlockNr;

use super::Case;

fn case(name: &str, profile: Profile, edit: impl Into<Edit>, ids: &[&'static str]) -> Case {
    Recipe::new(name).on(profile).edit(edit).expect(ids).into()
}

/// The recipes of this module. A file system of one group has no backup descriptor, so a wrong
/// descriptor cannot be restored.
#[allow(clippy::too_many_lines, reason = "a table of cases")]
pub(super) fn cases() -> Vec<Case> {
    let mut cases = places();
    cases.extend(counts());
    cases
}

fn places() -> Vec<Case> {
    use Profile::*;
    const FAR: BlockNr = BlockNr(1 << 30);
    vec![
        case(
            "block bitmap",
            Bigalloc,
            descriptor(0, |desc| desc.block_bitmap = FAR),
            &["group-block-bitmap-out-of-range"],
        ),
        case(
            "inode bitmap",
            Bigalloc,
            descriptor(0, |desc| desc.inode_bitmap = FAR),
            &["group-inode-bitmap-out-of-range"],
        ),
        case(
            "inode table",
            Bigalloc,
            descriptor(0, |desc| desc.inode_table = FAR),
            &["group-inode-table-out-of-range"],
        ),
        case(
            "insane",
            Ext4K1,
            descriptor(1, |desc| desc.inode_table = FAR),
            &["group-descriptors-insane"],
        ),
    ]
}

fn counts() -> Vec<Case> {
    use Profile::*;
    vec![
        case(
            "descriptor checksum",
            Ext4K1,
            descriptor(1, |desc| desc.checksum ^= 1),
            &["group-descriptor-checksum-bad"],
        ),
        case(
            "uninit without checksums",
            NoCsum,
            descriptor(1, |desc| desc.flags |= 1),
            &["group-uninit-without-checksum-feature"],
        ),
        case(
            "unused inodes",
            Ext4K1,
            descriptor(1, |desc| desc.itable_unused = 5000),
            &["group-itable-unused-too-large"],
        )
        .forgotten(),
        case(
            "last group",
            Ext4K1,
            descriptor(3, |desc| desc.flags |= 2),
            &["last-group-block-uninit"],
        ),
        case(
            "free inodes of a group",
            Ext4K1,
            descriptor(0, |desc| desc.free_inodes_count -= 1),
            &["group-free-inode-count-wrong"],
        ),
        case(
            "free blocks of a group",
            Ext4K1,
            descriptor(0, |desc| desc.free_blocks_count += 1),
            &["group-free-block-count-wrong"],
        ),
        case(
            "directories",
            Ext4K1,
            descriptor(0, |desc| desc.used_dirs_count += 1),
            &["group-directory-count-wrong"],
        ),
        case(
            "blocks in uninit",
            Ext4K1,
            descriptor(0, |desc| desc.flags |= 2),
            &["block-used-in-uninit-group"],
        ),
        case(
            "inodes in uninit",
            Ext4K1,
            descriptor(0, |desc| desc.flags |= 1),
            &["inode-used-in-uninit-group"],
        ),
    ]
}
