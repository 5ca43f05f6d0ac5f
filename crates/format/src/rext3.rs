//! rext3, the file system of the paper on ffsck (`docs/rext3.md`): ext3 whose indirect blocks say whose they are
//! ([`crate::ext::indirect`]), and lie with directory blocks in a region behind the inode table of each group.

use crate::ext::group_desc::GroupDesc;
use crate::ext::indirect::{Header, IndirectForm, MOST_LEVELS, pointers};
use crate::ext::superblock::Superblock;
use crate::features::Incompat;
use crate::{BlockNr, BlockRun, Geometry, GroupNr};

/// Byte of the superblock at which the record lies: where native file systems have their identity, which this is not.
pub const OFFSET: usize = crate::native::identity::OFFSET;
/// `magic`: "rxt3" in the order of the bytes.
pub const MAGIC: u32 = u32::from_le_bytes(*b"rxt3");
/// `version` of the format that this crate describes.
pub const VERSION: u16 = 1;
/// The part of a group that its region takes by default: 512 of 32768 blocks, the 2 MiB of the paper.
pub const REGION_SHARE: u32 = 64;

layout! {
    /// The record of a rext3 file system (bytes 0x3b0 to 0x3bc of the superblock and of its backups).
    pub struct Record[12] little {
        /// [`MAGIC`].
        0x00 magic: u32,
        /// [`VERSION`].
        0x04 version: u16,
        /// Reserved; 0.
        0x06 reserved: u16,
        /// Blocks of the region of a whole group; a shorter group has its share of them.
        0x08 region_blocks: u32,
    }
}

impl Record {
    /// The record of a file system with regions of so many blocks.
    pub const fn new(region_blocks: u32) -> Self {
        Self { magic: MAGIC, version: VERSION, reserved: 0, region_blocks }
    }

    /// The record in a superblock, whatever its features say; `None` if there is none that can be.
    pub fn of(superblock: &Superblock) -> Option<Self> {
        let mut bytes = [0; Superblock::SIZE];
        superblock.encode_into(&mut bytes);
        let own = Self::decode(bytes[OFFSET..].first_chunk()?);
        let fits = own.magic == MAGIC
            && own.version == VERSION
            && (1..=superblock.blocks_per_group).contains(&own.region_blocks);
        fits.then_some(own)
    }

    /// Writes the record into a superblock. The superblock's checksum is not computed.
    pub fn put(&self, superblock: &mut Superblock) {
        let mut bytes = [0; Superblock::SIZE];
        superblock.encode_into(&mut bytes);
        if let Some(place) = bytes[OFFSET..].first_chunk_mut() {
            self.encode_into(place);
        }
        *superblock = Superblock::decode(&bytes);
    }
}

/// Blocks of the region of a whole group by default.
pub const fn usual_region_blocks(blocks_per_group: u32) -> u32 {
    let share = blocks_per_group / REGION_SHARE;
    if share == 0 { 1 } else { share }
}

/// Blocks of the region of a whole group; `None` in a file system that is not rext3, or does not say.
pub fn region_blocks(superblock: &Superblock) -> Option<u32> {
    let is_rext3 = superblock.features().incompat.contains(Incompat::REXT3);
    Record::of(superblock).filter(|_| is_rext3).map(|record| record.region_blocks)
}

/// The region of a group: `region_blocks` blocks right behind its inode table, or the share of a shorter group, inside the
/// group. Empty if the descriptor names a table outside of it.
pub fn region_of(
    geometry: &Geometry,
    group: GroupNr,
    desc: &GroupDesc,
    region_blocks: u32,
) -> BlockRun {
    let home = geometry.blocks_of(group);
    let table = BlockRun::new(desc.inode_table, u64::from(geometry.inode_table_blocks));
    if !home.contains(table.start) || table.end() > home.end() {
        return BlockRun::default();
    }
    let share = u64::from(region_blocks) * home.len_blocks / u64::from(geometry.blocks_per_group);
    BlockRun::new(table.end(), share.min(home.end().0 - table.end().0))
}

/// The header of a block that looks like an indirect block of rext3: its header names an inode and a level that can be, and it has pointers,
/// all of them into the file system. No directory block looks like one: its first record would be shorter than any.
pub fn node_header(geometry: &Geometry, bytes: &[u8]) -> Option<Header> {
    let form = IndirectForm::with_header(geometry.block_size);
    let header = form.header(bytes)?;
    let fits = (1..=geometry.inodes_count).contains(&header.inode)
        && (1..=MOST_LEVELS).contains(&header.level);
    let mut words = pointers(form.body(bytes)).filter(|word| *word != 0).peekable();
    let is_map = fits && words.peek().is_some();
    let leads = |word: u32| geometry.contains(BlockNr(u64::from(word)));
    (is_map && words.all(leads)).then_some(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_lies_in_the_superblock() {
        let mut superblock = Superblock::decode(&[0; 1024]);
        superblock.blocks_per_group = 32768;
        assert_eq!(Record::of(&superblock), None);
        Record::new(512).put(&mut superblock);
        assert_eq!(Record::of(&superblock), Some(Record::new(512)));
        // Without the feature it means nothing.
        assert_eq!(region_blocks(&superblock), None);
        superblock.feature_incompat = 0x8000_0000;
        assert_eq!(region_blocks(&superblock), Some(512));
        Record::new(32769).put(&mut superblock);
        assert_eq!(Record::of(&superblock), None);
    }

    #[test]
    fn the_usual_region_is_that_of_the_paper() {
        assert_eq!([32768, 8192, 256, 8].map(usual_region_blocks), [512, 128, 4, 1]);
    }
}
