//! Writing descriptor, revoke and commit blocks.

use super::{
    BLOCK_TAIL_SIZE, BlockHeader, CHECKSUM_CRC32, CHECKSUM_CRC32_SIZE, COMMIT_BLOCK, Checksums,
    CommitBlock, DESCRIPTOR_BLOCK, JournalFormat, MAGIC, REVOKE_BLOCK, REVOKE_HEADER_SIZE, Tag,
    TagFlags,
};
use crate::crc::crc32_be;
use crate::layout::Field;

/// Bytes of the UUID behind the first tag of a descriptor block.
const UUID_SIZE: usize = 16;

impl JournalFormat {
    /// Tags that a descriptor block of `block_len` bytes holds.
    pub fn tags_per_block(&self, block_len: usize) -> usize {
        let body = self.body_len(block_len).saturating_sub(BlockHeader::SIZE + UUID_SIZE);
        body / self.tag_size()
    }

    /// Block numbers that a revoke block of `block_len` bytes holds.
    pub fn revokes_per_block(&self, block_len: usize) -> usize {
        self.body_len(block_len).saturating_sub(REVOKE_HEADER_SIZE) / self.revoke_size()
    }

    /// Bytes of a number in a revoke block.
    fn revoke_size(&self) -> usize {
        if self.bit64 { 8 } else { 4 }
    }

    /// Prepares a data block for the journal: a first word that equals the journal's magic becomes
    /// zero (the block is "escaped"). Returns its tag, with the checksum of the block as it lies in
    /// the journal. [`JournalFormat::write_descriptor`] sets the other flags of the tag.
    pub fn prepare_data(&self, block: u64, sequence: u32, data: &mut [u8]) -> Tag {
        let escaped = data.first_chunk_mut().is_some_and(|word: &mut [u8; 4]| {
            let is_magic = *word == MAGIC.to_be_bytes();
            if is_magic {
                *word = [0; 4];
            }
            is_magic
        });
        let flags = if escaped { TagFlags::ESCAPE } else { TagFlags::empty() };
        let checksum = if self.has_block_tails() { self.compute_data(sequence, data) } else { 0 };
        Tag { block, flags, checksum }
    }

    /// The tag of a data block as [`JournalFormat::prepare_data`] makes it, whose bytes stay as they are: where the tag says
    /// that the block is escaped, its first word becomes zero in the journal.
    pub fn tag_of(&self, block: u64, sequence: u32, data: &[u8]) -> Tag {
        if data.starts_with(&MAGIC.to_be_bytes()) {
            return self.prepare_data(block, sequence, &mut data.to_vec());
        }
        let checksum = if self.has_block_tails() { self.compute_data(sequence, data) } else { 0 };
        Tag { block, flags: TagFlags::empty(), checksum }
    }

    /// Writes a descriptor block with its checksum. The first tag is followed by `uuid`, that of
    /// the journal. At most [`JournalFormat::tags_per_block`] tags fit. Returns how many were
    /// written; the caller puts the rest into the next descriptor block, behind the data blocks of
    /// this one. Without 64bit the high half of a block number is dropped.
    pub fn write_descriptor(
        &self,
        block: &mut [u8],
        sequence: u32,
        uuid: &[u8; UUID_SIZE],
        tags: &[Tag],
    ) -> usize {
        let written = tags.len().min(self.tags_per_block(block.len()));
        block.fill(0);
        put_header(block, DESCRIPTOR_BLOCK, sequence);
        let mut at = BlockHeader::SIZE;
        for (index, tag) in tags[..written].iter().enumerate() {
            let mut flags = tag.flags;
            flags.set(TagFlags::SAME_UUID, index > 0);
            flags.set(TagFlags::LAST_TAG, index + 1 == written);
            let size = self.tag_size();
            self.put_tag(&mut block[at..at + size], &Tag { flags, ..*tag });
            at += size;
            if index == 0 {
                block[at..at + UUID_SIZE].copy_from_slice(uuid);
                at += UUID_SIZE;
            }
        }
        self.put_tail(block);
        written
    }

    /// Writes one tag over exactly [`JournalFormat::tag_size`] zeroes.
    fn put_tag(&self, into: &mut [u8], tag: &Tag) {
        // Both halves as the format has them.
        let (low, high) = ((tag.block & 0xffff_ffff) as u32, (tag.block >> 32) as u32);
        low.put_be(&mut into[..4]);
        tag.flags.bits().put_be(&mut into[6..8]);
        if self.bit64 {
            high.put_be(&mut into[8..12]);
        }
        match self.checksums {
            Checksums::V3 => tag.checksum.put_be(&mut into[12..16]),
            Checksums::V2 => ((tag.checksum & 0xffff) as u16).put_be(&mut into[4..6]),
            Checksums::None | Checksums::V1 => {}
        }
    }

    /// Writes a revoke block with its checksum. At most [`JournalFormat::revokes_per_block`] numbers fit; returns how many
    /// were written. The high half of a number is dropped without 64bit.
    pub fn write_revoke(&self, block: &mut [u8], sequence: u32, revoked: &[u64]) -> usize {
        let written = revoked.len().min(self.revokes_per_block(block.len()));
        block.fill(0);
        put_header(block, REVOKE_BLOCK, sequence);
        let size = self.revoke_size();
        let end = REVOKE_HEADER_SIZE + written * size;
        // A block has at most 65,536 bytes.
        (end as u32).put_be(&mut block[BlockHeader::SIZE..REVOKE_HEADER_SIZE]);
        let places = block[REVOKE_HEADER_SIZE..end].chunks_exact_mut(size);
        for (place, number) in places.zip(revoked) {
            match self.bit64 {
                true => number.put_be(place),
                false => ((number & 0xffff_ffff) as u32).put_be(place),
            }
        }
        self.put_tail(block);
        written
    }

    /// Writes a commit block, with its checksum in versions 2 and 3. In version 1 a crc32 of the
    /// whole transaction belongs there, which [`JournalFormat::put_sum`] puts; without one, readers
    /// accept the transaction unverified.
    pub fn write_commit(&self, block: &mut [u8], sequence: u32, seconds: u64, nanoseconds: u32) {
        block.fill(0);
        let commit = CommitBlock {
            magic: MAGIC,
            blocktype: COMMIT_BLOCK,
            sequence,
            chksum_type: 0,
            chksum_size: 0,
            padding: [0; 2],
            chksum: [0; 8],
            commit_sec: seconds,
            commit_nsec: nanoseconds,
        };
        if let Some(head) = block.first_chunk_mut() {
            commit.encode_into(head);
        }
        if self.has_block_tails() {
            self.compute_commit(block).put_be(&mut block[0x10..0x14]);
        }
    }

    /// Computes the checksum of a commit block anew, in versions 2 and 3.
    pub fn seal_commit(&self, block: &mut [u8]) {
        if self.has_block_tails() && block.len() >= 0x14 {
            self.compute_commit(block).put_be(&mut block[0x10..0x14]);
        }
    }

    /// Puts the crc32 of a whole transaction into its commit block, in version 1: that of its descriptors and of the data
    /// blocks behind each, in order, as they lie in the journal ([`JournalFormat::sum_up`]). Revoke blocks are not covered.
    pub fn put_sum(&self, commit: &mut [u8], sum: u32) {
        if self.checksums == Checksums::V1 && commit.len() >= 0x14 {
            (commit[0xc], commit[0xd]) = (CHECKSUM_CRC32, CHECKSUM_CRC32_SIZE);
            sum.put_be(&mut commit[0x10..0x14]);
        }
    }

    /// Continues the crc32 of a transaction over one of its blocks, in version 1; [`JournalFormat::FIRST_SUM`] begins it.
    pub fn sum_up(&self, sum: u32, block: &[u8]) -> u32 {
        if self.checksums == Checksums::V1 { crc32_be(sum, block) } else { sum }
    }

    /// The crc32 of a transaction without blocks.
    pub const FIRST_SUM: u32 = u32::MAX;

    /// Writes the checksum at the end of a descriptor or revoke block, where the format has one.
    fn put_tail(&self, block: &mut [u8]) {
        if self.has_block_tails() {
            let (crc, body) = (self.compute_tail(block), block.len() - BLOCK_TAIL_SIZE);
            crc.put_be(&mut block[body..]);
        }
    }
}

fn put_header(block: &mut [u8], blocktype: u32, sequence: u32) {
    if let Some(head) = block.first_chunk_mut() {
        BlockHeader { magic: MAGIC, blocktype, sequence }.encode_into(head);
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::header;
    use super::*;

    const ALL: [Checksums; 4] = [Checksums::None, Checksums::V1, Checksums::V2, Checksums::V3];

    proptest! {
        #[test]
        fn what_is_written_is_read(
            numbers in vec(any::<u64>(), 0..400),
            (sequence, seed, bit64) in any::<(u32, u32, bool)>(),
            first_word in prop_oneof![Just(MAGIC), any::<u32>()],
        ) {
            for checksums in ALL {
                let format = JournalFormat { checksums, bit64, seed };
                let mask = if bit64 { u64::MAX } else { 0xffff_ffff };
                let numbers: Vec<u64> = numbers.iter().map(|number| number & mask).collect();
                let mut block = vec![7; 1024];

                let mut data = vec![1; 1024];
                data[..4].copy_from_slice(&first_word.to_be_bytes());
                let tag = format.prepare_data(5, sequence, &mut data);
                prop_assert_eq!(tag.flags.contains(TagFlags::ESCAPE), first_word == MAGIC);
                prop_assert!(header(&data).is_none() && format.data_ok(&tag, sequence, &data));

                let tags: Vec<Tag> = numbers.iter().map(|&block| Tag { block, ..tag }).collect();
                let written = format.write_descriptor(&mut block, sequence, &[9; 16], &tags);
                prop_assert_eq!(written, tags.len().min(format.tags_per_block(1024)));
                prop_assert_eq!(header(&block).map(|it| (it.blocktype, it.sequence)), Some((1, sequence)));
                prop_assert!(format.tail_ok(&block));
                if written > 0 {
                    let read: Vec<Tag> = format.tags(&block).collect();
                    prop_assert_eq!(read.len(), written);
                    for (read, tag) in read.iter().zip(&tags) {
                        prop_assert_eq!((read.block, read.checksum), (tag.block, tag.checksum));
                        prop_assert_eq!(read.flags & TagFlags::ESCAPE, tag.flags);
                    }
                }

                let written = format.write_revoke(&mut block, sequence, &numbers);
                prop_assert_eq!(written, numbers.len().min(format.revokes_per_block(1024)));
                let read: Option<Vec<u64>> = format.revoked(&block).map(Iterator::collect);
                prop_assert_eq!(read.as_deref(), Some(&numbers[..written]));
                prop_assert!(format.tail_ok(&block));

                format.write_commit(&mut block, sequence, 17, 18);
                let commit = CommitBlock::decode(block.first_chunk().unwrap());
                prop_assert_eq!((commit.commit_sec, commit.commit_nsec), (17, 18));
                prop_assert_eq!((commit.blocktype, commit.sequence), (COMMIT_BLOCK, sequence));
                prop_assert!(format.commit_ok(&block));
                block[1023] = 1;
                prop_assert!(format.commit_ok(&block) != format.has_block_tails());
                prop_assert!(format.torn_commit_ok(&block));
                block[8] ^= 1;
                prop_assert!(format.torn_commit_ok(&block) != format.has_block_tails());
            }
        }
    }

    /// As the kernel counts: `(blocksize - header - uuid - tail) / tag`.
    #[test]
    fn as_many_fit_as_the_kernel_writes() {
        let of = |checksums, bit64| JournalFormat { checksums, bit64, seed: 0 };
        assert_eq!(of(Checksums::None, false).tags_per_block(1024), (1024 - 28) / 8);
        assert_eq!(of(Checksums::V3, true).tags_per_block(4096), (4096 - 28 - 4) / 16);
        assert_eq!(of(Checksums::V3, true).revokes_per_block(1024), (1024 - 16 - 4) / 8);
        assert_eq!(of(Checksums::V1, false).revokes_per_block(1024), (1024 - 16) / 4);
    }
}
