//! Check: flags of encrypted, casefolded and verity inodes, and encryption contexts.
//! Reads: the inode; its attribute block later, if the context is not in the inode.
//! Keeps: the policy of each encrypted inode.  Emits: `CasefoldFlagOnNonDirectory`,
//! `CasefoldFlagUnsupported`, `EncryptFlagWithoutContext`, `EncryptionContextCorrupt`,
//! `RootDirectoryEncrypted`, `VerityFlagUnsupported`.

use floe_format::InodeNr;
use floe_format::ext::crypt::{ATTRIBUTE_NAME, Context};
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::ext::xattr::{INDEX_ENCRYPTION, XattrArea};
use floe_format::features::{Incompat, RoCompat};

use crate::checks::context::inode::{InodeCx, InodeEvidence};
use crate::evidence::policies::Policies;
use crate::problem::{Findings, Problem, Sink};

/// Checks the flags of an inode in use; most have none of them and cost one test. Call it right after
/// [`crate::checks::xattr::check`] of the same inode, whose use of an attribute block it may mark.
#[inline]
pub fn check(cx: &InodeCx<'_>, evidence: &mut InodeEvidence) {
    const FLAGS: InodeFlags =
        InodeFlags::ENCRYPT.union(InodeFlags::CASEFOLD).union(InodeFlags::VERITY);
    if cx.inode.flags().intersects(FLAGS) {
        check_flagged(cx, evidence);
    }
}

/// Checks the casefold flag, which e2fsck minds even in a reserved inode that nothing uses.
pub(crate) fn check_casefold(cx: &InodeCx<'_>, evidence: &mut InodeEvidence) {
    let (inode, supported) = (cx.number, cx.volume.has_incompat(Incompat::CASEFOLD));
    if !cx.inode.flags().contains(InodeFlags::CASEFOLD) {
        return;
    }
    if cx.inode.file_type() != Some(FileType::Directory) {
        evidence.found.push(Problem::CasefoldFlagOnNonDirectory { inode });
    } else if !supported {
        evidence.found.push(Problem::CasefoldFlagUnsupported { inode });
    }
}

/// Whether an inode is encrypted. The root never is, whatever its flags say (`ext4_set_context`): its names,
/// that of lost+found among them, are names.
#[inline]
pub(crate) fn is_encrypted(inode: InodeNr, flags: InodeFlags) -> bool {
    flags.contains(InodeFlags::ENCRYPT) && inode != InodeNr::ROOT
}

#[cold]
fn check_flagged(cx: &InodeCx<'_>, evidence: &mut InodeEvidence) {
    let (inode, flags) = (cx.number, cx.inode.flags());
    check_casefold(cx, evidence);
    let is_file = cx.inode.file_type() == Some(FileType::Regular);
    if flags.contains(InodeFlags::VERITY) && is_file && !cx.volume.has_ro_compat(RoCompat::VERITY) {
        evidence.found.push(Problem::VerityFlagUnsupported { inode });
    }
    if !flags.contains(InodeFlags::ENCRYPT) {
        return;
    }
    if !is_encrypted(inode, flags) {
        evidence.found.push(Problem::RootDirectoryEncrypted { inode });
        return;
    }
    let area = XattrArea::of_inode(cx.inode.xattr_area());
    let here = area.is_some_and(|area| area.find(INDEX_ENCRYPTION, ATTRIBUTE_NAME).is_some());
    match evidence.attributes.block_uses.last_mut() {
        Some(last) if !here && last.inode == inode => last.wants_context = true,
        _ => note_context(inode, area, &mut evidence.policies, &mut evidence.found),
    }
}

/// Judges and keeps the context of an encrypted inode among the attributes where it must be.
pub(crate) fn note_context(
    inode: InodeNr,
    area: Option<XattrArea<'_>>,
    policies: &mut Policies,
    found: &mut Findings,
) {
    let value = area.and_then(|area| {
        area.find(INDEX_ENCRYPTION, ATTRIBUTE_NAME).and_then(|entry| area.value(&entry))
    });
    let context = value.and_then(Context::decode);
    match (value, &context) {
        (None, _) => found.push(Problem::EncryptFlagWithoutContext { inode }),
        (Some(value), None | Some(Context::Unknown(0))) => {
            let (version, len) = (value.first().copied().unwrap_or(0), value.len() as u32);
            found.push(Problem::EncryptionContextCorrupt { inode, version, len });
        }
        (Some(_), Some(_)) => {}
    }
    let known = context.filter(|context| *context != Context::Unknown(0));
    policies.add(inode, known.map(|context| context.policy()));
}
