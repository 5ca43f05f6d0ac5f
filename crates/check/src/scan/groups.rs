//! The places of a group of a rext3 file system that a sweep reads: the bitmaps, the inode table and the used blocks of the
//! region behind it, in this order, and a copy of the superblock before them.

use floe_format::ext::bitmap;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::rext3::region_of;
use floe_format::{BlockNr, BlockRun, Geometry, GroupNr};

use super::lots::Place;

/// A group, as its descriptor has it. Nothing in it is believed before it was found to lie in the group.
#[derive(Clone, Debug)]
pub struct Group {
    home: BlockRun,
    superblock: Option<BlockNr>,
    bitmaps: [BlockNr; 2],
    table: BlockRun,
    region: BlockRun,
}

impl Group {
    /// The places of a group whose region has `region_blocks` blocks if the group is whole.
    pub fn of(geometry: &Geometry, group: GroupNr, desc: &GroupDesc, region_blocks: u32) -> Self {
        Self {
            home: geometry.blocks_of(group),
            // That of the first group is read with the descriptors.
            superblock: geometry.superblock_of(group).filter(|_| group.0 > 0),
            bitmaps: [desc.block_bitmap, desc.inode_bitmap],
            table: BlockRun::new(desc.inode_table, u64::from(geometry.inode_table_blocks)),
            region: region_of(geometry, group, desc, region_blocks),
        }
    }

    /// The block bitmap, which says what is in use of the region.
    pub const fn block_bitmap(&self) -> BlockNr {
        self.bitmaps[0]
    }

    /// Both bitmaps.
    pub fn bitmaps(&self) -> Vec<BlockNr> {
        self.bitmaps.to_vec()
    }

    /// The inode table; nothing, if it does not lie in the group.
    pub fn table(&self) -> BlockRun {
        let is_inside = self.home.contains(self.table.start) && self.table.end() <= self.home.end();
        if is_inside { self.table } else { BlockRun::default() }
    }

    /// The blocks of the region.
    pub const fn region(&self) -> BlockRun {
        self.region
    }

    /// The blocks of the region that are in use by the block bitmap.
    pub fn used_region(&self, bitmap: &[u8]) -> Vec<BlockNr> {
        let bit = |block: u64| u32::try_from(block - self.home.start.0).unwrap_or(u32::MAX);
        // Empty where there is no region.
        let blocks = self.region.start.0..self.region.end().0;
        blocks.filter(|block| bitmap::test(bitmap, bit(*block))).map(BlockNr).collect()
    }

    /// The runs before the region.
    pub(super) fn runs(&self, place: &Place<'_>) -> Vec<BlockRun> {
        let blocks = self.bitmaps.into_iter().chain(self.superblock);
        let mut parts: Vec<BlockRun> = blocks.map(|block| BlockRun::new(block, 1)).collect();
        parts.push(self.table);
        place.joined(self.home, parts)
    }

    /// The runs of the region that are in use by the block bitmap, and other blocks that lie in the group; near ones joined.
    pub(super) fn runs_behind(&self, place: &Place<'_>, bitmap: &[u8]) -> Vec<BlockRun> {
        let mut parts: Vec<BlockRun> = place.others().collect();
        parts.extend(self.used_region(bitmap).into_iter().map(|block| BlockRun::new(block, 1)));
        place.joined(self.home, parts)
    }
}
