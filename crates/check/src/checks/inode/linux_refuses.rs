//! Check: fields of an inode with a role that Linux judges when it loads the inode, and that e2fsck passes over.
//! Reads: the inode.  Keeps: nothing.  Emits: `SpecialInode*`, `QuotaInodeWithoutLinks`.
//! Does not verify: what the role alone asks for (`checks/system_files/reserved_inodes.rs`); inodes that Linux never
//! loads, such as the list of bad blocks.
//!
//! `docs/linux-refuses.md` lists what Linux refuses, and the check that reports it.

use floe_format::BlockNr;
use floe_format::InodeNr;
use floe_format::ext::inode::InodeFlags;
use floe_format::features::{Compat, Incompat};

use crate::checks::context::inode::{InodeCx, InodeEvidence};
use crate::checks::system_files::reserved_inodes::Role;
use crate::checks::xattr;
use crate::problem::{Problem, Sink};

/// Checks an inode whose role is in use.
pub fn check(cx: &InodeCx<'_>, role: Role, evidence: &mut InodeEvidence) {
    let loaded = match role {
        Role::Journal | Role::Quota(_) | Role::OrphanFile => true,
        // Only to grow the file system.
        Role::Reserved => {
            cx.number == InodeNr::RESIZE && cx.volume.has_compat(Compat::RESIZE_INODE)
        }
        Role::Ordinary | Role::Root | Role::BadBlocks => false,
    };
    if !loaded {
        return;
    }
    // The others are judged like files.
    if cx.volume.geometry.is_reserved(cx.number) {
        check_reserved(cx, evidence);
    }
    check_flags(cx, role, evidence);
    if let Role::Quota(kind) = role
        && cx.inode.base.links_count == 0
    {
        evidence.found.push(Problem::QuotaInodeWithoutLinks { kind, inode: cx.number });
    }
}

fn check_reserved(cx: &InodeCx<'_>, evidence: &mut InodeEvidence) {
    let inode = cx.number;
    if cx.inode.raw.len() > 128 && xattr::extra_isize_bad(cx) {
        let value = cx.inode.extra.extra_isize;
        evidence.found.push(Problem::SpecialInodeExtraSizeBad { inode, value });
    } else if xattr::own_are_bad(cx) {
        evidence.found.push(Problem::SpecialInodeAttributesBad { inode });
    }
    let block = BlockNr(cx.inode.file_acl(cx.volume.has_incompat(Incompat::BIT64)));
    if block.0 != 0 && !may_hold_attributes(cx, block) {
        evidence.found.push(Problem::SpecialInodeAttributeBlockBad { inode, block });
    }
}

/// Whether Linux accepts the number of an attribute block. Where attributes are announced, blocks are
/// claimed, and one that is metadata is found as such.
fn may_hold_attributes(cx: &InodeCx<'_>, block: BlockNr) -> bool {
    let volume = cx.volume;
    volume.geometry.contains(block)
        && (volume.has_compat(Compat::EXT_ATTR) || !volume.is_metadata(block))
}

/// Flags that make Linux take the inode for something else, or refuse to read it as itself.
fn check_flags(cx: &InodeCx<'_>, role: Role, evidence: &mut InodeEvidence) {
    let refused = match role {
        Role::Quota(_) => InodeFlags::EA_INODE.union(InodeFlags::ENCRYPT),
        _ => InodeFlags::EA_INODE,
    };
    let flags = cx.inode.flags().intersection(refused).bits();
    if flags != 0 {
        evidence.found.push(Problem::SpecialInodeFlagBad { inode: cx.number, flags });
    }
}
