//! Directory indexes.

use crate::Profile;
use crate::recipe::{Edit, Recipe, dir_block, inode};

use super::Case;
use super::edits::index_node;

fn case(name: &str, profile: Profile, edit: impl Into<Edit>, ids: &[&'static str]) -> Case {
    Recipe::new(name).on(profile).edit(edit).expect(ids).into()
}

/// The recipes of this module. The index of `/big` has one level in `ext4`, two in `ext4-1k`.
pub(super) fn cases() -> Vec<Case> {
    use Profile::*;
    let root = |change: fn(&mut [u8])| dir_block("/big", 0).raw(change);
    vec![
        case("index level", Ext4K1, root(|block| block[30] = 2), &["htree-root-bad"]),
        case("index depth", Ext4K1, root(|block| block[30] = 0), &["htree-leaf-depth-wrong"]),
        case("index limit", Ext4K1, root(|block| block[32] = 100), &["htree-limit-wrong"]),
        case(
            "index count",
            Ext4K1,
            root(|block| block[34..36].copy_from_slice(&[244, 1])),
            &["htree-count-too-large"],
        ),
        case(
            "index block",
            Ext4K1,
            root(|block| block[36..39].fill(0xff)),
            &["htree-block-number-bad"],
        ),
        case(
            "index twice",
            Ext4,
            root(|block| block.copy_within(44..48, 36)),
            &["htree-block-referenced-twice", "htree-block-unreferenced"],
        ),
        case("index order", Ext4, root(|block| block[48..52].fill(0)), &["htree-hashes-unordered"]),
        case(
            "index swapped",
            Ext4,
            root(|block| {
                let first: [u8; 4] = [block[36], block[37], block[38], block[39]];
                block.copy_within(44..48, 36);
                block[44..48].copy_from_slice(&first);
            }),
            &["htree-hash-above-range", "htree-hash-below-range", "htree-inconsistent"],
        ),
        case(
            "root checksum",
            Ext4K1,
            dir_block("/big", 0).put(41, [1]).stale(),
            &["htree-root-checksum-bad"],
        ),
        case("index of 2 GiB", Ext4, inode("/big").size(1 << 31), &["large-dir-feature-missing"]),
        case(
            "node checksum",
            Ext4K1,
            index_node(true, |block| block[24] ^= 2),
            &["htree-node-checksum-bad"],
        ),
    ]
}
