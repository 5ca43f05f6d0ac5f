//! Writing the attributes of an inode or a block as a whole.

use super::{
    Chars, ENTRY_SIZE, IBODY_HEADER_SIZE, INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, INDEX_RICHACL,
    MAGIC, RawXattrEntry, XattrHeader, block_hash, entry_hash, entry_hash_of_inode, padded,
    write_block_checksum,
};
use crate::crc::Seed;
use crate::{BlockNr, InodeNr};

/// The end marker behind the entries.
const MARKER_SIZE: usize = 4;

/// An attribute to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewXattr<'a> {
    /// The prefix of the name: `INDEX_*`.
    pub name_index: u8,
    /// The name without its prefix: at most 255 bytes.
    pub name: &'a [u8],
    /// Its value.
    pub value: NewValue<'a>,
}

/// The value of an attribute to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewValue<'a> {
    /// Bytes that lie beside the entries: at most 65,535 minus what lies before them.
    Here(&'a [u8]),
    /// An inode holds the value (ea_inode).
    Inode {
        /// The inode.
        inode: InodeNr,
        /// Bytes of the value.
        size_bytes: u32,
        /// The value's hash: [`super::value_inode::value_hash`].
        hash: u32,
    },
}

impl NewXattr<'_> {
    /// Bytes beside the entries.
    fn value_here(&self) -> &[u8] {
        match self.value {
            NewValue::Here(value) => value,
            NewValue::Inode { .. } => &[],
        }
    }

    /// The order in which the kernel sorts the entries of a block: prefix, length of the name,
    /// name.
    fn key(&self) -> (u8, usize, &[u8]) {
        (self.name_index, self.name.len(), self.name)
    }

    /// The hash of an entry in a block.
    fn hash(&self) -> u32 {
        match self.value {
            NewValue::Here(value) => entry_hash(self.name, value, Chars::Unsigned),
            NewValue::Inode { hash, .. } => entry_hash_of_inode(self.name, hash, Chars::Unsigned),
        }
    }
}

/// The attributes do not fit; nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{needed_bytes} bytes of attributes do not fit {room_bytes}")]
pub struct NoRoom {
    /// Bytes that the attributes take: see [`needed_bytes`].
    pub needed_bytes: usize,
    /// Bytes available.
    pub room_bytes: usize,
}

/// Splits an attribute's full name, such as `user.comment`, into prefix and rest. `None` for a
/// prefix that ext4 does not know, or if the rest is empty although it must not be. The names of
/// access control lists have no rest.
pub fn split_name(full: &[u8]) -> Option<(u8, &[u8])> {
    const WHOLE: [u8; 3] = [INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, INDEX_RICHACL];
    let prefix = |index: u8| super::prefix(index).unwrap_or_default().as_bytes();
    if let Some(index) = WHOLE.into_iter().find(|&index| full == prefix(index)) {
        return Some((index, &[]));
    }
    (1..=super::INDEX_HURD).filter(|index| !WHOLE.contains(index)).find_map(|index| {
        let rest = full.strip_prefix(prefix(index))?;
        (!rest.is_empty()).then_some((index, rest))
    })
}

/// Bytes that attributes take in an inode or a block, without the header before the first entry (4
/// bytes in an inode, 32 in a block).
pub fn needed_bytes(xattrs: &[NewXattr<'_>]) -> usize {
    xattrs.iter().fold(MARKER_SIZE, |sum, xattr| {
        sum.saturating_add(ENTRY_SIZE + padded(xattr.name.len()))
            .saturating_add(padded(xattr.value_here().len()))
    })
}

/// Writes the attributes of an inode over `area`
/// ([`crate::ext::inode::OwnedInode::attributes_mut`]), in the order given. Without attributes the
/// area is zeroed.
///
/// # Errors
/// [`NoRoom`]; nothing was written.
pub fn write_inode(area: &mut [u8], xattrs: &[NewXattr<'_>]) -> Result<(), NoRoom> {
    if xattrs.is_empty() {
        area.fill(0);
        return Ok(());
    }
    judge_room(xattrs, area.len().saturating_sub(IBODY_HEADER_SIZE))?;
    area.fill(0);
    if let Some((magic, bytes)) = area.split_first_chunk_mut::<IBODY_HEADER_SIZE>() {
        *magic = MAGIC.to_le_bytes();
        put(bytes, 0, xattrs, |xattr| match xattr.value {
            // Linux hashes only values in inodes of their own.
            NewValue::Here(_) => 0,
            NewValue::Inode { .. } => xattr.hash(),
        });
    }
    Ok(())
}

/// Writes a block of attributes for one inode, in the kernel's sort order. With a `seed`
/// (metadata_csum) it writes the checksum, which covers the block's number.
///
/// # Errors
/// [`NoRoom`]; nothing was written.
pub fn write_block(
    block: &mut [u8],
    xattrs: &[NewXattr<'_>],
    seed: Option<Seed>,
    block_nr: BlockNr,
    owner_hint: InodeNr,
) -> Result<(), NoRoom> {
    judge_room(xattrs, block.len().saturating_sub(XattrHeader::SIZE))?;
    let mut sorted = xattrs.to_vec();
    sorted.sort_by(|a, b| a.key().cmp(&b.key()));
    block.fill(0);
    put(block, XattrHeader::SIZE, &sorted, |xattr| xattr.hash());
    let hash = block_hash(sorted.iter().map(NewXattr::hash));
    if let Some(head) = block.first_chunk_mut() {
        let header = XattrHeader {
            magic: MAGIC,
            refcount: 1,
            blocks: 1,
            hash,
            checksum: 0,
            reserved: [owner_hint.0, 0, 0],
        };
        header.encode_into(head);
    }
    if let Some(seed) = seed {
        write_block_checksum(seed, block_nr, block);
    }
    Ok(())
}

/// Whether everything fits: the bytes available, and the ranges of an entry's fields.
fn judge_room(xattrs: &[NewXattr<'_>], room_bytes: usize) -> Result<(), NoRoom> {
    let needed = needed_bytes(xattrs);
    // Offsets of values are 16 bits; the largest block has 65,536 bytes.
    let fits = needed <= room_bytes && room_bytes <= 1 << 16;
    let names = xattrs.iter().all(|xattr| xattr.name.len() <= usize::from(u8::MAX));
    if fits && names { Ok(()) } else { Err(NoRoom { needed_bytes: needed, room_bytes }) }
}

/// Writes entries from byte `at` on and their values downwards from the end. The caller has checked
/// that they fit.
fn put(bytes: &mut [u8], at: usize, xattrs: &[NewXattr<'_>], hash: impl Fn(&NewXattr<'_>) -> u32) {
    let (mut at, mut end) = (at, bytes.len());
    for xattr in xattrs {
        let value = xattr.value_here();
        // All values fit 16 and 32 bits: an area has at most 65,536 bytes.
        let mut raw = RawXattrEntry {
            name_len: xattr.name.len() as u8,
            name_index: xattr.name_index,
            value_offs: 0,
            value_inum: 0,
            value_size: value.len() as u32,
            hash: hash(xattr),
        };
        if let NewValue::Inode { inode, size_bytes, .. } = xattr.value {
            (raw.value_inum, raw.value_size) = (inode.0, size_bytes);
        } else if !value.is_empty() {
            end -= padded(value.len());
            raw.value_offs = end as u16;
            bytes[end..end + value.len()].copy_from_slice(value);
        }
        if let Some((head, rest)) = bytes[at..].split_first_chunk_mut() {
            raw.encode_into(head);
            rest[..xattr.name.len()].copy_from_slice(xattr.name);
        }
        at += ENTRY_SIZE + padded(xattr.name.len());
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::{XattrArea, XattrEntry, block_checksum_ok, full_name};
    use super::*;

    type Made = (u8, Vec<u8>, Result<Vec<u8>, (u32, u32)>);

    fn made() -> impl Strategy<Value = Vec<Made>> {
        let value = prop_oneof![
            4 => vec(any::<u8>(), 0..60).prop_map(Ok),
            1 => (1u32..99, any::<u32>()).prop_map(Err),
        ];
        vec((1u8..11, vec(any::<u8>(), 1..40), value), 0..8)
    }

    fn borrowed(made: &[Made]) -> Vec<NewXattr<'_>> {
        made.iter()
            .map(|(name_index, name, value)| NewXattr {
                name_index: *name_index,
                name,
                value: match value {
                    Ok(value) => NewValue::Here(value),
                    Err((inode, hash)) => {
                        NewValue::Inode { inode: InodeNr(*inode), size_bytes: 70_000, hash: *hash }
                    }
                },
            })
            .collect()
    }

    /// Every attribute comes back, each in its place.
    fn judge(area: XattrArea<'_>, expected: &[NewXattr<'_>], hashed: bool) {
        assert_eq!(area.check(), Ok(expected.len() as u32));
        let entries: Vec<XattrEntry<'_>> = area.entries().map(Result::unwrap).collect();
        for (entry, xattr) in entries.iter().zip(expected) {
            assert_eq!((entry.name_index, entry.name), (xattr.name_index, xattr.name));
            match xattr.value {
                NewValue::Here(value) => assert_eq!(area.value(entry), Some(value)),
                NewValue::Inode { inode, size_bytes, .. } => {
                    assert_eq!((entry.value_inode, entry.value_size), (Some(inode), size_bytes));
                }
            }
            if hashed || entry.value_inode.is_some() {
                assert_eq!(entry.hash, xattr.hash());
            } else {
                assert_eq!(entry.hash, 0);
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(made in made()) {
            let xattrs = borrowed(&made);
            let mut area = vec![7; IBODY_HEADER_SIZE + needed_bytes(&xattrs)];
            write_inode(&mut area, &xattrs).unwrap();
            match XattrArea::of_inode(&area) {
                Some(area) => judge(area, &xattrs, false),
                None => prop_assert!(xattrs.is_empty()),
            }
            let mut block = vec![7; XattrHeader::SIZE + needed_bytes(&xattrs)];
            write_block(&mut block, &xattrs, Some(Seed(3)), BlockNr(99), InodeNr(0)).unwrap();
            prop_assert!(block_checksum_ok(Seed(3), BlockNr(99), &block));
            let mut sorted = xattrs.clone();
            sorted.sort_by(|a, b| a.key().cmp(&b.key()));
            judge(XattrArea::of_block(&block).unwrap(), &sorted, true);
        }

        #[test]
        fn where_one_byte_is_missing_nothing_is_written(made in made().prop_filter("some", |made| !made.is_empty())) {
            let xattrs = borrowed(&made);
            let needed_bytes = needed_bytes(&xattrs);
            let full = NoRoom { needed_bytes, room_bytes: needed_bytes - 1 };
            let mut area = vec![7; IBODY_HEADER_SIZE + needed_bytes - 1];
            prop_assert_eq!(write_inode(&mut area, &xattrs), Err(full));
            let mut block = vec![7; XattrHeader::SIZE + needed_bytes - 1];
            prop_assert_eq!(write_block(&mut block, &xattrs, None, BlockNr(1), InodeNr(0)), Err(full));
            prop_assert!(area.iter().chain(&block).all(|&byte| byte == 7));
        }
    }

    #[test]
    fn names_are_taken_apart() {
        assert_eq!(split_name(b"user.a.b"), Some((1, &b"a.b"[..])));
        assert_eq!(split_name(b"system.posix_acl_default"), Some((3, &b""[..])));
        assert_eq!(split_name(b"system.data"), Some((7, &b"data"[..])));
        for unknown in [&b"user."[..], b"user", b"", b"other.x"] {
            assert_eq!(split_name(unknown), None);
        }
        let full = b"security.selinux";
        let (index, rest) = split_name(full).unwrap();
        assert_eq!(full_name(index, rest).as_bytes(), full);
    }
}
