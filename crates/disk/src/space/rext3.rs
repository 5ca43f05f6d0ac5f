//! The metadata regions of rext3 (`docs/rext3.md`): directory blocks and indirect blocks are taken from the region of their
//! inode's group, or of the next one that has a free block, and from nowhere else. All other blocks lie outside of regions.

use floe_ext4::tx::{Refusal, Tx};
use floe_format::ext::bitmap;
use floe_format::rext3::region_of;
use floe_format::{BlockNr, BlockRun, GroupNr};
use std::ops::Range;

use super::Pool;

impl Pool {
    /// Keeps regions of so many blocks for metadata; a shorter group has its share of them.
    pub(crate) const fn use_group_regions(&mut self, region_blocks: u32) {
        self.region_blocks = region_blocks;
    }

    /// Whether each group has a region.
    pub(super) const fn has_group_regions(&self) -> bool {
        self.region_blocks > 0
    }

    /// The bits of a group's region; empty where it has none.
    pub(super) fn group_region(&self, group: GroupNr) -> Result<Range<u32>, Refusal> {
        if !self.has_group_regions() {
            return Ok(0..0);
        }
        let desc = self.groups.desc(group)?;
        let region = region_of(self.groups.geometry(), group, &desc, self.region_blocks);
        Ok(self.bits_of(region, group))
    }

    /// A block for a directory or a map, marked as used: in the region of the goal's group, or the next one that has a free
    /// block.
    ///
    /// # Errors
    /// [`Refusal::Full`] if all regions are, or an error of reading or changing a bitmap.
    pub(super) fn block_in_group_regions(
        &mut self,
        tx: &mut dyn Tx,
        goal: BlockNr,
    ) -> Result<BlockNr, Refusal> {
        let geo = self.groups.geometry();
        let home = geo.group_of(goal).map_or(0, |group| group.0);
        let mut unread = None;
        for group in (home..geo.group_count).chain(0..home).map(GroupNr) {
            if self.damaged.contains(&group) || self.regions.full.contains(&group.0) {
                continue;
            }
            let found = self.free_in_region(tx, group);
            match self.unless_unread(group, found, &mut unread)? {
                Some(block) => {
                    let marked = self.groups.mark_blocks(tx, BlockRun::new(block, 1), true)?;
                    self.free_clusters = self.free_clusters.saturating_sub(marked);
                    return Ok(block);
                }
                None if unread.is_none() => {
                    self.regions.full.insert(group.0);
                }
                None => {}
            }
        }
        Err(unread.unwrap_or(Refusal::Full("block of a metadata region")))
    }

    fn free_in_region(&self, tx: &mut dyn Tx, group: GroupNr) -> Result<Option<BlockNr>, Refusal> {
        if self.groups.desc(group)?.free_blocks_count == 0 {
            return Ok(None);
        }
        let bytes = self.bitmap(tx, group)?;
        let home = self.groups.geometry().group_start(group);
        let bit = bitmap::first_clear(&bytes, self.group_region(group)?);
        Ok(bit.map(|bit| BlockNr(home.0 + u64::from(bit))))
    }
}
