//! The record of a lot, in bytes 64 to 128 of each of its group descriptors.
//!
//! Descriptors of native file systems have 128 to 1024 bytes, so that those of a lot, the 32 to 4 groups of a flexible
//! group, fill a block of 4 KiB that they share with no other. Linux and e2fsck cover the bytes behind
//! the first 64 with the descriptor's checksum and otherwise leave them alone.

use super::identity::Identity;
use crate::ext::superblock::Superblock;
use crate::{Geometry, GroupNr};

/// Bytes of a descriptor in lots of 4 groups, the smallest; larger lots have smaller ones.
pub const MOST_DESC_SIZE: u32 = 1024;
/// Bytes of a descriptor that a record fits, with the 64 of ext4.
pub const LEAST_DESC_SIZE: u32 = 128;
/// Byte of the descriptor at which the record begins.
pub const OFFSET: usize = 64;
/// Byte of the descriptor that holds the cube's number, too (`bg_reserved`).
pub(crate) const CUBE_OFFSET: usize = 0x3c;
/// `magic`: "Flot" in the order of the bytes.
pub const MAGIC: u32 = u32::from_le_bytes(*b"Flot");
/// `version` of the record that this crate describes.
pub const VERSION: u16 = 1;

layout! {
    /// The record of a lot. All groups of the lot have the same record.
    pub struct LotRecord[64] little {
        /// [`MAGIC`].
        0x00 magic: u32,
        /// [`VERSION`].
        0x04 version: u16,
        /// Reserved; 0.
        0x06 state: u16,
        /// Number of the lot: that of its flexible group.
        0x08 lot: u32,
        /// The cube that owns the lot; 0: the root cube.
        0x0c cube: u32,
        /// First block of the metadata region.
        0x10 region_start: u64,
        /// Blocks of the region; 0 if the lot has none.
        0x18 region_blocks: u32,
        /// Inode of the reservation file, whose unwritten extents are the free blocks of the region
        /// while the file system is sealed; 0 if there is no region.
        0x1c region_inode: u32,
        /// Number of the seal that wrote the record.
        0x20 epoch: u64,
        /// Blocks at the beginning of the region behind which none is in use while it is sealed.
        0x28 region_used: u32,
        /// Inode of the cube's journal; 0: the file system's own.
        0x2c journal_inode: u32,
        /// Block of the orphan file that lists the orphans of the cube; 0: any.
        0x30 orphan_block: u64,
        /// Reserved; 0.
        0x38 reserved: [u32; 2],
    }
}

/// Whether descriptors of this size may be those of lots.
pub const fn is_desc_size(bytes: u32) -> bool {
    bytes.is_power_of_two() && bytes >= LEAST_DESC_SIZE && bytes <= MOST_DESC_SIZE
}

/// Groups of a lot: those whose descriptors fill a block. 0 in a file system that is not native.
pub fn lot_groups(superblock: &Superblock) -> u32 {
    let bytes = u32::from(superblock.desc_size);
    let block_size = 1024u32.checked_shl(superblock.log_block_size).unwrap_or(0);
    let is_native = is_desc_size(bytes) && Identity::of(superblock).is_some();
    if is_native { block_size / bytes } else { 0 }
}

/// Blocks of the region of a lot, where that of a whole one has `region_blocks`: a shorter lot has its share of them.
pub fn region_share(geometry: &Geometry, lot: u32, region_blocks: u32) -> u32 {
    let per_lot = geometry.descs_per_block();
    let first = lot.saturating_mul(per_lot);
    let groups = first..first.saturating_add(per_lot).min(geometry.group_count);
    let len: u64 = groups.map(|group| geometry.blocks_of(GroupNr(group)).len_blocks).sum();
    let whole = u64::from(geometry.blocks_per_group) * u64::from(per_lot);
    let share = u64::from(region_blocks).saturating_mul(len).checked_div(whole).unwrap_or(0);
    u32::try_from(share).unwrap_or(u32::MAX)
}

impl LotRecord {
    /// The record in a descriptor; `None` if the descriptor is too short or has none.
    pub fn of(descriptor: &[u8]) -> Option<Self> {
        let own = Self::decode(descriptor.get(OFFSET..)?.first_chunk()?);
        (own.magic == MAGIC && own.version == VERSION).then_some(own)
    }

    /// Writes the record into a descriptor, and the number of the cube at its second place. Nothing is
    /// written to a descriptor that is too short. The descriptor's checksum is not computed.
    pub fn put(&self, descriptor: &mut [u8]) {
        let Some((low, private)) = descriptor.split_at_mut_checked(OFFSET) else { return };
        let Some(place) = private.first_chunk_mut() else { return };
        self.encode_into(place);
        low[CUBE_OFFSET..].copy_from_slice(&self.cube.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ext::group_desc::GroupDesc;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_record_survives_and_leaves_the_descriptor_alone(
            bytes in proptest::collection::vec(any::<u8>(), 1024), lot: u32, cube: u32, start: u64,
        ) {
            let before = GroupDesc::of(&bytes);
            let empty = LotRecord::decode(&[0; 64]);
            let record = LotRecord {
                magic: MAGIC, version: VERSION, lot, cube, region_start: start, ..empty
            };
            let mut after = bytes.clone();
            record.put(&mut after);
            prop_assert_eq!(LotRecord::of(&after), Some(record));
            prop_assert_eq!(GroupDesc::of(&after), before);
            prop_assert_eq!(&after[128..], &bytes[128..]);
            prop_assert_eq!(&after[CUBE_OFFSET..OFFSET], &cube.to_le_bytes());
        }
    }

    #[test]
    fn short_descriptors_have_no_record() {
        assert_eq!(LotRecord::of(&[0; 64]), None);
        assert_eq!(LotRecord::of(&[0; 1024]), None);
        let mut short = [1; 64];
        let empty = LotRecord::decode(&[0; 64]);
        let record = LotRecord { magic: MAGIC, version: VERSION, ..empty };
        record.put(&mut short);
        assert_eq!(short, [1; 64]);
        // The smallest descriptor of lots is full with it.
        let mut least = [0; LEAST_DESC_SIZE as usize];
        record.put(&mut least);
        assert_eq!(LotRecord::of(&least), Some(record));
        let sizes = (0..2048).filter(|size| is_desc_size(*size));
        assert_eq!(sizes.collect::<Vec<_>>(), [128, 256, 512, 1024]);
    }
}
