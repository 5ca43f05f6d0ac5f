//! Assigns blocks to all files.

use std::collections::BTreeMap;

use floe_ext4::make::quota_file::{self, Limits, Usage};
use floe_ext4::map::block_map::{self, MappedRun};
use floe_ext4::map::extent_tree::{self, NodeForm};
use floe_ext4::map::pointers::end_of_reach;
use floe_format::ext::inode::FileType;
use floe_format::ext::quota::QuotaKind;
use floe_format::features::Incompat;
use floe_format::{BlockNr, BlockRun, LogicalBlock};

use super::data::{data_runs, needs_block};
use super::{INDEXED, MAPPED, Mapped, Place, TreePlan};
use crate::mkfs::map::extents_of;
use crate::mkfs::native;
use crate::mkfs::params::PlanError;
use crate::mkfs::system::{self, QuotaPlace};

/// Most logical blocks of a file with extents.
const MOST_EXTENT_BLOCKS: u64 = u32::MAX as u64;
/// Blocks of the extents that fit in an inode.
const MOST_IN_INODE: u64 = 4 * 32768;

impl TreePlan<'_> {
    /// The file system's own files. Quota files are placed now and get their contents at the end.
    pub(super) fn system_files(&mut self) -> Result<Vec<QuotaPlace>, PlanError> {
        if !self.has_lost_found {
            system::lost_found(&mut self.plan)?;
        }
        native::directories(&mut self.plan)?;
        system::resize_inode(&mut self.plan)?;
        system::journal(&mut self.plan)?;
        system::mmp_block(&mut self.plan)?;
        let mut quotas = Vec::new();
        for kind in system::quota_kinds(&self.plan) {
            // Every owner has at least one inode, so the file already has its final size.
            let usage = self.usage(kind);
            quotas.push(system::quota_file(&mut self.plan, kind, &usage)?);
        }
        system::orphan_file(&mut self.plan)?;
        Ok(quotas)
    }

    /// Fills the quota files again, now that all blocks are counted.
    pub(super) fn settle_quotas(&mut self, quotas: Vec<QuotaPlace>) -> Result<(), PlanError> {
        for place in quotas {
            let usage = self.usage(place.kind);
            let content = quota_file::build(place.kind, &Limits::default(), &usage)
                .ok_or(PlanError::Internal("quota file"))?;
            place.fill(&mut self.plan, content)?;
        }
        Ok(())
    }

    /// The usage of every owner. The file system's own files are not counted.
    fn usage(&self, kind: QuotaKind) -> BTreeMap<u32, Usage> {
        let block_size = u64::from(self.plan.geometry.block_size);
        let mut usage: BTreeMap<u32, Usage> = BTreeMap::new();
        for (at, node) in self.order.iter().enumerate() {
            let attributes = self.tree.node(*node).attributes();
            let id = match kind {
                QuotaKind::User => attributes.uid,
                QuotaKind::Group => attributes.gid,
                QuotaKind::Project => 0,
            };
            let one = usage.entry(id).or_default();
            // Values that lie in inodes of their own count for all who have them.
            one.inodes += 1 + self.set_of(at).map_or(0, |set| set.values().count() as u64);
            if self.places.len() > at {
                one.space_bytes += self.blocks_of(at) * block_size;
            }
        }
        if !self.has_lost_found
            && let Some(found) = self.plan.inodes.get(&system::LOST_FOUND)
        {
            let one = usage.entry(0).or_default();
            one.inodes += 1;
            one.space_bytes += found.blocks * block_size;
        }
        usage
    }

    /// Places the blocks of directories, slow symbolic links and attributes.
    pub(super) fn place_names(&mut self) -> Result<(), PlanError> {
        let mut cursor = BlockNr(0);
        for at in 0..self.order.len() {
            let node = self.order[at];
            self.judge_attributes(at)?;
            let blocks = match self.tree.node(node).file_type() {
                FileType::Directory => {
                    let (blocks, indexed) = self.directory_blocks(at)?;
                    if indexed {
                        self.places[at].flags |= INDEXED;
                    }
                    u64::from(blocks)
                }
                FileType::Symlink => u64::from(needs_block(self, at)?),
                _ => 0,
            };
            if blocks > 0 {
                self.place(at, &mut cursor, &[(0, blocks)])?;
            }
            if self.set_of(at).is_some_and(|set| set.needs_block()) {
                // Regions of rext3 hold directory blocks and indirect blocks alone.
                let got = match self.plan.params.rext3 {
                    Some(_) => self.take(&mut cursor, 1)?,
                    None => self.take_metadata(at, &mut cursor, 1)?,
                };
                self.attribute_blocks.insert(at as u32, got[0].start);
            }
        }
        Ok(())
    }

    /// Places the blocks of files.
    pub(super) fn place_data(&mut self) -> Result<(), PlanError> {
        let mut cursor = BlockNr(0);
        for at in 0..self.order.len() {
            if !self.is_type(at, FileType::Regular) || self.try_inline_file(at) {
                continue;
            }
            let ratio = u64::from(self.plan.geometry.cluster_blocks);
            let node = self.tree.node(self.order[at]);
            let runs = data_runs(node, u64::from(self.plan.geometry.block_size), ratio);
            let size_blocks = node.size().div_ceil(u64::from(self.plan.geometry.block_size));
            if size_blocks > self.most_blocks() {
                return Err(self.refuse(self.order[at], "it is too large for this file system"));
            }
            if !runs.is_empty() {
                self.place(at, &mut cursor, &runs)?;
            }
        }
        Ok(())
    }

    fn most_blocks(&self) -> u64 {
        if self.plan.params.incompat(Incompat::EXTENTS) {
            return MOST_EXTENT_BLOCKS;
        }
        end_of_reach(self.plan.geometry.indirect()).0
    }

    /// Allocates blocks behind the cursor, and advances it.
    fn take(&mut self, cursor: &mut BlockNr, blocks: u64) -> Result<Vec<BlockRun>, PlanError> {
        let runs = self.plan.allocate(*cursor, blocks)?;
        if let Some(last) = runs.last() {
            *cursor = last.end();
        }
        Ok(runs)
    }

    /// The same for metadata of the node at an index of the order, whose lot has a region for them.
    fn take_metadata(
        &mut self,
        at: usize,
        cursor: &mut BlockNr,
        blocks: u64,
    ) -> Result<Vec<BlockRun>, PlanError> {
        if self.plan.params.native.is_none() && self.plan.params.rext3.is_none() {
            return self.take(cursor, blocks);
        }
        self.plan.metadata(self.number_at(at), *cursor, blocks)
    }

    /// Places a file with these runs of logical blocks (first, length).
    fn place(
        &mut self,
        at: usize,
        cursor: &mut BlockNr,
        wanted: &[(u64, u64)],
    ) -> Result<(), PlanError> {
        let mut runs = Vec::new();
        for &(first, len) in wanted {
            let mut logical = first;
            let is_metadata = self.is_type(at, FileType::Directory)
                || (self.is_type(at, FileType::Symlink)
                    && !self.plan.geometry.indirect().has_header());
            let runs_taken = if is_metadata {
                self.take_metadata(at, cursor, len)?
            } else {
                self.take(cursor, len)?
            };
            for run in runs_taken {
                runs.push(MappedRun { logical: LogicalBlock(logical), run });
                logical += run.len_blocks;
            }
        }
        let extents = self.plan.params.incompat(Incompat::EXTENTS);
        let most = if extents { MOST_IN_INODE } else { 12 };
        let blocks: u64 = runs.iter().map(|one| one.run.len_blocks).sum();
        let place = &mut self.places[at];
        place.blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        if let [one] = &runs[..]
            && one.logical.0 == 0
            && one.run.len_blocks <= most
        {
            place.start = one.run.start.0;
            return Ok(());
        }
        place.flags |= MAPPED;
        let mapped = self.map(at, cursor, runs)?;
        self.mapped.insert(at as u32, mapped);
        Ok(())
    }

    /// Builds the map of a file that is not contiguous, or whose map does not fit in its inode.
    fn map(
        &mut self,
        at: usize,
        cursor: &mut BlockNr,
        runs: Vec<MappedRun>,
    ) -> Result<Mapped, PlanError> {
        let block_size = self.plan.geometry.block_size;
        let ratio = u64::from(self.plan.geometry.cluster_blocks);
        let use_extents = self.plan.params.incompat(Incompat::EXTENTS);
        let extents = extents_of(&runs);
        let needed = if use_extents {
            extent_tree::nodes_needed(&extents, block_size)?
        } else {
            block_map::nodes_needed(&runs, self.plan.geometry.indirect())?
        } as u64;
        let mut places = Vec::new();
        for _ in 0..needed {
            // Each mapping block takes a whole cluster.
            places.extend(self.take_metadata(at, cursor, 1)?.iter().map(|run| run.start));
            *cursor = BlockNr(cursor.0.next_multiple_of(ratio));
        }
        let built = if use_extents {
            let form = NodeForm::of(block_size, self.plan.form.seed, self.number_at(at), 0)
                .hinting(self.plan.params.native.is_some(), self.number_at(at));
            extent_tree::build(&extents, form, &places)?
        } else {
            let form = self.plan.geometry.indirect();
            block_map::build(&runs, form, self.number_at(at), &places)?
        };
        for (block, bytes) in built.blocks {
            self.plan.put(&[BlockRun::new(block, 1)], bytes);
        }
        Ok(Mapped { runs, root: built.root, nodes: needed })
    }

    /// Blocks that belong to an inode: data, map, attributes; in whole clusters.
    pub(super) fn blocks_of(&self, at: usize) -> u64 {
        let ratio = u64::from(self.plan.geometry.cluster_blocks);
        let Place { blocks, flags, .. } = self.places[at];
        let mut clusters = u64::from(blocks).div_ceil(ratio);
        if flags & MAPPED != 0
            && let Some(mapped) = self.mapped.get(&(at as u32))
        {
            clusters = mapped.nodes
                + mapped.runs.iter().map(|one| one.run.len_blocks.div_ceil(ratio)).sum::<u64>();
        }
        clusters += u64::from(self.attribute_blocks.contains_key(&(at as u32)));
        clusters += self.value_clusters(at);
        clusters * ratio
    }
}
