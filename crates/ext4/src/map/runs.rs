//! The runs of files whose map must be intact: journals, quota files, orphan files.

use floe_blockdev::ReadBlocks;
use floe_format::ext::extent::Extent;
use floe_format::ext::inode::{Inode, InodeFlags};
use floe_format::{BlockNr, BlockRun, Geometry, LogicalBlock};

use super::mapping::ROOT_BYTES;
use super::walk::{self, Depths, Entry, Fault, Go, Visitor};

/// The map has a node that is unreadable, damaged, outside the file system or named twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamagedMap;

/// The mapping of a file: runs that are sorted, do not overlap and lie inside the file system.
///
/// The depth stored in nodes below the root is ignored, as in the check of inodes and in e2fsck, so
/// that a wrong depth does not cost the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockMap {
    runs: Vec<Extent>,
    /// Blocks of the map itself (mapping blocks).
    pub nodes: Vec<BlockNr>,
}

impl BlockMap {
    /// Reads the map of an inode, up to logical block `limit_blocks`.
    ///
    /// # Errors
    /// [`DamagedMap`].
    pub fn of(
        inode: &Inode<'_>,
        device: &dyn ReadBlocks,
        geo: &Geometry,
        limit_blocks: u64,
    ) -> Result<Self, DamagedMap> {
        Self::of_words(&inode.base.block, inode.flags(), device, geo, limit_blocks)
    }

    /// The same for the 60 bytes of `i_block`.
    ///
    /// # Errors
    /// [`DamagedMap`].
    pub(crate) fn of_words(
        words: &[u8; ROOT_BYTES],
        flags: InodeFlags,
        device: &dyn ReadBlocks,
        geo: &Geometry,
        limit_blocks: u64,
    ) -> Result<Self, DamagedMap> {
        let mut read = |node| {
            let mut bytes = vec![0; geo.block_size as usize];
            device.read_at(geo.offset_bytes(node), &mut bytes).ok().map(|()| bytes)
        };
        Self::follow(words, flags, geo, Depths::OfRoot, limit_blocks, &mut read)
    }

    /// The same, with blocks read by `read`, which is called once for each and only for blocks
    /// inside the file system.
    ///
    /// # Errors
    /// [`DamagedMap`].
    pub fn follow(
        words: &[u8; ROOT_BYTES],
        flags: InodeFlags,
        geo: &Geometry,
        depths: Depths,
        limit_blocks: u64,
        read: &mut dyn FnMut(BlockNr) -> Option<Vec<u8>>,
    ) -> Result<Self, DamagedMap> {
        let map = Self::default();
        let mut reader = Reader { read, geo, limit_blocks, map, damaged: false };
        walk::walk(words, flags, geo.indirect(), depths, &mut reader);
        if reader.damaged { Err(DamagedMap) } else { Ok(reader.map) }
    }

    /// All blocks in use: runs of data, then the mapping blocks.
    pub fn all_runs(&self) -> impl Iterator<Item = BlockRun> + '_ {
        let nodes = self.nodes.iter().map(|&node| BlockRun::new(node, 1));
        self.runs.iter().map(|extent| extent.run).chain(nodes)
    }

    /// The runs, in order.
    pub fn runs(&self) -> &[Extent] {
        &self.runs
    }

    /// Clusters in use, by data and by the map.
    pub fn clusters(&self, geo: &Geometry) -> u64 {
        let bits = geo.cluster_bits;
        // Extents in the same cluster are adjacent, so each cluster is counted at its first extent.
        let (mut clusters, mut last) = (0u64, None);
        for run in self.all_runs().filter(|run| run.len_blocks > 0) {
            let (from, to) = (run.start.0 >> bits, run.end().0.saturating_sub(1) >> bits);
            clusters += to - from + 1 - u64::from(last == Some(from));
            last = Some(to);
        }
        clusters
    }

    /// The data blocks, in order: all that the map names, whatever the size of the file.
    pub fn blocks(&self) -> impl Iterator<Item = BlockNr> + '_ {
        self.runs.iter().flat_map(|extent| (extent.run.start.0..extent.run.end().0).map(BlockNr))
    }

    /// The physical block of a logical block.
    pub fn block(&self, logical: u64) -> Option<BlockNr> {
        let at = self.runs.partition_point(|run| run.logical.0 <= logical).checked_sub(1)?;
        let extent = self.runs.get(at)?;
        let offset = logical - extent.logical.0;
        (offset < extent.run.len_blocks).then(|| BlockNr(extent.run.start.0 + offset))
    }

    /// Number of logical blocks before the first hole.
    pub fn blocks_without_hole(&self) -> u64 {
        let mut end = 0;
        for extent in &self.runs {
            if extent.logical.0 != end {
                break;
            }
            end += extent.run.len_blocks;
        }
        end
    }
}

struct Reader<'a> {
    read: &'a mut dyn FnMut(BlockNr) -> Option<Vec<u8>>,
    geo: &'a Geometry,
    limit_blocks: u64,
    map: BlockMap,
    damaged: bool,
}

impl Reader<'_> {
    fn damage(&mut self) -> Go {
        self.damaged = true;
        Go::End
    }

    /// Adds a run of data, as far as it lies below the limit.
    fn data(&mut self, mut extent: Extent) -> Go {
        let (logical, run) = (extent.logical.0, extent.run);
        let inside = self.geo.contains(run.start) && run.end().0 <= self.geo.blocks_count;
        let after = |last: &Extent| last.logical.0 + last.run.len_blocks <= logical;
        if !inside || !self.map.runs.last().is_none_or(after) {
            return self.damage();
        }
        extent.run.len_blocks = run.len_blocks.min(self.limit_blocks.saturating_sub(logical));
        // It does not matter here whether blocks were written.
        extent.unwritten = false;
        walk::push_joined(&mut self.map.runs, extent);
        Go::On
    }
}

impl Visitor for Reader<'_> {
    fn read(&mut self, node: BlockNr) -> Option<Vec<u8>> {
        if !self.geo.contains(node) {
            return None;
        }
        self.map.nodes.push(node);
        (self.read)(node)
    }

    fn entry(&mut self, entry: &Entry) -> Go {
        let Extent { logical: LogicalBlock(logical), run, .. } = entry.extent;
        match (entry.level, logical >= self.limit_blocks) {
            (0, true) => Go::Past,
            (0, false) if run.len_blocks == 0 => Go::On,
            (0, false) => self.data(entry.extent),
            (_, true) => Go::Up,
            (_, false) => Go::On,
        }
    }

    fn fault(&mut self, _: Fault) -> Go {
        self.damage()
    }
}
