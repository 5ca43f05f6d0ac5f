//! Groups: bitmaps, counts and checksums, changed together.

use std::ops::Range;

use floe_format::crc::Seed;
use floe_format::ext::bitmap;
use floe_format::ext::group_desc::{DescChecksum, FLAG_BLOCK_UNINIT, FLAG_INODE_UNINIT, GroupDesc};
use floe_format::ext::superblock::Superblock;
use floe_format::{BlockNr, BlockRun, ClusterNr, Geometry, GroupNr, InodeNr};
use floe_sync::Arc;

use crate::inode_table::{desc_place, inode_place};
use crate::tx::{Block, Refusal, Tx, own_bytes, verify};

/// The groups of a file system. Each change of a bitmap also updates the counts of its descriptor
/// and both checksums. The caller updates the totals of the superblock ([`Groups::free_clusters`],
/// [`Groups::free_inodes`]).
#[derive(Clone, Debug)]
pub struct Groups {
    geometry: Geometry,
    checksum: DescChecksum,
    /// The seed of bitmap checksums, with metadata_csum.
    seed: Option<Seed>,
    descs: Vec<GroupDesc>,
    /// Free inodes of all of them.
    free_inodes: u64,
    /// Descriptors as they were before each change since the mark, oldest first.
    before: Option<Vec<(GroupNr, GroupDesc)>>,
}

impl Groups {
    /// The groups of a file system with these descriptors (`inode_table::read_groups`).
    pub fn new(superblock: &Superblock, geometry: Geometry, descs: Vec<GroupDesc>) -> Self {
        let seed = geometry.features.metadata_csum().then(|| superblock.seed());
        let free_inodes = descs.iter().map(|desc| u64::from(desc.free_inodes_count)).sum();
        let checksum = DescChecksum::of(superblock);
        Self { geometry, checksum, seed, descs, free_inodes, before: None }
    }

    /// The geometry.
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// All descriptors, including changes.
    pub fn descs(&self) -> &[GroupDesc] {
        &self.descs
    }

    /// The descriptor of a group.
    ///
    /// # Errors
    /// [`Refusal::Missing`].
    pub fn desc(&self, group: GroupNr) -> Result<GroupDesc, Refusal> {
        self.descs.get(group.0 as usize).copied().ok_or(Refusal::Missing("such group"))
    }

    /// Free clusters of all groups.
    pub fn free_clusters(&self) -> u64 {
        self.descs.iter().map(|desc| u64::from(desc.free_blocks_count)).sum()
    }

    /// Free inodes of all groups.
    pub const fn free_inodes(&self) -> u64 {
        self.free_inodes
    }

    /// The clusters of a run that lies inside the file system.
    fn clusters_of(&self, run: BlockRun) -> Result<Range<ClusterNr>, Refusal> {
        let geo = &self.geometry;
        if !geo.contains(run.start) || run.end().0 > geo.blocks_count {
            return Err(Refusal::Outside(run.start));
        }
        let last = geo.cluster_of(BlockNr(run.end().0.saturating_sub(1).max(run.start.0)));
        Ok(ClusterNr(geo.cluster_of(run.start))..ClusterNr(last + 1))
    }

    /// Marks the clusters of a run of blocks as used or free. Returns how many of them changed.
    ///
    /// # Errors
    /// [`Refusal::Outside`], or an error of reading or changing a bitmap or descriptor.
    pub fn mark_blocks(
        &mut self,
        tx: &mut dyn Tx,
        run: BlockRun,
        used: bool,
    ) -> Result<u64, Refusal> {
        if run.len_blocks == 0 {
            return Ok(0);
        }
        let clusters = self.clusters_of(run)?;
        let per_group = u64::from(self.geometry.clusters_per_group);
        let (mut at, mut changed) = (clusters.start.0, 0);
        while at < clusters.end.0 {
            let group = at / per_group;
            let end = ((group + 1) * per_group).min(clusters.end.0);
            // The clusters of a group and the number of a group fit 32 bits.
            let bits = (at - group * per_group) as u32..(end - group * per_group) as u32;
            changed += u64::from(self.mark_in_group(tx, GroupNr(group as u32), bits, used)?);
            at = end;
        }
        Ok(changed)
    }

    fn mark_in_group(
        &mut self,
        tx: &mut dyn Tx,
        group: GroupNr,
        bits: Range<u32>,
        used: bool,
    ) -> Result<u32, Refusal> {
        let mut desc = self.desc(group)?;
        let mut bytes = self.block_bitmap(tx, group)?;
        let (len, set) = (bits.end - bits.start, bitmap::count(&bytes, bits.clone()));
        let changed = if used { len - set } else { set };
        bitmap::fill(own_bytes(&mut bytes), bits, used);
        desc.flags &= !FLAG_BLOCK_UNINIT;
        desc.free_blocks_count = if used {
            desc.free_blocks_count.saturating_sub(changed)
        } else {
            desc.free_blocks_count.saturating_add(changed)
        };
        if let Some(seed) = self.seed {
            let crc = bitmap::checksum(seed, &bytes, self.geometry.clusters_per_group);
            desc.block_bitmap_csum = bitmap::checksum_cut(crc, self.geometry.desc_size);
        }
        tx.put(desc.block_bitmap, bytes)?;
        self.put_desc(tx, group, desc)?;
        Ok(changed)
    }

    /// Marks an inode as used or free, and updates the counts, for a directory the count of
    /// directories, too. Zeroes inodes before it that were never written if the descriptor no
    /// longer excludes them (`bg_itable_unused`). Returns whether it changed.
    ///
    /// # Errors
    /// Those of [`Groups::mark_blocks`]; [`Refusal::Missing`] if there is no such inode.
    pub fn mark_inode(
        &mut self,
        tx: &mut dyn Tx,
        inode: InodeNr,
        used: bool,
        is_directory: bool,
    ) -> Result<bool, Refusal> {
        let place = self.geometry.place_of(inode);
        let (group, index) = place.ok_or(Refusal::Missing("such inode"))?;
        let mut desc = self.desc(group)?;
        let per_group = self.geometry.inodes_per_group;
        let mut bytes = self.inode_bitmap(tx, group)?;
        let was_used = bitmap::test(&bytes, index);
        bitmap::fill(own_bytes(&mut bytes), index..index + 1, used);
        let hides = self.geometry.features.group_desc_csum();
        if hides && desc.inode_uninit() {
            desc.flags &= !FLAG_INODE_UNINIT;
            desc.itable_unused = per_group;
        }
        if hides && used {
            // These were never written, but readers will now read them.
            for hidden in per_group.saturating_sub(desc.itable_unused)..index {
                self.zero_inode(tx, self.geometry.inode_at(group, hidden))?;
            }
        }
        desc.itable_unused = desc.itable_unused.min(per_group - index - 1);
        let directories = u32::from(is_directory);
        match (was_used, used) {
            (false, true) => {
                desc.free_inodes_count = desc.free_inodes_count.saturating_sub(1);
                desc.used_dirs_count = desc.used_dirs_count.saturating_add(directories);
            }
            (true, false) => {
                desc.free_inodes_count = desc.free_inodes_count.saturating_add(1);
                desc.used_dirs_count = desc.used_dirs_count.saturating_sub(directories);
            }
            _ => {}
        }
        self.put_inode_bitmap(tx, &mut desc, bytes)?;
        self.put_desc(tx, group, desc)?;
        Ok(was_used != used)
    }

    /// Inodes by their number in the group that were never written, as the descriptor says, in blocks of the table before that
    /// of an inode: they are zeroed before it is used.
    fn hidden_before(&self, inode: InodeNr) -> Result<(GroupNr, Range<u32>), Refusal> {
        let geo = &self.geometry;
        let (group, index) = geo.place_of(inode).ok_or(Refusal::Missing("such inode"))?;
        let desc = self.desc(group)?;
        let per_block = (geo.block_size / geo.inode_size).max(1);
        let written = match geo.features.group_desc_csum() {
            true if desc.inode_uninit() => 0,
            true => geo.inodes_per_group.saturating_sub(desc.itable_unused),
            false => geo.inodes_per_group,
        };
        Ok((group, written..(index - index % per_block).max(written)))
    }

    /// Whether all blocks of the table of inodes before that of an inode have been written. If not, [`Groups::mark_inode`]
    /// changes each of them.
    ///
    /// # Errors
    /// [`Refusal::Missing`] if there is no such inode.
    pub fn is_table_open(&self, inode: InodeNr) -> Result<bool, Refusal> {
        Ok(self.hidden_before(inode)?.1.is_empty())
    }

    /// Zeroes the next block of the table of inodes that was never written, of those before the block of an inode, so that
    /// readers may read it from now on. Returns whether [`Groups::is_table_open`] then.
    ///
    /// # Errors
    /// As [`Groups::mark_inode`].
    pub fn open_table(&mut self, tx: &mut dyn Tx, inode: InodeNr) -> Result<bool, Refusal> {
        let (group, hidden) = self.hidden_before(inode)?;
        if hidden.is_empty() {
            return Ok(true);
        }
        let geo = &self.geometry;
        let per_block = (geo.block_size / geo.inode_size).max(1);
        let end = (hidden.start - hidden.start % per_block + per_block).min(hidden.end);
        for index in hidden.start..end {
            self.zero_inode(tx, geo.inode_at(group, index))?;
        }
        let mut desc = self.desc(group)?;
        desc.itable_unused = geo.inodes_per_group - end;
        if desc.inode_uninit() {
            let bytes = self.inode_bitmap(tx, group)?;
            self.put_inode_bitmap(tx, &mut desc, bytes)?;
        }
        self.put_desc(tx, group, desc)?;
        Ok(end == hidden.end)
    }

    /// Writes a bitmap of inodes, which has a checksum from then on.
    fn put_inode_bitmap(
        &self,
        tx: &mut dyn Tx,
        desc: &mut GroupDesc,
        bytes: Block,
    ) -> Result<(), Refusal> {
        desc.flags &= !FLAG_INODE_UNINIT;
        if let Some(seed) = self.seed {
            let crc = bitmap::checksum(seed, &bytes, self.geometry.inodes_per_group);
            desc.inode_bitmap_csum = bitmap::checksum_cut(crc, self.geometry.desc_size);
        }
        tx.put(desc.inode_bitmap, bytes)
    }

    /// Makes all bytes of an inode zero.
    ///
    /// # Errors
    /// [`Refusal::Missing`], or an error of reading or changing its block.
    pub(crate) fn zero_inode(&self, tx: &mut dyn Tx, inode: InodeNr) -> Result<(), Refusal> {
        let (block, at) = inode_place(inode, &self.geometry, &self.descs)
            .ok_or(Refusal::Missing("such inode, or its table has no place"))?;
        let size = self.geometry.inode_size as usize;
        if let Some(raw) = tx.block_mut(block)?.get_mut(at..at + size) {
            raw.fill(0);
        }
        Ok(())
    }

    /// Whether an inode is marked as used.
    ///
    /// # Errors
    /// Those of [`Groups::mark_inode`].
    pub fn is_inode_used(&self, tx: &mut dyn Tx, inode: InodeNr) -> Result<bool, Refusal> {
        let place = self.geometry.place_of(inode);
        let (group, index) = place.ok_or(Refusal::Missing("such inode"))?;
        Ok(bitmap::test(&self.inode_bitmap(tx, group)?, index))
    }

    /// The block bitmap of a group; for an uninitialised one (BLOCK_UNINIT), the bitmap it stands
    /// for.
    ///
    /// # Errors
    /// [`Refusal::Missing`], [`Refusal::Checksum`], or an error of reading it.
    pub fn block_bitmap(&self, tx: &mut dyn Tx, group: GroupNr) -> Result<Block, Refusal> {
        let desc = self.desc(group)?;
        if self.geometry.features.group_desc_csum() && desc.block_uninit() {
            return Ok(Arc::new(self.first_block_bitmap(group, &desc)));
        }
        let bits = self.geometry.clusters_per_group;
        let stored = desc.block_bitmap_csum;
        self.verified(tx, desc.block_bitmap, "a block bitmap", stored, bits)
    }

    /// The inode bitmap of a group; for an uninitialised one (INODE_UNINIT), the bitmap it stands
    /// for.
    ///
    /// # Errors
    /// Those of [`Groups::block_bitmap`].
    pub fn inode_bitmap(&self, tx: &mut dyn Tx, group: GroupNr) -> Result<Block, Refusal> {
        let desc = self.desc(group)?;
        if self.geometry.features.group_desc_csum() && desc.inode_uninit() {
            let mut bytes = vec![0; self.geometry.block_size as usize];
            bitmap::fill(&mut bytes, self.geometry.inodes_per_group..u32::MAX, true);
            return Ok(Arc::new(bytes));
        }
        let bits = self.geometry.inodes_per_group;
        let stored = desc.inode_bitmap_csum;
        self.verified(tx, desc.inode_bitmap, "an inode bitmap", stored, bits)
    }

    /// A bitmap, whose checksum is `stored` in its descriptor.
    fn verified(
        &self,
        tx: &mut dyn Tx,
        block: BlockNr,
        what: &'static str,
        stored: u32,
        bits_per_group: u32,
    ) -> Result<Block, Refusal> {
        let bytes = tx.block(block)?;
        if let Some(seed) = self.seed {
            let crc = || bitmap::checksum(seed, &bytes, bits_per_group);
            verify(tx, what, || bitmap::checksum_fits(stored, crc(), self.geometry.desc_size))?;
        }
        Ok(bytes)
    }

    /// The block bitmap of a group with BLOCK_UNINIT: the metadata in the group is in use.
    fn first_block_bitmap(&self, group: GroupNr, desc: &GroupDesc) -> Vec<u8> {
        let geo = &self.geometry;
        let home = geo.blocks_of(group);
        let runs = metadata_runs(geo, group, desc);
        let mut bytes = vec![0; geo.block_size as usize];
        for run in runs {
            let (start, end) = (run.start.max(home.start).0, run.end().min(home.end()).0);
            if start < end {
                // Both lie in one group, so the differences fit.
                let first = ((start - home.start.0) >> geo.cluster_bits) as u32;
                let last = ((end - 1 - home.start.0) >> geo.cluster_bits) as u32;
                bitmap::fill(&mut bytes, first..last + 1, true);
            }
        }
        bitmap::fill(&mut bytes, geo.clusters_of(group)..u32::MAX, true);
        bytes
    }

    /// Keeps descriptors as they are now, for [`Groups::roll_back`].
    pub fn mark(&mut self) {
        self.before = Some(Vec::new());
    }

    /// Keeps the changes since the mark.
    pub fn keep(&mut self) {
        self.before = None;
    }

    /// Gives up the changes since the mark, with those of the transaction. Nothing is read.
    pub fn roll_back(&mut self) {
        for (group, desc) in self.before.take().into_iter().flatten().rev() {
            self.replace(group, desc);
        }
    }

    /// Changes bytes of a descriptor that no field covers, and its checksum.
    ///
    /// # Errors
    /// [`Refusal::Missing`], or an error of reading or changing its block.
    pub fn edit_private(
        &mut self,
        tx: &mut dyn Tx,
        group: GroupNr,
        edit: impl FnOnce(&mut [u8]),
    ) -> Result<(), Refusal> {
        let desc = self.desc(group)?;
        self.change_desc(tx, group, desc, edit)
    }

    /// Writes a descriptor with its checksum.
    fn put_desc(
        &mut self,
        tx: &mut dyn Tx,
        group: GroupNr,
        desc: GroupDesc,
    ) -> Result<(), Refusal> {
        self.change_desc(tx, group, desc, |_| ())
    }

    /// Writes a descriptor with its checksum, and edits the rest of its bytes. One whose stored checksum is wrong is refused by
    /// a transaction that verifies: what is not changed in it would get a right one.
    fn change_desc(
        &mut self,
        tx: &mut dyn Tx,
        group: GroupNr,
        mut desc: GroupDesc,
        edit: impl FnOnce(&mut [u8]),
    ) -> Result<(), Refusal> {
        let (block, at) = desc_place(group, &self.geometry);
        let (size, verifies) = (self.geometry.desc_size as usize, tx.verifies());
        if let Some(raw) = tx.block_mut(block)?.get_mut(at..at + size) {
            let expected = self.checksum.compute(group, raw).filter(|_| verifies);
            if expected.is_some_and(|expected| GroupDesc::of(raw).checksum != expected) {
                return Err(Refusal::Checksum("a group descriptor"));
            }
            edit(raw);
            desc.seal(raw, group, self.checksum);
        }
        if let Some(old) = self.replace(group, desc)
            && let Some(before) = &mut self.before
        {
            before.push((group, old));
        }
        Ok(())
    }

    /// Replaces a descriptor in memory; returns the one before.
    fn replace(&mut self, group: GroupNr, desc: GroupDesc) -> Option<GroupDesc> {
        let own = self.descs.get_mut(group.0 as usize)?;
        let old = std::mem::replace(own, desc);
        self.free_inodes += u64::from(desc.free_inodes_count);
        self.free_inodes -= u64::from(old.free_inodes_count);
        Some(old)
    }
}

/// Blocks of the file system itself that belong to a group, wherever they lie: copies of the superblock, with what is before
/// them, and of the descriptors, reserved descriptors, bitmaps, inode table. Runs may be empty.
pub fn metadata_runs(geo: &Geometry, group: GroupNr, desc: &GroupDesc) -> [BlockRun; 6] {
    let start = geo.group_start(group);
    let head = geo.superblock_of(group).map_or(0, |block| block.0 + 1 - start.0);
    [
        BlockRun::new(start, head),
        geo.group_desc_run(group),
        geo.reserved_gdt_run(group),
        BlockRun::new(desc.block_bitmap, 1),
        BlockRun::new(desc.inode_bitmap, 1),
        BlockRun::new(desc.inode_table, u64::from(geo.inode_table_blocks)),
    ]
}
