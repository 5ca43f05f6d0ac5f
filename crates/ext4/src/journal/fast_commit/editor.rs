//! Changing a file system in an overlay: inodes, bitmaps, and the counts and checksums that follow.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use floe_blockdev::{Overlay, ReadBlocks, WriteBlocks};
use floe_format::crc::Seed;
use floe_format::ext::bitmap;
use floe_format::ext::group_desc::{DescChecksum, FLAG_BLOCK_UNINIT, FLAG_INODE_UNINIT, GroupDesc};
use floe_format::ext::inode::Inode;
use floe_format::ext::superblock::Superblock;
use floe_format::{BlockNr, BlockRun, Geometry, GroupNr, InodeNr};

use crate::inode_table;
use crate::inode_table::{inode_offset, read_inode};
use crate::journal::finish;

/// What a replay asks for cannot be done: the file system or the journal is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Impossible;

/// A file system in an overlay that is being changed. Nothing of the bitmaps and descriptors is
/// staged before [`Editor::finish`].
pub(crate) struct Editor<'a, D> {
    pub(crate) overlay: &'a Overlay<D>,
    pub(crate) geo: Geometry,
    pub(crate) sb: Superblock,
    pub(crate) seed: Seed,
    groups: Vec<GroupDesc>,
    block_bitmaps: BTreeMap<u32, Vec<u8>>,
    inode_bitmaps: BTreeMap<u32, Vec<u8>>,
    changed: BTreeSet<u32>,
    /// Blocks that later records claim: never to be allocated before.
    pub(crate) reserved: Vec<BlockRun>,
    /// Work still allowed: see [`Editor::charge`].
    budget: u64,
}

/// Steps of work (a block read, an extent moved) that a replay may take. Real ones take thousands;
/// this only stops hostile images.
const BUDGET: u64 = 1 << 24;

impl<'a, D: ReadBlocks> Editor<'a, D> {
    /// Reads superblock and descriptors through the overlay; `opened` is what the file system was
    /// opened with.
    pub(crate) fn open(overlay: &'a Overlay<D>, opened: &Geometry) -> Result<Self, Impossible> {
        let (sb, geo) = finish::replayed_superblock(overlay, opened).ok_or(Impossible)?;
        let groups = inode_table::read_groups(overlay, &geo).ok_or(Impossible)?;
        Ok(Self {
            overlay,
            seed: sb.seed(),
            sb,
            geo,
            groups,
            block_bitmaps: BTreeMap::new(),
            inode_bitmaps: BTreeMap::new(),
            changed: BTreeSet::new(),
            reserved: Vec::new(),
            budget: BUDGET,
        })
    }

    /// Counts steps of work; impossible once too many were taken.
    pub(crate) fn charge(&mut self, steps: u64) -> Result<(), Impossible> {
        self.budget = self.budget.checked_sub(steps).ok_or(Impossible)?;
        Ok(())
    }

    /// The bytes of an inode, `s_inode_size` of them.
    pub(crate) fn read_inode(&self, inode: InodeNr) -> Result<Vec<u8>, Impossible> {
        read_inode(inode, self.overlay, &self.geo, &self.groups).ok_or(Impossible)
    }

    /// Stores an inode, with its checksum where inodes have one.
    pub(crate) fn write_inode(&self, inode: InodeNr, raw: &mut [u8]) -> Result<(), Impossible> {
        let offset = inode_offset(inode, &self.geo, &self.groups).ok_or(Impossible)?;
        if self.geo.features.metadata_csum() {
            let decoded = Inode::decode(raw).ok_or(Impossible)?;
            let (crc, wide) = (decoded.compute_checksum(self.seed, inode), decoded.has_extra(4));
            let crc = crc.to_le_bytes();
            raw[0x7c..0x7e].copy_from_slice(&crc[..2]);
            if wide {
                raw[0x82..0x84].copy_from_slice(&crc[2..]);
            }
        }
        self.overlay.write_at(offset, raw).map_err(|_| Impossible)
    }

    pub(crate) fn read_block(&self, block: BlockNr) -> Result<Vec<u8>, Impossible> {
        if !self.geo.contains(block) {
            return Err(Impossible);
        }
        let mut bytes = vec![0; self.geo.block_size as usize];
        let read = self.overlay.read_at(self.geo.offset_bytes(block), &mut bytes);
        read.map(|()| bytes).map_err(|_| Impossible)
    }

    pub(crate) fn write_block(&self, block: BlockNr, bytes: &[u8]) -> Result<(), Impossible> {
        if !self.geo.contains(block) {
            return Err(Impossible);
        }
        self.overlay.write_at(self.geo.offset_bytes(block), bytes).map_err(|_| Impossible)
    }

    /// Whether a run lies among the blocks of the file system.
    pub(crate) fn is_inside(&self, run: BlockRun) -> bool {
        self.geo.contains(run.start) && run.end().0 <= self.geo.blocks_count
    }

    /// Marks the clusters of a run as used or free, and counts.
    pub(crate) fn set_blocks(&mut self, run: BlockRun, used: bool) -> Result<(), Impossible> {
        if run.len_blocks == 0 {
            return Ok(());
        }
        if !self.is_inside(run) {
            return Err(Impossible);
        }
        let first = self.geo.cluster_of(run.start);
        let last = self.geo.cluster_of(BlockNr(run.end().0 - 1));
        let per_group = u64::from(self.geo.clusters_per_group);
        let mut at = first;
        while at <= last {
            let group = at / per_group;
            let end = ((group + 1) * per_group).min(last + 1);
            // Clusters of a group fit 32 bits, and so does the number of a group.
            let bits = (at - group * per_group) as u32..(end - group * per_group) as u32;
            self.set_group_blocks(group as u32, bits, used)?;
            at = end;
        }
        Ok(())
    }

    fn set_group_blocks(
        &mut self,
        group: u32,
        bits: Range<u32>,
        used: bool,
    ) -> Result<(), Impossible> {
        let bytes = self.block_bitmap(group)?;
        let set = bitmap::count(bytes, bits.clone());
        let len = bits.end - bits.start;
        bitmap::fill(bytes, bits, used);
        let desc = self.groups.get_mut(group as usize).ok_or(Impossible)?;
        desc.flags &= !FLAG_BLOCK_UNINIT;
        desc.free_blocks_count = if used {
            desc.free_blocks_count.saturating_sub(len - set)
        } else {
            desc.free_blocks_count.saturating_add(set)
        };
        self.changed.insert(group);
        Ok(())
    }

    /// Marks an inode as used or free, and counts; a directory too.
    pub(crate) fn set_inode(
        &mut self,
        inode: InodeNr,
        used: bool,
        is_dir: bool,
    ) -> Result<(), Impossible> {
        let (group, index) = self.geo.place_of(inode).ok_or(Impossible)?;
        let per_group = self.geo.inodes_per_group;
        let bytes = self.inode_bitmap(group.0)?;
        let was_used = bitmap::test(bytes, index);
        bitmap::fill(bytes, index..index + 1, used);
        let desc = self.groups.get_mut(group.0 as usize).ok_or(Impossible)?;
        if desc.inode_uninit() {
            desc.flags &= !FLAG_INODE_UNINIT;
            desc.itable_unused = per_group;
        }
        desc.itable_unused = desc.itable_unused.min(per_group - index - 1);
        match (was_used, used) {
            (false, true) => {
                desc.free_inodes_count = desc.free_inodes_count.saturating_sub(1);
                desc.used_dirs_count = desc.used_dirs_count.saturating_add(u32::from(is_dir));
            }
            (true, false) => {
                desc.free_inodes_count = desc.free_inodes_count.saturating_add(1);
                desc.used_dirs_count = desc.used_dirs_count.saturating_sub(u32::from(is_dir));
            }
            _ => {}
        }
        self.changed.insert(group.0);
        Ok(())
    }

    /// Whether an inode is marked as used.
    pub(crate) fn inode_used(&mut self, inode: InodeNr) -> Result<bool, Impossible> {
        let (group, index) = self.geo.place_of(inode).ok_or(Impossible)?;
        self.inode_bitmap(group.0).map(|bytes| bitmap::test(bytes, index))
    }

    /// Allocates a block, zeroed: the first one of a free cluster, best in the group of `near`.
    pub(crate) fn allocate(&mut self, near: InodeNr) -> Result<BlockNr, Impossible> {
        let (home, _) = self.geo.place_of(near).ok_or(Impossible)?;
        let groups = self.geo.group_count;
        for group in (home.0..groups).chain(0..home.0) {
            let free = self.groups.get(group as usize).map_or(0, |desc| desc.free_blocks_count);
            if free == 0 {
                continue;
            }
            let end = self.geo.clusters_of(GroupNr(group));
            let base = u64::from(group) * u64::from(self.geo.clusters_per_group);
            let mut at = 0;
            while let Some(bit) = bitmap::first_clear(self.block_bitmap(group)?, at..end) {
                self.charge(1 + self.reserved.len() as u64 / 16)?;
                let cluster = (base + u64::from(bit)) << self.geo.cluster_bits;
                let block = BlockNr(self.geo.first_data_block.0 + cluster);
                let run = BlockRun::new(block, u64::from(self.geo.cluster_blocks));
                if !self.is_reserved(run) && self.geo.contains(block) {
                    self.set_blocks(BlockRun::new(block, 1), true)?;
                    self.write_block(block, &vec![0; self.geo.block_size as usize])?;
                    return Ok(block);
                }
                at = bit + 1;
            }
        }
        Err(Impossible)
    }

    fn is_reserved(&self, run: BlockRun) -> bool {
        self.reserved.iter().any(|other| other.start < run.end() && run.start < other.end())
    }

    fn block_bitmap(&mut self, group: u32) -> Result<&mut Vec<u8>, Impossible> {
        if !self.block_bitmaps.contains_key(&group) {
            let desc = *self.groups.get(group as usize).ok_or(Impossible)?;
            let uninit = self.geo.features.group_desc_csum() && desc.block_uninit();
            let bytes =
                if uninit { self.fresh_bitmap(group) } else { self.read_block(desc.block_bitmap)? };
            self.block_bitmaps.insert(group, bytes);
        }
        self.block_bitmaps.get_mut(&group).ok_or(Impossible)
    }

    fn inode_bitmap(&mut self, group: u32) -> Result<&mut Vec<u8>, Impossible> {
        if !self.inode_bitmaps.contains_key(&group) {
            let desc = *self.groups.get(group as usize).ok_or(Impossible)?;
            let bytes = if self.geo.features.group_desc_csum() && desc.inode_uninit() {
                let mut bytes = vec![0; self.geo.block_size as usize];
                bitmap::fill(&mut bytes, self.geo.inodes_per_group..u32::MAX, true);
                bytes
            } else {
                self.read_block(desc.inode_bitmap)?
            };
            self.inode_bitmaps.insert(group, bytes);
        }
        self.inode_bitmaps.get_mut(&group).ok_or(Impossible)
    }

    /// The block bitmap of a group that was never initialised: its own metadata is in use.
    fn fresh_bitmap(&self, group: u32) -> Vec<u8> {
        let nr = GroupNr(group);
        let desc = self.groups.get(group as usize).copied().unwrap_or_default();
        let home = self.geo.blocks_of(nr);
        let table = BlockRun::new(desc.inode_table, u64::from(self.geo.inode_table_blocks));
        let head = self.geo.superblock_of(nr).map_or(0, |block| block.0 + 1 - home.start.0);
        let runs = [
            BlockRun::new(home.start, head),
            self.geo.group_desc_run(nr),
            self.geo.reserved_gdt_run(nr),
            BlockRun::new(desc.block_bitmap, 1),
            BlockRun::new(desc.inode_bitmap, 1),
            table,
        ];
        let mut bytes = vec![0; self.geo.block_size as usize];
        for run in runs {
            let (start, end) = (run.start.max(home.start).0, run.end().min(home.end()).0);
            if start < end {
                // Inside one group, so the differences fit.
                let first = ((start - home.start.0) >> self.geo.cluster_bits) as u32;
                let last = ((end - 1 - home.start.0) >> self.geo.cluster_bits) as u32;
                bitmap::fill(&mut bytes, first..last + 1, true);
            }
        }
        bitmap::fill(&mut bytes, self.geo.clusters_of(nr)..u32::MAX, true);
        bytes
    }

    /// Stages the changed bitmaps and descriptors with their checksums.
    pub(crate) fn finish(mut self) -> Result<(), Impossible> {
        for group in std::mem::take(&mut self.changed) {
            let mut desc = *self.groups.get(group as usize).ok_or(Impossible)?;
            let csum = self.geo.features.metadata_csum();
            let size = self.geo.desc_size;
            if let Some(bytes) = self.block_bitmaps.get(&group) {
                self.write_block(desc.block_bitmap, bytes)?;
                let crc = bitmap::checksum(self.seed, bytes, self.geo.clusters_per_group);
                if csum {
                    desc.block_bitmap_csum = bitmap::checksum_cut(crc, size);
                }
            }
            if let Some(bytes) = self.inode_bitmaps.get(&group) {
                self.write_block(desc.inode_bitmap, bytes)?;
                let crc = bitmap::checksum(self.seed, bytes, self.geo.inodes_per_group);
                if csum {
                    desc.inode_bitmap_csum = bitmap::checksum_cut(crc, size);
                }
            }
            self.write_desc(GroupNr(group), desc)?;
        }
        Ok(())
    }

    fn write_desc(&self, group: GroupNr, mut desc: GroupDesc) -> Result<(), Impossible> {
        let size = self.geo.desc_size;
        let per_block = self.geo.block_size / size;
        let block = self.geo.primary_desc_block(group.0 / per_block);
        let offset = self.geo.offset_bytes(block) + u64::from(group.0 % per_block * size);
        let mut raw = vec![0; size as usize];
        self.overlay.read_at(offset, &mut raw).map_err(|_| Impossible)?;
        desc.seal(&mut raw, group, DescChecksum::of(&self.sb));
        self.overlay.write_at(offset, &raw).map_err(|_| Impossible)
    }
}
