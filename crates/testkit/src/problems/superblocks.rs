//! The superblock and its backups.

use crate::Profile;
use crate::recipe::{Edit, Recipe, backup, bytes, inode, superblock};
use floe_format::InodeNr;

use super::Case;
use super::edits::change_superblock;

/// 2024-01-01, the clock of the tools, as stored in `s_mtime`.
const NOW: u32 = 1_704_067_200;

fn case(name: &str, profile: Profile, edit: impl Into<Edit>, ids: &[&'static str]) -> Case {
    Recipe::new(name).on(profile).edit(edit).expect(ids).into()
}

/// The recipes of this module.
pub(super) fn cases() -> Vec<Case> {
    [
        unusable(),
        features(),
        inode_counts(),
        sizes(),
        contradicted(),
        quota_numbers(),
        worse_than_a_backup(),
        times_and_states(),
        backups(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn unusable() -> Vec<Case> {
    use Profile::*;
    vec![
        case(
            "no superblock",
            Ext2K1,
            superblock(|sb| sb.magic = 0),
            &["superblock-unusable", "primary-superblock-open-failed"],
        ),
        case(
            "block size",
            Ext4K1,
            superblock(|sb| sb.log_block_size = 20),
            &["superblock-field-out-of-range", "primary-superblock-open-failed"],
        ),
        case(
            "first data block",
            Ext4K1,
            superblock(|sb| sb.first_data_block = 0),
            &["first-data-block-wrong"],
        ),
        Recipe::new("cut off")
            .on(NoFlexBg)
            .cut(5 << 20)
            .expect(&["filesystem-exceeds-device", "image-truncated"])
            .into(),
        case("revision", Ext4K1, superblock(|sb| sb.rev_level = 9), &["unknown-revision"]),
        case("encoding", Casefold, superblock(|sb| sb.encoding = 7), &["unknown-name-encoding"]),
        case(
            "superblock checksum",
            Ext4K1,
            bytes(1024 + 0x78, b"volume".to_vec()),
            &["superblock-checksum-bad"],
        ),
    ]
}

fn features() -> Vec<Case> {
    use Profile::*;
    vec![
        case("no uuid", Ext2K1, superblock(|sb| sb.uuid = [0; 16]), &["uuid-missing"]),
        case("the Hurd's", Ext2K1, superblock(|sb| sb.creator_os = 1), &["hurd-filetype-feature"]),
        case(
            "revision 0",
            Ext2Rev0,
            superblock(|sb| sb.feature_compat |= 8),
            &["revision-zero-with-features"],
        ),
        case(
            "two checksums",
            Ext4K1,
            superblock(|sb| sb.feature_ro_compat |= 0x10),
            &["gdt-csum-and-metadata-csum-both-set"],
        ),
        case(
            "seed alone",
            CsumSeed,
            superblock(|sb| sb.feature_ro_compat &= !0x400),
            &["csum-seed-without-metadata-csum"],
        ),
        case(
            "no extents",
            Ext4K1,
            superblock(|sb| sb.feature_incompat &= !0x40),
            &["64bit-without-extents"],
        ),
        Recipe::new("two ways to grow")
            .edit(superblock(|sb| {
                sb.feature_incompat |= 0x10;
                sb.first_meta_bg = 1;
            }))
            .expect(&["resize-inode-with-meta-bg"])
            .into(),
        case("hash sign", Ext4K1, superblock(|sb| sb.flags &= !3), &["dirhash-signedness-unset"]),
        case("test", Ext4K1, superblock(|sb| sb.flags |= 4), &["test-fs-flag-set"]),
        case(
            "not growing",
            Ext4K1,
            superblock(|sb| sb.feature_compat &= !0x10),
            &["reserved-gdt-without-resize-inode", "resize-inode-leftover"],
        )
        .forgotten(),
        case("resize inode", Ext4K1, inode("<7>").block_word(13, 9000), &["resize-inode-invalid"]),
        case("large file", Ext4K1, inode("/blocks").size(3 << 30), &[]),
        Recipe::new("no large files")
            .edit(superblock(|sb| sb.feature_ro_compat &= !2))
            .edit(inode("/unwritten").size(3 << 30))
            .expect(&["large-file-feature-missing"])
            .into(),
        case(
            "no large files, and blocks reserved for growing",
            Ext4,
            superblock(|sb| sb.feature_ro_compat &= !2),
            &["large-file-feature-missing"],
        ),
    ]
}

/// Inode counts: total and per group.
fn inode_counts() -> Vec<Case> {
    use Profile::*;
    vec![
        case(
            "inode count",
            Ext4K1,
            superblock(|sb| sb.inodes_count += 8),
            &["inode-count-mismatch"],
        ),
        case(
            "an inode more in a group",
            BigallocK1,
            superblock(|sb| sb.inodes_per_group += 1),
            &["inodes-per-group-wrong"],
        ),
        case(
            "more inodes in a group",
            BigallocK1,
            superblock(|sb| sb.inodes_per_group *= 2),
            &["inodes-per-group-wrong"],
        ),
        case(
            "fewer inodes in a group",
            BigallocK1,
            superblock(|sb| sb.inodes_per_group /= 2),
            &["inodes-per-group-wrong"],
        ),
        case(
            "more inodes in all",
            BigallocK1,
            superblock(|sb| sb.inodes_count *= 2),
            &["inode-count-mismatch"],
        ),
        case(
            "one inode in all, and no backup",
            Bigalloc,
            superblock(|sb| sb.inodes_count = 1),
            &["inode-count-mismatch"],
        ),
    ]
}

fn sizes() -> Vec<Case> {
    use Profile::*;
    vec![
        case(
            "odd descriptors, and no backup",
            Bigalloc,
            superblock(|sb| sb.desc_size = 63),
            &["descriptor-size-wrong"],
        ),
        case(
            "large descriptors, and no backup",
            BigallocK1,
            superblock(|sb| sb.desc_size = 4096),
            &["descriptor-size-wrong"],
        ),
        case(
            "odd descriptors without 64bit",
            Ext2K1,
            superblock(|sb| sb.desc_size = 33),
            &["descriptor-size-wrong"],
        ),
        case(
            "meta groups",
            MetaBg,
            superblock(|sb| sb.first_meta_bg = 9999),
            &["first-meta-bg-too-big"],
        ),
        case(
            "small extra",
            Ext4K1,
            superblock(|sb| sb.min_extra_isize = 3),
            &["min-extra-isize-bad"],
        )
        .forgotten(),
        case(
            "wanted extra",
            Ext4K1,
            superblock(|sb| sb.want_extra_isize = 999),
            &["want-extra-isize-bad"],
        )
        .forgotten(),
        case(
            "free blocks",
            Ext4K1,
            superblock(|sb| sb.free_blocks_count_lo += 1),
            &["free-block-total-wrong"],
        ),
        case(
            "free inodes",
            Ext4K1,
            superblock(|sb| sb.free_inodes_count += 1),
            &["free-inode-total-wrong"],
        ),
    ]
}

/// Fields that what lies on the disk contradicts. In the last case there is one group, and so no backup that could be asked.
fn contradicted() -> Vec<Case> {
    let of_sizes = [
        ("inodes of another size", Profile::Ext2K1, superblock(|sb| sb.inode_size /= 2)),
        ("backups in all groups", Profile::Ext2K1, superblock(|sb| sb.feature_ro_compat ^= 1)),
        ("backups in few groups", Profile::Ext2Plain, superblock(|sb| sb.feature_ro_compat ^= 1)),
        ("backups in two groups", Profile::Ext3, superblock(|sb| sb.feature_compat ^= 0x200)),
        ("backups in other groups", Profile::SparseSuper2, superblock(|sb| sb.backup_bgs = [2, 3])),
    ];
    let of_sizes = of_sizes
        .map(|(name, profile, edit)| case(name, profile, edit, &["superblock-field-contradicted"]));
    let groups = case(
        "groups of another size",
        Profile::Ext2K1,
        superblock(|sb| {
            sb.blocks_per_group -= 8;
            sb.clusters_per_group -= 8;
        }),
        &["primary-superblock-open-failed"],
    );
    let reserved = case(
        "all files are reserved inodes, and no backup",
        Profile::Bigalloc,
        superblock(|sb| sb.first_ino = 30),
        &["superblock-field-contradicted"],
    );
    of_sizes.into_iter().chain([groups, reserved]).collect()
}

fn quota_numbers() -> Vec<Case> {
    use Profile::*;
    vec![
        case(
            "quota in a file",
            Quota,
            superblock(|sb| sb.usr_quota_inum = 14),
            &["quota-inode-wrong"],
        ),
        case("quota elsewhere", Quota, visible_quota_file(), &["quota-inode-not-reserved"]),
        case(
            "project quota in a file",
            Quota,
            superblock(|sb| sb.prj_quota_inum = 14),
            &["quota-inode-wrong", "quota-file-lost"],
        ),
        case(
            "a file for quotas, but no quotas",
            Ext4K1,
            superblock(|sb| sb.prj_quota_inum = 14),
            &["quota-inode-wrong"],
        ),
        case(
            "quota in root",
            Quota,
            superblock(|sb| sb.usr_quota_inum = 2),
            &["quota-inode-number-invalid"],
        ),
    ]
}

/// The quota file of users is the file `/empty`, and not the reserved inode.
fn visible_quota_file() -> Edit {
    Edit::new(|volume| {
        let inode = volume.lookup("/empty")?;
        let file = volume.inode_bytes(InodeNr::USER_QUOTA)?;
        volume.put_inode(inode, &file)?;
        volume.fix_inode(inode)?;
        volume.put_inode(InodeNr::USER_QUOTA, &vec![0; file.len()])?;
        change_superblock(volume, |sb| sb.usr_quota_inum = inode.0)
    })
}

/// A primary superblock with a valid checksum that would lose files if it were trusted, and a
/// backup with the right values.
fn worse_than_a_backup() -> Vec<Case> {
    use Profile::*;
    vec![
        // If trusted, the file system would have 8,196 groups, or lose the last one with its files.
        case(
            "more groups than inodes",
            Casefold,
            superblock(|sb| sb.blocks_count_lo |= 1 << 24),
            &["primary-superblock-open-failed"],
        ),
        case(
            "fewer groups than inodes",
            Ext4K1,
            superblock(|sb| sb.blocks_count_lo = 6000),
            &["primary-superblock-open-failed"],
        ),
        case(
            "all files reserved",
            SparseSuper2,
            superblock(|sb| sb.first_ino = 0x20b),
            &["primary-superblock-open-failed"],
        ),
    ]
}

fn times_and_states() -> Vec<Case> {
    use Profile::*;
    let now = i64::from(NOW);
    vec![
        case(
            "mounted tomorrow",
            Ext4K1,
            superblock(|sb| sb.mtime = NOW + 90_000),
            &["last-mount-time-in-future"],
        )
        .at(now),
        case(
            "written tomorrow",
            Ext4K1,
            superblock(|sb| sb.wtime = NOW + 90_000),
            &["last-write-time-in-future"],
        )
        .at(now),
        case(
            "mounted soon",
            Ext4K1,
            superblock(|sb| sb.mtime = NOW + 3600),
            &["last-mount-time-slightly-ahead"],
        )
        .at(now),
        case(
            "written soon",
            Ext4K1,
            superblock(|sb| sb.wtime = NOW + 3600),
            &["last-write-time-slightly-ahead"],
        )
        .at(now),
        case("dirty", Ext4K1, superblock(|sb| sb.state = 0), &["not-cleanly-unmounted"]),
        case("errors", Ext4K1, superblock(|sb| sb.error_count = 1), &["kernel-recorded-errors"]),
    ]
}

/// A feature that the primary superblock has alone, and that nothing uses.
fn stray(name: &str, incompat: u32, ro_compat: u32) -> Case {
    let edit = superblock(move |sb| {
        sb.feature_incompat |= incompat;
        sb.feature_ro_compat |= ro_compat;
    });
    case(&format!("stray feature {name}"), Profile::Ext4K1, edit, &["superblock-field-doubtful"])
}

fn backups() -> Vec<Case> {
    use Profile::*;
    const CUT: floe_format::BlockNr = floe_format::BlockNr(7);
    vec![
        case(
            "old backup",
            Ext4K1,
            backup(1, |sb| sb.inodes_count = 1),
            &["backup-superblock-differs"],
        ),
        case("no backup", Ext4K1, backup(1, |sb| sb.magic = 1), &["backup-superblock-bad"]),
        stray("inline_data", 0x8000, 0),
        stray("encrypt", 0x1_0000, 0),
        stray("ea_inode", 0x400, 0),
        stray("verity", 0, 0x8000),
        stray("read-only", 0, 0x1000),
        case(
            "flexible groups of another size",
            Ext4K1,
            superblock(|sb| sb.log_groups_per_flex = 0),
            &["superblock-field-doubtful"],
        ),
        case(
            "stray feature casefold",
            Ext4K1,
            superblock(|sb| sb.feature_incompat |= 0x2_0000),
            &["superblock-field-contradicted"],
        ),
        case(
            "old descriptors",
            Ext4K1,
            Edit::new(|volume| {
                let copy = volume.geometry.group_desc_run(floe_format::GroupNr(1)).start;
                let mut bytes = volume.block(copy)?;
                bytes[8..16].copy_from_slice(&CUT.0.to_le_bytes());
                volume.put_block(copy, &bytes)
            }),
            &["backup-descriptors-bad"],
        ),
    ]
}
