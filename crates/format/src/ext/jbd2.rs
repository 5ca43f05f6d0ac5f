//! The journal (jbd2): superblock, descriptor, revoke and commit blocks. All of it is big-endian.
//!
//! Source: `Documentation/filesystems/ext4/journal.rst` and the kernel's `include/linux/jbd2.h`.

mod mend;
mod write;

use bitflags::bitflags;

use crate::crc::crc32c;
use crate::layout::{Field, be};

pub use mend::uuid_of_seed;

/// `h_magic`.
pub const MAGIC: u32 = 0xc03b_3998;
/// `h_blocktype`: a descriptor block: its tags give the home blocks of the data blocks that follow.
pub const DESCRIPTOR_BLOCK: u32 = 1;
/// `h_blocktype`: a commit block, the end of a transaction.
pub const COMMIT_BLOCK: u32 = 2;
/// `h_blocktype`: a superblock of version 1, whose fields end with `errno`.
pub const SUPERBLOCK_V1: u32 = 3;
/// `h_blocktype`: a superblock of version 2.
pub const SUPERBLOCK_V2: u32 = 4;
/// `h_blocktype`: a revoke block: blocks whose older copies must not be replayed.
pub const REVOKE_BLOCK: u32 = 5;

/// The fewest blocks of a journal (`JBD2_MIN_JOURNAL_BLOCKS`), the fast-commit area not counted.
pub const MIN_JOURNAL_BLOCKS: u32 = 1024;
/// Blocks of the log for each block of the fast-commit area (mke2fs).
pub const LOG_PER_FAST_COMMIT_BLOCK: u32 = 64;
/// Blocks of the fast-commit area where the superblock says 0.
pub(crate) const DEFAULT_FAST_COMMIT_BLOCKS: u32 = 256;
/// `s_checksum_type` and `h_chksum_type`: crc32 (`crc32_be`), used by version 1.
pub const CHECKSUM_CRC32: u8 = 1;
/// `s_checksum_type`: crc32c, the only type of versions 2 and 3.
pub const CHECKSUM_CRC32C: u8 = 4;
/// `h_chksum_size` of a crc32.
pub const CHECKSUM_CRC32_SIZE: u8 = 4;
/// Bytes of the checksum at the end of a descriptor or revoke block with checksums 2 and 3.
pub(crate) const BLOCK_TAIL_SIZE: usize = 4;
/// Bytes of the header of a revoke block: the block header and `r_count`.
pub(crate) const REVOKE_HEADER_SIZE: usize = 16;

bitflags! {
    /// `s_feature_compat` of the journal.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct JournalCompat: u32 {
        /// Commit blocks hold a crc32 of their transaction (checksum version 1).
        const CHECKSUM = 0x0001;
    }
}

bitflags! {
    /// `s_feature_incompat` of the journal.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct JournalIncompat: u32 {
        /// Revoke blocks may occur.
        const REVOKE = 0x0001;
        /// Block numbers have 64 bits.
        const BIT64 = 0x0002;
        /// Commit blocks are written without waiting for their data.
        const ASYNC_COMMIT = 0x0004;
        /// Checksum version 2: crc32c everywhere, 16 bits of it in a tag.
        const CSUM_V2 = 0x0008;
        /// Checksum version 3: as 2, with 32 bits in a tag.
        const CSUM_V3 = 0x0010;
        /// The last blocks hold fast commits.
        const FAST_COMMIT = 0x0020;
    }
}

bitflags! {
    /// `t_flags` of a tag.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct TagFlags: u16 {
        /// The block began with the journal's magic, which was replaced by zeroes.
        const ESCAPE = 0x0001;
        /// No UUID follows: it is the same as that of the tag before.
        const SAME_UUID = 0x0002;
        /// The block was deleted by this transaction; unused.
        const DELETED = 0x0004;
        /// The last tag of this descriptor block.
        const LAST_TAG = 0x0008;
    }
}

layout! {
    /// The header of every journal block except data blocks.
    pub struct BlockHeader[12] big {
        /// 0xC03B3998.
        0x00 magic: u32,
        /// Kind of block.
        0x04 blocktype: u32,
        /// Transaction it belongs to.
        0x08 sequence: u32,
    }
}

layout! {
    /// The journal's superblock: the first block of its file, or the block behind the file system
    /// superblock of an external journal.
    pub struct JournalSuperblock[1024] big {
        /// 0xC03B3998.
        0x000 magic: u32,
        /// [`SUPERBLOCK_V1`] or [`SUPERBLOCK_V2`].
        0x004 blocktype: u32,
        /// Unused.
        0x008 header_sequence: u32,
        /// Bytes of a block.
        0x00c blocksize: u32,
        /// Blocks of the journal.
        0x010 maxlen: u32,
        /// First block of the log.
        0x014 first: u32,
        /// First transaction expected in the log.
        0x018 sequence: u32,
        /// First block of the log in use; 0: the journal is empty.
        0x01c start: u32,
        /// Error number the kernel left, negative.
        0x020 errno: u32,
        /// `JournalCompat` bits (this and all that follows: version 2 only).
        0x024 feature_compat: u32,
        /// `JournalIncompat` bits.
        0x028 feature_incompat: u32,
        /// Bits an old kernel may only read with; none is defined.
        0x02c feature_ro_compat: u32,
        /// UUID of the journal.
        0x030 uuid: [u8; 16],
        /// File systems that share the journal.
        0x040 nr_users: u32,
        /// Block of a dynamic superblock; unused.
        0x044 dynsuper: u32,
        /// Limit of blocks in a transaction; unused.
        0x048 max_transaction: u32,
        /// Limit of data blocks in a transaction; unused.
        0x04c max_trans_data: u32,
        /// Checksum type of versions 2 and 3: [`CHECKSUM_CRC32C`].
        0x050 checksum_type: u8,
        /// Padding.
        0x051 padding2: [u8; 3],
        /// Blocks of the fast-commit area; 0: `DEFAULT_FAST_COMMIT_BLOCKS`.
        0x054 num_fc_blks: u32,
        /// First free block of the log, written at a clean unmount.
        0x058 head: u32,
        /// Padding.
        0x05c padding: [u32; 40],
        /// crc32c of the superblock, with checksums 2 and 3.
        0x0fc checksum: u32,
        /// UUIDs of the file systems that share the journal.
        0x100 users: [u8; 768],
    }
}

layout! {
    /// A commit block. Its first checksum word is the crc32 of the transaction (version 1) or the
    /// crc32c of this block (versions 2 and 3).
    pub struct CommitBlock[60] big {
        /// 0xC03B3998.
        0x00 magic: u32,
        /// [`COMMIT_BLOCK`].
        0x04 blocktype: u32,
        /// Transaction it ends.
        0x08 sequence: u32,
        /// Version 1: [`CHECKSUM_CRC32`], or 0 for no checksum.
        0x0c chksum_type: u8,
        /// Version 1: bytes of the checksum.
        0x0d chksum_size: u8,
        /// Padding.
        0x0e padding: [u8; 2],
        /// Checksums; only the first is used.
        0x10 chksum: [u32; 8],
        /// When it was committed, seconds since 1970.
        0x30 commit_sec: u64,
        /// When it was committed, nanoseconds.
        0x38 commit_nsec: u32,
    }
}

/// Whether a fast-commit area of this size leaves a journal of `blocks` blocks enough for transactions.
pub fn leaves_room(blocks: u32, area: u32) -> bool {
    blocks.checked_sub(area).is_some_and(|rest| rest >= MIN_JOURNAL_BLOCKS)
}

/// Blocks of the fast-commit area in a journal of `blocks` blocks that has none: what mke2fs gives a
/// journal of that length, or less if that leaves too few for transactions; `None` without room for one.
pub fn fast_commit_area(blocks: u32) -> Option<u32> {
    let room = blocks.checked_sub(MIN_JOURNAL_BLOCKS).filter(|&room| room > 0)?;
    Some((blocks / (LOG_PER_FAST_COMMIT_BLOCK + 1)).clamp(1, room))
}

/// The checksums that the blocks of a journal carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// None.
    None,
    /// Version 1: a crc32 of the whole transaction in its commit block.
    V1,
    /// Version 2: crc32c of every block; 16 bits in each tag.
    V2,
    /// Version 3: crc32c of every block; 32 bits in each tag.
    V3,
}

/// The format of the blocks of one journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalFormat {
    /// Checksum version.
    pub checksums: Checksums,
    /// Block numbers have 64 bits.
    pub bit64: bool,
    /// Start of the crc32c of versions 2 and 3: the crc32c of the journal's UUID.
    pub seed: u32,
}

impl JournalSuperblock {
    /// `s_feature_compat`, unknown bits kept; none in version 1.
    pub fn compat(&self) -> JournalCompat {
        JournalCompat::from_bits_retain(if self.is_v2() { self.feature_compat } else { 0 })
    }

    /// `s_feature_incompat`, unknown bits kept; none in version 1.
    pub fn incompat(&self) -> JournalIncompat {
        JournalIncompat::from_bits_retain(if self.is_v2() { self.feature_incompat } else { 0 })
    }

    /// Whether the fields behind `errno` are valid.
    pub fn is_v2(&self) -> bool {
        self.blocktype == SUPERBLOCK_V2
    }

    /// Blocks of the fast-commit area at the end; 0 without the feature.
    pub fn fast_commit_blocks(&self) -> u32 {
        let in_use = self.incompat().contains(JournalIncompat::FAST_COMMIT);
        if in_use { self.stored_fast_commit_blocks() } else { 0 }
    }

    /// Blocks of the fast-commit area that the journal has with the feature.
    pub fn stored_fast_commit_blocks(&self) -> u32 {
        if self.num_fc_blks == 0 { DEFAULT_FAST_COMMIT_BLOCKS } else { self.num_fc_blks }
    }

    /// The format of the other blocks. If both checksum features are set, version 3 wins.
    pub fn format(&self) -> JournalFormat {
        let incompat = self.incompat();
        let checksums = if incompat.contains(JournalIncompat::CSUM_V3) {
            Checksums::V3
        } else if incompat.contains(JournalIncompat::CSUM_V2) {
            Checksums::V2
        } else if self.compat().contains(JournalCompat::CHECKSUM) {
            Checksums::V1
        } else {
            Checksums::None
        };
        JournalFormat {
            checksums,
            bit64: incompat.contains(JournalIncompat::BIT64),
            seed: crc32c(u32::MAX, &self.uuid),
        }
    }

    /// The checksum `bytes` should carry, its own field counted as zero.
    pub fn compute_checksum(bytes: &[u8; 1024]) -> u32 {
        let crc = crc32c(u32::MAX, &bytes[..0xfc]);
        crc32c(crc32c(crc, &[0; 4]), &bytes[0x100..])
    }

    /// Encodes it, with the checksum where one counts: for others with checksums 2 and 3, for Floe with asynchronous commits as well,
    /// so that a wrong bit is found. Elsewhere the field is zero.
    pub fn encode_sealed(&mut self, bytes: &mut [u8; 1024]) {
        let is_async = self.incompat().contains(JournalIncompat::ASYNC_COMMIT);
        let counts = self.format().has_block_tails() || is_async;
        self.checksum = 0;
        self.encode_into(bytes);
        if counts {
            self.checksum = Self::compute_checksum(bytes);
            self.encode_into(bytes);
        }
    }

    /// Whether the stored checksum fits. It counts only with checksums 2 and 3.
    pub fn checksum_ok(bytes: &[u8; 1024]) -> bool {
        Self::compute_checksum(bytes) == be::<u32, 0xfc, 1024>(bytes)
    }
}

/// A tag of a descriptor block: the home of one data block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Block of the file system.
    pub block: u64,
    /// Flags, unknown ones kept.
    pub flags: TagFlags,
    /// Checksum as stored: 16 bits in version 2, 32 in version 3, otherwise meaningless.
    pub checksum: u32,
}

impl JournalFormat {
    /// Whether descriptor and revoke blocks end with a crc32c.
    #[inline]
    pub fn has_block_tails(&self) -> bool {
        matches!(self.checksums, Checksums::V2 | Checksums::V3)
    }

    /// Bytes of a tag, without the UUID that may follow: 8, 10, 12, 14 or 16.
    pub(crate) fn tag_size(&self) -> usize {
        match (self.checksums, self.bit64) {
            (Checksums::V3, _) => 16,
            (Checksums::V2, true) => 14,
            (Checksums::V2, false) => 10,
            (_, true) => 12,
            (_, false) => 8,
        }
    }

    /// Bytes of a block before its tail.
    fn body_len(&self, block_len: usize) -> usize {
        block_len.saturating_sub(if self.has_block_tails() { BLOCK_TAIL_SIZE } else { 0 })
    }

    /// The tags of a descriptor block, up to the last one or the end of the block.
    pub fn tags<'a>(&self, block: &'a [u8]) -> Tags<'a> {
        let body = block.get(..self.body_len(block.len())).unwrap_or(&[]);
        Tags { rest: body.get(BlockHeader::SIZE..).unwrap_or(&[]), format: *self, done: false }
    }

    /// The block numbers of a revoke block; `None` if `r_count` passes its end (the kernel aborts
    /// recovery then).
    pub fn revoked<'a>(&self, block: &'a [u8]) -> Option<impl Iterator<Item = u64> + use<'a>> {
        let count = usize::try_from(be32_at(block, BlockHeader::SIZE)?).ok()?;
        if count > self.body_len(block.len()) {
            return None;
        }
        let wide = self.bit64;
        let records = block.get(REVOKE_HEADER_SIZE..count).unwrap_or(&[]);
        let size = if wide { 8 } else { 4 };
        Some(records.chunks_exact(size).map(move |record| {
            if wide { u64::get_be(record) } else { u64::from(u32::get_be(record)) }
        }))
    }

    /// The crc32c that the tail of a descriptor or revoke block should hold.
    pub(crate) fn compute_tail(&self, block: &[u8]) -> u32 {
        let body = block.len().saturating_sub(BLOCK_TAIL_SIZE);
        crc32c(crc32c(self.seed, &block[..body]), &[0; BLOCK_TAIL_SIZE])
    }

    /// Whether the tail of a descriptor or revoke block fits; true where there is none.
    pub fn tail_ok(&self, block: &[u8]) -> bool {
        !self.has_block_tails()
            || be32_at(block, block.len().saturating_sub(BLOCK_TAIL_SIZE))
                == Some(self.compute_tail(block))
    }

    /// The crc32c that `chksum[0]` of a commit block should hold (versions 2 and 3).
    pub(crate) fn compute_commit(&self, block: &[u8]) -> u32 {
        let crc = crc32c(self.seed, block.get(..0x10).unwrap_or(block));
        crc32c(crc32c(crc, &[0; 4]), block.get(0x14..).unwrap_or(&[]))
    }

    /// Whether the crc32c of a commit block fits; true for versions without one.
    pub fn commit_ok(&self, block: &[u8]) -> bool {
        !self.has_block_tails() || be32_at(block, 0x10) == Some(self.compute_commit(block))
    }

    /// Whether a commit block fits if all behind its fields is taken for zeroes, which it was written with: only that was torn, and
    /// the transaction counts all the same (`jbd2_commit_block_csum_verify_partial` of the kernel).
    pub fn torn_commit_ok(&self, block: &[u8]) -> bool {
        let mut whole = vec![0; block.len()];
        let fields = block.len().min(CommitBlock::SIZE);
        whole[..fields].copy_from_slice(&block[..fields]);
        self.commit_ok(&whole)
    }

    /// The crc32c of a data block of transaction `sequence`, as it lies in the journal (still
    /// escaped). Version 2 stores its low 16 bits.
    pub(crate) fn compute_data(&self, sequence: u32, data: &[u8]) -> u32 {
        let crc = crc32c(crc32c(self.seed, &sequence.to_be_bytes()), data);
        if self.checksums == Checksums::V2 { crc & 0xffff } else { crc }
    }

    /// Whether a data block fits its tag; true for versions without checksums in tags.
    pub fn data_ok(&self, tag: &Tag, sequence: u32, data: &[u8]) -> bool {
        !self.has_block_tails() || tag.checksum == self.compute_data(sequence, data)
    }
}

/// Iterator over the tags of a descriptor block.
#[derive(Clone, Debug)]
pub struct Tags<'a> {
    rest: &'a [u8],
    format: JournalFormat,
    done: bool,
}

impl Iterator for Tags<'_> {
    type Item = Tag;

    fn next(&mut self) -> Option<Tag> {
        let size = self.format.tag_size();
        if self.done || self.rest.len() < size {
            return None;
        }
        let (bytes, rest) = self.rest.split_at(size);
        // In version 3 the flags are 32 bits wide; their low half lies where the 16 bits lie in
        // the other versions.
        let flags = TagFlags::from_bits_retain(be16_at(bytes, 6)?);
        let high = if self.format.bit64 { be32_at(bytes, 8)? } else { 0 };
        let checksum = match self.format.checksums {
            Checksums::V3 => be32_at(bytes, 12)?,
            Checksums::V2 => u32::from(be16_at(bytes, 4)?),
            Checksums::None | Checksums::V1 => 0,
        };
        let uuid_len = if flags.contains(TagFlags::SAME_UUID) { 0 } else { 16 };
        self.rest = rest.get(uuid_len..).unwrap_or(&[]);
        self.done = flags.contains(TagFlags::LAST_TAG);
        Some(Tag { block: u64::from(be32_at(bytes, 0)?) | u64::from(high) << 32, flags, checksum })
    }
}

/// The header of a journal block, or `None` if it lacks the magic (data, or never written).
pub fn header(block: &[u8]) -> Option<BlockHeader> {
    let header = BlockHeader::decode(block.first_chunk()?);
    (header.magic == MAGIC).then_some(header)
}

fn be16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at.checked_add(2)?).map(u16::get_be)
}

pub(crate) fn be32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?).map(u32::get_be)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn format(checksums: Checksums, bit64: bool) -> JournalFormat {
        JournalFormat { checksums, bit64, seed: 7 }
    }

    #[test]
    fn tag_sizes_are_those_of_the_kernel() {
        let sizes = [
            (Checksums::None, false, 8),
            (Checksums::V1, true, 12),
            (Checksums::V2, false, 10),
            (Checksums::V2, true, 14),
            (Checksums::V3, false, 16),
            (Checksums::V3, true, 16),
        ];
        for (checksums, bit64, size) in sizes {
            assert_eq!(format(checksums, bit64).tag_size(), size);
        }
    }

    #[test]
    fn a_fast_commit_area_is_that_of_mke2fs_where_it_fits() {
        assert_eq!(fast_commit_area(4096 + 64), Some(64));
        assert_eq!(fast_commit_area(1024 + 16), Some(16));
        assert_eq!(fast_commit_area(1030), Some(6));
        assert_eq!(fast_commit_area(1024), None);
        assert_eq!(fast_commit_area(7), None);
        assert!(leaves_room(1030, 6) && !leaves_room(1030, 7) && !leaves_room(5, u32::MAX));
    }

    #[test]
    fn a_uuid_behind_the_first_tag_is_skipped() {
        let mut block = vec![0u8; 1024];
        block[12..20].copy_from_slice(&[0, 0, 0, 5, 0, 0, 0, 0]);
        block[36..44].copy_from_slice(&[0, 0, 0, 6, 0, 0, 0, 0x0b]);
        let tags: Vec<Tag> = format(Checksums::None, false).tags(&block).collect();
        assert_eq!(tags.iter().map(|tag| tag.block).collect::<Vec<_>>(), [5, 6]);
        let flags = TagFlags::ESCAPE | TagFlags::SAME_UUID | TagFlags::LAST_TAG;
        assert_eq!(tags[1].flags, flags);
    }

    #[test]
    fn a_revoke_count_past_the_end_is_refused() {
        let mut block = vec![0u8; 1024];
        block[12..16].copy_from_slice(&1021u32.to_be_bytes());
        assert!(format(Checksums::V3, true).revoked(&block).is_none());
        assert_eq!(format(Checksums::V1, true).revoked(&block).map(Iterator::count), Some(125));
    }

    proptest! {
        #[test]
        fn decoding_is_total(block in proptest::collection::vec(any::<u8>(), 0..300), bit64: bool) {
            for checksums in [Checksums::None, Checksums::V1, Checksums::V2, Checksums::V3] {
                let format = format(checksums, bit64);
                prop_assert!(format.tags(&block).count() <= block.len() / 8);
                let _ = format.revoked(&block).map(Iterator::count);
                let _ = (format.tail_ok(&block), format.commit_ok(&block), header(&block));
            }
        }

        #[test]
        fn a_superblock_encodes_to_the_bytes_it_came_from(seed: u64) {
            let mut bytes = [0u8; 1024];
            let mut state = seed | 1;
            for byte in &mut bytes {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (state >> 56) as u8;
            }
            let mut again = [0u8; 1024];
            JournalSuperblock::decode(&bytes).encode_into(&mut again);
            prop_assert_eq!(bytes, again);
        }
    }
}
