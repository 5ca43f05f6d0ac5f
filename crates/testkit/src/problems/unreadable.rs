//! Unreadable blocks.

use crate::Profile;
use crate::recipe::{Recipe, inode};
use floe_format::{BlockNr, GroupNr};

use super::Case;
use super::edits::{data_of, inode_table, nodes_of};

fn case(name: &str, profile: Profile, ids: &[&'static str]) -> Case {
    Recipe::new(name).on(profile).expect(ids).into()
}

/// The recipes of this module.
pub(super) fn cases() -> Vec<Case> {
    use Profile::*;
    vec![
        case("unreadable node", Ext4K1, &["unreadable-block"])
            .unreadable(|volume| nodes_of(volume, "/fragmented")),
        case("unreadable table", Ext4K1, &["unreadable-inode-table"])
            .unreadable(|volume| inode_table(volume, 0)),
        case("unreadable bitmap", Ext4K1, &["unreadable-bitmap"])
            .unreadable(|volume| vec![volume.desc(GroupNr(0)).expect("a group").block_bitmap]),
        case("unreadable descriptors", Ext4K1, &["unreadable-group-descriptors"])
            .unreadable(|volume| vec![volume.geometry.primary_desc_block(0)]),
        case("unreadable inode", Ext4K1, &["dirent-inode-on-bad-block"]).unreadable(|volume| {
            let inode = volume.lookup("/dir/file").expect("a path of the base image");
            let at = volume.inode_offset(inode).expect("an inode");
            vec![BlockNr(at / u64::from(volume.geometry.block_size))]
        }),
        Case::from(
            Recipe::new("unreadable list of bad blocks")
                .on(Ext2K1)
                .edit(inode("<1>").block_word(12, 8100))
                .expect(&["bad-block-list-unreadable"]),
        )
        .unreadable(|_| vec![BlockNr(8100)]),
        case("unreadable directory", Ext4K1, &["dir-block-read-error"])
            .unreadable(|volume| data_of(volume, "/dir")),
    ]
}
