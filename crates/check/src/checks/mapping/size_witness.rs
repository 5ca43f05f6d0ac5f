//! Check: blocks of a file past its size that its count of sectors does not know either.
//! Reads: size and sectors of the inode.  Keeps: nothing.  Emits: `BlocksPastAgreedSize`.
//! Does not verify: a size that the count does not confirm (`checks/inode/inode_sizes.rs`).
//!
//! Size and sectors are stored together. If exactly the blocks below the size, with the nodes that lead to
//! them, make the number of sectors, the inode is a witness that the file ended there; a node that leads
//! further is of another time, and its blocks may be free or others' by now. Pointers and extents in the inode itself
//! were stored with the size, and are followed.

use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::ext::superblock::OS_HURD;
use floe_format::features::{Incompat, RoCompat};
use floe_format::{BlockRun, LogicalBlock};

use crate::checks::context::inode::InodeCx;
use crate::checks::mapping::mapper::Mapper;
use crate::problem::Problem;

impl Mapper<'_, '_> {
    /// Whether a piece of the map that begins at `logical` and reaches past the size is not the file's: the
    /// walk before it, with `own_clusters` of the piece, met all that the inode counts. The first piece is
    /// reported.
    #[cold]
    pub(crate) fn is_past_agreed_size(&mut self, logical: u64, own_clusters: u64) -> bool {
        let block_size = u64::from(self.cx.volume.geometry.block_size);
        let size = self.cx.inode.size_bytes();
        let size_blocks = size.div_ceil(block_size);
        if self.ends_at_size {
            return logical >= size_blocks;
        }
        let clusters = self.mapping.clusters + own_clusters;
        if clusters == 0 || !self.size_may_testify() {
            return false;
        }
        let (sectors, counted) = sectors(&self.cx, clusters + self.attribute_clusters());
        if sectors != counted {
            return false;
        }
        self.ends_at_size = true;
        let (inode, first) = (self.cx.number, LogicalBlock(size_blocks));
        self.report(Problem::BlocksPastAgreedSize { inode, size, sectors, first });
        true
    }

    /// Only regular files without blocks that belong past their size. Recovery will cut a pending orphan.
    fn size_may_testify(&self) -> bool {
        let cx = &self.cx;
        let flags = InodeFlags::VERITY | InodeFlags::INLINE_DATA | InodeFlags::EA_INODE;
        self.file_type == Some(FileType::Regular)
            && cx.inode.file_type() == Some(FileType::Regular)
            && !cx.volume.geometry.is_reserved(cx.number)
            && !cx.inode.flags().intersects(flags)
            && !cx.volume.is_orphan(cx.number)
            && cx.volume.superblock.creator_os != OS_HURD
    }

    fn attribute_clusters(&self) -> u64 {
        u64::from(self.cx.inode.file_acl(self.cx.volume.has_incompat(Incompat::BIT64)) != 0)
    }

    /// Clusters of a run that no block before it shares.
    pub(crate) fn clusters_of(&self, logical: u64, run: BlockRun) -> u64 {
        if run.len_blocks == 0 || self.cx.volume.geometry.cluster_bits == 0 {
            return run.len_blocks;
        }
        self.clusters_from(logical, run).1
    }
}

/// `i_blocks` as stored, and as it is for that many clusters.
pub(crate) fn sectors(cx: &InodeCx<'_>, clusters: u64) -> (u64, u64) {
    let (volume, base) = (cx.volume, &cx.inode.base);
    let huge = volume.has_ro_compat(RoCompat::HUGE_FILE);
    let high = if huge { u64::from(base.blocks_high) << 32 } else { 0 };
    let stored = u64::from(base.blocks_lo) | high;
    let blocks = clusters * u64::from(volume.geometry.cluster_blocks);
    (stored, blocks * volume.geometry.count_units(cx.inode.flags()))
}
