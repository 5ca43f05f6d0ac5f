//! Parameters of native file systems.

use floe_format::features::{Compat, Incompat, RoCompat};
use floe_format::native::lot::{LEAST_DESC_SIZE, MOST_DESC_SIZE};

use crate::mkfs::params::{Params, PlanError};

/// Bytes of a block.
pub(in crate::mkfs) const BLOCK_SIZE: u32 = 4096;
/// Groups of the smallest and the largest lots: their descriptors fill a block.
pub(in crate::mkfs) const LEAST_LOT_GROUPS: u32 = BLOCK_SIZE / MOST_DESC_SIZE;
const MOST_LOT_GROUPS: u32 = BLOCK_SIZE / LEAST_DESC_SIZE;
/// Lots that a file system has at least before it gets larger ones than those of 512 MiB: cubes are made of whole lots.
const MANY_LOTS: u64 = 128;
/// Most blocks of a group: 8 for each byte of a bitmap.
const MOST_GROUP_BLOCKS: u32 = BLOCK_SIZE * 8;
/// Fewest blocks of a group, by which a lot has 4 MiB.
const LEAST_GROUP_BLOCKS: u32 = 256;
/// The part of a lot that its region takes by default.
const REGION_SHARE: u32 = 64;

/// Parameters that only native file systems have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NativeParams {
    /// Blocks of a lot's metadata region; `None`: 1/64 of the lot.
    pub region_blocks: Option<u32>,
}

impl NativeParams {
    /// Blocks of the region of a whole lot with groups of this many blocks.
    pub(in crate::mkfs) fn region_blocks(self, lot_groups: u32, blocks_per_group: u32) -> u32 {
        // 32 groups of 32768 blocks, at most.
        self.region_blocks.unwrap_or(blocks_per_group * lot_groups / REGION_SHARE)
    }

    /// Groups of a lot, and blocks of each, in lots of this many bytes; `None` if there are no such lots.
    pub(in crate::mkfs) fn groups_of_lot(lot_bytes: u64) -> Option<(u32, u32)> {
        let whole = u64::from(BLOCK_SIZE) * u64::from(MOST_GROUP_BLOCKS);
        let groups = lot_bytes / whole;
        if groups > u64::from(LEAST_LOT_GROUPS) {
            let fits = groups.is_power_of_two() && lot_bytes.is_multiple_of(whole);
            // At most 32.
            let fits = fits && groups <= u64::from(MOST_LOT_GROUPS);
            return fits.then_some((groups as u32, MOST_GROUP_BLOCKS));
        }
        let blocks = u32::try_from(lot_bytes / u64::from(BLOCK_SIZE * LEAST_LOT_GROUPS)).ok()?;
        let fits = (LEAST_GROUP_BLOCKS..=MOST_GROUP_BLOCKS).contains(&blocks);
        (fits && blocks % 8 == 0).then_some((LEAST_LOT_GROUPS, blocks))
    }

    /// Groups of a lot of a file system of so many bytes: more where there are many lots, because a check goes to one place for
    /// each.
    pub(in crate::mkfs) fn usual_groups(bytes: u64) -> u32 {
        let group = u64::from(BLOCK_SIZE) * u64::from(MOST_GROUP_BLOCKS);
        let wanted = (bytes / MANY_LOTS / group).max(1);
        let power = 1u64.checked_shl(wanted.ilog2()).unwrap_or(1);
        // At most 32.
        power.clamp(LEAST_LOT_GROUPS.into(), MOST_LOT_GROUPS.into()) as u32
    }

    /// Refuses what native file systems cannot be.
    pub(in crate::mkfs) fn check(self, params: &Params) -> Result<(), PlanError> {
        let bad = |what: &'static str| Err(PlanError::Parameter(what));
        if params.block_size != BLOCK_SIZE || params.inode_size < 256 {
            return bad("native file systems have blocks of 4096 bytes, and inodes of 256 or more");
        }
        let lot_groups = LEAST_LOT_GROUPS..=MOST_LOT_GROUPS;
        if !lot_groups.contains(&params.flex_groups) || params.packed_tables {
            return bad("native file systems have flexible groups of 4, 8, 16 or 32 groups (-G)");
        }
        let needed = Incompat::EXTENTS | Incompat::BIT64 | Incompat::FLEX_BG | Incompat::META_BG;
        let journal = Compat::HAS_JOURNAL | Compat::DIR_INDEX | Compat::ORPHAN_FILE;
        if !params.features.incompat.contains(needed)
            || !params.features.compat.contains(journal)
            || !params.ro_compat(RoCompat::METADATA_CSUM)
        {
            return bad("native file systems need the features extent, 64bit, flex_bg, meta_bg, \
                 has_journal, orphan_file, dir_index and metadata_csum");
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
        // A quarter at most, so that a lot holds its tables and data, too.
        let group_blocks = params.blocks_per_group.unwrap_or(MOST_GROUP_BLOCKS);
        if self.region_blocks(params.flex_groups, group_blocks) > group_blocks {
            return bad(
                "the metadata region cannot be larger than a group, a quarter of a lot of 4",
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lots_grow_with_the_file_system() {
        let groups = |gib: u64| NativeParams::usual_groups(gib << 30);
        assert_eq!([0, 1, 64, 127, 128, 255].map(groups), [4, 4, 4, 4, 8, 8]);
        assert_eq!([256, 512, 1000, 1 << 20].map(groups), [16, 32, 32, 32]);
    }

    #[test]
    fn sizes_of_lots_are_groups_and_their_blocks() {
        let of = |mib: u64| NativeParams::groups_of_lot(mib << 20);
        assert_eq!(of(4), Some((4, 256)));
        assert_eq!(of(512), Some((4, 32768)));
        assert_eq!([1024, 2048, 4096].map(of), [8, 16, 32].map(|groups| Some((groups, 32768))));
        assert_eq!([0, 2, 513, 640, 1536, 8192].map(of), [None; 6]);
    }
}
