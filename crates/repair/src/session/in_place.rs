//! Blocks that a file has in the place of metadata, where the file gets no copy of them: a person refused it, or it is impossible.
//! They may hold the file's data, so no metadata is written there.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use floe_check::{Examination, Problem, Report};
use floe_format::{BlockNr, BlockRun, GroupNr, InodeNr};

use crate::edit::Edit;
use crate::plan::{Plan, plan};
use crate::stage;

/// Why an edit is not made that would write there.
pub(super) const WHY: &str =
    "it would be written to blocks that a file has, too, and that file gets no copy of them";

/// Such blocks, and what a repair would write there.
#[derive(Clone, Debug, Default)]
pub(super) struct InPlace {
    /// The blocks.
    pub(super) blocks: BTreeSet<BlockNr>,
    /// Descriptors lie there, and what is there does not look like them: any change may write them.
    pub(super) descriptors: bool,
    /// A backup of superblock or descriptors lies there.
    backups: bool,
    /// A block reserved for descriptors lies there.
    reserved: bool,
    /// Groups with a bitmap there.
    maps: BTreeSet<GroupNr>,
    /// Inodes in parts of inode tables there.
    inodes: Vec<Range<u32>>,
}

impl InPlace {
    /// Those of some files.
    pub(super) fn of(examination: &Examination<'_>, files: &BTreeSet<InodeNr>) -> Self {
        let mut all = Self::default();
        let report = &examination.report;
        if files.is_empty() {
            return all;
        }
        let is_theirs = |problem: &&Problem| problem.inode().is_some_and(|it| files.contains(&it));
        for problem in report.found.iter().filter(is_theirs) {
            all.note_blocks(examination, problem);
        }
        let geometry = &report.geometry;
        let superblock = geometry.superblock_of(GroupNr(0));
        if report.used_backup.is_none() {
            // It was recognised.
            superblock.map(|block| all.blocks.remove(&block));
        }
        all.descriptors = all.hold_descriptors(report);
        for group in (0..geometry.group_count).map(GroupNr) {
            all.note_group(examination, group);
        }
        all
    }

    /// Whether the primary superblock or descriptors may no longer be what lies in their place.
    fn hold_descriptors(&self, report: &Report) -> bool {
        let geometry = &report.geometry;
        let there: Vec<u32> = (0..geometry.desc_blocks)
            .filter(|index| self.blocks.contains(&geometry.primary_desc_block(*index)))
            .collect();
        let superblock = geometry.superblock_of(GroupNr(0));
        let is_superblock = superblock.is_some_and(|block| self.blocks.contains(&block));
        let differs = |problem: &Problem| {
            matches!(problem, Problem::BackupDescriptorsBad { .. })
                || groups_to_mend(problem)
                    .into_iter()
                    .any(|group| there.contains(&(group.0 / geometry.descs_per_block())))
        };
        let is_doubted = report.used_backup.is_some() || report.found.iter().any(differs);
        (is_superblock || !there.is_empty()) && is_doubted
    }

    /// Adds the metadata among the blocks that a file shares.
    fn note_blocks(&mut self, examination: &Examination<'_>, problem: &Problem) {
        let (geometry, metadata) = (&examination.report.geometry, &examination.volume.metadata);
        let Some((first, behind)) = stage::clusters_of(problem, geometry) else { return };
        for cluster in (first..behind).filter(|cluster| metadata.contains(*cluster)) {
            let start = geometry.first_data_block.0 + (cluster << geometry.cluster_bits);
            let end = start + u64::from(geometry.cluster_blocks);
            self.blocks.extend((start..end.min(geometry.blocks_count)).map(BlockNr));
        }
    }

    /// Notes which metadata of a group lie in the blocks.
    fn note_group(&mut self, examination: &Examination<'_>, group: GroupNr) {
        let (geometry, desc) = (&examination.report.geometry, examination.volume.group(group));
        if self.holds_any(BlockRun::new(desc.block_bitmap, 1))
            || self.holds_any(BlockRun::new(desc.inode_bitmap, 1))
        {
            self.maps.insert(group);
        }
        self.reserved |= self.holds_any(geometry.reserved_gdt_run(group));
        if group.0 > 0 {
            let copy = geometry.superblock_of(group).map(|block| BlockRun::new(block, 1));
            self.backups |= copy.is_some_and(|run| self.holds_any(run))
                || self.holds_any(geometry.group_desc_run(group));
        }
        let table = BlockRun::new(desc.inode_table, u64::from(geometry.inode_table_blocks));
        let per_block = geometry.block_size / geometry.inode_size;
        for block in self.blocks.range(table.start..table.end()) {
            // Less than the inodes of a group.
            let index = (block.0 - table.start.0) as u32 * per_block;
            let first = geometry.inode_at(group, index).0;
            self.inodes.push(first..first + per_block);
        }
    }

    fn holds_any(&self, run: BlockRun) -> bool {
        self.blocks.range(run.start..run.end()).next().is_some()
    }

    /// Whether one of the blocks is among others.
    pub(super) fn is_among(&self, others: &BTreeMap<BlockNr, Vec<u8>>) -> bool {
        self.blocks.iter().any(|block| others.contains_key(block))
    }

    /// Whether an inode lies there.
    pub(super) fn holds(&self, inode: InodeNr) -> bool {
        self.inodes.iter().any(|them| them.contains(&inode.0))
    }

    /// Whether an edit would write to one of the blocks.
    pub(super) fn is_in_the_way_of(&self, edit: &Edit) -> bool {
        match edit {
            _ if self.blocks.is_empty() => false,
            _ if self.descriptors => true,
            Edit::GroupMaps { group } => self.maps.contains(group),
            Edit::Backups => self.backups,
            Edit::RecreateResizeInode => self.reserved,
            edit => edit.inode().is_some_and(|inode| self.holds(inode)),
        }
    }
}

/// Groups whose descriptors a finding would change.
fn groups_to_mend(problem: &Problem) -> Vec<GroupNr> {
    let Plan::Edits(edits) = plan(problem) else { return Vec::new() };
    let group = |edit: Edit| match edit {
        Edit::Group { group, .. } => Some(group),
        _ => None,
    };
    edits.into_iter().filter_map(group).collect()
}
