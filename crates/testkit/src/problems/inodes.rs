//! Inodes as such: roles, types, deletion times, sizes, counts, flags, checksums.

use crate::Profile;
use crate::recipe::{Edit, InodeEdit, Recipe, inode, superblock};

use super::Case;

/// A time after the superblock's times, too large for an inode number.
const RECENTLY: u32 = 1_704_067_300;
const EXTENTS: u32 = 0x0008_0000;
const INDEX: u32 = 0x1000;
const IMAGIC: u32 = 0x2000;
const IMMUTABLE: u32 = 0x10;
const EA_INODE: u32 = 0x0020_0000;

/// A recipe on the standard image.
fn k1(name: &str, ids: &[&'static str]) -> Recipe {
    Recipe::new(format!("inodes: {name}")).expect(ids)
}

fn on(profile: Profile, name: &str, ids: &[&'static str]) -> Recipe {
    k1(name, ids).on(profile)
}

fn dtime(path: &str, value: u32) -> InodeEdit {
    inode(path).base(move |base| base.dtime = value)
}

/// Sets the mode of the inode that the superblock names as orphan file.
fn orphan_file_mode(mode: u16) -> Edit {
    Edit::new(move |volume| {
        let number = floe_format::InodeNr(volume.superblock.orphan_file_inum);
        let mut raw = volume.inode_bytes(number)?;
        raw[..2].copy_from_slice(&mode.to_le_bytes());
        volume.put_inode(number, &raw)?;
        volume.fix_inode(number)
    })
}

/// Damages most inodes of one inode table block, so that their checksums are wrong.
fn garbage() -> Edit {
    Edit::new(|volume| {
        let first = volume.lookup("/many/f000")?.0.next_multiple_of(4) + 1;
        for number in (first..first + 3).map(floe_format::InodeNr) {
            let mut raw = volume.inode_bytes(number)?;
            raw[100] ^= 0xff;
            volume.put_inode(number, &raw)?;
        }
        Ok(())
    })
}

/// Damages half of the inodes of an inode table block, and all bytes behind the last used one. Most
/// of the block is not garbage, because unused inodes do not count.
fn half_of_a_block() -> Edit {
    Edit::new(|volume| {
        let size = volume.geometry.inode_size;
        let per_block = volume.geometry.block_size / size;
        let used =
            volume.geometry.inodes_per_group - volume.desc(floe_format::GroupNr(0))?.itable_unused;
        let in_block = used % per_block;
        anyhow::ensure!(
            in_block >= per_block / 2,
            "{in_block} inodes in the last block that is used"
        );
        let of_used = used + 1 - per_block / 2..=used;
        let behind = used + 1..=used + per_block - in_block;
        for number in of_used.map(floe_format::InodeNr) {
            let mut raw = volume.inode_bytes(number)?;
            raw[100] ^= 0xff;
            volume.put_inode(number, &raw)?;
        }
        for number in behind.map(floe_format::InodeNr) {
            volume.put_inode(number, &vec![0xa5; size as usize])?;
        }
        Ok(())
    })
}

/// The recipes of this module.
pub(super) fn cases() -> Vec<Case> {
    let recipes =
        [roles(), deletion(), reserved_like_orphans(), sizes(), flags()].into_iter().flatten();
    let mut cases: Vec<Case> = recipes.map(|recipe| Case::from(recipe).same_codes()).collect();
    cases.push(
        Case::from(
            k1("a directory that is a value", &["ea-inode-flag-on-non-regular"])
                .edit(inode("/dir").set_flags(EA_INODE)),
        )
        .unlike_e2fsck("e2fsck looks for the flag since 1.47.1"),
    );
    // e2fsck exits before it reaches the inode.
    cases.push(
        k1("the journal a fifo", &["journal-inode-not-regular"])
            .edit(inode("<8>").mode(0o010_600))
            .into(),
    );
    cases
}

fn roles() -> Vec<Recipe> {
    let quota = Profile::Quota;
    vec![
        k1("the root a file", &["root-inode-not-directory"]).edit(inode("<2>").mode(0o100_755)),
        k1("the root deleted", &["root-inode-dtime-set"]).edit(dtime("<2>", RECENTLY)),
        k1("a mode for inode 9", &["reserved-inode-mode-bad"]).edit(inode("<9>").mode(0o100_644)),
        k1("a boot directory", &["reserved-inode-mode-bad"]).edit(inode("<5>").mode(0o040_755)),
        k1("a resize fifo", &["reserved-inode-mode-bad"]).edit(inode("<7>").mode(0o010_644)),
        on(Profile::Ext3, "no journal, but its inode", &["journal-inode-leftover"]).edit(
            superblock(|sb| {
                sb.feature_compat &= !0x4;
                sb.journal_inum = 0;
            }),
        ),
        on(quota, "the quota file a directory", &["quota-inode-not-regular"])
            .edit(inode("<3>").mode(0o040_600)),
        on(quota, "no quotas, but their files", &["quota-inode-leftover"]).edit(superblock(|sb| {
            sb.feature_ro_compat &= !0x100;
            sb.usr_quota_inum = 0;
            sb.grp_quota_inum = 0;
        })),
        on(Profile::NoCsum, "a project quota file, but no quotas", &["inode-bitmap-missing-inode"])
            .edit(superblock(|sb| sb.prj_quota_inum = 500)),
        on(
            Profile::Ext2K1,
            "a project quota file where there is a hole",
            &["inode-bitmap-missing-inode"],
        )
        .edit(superblock(|sb| sb.prj_quota_inum = 770)),
        // e2fsck also treats the remains of an unused role as a deleted file.
        k1("blocks of a group quota file, but no quotas", &[])
            .edit(inode("<4>").base(|base| base.blocks_high = 4)),
        on(Profile::OrphanFile, "the orphan file a fifo", &["orphan-file-not-regular"])
            .edit(orphan_file_mode(0o010_600)),
        on(Profile::OrphanFile, "an orphan file left over", &["orphan-file-inode-leftover"])
            .edit(superblock(|sb| sb.feature_compat &= !0x1000)),
        on(Profile::Ext3, "a directory called a fifo", &["inode-is-really-directory"])
            .edit(inode("/dir/sub").mode(0o010_755)),
        on(
            Profile::InlineData,
            "an inline directory called a pipe",
            &["inode-is-really-directory"],
        )
        .edit(inode("/dir/sub").mode(0o010_755)),
        k1("an extent directory called a socket", &["inode-is-really-directory"])
            .edit(inode("/dir/sub").mode(0o140_755)),
    ]
}

/// Reserved inodes whose deletion time looks like the next number of an orphan list, also those that
/// nothing else is expected of.
fn reserved_like_orphans() -> Vec<Recipe> {
    ["<1>", "<5>", "<6>", "<7>", "<8>", "<9>", "<10>"]
        .into_iter()
        .map(|path| {
            k1(&format!("{path} like an orphan"), &["inode-dtime-looks-like-orphan-link"])
                .edit(dtime(path, 7))
        })
        .collect()
}

fn deletion() -> Vec<Recipe> {
    vec![
        k1("deleted without a time", &["deleted-inode-dtime-missing"])
            .edit(inode("/empty").links(0)),
        k1("in use, but deleted", &["inode-in-use-dtime-set"]).edit(dtime("/file", RECENTLY)),
        on(Profile::OrphanFile, "an orphan file of a deleted inode", &[])
            .edit(dtime("<12>", RECENTLY)),
        k1("deleted like an orphan", &["inode-dtime-looks-like-orphan-link"])
            .edit(dtime("/empty", 5).links(0)),
        k1("in use like an orphan", &["inode-dtime-looks-like-orphan-link"])
            .edit(dtime("/empty", 5)),
        k1("checksum", &["inode-checksum-bad"])
            .edit(inode("/file").base(|base| base.uid_lo = 7).stale()),
        k1("garbage in the table", &["inode-block-garbage"]).edit(garbage()),
        on(Profile::Ext4K2, "half of a block of the table", &["inode-checksum-bad"])
            .edit(half_of_a_block()),
    ]
}

fn sizes() -> Vec<Recipe> {
    vec![
        k1("too short a file", &["inode-size-wrong"]).edit(inode("/blocks").size(1)),
        k1("far too long a file", &["inode-size-wrong"]).edit(inode("/blocks").size(1 << 60)),
        k1("half a block of directory", &["inode-size-wrong"]).edit(inode("/dir").size(512)),
        k1("too long a directory", &["inode-size-wrong"]).edit(inode("/dir").size(1 << 16)),
        on(Profile::Ext3, "past the block map", &["inode-size-wrong"])
            .edit(inode("/blocks").size(1 << 40)),
        on(Profile::InlineData, "past the block map, but inline", &["inode-size-wrong"])
            .edit(inode("/many/f013").size(1 << 42)),
        k1("one block more", &["inode-block-count-wrong"])
            .edit(inode("/blocks").base(|base| base.blocks_lo += 2)),
        k1("counted in blocks", &["inode-block-count-wrong"])
            .edit(inode("/blocks").set_flags(0x0004_0000)),
        on(Profile::Ext2Rev0, "a large file of old", &["revision-zero-with-large-files"])
            .edit(inode("/file").size(1 << 31)),
        k1("an empty directory", &["directory-without-blocks"]).edit(
            inode("/dir/sub")
                .extent_header(|header| header.entries = 0)
                .size(0)
                .base(|base| base.blocks_lo = 0),
        ),
    ]
}

fn flags() -> Vec<Recipe> {
    vec![
        k1("a magic inode", &["imagic-flag-unsupported"]).edit(inode("/file").set_flags(IMAGIC)),
        k1("an immutable fifo", &["special-file-immutable-flag"])
            .edit(inode("/fifo").set_flags(IMMUTABLE)),
        k1("an indexed file", &["index-flag-on-non-directory"])
            .edit(inode("/file").set_flags(INDEX)),
        on(Profile::NoDirIndex, "an indexed file of old", &["index-flag-on-non-directory"])
            .edit(inode("/file").set_flags(INDEX)),
        k1("indexes not announced", &["index-flag-without-dir-index"])
            .edit(superblock(|sb| sb.feature_compat &= !0x20)),
        k1("extents not flagged", &["extents-flag-missing"])
            .edit(inode("/file").clear_flags(EXTENTS)),
        k1("extents not announced", &["extents-feature-missing"])
            .edit(superblock(|sb| sb.feature_incompat &= !0x40)),
        k1("extents not announced, and one has none", &["extents-flag-unsupported"])
            .edit(inode("/file").extent_header(|header| header.magic = 7))
            .edit(superblock(|sb| sb.feature_incompat &= !0x40)),
        on(Profile::Ext2K1, "no journal, but extents", &["extents-flag-unsupported"])
            .edit(inode("<8>").set_flags(EXTENTS)),
    ]
}
