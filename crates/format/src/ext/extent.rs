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

impl Extent {
    /// The entry as stored; `None` if the logical start needs more than 32 bits, the physical one
    /// more than 48, or the length is not 1 to 32768 blocks (32767 unwritten).
    pub fn to_raw(&self) -> Option<RawExtent> {
        let len = u16::try_from(self.run.len_blocks).ok()?;
        let most = if self.unwritten { MAX_INIT_LEN - 1 } else { MAX_INIT_LEN };
        if len == 0 || len > most {
            return None;
        }
        let (start_hi, start_lo) = halves(self.run.start)?;
        let block = u32::try_from(self.logical.0).ok()?;
        let len = if self.unwritten { len + MAX_INIT_LEN } else { len };
        Some(RawExtent { block, len, start_hi, start_lo })
    }
}

/// A block number as its upper 16 and lower 32 bits; `None` above 48 bits.
fn halves(block: BlockNr) -> Option<(u16, u32)> {
    Some((u16::try_from(block.0 >> 32).ok()?, (block.0 & 0xffff_ffff) as u32))
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

impl Index {
    /// The entry as stored; `None` if the logical start needs more than 32 bits or the node's block
    /// more than 48.
    pub fn to_raw(&self) -> Option<RawIndex> {
        let (leaf_hi, leaf_lo) = halves(self.node)?;
        let block = u32::try_from(self.logical.0).ok()?;
        Some(RawIndex { block, leaf_lo, leaf_hi, unused: 0 })
    }
}

/// Writes the checksum behind the entries of a node in a block. `None`, and nothing written, if
/// its header's `max` leaves no room for it.
pub fn write_checksum(inode_seed: u32, block: &mut [u8]) -> Option<()> {
    let node = ExtentNode::new(block)?;
    let (at, checksum) = (node.tail_offset(), node.compute_checksum(inode_seed));
    block.get_mut(at..at + 4)?.copy_from_slice(&checksum.to_le_bytes());
    Some(())
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

    /// Bytes that the checksum of a node in a block covers, from the start of the block.
    pub(crate) fn checksummed_bytes(&self) -> usize {
        self.tail_offset().min(self.bytes.len())
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_survive(logical: u32, len in 1u16..=32768, start in 0u64..1 << 48, unwritten: bool) {
            let len = if unwritten { len.min(32767) } else { len };
            let run = BlockRun::new(BlockNr(start), u64::from(len));
            let logical = LogicalBlock(u64::from(logical));
            let extent = Extent { logical, run, unwritten };
            prop_assert_eq!(Extent::from(extent.to_raw().unwrap()), extent);
            let index = Index { logical, node: BlockNr(start) };
            prop_assert_eq!(Index::from(index.to_raw().unwrap()), index);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..1100)) {
            let Some(node) = ExtentNode::new(&bytes) else { return Ok(()) };
            let _ = (node.header_ok(), node.stored_checksum(), node.compute_checksum(1));
            let _ = (node.extent(0), node.index(u16::MAX), node.capacity());
        }
    }

    #[test]
    fn what_cannot_be_stored_is_refused() {
        let extent = |logical, start, len, unwritten| Extent {
            logical: LogicalBlock(logical),
            run: BlockRun::new(BlockNr(start), len),
            unwritten,
        };
        assert!(extent(0, 1, 32768, false).to_raw().is_some());
        assert!(extent(0, 1, 32769, false).to_raw().is_none());
        assert!(extent(0, 1, 32768, true).to_raw().is_none());
        assert!(extent(0, 1, 0, false).to_raw().is_none());
        assert!(extent(1 << 32, 1, 1, false).to_raw().is_none());
        assert!(extent(0, 1 << 48, 1, false).to_raw().is_none());
    }

    #[test]
    fn a_written_checksum_fits() {
        let mut block = vec![0; 1024];
        let header = ExtentHeader { magic: MAGIC, entries: 0, max: 84, depth: 0, generation: 0 };
        header.encode_into(block.first_chunk_mut().unwrap());
        write_checksum(5, &mut block).unwrap();
        let node = ExtentNode::new(&block).unwrap();
        assert!(node.header_ok());
        assert_eq!(node.stored_checksum(), Some(node.compute_checksum(5)));
        assert!(write_checksum(5, &mut block[..64]).is_none());
    }
}
