//! Inodes that hold the value of an attribute (feature ea_inode): how they count their references
//! and remember their value's hash.

use crate::InodeNr;
use crate::crc::{Seed, crc32c};
use crate::ext::inode::InodeBase;
use crate::ext::xattr::{ENTRY_SIZE, XattrHeader};

/// Bytes of the longest value: programs can ask for no longer one (`XATTR_SIZE_MAX`).
pub const MOST_VALUE_BYTES: usize = 1 << 16;

/// Whether Linux puts a value of so many bytes into an inode of its own whatever room there is (`EXT4_XATTR_MIN_LARGE_EA_SIZE`): a
/// block has no room for it beside the entry, with a name of three bytes, and the end marker.
pub const fn is_large(block_bytes: usize, value_bytes: usize) -> bool {
    let beside = XattrHeader::SIZE + ENTRY_SIZE + 4 + 4;
    value_bytes.next_multiple_of(4) > block_bytes.saturating_sub(beside)
}

/// The number of entries that use an EA inode: `i_ctime` is the high half, `i_version` the low one
/// (problem `ea-inode-refcount-wrong`).
#[inline]
pub fn refcount(inode: &InodeBase) -> u64 {
    u64::from(inode.ctime) << 32 | u64::from(inode.version)
}

/// Stores the number of entries that use an EA inode.
pub fn set_refcount(inode: &mut InodeBase, count: u64) {
    inode.ctime = (count >> 32) as u32;
    inode.version = (count & 0xffff_ffff) as u32;
}

/// The hash of the value, as stored in `i_atime`.
#[inline]
pub fn stored_hash(inode: &InodeBase) -> u32 {
    inode.atime
}

/// Stores the hash of the value.
pub const fn set_stored_hash(inode: &mut InodeBase, hash: u32) {
    inode.atime = hash;
}

/// The hash of a value: its crc32c from the file system's seed.
pub fn value_hash(seed: Seed, value: &[u8]) -> u32 {
    crc32c(seed.0, value)
}

/// The inode that an EA inode of an old Lustre belongs to: `i_mtime`. Such inodes count no
/// references; they are recognised by this and by the owner's generation in `i_generation`.
#[inline]
pub fn lustre_owner(inode: &InodeBase) -> u32 {
    inode.mtime
}

/// Whether an inode that holds a value says, as old Lustre did, that it belongs to the inode with this number and generation:
/// then nothing has the hash of the value.
pub fn is_of_lustre(holder: &InodeBase, (owner, generation): (InodeNr, u32)) -> bool {
    lustre_owner(holder) == owner.0 && holder.generation == generation
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_survive() {
        let mut inode = InodeBase::decode(&[0; 128]);
        set_refcount(&mut inode, 0x1_0000_0002);
        assert_eq!((inode.ctime, inode.version), (1, 2));
        assert_eq!(refcount(&inode), 0x1_0000_0002);
        set_stored_hash(&mut inode, value_hash(Seed(1), b"value"));
        assert_eq!(stored_hash(&inode), value_hash(Seed(1), b"value"));
    }
}
