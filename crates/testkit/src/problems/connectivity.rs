//! The directory tree, and link counts.

use crate::Profile;
use crate::recipe::{Edit, Recipe, debugfs, entry, inode};

use super::Case;
use super::edits::change_ea_inode;

fn case(name: &str, edit: impl Into<Edit>, ids: &[&'static str]) -> Case {
    on(name, Profile::Ext4K1, edit, ids)
}

fn on(name: &str, profile: Profile, edit: impl Into<Edit>, ids: &[&'static str]) -> Case {
    Recipe::new(name).on(profile).edit(edit).expect(ids).into()
}

/// The recipes of this module.
pub(super) fn cases() -> Vec<Case> {
    [trees(), links()].into_iter().flatten().collect()
}

fn trees() -> Vec<Case> {
    use Profile::*;
    vec![
        case("no root", inode("<2>").raw(|raw| raw.fill(0)), &["root-inode-missing"]),
        case("unlinked", entry("/dir/sub").inode(0), &["directory-unconnected"]),
        case("dotdot elsewhere", entry("/dir/sub/..").inode_of("/many"), &["dotdot-wrong-parent"]),
        Recipe::new("loop")
            .edit(entry("/dir/sub/deep/file").inode_of("/dir").file_type(2))
            .edit(entry("/dir").inode_of("/many"))
            .expect(&["directory-loop"])
            .into(),
        case("no lost+found", debugfs("rmdir lost+found"), &["lost-found-missing"]),
        case(
            "lost+found a file",
            debugfs("rmdir lost+found\nln empty lost+found\nsif empty links_count 2"),
            &["lost-found-not-directory"],
        ),
        on(
            "lost+found inline",
            InlineData,
            debugfs("rmdir lost+found\nmkdir lost+found"),
            &["lost-found-inline"],
        ),
        on(
            "lost+found encrypted",
            Encrypt,
            inode("/lost+found").set_flags(0x800),
            &["lost-found-encrypted"],
        ),
    ]
}

fn links() -> Vec<Case> {
    use Profile::*;
    vec![
        case("links", inode("/dir/file").links(7), &["inode-link-count-wrong"]),
        case("links of many", inode("/big").links(1), &["directory-link-count-overflow-stale"]),
        case("unattached", entry("/dir/file").inode(0), &["unattached-inode"]),
        case("unattached and empty", entry("/empty").inode(0), &["unattached-empty-inode"]),
        on(
            "references",
            EaInode,
            change_ea_inode(|base| base.version += 1),
            &["ea-inode-refcount-wrong"],
        ),
        Recipe::new("value of nobody")
            .on(EaInode)
            .edit(inode("/empty").set_flags(0x20_0000))
            .edit(entry("/empty").inode(0))
            .expect(&["ea-inode-flag-unreferenced"])
            .into(),
    ]
}
