//! The plan of a new file system: the whole layout, computed before anything is written.

use std::collections::BTreeMap;

use floe_ext4::dir::DirFormat;
use floe_ext4::make::quota_file::Usage;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::inode::{FileType, OwnedInode};
use floe_format::ext::quota::QuotaKind;
use floe_format::ext::superblock::Superblock;
use floe_format::rext3::Record;
use floe_format::{BlockNr, BlockRun, Geometry, GroupNr, InodeNr};

use super::frame::frame;
use super::inode::{InodeForm, NewInode, extra_size};
use super::native::{self, Lots, Numbers};
use super::params::{Params, PlanError};
use super::rext3::Regions;
use super::space::Space;
use super::tree::Timestamp;
use super::{system, tables};

/// A piece of the image with content that is known while planning.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// First block.
    pub(super) block: BlockNr,
    /// Whole blocks.
    pub(super) bytes: Vec<u8>,
}

/// The layout of a new file system.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) params: Params,
    pub(super) superblock: Superblock,
    pub(super) geometry: Geometry,
    pub(super) dir_format: DirFormat,
    pub(super) form: InodeForm,
    pub(super) descs: Vec<GroupDesc>,
    pub(super) space: Space,
    /// Small structures with their places, unordered.
    pub(super) pieces: Vec<Piece>,
    /// Blocks that must be zero except where a piece covers them.
    pub(super) zero: Vec<BlockRun>,
    /// The lots of a native file system.
    pub(super) lots: Lots,
    /// The regions of rext3.
    pub(super) regions: Regions,
    /// Which inodes are kept for reservation files.
    pub(super) numbers: Numbers,
    /// The inodes of the file system's own files.
    pub(super) inodes: BTreeMap<InodeNr, NewInode>,
    /// Inodes 1 to this one are in use, and those kept for reservation files.
    pub(super) last_inode: InodeNr,
    /// Directories of each group.
    pub(super) directories: BTreeMap<GroupNr, u32>,
    /// `s_overhead_clusters`.
    pub(super) overhead: u64,
    /// Clusters of superblocks, descriptors, bitmaps, tables and regions.
    pub(super) tables_clusters: u64,
}

impl Plan {
    /// Plans an empty file system: the layout that mke2fs makes from the same parameters.
    ///
    /// # Errors
    /// If the parameters cannot be met; nothing was written.
    pub fn new(params: &Params) -> Result<Self, PlanError> {
        let mut plan = Self::tables(params)?;
        system::root(&mut plan)?;
        system::lost_found(&mut plan)?;
        native::directories(&mut plan)?;
        system::resize_inode(&mut plan)?;
        system::journal(&mut plan)?;
        system::mmp_block(&mut plan)?;
        for kind in system::quota_kinds(&plan) {
            let usage = plan.usage(kind);
            system::quota_file(&mut plan, kind, &usage)?;
        }
        system::orphan_file(&mut plan)?;
        plan.finish()?;
        Ok(plan)
    }

    /// Plans superblock, descriptors, bitmaps and tables only.
    pub(super) fn tables(params: &Params) -> Result<Self, PlanError> {
        let mut params = params.clone();
        let (mut superblock, geometry) = frame(&mut params)?;
        let mut space = Space::of_blocks(&geometry);
        tables::take_backups(&geometry, &mut space);
        let (descs, lots) = match params.native {
            Some(_) => native::place(&geometry, &params, &mut space)?,
            None => (tables::place(&geometry, &params, &mut space)?, Lots::default()),
        };
        let mut space = space.into_clusters(&geometry);
        let space_used = space.used();
        lots.regions.iter().for_each(|region| space.take(region.run));
        let mut regions = Regions::default();
        if let Some(rext3) = params.rext3 {
            let blocks = rext3.region_blocks(&geometry)?;
            Record::new(blocks).put(&mut superblock);
            regions = Regions::place(&geometry, &descs, blocks, &mut space)?;
        }
        let overhead = space_used + geometry.first_data_block.0;
        let dir_format = DirFormat::of(&superblock, &geometry);
        let form =
            InodeForm::new(&geometry, superblock.seed(), extra_size(params.native.is_some()));
        let numbers = match params.native {
            Some(_) => Numbers::of_lots(&geometry, params.flex_groups),
            None => Numbers::STOCK,
        };
        Ok(Self {
            params,
            superblock,
            geometry,
            dir_format,
            form,
            descs,
            space,
            pieces: Vec::new(),
            zero: Vec::new(),
            tables_clusters: space_used + lots.blocks() + regions.blocks(),
            lots,
            regions,
            numbers,
            inodes: BTreeMap::new(),
            last_inode: system::LOST_FOUND,
            directories: BTreeMap::new(),
            overhead,
        })
    }

    /// The usage of an empty file system by owner: root, and the owner of its root directory.
    fn usage(&self, kind: QuotaKind) -> BTreeMap<u32, Usage> {
        let mut usage: BTreeMap<u32, Usage> = BTreeMap::new();
        for (nr, inode) in &self.inodes {
            if *nr == InodeNr::ROOT || *nr >= self.geometry.first_inode {
                let id = match kind {
                    QuotaKind::User => inode.uid,
                    QuotaKind::Group => inode.gid,
                    QuotaKind::Project => 0,
                };
                let one = usage.entry(id).or_default();
                one.inodes += 1;
                one.space_bytes += inode.blocks * u64::from(self.geometry.block_size);
            }
        }
        usage
    }

    /// Adds reservation files and sets the counts in the superblock, after everything was placed.
    pub(super) fn finish(&mut self) -> Result<(), PlanError> {
        native::reservation_files(self)?;
        // They were taken so that data do not go there.
        self.regions.free().for_each(|run| self.space.release(run));
        let ratio = u64::from(self.geometry.cluster_blocks);
        let clusters = self.geometry.clusters_count();
        let free = (clusters - self.space.used()) * ratio;
        self.superblock.free_blocks_count_lo = (free & 0xffff_ffff) as u32;
        self.superblock.free_blocks_count_hi = (free >> 32) as u32;
        let used: u32 = (0..self.geometry.group_count).map(|at| self.inodes_in(GroupNr(at))).sum();
        self.superblock.free_inodes_count = self.geometry.inodes_count - used;
        self.superblock.overhead_clusters = u32::try_from(self.overhead).unwrap_or(0);
        Ok(())
    }

    /// The time of the file system's own files.
    pub(super) fn time(&self) -> Timestamp {
        Timestamp { seconds: self.params.now.seconds, nanoseconds: 0 }
    }

    /// Allocates blocks at or behind a goal.
    pub(super) fn allocate(
        &mut self,
        goal: BlockNr,
        len_blocks: u64,
    ) -> Result<Vec<BlockRun>, PlanError> {
        self.space.allocate(goal, len_blocks).ok_or(PlanError::Full { wanted: len_blocks })
    }

    /// Allocates blocks for metadata of an inode: in the region of its lot, as far as that has free
    /// blocks; else, and in a stock file system, at or behind a goal. In rext3 in regions alone.
    pub(super) fn metadata(
        &mut self,
        inode: InodeNr,
        goal: BlockNr,
        len_blocks: u64,
    ) -> Result<Vec<BlockRun>, PlanError> {
        let group = self.geometry.place_of(inode).map_or(GroupNr(0), |(group, _)| group);
        if self.params.rext3.is_some() {
            let taken = self.regions.take(group, len_blocks);
            return taken.ok_or(PlanError::RegionsFull { wanted: len_blocks });
        }
        let own = self.lots.take(group, len_blocks);
        let rest = len_blocks - own.map_or(0, |run| run.len_blocks);
        let mut runs: Vec<BlockRun> = own.into_iter().collect();
        if rest > 0 {
            runs.extend(self.allocate(goal, rest)?);
        }
        Ok(runs)
    }

    /// Stores the contents of consecutive runs of blocks as pieces.
    pub(super) fn put(&mut self, runs: &[BlockRun], bytes: Vec<u8>) {
        let block_size = self.geometry.block_size as usize;
        if let [run] = runs {
            self.pieces.push(Piece { block: run.start, bytes });
            return;
        }
        let mut rest = &bytes[..];
        for run in runs {
            let len = (run.len_blocks as usize * block_size).min(rest.len());
            let (own, behind) = rest.split_at(len);
            self.pieces.push(Piece { block: run.start, bytes: own.to_vec() });
            rest = behind;
        }
    }

    /// Adds an inode of the file system itself.
    pub(super) fn add_inode(&mut self, nr: InodeNr, inode: NewInode) {
        if FileType::of_mode(inode.mode) == Some(FileType::Directory)
            && let Some((group, _)) = self.geometry.place_of(nr)
        {
            *self.directories.entry(group).or_default() += 1;
        }
        self.inodes.insert(nr, inode);
    }

    /// The next unused inode number.
    pub(super) fn next_inode(&mut self) -> Result<InodeNr, PlanError> {
        let next = self.numbers.at(self.numbers.position(self.last_inode) + 1);
        if next.0 > self.geometry.inodes_count {
            let have = u64::from(self.geometry.inodes_count - system::LOST_FOUND.0);
            return Err(PlanError::NoInodes { have, wanted: have + 1 });
        }
        self.last_inode = next;
        Ok(next)
    }

    /// Free clusters of a group.
    pub(super) fn free_clusters(&self, group: GroupNr) -> u32 {
        let used: u64 = self.used_in(group).map(|run| run.end - run.start).sum();
        self.geometry.clusters_of(group) - used as u32
    }

    /// Runs of used clusters of a group, counted from the first data block.
    pub(super) fn used_in(&self, group: GroupNr) -> impl Iterator<Item = std::ops::Range<u64>> {
        let start = u64::from(group.0) * u64::from(self.geometry.clusters_per_group);
        self.space.runs_in(start..start + u64::from(self.geometry.clusters_of(group)))
    }

    /// Inodes in use in a group.
    pub(super) fn inodes_in(&self, group: GroupNr) -> u32 {
        let before = u64::from(group.0) * u64::from(self.geometry.inodes_per_group);
        u64::from(self.last_inode.0)
            .saturating_sub(before)
            .min(u64::from(self.geometry.inodes_per_group))
            .max(u64::from(self.lots.keeps_first_inode(group))) as u32
    }

    /// Encodes the file system's own inodes in a part of a group's table: `into` starts with inode
    /// `first` of the group and contains whole inodes.
    pub(super) fn system_inodes(&self, group: GroupNr, first: u32, into: &mut [u8]) {
        for (index, raw) in (first..).zip(into.chunks_exact_mut(self.form.size)) {
            let nr = self.geometry.inode_at(group, index);
            match self.inodes.get(&nr) {
                Some(inode) => inode.encode(&self.form, nr, raw),
                None if nr == InodeNr::BAD_BLOCKS => self.bad_blocks(raw),
                None => {}
            }
        }
    }

    /// Encodes the bad-blocks inode, which has no blocks.
    fn bad_blocks(&self, raw: &mut [u8]) {
        let Some(mut inode) = OwnedInode::of(InodeNr::BAD_BLOCKS, raw.to_vec()) else { return };
        let now = (self.params.now.seconds & 0xffff_ffff) as u32;
        (inode.base.atime, inode.base.ctime, inode.base.mtime) = (now, now, now);
        raw.copy_from_slice(inode.seal(self.form.seed));
    }

    /// Bytes of the file system.
    pub fn bytes(&self) -> u64 {
        self.geometry.size_bytes()
    }

    /// All blocks in use, in runs and in order.
    pub(super) fn used_runs(&self) -> impl Iterator<Item = BlockRun> {
        let ratio = u64::from(self.geometry.cluster_blocks);
        let (first, end) = (self.geometry.first_data_block.0, self.geometry.blocks_count);
        self.space.runs_in(0..self.geometry.clusters_count()).map(move |run| {
            let start = first + run.start * ratio;
            let len_blocks = ((run.end - run.start) * ratio).min(end - start);
            BlockRun::new(BlockNr(start), len_blocks)
        })
    }

    /// The descriptor of a group, without its final counts and checksums.
    ///
    /// # Panics
    /// If there is no such group.
    pub fn group(&self, group: GroupNr) -> &GroupDesc {
        &self.descs[group.0 as usize]
    }

    /// The superblock as it will be written.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }
}
