//! Check: the inodes with a fixed role.
//! Reads: the inode.  Keeps: claims of the bad-block inode.
//! Emits: `ReservedInode*`, `JournalInode*`, `QuotaInode*`, `OrphanFile*`, `BadblocksInodeInvalid`.
//! Does not verify: what bad blocks hit (`checks/system_files/bad_blocks.rs`), the journal (`journal`), quota
//! files (`checks/system_files/quota.rs`).

use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::features::{Compat, Incompat, RoCompat};

use crate::checks::context::inode::{InodeCx, InodeEvidence};
use crate::checks::mapping::block_map;
use crate::checks::mapping::mapper::Mapper;
use crate::evidence::dirs::DirFlags;
use crate::problem::{Problem, Sink};

/// The role of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A user's file.
    Ordinary,
    /// The root directory.
    Root,
    /// The list of bad blocks.
    BadBlocks,
    /// The journal's usual inode.
    Journal,
    /// A quota file's inode: reserved, or named by the superblock.
    Quota(&'static str),
    /// The orphan file named by the superblock.
    OrphanFile,
    /// Any other reserved inode.
    Reserved,
}

/// The role of an inode.
pub(crate) fn role_of(cx: &InodeCx<'_>) -> Role {
    let sb = &cx.volume.superblock;
    match cx.number {
        InodeNr::BAD_BLOCKS => Role::BadBlocks,
        InodeNr::ROOT => Role::Root,
        InodeNr::JOURNAL => Role::Journal,
        InodeNr::USER_QUOTA => Role::Quota("user"),
        InodeNr::GROUP_QUOTA => Role::Quota("group"),
        InodeNr(number) if number == sb.orphan_file_inum && number != 0 => Role::OrphanFile,
        InodeNr(number) if number == sb.prj_quota_inum && number != 0 => Role::Quota("project"),
        number if cx.volume.geometry.is_reserved(number) => Role::Reserved,
        _ => Role::Ordinary,
    }
}

/// Whether an inode that should be empty holds something.
fn is_leftover(cx: &InodeCx<'_>) -> bool {
    let base = &cx.inode.base;
    base.links_count != 0 || base.blocks_lo != 0 || cx.inode.block_word(0) != Some(0)
}

/// Checks the role of an inode other than root and bad blocks; `false` if the role is not in use, so
/// that the inode should be empty.
pub fn check(cx: &InodeCx<'_>, role: Role, evidence: &mut InodeEvidence) -> bool {
    let inode = cx.number;
    let mode = cx.inode.base.mode;
    let sb = &cx.volume.superblock;
    let regular = cx.inode.file_type() == Some(FileType::Regular);
    let mut in_use = true;
    let problem = match role {
        Role::Ordinary | Role::Root | Role::BadBlocks => None,
        Role::Journal if sb.journal_inum == inode.0 => {
            (!regular).then_some(Problem::JournalInodeNotRegular { inode, mode })
        }
        Role::Journal => {
            in_use = false;
            is_leftover(cx).then_some(Problem::JournalInodeLeftover { inode })
        }
        Role::Quota(kind) => {
            let named =
                [sb.usr_quota_inum, sb.grp_quota_inum, sb.prj_quota_inum].contains(&inode.0);
            if named && cx.volume.has_ro_compat(RoCompat::QUOTA) {
                (!regular).then_some(Problem::QuotaInodeNotRegular { kind, inode, mode })
            } else {
                in_use = false;
                is_leftover(cx).then_some(Problem::QuotaInodeLeftover { inode })
            }
        }
        Role::OrphanFile if cx.volume.has_compat(Compat::ORPHAN_FILE) => {
            (!regular).then_some(Problem::OrphanFileNotRegular { inode, mode })
        }
        Role::OrphanFile => {
            in_use = false;
            is_leftover(cx).then_some(Problem::OrphanFileInodeLeftover { inode })
        }
        Role::Reserved => {
            reserved_mode_bad(cx).then_some(Problem::ReservedInodeModeBad { inode, mode })
        }
    };
    if let Some(problem) = problem {
        evidence.found.push(problem);
    }
    in_use
}

/// Problem `reserved-inode-mode-bad`.
fn reserved_mode_bad(cx: &InodeCx<'_>) -> bool {
    let file_type = cx.inode.file_type();
    match cx.number {
        InodeNr::BOOT_LOADER => file_type == Some(FileType::Directory),
        InodeNr::RESIZE => cx.inode.base.mode != 0 && file_type != Some(FileType::Regular),
        _ => cx.inode.base.mode != 0,
    }
}

/// Checks the bad-block inode and claims the blocks it lists that are not static metadata.
pub(crate) fn check_bad_blocks(cx: &InodeCx<'_>, evidence: &mut InodeEvidence) {
    let base = &cx.inode.base;
    let reasons = [
        (base.mode != 0, "its mode is not zero"),
        (base.uid_lo != 0 || base.gid_lo != 0, "it has an owner"),
        (base.links_count != 0, "it has links"),
        (cx.inode.file_acl(cx.volume.has_incompat(Incompat::BIT64)) != 0, "it has attributes"),
        (cx.inode.flags().contains(InodeFlags::INLINE_DATA), "it has inline data"),
    ];
    if let Some((_, reason)) = reasons.into_iter().find(|(bad, _)| *bad) {
        evidence.found.push(Problem::BadblocksInodeInvalid { inode: cx.number, reason });
    }
    if cx.inode.flags().contains(InodeFlags::EXTENTS) && !cx.volume.has_incompat(Incompat::EXTENTS)
    {
        evidence.found.push(Problem::ExtentsFlagUnsupported { inode: cx.number });
    }
    if base.block.iter().all(|&byte| byte == 0) {
        return;
    }
    let mut own = InodeEvidence {
        claims: crate::evidence::claims::Claims::recording(),
        ..Default::default()
    };
    block_map::walk(&mut Mapper::new(*cx, None, DirFlags::default(), &mut own));
    for (start, len) in own.claims.take_recorded() {
        for cluster in start..start + len {
            if !cx.volume.metadata.contains(cluster) {
                evidence.claims.claim_clusters(cluster, 1);
            }
        }
    }
}
