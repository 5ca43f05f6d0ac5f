//! Lots of a native file system that another system made larger or smaller (`docs/native.md`).

use floe_ext4::inode_table::desc_place;
use floe_ext4::tx::{Refusal, Tx};
use floe_format::GroupNr;
use floe_format::native::lot::{self, LotRecord};

use super::Pool;

impl Pool {
    /// Gives a record to groups of a lot that have none, or an older one, because another system made the file system larger, or smaller
    /// before: that of the lot's other groups, or if all are new, one without a region. A record that is newer than the seal to come gets
    /// the number of that: a repair took an older superblock.
    pub(super) fn complete_records(
        &mut self,
        tx: &mut dyn Tx,
        lot: u32,
        epoch: u64,
    ) -> Result<(), Refusal> {
        let geo = self.groups.geometry();
        let first = GroupNr(lot.saturating_mul(self.regions.lot_groups));
        let mut own: Option<LotRecord> = None;
        let (mut bare, mut newer) = (Vec::new(), Vec::new());
        for group in self.regions.groups_of(first, geo.group_count).map(GroupNr) {
            let (block, at) = desc_place(group, geo);
            let bytes = tx.block(block)?;
            let raw = bytes.get(at..at + geo.desc_size as usize).unwrap_or(&[]);
            match LotRecord::of(raw) {
                Some(record) if record.lot == lot => {
                    if record.epoch > epoch {
                        newer.push(group);
                    }
                    match &own {
                        Some(own) if record.epoch < own.epoch => bare.push(group),
                        Some(_) => {}
                        None => own = Some(record),
                    }
                }
                // Anything else is damage, which a check must see.
                None if raw.iter().skip(lot::OFFSET).all(|byte| *byte == 0) => bare.push(group),
                _ => {}
            }
        }
        let none = LotRecord::decode(&[0; LotRecord::SIZE]);
        let (magic, version) = (lot::MAGIC, lot::VERSION);
        let mut record = own.unwrap_or(LotRecord { magic, version, lot, epoch, ..none });
        record.epoch = record.epoch.min(epoch);
        for group in bare {
            self.groups.edit_private(tx, group, |raw| record.put(raw))?;
        }
        for group in newer {
            self.groups.edit_private(tx, group, |raw| {
                if let Some(record) = LotRecord::of(raw) {
                    LotRecord { epoch, ..record }.put(raw);
                }
            })?;
        }
        Ok(())
    }
}
