//! Hash-indexed directories: the root in block 0, interior nodes, and their checksum tails.
//!
//! Both hide behind directory entries that an old reader skips: the root behind `.` and a `..` that
//! spans the rest of the block, a node behind one unused entry that spans the block. Leaves are
//! linear blocks ([`crate::ext::dirent`]).

use crate::crc::crc32c;
use crate::ext::dirent::{DirEntryHeader, MIN_REC_LEN, decode_rec_len, write_entry};
use crate::layout::{le16_at, le32_at};
use crate::{InodeNr, LogicalBlock};

/// Bytes of an index entry, and of the limit and count word with its first block.
pub const ENTRY_SIZE: usize = 8;
/// Bytes of the checksum tail behind the last entry that fits.
pub const TAIL_SIZE: usize = 8;
/// Byte of the root at which [`DxRootInfo`] lies.
pub(crate) const ROOT_INFO_OFFSET: usize = 24;
/// `info_length` of every known index.
pub const ROOT_INFO_LENGTH: u8 = 8;
/// Byte of an interior node at which limit and count lie.
pub const NODE_COUNT_OFFSET: usize = 8;
/// The bits of an index entry's block word that hold the block number.
pub(crate) const BLOCK_MASK: u32 = 0x0fff_ffff;
/// `unused_flags` bit 0: an incompatible index (problem `htree-incompat-flag`).
pub const FLAG_INCOMPAT: u8 = 0x01;
/// Low bit of an index entry's hash: entries with this hash started in the block before.
pub const HASH_CONTINUES: u32 = 1;

layout! {
    /// `struct dx_root_info`, at byte 24 of the root.
    pub struct DxRootInfo[8] little {
        /// 0.
        0x00 reserved_zero: u32,
        /// How names are hashed: see [`HashVersion`].
        0x04 hash_version: u8,
        /// 8.
        0x05 info_length: u8,
        /// Levels of interior nodes below the root.
        0x06 indirect_levels: u8,
        /// Flags; see [`FLAG_INCOMPAT`].
        0x07 unused_flags: u8,
    }
}

layout! {
    /// `struct dx_countlimit` with the block of the first entry, whose hash counts as 0.
    pub struct DxCountLimit[8] little {
        /// Entries that fit, this one included.
        0x00 limit: u16,
        /// Entries in use, this one included.
        0x02 count: u16,
        /// Block of the first entry; the upper 4 bits do not count.
        0x04 block: u32,
    }
}

layout! {
    /// `struct dx_entry`, as stored.
    pub struct RawDxEntry[8] little {
        /// Smallest hash in the block; the low bit is [`HASH_CONTINUES`].
        0x00 hash: u32,
        /// Block of the directory; the upper 4 bits do not count.
        0x04 block: u32,
    }
}

layout! {
    /// `struct dx_tail`, behind the last entry that fits.
    pub struct DxTail[8] little {
        /// Part of the checksum; 0.
        0x00 reserved: u32,
        /// crc32c of the block up to the last entry in use, and of this tail.
        0x04 checksum: u32,
    }
}

/// How names are hashed, with the signedness of characters made explicit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum HashVersion {
    /// The oldest hash, signed characters.
    Legacy = 0,
    /// Half-MD4, signed characters: the default.
    HalfMd4 = 1,
    /// TEA, signed characters.
    Tea = 2,
    /// The oldest hash, unsigned characters.
    LegacyUnsigned = 3,
    /// Half-MD4, unsigned characters.
    HalfMd4Unsigned = 4,
    /// TEA, unsigned characters.
    TeaUnsigned = 5,
    /// SipHash of the casefolded name under a key (encrypted and casefolded directories).
    SipHash = 6,
}

impl HashVersion {
    /// The version with a number from 0 to 6.
    pub const fn of(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Legacy,
            1 => Self::HalfMd4,
            2 => Self::Tea,
            3 => Self::LegacyUnsigned,
            4 => Self::HalfMd4Unsigned,
            5 => Self::TeaUnsigned,
            6 => Self::SipHash,
            _ => return None,
        })
    }

    /// The version that a root's `hash_version` stands for: 0 to 2 become their unsigned forms
    /// where `s_flags` says unsigned ([`crate::ext::superblock::FLAG_UNSIGNED_HASH`]). A root must
    /// not name the unsigned forms itself, so 3 to 5 are `None` (problem
    /// `htree-hash-version-unknown`).
    pub const fn of_root(stored: u8, unsigned: bool) -> Option<Self> {
        match stored {
            0..=2 => Self::of(if unsigned { stored + 3 } else { stored }),
            6 => Some(Self::SipHash),
            _ => None,
        }
    }

    /// Name as `tune2fs` and `debugfs` print it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::HalfMd4 => "half_md4",
            Self::Tea => "tea",
            Self::LegacyUnsigned => "legacy_unsigned",
            Self::HalfMd4Unsigned => "half_md4_unsigned",
            Self::TeaUnsigned => "tea_unsigned",
            Self::SipHash => "siphash",
        }
    }
}

/// An index entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DxEntry {
    /// Smallest hash in the block, low bit included; 0 for the first entry of a block.
    pub hash: u32,
    /// The block of the directory.
    pub block: LogicalBlock,
}

/// The kind of an index block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DxKind {
    /// The root, in block 0.
    Root,
    /// An interior node.
    Node,
}

/// An index block: where its entries start, and its limit and count.
#[derive(Clone, Copy, Debug)]
pub struct DxBlock<'a> {
    bytes: &'a [u8],
    count_offset: usize,
    limit: u16,
    count: u16,
}

impl<'a> DxBlock<'a> {
    /// Looks at a block as a root; `None` if limit and count would lie outside the block. The
    /// entries start behind `info_length` bytes, whatever that is.
    pub fn root(bytes: &'a [u8]) -> Option<Self> {
        let info = Self::root_info(bytes)?;
        Self::at(bytes, ROOT_INFO_OFFSET + usize::from(info.info_length))
    }

    /// Looks at a block as an interior node; `None` if it is shorter than 16 bytes.
    pub fn node(bytes: &'a [u8]) -> Option<Self> {
        Self::at(bytes, NODE_COUNT_OFFSET)
    }

    /// Tells an index block by its directory entries (as `get_dx_countlimit`): a node if one unused
    /// entry without a name spans it; a root if `.` has 12 bytes, the next entry spans the rest,
    /// and the root information has its zero and its length of 8. `None`: a leaf.
    pub fn detect(bytes: &'a [u8]) -> Option<(DxKind, Self)> {
        let first = DirEntryHeader::decode(bytes.first_chunk()?);
        let rec_len = decode_rec_len(first.rec_len, bytes.len()) as usize;
        if rec_len == bytes.len() && first.name_len == 0 && first.file_type == 0 {
            return Some((DxKind::Node, Self::node(bytes)?));
        }
        let second = DirEntryHeader::decode(bytes.get(12..)?.first_chunk()?);
        let second_len = decode_rec_len(second.rec_len, bytes.len()) as usize;
        let info = Self::root_info(bytes)?;
        let is_root = rec_len == 12
            && second_len + 12 == bytes.len()
            && info.reserved_zero == 0
            && info.info_length == ROOT_INFO_LENGTH;
        if is_root { Some((DxKind::Root, Self::root(bytes)?)) } else { None }
    }

    /// The information of a root; `None` if the block is too short for it.
    pub fn root_info(bytes: &[u8]) -> Option<DxRootInfo> {
        bytes.get(ROOT_INFO_OFFSET..)?.first_chunk().map(DxRootInfo::decode)
    }

    fn at(bytes: &'a [u8], count_offset: usize) -> Option<Self> {
        let head = DxCountLimit::decode(bytes.get(count_offset..)?.first_chunk()?);
        Some(Self { bytes, count_offset, limit: head.limit, count: head.count })
    }

    /// Byte of the block at which limit and count lie: 32 in a root, 8 in a node.
    pub fn count_offset(&self) -> usize {
        self.count_offset
    }

    /// `limit` as stored.
    pub fn limit(&self) -> u16 {
        self.limit
    }

    /// `count` as stored.
    pub fn count(&self) -> u16 {
        self.count
    }

    /// The limit that this block must have (problem `htree-limit-wrong`): the entries that fit,
    /// less one for the checksum tail with metadata_csum.
    pub fn expected_limit(&self, metadata_csum: bool) -> u16 {
        expected_limit(self.bytes.len(), self.count_offset, metadata_csum)
    }

    /// The entries in use, cut to what fits into the block; the hash of the first is 0.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = DxEntry> + use<'a> {
        let area = self.bytes.get(self.count_offset..).unwrap_or(&[]);
        area.chunks_exact(ENTRY_SIZE).take(usize::from(self.count)).enumerate().map(
            |(index, bytes)| {
                let hash = if index == 0 { 0 } else { le32_at(bytes, 0).unwrap_or(0) };
                let block = le32_at(bytes, 4).unwrap_or(0) & BLOCK_MASK;
                DxEntry { hash, block: LogicalBlock(u64::from(block)) }
            },
        )
    }

    /// Byte at which the checksum tail lies; `None` if `limit` or `count` leave no room for it, in
    /// which case the checksum counts as wrong.
    fn tail_offset(&self) -> Option<usize> {
        let end_of = |entries: u16| self.count_offset + usize::from(entries) * ENTRY_SIZE;
        let most = (self.bytes.len() - self.count_offset) / ENTRY_SIZE;
        let fits =
            usize::from(self.count) <= most && end_of(self.limit) + TAIL_SIZE <= self.bytes.len();
        fits.then(|| end_of(self.limit))
    }

    /// The tail; `None` if there is no room for it.
    pub fn tail(&self) -> Option<DxTail> {
        self.bytes.get(self.tail_offset()?..)?.first_chunk().map(DxTail::decode)
    }

    /// Bytes that the checksum covers: those up to the last entry in use, and the tail.
    pub(crate) fn checksummed_bytes(&self) -> usize {
        self.count_offset + usize::from(self.count) * ENTRY_SIZE + TAIL_SIZE
    }

    /// The checksum that the tail should carry: crc32c of the bytes up to the last entry in use,
    /// the tail's reserved word, and zero for the checksum itself. `None` without room for a tail.
    pub fn compute_checksum(&self, inode_seed: u32) -> Option<u32> {
        let tail = self.tail_offset()?;
        let used = self.count_offset + usize::from(self.count) * ENTRY_SIZE;
        let crc = crc32c(inode_seed, self.bytes.get(..used)?);
        let crc = crc32c(crc, self.bytes.get(tail..tail + 4)?);
        Some(crc32c(crc, &[0; 4]))
    }

    /// Whether there is a tail and its checksum fits.
    pub fn checksum_ok(&self, inode_seed: u32) -> bool {
        self.tail().is_some_and(|tail| Some(tail.checksum) == self.compute_checksum(inode_seed))
    }
}

/// The entries that fit into an index block of `block_size` bytes behind `count_offset`, less one
/// for the tail with metadata_csum (`dx_root_limit`, `dx_node_limit`).
pub fn expected_limit(block_size: usize, count_offset: usize, metadata_csum: bool) -> u16 {
    let tail = if metadata_csum { TAIL_SIZE } else { 0 };
    let entries = block_size.saturating_sub(count_offset).saturating_sub(tail) / ENTRY_SIZE;
    u16::try_from(entries).unwrap_or(u16::MAX)
}

/// Writes the checksum into the tail of an index block whose other bytes are final. `None`, and
/// nothing written, if the block is no index block or has no room for a tail.
pub fn write_checksum(inode_seed: u32, bytes: &mut [u8]) -> Option<()> {
    let (_, block) = DxBlock::detect(bytes)?;
    let checksum = block.compute_checksum(inode_seed)?;
    let at = block.tail_offset()? + 4;
    bytes.get_mut(at..at + 4)?.copy_from_slice(&checksum.to_le_bytes());
    Some(())
}

/// Byte of the root at which limit and count lie.
pub const ROOT_COUNT_OFFSET: usize = ROOT_INFO_OFFSET + ROOT_INFO_LENGTH as usize;

/// The fields of an index root besides its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootHead {
    /// The inode that `.` names.
    pub dir: InodeNr,
    /// The inode that `..` names.
    pub parent: InodeNr,
    /// The type byte of both.
    pub file_type: u8,
    /// How names are hashed, as stored: 0 to 2 or 6.
    pub hash_version: u8,
    /// Levels of interior nodes below the root.
    pub indirect_levels: u8,
}

/// Fills a block as the root of an index; with `metadata_csum` the limit leaves room for the
/// checksum, which [`write_checksum`] sets. `None` if the entries do not fit; the content of the
/// block is then unspecified.
pub fn write_root(
    bytes: &mut [u8],
    head: &RootHead,
    entries: &[DxEntry],
    metadata_csum: bool,
) -> Option<()> {
    let size = bytes.len();
    bytes.fill(0);
    let rest = u32::try_from(size).ok()?.checked_sub(MIN_REC_LEN)?;
    write_entry(bytes, head.dir, MIN_REC_LEN, b".", head.file_type, size)?;
    let second = bytes.get_mut(MIN_REC_LEN as usize..)?;
    write_entry(second, head.parent, rest, b"..", head.file_type, size)?;
    DxRootInfo {
        reserved_zero: 0,
        hash_version: head.hash_version,
        info_length: ROOT_INFO_LENGTH,
        indirect_levels: head.indirect_levels,
        unused_flags: 0,
    }
    .encode_into(bytes.get_mut(ROOT_INFO_OFFSET..)?.first_chunk_mut()?);
    write_entries(bytes, ROOT_COUNT_OFFSET, entries, metadata_csum)
}

/// Fills a block as an interior node of an index; otherwise as [`write_root`].
pub fn write_node(bytes: &mut [u8], entries: &[DxEntry], metadata_csum: bool) -> Option<()> {
    let size = bytes.len();
    bytes.fill(0);
    write_entry(bytes, InodeNr(0), u32::try_from(size).ok()?, b"", 0, size)?;
    write_entries(bytes, NODE_COUNT_OFFSET, entries, metadata_csum)
}

/// Writes limit, count and entries. Limit and count occupy the place of the first entry's hash.
fn write_entries(
    bytes: &mut [u8],
    count_offset: usize,
    entries: &[DxEntry],
    metadata_csum: bool,
) -> Option<()> {
    let limit = expected_limit(bytes.len(), count_offset, metadata_csum);
    let count = u16::try_from(entries.len()).ok().filter(|count| *count <= limit)?;
    let slots = bytes.get_mut(count_offset..)?.chunks_exact_mut(ENTRY_SIZE);
    for (at, (slot, entry)) in slots.zip(entries).enumerate() {
        let block = u32::try_from(entry.block.0).ok().filter(|block| *block <= BLOCK_MASK)?;
        let slot = slot.first_chunk_mut()?;
        if at == 0 {
            DxCountLimit { limit, count, block }.encode_into(slot);
        } else {
            RawDxEntry { hash: entry.hash, block }.encode_into(slot);
        }
    }
    (count > 0).then_some(())
}

/// Whether a block that is no root looks like an interior node to e2fsck's second pass: an unused
/// entry without a name spans it, and `limit` is exactly what fits.
pub fn looks_like_node(bytes: &[u8], metadata_csum: bool) -> bool {
    let Some(header) = bytes.first_chunk().map(DirEntryHeader::decode) else { return false };
    header.inode == 0
        && decode_rec_len(header.rec_len, bytes.len()) as usize == bytes.len()
        && header.name_len == 0
        && le16_at(bytes, NODE_COUNT_OFFSET)
            == Some(expected_limit(bytes.len(), NODE_COUNT_OFFSET, metadata_csum))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::InodeNr;
    use crate::ext::dirent::write_entry;
    use proptest::prelude::*;

    fn root(block_size: usize) -> Vec<u8> {
        let mut block = vec![0; block_size];
        write_entry(&mut block, InodeNr(2), 12, b".", 2, block_size).unwrap();
        let rest = (block_size - 12) as u32;
        write_entry(&mut block[12..], InodeNr(2), rest, b"..", 2, block_size).unwrap();
        block[24 + 4] = 1;
        block[24 + 5] = ROOT_INFO_LENGTH;
        let limit = expected_limit(block_size, 32, true);
        DxCountLimit { limit, count: 2, block: 1 }
            .encode_into(block[32..].first_chunk_mut().unwrap());
        RawDxEntry { hash: 0x8000_0000, block: 0xf000_0002 }
            .encode_into(block[40..].first_chunk_mut().unwrap());
        block
    }

    #[test]
    fn a_root_is_detected_read_and_summed() {
        for block_size in [1024, 4096, 65536] {
            let mut block = root(block_size);
            write_checksum(9, &mut block).unwrap();
            let (kind, index) = DxBlock::detect(&block).unwrap();
            assert_eq!(kind, DxKind::Root);
            assert_eq!(index.limit(), index.expected_limit(true));
            assert!(index.checksum_ok(9));
            assert!(!index.checksum_ok(10));
            let entries: Vec<_> = index.entries().collect();
            assert_eq!(entries[0], DxEntry { hash: 0, block: LogicalBlock(1) });
            assert_eq!(entries[1], DxEntry { hash: 0x8000_0000, block: LogicalBlock(2) });
        }
    }

    #[test]
    fn index_blocks_come_back() {
        let entry = |at: u32| DxEntry {
            hash: if at == 0 { 0 } else { at * 2 + (at & 1) },
            block: LogicalBlock(u64::from(at) + 1),
        };
        for (block_size, csum) in
            [(1024, true), (1024, false), (2048, true), (4096, true), (65536, true), (65536, false)]
        {
            let head = RootHead {
                dir: InodeNr(12),
                parent: InodeNr(2),
                file_type: 2,
                hash_version: 1,
                indirect_levels: 1,
            };
            for node in [false, true] {
                let count_offset = if node { NODE_COUNT_OFFSET } else { ROOT_COUNT_OFFSET };
                let limit = expected_limit(block_size, count_offset, csum);
                let write = |block: &mut [u8], entries: &[DxEntry]| {
                    if node {
                        write_node(block, entries, csum)
                    } else {
                        write_root(block, &head, entries, csum)
                    }
                };
                for count in [1, 2, u32::from(limit)] {
                    let entries: Vec<_> = (0..count).map(entry).collect();
                    let mut block = vec![0x55; block_size];
                    write(&mut block, &entries).unwrap();
                    if csum {
                        write_checksum(5, &mut block).unwrap();
                    }
                    let (kind, index) = DxBlock::detect(&block).unwrap();
                    assert_eq!(kind, if node { DxKind::Node } else { DxKind::Root });
                    assert_eq!((index.limit(), index.count()), (limit, count as u16));
                    assert_eq!(index.entries().collect::<Vec<_>>(), entries);
                    assert_eq!(index.checksum_ok(5), csum);
                    assert_eq!(looks_like_node(&block, csum), node);
                }
                let too_many: Vec<_> = (0..=u32::from(limit)).map(entry).collect();
                assert_eq!(write(&mut vec![0; block_size], &too_many), None);
                assert_eq!(write(&mut vec![0; block_size], &[]), None);
                assert_eq!(write(&mut [0; 12], &too_many[..1]), None);
            }
            let mut block = vec![0; block_size];
            write_root(&mut block, &head, &[entry(0)], csum).unwrap();
            assert_eq!(DxBlock::root_info(&block).unwrap().indirect_levels, 1);
            let names = crate::ext::dirent::DirCursor::new(&block).map(Result::unwrap);
            let names: Vec<_> = names.map(|entry| (entry.inode, entry.name)).collect();
            assert_eq!(names, [(InodeNr(12), &b"."[..]), (InodeNr(2), b"..")]);
        }
    }

    #[test]
    fn limits_of_a_4k_block() {
        assert_eq!(expected_limit(4096, 32, false), 508);
        assert_eq!(expected_limit(4096, 32, true), 507);
        assert_eq!(expected_limit(4096, 8, false), 511);
        assert_eq!(expected_limit(4096, 8, true), 510);
    }

    #[test]
    fn versions_of_a_root() {
        assert_eq!(HashVersion::of_root(1, false), Some(HashVersion::HalfMd4));
        assert_eq!(HashVersion::of_root(1, true), Some(HashVersion::HalfMd4Unsigned));
        assert_eq!(HashVersion::of_root(6, true), Some(HashVersion::SipHash));
        assert_eq!(HashVersion::of_root(4, false), None);
        assert_eq!(HashVersion::of_root(7, false), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..1100)) {
            for block in [DxBlock::root(&bytes), DxBlock::node(&bytes)].into_iter().flatten() {
                let _ = (block.checksum_ok(0), block.entries().count(), block.tail());
                let _ = block.expected_limit(true);
            }
            let _ = (DxBlock::detect(&bytes).is_some(), looks_like_node(&bytes, true));
        }
    }
}
