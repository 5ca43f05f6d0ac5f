//! The places of a lot that a sweep reads: the used prefixes of its descriptor block, bitmaps, inode tables and region, and
//! copies of the superblock.

use floe_blockdev::{Medium, ReadBlocks};
use floe_format::ext::bitmap;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::native::lot::LotRecord;
use floe_format::{BlockNr, BlockRun, Geometry, GroupNr, InodeNr};

/// Bytes of one request.
pub const READ_BYTES: u64 = 1 << 20;

/// Requests that are under way at a time where the device is told of them: those of a lot, and those of the one before.
const TOLD_IN_FLIGHT: usize = 4;

/// Unused bytes that cost this device less time than another request, if its bytes lie on such a medium.
pub(super) fn gap_bytes(device: &dyn ReadBlocks, medium: Medium) -> u64 {
    medium.gap_bytes(if device.caches_ahead() { TOLD_IN_FLIGHT } else { 1 })
}

/// A lot of a native file system, as its descriptors have it. Nothing in it is believed before it was found to lie in the lot.
#[derive(Clone, Debug)]
pub struct Lot {
    /// The blocks of its groups.
    home: BlockRun,
    descriptors: BlockNr,
    /// Block bitmap, inode bitmap and used prefix of the inode table of each group.
    groups: Vec<(BlockNr, BlockNr, BlockRun)>,
    /// The superblock, or copies of it.
    superblocks: Vec<BlockNr>,
    region: BlockRun,
    /// Blocks of the region behind which none was in use when it was sealed.
    region_used: u64,
}

impl Lot {
    /// The groups of a lot.
    pub fn groups_of(geometry: &Geometry, lot: u32) -> std::ops::Range<u32> {
        let per_lot = geometry.descs_per_block().max(1);
        let first = lot.saturating_mul(per_lot);
        first..first.saturating_add(per_lot).min(geometry.group_count)
    }

    /// The lot whose descriptors are in this block, which may hold anything.
    pub fn of(geometry: &Geometry, lot: u32, block: &[u8]) -> Option<Self> {
        let groups = Self::groups_of(geometry, lot);
        let (first, last) = (GroupNr(groups.start), GroupNr(groups.end.checked_sub(1)?));
        let start = geometry.group_start(first);
        let end = geometry.blocks_of(last).end();
        let home = BlockRun::new(start, end.0.checked_sub(start.0)?);
        let mut all = Vec::with_capacity(groups.len());
        let (mut region, mut region_used) = (BlockRun::default(), 0);
        for raw in block.chunks_exact(geometry.desc_size as usize).take(groups.len()) {
            let desc = GroupDesc::of(raw);
            let bound = match desc.inode_uninit() {
                true => 0,
                false => geometry.inodes_per_group.saturating_sub(desc.itable_unused),
            };
            let per_block = geometry.block_size / geometry.inode_size.max(1);
            let blocks = u64::from(bound.div_ceil(per_block.max(1)));
            let is_there = geometry.contains(desc.inode_table);
            let table = BlockRun::new(desc.inode_table, if is_there { blocks } else { 0 });
            all.push((desc.block_bitmap, desc.inode_bitmap, table));
            if let Some(record) = LotRecord::of(raw).filter(|_| region.len_blocks == 0) {
                let blocks = u64::from(record.region_blocks);
                region = BlockRun::new(BlockNr(record.region_start), blocks);
                region_used = u64::from(record.region_used).min(blocks);
            }
        }
        let lies_inside = region.start >= home.start
            && region.start.0.checked_add(region.len_blocks).is_some_and(|end| end <= home.end().0);
        if !lies_inside {
            (region, region_used) = (BlockRun::default(), 0);
        }
        let descriptors = geometry.primary_desc_block(lot);
        let superblocks =
            groups.map(GroupNr).filter_map(|group| geometry.superblock_of(group)).collect();
        Some(Self { home, descriptors, groups: all, superblocks, region, region_used })
    }

    /// The descriptor block and the bitmaps, which are kept longer than the rest.
    pub fn small(&self) -> impl Iterator<Item = BlockNr> + '_ {
        let bitmaps = self.groups.iter().flat_map(|(blocks, inodes, _)| [*blocks, *inodes]);
        std::iter::once(self.descriptors).chain(bitmaps)
    }

    /// The blocks of the region up to the last one in use, as the block bitmaps say, of which `bitmap` gives those that are
    /// known. Reserved blocks, which a sealed lot has up to the end of its region, count as free.
    pub fn used_region(
        &self,
        geometry: &Geometry,
        mut bitmap: impl FnMut(BlockNr) -> Option<Vec<u8>>,
    ) -> BlockRun {
        let mut end = self.region_used;
        let mut reserved = true;
        let (mut at, stop) = (self.region.start, self.region.end());
        while at < stop {
            let Some(group) = geometry.group_of(at) else { break };
            let home = geometry.blocks_of(group);
            let part_end = home.end().min(stop);
            let index = group.0 % geometry.descs_per_block().max(1);
            let block = self.groups.get(index as usize).map(|(blocks, ..)| *blocks);
            if let Some(bytes) = block.and_then(&mut bitmap) {
                for block in at.0..part_end.0 {
                    // Both lie in the group.
                    let bit = (block - home.start.0) as u32;
                    let offset = block - self.region.start.0;
                    if bitmap::test(&bytes, bit) {
                        end = end.max(offset + 1);
                    } else if offset >= self.region_used {
                        reserved = false;
                    }
                }
            }
            at = part_end;
        }
        let used = if reserved { self.region_used } else { end };
        BlockRun::new(self.region.start, used)
    }

    /// The blocks of the used region that the block bitmaps say are in use, or reserved.
    pub fn used_blocks(
        &self,
        geometry: &Geometry,
        mut bitmap: impl FnMut(BlockNr) -> Option<Vec<u8>>,
    ) -> Vec<BlockNr> {
        let region = self.used_region(geometry, &mut bitmap);
        let (mut used, mut at) = (Vec::new(), region.start);
        while at < region.end() {
            let Some(group) = geometry.group_of(at) else { break };
            let home = geometry.blocks_of(group);
            let part_end = home.end().min(region.end());
            let index = group.0 % geometry.descs_per_block().max(1);
            let block = self.groups.get(index as usize).map(|(blocks, ..)| *blocks);
            if let Some(bytes) = block.and_then(&mut bitmap) {
                // Both lie in the group.
                let is_used = |block: &u64| bitmap::test(&bytes, (block - home.start.0) as u32);
                used.extend((at.0..part_end.0).filter(is_used).map(BlockNr));
            }
            at = part_end;
        }
        used
    }

    /// The used prefixes of the inode tables that lie in the lot, and their first inodes.
    pub fn tables(&self, geometry: &Geometry, lot: u32) -> Vec<(InodeNr, BlockRun)> {
        let groups = Self::groups_of(geometry, lot).map(GroupNr);
        let tables = groups.zip(&self.groups).map(|(group, (.., table))| (group, *table));
        let inside = tables
            .filter(|(_, table)| table.start >= self.home.start && table.end() <= self.home.end());
        inside.map(|(group, table)| (geometry.inode_at(group, 0), table)).collect()
    }

    /// The used prefix of the region as the last seal noted it.
    pub const fn sealed_region(&self) -> BlockRun {
        BlockRun::new(self.region.start, self.region_used)
    }

    /// The blocks at the beginning of a lot: a superblock, if there is one, the descriptors, and behind them the bitmaps, as
    /// Floe places them.
    pub fn beginning(geometry: &Geometry, lot: u32) -> BlockRun {
        let (block, groups) = (geometry.primary_desc_block(lot), Self::groups_of(geometry, lot));
        let superblock = geometry.superblock_of(GroupNr(groups.start));
        let start = superblock.filter(|at| at.0 + 1 == block.0).unwrap_or(block);
        let len = 1 + 2 * groups.len() as u64 + (block.0 - start.0);
        let end = geometry.blocks_count.min(start.0.saturating_add(len));
        BlockRun::new(start, end.saturating_sub(start.0))
    }

    /// The runs that a sweep reads, in the order of addresses. `region` is the used part of the region; of the others those that
    /// lie in the lot are read along.
    pub(super) fn runs(&self, place: &Place<'_>, region: BlockRun) -> Vec<BlockRun> {
        let mut parts: Vec<BlockRun> = self.small().map(|block| BlockRun::new(block, 1)).collect();
        parts.extend(place.others());
        parts.extend(self.groups.iter().map(|(.., table)| *table));
        parts.extend(self.superblocks.iter().map(|block| BlockRun::new(*block, 1)));
        parts.push(region);
        place.joined(self.home, parts)
    }
}

/// A file system whose lots are swept, and its device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'g> {
    pub(super) geometry: &'g Geometry,
    /// Blocks outside of lots' own structures that each check reads.
    pub(super) besides: &'g [BlockNr],
    /// Unused bytes between two places that are read along.
    pub(super) gap_bytes: u64,
}

impl Place<'_> {
    /// The blocks outside of lots' own structures.
    pub(super) fn others(&self) -> impl Iterator<Item = BlockRun> + '_ {
        self.besides.iter().map(|block| BlockRun::new(*block, 1))
    }

    /// The parts that lie inside `home`, in the order of addresses, near ones joined.
    pub(super) fn joined(&self, home: BlockRun, mut parts: Vec<BlockRun>) -> Vec<BlockRun> {
        parts.retain(|part| {
            let end = part.start.0.checked_add(part.len_blocks);
            part.len_blocks > 0
                && part.start >= home.start
                && end.is_some_and(|end| end <= home.end().0)
        });
        parts.sort_unstable_by_key(|part| part.start);
        let gap = self.gap_bytes / u64::from(self.geometry.block_size);
        let mut runs: Vec<BlockRun> = Vec::new();
        for part in parts {
            match runs.last_mut() {
                Some(last) if part.start.0 <= last.end().0 + gap => {
                    let end = last.end().0.max(part.end().0);
                    last.len_blocks = end - last.start.0;
                }
                _ => runs.push(part),
            }
        }
        runs
    }
}
