//! Fast commits: a stream of tags in the last blocks of the journal. Little-endian, unlike jbd2.
//!
//! Source: `Documentation/filesystems/ext4/journal.rst` ("Fast commits") and the kernel's
//! `fs/ext4/fast_commit.h`.

mod write;

pub use write::{DoesNotFit, FcWriter};

use crate::crc::crc32c;
use crate::ext::extent::{Extent, RawExtent};
use crate::layout::{le16_at, le32_at};
use crate::{InodeNr, LogicalBlock};

/// Bytes of the tag and length that each value follows.
pub(crate) const TAG_SIZE: usize = 4;
/// Bits of `fc_features` that are known: none.
pub const KNOWN_FEATURES: u32 = 0;

const ADD_RANGE: u16 = 1;
const DEL_RANGE: u16 = 2;
const CREAT: u16 = 3;
const LINK: u16 = 4;
const UNLINK: u16 = 5;
const INODE: u16 = 6;
const PAD: u16 = 7;
const TAIL: u16 = 8;
const HEAD: u16 = 9;

/// A name in a directory, as LINK, UNLINK and CREAT hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FcDentry<'a> {
    /// The directory.
    pub parent: InodeNr,
    /// The inode the name leads to.
    pub inode: InodeNr,
    /// The name: 1 to 255 bytes.
    pub name: &'a [u8],
}

/// A tag with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FcTag<'a> {
    /// Maps these logical blocks of the inode to the extent's physical blocks.
    AddRange {
        /// The inode.
        inode: InodeNr,
        /// The extent.
        extent: Extent,
    },
    /// Unmaps these logical blocks of the inode.
    DelRange {
        /// The inode.
        inode: InodeNr,
        /// First logical block.
        start: LogicalBlock,
        /// Number of blocks.
        len_blocks: u32,
    },
    /// Adds a name for a new inode.
    Creat(FcDentry<'a>),
    /// Adds a name for an existing inode.
    Link(FcDentry<'a>),
    /// Removes a name.
    Unlink(FcDentry<'a>),
    /// The new content of an inode; the block map in it is not valid.
    Inode {
        /// The inode.
        inode: InodeNr,
        /// At least 128 bytes, at most the inode size.
        raw: &'a [u8],
    },
    /// Padding, without meaning.
    Pad,
    /// The end of a fast commit.
    Tail {
        /// Transaction the fast commit belongs to.
        tid: u32,
        /// crc32c of all tags since the last tail, this one included up to the checksum.
        crc: u32,
    },
    /// The start of the first fast commit.
    Head {
        /// Features that a replayer must know.
        features: u32,
        /// Transaction the fast commit belongs to.
        tid: u32,
    },
}

/// A tag and its place in the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FcRecord<'a> {
    /// The tag.
    pub tag: FcTag<'a>,
    /// The bytes that the checksum covers: tag, length and value; of a tail, up to its checksum.
    pub checked: &'a [u8],
}

impl FcRecord<'_> {
    /// The running checksum after this record. It starts at 0, and again after each tail.
    pub fn checksum(&self, crc: u32) -> u32 {
        crc32c(crc, self.checked)
    }
}

/// The tags of one block. Stops early, with [`FcRecords::is_broken`] set, at a tag that is unknown
/// or does not fit.
#[derive(Clone, Debug)]
pub struct FcRecords<'a> {
    rest: &'a [u8],
    inode_size: usize,
    broken: bool,
}

impl<'a> FcRecords<'a> {
    /// The tags of `block`, a whole block of the fast-commit area. `inode_size` is the file
    /// system's.
    pub fn new(block: &'a [u8], inode_size: u32) -> Self {
        Self { rest: block, inode_size: inode_size as usize, broken: false }
    }

    /// Whether iteration stopped at a tag that is unknown or does not fit.
    pub fn is_broken(&self) -> bool {
        self.broken
    }
}

impl<'a> Iterator for FcRecords<'a> {
    type Item = FcRecord<'a>;

    fn next(&mut self) -> Option<FcRecord<'a>> {
        if self.broken || self.rest.len() < TAG_SIZE {
            return None;
        }
        let parsed = parse(self.rest, self.inode_size);
        self.broken = parsed.is_none();
        let (record, len) = parsed?;
        self.rest = self.rest.get(len..).unwrap_or(&[]);
        Some(record)
    }
}

/// The first record of `bytes` and its length with padding.
fn parse(bytes: &[u8], inode_size: usize) -> Option<(FcRecord<'_>, usize)> {
    let (tag, len) = (le16_at(bytes, 0)?, usize::from(le16_at(bytes, 2)?));
    let end = TAG_SIZE + len;
    let value = bytes.get(TAG_SIZE..end)?;
    let inode = || le32_at(value, 0).map(InodeNr);
    let tag = match tag {
        ADD_RANGE if len == 16 => FcTag::AddRange {
            inode: inode()?,
            extent: RawExtent::decode(value.get(4..)?.first_chunk()?).into(),
        },
        DEL_RANGE if len == 12 => FcTag::DelRange {
            inode: inode()?,
            start: LogicalBlock(u64::from(le32_at(value, 4)?)),
            len_blocks: le32_at(value, 8)?,
        },
        CREAT => FcTag::Creat(dentry(value)?),
        LINK => FcTag::Link(dentry(value)?),
        UNLINK => FcTag::Unlink(dentry(value)?),
        INODE if len >= 4 + 128 && len <= 4 + inode_size => {
            FcTag::Inode { inode: inode()?, raw: value.get(4..)? }
        }
        PAD => FcTag::Pad,
        TAIL if len >= 8 => FcTag::Tail { tid: le32_at(value, 0)?, crc: le32_at(value, 4)? },
        HEAD if len == 8 => FcTag::Head { features: le32_at(value, 0)?, tid: le32_at(value, 4)? },
        _ => return None,
    };
    let checked = if matches!(tag, FcTag::Tail { .. }) { TAG_SIZE + 4 } else { end };
    Some((FcRecord { tag, checked: bytes.get(..checked)? }, end))
}

fn dentry(value: &[u8]) -> Option<FcDentry<'_>> {
    let name = value.get(8..)?;
    (1..=255).contains(&name.len()).then_some(FcDentry {
        parent: InodeNr(le32_at(value, 0)?),
        inode: InodeNr(le32_at(value, 4)?),
        name,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_and_a_tail() {
        let mut block = vec![5, 0, 9, 0, 2, 0, 0, 0, 12, 0, 0, 0, b'x'];
        block.extend([8, 0, 8, 0, 7, 0, 0, 0, 1, 2, 3, 4]);
        let records: Vec<_> = FcRecords::new(&block, 256).collect();
        let dentry = FcDentry { parent: InodeNr(2), inode: InodeNr(12), name: b"x" };
        assert_eq!(records[0].tag, FcTag::Unlink(dentry));
        assert_eq!(records[1].tag, FcTag::Tail { tid: 7, crc: 0x0403_0201 });
        assert_eq!(records[1].checked.len(), 8);
        let whole = crc32c(0, &block[..21]);
        assert_eq!(records[1].checksum(records[0].checksum(0)), whole);
    }

    proptest! {
        #[test]
        fn decoding_is_total(block in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut records = FcRecords::new(&block, 256);
            prop_assert!(records.by_ref().count() <= block.len() / TAG_SIZE);
        }

        #[test]
        fn any_tag_of_any_length_is_total(tag in 0u16..11, len in 0u16..200, byte: u8) {
            let mut block = vec![byte; 180];
            block[..2].copy_from_slice(&tag.to_le_bytes());
            block[2..4].copy_from_slice(&len.to_le_bytes());
            let mut records = FcRecords::new(&block, 128);
            let first = records.next();
            prop_assert_eq!(first.is_none(), records.is_broken());
        }
    }
}
