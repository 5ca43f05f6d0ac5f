//! Reservation files of native file systems, which hold the free blocks of metadata regions (`docs/native.md`).

use floe_check::checks::group::reservations::{OwnFiles, region};
use floe_format::ext::extent::Extent;
use floe_format::ext::inode::InodeFlags;
use floe_format::native::lot::LotRecord;
use floe_format::{BlockNr, BlockRun, GroupNr, InodeNr, LogicalBlock};

use super::{inodes, names, own_directories};
use crate::edit::ReservationEdit;
use crate::failure::Failure;
use crate::file_map::FileMap;
use crate::stage::{InodeImage, MODE_PRIVATE, Stage};

pub(super) fn apply(
    stage: &mut Stage<'_>,
    group: GroupNr,
    edit: ReservationEdit,
) -> Result<(), Failure> {
    let lot = group.0 / stage.geometry.descs_per_block();
    let record = stage.stored_records(lot).into_iter().next();
    let record = record.ok_or(Failure::NotNow("the lot has no record yet"))?;
    match edit {
        ReservationEdit::Create => create(stage, record),
        ReservationEdit::Name => name(stage, lot, InodeNr(record.region_inode)),
        ReservationEdit::Empty => empty(stage, record),
        ReservationEdit::Fill => fill(stage, record),
    }
}

/// Makes an empty reservation file with its name. A later round fills it.
fn create(stage: &mut Stage<'_>, record: LotRecord) -> Result<(), Failure> {
    let per_lot = stage.geometry.descs_per_block();
    let lot_of = |inode| stage.geometry.place_of(inode).map(|(group, _)| group.0 / per_lot);
    let first = stage.geometry.inode_at(GroupNr(record.lot * per_lot), 0);
    let named = InodeNr(record.region_inode);
    // The file of another lot is none of this one's, whatever the record says.
    let wanted = if lot_of(named) == Some(record.lot) { named } else { first };
    let inode = stage.allocate_inode(wanted)?;
    let mut image = stage.new_inode(inode, MODE_PRIVATE)?;
    make_empty(stage, &mut image, &record)?;
    stage.write_inode(&image)?;
    name(stage, record.lot, inode)?;
    // The whole region is to be in the file: the next examination finds that it is not.
    stage.set_record(&LotRecord { region_inode: inode.0, region_used: 0, ..record });
    Ok(())
}

/// Lets `region.LOT` in `/.cubes/c0` lead to an inode.
fn name(stage: &mut Stage<'_>, lot: u32, inode: InodeNr) -> Result<(), Failure> {
    let own = OwnFiles::of(&stage.evidence.volume);
    let cube = own.and_then(|own| own.cube);
    let cube = cube.ok_or(Failure::NotNow("the directory /.cubes/c0 cannot be read"))?;
    names::point(stage, cube, format!("region.{lot}").as_bytes(), inode)?;
    // A repair that knew no better may have put it there.
    own_directories::leave_lost_found(stage, inode)
}

/// Makes the named file an empty one. A later round fills it.
fn empty(stage: &mut Stage<'_>, record: LotRecord) -> Result<(), Failure> {
    let mut image = stage.read_inode(InodeNr(record.region_inode))?;
    image.base.mode = MODE_PRIVATE;
    (image.base.uid_lo, image.base.uid_high, image.base.dtime) = (0, 0, 0);
    make_empty(stage, &mut image, &record)?;
    stage.write_inode(&image)?;
    stage.set_record(&LotRecord { region_used: 0, ..record });
    Ok(())
}

fn make_empty(
    stage: &mut Stage<'_>,
    image: &mut InodeImage,
    record: &LotRecord,
) -> Result<(), Failure> {
    image.base.flags = (InodeFlags::IMMUTABLE | InodeFlags::EXTENTS).bits();
    FileMap::empty(stage).store(stage, image)?;
    image.set_size_bytes(u64::from(record.region_blocks) * stage.block_size() as u64);
    inodes::set_blocks(stage, image, 0);
    Ok(())
}

/// Adds the blocks of the region that nothing claims.
fn fill(stage: &mut Stage<'_>, record: LotRecord) -> Result<(), Failure> {
    let region = region(&record);
    let mut image = stage.read_inode(InodeNr(record.region_inode))?;
    let mut map = FileMap::load(stage, &image);
    let mut blocks: Vec<BlockNr> = map
        .runs
        .iter()
        .flat_map(|extent| (extent.run.start.0..extent.run.end().0).map(BlockNr))
        .filter(|block| !stage.is_contested(*block))
        .collect();
    for group in groups_of(stage, region) {
        stage.must_know(group)?;
    }
    blocks
        .extend((region.start.0..region.end().0).map(BlockNr).filter(|at| !stage.is_claimed(*at)));
    blocks.sort_unstable();
    map.runs.clear();
    for block in &blocks {
        let logical = LogicalBlock(block.0.saturating_sub(region.start.0));
        match map.runs.last_mut() {
            Some(Extent { run, .. }) if run.end() == *block => run.len_blocks += 1,
            _ => {
                let run = BlockRun::new(*block, 1);
                map.runs.push(Extent { logical, run, unwritten: true });
            }
        }
        stage.withhold(BlockRun::new(*block, 1))?;
    }
    // The blocks that lead up to the end of the region.
    let mut used_end = region.end().0;
    while blocks.binary_search(&BlockNr(used_end - 1)).is_ok() {
        used_end -= 1;
    }
    map.store(stage, &mut image)?;
    let total = map.blocks();
    inodes::set_blocks(stage, &mut image, total);
    stage.write_inode(&image)?;
    // Inside the region, which has at most 2^32 blocks.
    let region_used = (used_end - region.start.0) as u32;
    stage.set_record(&LotRecord { region_used, ..record });
    Ok(())
}

fn groups_of(stage: &Stage<'_>, run: BlockRun) -> impl Iterator<Item = GroupNr> + use<> {
    let group = |block: u64| stage.geometry.group_of(BlockNr(block)).map_or(0, |group| group.0);
    (group(run.start.0)..=group(run.end().0.saturating_sub(1))).map(GroupNr)
}
