//! Blocks of files: taken, mapped and freed.

use std::collections::BTreeSet;
use std::ops::Range;

use floe_ext4::alloc::Allocate;
use floe_ext4::map::edit::TreeEditor;
use floe_ext4::map::file;
use floe_ext4::map::pointers::nodes_above;
use floe_format::ext::extent::Extent;
use floe_format::ext::inode::{FileType, InodeFlags, OwnedInode};
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

use super::OpError;
use super::staged::Op;

impl Op<'_> {
    /// The first extent of a file that ends behind a block.
    pub(crate) fn next_extent(
        &mut self,
        inode: &OwnedInode,
        from: LogicalBlock,
    ) -> Result<Option<Extent>, OpError> {
        let extent = file::look(&self.volume.fs, inode).next(&mut self.tx, from)?;
        let Some(found) = extent else { return Ok(None) };
        self.volume.fs.space.refuse_system(found.run)?;
        if let Err(refusal) = self.volume.fs.space.judge_own(inode.number, found.run)
            && !self.is_super_file(inode.number)
        {
            return Err(refusal.into());
        }
        if !inode.flags().contains(InodeFlags::EXTENTS) {
            // An indirect block has no checksum, and any block can be taken for one.
            let (root, form) = (&inode.base.block, self.volume.geometry().indirect());
            for node in nodes_above(&mut self.tx, root, form, found.logical)? {
                self.volume.fs.space.judge_node(node)?;
                self.volume.fs.space.judge_own(inode.number, BlockRun::new(node, 1))?;
            }
        }
        Ok(extent)
    }

    /// Where blocks for a logical block lie best: behind the one before it, else in the inode's group. Blocks that others put
    /// outside of the inode's cube draw no further ones there, and behind the last block of the disk there is none.
    fn goal(&mut self, inode: &OwnedInode, at: LogicalBlock) -> Result<BlockNr, OpError> {
        if inode.file_type() == Some(FileType::Directory)
            && let Some(home) = file::home_region(self.volume.geometry(), inode.number)
        {
            return Ok(home);
        }
        let near = self.goal_near(inode, at)?;
        let (geo, space) = (self.volume.geometry(), &self.volume.fs.space);
        let is_own = |group| space.cube_of_group(group) == space.cube_of(inode.number);
        match geo.place_of(inode.number) {
            Some((home, _)) if !geo.group_of(near).is_some_and(is_own) => Ok(geo.group_start(home)),
            _ => Ok(near),
        }
    }

    fn goal_near(&mut self, inode: &OwnedInode, at: LogicalBlock) -> Result<BlockNr, OpError> {
        if let Some(before) = at.0.checked_sub(1) {
            let extent = self.next_extent(inode, LogicalBlock(before))?;
            if let Some(extent) = extent.filter(|extent| extent.logical.0 <= before) {
                return Ok(BlockNr(extent.run.start.0 + (at.0 - extent.logical.0)));
            }
        }
        let directory = inode.backpointer().map(|own| InodeNr(own.parent));
        let home = self.volume.fs.space.home_of_data(inode.number, directory);
        let geo = self.volume.geometry();
        Ok(home.map_or(geo.first_data_block, |group| geo.group_start(group)))
    }

    /// Takes blocks for a hole of a file that begins at `at` and is at least `len_blocks` long: 1 to so many, and the rest of
    /// a cluster that the file has already comes first. `i_blocks` follows; nothing is mapped yet.
    pub(crate) fn allocate(
        &mut self,
        inode: &mut OwnedInode,
        at: LogicalBlock,
        len_blocks: u64,
    ) -> Result<BlockRun, OpError> {
        let bits = self.volume.geometry().cluster_bits;
        if bits == 0 {
            let goal = self.goal(inode, at)?;
            let (space, tx) = (&mut self.volume.fs.space, &mut self.tx);
            let run = match inode.file_type() {
                Some(FileType::Directory) => BlockRun::new(space.block(tx, goal)?, 1),
                // A check reads the targets of links, too.
                Some(FileType::Symlink) => BlockRun::new(space.block_of_other(tx, goal)?, 1),
                _ => space.run(tx, goal, len_blocks)?,
            };
            file::count(&self.volume.fs, inode, run.len_blocks.cast_signed());
            return Ok(run);
        }
        let (within, size) = (at.0 & ((1 << bits) - 1), 1 << bits);
        let cluster = at.0 - within;
        let end = at.0 + len_blocks;
        if let Some(own) = self.block_in_cluster(inode, cluster)? {
            return Ok(BlockRun::new(BlockNr(own.0 + within), len_blocks.min(size - within)));
        }
        // The last cluster may be the file's already, for blocks behind the hole.
        let last = (end - 1) & !(size - 1);
        let shared = last > cluster && self.block_in_cluster(inode, last)?.is_some();
        let end = if shared { last } else { end };
        let goal = self.goal(inode, LogicalBlock(cluster))?;
        let wanted = (end - cluster).next_multiple_of(size);
        let run = self.volume.fs.space.run(&mut self.tx, goal, wanted)?;
        file::count(&self.volume.fs, inode, run.len_blocks.div_ceil(size).cast_signed());
        let len = (run.len_blocks - within).min(end - at.0);
        Ok(BlockRun::new(BlockNr(run.start.0 + within), len))
    }

    /// Where the cluster of a file that begins at a logical block lies; `None` if nothing of it is mapped.
    fn block_in_cluster(
        &mut self,
        inode: &OwnedInode,
        cluster: u64,
    ) -> Result<Option<BlockNr>, OpError> {
        let end = cluster + u64::from(self.volume.geometry().cluster_blocks);
        let extent = self.next_extent(inode, LogicalBlock(cluster))?;
        let extent = extent.filter(|extent| extent.logical.0 < end);
        Ok(extent.map(|extent| {
            // Either the extent begins before the cluster, or inside it.
            let start = extent.run.start.0 + cluster.saturating_sub(extent.logical.0);
            BlockNr(start - extent.logical.0.saturating_sub(cluster))
        }))
    }

    /// Maps blocks that were taken.
    pub(crate) fn map_run(
        &mut self,
        inode: &mut OwnedInode,
        logical: LogicalBlock,
        run: BlockRun,
        unwritten: bool,
    ) -> Result<(), OpError> {
        let extent = Extent { logical, run, unwritten };
        Ok(file::insert(&mut self.tx, &mut self.volume.fs, inode, extent)?)
    }

    /// Says of mapped blocks whether they were written.
    pub(crate) fn remap(
        &mut self,
        inode: &mut OwnedInode,
        part: Extent,
        unwritten: bool,
    ) -> Result<(), OpError> {
        let range = part.logical.0..part.logical.0 + part.run.len_blocks;
        file::remove(&mut self.tx, &mut self.volume.fs, inode, range)?;
        self.map_run(inode, part.logical, part.run, unwritten)
    }

    /// Extents of a file as far as they lie in a range.
    pub(crate) fn extents_in(
        &mut self,
        inode: &OwnedInode,
        range: Range<u64>,
    ) -> Result<Vec<Extent>, OpError> {
        let (mut at, mut found) = (range.start, Vec::new());
        while at < range.end {
            let Some(extent) = self.next_extent(inode, LogicalBlock(at))? else { break };
            let from = extent.logical.0.max(at);
            let to = (extent.logical.0 + extent.run.len_blocks).min(range.end);
            if from >= to {
                break;
            }
            let start = BlockNr(extent.run.start.0 + (from - extent.logical.0));
            let run = BlockRun::new(start, to - from);
            found.push(Extent { logical: LogicalBlock(from), run, ..extent });
            at = to;
        }
        Ok(found)
    }

    /// Makes a range of blocks of a file a hole and frees what was mapped there. The inode is the caller's to write.
    pub(crate) fn free_range(
        &mut self,
        inode: &mut OwnedInode,
        range: Range<u64>,
    ) -> Result<(), OpError> {
        let extents = self.extents_in(inode, range.clone())?;
        file::remove(&mut self.tx, &mut self.volume.fs, inode, range)?;
        let bits = self.volume.geometry().cluster_bits;
        // Values of attributes are metadata, and so is what was one (`count_value`).
        let logged = InodeFlags::EA_INODE | InodeFlags::JOURNAL_DATA;
        let is_data =
            inode.file_type() == Some(FileType::Regular) && !inode.flags().intersects(logged);
        let mut done = BTreeSet::new();
        for extent in extents {
            let run = self.unshared(inode, &extent, &mut done)?;
            if run.len_blocks == 0 {
                continue;
            }
            if is_data && !self.volume.fs.space.logs_data(run.start) {
                self.volume.fs.space.release_data(&mut self.tx, run)?;
            } else {
                self.release_metadata(run)?;
            }
            let clusters = run.len_blocks.div_ceil(1 << bits);
            file::count(&self.volume.fs, inode, -clusters.cast_signed());
        }
        Ok(())
    }

    /// The part of an extent that is no longer mapped whose clusters the file does not use any more. `done` has the clusters
    /// at whose edges others met.
    fn unshared(
        &mut self,
        inode: &OwnedInode,
        extent: &Extent,
        done: &mut BTreeSet<u64>,
    ) -> Result<BlockRun, OpError> {
        let bits = self.volume.geometry().cluster_bits;
        if bits == 0 {
            return Ok(extent.run);
        }
        let size = 1u64 << bits;
        let mut first = extent.logical.0 & !(size - 1);
        let mut end = (extent.logical.0 + extent.run.len_blocks).next_multiple_of(size);
        let start = extent.run.start.0 - (extent.logical.0 - first);
        let origin = first;
        for edge in BTreeSet::from([first, end - size]) {
            if self.block_in_cluster(inode, edge)?.is_some() || !done.insert(edge) {
                if edge == first {
                    first += size;
                } else {
                    end -= size;
                }
            }
        }
        Ok(BlockRun::new(BlockNr(start + (first - origin)), end.saturating_sub(first)))
    }

    /// Gives an inode a map without blocks.
    pub(crate) fn empty_map(&self, inode: &mut OwnedInode) {
        let extents = self.volume.geometry().features.incompat;
        let extents = extents.contains(floe_format::features::Incompat::EXTENTS);
        inode.set_flags(InodeFlags::EXTENTS, extents);
        inode.base.block = if extents { TreeEditor::EMPTY } else { [0; 60] };
    }
}
