//! Check: the identity of a native file system, and the records of lots in its descriptors (`docs/native.md`).
//! Reads: descriptors.  Keeps: nothing.  Emits: `NativeIdentityWrong`, `LotRecordWrong`; both are remarks, because the
//! file system is whole for ext4, and Floe uses no region that a record does not give.
//! Does not verify: reservation files, which are files like all others.

use floe_format::native::identity::Identity;
use floe_format::native::lot::{LotRecord, OFFSET};
use floe_format::{BlockNr, GroupNr, InodeNr};

use crate::problem::{Findings, Problem, Sink};
use crate::volume::Volume;

/// Checks all lots; nothing in a stock file system.
pub fn check(volume: &Volume<'_>, found: &mut Findings) {
    let Some(identity) = Identity::of(&volume.superblock) else { return };
    let geometry = &volume.geometry;
    let home = InodeNr(identity.home_inode);
    if geometry.is_reserved(home) || geometry.place_of(home).is_none() {
        found.push(Problem::NativeIdentityWrong { inode: home });
    }
    let lots = Lots { volume, identity: &identity, is_sealed: is_sealed(volume) };
    let mut bytes = Vec::new();
    for lot in 0..geometry.desc_blocks {
        let block = geometry.primary_desc_block(lot);
        if volume.is_absent(block) || volume.read_block(block, &mut bytes).is_err() {
            // That is a finding of its own.
            continue;
        }
        if let Some((group, reason)) = lots.judge(lot, &bytes) {
            found.push(Problem::LotRecordWrong { group, reason });
        }
    }
}

fn is_sealed(volume: &Volume<'_>) -> bool {
    volume.used_backup.is_none() && Identity::is_sealed(&volume.superblock)
}

struct Lots<'v> {
    volume: &'v Volume<'v>,
    identity: &'v Identity,
    /// Nobody has written since: then each group has a record.
    is_sealed: bool,
}

impl Lots<'_> {
    /// The first group of a lot whose record is wrong, and why. `bytes` is the block of the lot's descriptors.
    fn judge(&self, lot: u32, bytes: &[u8]) -> Option<(GroupNr, &'static str)> {
        let geometry = &self.volume.geometry;
        let per_block = geometry.block_size / geometry.desc_size;
        let groups = (lot * per_block..geometry.group_count).map(GroupNr);
        let mut first: Option<LotRecord> = None;
        for (group, raw) in groups.zip(bytes.chunks_exact(geometry.desc_size as usize)) {
            // A descriptor with a wrong checksum is a finding of its own.
            if self.volume.distrusted.contains(&group) {
                continue;
            }
            let Some(record) = LotRecord::of(raw) else {
                let is_empty =
                    raw.get(OFFSET..).is_none_or(|rest| rest.iter().all(|byte| *byte == 0));
                // Programs that do not know records, as resize2fs, add groups without one.
                if is_empty && !self.is_sealed {
                    continue;
                }
                return Some((group, if is_empty { "it is missing" } else { "it is unreadable" }));
            };
            let reason = match &first {
                Some(first) if *first != record => {
                    Some("it differs from that of another group of the lot")
                }
                Some(_) => None,
                None => self.fault(lot, per_block, &record),
            };
            if let Some(reason) = reason {
                return Some((group, reason));
            }
            first = Some(record);
        }
        None
    }

    fn fault(&self, lot: u32, per_block: u32, record: &LotRecord) -> Option<&'static str> {
        let geometry = &self.volume.geometry;
        let start = geometry.group_start(GroupNr(lot * per_block));
        let whole = u64::from(per_block) * u64::from(geometry.blocks_per_group);
        let end = BlockNr((start.0 + whole).min(geometry.blocks_count));
        let region_end = record.region_start.saturating_add(u64::from(record.region_blocks));
        let file = InodeNr(record.region_inode);
        if record.lot != lot {
            return Some("it has the number of another lot");
        }
        if self.is_sealed && record.epoch > self.identity.epoch {
            return Some("it is newer than the last seal");
        }
        if record.region_blocks == 0 {
            return None;
        }
        if record.region_start < start.0 || region_end > end.0 {
            return Some("its region lies outside the lot");
        }
        if record.region_used > record.region_blocks {
            return Some("it says that more of the region is in use than there is");
        }
        let is_file = geometry.place_of(file).is_some() && !geometry.is_reserved(file);
        (!is_file).then_some("there is no inode of the number of its reservation file")
    }
}
