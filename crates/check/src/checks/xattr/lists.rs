//! Check: access lists that Linux cannot read, or evaluates differently from what they say; e2fsck does not
//! look at them.
//! Emits: `XattrListUnreadable`, `XattrListMisread`.
//! Does not verify: faults that Linux ignores without a consequence (`docs/limits.md`).

use floe_format::ext::xattr::{
    INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, XattrArea, XattrEntry, acl, acl_order,
};
use floe_format::{BlockNr, InodeNr};

use crate::problem::Problem;

/// Bytes of the largest list that is looked at: Linux has no memory for a larger one.
const MOST_BYTES: usize = 4 << 20;

/// The fault of an attribute whose value is at a sound place. Block 0 stands for the inode itself.
#[inline]
pub(super) fn fault(
    inode: InodeNr,
    block: BlockNr,
    area: &XattrArea<'_>,
    entry: &XattrEntry<'_>,
) -> Option<Problem> {
    let is_list = matches!(entry.name_index, INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT);
    // One with a name is no list at all (`names`).
    if !is_list || !entry.name.is_empty() || entry.value_inode.is_some() {
        return None;
    }
    judge(inode, block, entry, area.value(entry)?)
}

/// The same for a list whose sound value lies in an inode of its own.
pub(super) fn fault_elsewhere(
    inode: InodeNr,
    block: BlockNr,
    entry: &XattrEntry<'_>,
    value: &[u8],
) -> Option<Problem> {
    let is_list = matches!(entry.name_index, INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT);
    if !is_list || !entry.name.is_empty() || value.len() > MOST_BYTES {
        return None;
    }
    judge(inode, block, entry, value)
}

fn judge(inode: InodeNr, block: BlockNr, entry: &XattrEntry<'_>, value: &[u8]) -> Option<Problem> {
    let offset_bytes = entry.offset as u32;
    if !acl::is_readable(value) {
        return Some(Problem::XattrListUnreadable { inode, block, offset_bytes });
    }
    let entries = acl::decode(value).unwrap_or_default();
    let reason = acl_order::misread(&entries)?;
    Some(Problem::XattrListMisread { inode, block, offset_bytes, reason })
}
