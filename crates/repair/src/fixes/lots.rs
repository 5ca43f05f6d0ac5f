//! Native file systems: the identity in the superblock, and the records of lots (`docs/native.md`).

use floe_check::checks::group::lots::Rules;
use floe_check::checks::group::reservations::{OwnFiles, is_reservation_file};
use floe_ext4::group::metadata_runs;
use floe_format::native::cube::SUPER_NAME;
use floe_format::native::identity::{self, Identity};
use floe_format::native::lot::{self, LotRecord, region_share};
use floe_format::{BlockNr, BlockRun, GroupNr, InodeNr};

use super::names;
use crate::failure::Failure;
use crate::file_map::FileMap;
use crate::stage::Stage;

const NOT_NATIVE: Failure = Failure::NotNow("the file system has no identity yet");

/// The own files of the file system, as far as their directories can be read.
fn own_files(stage: &Stage<'_>) -> Option<OwnFiles> {
    OwnFiles::of(&stage.evidence.volume)
}

/// Stores the identity: that of the superblock or of a backup, else one that follows from the records of the lots.
pub(super) fn mend_identity(stage: &mut Stage<'_>) -> Result<(), Failure> {
    let known = Identity::of(stage.superblock()).or_else(|| in_backup(stage));
    let mut identity = known.unwrap_or_else(|| computed(stage));
    identity.region_blocks = region_blocks(stage, identity.region_blocks);
    if let Some(own) = own_files(stage) {
        identity.super_inode = super_inode(stage, &own, InodeNr(identity.super_inode))?.0;
    }
    identity.home_inode = match own_files(stage).and_then(|own| own.home) {
        Some(home) => home.0,
        None if is_possible(stage, InodeNr(identity.home_inode)) => identity.home_inode,
        None => 0,
    };
    Identity { seal: 0, ..identity }.put(stage.superblock_mut());
    stage.write_backups();
    Ok(())
}

/// The inode of `/.cubes/super`: where the name leads. If that is a file of somebody else, or there is no name, it gets the name
/// that the superblock states, if this is one.
fn super_inode(stage: &mut Stage<'_>, own: &OwnFiles, stated: InodeNr) -> Result<InodeNr, Failure> {
    let volume = &stage.evidence.volume;
    let named = own.super_file().unwrap_or_default();
    let Some(home) = own.home else {
        // The directory is made again later, and names the file then.
        return Ok(if volume.is_own_file(stated) { stated } else { InodeNr(0) });
    };
    if named == stated || volume.is_own_file(named) || !volume.is_own_file(stated) {
        return Ok(named);
    }
    names::point(stage, home, SUPER_NAME, stated)?;
    Ok(stated)
}

/// The size of regions that a lot's record proves: `own`, or that of a backup; else what the first backup says, or the largest that a
/// record has.
fn region_blocks(stage: &Stage<'_>, own: u32) -> u32 {
    let geometry = &stage.geometry;
    let records: Vec<LotRecord> = (0..geometry.desc_blocks)
        .flat_map(|lot| stage.stored_records(lot))
        .filter(|record| record.region_blocks > 0 && record.lot < geometry.desc_blocks)
        .collect();
    let fits = |blocks: &u32| {
        let is_share = |record: &LotRecord| {
            region_share(geometry, record.lot, *blocks) == record.region_blocks
        };
        records.is_empty() || records.iter().any(is_share)
    };
    let backups: Vec<u32> = super::superblock::good_backups(stage)
        .filter_map(|backup| Identity::of(&backup).map(|identity| identity.region_blocks))
        .collect();
    let mut known = std::iter::once(own).chain(backups.iter().copied());
    let said = known.find(fits).or_else(|| backups.first().copied());
    said.unwrap_or_else(|| computed(stage).region_blocks)
}

fn is_possible(stage: &Stage<'_>, inode: InodeNr) -> bool {
    !stage.geometry.is_reserved(inode) && stage.geometry.place_of(inode).is_some()
}

/// The identity in the first valid backup of this file system that has one.
fn in_backup(stage: &Stage<'_>) -> Option<Identity> {
    super::superblock::good_backups(stage).find_map(|backup| Identity::of(&backup))
}

fn computed(stage: &Stage<'_>) -> Identity {
    let records = (0..stage.geometry.desc_blocks).flat_map(|lot| stage.stored_records(lot));
    let mut identity = Identity {
        magic: identity::MAGIC,
        version: identity::VERSION,
        ..Identity::decode(&[0; Identity::SIZE])
    };
    for record in records {
        identity.epoch = identity.epoch.max(record.epoch);
        // A shorter last lot has a smaller region.
        identity.region_blocks = identity.region_blocks.max(record.region_blocks);
    }
    identity
}

/// Stores the record of the lot of a group: the one that most copies of its descriptors have and that can be right, else one
/// that follows from the layout.
pub(super) fn mend_record(stage: &mut Stage<'_>, group: GroupNr) -> Result<(), Failure> {
    let lot = group.0 / stage.geometry.descs_per_block();
    let identity = Identity::of(stage.superblock()).ok_or(NOT_NATIVE)?;
    // A name may lead to a file of somebody else, which would be emptied then.
    let named = own_files(stage)
        .and_then(|own| own.by_lot.get(&lot).copied())
        .filter(|named| is_reservation_file(&stage.evidence.volume, lot, *named));
    let rules = Rules { geometry: &stage.geometry, identity: &identity, is_sealed: true };
    let mut copies = stage.stored_records(lot);
    for copy in &mut copies {
        if let Some(named) = named.filter(|_| copy.region_blocks > 0) {
            copy.region_inode = named.0;
        }
        copy.epoch = copy.epoch.min(identity.epoch);
    }
    copies.retain(|copy| rules.fault(lot, copy).is_none());
    let votes = |record: &LotRecord| copies.iter().filter(|copy| *copy == record).count();
    // If several have as many votes, the first one counts: it comes from a primary descriptor.
    let best = copies.iter().rev().max_by_key(|copy| votes(copy)).cloned();
    let record = match best {
        Some(best) => best,
        None => by_layout(stage, lot, &identity, named),
    };
    stage.set_record(&record);
    Ok(())
}

/// The record that mkfs would write, with the region where the reservation file says.
fn by_layout(
    stage: &Stage<'_>,
    lot: u32,
    identity: &Identity,
    named: Option<InodeNr>,
) -> LotRecord {
    let geometry = &stage.geometry;
    let per_lot = geometry.descs_per_block();
    let first = GroupNr(lot * per_lot);
    let groups = (first.0..first.0.saturating_add(per_lot).min(geometry.group_count)).map(GroupNr);
    let start = geometry.group_start(first);
    let end = groups.clone().next_back().map_or(start, |last| geometry.blocks_of(last).end());
    let wanted = u64::from(region_share(geometry, lot, identity.region_blocks));
    let region = by_file(stage, named)
        .map(|at| BlockRun::new(at, wanted))
        .filter(|run| run.start >= start && run.end() <= end)
        .or_else(|| {
            let taken: Vec<BlockRun> = groups
                .flat_map(|group| metadata_runs(geometry, group, &stage.group(group)))
                .collect();
            behind_tables(stage, first, wanted, &taken).filter(|run| run.end() <= end)
        })
        .unwrap_or(BlockRun::new(start, 0));
    // A region is smaller than a lot. All of it counts as used, because nobody knows better.
    let region_blocks = region.len_blocks as u32;
    let inode = named.unwrap_or_else(|| geometry.inode_at(first, 0));
    LotRecord {
        magic: lot::MAGIC,
        version: lot::VERSION,
        lot,
        region_start: region.start.0,
        region_blocks,
        region_inode: if region_blocks > 0 { inode.0 } else { 0 },
        region_used: region_blocks,
        epoch: identity.epoch,
        cube: listed_owner(stage, lot),
        ..LotRecord::decode(&[0; LotRecord::SIZE])
    }
}

/// The cube whose sub-superblock lists a lot; 0: none.
fn listed_owner(stage: &Stage<'_>, lot: u32) -> u32 {
    let Some(cubes) = &stage.evidence.volume.cubes else { return 0 };
    let numbers = cubes.copies().into_iter().flat_map(|all| all.keys().copied());
    let lists = |cube: &u32| cubes.current(*cube).is_some_and(|sub| sub.lots.contains(&lot));
    numbers.into_iter().find(lists).unwrap_or(0)
}

/// The beginning of the region by the reservation file, whose logical blocks count from it.
fn by_file(stage: &Stage<'_>, named: Option<InodeNr>) -> Option<BlockNr> {
    let image = stage.read_inode(named?).ok()?;
    let extent = *FileMap::load(stage, &image).runs.first()?;
    extent.run.start.0.checked_sub(extent.logical.0).map(BlockNr)
}

/// The first run of blocks behind the last inode table of a lot, and the metadata in `taken`, that is long enough.
fn behind_tables(
    stage: &Stage<'_>,
    first: GroupNr,
    len_blocks: u64,
    taken: &[BlockRun],
) -> Option<BlockRun> {
    let geometry = &stage.geometry;
    let per_lot = geometry.descs_per_block();
    let last = GroupNr((first.0 + per_lot).min(geometry.group_count) - 1);
    let table = stage.group(last).inode_table;
    let mut at = table.0.checked_add(u64::from(geometry.inode_table_blocks))?;
    // Each turn passes one of the taken runs.
    for _ in 0..=taken.len() {
        let end = at.checked_add(len_blocks)?;
        match taken.iter().find(|run| run.start.0 < end && run.end().0 > at) {
            Some(run) => at = run.end().0,
            None => return Some(BlockRun::new(BlockNr(at), len_blocks)),
        }
    }
    None
}
