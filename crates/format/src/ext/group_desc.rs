//! The group descriptor (`struct ext4_group_desc`): 32 bytes, or 64 and more with 64bit.

use crate::crc::{Seed, crc16, crc32c};
use crate::ext::superblock::Superblock;
use crate::features::RoCompat;
use crate::{BlockNr, GroupNr};

/// `bg_flags`: the inode table and bitmap were never written.
pub const FLAG_INODE_UNINIT: u16 = 0x0001;
/// `bg_flags`: the block bitmap was never written.
pub const FLAG_BLOCK_UNINIT: u16 = 0x0002;
/// `bg_flags`: the inode table is zeroed.
pub const FLAG_INODE_ZEROED: u16 = 0x0004;

layout! {
    /// The first 32 bytes, which every descriptor has.
    pub struct GroupDescLow[32] little {
        /// Block bitmap, low half.
        0x00 block_bitmap: u32,
        /// Inode bitmap, low half.
        0x04 inode_bitmap: u32,
        /// First block of the inode table, low half.
        0x08 inode_table: u32,
        /// Free clusters, low half.
        0x0c free_blocks_count: u16,
        /// Free inodes, low half.
        0x0e free_inodes_count: u16,
        /// Directories, low half.
        0x10 used_dirs_count: u16,
        /// `FLAG_*` bits.
        0x12 flags: u16,
        /// Snapshot exclude bitmap, low half; unused.
        0x14 exclude_bitmap: u32,
        /// crc32c of the block bitmap, low half.
        0x18 block_bitmap_csum: u16,
        /// crc32c of the inode bitmap, low half.
        0x1a inode_bitmap_csum: u16,
        /// Inodes at the end of the table that were never used, low half.
        0x1c itable_unused: u16,
        /// crc16, or the low half of the crc32c.
        0x1e checksum: u16,
    }
}

layout! {
    /// Bytes 32 to 64, which descriptors have with 64bit.
    pub struct GroupDescHigh[32] little {
        /// Block bitmap, high half.
        0x00 block_bitmap: u32,
        /// Inode bitmap, high half.
        0x04 inode_bitmap: u32,
        /// First block of the inode table, high half.
        0x08 inode_table: u32,
        /// Free clusters, high half.
        0x0c free_blocks_count: u16,
        /// Free inodes, high half.
        0x0e free_inodes_count: u16,
        /// Directories, high half.
        0x10 used_dirs_count: u16,
        /// Inodes never used, high half.
        0x12 itable_unused: u16,
        /// Snapshot exclude bitmap, high half; unused.
        0x14 exclude_bitmap: u32,
        /// crc32c of the block bitmap, high half.
        0x18 block_bitmap_csum: u16,
        /// crc32c of the inode bitmap, high half.
        0x1a inode_bitmap_csum: u16,
        /// Reserved.
        0x1c reserved: u32,
    }
}

/// A descriptor with its halves joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct GroupDesc {
    /// Block of the block bitmap.
    pub block_bitmap: BlockNr,
    /// Block of the inode bitmap.
    pub inode_bitmap: BlockNr,
    /// First block of the inode table.
    pub inode_table: BlockNr,
    /// Free clusters.
    pub free_blocks_count: u32,
    /// Free inodes.
    pub free_inodes_count: u32,
    /// Directories.
    pub used_dirs_count: u32,
    /// `FLAG_*` bits.
    pub flags: u16,
    /// crc32c of the block bitmap; only its low half exists in a descriptor of 32 bytes.
    pub block_bitmap_csum: u32,
    /// crc32c of the inode bitmap; only its low half exists in a descriptor of 32 bytes.
    pub inode_bitmap_csum: u32,
    /// Inodes at the end of the table that were never used.
    pub itable_unused: u32,
    /// crc16, or the low half of the crc32c.
    pub checksum: u16,
}

/// How the descriptors of one file system are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescChecksum {
    /// Not at all.
    None,
    /// By a crc16 that starts with the UUID (gdt_csum).
    Crc16([u8; 16]),
    /// By a crc32c (metadata_csum).
    Crc32c(Seed),
}

impl DescChecksum {
    /// The protection that the features of a superblock require.
    pub fn of(superblock: &Superblock) -> Self {
        let features = superblock.features();
        if features.metadata_csum() {
            Self::Crc32c(superblock.seed())
        } else if features.ro_compat.contains(RoCompat::GDT_CSUM) {
            Self::Crc16(superblock.uuid)
        } else {
            Self::None
        }
    }

    /// The checksum that a descriptor of `raw` bytes should carry; `None` where there is none.
    pub fn compute(self, group: GroupNr, raw: &[u8]) -> Option<u16> {
        match self {
            Self::None => None,
            Self::Crc16(uuid) => Some(GroupDesc::crc16(&uuid, group, raw)),
            Self::Crc32c(seed) => Some(GroupDesc::crc32c(seed, group, raw)),
        }
    }
}

impl GroupDesc {
    /// Decodes a whole descriptor of 32 bytes or more; fewer bytes decode to zeroes.
    pub fn of(raw: &[u8]) -> Self {
        let lo = raw.first_chunk().unwrap_or(&[0; 32]);
        let hi = raw.get(32..).and_then(|rest| rest.first_chunk());
        Self::decode(lo, hi)
    }

    /// Writes every field over a whole descriptor of `s_desc_size` bytes, then the checksum, which
    /// is also stored in `self`. Without descriptor checksums the checksum field keeps its value.
    /// Bytes that no field covers stay; with fewer than 32 bytes, nothing is written.
    pub fn seal(&mut self, raw: &mut [u8], group: GroupNr, checksum: DescChecksum) {
        if let Some((lo, hi)) = raw.split_first_chunk_mut::<32>() {
            self.encode_into(lo, hi.first_chunk_mut());
        }
        // The checksum covers the other fields as encoded.
        if let Some(sum) = checksum.compute(group, raw)
            && let Some(field) = raw.get_mut(0x1e..0x20)
        {
            self.checksum = sum;
            field.copy_from_slice(&sum.to_le_bytes());
        }
    }

    /// Decodes a descriptor. `hi` is bytes 32..64 of a wide one.
    pub fn decode(lo: &[u8; 32], hi: Option<&[u8; 32]>) -> Self {
        let lo = GroupDescLow::decode(lo);
        let hi = GroupDescHigh::decode(hi.unwrap_or(&[0; 32]));
        let wide = |lo: u32, hi: u32| BlockNr(u64::from(lo) | u64::from(hi) << 32);
        let join = |lo: u16, hi: u16| u32::from(lo) | u32::from(hi) << 16;
        Self {
            block_bitmap: wide(lo.block_bitmap, hi.block_bitmap),
            inode_bitmap: wide(lo.inode_bitmap, hi.inode_bitmap),
            inode_table: wide(lo.inode_table, hi.inode_table),
            free_blocks_count: join(lo.free_blocks_count, hi.free_blocks_count),
            free_inodes_count: join(lo.free_inodes_count, hi.free_inodes_count),
            used_dirs_count: join(lo.used_dirs_count, hi.used_dirs_count),
            flags: lo.flags,
            block_bitmap_csum: join(lo.block_bitmap_csum, hi.block_bitmap_csum),
            inode_bitmap_csum: join(lo.inode_bitmap_csum, hi.inode_bitmap_csum),
            itable_unused: join(lo.itable_unused, hi.itable_unused),
            checksum: lo.checksum,
        }
    }

    /// Writes every field over the old bytes; high halves are dropped where `hi` is `None`.
    pub fn encode_into(&self, lo: &mut [u8; 32], hi: Option<&mut [u8; 32]>) {
        let low16 = |value: u32| (value & 0xffff) as u16;
        let high16 = |value: u32| (value >> 16) as u16;
        let low32 = |block: BlockNr| (block.0 & 0xffff_ffff) as u32;
        let high32 = |block: BlockNr| (block.0 >> 32) as u32;
        let mut low = GroupDescLow::decode(lo);
        low.block_bitmap = low32(self.block_bitmap);
        low.inode_bitmap = low32(self.inode_bitmap);
        low.inode_table = low32(self.inode_table);
        low.free_blocks_count = low16(self.free_blocks_count);
        low.free_inodes_count = low16(self.free_inodes_count);
        low.used_dirs_count = low16(self.used_dirs_count);
        low.flags = self.flags;
        low.block_bitmap_csum = low16(self.block_bitmap_csum);
        low.inode_bitmap_csum = low16(self.inode_bitmap_csum);
        low.itable_unused = low16(self.itable_unused);
        low.checksum = self.checksum;
        low.encode_into(lo);
        if let Some(hi) = hi {
            let mut high = GroupDescHigh::decode(hi);
            high.block_bitmap = high32(self.block_bitmap);
            high.inode_bitmap = high32(self.inode_bitmap);
            high.inode_table = high32(self.inode_table);
            high.free_blocks_count = high16(self.free_blocks_count);
            high.free_inodes_count = high16(self.free_inodes_count);
            high.used_dirs_count = high16(self.used_dirs_count);
            high.block_bitmap_csum = high16(self.block_bitmap_csum);
            high.inode_bitmap_csum = high16(self.inode_bitmap_csum);
            high.itable_unused = high16(self.itable_unused);
            high.encode_into(hi);
        }
    }

    /// Whether the inode table and bitmap were never written.
    #[inline]
    pub fn inode_uninit(&self) -> bool {
        self.flags & FLAG_INODE_UNINIT != 0
    }

    /// Whether the block bitmap was never written.
    #[inline]
    pub fn block_uninit(&self) -> bool {
        self.flags & FLAG_BLOCK_UNINIT != 0
    }

    /// crc32c (low half) of a descriptor with metadata_csum. `bytes` is the whole descriptor, at
    /// least 32 bytes; its checksum field counts as zero.
    pub fn crc32c(seed: Seed, group: GroupNr, bytes: &[u8]) -> u16 {
        let mut crc = crc32c(seed.0, &group.0.to_le_bytes());
        crc = crc32c(crc, bytes.get(..0x1e).unwrap_or(bytes));
        crc = crc32c(crc, &[0, 0]);
        crc = crc32c(crc, bytes.get(0x20..).unwrap_or(&[]));
        (crc & 0xffff) as u16
    }

    /// crc16 of a descriptor with gdt_csum. `bytes` is the whole descriptor, at least 32 bytes; its
    /// checksum field is skipped. Descriptors of more than 32 bytes count whole with 64bit only.
    pub fn crc16(uuid: &[u8; 16], group: GroupNr, bytes: &[u8]) -> u16 {
        let mut crc = crc16(u16::MAX, uuid);
        crc = crc16(crc, &group.0.to_le_bytes());
        crc = crc16(crc, bytes.get(..0x1e).unwrap_or(bytes));
        crc16(crc, bytes.get(0x20..).unwrap_or(&[]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn descriptors_survive(bytes: [u8; 32], high: [u8; 32]) {
            let desc = GroupDesc::decode(&bytes, Some(&high));
            let (mut low_again, mut high_again) = (bytes, high);
            desc.encode_into(&mut low_again, Some(&mut high_again));
            prop_assert_eq!((low_again, high_again), (bytes, high));
            let (mut low_new, mut high_new) = ([0; 32], [0; 32]);
            desc.encode_into(&mut low_new, Some(&mut high_new));
            prop_assert_eq!(GroupDesc::decode(&low_new, Some(&high_new)), desc);
            let short = GroupDesc::decode(&bytes, None);
            prop_assert!(short.block_bitmap.0 <= u64::from(u32::MAX) && short.itable_unused < 65536);
        }

        #[test]
        fn a_sealed_descriptor_has_its_checksum(bytes: [u8; 64], uuid: [u8; 16]) {
            for size in [32, 64] {
                let (raw, group) = (&bytes[..size], GroupNr(7));
                let mut desc = GroupDesc::of(raw);
                let mut plain = raw.to_vec();
                desc.seal(&mut plain, group, DescChecksum::None);
                prop_assert_eq!(&plain, raw);
                for checksum in [DescChecksum::Crc16(uuid), DescChecksum::Crc32c(Seed(5))] {
                    let mut sealed = raw.to_vec();
                    desc.seal(&mut sealed, group, checksum);
                    prop_assert_eq!(GroupDesc::of(&sealed), desc);
                    prop_assert_eq!(checksum.compute(group, &sealed), Some(desc.checksum));
                    let differs = (0..size).filter(|&at| sealed[at] != raw[at]);
                    prop_assert!(differs.into_iter().all(|at| at == 0x1e || at == 0x1f));
                }
            }
        }
    }
}
