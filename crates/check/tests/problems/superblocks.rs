//! The superblock and its backups.

use floe_testkit::Profile;
use floe_testkit::recipe::{Recipe, superblock};

use crate::Case;

/// A recipe on the standard image.
fn k1(name: &str, ids: &[&'static str]) -> Recipe {
    Recipe::new(name).expect(ids)
}

/// The recipes of this module.
pub(super) fn cases() -> Vec<Case> {
    vec![
        k1("inode count", &["inode-count-mismatch"])
            .edit(superblock(|sb| sb.inodes_count += 8))
            .into(),
        k1("no uuid", &["uuid-missing"])
            .on(Profile::Ext2K1)
            .edit(superblock(|sb| sb.uuid = [0; 16]))
            .into(),
    ]
}
