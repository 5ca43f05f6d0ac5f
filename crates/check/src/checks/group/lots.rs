//! Check: the identity of a native file system, and the records of lots in its descriptors (`docs/native.md`).
//! Reads: descriptors, the directories that name reservation files, and a backup of the superblock where lots contradict the
//! primary one.  Keeps: nothing.
//! Emits: `NativeIdentityWrong`, `LotRecordWrong`, `OwnDirectoryMissing`.
//! Does not verify: reservation files and sub-superblocks (`reservations.rs` and `cubes.rs` here, which this check calls).

use floe_format::native::identity::Identity;
use floe_format::native::lot::{LotRecord, OFFSET, is_desc_size, region_share};
use floe_format::{BlockNr, Geometry, GroupNr, InodeNr};

use super::reservations::{OwnFiles, is_reservation_file};
use crate::checks::superblock::backups::{self, MOST_BACKUPS};
use crate::problem::{Findings, Problem, Sink};
use crate::volume::Volume;
use crate::volume::cubes::is_sealed;

/// Checks all lots; nothing in a stock file system.
pub fn check(volume: &Volume<'_>, found: &mut Findings) {
    check_of(volume, None, found);
}

/// Checks the lots of one cube, and its sub-superblock; those of all without a number.
pub(crate) fn check_of(volume: &Volume<'_>, cube: Option<u32>, found: &mut Findings) {
    let Some(identity) = Identity::of(&volume.superblock) else {
        if has_records(volume) {
            let reason = "it is missing, but descriptors have records of lots";
            found.push(Problem::NativeIdentityWrong { reason });
        }
        return;
    };
    let geometry = &volume.geometry;
    let own = OwnFiles::of(volume);
    let is_sealed = is_sealed(volume);
    if let Some(reason) = identity_fault(volume, &identity, own.as_ref(), is_sealed) {
        found.push(Problem::NativeIdentityWrong { reason });
    }
    if let (Some(own), None) = (&own, cube) {
        let missing = match (own.home, own.cube) {
            (None, _) => Some("/.cubes"),
            (Some(_), None) => Some("/.cubes/c0"),
            _ => None,
        };
        found.0.extend(missing.map(|path| Problem::OwnDirectoryMissing { path }));
    }
    let lots = Lots {
        volume,
        rules: Rules { geometry, identity: &identity, is_sealed },
        own: own.as_ref(),
    };
    let mut bytes = Vec::new();
    let mut records: Vec<LotRecord> = Vec::new();
    let is_wanted = |lot: u32| match (&volume.cubes, cube) {
        (Some(cubes), Some(cube)) => cubes.of_group(GroupNr(lot * cubes.lot_groups())) == cube,
        _ => true,
    };
    for lot in (0..geometry.desc_blocks).filter(|lot| is_wanted(*lot)) {
        let block = geometry.primary_desc_block(lot);
        if volume.is_absent(block) || volume.read_block(block, &mut bytes).is_err() {
            // Another check reports that.
            continue;
        }
        match lots.judge(lot, &bytes) {
            Ok(record) => records.extend(record),
            Err((group, reason)) => found.push(Problem::LotRecordWrong { group, reason }),
        }
    }
    if let Some(reason) = layout_fault(volume, &identity, &records) {
        found.push(Problem::NativeIdentityWrong { reason });
    }
    if let Some(own) = &own {
        super::reservations::check(volume, &identity, own, &records, found);
    }
    super::cubes::check(volume, cube, found);
}

/// Whether the first lot has a record, with a checksum that proves it.
fn has_records(volume: &Volume<'_>) -> bool {
    let geometry = &volume.geometry;
    let (block, mut bytes) = (geometry.primary_desc_block(0), Vec::new());
    is_desc_size(geometry.desc_size)
        && volume.features().metadata_csum()
        && !volume.doubts.distrusted.contains(&GroupNr(0))
        && volume.read_block(block, &mut bytes).is_ok()
        && LotRecord::of(&bytes).is_some_and(|record| record.lot == 0)
}

fn identity_fault(
    volume: &Volume<'_>,
    identity: &Identity,
    own: Option<&OwnFiles>,
    is_sealed: bool,
) -> Option<&'static str> {
    let geometry = &volume.geometry;
    let home = InodeNr(identity.home_inode);
    let is_none = home.0 == 0;
    if !is_none && (geometry.is_reserved(home) || geometry.place_of(home).is_none()) {
        return Some("the inode that it names for /.cubes cannot be a directory");
    }
    // If there is none, that is another finding.
    let own = own.filter(|own| own.home.is_some())?;
    if own.home != Some(home) {
        return Some("it names another inode than /.cubes");
    }
    let (named, stated) = (own.super_file().unwrap_or_default(), InodeNr(identity.super_inode));
    // The superblock is not logged: after a crash, the name counts, unless it leads to a file of somebody else.
    let is_wrong = is_sealed || (!volume.is_own_file(named) && volume.is_own_file(stated));
    (named != stated && is_wrong).then_some("it names another inode than /.cubes/super")
}

/// A statement of the identity about lots that their records contradict.
fn layout_fault(
    volume: &Volume<'_>,
    identity: &Identity,
    records: &[LotRecord],
) -> Option<&'static str> {
    let geometry = &volume.geometry;
    let mut regions = records.iter().filter(|record| record.region_blocks > 0).peekable();
    let is_share = |record: &LotRecord| {
        region_share(geometry, record.lot, identity.region_blocks) == record.region_blocks
    };
    if regions.peek().is_none() || regions.any(is_share) {
        return None;
    }
    // Lots that became larger or smaller since keep the region that they had: then the backups say the same.
    let backups = (1..geometry.group_count).filter_map(|at| geometry.superblock_of(GroupNr(at)));
    let said = backups.take(MOST_BACKUPS).find_map(|block| region_blocks_in(volume, block))?;
    (said != identity.region_blocks)
        .then_some("neither a lot nor a backup has metadata regions of the size that it says")
}

/// The size of regions that a backup of the superblock of this file system says.
fn region_blocks_in(volume: &Volume<'_>, block: BlockNr) -> Option<u32> {
    let backup = backups::read(volume, block).ok()?;
    let identity = Identity::of(&backup).filter(|_| backup.uuid == volume.superblock.uuid);
    identity.map(|identity| identity.region_blocks)
}

/// The facts by which a record is judged.
#[derive(Clone, Copy)]
pub struct Rules<'v> {
    /// Where lots are.
    pub geometry: &'v Geometry,
    /// The identity of the file system.
    pub identity: &'v Identity,
    /// Nobody has written since Floe sealed the file system.
    pub is_sealed: bool,
}

struct Lots<'v> {
    volume: &'v Volume<'v>,
    rules: Rules<'v>,
    own: Option<&'v OwnFiles>,
}

impl Lots<'_> {
    /// The record of a lot, if it has one; or the first group whose record is wrong, and why. `bytes` is the block of the
    /// lot's descriptors.
    fn judge(&self, lot: u32, bytes: &[u8]) -> Result<Option<LotRecord>, (GroupNr, &'static str)> {
        let geometry = self.rules.geometry;
        let per_block = geometry.descs_per_block();
        let groups = (lot * per_block..geometry.group_count).map(GroupNr);
        let mut first: Option<LotRecord> = None;
        for (group, raw) in groups.zip(bytes.chunks_exact(geometry.desc_size as usize)) {
            // A descriptor with a wrong checksum is a finding of its own.
            if self.volume.doubts.distrusted.contains(&group) {
                continue;
            }
            let Some(record) = LotRecord::of(raw) else {
                let is_empty =
                    raw.get(OFFSET..).is_none_or(|rest| rest.iter().all(|byte| *byte == 0));
                // Programs that do not know records, as resize2fs, add groups without one.
                if is_empty && !self.rules.is_sealed {
                    continue;
                }
                return Err((group, if is_empty { "it is missing" } else { "it is unreadable" }));
            };
            if first.as_ref().is_some_and(|first| self.is_left_over(first, &record)) {
                continue;
            }
            let reason = match &first {
                Some(first) if *first != record => {
                    Some("it differs from that of another group of the lot")
                }
                Some(_) => None,
                None => self.rules.fault(lot, &record).or_else(|| self.wrong_file(&record)),
            };
            if let Some(reason) = reason {
                return Err((group, reason));
            }
            first = Some(record);
        }
        Ok(first)
    }

    /// Whether a record is one of before resize2fs made the file system smaller, and larger again.
    const fn is_left_over(&self, first: &LotRecord, record: &LotRecord) -> bool {
        !self.rules.is_sealed && record.lot == first.lot && record.epoch < first.epoch
    }

    fn wrong_file(&self, record: &LotRecord) -> Option<&'static str> {
        let named = *self.own?.by_lot.get(&record.lot)?;
        let stated = InodeNr(record.region_inode);
        if record.region_blocks == 0 || named == stated {
            return None;
        }
        // If the name leads to something else, it is the name that is wrong: the file has none.
        is_reservation_file(self.volume, record.lot, named)
            .then_some("it names another inode than that of its reservation file")
    }
}

impl Rules<'_> {
    /// Why a record cannot be that of a lot.
    pub fn fault(&self, lot: u32, record: &LotRecord) -> Option<&'static str> {
        let geometry = self.geometry;
        let per_block = geometry.descs_per_block();
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
