//! Blocks of the orphan file (feature orphan_file): inode numbers of orphans, then a tail.
//!
//! Source: `Documentation/filesystems/ext4/orphan.rst` and the kernel's `fs/ext4/orphan.c`.

use crate::crc::crc32c;
use crate::layout::le32_at;
use crate::{BlockNr, InodeNr};

/// `ob_magic`.
pub const MAGIC: u32 = 0x0b10_ca04;
/// Bytes of the tail at the end of a block: magic and checksum.
pub const TAIL_SIZE: usize = 8;

/// A block of the orphan file.
#[derive(Clone, Copy, Debug)]
pub struct OrphanBlock<'a> {
    slots: &'a [u8],
    tail: &'a [u8],
}

impl<'a> OrphanBlock<'a> {
    /// Looks at `bytes`, a whole block, as a block of the orphan file; `None` if no tail fits.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let (slots, tail) = bytes.split_at_checked(bytes.len().checked_sub(TAIL_SIZE)?)?;
        Some(Self { slots, tail })
    }

    /// The slots, empty ones (inode 0) included.
    pub fn slots(&self) -> impl ExactSizeIterator<Item = InodeNr> + use<'a> {
        self.slots
            .chunks_exact(4)
            .map(|slot| InodeNr(u32::from_le_bytes([slot[0], slot[1], slot[2], slot[3]])))
    }

    /// The slots that are in use.
    pub fn orphans(&self) -> impl Iterator<Item = InodeNr> + use<'a> {
        self.slots().filter(|inode| inode.0 != 0)
    }

    /// The slots that are in use but for the last one, for the block of a cube.
    pub fn plain_orphans(&self) -> impl Iterator<Item = InodeNr> + use<'a> {
        self.slots().take(self.chain_slot()).filter(|inode| inode.0 != 0)
    }

    /// The number of the last slot.
    pub fn chain_slot(&self) -> usize {
        self.slots().len().saturating_sub(1)
    }

    /// The last slot, which in the block of a cube begins a chain of further orphans, each with the next one in `i_dtime`.
    pub fn chain_head(&self) -> InodeNr {
        self.slots().last().unwrap_or_default()
    }

    /// `ob_magic` as stored.
    pub fn magic(&self) -> u32 {
        le32_at(self.tail, 0).unwrap_or(0)
    }

    /// `ob_checksum` as stored.
    pub fn stored_checksum(&self) -> u32 {
        le32_at(self.tail, 4).unwrap_or(0)
    }

    /// The checksum the block should carry (metadata_csum). `inode_seed` is
    /// [`crate::crc::Seed::of_inode`] of the orphan file; `block` is where the block lies.
    pub fn compute_checksum(&self, inode_seed: u32, block: BlockNr) -> u32 {
        crc32c(crc32c(inode_seed, &block.0.to_le_bytes()), self.slots)
    }
}

/// Writes a clean block: all slots empty, magic, and the checksum if `inode_seed` is given
/// (metadata_csum; otherwise 0). Blocks shorter than a tail are left alone.
pub fn encode_clean(bytes: &mut [u8], inode_seed: Option<u32>, block: BlockNr) {
    bytes.fill(0);
    let Some(at) = bytes.len().checked_sub(TAIL_SIZE) else { return };
    bytes[at..at + 4].copy_from_slice(&MAGIC.to_le_bytes());
    let crc = inode_seed
        .and_then(|seed| OrphanBlock::new(bytes).map(|clean| clean.compute_checksum(seed, block)));
    bytes[at + 4..].copy_from_slice(&crc.unwrap_or(0).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clean_block_is_empty_and_fits_its_checksum() {
        let mut bytes = vec![0xaa; 1024];
        encode_clean(&mut bytes, Some(5), BlockNr(77));
        let block = OrphanBlock::new(&bytes).unwrap();
        assert_eq!(block.magic(), MAGIC);
        assert_eq!(block.slots().len(), 254);
        assert_eq!(block.orphans().count(), 0);
        assert_eq!(block.stored_checksum(), block.compute_checksum(5, BlockNr(77)));
        assert_ne!(block.stored_checksum(), block.compute_checksum(5, BlockNr(78)));
    }

    #[test]
    fn a_block_without_room_for_a_tail_is_refused() {
        assert!(OrphanBlock::new(&[0; 7]).is_none());
        assert_eq!(OrphanBlock::new(&[0; 8]).unwrap().slots().len(), 0);
    }
}
