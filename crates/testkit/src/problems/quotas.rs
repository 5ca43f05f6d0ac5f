//! Quota files.

use crate::Profile;
use crate::recipe::{Recipe, block_of, inode};

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
    ]
}
