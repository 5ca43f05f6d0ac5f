//! Check: access lists that Linux cannot read, or evaluates differently from what they say; e2fsck does not
//! look at them.
//! Emits: `XattrListUnreadable`, `XattrListMisread`.
//! Reads: the values of lists that lie in inodes of their own.
//! Does not verify: faults that Linux ignores without a consequence (`docs/limits.md`).

use floe_ext4::inode_table::read_inode;
use floe_ext4::map::runs::BlockMap;
use floe_ext4::map::walk::has_map;
use floe_format::ext::inode::Inode;
use floe_format::ext::xattr::{
    INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, XattrArea, XattrEntry, acl, acl_order,
};
use floe_format::{BlockNr, InodeNr};

use super::value_inode::Home;
use crate::problem::Problem;
use crate::volume::Volume;

/// Bytes of the largest list that is looked at: Linux has no memory for a larger one.
const MOST_BYTES: u64 = 4 << 20;

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
    home: Home<'_>,
    entry: &XattrEntry<'_>,
    value_inode: InodeNr,
) -> Option<Problem> {
    let is_list = matches!(entry.name_index, INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT);
    if !is_list || !entry.name.is_empty() || u64::from(entry.value_size) > MOST_BYTES {
        return None;
    }
    let value = content(home.volume, value_inode)?;
    judge(home.inode, home.block, entry, &value)
}

/// The bytes of an inode that holds a value; `None` if they cannot be read or mapped, which other checks report.
fn content(volume: &Volume<'_>, number: InodeNr) -> Option<Vec<u8>> {
    let geometry = &volume.geometry;
    let raw = read_inode(number, volume.device, geometry, &volume.groups)?;
    let inode = Inode::decode(&raw)?;
    let size = inode.size_bytes();
    if size > MOST_BYTES || !has_map(&inode.base) {
        return None;
    }
    let blocks = size.div_ceil(u64::from(geometry.block_size));
    let map = BlockMap::of(&inode, volume.device, geometry, blocks).ok()?;
    let (mut value, mut bytes) = (Vec::new(), Vec::new());
    for logical in 0..blocks {
        volume.read_block(map.block(logical)?, &mut bytes).ok()?;
        value.extend_from_slice(&bytes);
    }
    value.truncate(usize::try_from(size).ok()?);
    Some(value)
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
