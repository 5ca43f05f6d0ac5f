//! The roots of directory indexes.

use crate::Profile;
use crate::recipe::{BlockEdit, Recipe, dir_block, inode};

use super::Case;
use super::attributes::context;

const ENCRYPT: u32 = 0x0800;

fn k1(name: &str, ids: &[&'static str]) -> Recipe {
    Recipe::new(format!("index roots: {name}")).expect(ids)
}

/// Changes one byte of the root of `/big`: 0x18 reserved, 0x1c version, 0x1d length, 0x1e levels,
/// 0x1f flags.
fn root(at: usize, value: u8) -> BlockEdit {
    dir_block("/big", 0).put(at, [value])
}

/// The recipes of this module.
pub(super) fn cases() -> Vec<Case> {
    recipes().into_iter().map(|recipe| Case::from(recipe).same_codes()).collect()
}

fn recipes() -> Vec<Recipe> {
    vec![
        k1("reserved word", &["htree-root-invalid"]).edit(root(0x18, 1)),
        k1("short information", &["htree-root-invalid"]).edit(root(0x1d, 4)),
        k1("no hash", &["htree-hash-version-unknown"]).edit(root(0x1c, 99)),
        k1("an unknown flag", &["htree-incompat-flag"]).edit(root(0x1f, 1)),
        k1("four levels", &["htree-too-deep"]).edit(root(0x1e, 4)),
        k1("a keyed hash", &["htree-siphash-not-allowed"]).edit(root(0x1c, 6)),
        k1("no keyed hash", &["htree-siphash-required"])
            .on(Profile::Casefold)
            .edit(crate::recipe::superblock(|sb| sb.feature_incompat |= 0x1_0000))
            .edit(inode("/fold").set_flags(ENCRYPT)),
        k1("no keyed hash, but a policy", &["htree-siphash-required"])
            .on(Profile::Casefold)
            .edit(crate::recipe::superblock(|sb| sb.feature_incompat |= 0x1_0000))
            .edit(context("/fold", &[2; 40])),
    ]
}
