//! The map of a file as a list of runs. It is decoded from the inode and stored again; extent trees
//! and block maps are rebuilt from scratch, so that no node keeps stale entries.

use floe_format::ext::extent::Extent;
use floe_format::ext::inode::InodeFlags;
use floe_format::features::Incompat;
use floe_format::{BlockNr, BlockRun, Geometry, LogicalBlock};

use crate::failure::Failure;
use crate::stage::{InodeImage, Stage};
use floe_ext4::map::block_map::{self, MappedRun};
use floe_ext4::map::extent_tree::{self, NodeForm};
use floe_ext4::map::mapping::{BuildError, Built};
use floe_ext4::map::own_node::is_own_node;
use floe_ext4::map::walk::{Depths, Entry, Fault, Go, Visitor, has_map, push_joined, walk};

/// The blocks of a file.
#[derive(Clone, Debug, Default)]
pub struct FileMap {
    /// Whether the map is an extent tree; else it is a block map.
    pub extents: bool,
    /// Mapped runs, in the order of the map.
    pub runs: Vec<Extent>,
    /// Blocks of the map itself, as far as the examination followed it.
    pub nodes: Vec<BlockNr>,
    /// Whether part of the map hangs on a node that overlaps metadata. The examination followed
    /// nothing below such a node, so the nodes below may be other owners' blocks, and the data
    /// below counts as free.
    pub goes_on_unseen: bool,
}

impl FileMap {
    /// Decodes the map of an inode, omitting invalid entries.
    pub fn load(stage: &Stage<'_>, image: &InodeImage) -> Self {
        Self::load_without(stage, image, &mut |_| false)
    }

    /// The same, omitting entries for which `drop` returns true, with everything below them.
    pub(crate) fn load_without(
        stage: &Stage<'_>,
        image: &InodeImage,
        drop: &mut dyn FnMut(&Entry) -> bool,
    ) -> Self {
        let extents = image.flags().contains(InodeFlags::EXTENTS) && has_map(&image.base);
        let map = Self { extents, ..Self::default() };
        let seed = stage.checksummed().then(|| stage.inode_seed(image));
        let mut follow = Follow { stage, drop, seed, unseen: Vec::new(), map };
        if has_map(&image.base) {
            let (root, form) = (&image.base.block, stage.geometry.indirect());
            walk(root, image.flags(), form, Depths::OfAnyRoot, &mut follow);
        }
        follow.map
    }

    /// An empty map: extents if the file system has them.
    pub fn empty(stage: &Stage<'_>) -> Self {
        let extents = stage.geometry.features.incompat.contains(Incompat::EXTENTS);
        Self { extents, ..Self::default() }
    }

    /// The map of a new file of `blocks` blocks: one run if possible, else any free clusters.
    ///
    /// # Errors
    /// No space.
    pub fn allocate(stage: &mut Stage<'_>, blocks: u64) -> Result<Self, Failure> {
        let mut map = Self::empty(stage);
        let cluster = u64::from(stage.geometry.cluster_blocks);
        let mut add = |logical: u64, run| {
            map.runs.push(Extent { logical: LogicalBlock(logical), run, unwritten: false });
        };
        let (rooms, wanted) = (stage.rooms(), blocks.next_multiple_of(cluster));
        let run = rooms.into_iter().find_map(|room| stage.allocate_run(room, wanted).ok());
        if let Some(start) = run {
            add(0, BlockRun::new(start, blocks));
            return Ok(map);
        }
        let mut goal = stage.geometry.first_data_block;
        for logical in (0..blocks).step_by(stage.geometry.cluster_blocks as usize) {
            goal = stage.allocate(goal)?;
            add(logical, BlockRun::new(goal, cluster.min(blocks - logical)));
        }
        Ok(map)
    }

    /// Removes all mappings from logical block `blocks` on.
    pub fn truncate(&mut self, blocks: u64) {
        self.runs.retain_mut(|extent| {
            let left = blocks.saturating_sub(extent.logical.0);
            extent.run.len_blocks = extent.run.len_blocks.min(left);
            extent.run.len_blocks > 0
        });
    }

    /// Allocates every hole among the first `blocks` logical blocks, and marks unwritten extents as
    /// written.
    ///
    /// # Errors
    /// No space.
    pub fn fill(&mut self, stage: &mut Stage<'_>, blocks: u64) -> Result<(), Failure> {
        self.sort();
        for logical in (0..blocks).map(LogicalBlock) {
            if self.find_in_order(logical).is_none() {
                let block = self.block_for(stage, logical)?;
                self.insert(logical, block);
            }
        }
        for extent in &mut self.runs {
            extent.unwritten = false;
        }
        Ok(())
    }

    /// The physical block of a logical one.
    pub fn find(&self, logical: LogicalBlock) -> Option<BlockNr> {
        self.runs.iter().find_map(|extent| {
            let offset = logical.0.checked_sub(extent.logical.0)?;
            (offset < extent.run.len_blocks).then(|| BlockNr(extent.run.start.0 + offset))
        })
    }

    /// Sorts the runs by logical block.
    pub fn sort(&mut self) {
        self.runs.sort_by_key(|extent| extent.logical);
    }

    /// As [`FileMap::find`], by binary search: the runs must be sorted.
    pub(crate) fn find_in_order(&self, logical: LogicalBlock) -> Option<BlockNr> {
        let behind = self.runs.partition_point(|extent| extent.logical <= logical);
        let extent = self.runs.get(behind.checked_sub(1)?)?;
        let offset = logical.0 - extent.logical.0;
        (offset < extent.run.len_blocks).then(|| BlockNr(extent.run.start.0 + offset))
    }

    /// The logical block after the last mapped one.
    pub fn end(&self) -> u64 {
        self.runs.iter().map(|extent| extent.logical.0 + extent.run.len_blocks).max().unwrap_or(0)
    }

    /// Allocates a block for an unmapped logical one: from the cluster of its neighbours if they
    /// have one, else a new cluster.
    ///
    /// # Errors
    /// No space.
    pub(crate) fn block_for(
        &self,
        stage: &mut Stage<'_>,
        logical: LogicalBlock,
    ) -> Result<BlockNr, Failure> {
        let size = u64::from(stage.geometry.cluster_blocks);
        let place = logical.0 % size;
        let first = logical.0 - place;
        let neighbour = (first..first + size)
            .filter(|other| *other != logical.0)
            .find_map(|other| Some((other, self.find(LogicalBlock(other))?)));
        if let Some((other, block)) = neighbour {
            return Ok(BlockNr(block.0 - other % size + place));
        }
        let goal = self.runs.first().map_or(BlockNr(0), |extent| extent.run.start);
        Ok(BlockNr(stage.allocate(goal)?.0 + place))
    }

    /// Maps a logical block that has no mapping.
    pub fn insert(&mut self, logical: LogicalBlock, block: BlockNr) {
        let extent = Extent { logical, run: BlockRun::new(block, 1), unwritten: false };
        let at = self.runs.partition_point(|other| other.logical < logical);
        self.runs.insert(at, extent);
    }

    /// Remaps a logical block.
    pub fn replace(&mut self, logical: LogicalBlock, block: BlockNr) {
        self.set(logical, Some(block));
    }

    /// Turns a logical block into a hole.
    pub fn remove(&mut self, logical: LogicalBlock) {
        self.set(logical, None);
    }

    fn set(&mut self, logical: LogicalBlock, block: Option<BlockNr>) {
        let Some(at) = self.runs.iter().position(|extent| {
            logical.0 >= extent.logical.0 && logical.0 - extent.logical.0 < extent.run.len_blocks
        }) else {
            return;
        };
        let whole = self.runs.remove(at);
        let before = logical.0 - whole.logical.0;
        let piece = |from: u64, len: u64| Extent {
            logical: LogicalBlock(whole.logical.0 + from),
            run: BlockRun::new(BlockNr(whole.run.start.0 + from), len),
            unwritten: whole.unwritten,
        };
        let moved = block.map(|block| Extent {
            logical,
            run: BlockRun::new(block, 1),
            unwritten: whole.unwritten,
        });
        let behind = piece(before + 1, whole.run.len_blocks - before - 1);
        let pieces = [Some(piece(0, before)), moved, Some(behind)];
        let kept = pieces.into_iter().flatten().filter(|extent| extent.run.len_blocks > 0);
        self.runs.splice(at..at, kept);
    }

    /// Mapped blocks, including those of the map itself.
    pub fn blocks(&self) -> u64 {
        self.data_blocks() + self.nodes.len() as u64
    }

    /// Mapped blocks.
    pub(crate) fn data_blocks(&self) -> u64 {
        self.runs.iter().map(|extent| extent.run.len_blocks).sum()
    }

    /// The runs in the form that block maps use.
    fn mapped(&self) -> Vec<MappedRun> {
        let mapped = |extent: &Extent| MappedRun { logical: extent.logical, run: extent.run };
        self.runs.iter().map(mapped).collect()
    }

    /// Blocks that the map itself needs.
    ///
    /// # Errors
    /// Runs that overlap or do not fit the map.
    pub fn nodes_needed(&self, geometry: &Geometry) -> Result<usize, Failure> {
        if self.extents {
            extent_tree::nodes_needed(&self.runs, geometry.block_size)
        } else {
            block_map::nodes_needed(&self.mapped(), geometry.indirect())
        }
        .map_err(impossible)
    }

    /// Writes the map into the inode and its nodes, reusing the old nodes and allocating more as
    /// needed. Neither stages the inode nor updates `i_blocks`, which the next examination
    /// corrects.
    ///
    /// # Errors
    /// No space, or runs that overlap or do not fit the map.
    pub fn store(&mut self, stage: &mut Stage<'_>, image: &mut InodeImage) -> Result<(), Failure> {
        self.sort();
        // A node that other owners claim may hold their data, so it is not overwritten.
        self.nodes.retain(|&node| !stage.is_contested(node));
        let block_size = stage.geometry.block_size;
        let needed = self.nodes_needed(&stage.geometry)?;
        let goal = self.runs.first().map_or(BlockNr(0), |extent| extent.run.start);
        while self.nodes.len() < needed {
            let node = stage.allocate_metadata(image.number, goal)?;
            self.nodes.push(node);
        }
        self.nodes.truncate(needed);
        let Built { root, blocks } = if self.extents {
            let form = NodeForm {
                block_size,
                inode_seed: stage.checksummed().then(|| stage.inode_seed(image)),
                owner_hint: if stage.is_native() { image.number.0 } else { 0 },
            };
            extent_tree::build(&self.runs, form, &self.nodes)
        } else {
            let form = stage.geometry.indirect();
            block_map::build(&self.mapped(), form, image.number, &self.nodes)
        }
        .map_err(impossible)?;
        for (block, bytes) in blocks {
            stage.write_block(block, &bytes)?;
        }
        image.base.block = root;
        if self.extents {
            image.base.flags |= InodeFlags::EXTENTS.bits();
        } else {
            image.base.flags &= !InodeFlags::EXTENTS.bits();
        }
        Ok(())
    }
}

fn impossible(error: BuildError) -> Failure {
    Failure::together(&error)
}

/// Follows a map as the examination does: it ignores the depth that nodes below the root state, and
/// levels that are too deep.
struct Follow<'w, 'a> {
    stage: &'w Stage<'a>,
    drop: &'w mut dyn FnMut(&Entry) -> bool,
    /// That of the checksums of nodes, if there are any.
    seed: Option<u32>,
    /// For each node on the current path: whether the examination did not follow it or one of its
    /// ancestors.
    unseen: Vec<bool>,
    map: FileMap,
}

impl Follow<'_, '_> {
    /// Whether the examination did not follow a node, because it lies on metadata and is not this file's by
    /// what lies there. Pointers say nothing of that kind.
    fn is_unseen(&self, entry: &Entry) -> bool {
        let volume = &self.stage.evidence.volume;
        let node = entry.extent.run.start;
        if !volume.is_metadata(node) {
            return false;
        }
        let depth = entry.level.saturating_sub(1);
        let is_own = |bytes: Vec<u8>| {
            is_own_node(&bytes, depth, self.seed, |run| volume.is_free_of_metadata(run))
        };
        !self.map.extents || !self.stage.read_block(node).is_ok_and(is_own)
    }
}

impl Visitor for Follow<'_, '_> {
    fn read(&mut self, node: BlockNr) -> Option<Vec<u8>> {
        self.stage.read_block(node).ok()
    }

    fn entry(&mut self, entry: &Entry) -> Go {
        if (self.drop)(entry) {
            return Go::Past;
        }
        match (entry.level, self.map.extents) {
            (0, true) => self.map.runs.push(entry.extent),
            (0, false) => push_joined(&mut self.map.runs, entry.extent),
            _ => {}
        }
        Go::On
    }

    fn enter(&mut self, entry: &Entry) {
        let node = entry.extent.run.start;
        let above = self.unseen.last().copied().unwrap_or(false);
        if !above {
            self.map.nodes.push(node);
        }
        let unseen = above || self.is_unseen(entry);
        self.map.goes_on_unseen |= unseen;
        self.unseen.push(unseen);
    }

    fn leave(&mut self, _: &Entry) {
        self.unseen.pop();
    }

    fn fault(&mut self, _: Fault) -> Go {
        Go::Past
    }
}
