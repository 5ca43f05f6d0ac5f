//! Extent trees: header, index entries and leaf extents of 12 bytes each, in `i_block` or a block.

use crate::crc::crc32c;
use crate::layout::le32_at;
use crate::{BlockNr, BlockRun, LogicalBlock};

/// `eh_magic`.
pub const MAGIC: u16 = 0xf30a;
/// Bytes of the header and of each entry.
pub const ENTRY_SIZE: usize = 12;
/// `ee_len` above this marks an unwritten extent of `ee_len - 32768` blocks.
pub const MAX_INIT_LEN: u16 = 32768;
/// The deepest tree the kernel reads (`EXT4_MAX_EXTENT_DEPTH`).
pub const MAX_DEPTH: u16 = 5;

layout! {
    /// The header of a node.
    pub struct ExtentHeader[12] little {
        /// 0xF30A.
        0x00 magic: u16,
        /// Entries in use.
        0x02 entries: u16,
        /// Entries that fit.
        0x04 max: u16,
        /// Levels below: 0 is a leaf.
        0x06 depth: u16,
        /// Generation; unused.
        0x08 generation: u32,
    }
}

layout! {
    /// An entry of a leaf, as stored.
    pub struct RawExtent[12] little {
        /// First logical block.
        0x00 block: u32,
        /// Blocks; above 32768: unwritten.
        0x04 len: u16,
        /// Physical start, high half.
        0x06 start_hi: u16,
        /// Physical start, low half.
        0x08 start_lo: u32,
    }
}

layout! {
    /// An entry of an interior node, as stored.
    pub struct RawIndex[12] little {
        /// First logical block below.
        0x00 block: u32,
        /// Node below, low half.
        0x04 leaf_lo: u32,
        /// Node below, high half.
        0x08 leaf_hi: u16,
        /// Unused.
        0x0a unused: u16,
    }
}

/// A leaf extent with its halves joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First logical block.
    pub logical: LogicalBlock,
    /// Physical blocks.
    pub run: BlockRun,
    /// Allocated, but reads as zeroes.
    pub unwritten: bool,
}

impl From<RawExtent> for Extent {
    #[inline]
    fn from(raw: RawExtent) -> Self {
        let unwritten = raw.len > MAX_INIT_LEN;
        let len_blocks = if unwritten { raw.len - MAX_INIT_LEN } else { raw.len };
        let start = u64::from(raw.start_lo) | u64::from(raw.start_hi) << 32;
        Self {
            logical: LogicalBlock(u64::from(raw.block)),
            run: BlockRun::new(BlockNr(start), u64::from(len_blocks)),
            unwritten,
        }
    }
}

/// An index entry with its halves joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Index {
    /// First logical block below.
    pub logical: LogicalBlock,
    /// The node below.
    pub node: BlockNr,
}

impl From<RawIndex> for Index {
    #[inline]
    fn from(raw: RawIndex) -> Self {
        Self {
            logical: LogicalBlock(u64::from(raw.block)),
            node: BlockNr(u64::from(raw.leaf_lo) | u64::from(raw.leaf_hi) << 32),
        }
    }
}

/// A node: the 60 bytes of `i_block` or a whole block.
#[derive(Clone, Copy, Debug)]
pub struct ExtentNode<'a> {
    bytes: &'a [u8],
}

impl<'a> ExtentNode<'a> {
    /// Looks at `bytes` as a node; `None` if not even a header fits.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        (bytes.len() >= ENTRY_SIZE).then_some(Self { bytes })
    }

    /// The header.
    #[inline]
    pub fn header(&self) -> ExtentHeader {
        ExtentHeader::decode(self.bytes.first_chunk().unwrap_or(&[0; 12]))
    }

    /// Entries that fit behind the header (a checksum tail of 4 bytes never costs one).
    #[inline]
    pub fn capacity(&self) -> u16 {
        u16::try_from(self.bytes.len() / ENTRY_SIZE - 1).unwrap_or(u16::MAX)
    }

    /// Whether the header can be trusted: magic, `entries <= max`, and `max` within two of what
    /// fits (problem `extent-node-header-corrupt`).
    #[inline]
    pub fn header_ok(&self) -> bool {
        let header = self.header();
        header.magic == MAGIC
            && header.entries <= header.max
            && header.max <= self.capacity()
            && header.max + 2 >= self.capacity()
    }

    #[inline]
    fn entry(&self, at: u16) -> &'a [u8; 12] {
        let start = ENTRY_SIZE * (usize::from(at) + 1);
        self.bytes.get(start..).and_then(|rest| rest.first_chunk()).unwrap_or(&[0; 12])
    }

    /// Entry `at` of a leaf; zeroes past the end of the node.
    #[inline]
    pub fn extent(&self, at: u16) -> Extent {
        RawExtent::decode(self.entry(at)).into()
    }

    /// Entry `at` of an interior node; zeroes past the end of the node.
    #[inline]
    pub fn index(&self, at: u16) -> Index {
        RawIndex::decode(self.entry(at)).into()
    }

    /// Offset of the checksum tail of a node in a block: behind the last entry that fits by `max`.
    fn tail_offset(&self) -> usize {
        ENTRY_SIZE * (usize::from(self.header().max) + 1)
    }

    /// The stored checksum of a node in a block; `None` if the tail would lie outside it.
    pub fn stored_checksum(&self) -> Option<u32> {
        le32_at(self.bytes, self.tail_offset())
    }

    /// The checksum of a node in a block. `inode_seed` comes from [`crate::crc::Seed::of_inode`].
    pub fn compute_checksum(&self, inode_seed: u32) -> u32 {
        crc32c(inode_seed, self.bytes.get(..self.tail_offset()).unwrap_or(self.bytes))
    }
}
