//! Steps shared by extents and block maps: claiming blocks, counting them, and collecting the
//! blocks of directories.

use floe_format::ext::inode::FileType;
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

use crate::checks::context::inode::{InodeCx, InodeEvidence};
use crate::evidence::dirs::{DirFlags, DirRun};
use crate::problem::{Problem, Sink};
use crate::volume::Volume;

/// Result of a walk over the mapping of one inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Clusters of data and of map nodes; a cluster that holds several mapped blocks counts once.
    pub clusters: u64,
    /// Last mapped logical block.
    pub last: Option<u64>,
    /// Last logical block that is mapped and written (not an unwritten extent).
    pub last_written: Option<u64>,
    /// Runs of adjacent blocks.
    pub fragments: u64,
    /// A repair would drop the whole inode.
    pub lost: bool,
}

/// Whether the block of a map node is something else, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claimed {
    /// Nothing: it can be followed.
    First,
    /// A node of this map that was met before, which must not be followed again.
    Again,
    /// Static metadata: only what lies there can say whether it is a node.
    OnMetadata,
}

/// Walks the mapping of one inode: claims, counts and collects.
pub struct Mapper<'a, 'e> {
    /// The inode.
    pub cx: InodeCx<'a>,
    /// Where claims, directory runs and findings go.
    pub evidence: &'e mut InodeEvidence,
    /// The result so far.
    pub mapping: Mapping,
    /// The type that the inode is taken for.
    pub file_type: Option<FileType>,
    dir_flags: DirFlags,
    /// The last mapped block: physical, logical.
    previous: Option<(u64, u64)>,
    /// Blocks that the map names past the size are not the file's.
    pub(super) ends_at_size: bool,
}

/// The last logical block that a directory may have without large_dir: at 2 GiB.
pub(crate) fn last_dir_block(volume: &Volume<'_>) -> u64 {
    1 << (21 - volume.superblock.log_block_size.min(20))
}

impl<'a, 'e> Mapper<'a, 'e> {
    /// Starts to walk an inode, as one of this type.
    pub fn new(
        cx: InodeCx<'a>,
        file_type: Option<FileType>,
        dir_flags: DirFlags,
        evidence: &'e mut InodeEvidence,
    ) -> Self {
        evidence.buffers.nodes_seen.clear();
        let mapping = Mapping::default();
        Self { cx, evidence, mapping, file_type, dir_flags, previous: None, ends_at_size: false }
    }

    /// Notes a finding.
    pub fn report(&mut self, problem: Problem) {
        self.evidence.found.push(problem);
    }

    /// Whether the inode is a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type == Some(FileType::Directory)
    }

    /// The logical block behind the last one mapped.
    pub fn next_logical(&self) -> u64 {
        self.mapping.last.map_or(0, |last| last + 1)
    }

    /// Claims the block of a map node, and says what else it may be.
    pub(crate) fn claim_node(&mut self, node: BlockNr, logical: LogicalBlock) -> Claimed {
        let volume = self.cx.volume;
        self.evidence.buffers.met_trees = true;
        self.evidence.buffers.maps.add(volume, node);
        if self.may_claim(BlockRun::new(node, 1)) {
            self.evidence.claims.claim(&volume.geometry, BlockRun::new(node, 1));
        }
        self.mapping.clusters += 1;
        let is_on_metadata = volume.is_metadata(node);
        if is_on_metadata {
            let inode = self.cx.number;
            self.report(Problem::MapNodeOverlapsCriticalMetadata { inode, logical, block: node });
        }
        let seen = &mut self.evidence.buffers.nodes_seen;
        match seen.binary_search(&node) {
            Ok(_) => Claimed::Again,
            Err(at) => {
                seen.insert(at, node);
                if is_on_metadata { Claimed::OnMetadata } else { Claimed::First }
            }
        }
    }

    /// A block of the map itself is met where it is needed: between two blocks of data it makes no
    /// gap, if it lies there.
    pub(crate) fn pass_node(&mut self, node: BlockNr) {
        if let Some((block, logical)) = self.previous
            && self.cx.volume.geometry.cluster_bits == 0
        {
            self.mapping.fragments += u64::from(block + 1 != node.0);
            self.previous = Some((node.0, logical));
        }
    }

    /// Maps `run`, which lies inside the file system, at `logical`.
    pub fn map(&mut self, logical: u64, run: BlockRun, written: bool) {
        if run.len_blocks == 0 {
            return;
        }
        let volume = self.cx.volume;
        let is_own = self.may_claim(run);
        if volume.geometry.cluster_bits == 0 {
            if is_own {
                self.evidence.claims.claim(&volume.geometry, run);
            }
            self.mapping.clusters += run.len_blocks;
        } else {
            self.claim_clusters(logical, run);
        }
        let adjacent = self.previous.is_some_and(|(block, _)| block + 1 == run.start.0);
        self.mapping.fragments += u64::from(!adjacent);
        if self.is_dir() {
            self.collect_dir_blocks(logical, run);
        }
        let last = logical + run.len_blocks - 1;
        self.previous = Some((run.end().0 - 1, last));
        self.mapping.last = self.mapping.last.max(Some(last));
        if written {
            self.mapping.last_written = self.mapping.last_written.max(Some(last));
        }
    }

    /// Notes blocks that lie in another cube than the inode. `false` if they cannot be its own: then they are not claimed, and
    /// whoever has them is not asked to share.
    fn may_claim(&mut self, run: BlockRun) -> bool {
        let (volume, inode) = (self.cx.volume, self.cx.number);
        let problem = leaving(volume, inode, run);
        let is_own = !matches!(problem, Some(Problem::CubeBlocksOutside { .. }));
        self.evidence.found.0.extend(problem);
        is_own
    }

    /// Claims the clusters of a run on a bigalloc file system: blocks of one logical cluster share
    /// one physical cluster, at the same offset in it (problem `cluster-misaligned-mapping`).
    fn claim_clusters(&mut self, logical: u64, run: BlockRun) {
        let geometry = &self.cx.volume.geometry;
        let first = geometry.cluster_of(run.start);
        let last = geometry.cluster_of(BlockNr(run.end().0 - 1));
        let (from, clusters, misplaced) = self.clusters_from(logical, run);
        self.evidence.claims.claim_clusters(from, clusters);
        self.mapping.clusters += clusters;
        if misplaced {
            self.evidence.claims.share_clusters(first, last - first + 1);
            let logical = LogicalBlock(logical);
            let (inode, block) = (self.cx.number, run.start);
            self.report(Problem::ClusterMisalignedMapping { inode, logical, block });
        }
    }

    /// The clusters of a run that the block before it does not share: the first, how many; and whether the
    /// run lies in them as no run may.
    pub(super) fn clusters_from(&self, logical: u64, run: BlockRun) -> (u64, u64, bool) {
        let geometry = &self.cx.volume.geometry;
        let ratio = u64::from(geometry.cluster_blocks);
        let first = geometry.cluster_of(run.start);
        let last = geometry.cluster_of(BlockNr(run.end().0 - 1));
        let misaligned = !(logical ^ run.start.0).is_multiple_of(ratio);
        let (goes_on, torn) = match self.previous {
            Some((block, at)) if geometry.contains(BlockNr(block)) => {
                let same_physical = geometry.cluster_of(BlockNr(block)) == first;
                let same_logical = at / ratio == logical / ratio;
                (
                    same_physical && !misaligned,
                    same_logical && !same_physical && !logical.is_multiple_of(ratio),
                )
            }
            _ => (false, false),
        };
        let from = if goes_on { first + 1 } else { first };
        let clusters = (last + 1).saturating_sub(from);
        (from, clusters, misaligned || torn)
    }

    /// Hands a run of directory blocks to the directory pass; gaps before it are holes.
    fn collect_dir_blocks(&mut self, logical: u64, run: BlockRun) {
        let next = self.next_logical();
        if logical > next {
            self.report_holes(next, logical);
        }
        let mut at = 0;
        while at < run.len_blocks {
            let len_blocks = u16::try_from(run.len_blocks - at).unwrap_or(u16::MAX);
            let Ok(logical) = u32::try_from(logical + at) else { return };
            self.evidence.dirs.runs.push(DirRun {
                block: BlockNr(run.start.0 + at),
                dir: self.cx.number,
                generation: self.cx.inode.base.generation,
                logical,
                len_blocks,
                flags: self.dir_flags,
                judged: false,
            });
            at += u64::from(len_blocks);
        }
    }

    /// Reports the holes `from..to` of a directory, the first ones singly and no more than a few:
    /// a hostile size can make millions.
    pub(crate) fn report_holes(&mut self, from: u64, to: u64) {
        const MOST: u64 = 16;
        let features = self.cx.volume.features();
        use floe_format::features::Incompat;
        if features.incompat.contains(Incompat::LARGEDIR)
            && !features.incompat.contains(Incompat::INLINE_DATA)
        {
            return;
        }
        for logical in (from..to).take(MOST as usize).map(LogicalBlock) {
            self.report(Problem::DirectoryHole { dir: self.cx.number, logical });
        }
    }

    /// Whether `logical` is past what a directory may hold without large_dir: 2 GiB.
    pub(crate) fn too_far_for_dir(&self, logical: u64) -> bool {
        let volume = self.cx.volume;
        self.is_dir()
            && !volume.has_incompat(floe_format::features::Incompat::LARGEDIR)
            && self.cx.inode.base.size_high == 0
            && logical > last_dir_block(volume)
    }

    /// The number of the inode.
    pub fn inode(&self) -> InodeNr {
        self.cx.number
    }
}

/// The finding that blocks lie in another cube than their inode: damage, unless another system may have put them there.
pub(crate) fn leaving(volume: &Volume<'_>, inode: InodeNr, run: BlockRun) -> Option<Problem> {
    let cubes = volume.cubes.as_ref()?;
    let (cube, other) = cubes.left_by(&volume.geometry, inode, run)?;
    let (block, blocks) = (run.start, run.len_blocks);
    Some(match cubes.is_coupled() {
        true => Problem::CubeEntangledBlocks { inode, block, blocks, cube, other },
        false => Problem::CubeBlocksOutside { inode, block, blocks, cube, other },
    })
}
