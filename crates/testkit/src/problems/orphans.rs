//! The orphan list and the orphan file.

use crate::Profile;
use crate::recipe::{Edit, InodeEdit, Recipe, entry, inode, orphan_block, superblock};

use super::Case;
use super::edits::{orphan_head, orphan_present};

/// The inode of the orphan file in the base images.
const FILE: &str = "<12>";

/// The recipes of this module.
pub(super) fn cases() -> Vec<Case> {
    [lists(), present_files(), files()].into_iter().flatten().collect()
}

/// `/empty` as deleted while it was open.
fn orphan(name: &str) -> Recipe {
    Recipe::new(name)
        .edit(orphan_head("/empty"))
        .edit(inode("/empty").links(0))
        .edit(entry("/empty").inode(0))
}

fn lists() -> Vec<Case> {
    vec![
        orphan("orphan pending").expect(&["orphans-pending"]).into(),
        Case::from(orphan("orphan").expect(&["orphan-inode-processed"])).recovered(),
        Case::from(
            Recipe::new("orphan head")
                .edit(superblock(|sb| sb.last_orphan = 5))
                .expect(&["orphan-list-head-invalid"]),
        )
        .recovered(),
        Case::from(
            Recipe::new("orphan next")
                .edit(orphan_head("/empty"))
                .edit(inode("/empty").base(|base| base.dtime = 5))
                .expect(&["orphan-list-next-invalid"]),
        )
        .recovered(),
    ]
}

/// The first blocks of the orphan file are a hole.
fn hole() -> InodeEdit {
    inode(FILE).extent(0, |extent| extent.block = 1)
}

/// Faults of a file that names orphans.
fn present_files() -> Vec<Case> {
    let present = |name: &str, edit: Edit, ids: &[&'static str]| -> Case {
        let recipe = Recipe::new(name).on(Profile::OrphanFile).edit(edit).expect(ids);
        Case::from(recipe.edit(orphan_present())).recovered()
    };
    vec![
        present("orphan file hole", hole().into(), &["orphan-file-hole-in-recovery"]),
        present(
            "orphan file magic",
            orphan_block(0).put32(1016, 0).into(),
            &["orphan-file-block-magic-bad"],
        ),
        present(
            "orphan file checksum",
            orphan_block(0).put32(1020, 7).stale().into(),
            &["orphan-file-block-checksum-bad"],
        ),
        present(
            "orphan file size",
            inode(FILE).size(100).into(),
            &["orphan-file-size-unaligned-in-recovery"],
        ),
    ]
}

fn files() -> Vec<Case> {
    let file = |name: &str, edit: Edit, ids: &[&'static str]| {
        Recipe::new(name).on(Profile::OrphanFile).edit(edit).expect(ids)
    };
    vec![
        file(
            "orphan file unaligned",
            inode(FILE).size(1000).into(),
            &["orphan-file-size-unaligned"],
        )
        .into(),
        file("orphan file with a hole", hole().into(), &["orphan-file-hole"]).into(),
        file(
            "orphan file dirty",
            orphan_block(0).put32(0, 13).into(),
            &["orphan-file-block-dirty"],
        )
        .into(),
        // As `tune2fs -O ^metadata_csum` leaves it.
        file(
            "orphan file without checksums",
            superblock(|sb| sb.feature_ro_compat &= !0x400),
            &["orphan-file-block-dirty"],
        )
        .into(),
        file(
            "orphan file without links",
            inode(FILE).links(0).into(),
            &["deleted-inode-dtime-missing"],
        )
        .into(),
        Case::from(
            Recipe::new("project quota without links")
                .on(Profile::Quota)
                .edit(Edit::new(|volume| {
                    let inode = floe_format::InodeNr(volume.superblock.prj_quota_inum);
                    let mut bytes = volume.inode_bytes(inode)?;
                    bytes[0x1a..0x1c].fill(0);
                    volume.put_inode(inode, &bytes)?;
                    volume.fix_inode(inode)
                }))
                .expect(&["quota-inode-without-links"]),
        )
        .unlike_e2fsck("Linux takes the inode for deleted and refuses to mount for writing"),
        file("no orphan file", superblock(|sb| sb.orphan_file_inum = 0), &["orphan-file-corrupt"])
            .into(),
        file(
            "orphan file alone",
            superblock(|sb| sb.feature_compat &= !4),
            &["orphan-file-without-journal"],
        )
        .into(),
        file("orphan flag", orphan_present(), &["orphan-present-flag-stale"]).into(),
        Recipe::new("orphan flag without a file")
            .edit(orphan_present())
            .expect(&["orphan-present-without-orphan-file"])
            .into(),
    ]
}
