//! Check: names of attributes that Linux refuses, and e2fsck does not mind.
//! Emits: `XattrNameWithZero`, `XattrAclWithName`.

use floe_format::ext::xattr::{INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, XattrEntry};
use floe_format::{BlockNr, InodeNr};

use crate::problem::Problem;

/// The fault of an attribute's name. Block 0 stands for the inode itself.
#[inline]
pub(super) fn fault(inode: InodeNr, block: BlockNr, entry: &XattrEntry<'_>) -> Option<Problem> {
    let offset_bytes = entry.offset as u32;
    if entry.name.contains(&0) {
        return Some(Problem::XattrNameWithZero { inode, block, offset_bytes });
    }
    let is_list = matches!(entry.name_index, INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT);
    (is_list && !entry.name.is_empty()).then_some(Problem::XattrAclWithName {
        inode,
        block,
        offset_bytes,
    })
}
