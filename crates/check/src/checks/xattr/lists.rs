//! Check: access lists that Linux cannot read, which e2fsck does not look at.
//! Emits: `XattrListUnreadable`.
//! Does not verify: lists whose value lies in an inode of its own; whether the entries make sense together,
//! which Linux verifies only when a program sets a list.

use floe_format::ext::xattr::{INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, XattrArea, XattrEntry, acl};
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
    let is_wrong = area.value(entry).is_some_and(|value| !acl::is_readable(value));
    let offset_bytes = entry.offset as u32;
    is_wrong.then_some(Problem::XattrListUnreadable { inode, block, offset_bytes })
}
