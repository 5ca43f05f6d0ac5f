//! Edits of the superblock.

use floe_format::ext::htree::HashVersion;
use floe_format::ext::superblock::{FLAG_SIGNED_HASH, FLAG_TEST_FS, MAGIC, OS_LINUX, Superblock};
use floe_format::features::{Compat, Incompat, RoCompat};
use floe_format::geometry::Strictness;
use floe_format::{Geometry, GroupNr, InodeNr};

use crate::edit::SuperblockEdit;
use crate::failure::Failure;
use crate::stage::Stage;

/// `s_first_ino` and `s_inode_size` in revision 0, where they are fixed.
const FIRST_INO: u32 = 11;
const INODE_SIZE: u16 = 128;

/// Sets revision 1. Keeps a valid inode size, which predates the damage because revision 0 stores
/// zero; else stores the fixed values of revision 0.
fn set_revision_1(sb: &mut Superblock) {
    sb.rev_level = 1;
    if Geometry::new(sb, Strictness::Relaxed).is_err() {
        sb.first_ino = FIRST_INO;
        sb.inode_size = INODE_SIZE;
    }
}

#[allow(clippy::too_many_lines)] // one arm an edit
pub(super) fn apply(stage: &mut Stage<'_>, edit: &SuperblockEdit) -> Result<(), Failure> {
    let now = stage.now_seconds;
    match *edit {
        SuperblockEdit::PrimaryFromBackup => return from_backup(stage),
        SuperblockEdit::PrimaryFromJournal => {}
        SuperblockEdit::NativeIdentity => super::lots::mend_identity(stage)?,
        SuperblockEdit::RandomUuid => {
            let random = stage.random;
            let sb = stage.superblock_mut();
            sb.uuid = random;
            // Version 4, variant 1 (RFC 9562).
            sb.uuid[6] = sb.uuid[6] & 0x0f | 0x40;
            sb.uuid[8] = sb.uuid[8] & 0x3f | 0x80;
            stage.rewrite_groups();
            stage.write_backups();
        }
        SuperblockEdit::InodesCount(count) => stage.superblock_mut().inodes_count = count,
        // The file system was examined with this number.
        SuperblockEdit::InodesPerGroup(count) => stage.mend_inodes_per_group(count),
        // The file system was examined with this size.
        SuperblockEdit::DescriptorSize(bytes) => stage.mend_desc_size(bytes),
        SuperblockEdit::Revision1 => {
            set_revision_1(stage.superblock_mut());
            stage.write_backups();
        }
        SuperblockEdit::ClearTestFlag => stage.superblock_mut().flags &= !FLAG_TEST_FS,
        // Floe treats the bytes of names as signed, as Linux does on x86.
        SuperblockEdit::HashSignedness => stage.superblock_mut().flags |= FLAG_SIGNED_HASH,
        SuperblockEdit::MountTimeNow => {
            let sb = stage.superblock_mut();
            (sb.mtime, sb.mtime_hi) = time(now);
        }
        SuperblockEdit::WriteTimeNow => {
            let sb = stage.superblock_mut();
            (sb.wtime, sb.wtime_hi) = time(now);
        }
        SuperblockEdit::MinExtraIsize(bytes) => stage.superblock_mut().min_extra_isize = bytes,
        SuperblockEdit::DefaultHash => {
            stage.superblock_mut().def_hash_version = HashVersion::HalfMd4 as u8;
        }
        SuperblockEdit::NoEncryptionLevel => stage.superblock_mut().encryption_level = 0,
        SuperblockEdit::WantExtraIsize(bytes) => stage.superblock_mut().want_extra_isize = bytes,
        SuperblockEdit::NoReservedDescriptors => stage.superblock_mut().reserved_gdt_blocks = 0,
        SuperblockEdit::FirstMetaBg(first) => stage.superblock_mut().first_meta_bg = first,
        SuperblockEdit::DropMetaBg => {
            let sb = stage.superblock_mut();
            sb.feature_incompat &= !Incompat::META_BG.bits();
            sb.first_meta_bg = 0;
        }
        SuperblockEdit::DropResizeInodeFeature => {
            let sb = stage.superblock_mut();
            sb.feature_compat &= !Compat::RESIZE_INODE.bits();
            sb.reserved_gdt_blocks = 0;
        }
        SuperblockEdit::DropChecksumSeed => {
            let sb = stage.superblock_mut();
            sb.feature_incompat &= !Incompat::CSUM_SEED.bits();
            sb.checksum_seed = 0;
        }
        SuperblockEdit::DropGroupChecksums => {
            stage.superblock_mut().feature_ro_compat &= !RoCompat::GDT_CSUM.bits();
            stage.rewrite_groups();
        }
        SuperblockEdit::DropFiletype => {
            stage.superblock_mut().feature_incompat &= !Incompat::FILETYPE.bits();
            stage.write_backups();
        }
        SuperblockEdit::DropFastCommit => {
            stage.superblock_mut().feature_compat &= !Compat::FAST_COMMIT.bits();
            stage.write_backups();
        }
        SuperblockEdit::DropMmp => {
            let sb = stage.superblock_mut();
            sb.feature_incompat &= !Incompat::MMP.bits();
            sb.mmp_block = 0;
        }
        SuperblockEdit::MmpBlock(block) => stage.superblock_mut().mmp_block = block.0,
        SuperblockEdit::SetCompat(bits) => stage.superblock_mut().feature_compat |= bits,
        SuperblockEdit::SetIncompat(bits) => stage.superblock_mut().feature_incompat |= bits,
        SuperblockEdit::SetRoCompat(bits) => stage.superblock_mut().feature_ro_compat |= bits,
        SuperblockEdit::ClearRoCompat(bits) => stage.superblock_mut().feature_ro_compat &= !bits,
        SuperblockEdit::NoJournalDevice => stage.superblock_mut().journal_dev = 0,
        SuperblockEdit::MadeByLinux => stage.superblock_mut().creator_os = OS_LINUX,
        // The file system was examined with this number.
        SuperblockEdit::MendQuotaInode(_) | SuperblockEdit::AsExamined(_) => {
            stage.superblock_mut();
        }
        SuperblockEdit::ProjectQuotaInode(inode) => stage.superblock_mut().prj_quota_inum = inode.0,
        SuperblockEdit::MoveQuotaInode(kind) => return move_quota_inode(stage, kind),
    }
    Ok(())
}

/// Restores the primary superblock and descriptors from the backup in use.
fn from_backup(stage: &mut Stage<'_>) -> Result<(), Failure> {
    if stage.evidence.volume.doubts.used_backup.is_none() {
        return Err(Failure::NotNow("no backup is valid; each part is repaired separately"));
    }
    stage.superblock_mut().block_group_nr = 0;
    stage.rewrite_groups();
    Ok(())
}

/// The valid backup superblocks of this file system.
pub(super) fn good_backups(stage: &Stage<'_>) -> impl Iterator<Item = Superblock> {
    let groups = (1..stage.geometry.group_count).map(GroupNr);
    groups.filter_map(|group| stage.geometry.superblock_of(group)).filter_map(|block| {
        let raw = stage.read_block(block).ok()?;
        let bytes = raw.first_chunk()?;
        let backup = Superblock::decode(bytes);
        let is_ours = backup.magic == MAGIC
            && Superblock::checksum_ok(bytes)
            && backup.uuid == stage.superblock().uuid;
        is_ours.then_some(backup)
    })
}

/// The first meta block group according to the first valid backup of this file system.
pub(crate) fn first_meta_bg(stage: &Stage<'_>) -> Option<u32> {
    let fits = |backup: &Superblock| {
        backup.features().incompat.contains(Incompat::META_BG)
            && backup.first_meta_bg <= stage.geometry.desc_blocks
    };
    good_backups(stage).find(fits).map(|backup| backup.first_meta_bg)
}

/// A time split into its low 32 bits and the byte above.
pub(crate) const fn time(seconds: i64) -> (u32, u8) {
    (seconds as u32, (seconds >> 32) as u8)
}

fn quota_field<'s>(stage: &'s mut Stage<'_>, kind: &str) -> &'s mut u32 {
    let sb = stage.superblock_mut();
    match kind {
        "user" => &mut sb.usr_quota_inum,
        "group" => &mut sb.grp_quota_inum,
        _ => &mut sb.prj_quota_inum,
    }
}

/// The inode reserved for a quota type; project quotas have none.
fn reserved(kind: &str) -> Option<InodeNr> {
    match kind {
        "user" => Some(InodeNr(3)),
        "group" => Some(InodeNr(4)),
        _ => None,
    }
}

/// Hides a user-visible quota file: copies the inode to its reserved number and frees the old one.
/// The next round removes the names that led to it.
fn move_quota_inode(stage: &mut Stage<'_>, kind: &'static str) -> Result<(), Failure> {
    let to = reserved(kind).ok_or(Failure::NotNow("project quotas have no reserved inode"))?;
    let from = InodeNr(*quota_field(stage, kind));
    super::inodes::move_to_reserved(stage, from, to)?;
    *quota_field(stage, kind) = to.0;
    Ok(())
}
