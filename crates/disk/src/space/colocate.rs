//! Metadata put together in stock file systems (`-o colocate`): a policy of allocation, after that of FFS for its fsck (section 7
//! of the paper on ffsck and rext3). Nothing on the disk tells of it.
//!
//! 4 % of each group, behind the file system's own structures there, are the area for directory blocks, targets of links, nodes
//! of extent trees, and double and triple indirect blocks with those below them. Groups of a flexible group, whose tables lie in
//! the first of them, have their area there, too, a quarter of it at most: a check comes by. Data avoid it while there is other
//! room, in a group that is nearly full only an eighth of it; metadata leave it when it is full.

use std::ops::Range;

use floe_ext4::tx::{Refusal, Tx};
use floe_format::ext::bitmap;
use floe_format::{BlockNr, BlockRun, GroupNr};

use super::Pool;

/// One part in so many of a group is its area.
const SHARE: u32 = 25;
/// One part in so many of a group is taken by the areas of several, at most.
const MOST_SHARE: u32 = 4;
/// One part in so many of an area is kept from data in a group that is nearly full.
const PART: u32 = 8;

impl Pool {
    /// The group in which the area for a group's metadata lies.
    fn area_group(&self, group: GroupNr) -> GroupNr {
        GroupNr(group.0 - group.0 % self.colocated_groups.max(1))
    }

    /// The clusters of a group that are an area; empty if that lies in another group.
    pub(super) fn area_of(&self, group: GroupNr) -> Range<u32> {
        if self.area_group(group) != group {
            return 0..0;
        }
        let geo = self.groups.geometry();
        let home = geo.blocks_of(group);
        let start = self.behind_tables(group).min(home.end());
        // Both lie in the group.
        let first = (start.0 - home.start.0).div_ceil(1 << geo.cluster_bits) as u32;
        let clusters = geo.clusters_of(group);
        let wanted = (clusters / SHARE).saturating_mul(self.colocated_groups);
        let len = wanted.min(clusters / MOST_SHARE);
        first.min(clusters)..first.saturating_add(len).min(clusters)
    }

    /// The first block behind the file system's own structures at the beginning of a group: a superblock, descriptors, room for
    /// further ones, bitmaps and tables follow each other.
    fn behind_tables(&self, group: GroupNr) -> BlockNr {
        let geo = self.groups.geometry();
        let (mut at, kept) = (geo.group_start(group), geo.reserved_gdt_run(group));
        loop {
            let end = self.system.end_from(at);
            let end = if kept.len_blocks > 0 && end == kept.start { kept.end() } else { end };
            if end == at {
                return at;
            }
            at = end;
        }
    }

    /// The clusters of a group that data avoid: its area, or a part of that where the group is nearly full, so that files are
    /// not cut into pieces for metadata that will not be.
    pub(super) fn avoided(&self, group: GroupNr) -> Result<Range<u32>, Refusal> {
        let area = self.area_of(group);
        let free = self.groups.desc(group)?.free_blocks_count;
        let is_roomy = free > 2 * (area.end - area.start);
        let end = if is_roomy { area.end } else { area.start + (area.end - area.start) / PART };
        Ok(area.start..end)
    }

    /// A block for metadata in the area for the goal's group, marked as used; `None` if it is full or metadata are not put
    /// together.
    pub(super) fn block_in_area(
        &mut self,
        tx: &mut dyn Tx,
        goal: BlockNr,
    ) -> Result<Option<BlockNr>, Refusal> {
        let kept = if self.may_use_reserve { 0 } else { self.reserved_clusters };
        if !self.colocates() || self.free_clusters <= kept {
            return Ok(None);
        }
        let geo = self.groups.geometry();
        let group = self.area_group(geo.group_of(goal).unwrap_or(GroupNr(0)));
        let (home, bits) = (geo.group_start(group), geo.cluster_bits);
        if self.damaged.contains(&group) || self.groups.desc(group)?.free_blocks_count == 0 {
            return Ok(None);
        }
        let bytes = self.bitmap(tx, group).map(Some);
        let Some(bytes) = self.unless_damaged(group, bytes)? else { return Ok(None) };
        let Some(cluster) = bitmap::first_clear(&bytes, self.area_of(group)) else {
            return Ok(None);
        };
        let block = BlockNr(home.0 + (u64::from(cluster) << bits));
        let marked = self.groups.mark_blocks(tx, BlockRun::new(block, 1), true)?;
        self.free_clusters = self.free_clusters.saturating_sub(marked);
        Ok(Some(block))
    }
}
