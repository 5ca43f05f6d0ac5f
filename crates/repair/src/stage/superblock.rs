//! Superblock and group descriptors with the edits of a round. They are written with their
//! checksums, and with their backups, when the round ends.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

use floe_blockdev::{ReadBlocks, WriteBlocks};
use floe_check::problem::Findings;
use floe_check::{Examination, Problem, descriptors};
use floe_format::ext::group_desc::{DescChecksum, GroupDesc};
use floe_format::ext::superblock::{MAGIC, OFFSET_BYTES, STATE_VALID, Superblock};
use floe_format::features::Incompat;
use floe_format::native::lot::LotRecord;
use floe_format::{BlockNr, GroupNr};

use super::Stage;
use crate::failure::Failure;

/// Superblock and descriptors, and which of them the end of the round writes.
pub(super) struct Descriptors {
    superblock: Superblock,
    groups: Vec<GroupDesc>,
    changed_groups: BTreeSet<u32>,
    /// Records of lots that this round sets, by group.
    pub(super) records: BTreeMap<u32, LotRecord>,
    all_groups: bool,
    superblock_changed: bool,
    backups: bool,
    /// The examination used another `s_inodes_per_group` than the superblock stores (finding
    /// `inodes-per-group-wrong`), and this round does not repair it, so each copy keeps its own
    /// value.
    keeps_inodes_per_group: bool,
    /// The same for `s_desc_size` (finding `descriptor-size-wrong`).
    keeps_desc_size: bool,
    /// All descriptors from a backup, read on first use.
    backup_groups: OnceCell<Vec<GroupDesc>>,
}

impl Descriptors {
    /// Superblock and descriptors as the examination read them.
    pub(super) fn of(evidence: &Examination<'_>) -> Self {
        let of_inodes = |problem: &Problem| matches!(problem, Problem::InodesPerGroupWrong { .. });
        let of_descriptors =
            |problem: &Problem| matches!(problem, Problem::DescriptorSizeWrong { .. });
        Self {
            superblock: evidence.volume.superblock.clone(),
            groups: evidence.volume.groups.clone(),
            changed_groups: BTreeSet::new(),
            records: BTreeMap::new(),
            all_groups: false,
            superblock_changed: false,
            backups: false,
            keeps_inodes_per_group: evidence.report.found.iter().any(of_inodes),
            keeps_desc_size: evidence.report.found.iter().any(of_descriptors),
            backup_groups: OnceCell::new(),
        }
    }
}

impl Stage<'_> {
    /// The superblock with the edits of this round.
    pub const fn superblock(&self) -> &Superblock {
        &self.descriptors.superblock
    }

    /// The superblock, for editing.
    pub(crate) const fn superblock_mut(&mut self) -> &mut Superblock {
        self.descriptors.superblock_changed = true;
        &mut self.descriptors.superblock
    }

    /// Stores the value of `s_inodes_per_group` that the examination used.
    pub(crate) const fn mend_inodes_per_group(&mut self, count: u32) {
        self.descriptors.keeps_inodes_per_group = false;
        self.superblock_mut().inodes_per_group = count;
    }

    /// Stores the value of `s_desc_size` that the examination used.
    pub(crate) const fn mend_desc_size(&mut self, bytes: u16) {
        self.descriptors.keeps_desc_size = false;
        self.superblock_mut().desc_size = bytes;
    }

    /// The descriptor of a group with the edits of this round; a zeroed one if out of range.
    pub fn group(&self, group: GroupNr) -> GroupDesc {
        self.descriptors.groups.get(group.0 as usize).copied().unwrap_or_default()
    }

    /// All descriptors from the first readable backup; empty if there is none.
    pub(crate) fn backup_groups(&self) -> &[GroupDesc] {
        self.descriptors.backup_groups.get_or_init(|| self.read_backup_groups().unwrap_or_default())
    }

    fn read_backup_groups(&self) -> Option<Vec<GroupDesc>> {
        let (geometry, volume) = (&self.geometry, &self.evidence.volume);
        if volume.doubts.used_backup.is_some() {
            return None;
        }
        let backup =
            (1..geometry.group_count).find_map(|group| geometry.superblock_of(GroupNr(group)))?;
        let (device, superblock) = (volume.device, &volume.superblock);
        let mut unread = Findings::default();
        let groups = descriptors::read(device, superblock, geometry, Some(backup), &mut unread);
        unread.0.is_empty().then_some(groups)
    }

    /// Edits the descriptor of a group and updates its checksum.
    pub(crate) fn edit_group(&mut self, group: GroupNr, edit: impl FnOnce(&mut GroupDesc)) {
        if let Some(desc) = self.descriptors.groups.get_mut(group.0 as usize) {
            edit(desc);
            self.descriptors.changed_groups.insert(group.0);
        }
    }

    /// Rewrites all descriptors with new checksums at the end of the round.
    pub(crate) const fn rewrite_groups(&mut self) {
        self.descriptors.all_groups = true;
    }

    /// Rewrites all backups at the end of the round.
    pub(crate) const fn write_backups(&mut self) {
        self.descriptors.backups = true;
    }

    /// Stages superblock and descriptors with their checksums.
    ///
    /// # Errors
    /// They cannot be staged.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.write_groups()?;
        if self.descriptors.superblock_changed {
            self.write_superblock(OFFSET_BYTES, &self.descriptors.superblock.clone())?;
        }
        if self.descriptors.backups {
            match self.write_all_backups() {
                // A truncated device lacks some of the blocks; the check reports that.
                Err(Failure::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {}
                written => written?,
            }
        }
        Ok(())
    }

    /// Stages a superblock with its checksum, at a byte offset of the device.
    fn write_superblock(&self, offset: u64, superblock: &Superblock) -> Result<(), Failure> {
        let mut bytes = [0; 1024];
        let mut superblock = superblock.clone();
        if self.descriptors.keeps_inodes_per_group {
            superblock.inodes_per_group = self.stored_copy(offset)?.inodes_per_group;
        }
        if self.descriptors.keeps_desc_size {
            superblock.desc_size = self.stored_copy(offset)?.desc_size;
        }
        superblock.encode_with_checksum(&mut bytes);
        self.overlay.stage_readable_sectors(offset)?;
        self.overlay.write_at(offset, &bytes)?;
        Ok(())
    }

    /// A backup of the superblock; if invalid, the primary one.
    fn stored_copy(&self, offset: u64) -> Result<Superblock, Failure> {
        let stored = |offset| {
            let mut bytes = [0; 1024];
            self.overlay.read_at(offset, &mut bytes).map(|()| Superblock::decode(&bytes))
        };
        let copy = stored(offset).ok().filter(|copy| copy.magic == MAGIC);
        Ok(copy.map_or_else(|| stored(OFFSET_BYTES), Ok)?)
    }

    /// The encoded descriptor of a group, with its checksum.
    fn encode_group(&self, group: GroupNr) -> Vec<u8> {
        let mut raw = self.stored_descriptor(group);
        if let Some(record) = self.descriptors.records.get(&group.0) {
            record.put(&mut raw);
        }
        self.group(group).seal(&mut raw, group, DescChecksum::of(&self.descriptors.superblock));
        raw
    }

    fn write_groups(&mut self) -> Result<(), Failure> {
        let changed: Vec<u32> = if self.descriptors.all_groups {
            (0..self.geometry.group_count).collect()
        } else {
            self.descriptors.changed_groups.iter().copied().collect()
        };
        let size = self.geometry.desc_size;
        let per_block = self.geometry.block_size / size;
        for group in changed {
            let index = group / per_block;
            let block = self.geometry.primary_desc_block(index);
            if group % per_block == 0
                && self.descriptors.all_groups
                && self.read_block(block).is_err()
            {
                // An unreadable block can only be written as a whole.
                self.write_block(block, &self.descriptor_block(index))?;
                continue;
            }
            let offset = self.geometry.offset_bytes(block) + u64::from(group % per_block * size);
            self.overlay.write_at(offset, &self.encode_group(GroupNr(group)))?;
        }
        Ok(())
    }

    /// Block `index` of the descriptor table.
    fn descriptor_block(&self, index: u32) -> Vec<u8> {
        let geometry = &self.geometry;
        let per_block = geometry.descs_per_block();
        let first = index * per_block;
        let count = per_block.min(geometry.group_count - first);
        let mut bytes = vec![0; self.block_size()];
        let slots = bytes.chunks_exact_mut(geometry.desc_size as usize);
        for (slot, nr) in slots.zip(first..first + count) {
            slot.copy_from_slice(&self.encode_group(GroupNr(nr)));
        }
        bytes
    }

    /// Stages all backups: superblocks marked clean, then descriptors.
    fn write_all_backups(&self) -> Result<(), Failure> {
        let geometry = &self.geometry;
        let per_block = geometry.descs_per_block();
        for group in (1..geometry.group_count).map(GroupNr) {
            if let Some(block) = geometry.superblock_of(group) {
                let mut copy = self.descriptors.superblock.clone();
                // `s_block_group_nr` has 16 bits and stores the low ones; readers know the group
                // from the location.
                copy.block_group_nr = (group.0 & 0xffff) as u16;
                copy.state &= !STATE_VALID;
                copy.feature_incompat &= !Incompat::RECOVER.bits();
                let may = self.must_not_leave_alone(block);
                let offset = geometry.offset_bytes(block);
                unless_hidden(may.and_then(|()| self.write_superblock(offset, &copy)))?;
            }
            let run = geometry.group_desc_run(group);
            let meta_bg = run.len_blocks == 1
                && group.0 / per_block >= geometry.first_meta_bg
                && geometry.features.incompat.contains(Incompat::META_BG);
            for at in 0..run.len_blocks {
                // At most the number of descriptor blocks, which has 32 bits.
                let index = if meta_bg { group.0 / per_block } else { at as u32 };
                if index >= geometry.desc_blocks
                    || geometry.primary_desc_block(index).0 == run.start.0 + at
                {
                    continue;
                }
                let block = BlockNr(run.start.0 + at);
                unless_hidden(self.write_block(block, &self.descriptor_block(index)))?;
            }
        }
        Ok(())
    }
}

/// Ignores a backup block that is unreadable, or that a file has; the check reports it.
fn unless_hidden(written: Result<(), Failure>) -> Result<(), Failure> {
    match written {
        Err(Failure::Unreadable(_) | Failure::InPlace(_)) => Ok(()),
        written => written,
    }
}
