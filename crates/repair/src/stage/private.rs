//! Bytes of descriptors that ext4 does not know: the records of lots of native file systems (`docs/native.md`).

use std::io;

use floe_blockdev::ReadBlocks;
use floe_format::ext::group_desc::{DescChecksum, GroupDesc};
use floe_format::native::lot::{LotRecord, OFFSET};
use floe_format::{BlockNr, GroupNr};

use super::Stage;

impl Stage<'_> {
    /// The bytes of a group's descriptor, to which fields are written: those of the first copy whose checksum fits, else of
    /// the primary one, else zeroes. Where that is not the primary one, the record of the lot is that of its other groups.
    pub(super) fn stored_descriptor(&self, group: GroupNr) -> Vec<u8> {
        let size = self.geometry.desc_size as usize;
        if size <= OFFSET {
            return vec![0; size];
        }
        let fits = |raw: &Vec<u8>| self.is_proven(group, raw);
        let mut copies = self.descriptor_copies(group);
        let primary = copies.next();
        if let Some(raw) = primary.clone().filter(fits) {
            return raw;
        }
        let mut raw = copies.find(fits).or(primary).unwrap_or_else(|| vec![0; size]);
        // A backup may be from before the lot got to its cube.
        if let Some(record) = self.proven_record(group) {
            record.put(&mut raw);
        }
        raw
    }

    /// Whether the checksum of a descriptor fits.
    fn is_proven(&self, group: GroupNr, raw: &[u8]) -> bool {
        let sum = DescChecksum::of(self.superblock()).compute(group, raw);
        sum.is_none_or(|sum| sum == GroupDesc::of(raw).checksum)
    }

    /// The record of a group's lot in the first primary descriptor that has it and whose checksum fits.
    fn proven_record(&self, group: GroupNr) -> Option<LotRecord> {
        let per_block = self.geometry.descs_per_block();
        let lot = group.0 / per_block;
        let groups = (lot * per_block..self.geometry.group_count).take(per_block as usize);
        groups.map(GroupNr).find_map(|group| {
            let raw = self.descriptor_copies(group).next()?;
            let record = LotRecord::of(&raw).filter(|record| record.lot == lot);
            record.filter(|_| self.is_proven(group, &raw))
        })
    }

    /// The records of a lot in all copies of its descriptors, the primary ones first.
    pub(crate) fn stored_records(&self, lot: u32) -> Vec<LotRecord> {
        let per_block = self.geometry.descs_per_block();
        let groups = (0..per_block).map(|at| GroupNr(lot * per_block + at));
        let groups = groups.filter(|group| group.0 < self.geometry.group_count);
        let copies = groups.flat_map(|group| self.descriptor_copies(group).collect::<Vec<_>>());
        copies.filter_map(|raw| LotRecord::of(&raw)).collect()
    }

    /// The readable copies of a group's descriptor: the primary one, and with meta_bg its backups.
    fn descriptor_copies(&self, group: GroupNr) -> impl Iterator<Item = Vec<u8>> + '_ {
        let geometry = &self.geometry;
        let size = geometry.desc_size;
        let per_block = geometry.block_size / size;
        let index = group.0 / per_block;
        let first = index * per_block;
        let backups = [first.saturating_add(1), first.saturating_add(per_block - 1)]
            .into_iter()
            .filter(move |at| index >= geometry.first_meta_bg && *at < geometry.group_count)
            .map(|at| geometry.group_desc_run(GroupNr(at)).start);
        std::iter::once(geometry.primary_desc_block(index)).chain(backups).filter_map(
            move |block: BlockNr| {
                let offset = geometry.offset_bytes(block) + u64::from(group.0 % per_block * size);
                let mut raw = vec![0; size as usize];
                let read: io::Result<()> = self.overlay.read_at(offset, &mut raw);
                read.is_ok().then_some(raw)
            },
        )
    }

    /// Sets the record of a lot in all its descriptors, and in their backups.
    pub(crate) fn set_record(&mut self, record: &LotRecord) {
        let per_block = self.geometry.descs_per_block();
        let first = record.lot.saturating_mul(per_block);
        for group in first..first.saturating_add(per_block).min(self.geometry.group_count) {
            self.descriptors.records.insert(group, record.clone());
            self.edit_group(GroupNr(group), |_| {});
        }
        self.write_backups();
    }
}
