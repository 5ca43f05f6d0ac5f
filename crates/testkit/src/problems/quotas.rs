//! Quota files.

use crate::Profile;
use crate::recipe::{BlockEdit, Recipe, block_of, inode};

use super::Case;

/// The recipes of this module. Inode 3 is the quota file of users.
pub(super) fn cases() -> Vec<Case> {
    let recipe = |name: &str| Recipe::new(name).on(Profile::Quota);
    vec![
        recipe("other owner")
            .edit(inode("/owned").base(|base| base.uid_lo = 1234))
            .expect(&["quota-usage-wrong"])
            .into(),
        Case::from(
            recipe("no quota file")
                .edit(block_of("<3>", 0).put32(0, 5))
                .expect(&["quota-file-corrupt"]),
        )
        .unlike_e2fsck("1.47.0 prints that it cannot read the file, and exits with 0"),
        header("more blocks than the quota file", 20, 8),
        header("free quota block out of the file", 24, 7),
        header("quota block with a free entry out of the file", 28, u32::MAX),
        header("free quota block in the tree", 24, 5).unlike_e2fsck(LISTS),
        header("no leaf with a free entry", 28, 4).unlike_e2fsck(LISTS),
        leaf("quota leaf linked out of the file", 0, 7).unlike_e2fsck(LISTS),
        leaf("quota leaf with more entries", 8, 9).unlike_e2fsck(LISTS),
        // The fifth block has the pointers to the leaf, by the last byte of the identifier: 0 has an entry, 9 has none.
        word("quota pointer without an entry", block_of("<3>", 4).put32(36, 5)).unlike_e2fsck(TREE),
        word("quota entry without a pointer", block_of("<3>", 4).put32(0, 0)).unlike_e2fsck(TREE),
    ]
}

const TREE: &str = "it finds entries by the leaves, not by the bytes of their identifiers";
const LISTS: &str = "it writes these lists anew, and reads none";

/// A word of the header of the quota file of users, which has seven blocks: the sixth is its leaf.
fn header(name: &str, at: usize, value: u32) -> Case {
    word(name, block_of("<3>", 0).put32(at, value))
}

fn leaf(name: &str, at: usize, value: u32) -> Case {
    word(name, block_of("<3>", 5).put32(at, value))
}

fn word(name: &str, edit: BlockEdit) -> Case {
    Recipe::new(name).on(Profile::Quota).edit(edit).expect(&["quota-file-corrupt"]).into()
}
