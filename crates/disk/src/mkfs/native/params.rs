//! Parameters of native file systems.

use floe_format::features::{Compat, Incompat, RoCompat};
use floe_format::native::lot::DESC_SIZE;

use crate::mkfs::params::{Params, PlanError};

/// Bytes of a block.
pub(in crate::mkfs) const BLOCK_SIZE: u32 = 4096;
/// Groups of a lot: their descriptors fill a block.
pub(in crate::mkfs) const LOT_GROUPS: u32 = BLOCK_SIZE / DESC_SIZE;
/// Most blocks of a group: 8 for each byte of a bitmap.
const MOST_GROUP_BLOCKS: u32 = BLOCK_SIZE * 8;
/// Fewest blocks of a group, by which a lot has 4 MiB.
const LEAST_GROUP_BLOCKS: u32 = 256;
/// The part of a lot that its region takes by default.
const REGION_SHARE: u32 = 64;

/// What only native file systems have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NativeParams {
    /// Blocks of a lot's metadata region; `None`: 1/64 of the lot.
    pub region_blocks: Option<u32>,
}

impl NativeParams {
    /// Blocks of the region of a whole lot with groups of this many blocks.
    pub(in crate::mkfs) fn region_blocks(self, blocks_per_group: u32) -> u32 {
        self.region_blocks.unwrap_or(blocks_per_group * LOT_GROUPS / REGION_SHARE)
    }

    /// Blocks of a group in lots of this many bytes; `None` if there are no such lots.
    pub(in crate::mkfs) fn blocks_per_group(lot_bytes: u64) -> Option<u32> {
        let blocks = u32::try_from(lot_bytes / u64::from(BLOCK_SIZE * LOT_GROUPS)).ok()?;
        let fits = (LEAST_GROUP_BLOCKS..=MOST_GROUP_BLOCKS).contains(&blocks);
        (fits && blocks % 8 == 0).then_some(blocks)
    }

    /// Refuses what native file systems cannot be.
    pub(in crate::mkfs) fn check(self, params: &Params) -> Result<(), PlanError> {
        let bad = |what: &'static str| Err(PlanError::Parameter(what));
        if params.block_size != BLOCK_SIZE || params.inode_size < 256 {
            return bad("native file systems have blocks of 4096 bytes, and inodes of 256 or more");
        }
        if params.flex_groups != LOT_GROUPS || params.packed_tables {
            return bad("native file systems have flexible groups of 4 groups (-G 4)");
        }
        let needed = Incompat::EXTENTS | Incompat::BIT64 | Incompat::FLEX_BG | Incompat::META_BG;
        let journal = Compat::HAS_JOURNAL | Compat::DIR_INDEX;
        if !params.features.incompat.contains(needed)
            || !params.features.compat.contains(journal)
            || !params.ro_compat(RoCompat::METADATA_CSUM)
        {
            return bad("native file systems need the features extent, 64bit, flex_bg, meta_bg, \
                 has_journal, dir_index and metadata_csum");
        }
        let incompat = Incompat::INLINE_DATA | Incompat::MMP | Incompat::EA_INODE;
        let ro_compat = RoCompat::BIGALLOC | RoCompat::QUOTA | RoCompat::PROJECT;
        if params.features.incompat.intersects(incompat)
            || params.features.ro_compat.intersects(ro_compat)
            || params.compat(Compat::RESIZE_INODE)
            || params.compat(Compat::SPARSE_SUPER2)
        {
            return bad("native file systems cannot have the features bigalloc, ea_inode, \
                 inline_data, mmp, project, quota, resize_inode or sparse_super2");
        }
        // A quarter, so that a lot holds its tables and data, too.
        let group_blocks = params.blocks_per_group.unwrap_or(MOST_GROUP_BLOCKS);
        if self.region_blocks(group_blocks) > group_blocks {
            return bad("the metadata region cannot be larger than a quarter of a lot");
        }
        Ok(())
    }
}
