//! Check: access lists that Linux cannot read, or evaluates differently from what they say; e2fsck does not
//! look at them.
//! Emits: `XattrListUnreadable`, `XattrListMisread`.
//! Does not verify: lists whose value lies in an inode of its own; faults that Linux ignores without a
//! consequence (`docs/limits.md`).

use floe_format::ext::xattr::{
    INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, XattrArea, XattrEntry, acl, acl_order,
};
use floe_format::{BlockNr, InodeNr};

use crate::problem::Problem;

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
    let (value, offset_bytes) = (area.value(entry)?, entry.offset as u32);
    if !acl::is_readable(value) {
        return Some(Problem::XattrListUnreadable { inode, block, offset_bytes });
    }
    let entries = acl::decode(value).unwrap_or_default();
    let reason = acl_order::misread(&entries)?;
    Some(Problem::XattrListMisread { inode, block, offset_bytes, reason })
}
