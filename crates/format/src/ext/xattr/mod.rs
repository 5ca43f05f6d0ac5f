//! Extended attributes: behind the extra fields of an inode, in a block of their own that inodes
//! may share, and with values in inodes of their own.

pub mod acl;
pub mod acl_mode;
pub mod acl_order;
pub mod acl_valid;
mod mend;
mod salvage;
pub mod value_inode;
mod write;

pub use mend::{MendedList, flipped_byte, mend_list, mend_name};
pub use salvage::{salvage_block, salvage_inode};
pub use write::{NewValue, NewXattr, NoRoom, needed_bytes, split_name, write_block, write_inode};

use crate::crc::{Seed, crc32c};
use crate::{BlockNr, InodeNr};

/// `h_magic`, in front of attributes in an inode and in a block.
pub const MAGIC: u32 = 0xea02_0000;
/// Bytes of the magic in front of in-inode attributes.
pub const IBODY_HEADER_SIZE: usize = 4;
/// Bytes of an entry before its name.
pub const ENTRY_SIZE: usize = 16;
/// Byte of an entry at which the number of the inode with its value stands.
pub const VALUE_INUM_AT: usize = 4;
/// Byte of an entry at which the size of its value stands.
pub const VALUE_SIZE_AT: usize = 8;
/// Largest value in bytes that e2fsck accepts (`EXT2_XATTR_SIZE_MAX`).
pub const MAX_VALUE_SIZE: u32 = 1 << 24;

/// `e_name_index` of `user.`.
pub const INDEX_USER: u8 = 1;
/// `e_name_index` of the access ACL; the name is empty.
pub const INDEX_ACL_ACCESS: u8 = 2;
/// `e_name_index` of the default ACL; the name is empty.
pub const INDEX_ACL_DEFAULT: u8 = 3;
/// `e_name_index` of `trusted.`.
pub(crate) const INDEX_TRUSTED: u8 = 4;
/// `e_name_index` of `lustre.`.
pub(crate) const INDEX_LUSTRE: u8 = 5;
/// `e_name_index` of `security.`.
pub(crate) const INDEX_SECURITY: u8 = 6;
/// `e_name_index` of `system.`, where inline data lives.
pub const INDEX_SYSTEM: u8 = 7;
/// `e_name_index` of the rich ACL.
pub(crate) const INDEX_RICHACL: u8 = 8;
/// `e_name_index` of encryption contexts.
pub const INDEX_ENCRYPTION: u8 = 9;
/// `e_name_index` of `gnu.` (Hurd).
pub(crate) const INDEX_HURD: u8 = 10;

layout! {
    /// `struct ext4_xattr_header`, in front of the entries of a block.
    pub struct XattrHeader[32] little {
        /// 0xEA020000.
        0x00 magic: u32,
        /// Inodes that use the block.
        0x04 refcount: u32,
        /// Blocks: 1.
        0x08 blocks: u32,
        /// Hash of all entries; 0 where an entry has none.
        0x0c hash: u32,
        /// crc32c of the block, with its number.
        0x10 checksum: u32,
        /// Reserved.
        0x14 reserved: [u32; 3],
    }
}

layout! {
    /// `struct ext4_xattr_entry`; the name follows, padded to 4 bytes.
    pub struct RawXattrEntry[16] little {
        /// Bytes of the name.
        0x00 name_len: u8,
        /// The prefix of the name: `INDEX_*`.
        0x01 name_index: u8,
        /// Where the value lies: in a block from its start, in an inode from the first entry.
        0x02 value_offs: u16,
        /// Inode that holds the value; 0: it lies here.
        0x04 value_inum: u32,
        /// Bytes of the value.
        0x08 value_size: u32,
        /// Hash of name and value.
        0x0c hash: u32,
    }
}

/// `len` rounded up to the attributes' alignment of 4 bytes.
#[inline]
pub const fn padded(len: usize) -> usize {
    len.saturating_add(3) & !3
}

/// The prefix that a name index stands for, or the whole name where `e_name` is empty; `None` for
/// an unknown index.
pub const fn prefix(name_index: u8) -> Option<&'static str> {
    Some(match name_index {
        0 => "",
        INDEX_USER => "user.",
        INDEX_ACL_ACCESS => acl::ACCESS_NAME,
        INDEX_ACL_DEFAULT => acl::DEFAULT_NAME,
        INDEX_TRUSTED => "trusted.",
        INDEX_LUSTRE => "lustre.",
        INDEX_SECURITY => "security.",
        INDEX_SYSTEM => "system.",
        INDEX_RICHACL => "system.richacl",
        INDEX_ENCRYPTION => "encryption.",
        INDEX_HURD => "gnu.",
        _ => return None,
    })
}

/// The name of an attribute for people: prefix and name, with bytes that are not UTF-8 replaced. An
/// unknown prefix is printed as its number.
pub fn full_name(name_index: u8, name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    match prefix(name_index) {
        Some(prefix) => format!("{prefix}{name}"),
        None => format!("{name_index}.{name}"),
    }
}

/// Attributes of one inode or one block.
#[derive(Clone, Copy, Debug)]
pub struct XattrArea<'a> {
    /// The bytes that value offsets are relative to.
    bytes: &'a [u8],
    /// Where the first entry starts.
    first: usize,
}

/// An entry that lies inside its area with its name. The place of its value is not judged; see
/// [`XattrArea::value`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XattrEntry<'a> {
    /// How many entries come before it.
    pub index: u32,
    /// Byte of the area at which it starts.
    pub offset: usize,
    /// The prefix of the name: `INDEX_*`.
    pub name_index: u8,
    /// The name without its prefix.
    pub name: &'a [u8],
    /// Offset of the value, if it lies in the same area.
    pub value_offs: u16,
    /// Inode that holds the value, if one does.
    pub value_inode: Option<InodeNr>,
    /// Bytes of the value.
    pub value_size: u32,
    /// Hash of name and value, as stored; 0 in an inode means none.
    pub hash: u32,
}

/// Which entry of an area is broken, and why. An index equal to the number of entries means the
/// end marker behind the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XattrFault {
    /// How many entries come before it.
    pub index: u32,
    /// Byte of the area at which it starts.
    pub offset: usize,
    /// Its fault.
    pub kind: XattrFaultKind,
}

/// The fault of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrFaultKind {
    /// The entry, its name or the end marker leaves the area (problems `xattr-ibody-overlap`,
    /// `xattr-block-overlap`, `xattr-ibody-name-too-long`).
    EntryPastEnd,
    /// The value leaves the area or is too big (problems `xattr-value-size-bad`,
    /// `xattr-block-value-bad`).
    ValuePastEnd,
    /// The value overlaps the entries, the header or another value (problems
    /// `xattr-ibody-overlap`, `xattr-block-overlap`).
    Overlap,
}

impl XattrFaultKind {
    /// The fault in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::EntryPastEnd => "the entry leaves the area",
            Self::ValuePastEnd => "the value leaves the area, or is too big",
            Self::Overlap => "the value overlaps something else",
        }
    }
}

impl<'a> XattrArea<'a> {
    /// The attributes of an inode. `area` is [`crate::ext::inode::Inode::xattr_area`]; `None` if
    /// it does not start with the magic: there are no attributes then.
    #[inline]
    pub fn of_inode(area: &'a [u8]) -> Option<Self> {
        let (magic, bytes) = area.split_first_chunk::<IBODY_HEADER_SIZE>()?;
        (u32::from_le_bytes(*magic) == MAGIC).then_some(Self { bytes, first: 0 })
    }

    /// The attributes of a block, whatever its header says; `None` if not even a header fits.
    #[inline]
    pub fn of_block(block: &'a [u8]) -> Option<Self> {
        (block.len() >= XattrHeader::SIZE)
            .then_some(Self { bytes: block, first: XattrHeader::SIZE })
    }

    /// The entries in order, until the end marker, or one fault and then nothing. An area that is
    /// full to its end without a marker ends there; [`XattrArea::check`] calls that a fault.
    #[inline]
    pub fn entries(&self) -> XattrEntries<'a> {
        XattrEntries { bytes: self.bytes, at: self.first, index: 0 }
    }

    /// The entry with a name, if the entries before it can be followed.
    pub fn find(&self, name_index: u8, name: &[u8]) -> Option<XattrEntry<'a>> {
        let same = |entry: &XattrEntry<'_>| entry.name_index == name_index && entry.name == name;
        self.entries().map_while(Result::ok).find(same)
    }

    /// The value of an entry, if it lies in the area: empty if its size is 0. `None` if it leaves
    /// the area or lies in an inode.
    #[inline]
    pub fn value(&self, entry: &XattrEntry<'_>) -> Option<&'a [u8]> {
        if entry.value_inode.is_some() {
            return None;
        }
        if entry.value_size == 0 {
            return Some(&[]);
        }
        let start = usize::from(entry.value_offs);
        self.bytes.get(start..start.checked_add(entry.value_size as usize)?)
    }

    /// The bytes that an entry's hash covers: its value up to the next multiple of 4, including the
    /// bytes of padding.
    pub fn hashed_value(&self, entry: &XattrEntry<'_>) -> Option<&'a [u8]> {
        let value = self.value(entry)?;
        let start = usize::from(entry.value_offs);
        let end = start.checked_add(value.len().next_multiple_of(4))?;
        Some(self.bytes.get(start..end).filter(|_| !value.is_empty()).unwrap_or(value))
    }

    /// Whether the value of an entry that names a value inode lies in this area after all, so that
    /// only `e_value_inum` is wrong: with that field 0 the whole area is valid and the hash fits
    /// the bytes here. In an inode body the hash may be absent, which it never is for a value in an
    /// inode of its own; then a non-zero `e_value_offs` is the evidence, because it is 0 for all
    /// values in inodes.
    pub fn has_value_here(&self, entry: &XattrEntry<'_>) -> bool {
        let mut bytes = self.bytes.to_vec();
        let number = entry.offset.saturating_add(VALUE_INUM_AT);
        let Some(field) = bytes.get_mut(number..).and_then(|rest| rest.first_chunk_mut()) else {
            return false;
        };
        *field = [0u8; 4];
        let area = XattrArea { bytes: &bytes, first: self.first };
        if entry.value_inode.is_none() || area.check().is_err() {
            return false;
        }
        let here = XattrEntry { value_inode: None, ..*entry };
        let in_inode = self.first == 0;
        if in_inode && entry.hash == 0 {
            return entry.value_offs != 0 && entry.value_size != 0;
        }
        let is_hash = |chars| {
            let value = area.hashed_value(&here);
            value.is_some_and(|value| entry_hash(entry.name, value, chars) == entry.hash)
        };
        is_hash(Chars::Unsigned) || is_hash(Chars::Signed)
    }

    /// Checks the layout: every entry, the end marker and every value must lie inside the area and
    /// overlap nothing else. Returns the number of entries, or the first fault. Hashes, names and
    /// value inodes are not judged.
    pub fn check(&self) -> Result<u32, XattrFault> {
        let mut values: Vec<(usize, usize, u32, usize)> = Vec::new();
        let mut entries = self.entries();
        let mut end = self.first;
        for entry in entries.by_ref() {
            let entry = entry?;
            end = entry.offset + ENTRY_SIZE + padded(entry.name.len());
            let fault = |kind| XattrFault { index: entry.index, offset: entry.offset, kind };
            if entry.value_inode.is_some() || entry.value_size == 0 {
                continue;
            }
            let start = usize::from(entry.value_offs);
            let stop = start.saturating_add(padded(entry.value_size as usize));
            if entry.value_size > MAX_VALUE_SIZE || stop > self.bytes.len() {
                return Err(fault(XattrFaultKind::ValuePastEnd));
            }
            values.push((start, stop, entry.index, entry.offset));
        }
        let count = entries.index;
        // Nothing else may use the four bytes of the end marker.
        let marker = XattrFault { index: count, offset: end, kind: XattrFaultKind::EntryPastEnd };
        let end = end.saturating_add(4);
        if end > self.bytes.len() {
            return Err(marker);
        }
        values.sort_unstable();
        let mut free_from = end;
        for (start, stop, index, offset) in values {
            if start < free_from {
                return Err(XattrFault { index, offset, kind: XattrFaultKind::Overlap });
            }
            free_from = stop;
        }
        Ok(count)
    }
}

/// Entries of an area. See [`XattrArea::entries`].
#[derive(Clone, Debug)]
pub struct XattrEntries<'a> {
    bytes: &'a [u8],
    at: usize,
    index: u32,
}

impl<'a> Iterator for XattrEntries<'a> {
    type Item = Result<XattrEntry<'a>, XattrFault>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.at..)?;
        if *rest.first_chunk()? == [0u8; 4] {
            return None;
        }
        let (index, offset) = (self.index, self.at);
        let whole = rest.split_first_chunk::<ENTRY_SIZE>().and_then(|(head, names)| {
            let raw = RawXattrEntry::decode(head);
            let name = names.get(..usize::from(raw.name_len))?;
            // The padding belongs to the entry.
            let len = ENTRY_SIZE + padded(name.len());
            (len <= rest.len()).then_some((raw, name, len))
        });
        let Some((raw, name, len)) = whole else {
            self.at = self.bytes.len();
            return Some(Err(XattrFault { index, offset, kind: XattrFaultKind::EntryPastEnd }));
        };
        self.at += len;
        self.index += 1;
        Some(Ok(XattrEntry {
            index,
            offset,
            name_index: raw.name_index,
            name,
            value_offs: raw.value_offs,
            value_inode: (raw.value_inum != 0).then_some(InodeNr(raw.value_inum)),
            value_size: raw.value_size,
            hash: raw.hash,
        }))
    }
}

impl std::iter::FusedIterator for XattrEntries<'_> {}

/// How the characters of a name are widened before they are hashed. Linux wrote both, depending on
/// the machine's `char`; a reader accepts both (problem `xattr-hash-bad`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chars {
    /// As unsigned: what current kernels write.
    Unsigned,
    /// Sign-extended.
    Signed,
}

fn name_hash(name: &[u8], chars: Chars) -> u32 {
    name.iter().fold(0u32, |hash, &byte| {
        let wide = match chars {
            Chars::Unsigned => u32::from(byte),
            Chars::Signed => i32::from(byte.cast_signed()).cast_unsigned(),
        };
        hash.rotate_left(5) ^ wide
    })
}

/// The hash of an entry whose value lies beside it (`ext4_xattr_hash_entry`): the name byte by
/// byte, then the value in 32-bit words, the last one padded with zeroes.
pub fn entry_hash(name: &[u8], value: &[u8], chars: Chars) -> u32 {
    value.chunks(4).fold(name_hash(name, chars), |hash, chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        hash.rotate_left(16) ^ u32::from_le_bytes(word)
    })
}

/// The hash of an entry whose value lies in an inode: the value's hash counts as its only word.
pub fn entry_hash_of_inode(name: &[u8], value_hash: u32, chars: Chars) -> u32 {
    entry_hash(name, &value_hash.to_le_bytes(), chars)
}

/// Whether an entry has the hash that the hash of a value gives it, with characters read as signed or unsigned.
pub fn has_hash_of_inode(entry: &XattrEntry<'_>, value_hash: u32) -> bool {
    let is = |chars| entry.hash == entry_hash_of_inode(entry.name, value_hash, chars);
    is(Chars::Unsigned) || is(Chars::Signed)
}

/// The hash of a block (`h_hash`) from the hashes of its entries in order; 0 if one of them is 0.
pub fn block_hash(entry_hashes: impl IntoIterator<Item = u32>) -> u32 {
    let mut hash = 0u32;
    for entry_hash in entry_hashes {
        if entry_hash == 0 {
            return 0;
        }
        hash = hash.rotate_left(16) ^ entry_hash;
    }
    hash
}

/// The checksum that the header of an attribute block should carry with metadata_csum: crc32c of
/// the block's number and of the block with its checksum field as zero.
pub fn block_checksum(seed: Seed, block_nr: BlockNr, block: &[u8]) -> u32 {
    let crc = crc32c(seed.0, &block_nr.0.to_le_bytes());
    let crc = crc32c(crc, block.get(..0x10).unwrap_or(block));
    let crc = crc32c(crc, &[0; 4]);
    crc32c(crc, block.get(0x14..).unwrap_or(&[]))
}

/// Writes the checksum of an attribute block; blocks too short for a header are left alone.
pub fn write_block_checksum(seed: Seed, block_nr: BlockNr, block: &mut [u8]) {
    let checksum = block_checksum(seed, block_nr, block);
    if let Some(field) = block.get_mut(0x10..0x14) {
        field.copy_from_slice(&checksum.to_le_bytes());
    }
}

/// Whether the checksum of an attribute block fits; false if it is too short for a header.
pub fn block_checksum_ok(seed: Seed, block_nr: BlockNr, block: &[u8]) -> bool {
    block.first_chunk().is_some_and(|header| {
        XattrHeader::decode(header).checksum == block_checksum(seed, block_nr, block)
    })
}

#[cfg(test)]
mod tests;
