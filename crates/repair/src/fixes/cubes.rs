//! Sub-superblocks of cubes, and the owners of their lots (`docs/cubes.md`).

use std::collections::BTreeSet;

use floe_check::Problem;
use floe_check::checks::group::reservations::OwnFiles;
use floe_check::volume::cubes::CubeMap;
use floe_ext4::cubes::find_stray;
use floe_ext4::journal::{CubeFile, CubeJournal, find_cubes};
use floe_ext4::make::journal_superblock::{EmptyJournal, JournalSize};
use floe_format::ext::extent::Extent;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::ext::orphan_file::encode_clean;
use floe_format::native::cube::{
    MOST_LOTS, MOST_PATH_BYTES, OwnJournal, SUPER_BYTES, SUPER_NAME, State, SubSuperblock,
};
use floe_format::native::identity::Identity;
use floe_format::words::agree;
use floe_format::{BlockNr, BlockRun, GroupNr, InodeNr, LogicalBlock};

use super::{inodes, names};
use crate::edit::CubeEdit;
use crate::failure::Failure;
use crate::file_map::FileMap;
use crate::stage::{MODE_PRIVATE, Stage};

/// Directories above a cube that are followed: a path has at most 2048 bytes.
const MOST_ABOVE: usize = MOST_PATH_BYTES / 2;

pub(super) fn apply(stage: &mut Stage<'_>, cube: u32, edit: CubeEdit) -> Result<(), Failure> {
    if cube == 0 {
        return mend_journals_of_root(stage);
    }
    let map = stage.evidence.volume.cubes.clone();
    let map = map.ok_or(Failure::NotNow("nothing is known of cubes"))?;
    match edit {
        CubeEdit::Copies | CubeEdit::Clear => {
            let sub = map.current(cube).ok_or(Failure::NotNow("neither copy is good"))?;
            let state = if edit == CubeEdit::Clear { State::Sound } else { sub.state };
            put(stage, &SubSuperblock { state, ..sub })
        }
        CubeEdit::Couple(coupled) => couple(stage, &map, cube, coupled),
        CubeEdit::Rebuild => rebuild(stage, &map, cube),
        CubeEdit::Lots => give_lots(stage, &map, cube),
        CubeEdit::Journal => mend_journal(stage, &map, cube),
    }
}

/// Records with which others a cube is coupled.
fn couple(
    stage: &mut Stage<'_>,
    map: &CubeMap,
    cube: u32,
    coupled: Option<u32>,
) -> Result<(), Failure> {
    let sub = map.current(cube).ok_or(Failure::NotNow("neither copy is good"))?;
    let left = stage.evidence.report.found.iter().filter_map(|problem| match problem {
        Problem::CubeEntangledBlocks { inode, cube: own, .. } => (*own == cube).then_some(*inode),
        _ => None,
    });
    let files = left.collect::<BTreeSet<_>>().len();
    if files > 0 {
        let text = format!("{files} files of cube {cube} keep blocks in other cubes");
        stage.note(agree(&text).into_owned());
    }
    put(stage, &SubSuperblock { coupled, ..sub })
}

/// Makes the journal of a cube an empty one, if it cannot be used and its file can; without a file the cube has no journal of its
/// own any more. A log that can be used was emptied when the repair began. Entries of other cubes go from the list of orphans; a
/// damaged list becomes an empty one.
fn mend_journal(stage: &mut Stage<'_>, map: &CubeMap, cube: u32) -> Result<(), Failure> {
    let volume = &stage.evidence.volume;
    let (superblock, geometry) = (stage.superblock().clone(), volume.geometry.clone());
    let found = find_cubes(stage.overlay, &superblock, &geometry, &volume.groups);
    if let Some(own) = found.usable.iter().find(|own| own.cube == cube) {
        return mend_orphans(stage, own);
    }
    let lost = found.unusable.into_iter().filter(|lost| lost.cube == cube && !lost.is_unread);
    let sub = map.current(cube).ok_or(Failure::NotNow("neither copy is good"))?;
    for lost in lost {
        let Some(file) = lost.file else {
            stage.note(format!("cube {cube} has no journal of its own any more"));
            forget_journal(stage, &lost.lots);
            put(stage, &SubSuperblock { journal: OwnJournal::default(), ..sub.clone() })?;
            continue;
        };
        make_empty(stage, &file, (InodeNr(sub.journal.inode), sub.journal.uuid))?;
    }
    Ok(())
}

/// The same for further journals of the root cube; without a file inode 8 logs the lots from now on.
fn mend_journals_of_root(stage: &mut Stage<'_>) -> Result<(), Failure> {
    let volume = &stage.evidence.volume;
    let (superblock, geometry) = (stage.superblock().clone(), volume.geometry.clone());
    let found = find_cubes(stage.overlay, &superblock, &geometry, &volume.groups);
    for own in found.usable.iter().filter(|own| own.cube == 0) {
        mend_orphans(stage, own)?;
    }
    for lost in found.unusable.into_iter().filter(|lost| lost.cube == 0 && !lost.is_unread) {
        let Some(file) = lost.file else {
            stage.note(format!("lots of journal {} are logged by inode 8 now", lost.inode));
            forget_journal(stage, &lost.lots);
            continue;
        };
        make_empty(stage, &file, (lost.inode, superblock.uuid))?;
    }
    Ok(())
}

/// Takes entries of other cubes out of the list of a journal's orphans; a damaged list becomes an empty one.
fn mend_orphans(stage: &mut Stage<'_>, own: &CubeJournal) -> Result<(), Failure> {
    let mut bytes = stage.read_block(own.orphan_block)?;
    if super::orphans::are_orphans_sound(stage, own, &bytes) {
        return keep_own_orphans(stage, own);
    }
    stage.note(format!("the list of orphans of cube {} was emptied", own.cube));
    encode_clean(&mut bytes, own.seed, own.orphan_block);
    stage.write_block(own.orphan_block, &bytes)
}

/// Takes the journal out of the records of lots.
fn forget_journal(stage: &mut Stage<'_>, lots: &[u32]) {
    for lot in lots {
        let record = stage.stored_records(*lot).into_iter().find(|record| record.lot == *lot);
        if let Some(mut record) = record {
            (record.journal_inode, record.orphan_block) = (0, 0);
            stage.set_record(&record);
        }
    }
}

/// Writes an empty journal, and an empty list of orphans behind it. Nothing that lies in the log may pass for a transaction, so
/// its blocks become zeroes.
fn make_empty(
    stage: &Stage<'_>,
    file: &CubeFile,
    (inode, uuid): (InodeNr, [u8; 16]),
) -> Result<(), Failure> {
    let image = stage.read_inode(inode)?;
    let map = FileMap::load(stage, &image);
    let mut bytes = vec![0; stage.block_size()];
    for logical in 1..u64::from(file.blocks) {
        let block = map.find(LogicalBlock(logical)).ok_or(Failure::NotNow("its file has holes"))?;
        stage.write_block(block, &bytes)?;
    }
    let empty = EmptyJournal {
        block_size: stage.geometry.block_size,
        size: JournalSize { blocks: file.blocks, fast_commit_blocks: 0 },
        sequence: u32::from_le_bytes([stage.random[0], stage.random[1], stage.random[2], 1]),
        uuid: Some(uuid),
    };
    bytes[..1024].copy_from_slice(&empty.superblock());
    stage.write_block(file.first, &bytes)?;
    encode_clean(&mut bytes, stage.checksummed().then_some(file.seed), file.orphan_block);
    stage.write_block(file.orphan_block, &bytes)
}

/// Drops entries of other cubes from the list of a cube's orphans.
fn keep_own_orphans(stage: &Stage<'_>, own: &CubeJournal) -> Result<(), Failure> {
    let owns = |orphan| own.owns(&stage.geometry, orphan);
    super::orphans::keep_in_block(stage, own.orphan_block, own.seed, owns)
}

/// Makes a sub-superblock from the tree and the records; without a directory the cube is given up.
fn rebuild(stage: &mut Stage<'_>, map: &CubeMap, cube: u32) -> Result<(), Failure> {
    let Some(top) = top_of(stage, map, cube) else {
        stage.note(format!("no directory leads into cube {cube}: its lots belong to no cube now"));
        for lot in map.lots_of(cube) {
            own(stage, lot, 0);
        }
        return drop_copies(stage, cube);
    };
    let before = map.current(cube).or_else(|| stray(stage, map, cube));
    let path = path_of(stage, top).or_else(|| before.as_ref().map(|sub| sub.path.clone()));
    let journal = before.as_ref().map(|sub| sub.journal);
    let sub = SubSuperblock {
        cube,
        top_inode: top.0,
        epoch: before.as_ref().map_or(1, |sub| sub.epoch.saturating_add(1)),
        path: path.unwrap_or_else(|| format!("/#{}", top.0).into_bytes()),
        lots: map.lots_of(cube).take(MOST_LOTS).collect(),
        journal: own_journal(stage, cube).or(journal).unwrap_or_default(),
        policies: before.map(|sub| sub.policies).unwrap_or_default(),
        state: State::Sound,
        coupled: None,
    };
    put(stage, &sub)
}

/// The journal of a cube, which the records of its lots name; its file and its superblock have the rest.
fn own_journal(stage: &Stage<'_>, cube: u32) -> Option<OwnJournal> {
    let volume = &stage.evidence.volume;
    let (superblock, geometry) = (&volume.superblock, &volume.geometry);
    let found = find_cubes(stage.overlay, superblock, geometry, &volume.groups);
    let own = found.usable.into_iter().find(|own| own.cube == cube)?;
    let (inode, journal) = (own.inode.0, own.journal);
    Some(OwnJournal { inode, blocks: journal.blocks, uuid: journal.superblock.uuid })
}

/// Gives the lots in the list of a cube to it again, unless its directory does not lie in them.
fn give_lots(stage: &mut Stage<'_>, map: &CubeMap, cube: u32) -> Result<(), Failure> {
    let Some(sub) = map.current(cube) else { return drop_copies(stage, cube) };
    let count = stage.geometry.desc_blocks;
    let is_free =
        |lot: &u32| (1..count).contains(lot) && map.of_group(GroupNr(lot * map.lot_groups())) == 0;
    let lots: Vec<u32> = sub.lots.iter().copied().filter(is_free).collect();
    let home = stage.geometry.place_of(InodeNr(sub.top_inode));
    let home = home.map(|(group, _)| group.0 / map.lot_groups().max(1));
    if !home.is_some_and(|home| lots.contains(&home)) {
        stage.note(format!("the sub-superblock of cube {cube} was removed"));
        return drop_copies(stage, cube);
    }
    lots.into_iter().for_each(|lot| own(stage, lot, cube));
    Ok(())
}

fn own(stage: &mut Stage<'_>, lot: u32, cube: u32) {
    let record = stage.stored_records(lot).into_iter().find(|record| record.lot == lot);
    if let Some(mut record) = record {
        record.cube = cube;
        stage.set_record(&record);
    }
}

/// The directory of a cube: the first one in its lots whose parent lies outside.
fn top_of(stage: &Stage<'_>, map: &CubeMap, cube: u32) -> Option<InodeNr> {
    let evidence = stage.evidence;
    let of = |inode: InodeNr| map.of_inode(&stage.geometry, inode);
    let inside = evidence.dirs.infos.iter().map(|info| info.inode).filter(|dir| of(*dir) == cube);
    let is_top = |dir: &InodeNr| parent_of(stage, *dir).is_some_and(|parent| of(parent) != cube);
    inside.filter(is_top).min()
}

fn parent_of(stage: &Stage<'_>, dir: InodeNr) -> Option<InodeNr> {
    let evidence = stage.evidence;
    let parent = evidence.tree.parent(evidence.index.get(dir)?)?;
    Some(evidence.index.inode(parent))
}

/// The path of a directory, by the tree.
fn path_of(stage: &Stage<'_>, dir: InodeNr) -> Option<Vec<u8>> {
    let files = stage.files();
    let (mut at, mut parts): (InodeNr, Vec<Vec<u8>>) = (dir, Vec::new());
    for _ in 0..MOST_ABOVE {
        if at == InodeNr::ROOT {
            parts.reverse();
            let path: Vec<u8> = parts.concat();
            return (2..=MOST_PATH_BYTES).contains(&path.len()).then_some(path);
        }
        let parent = parent_of(stage, at)?;
        let listing = files.list(&files.node(parent).ok()?).ok()?;
        let name = listing.entries.into_iter().find(|entry| entry.inode == at)?.name;
        parts.push([b"/", &name[..]].concat());
        at = parent;
    }
    None
}

/// A good copy in the lots of the cube that `/.cubes/super` does not lead to any more.
fn stray(stage: &Stage<'_>, map: &CubeMap, cube: u32) -> Option<SubSuperblock> {
    let geometry = &stage.geometry;
    let groups = map.lots_of(cube).flat_map(|lot| {
        let first = lot * map.lot_groups();
        (first..(first + map.lot_groups()).min(geometry.group_count)).map(GroupNr)
    });
    let runs = groups.map(|group| geometry.blocks_of(group));
    let found = find_stray(cube, runs, &mut |block| stage.read_block(block).ok());
    found.map(|(_, sub)| sub)
}

/// Writes both copies of a sub-superblock.
fn put(stage: &mut Stage<'_>, sub: &SubSuperblock) -> Result<(), Failure> {
    let file = super_file(stage)?;
    let mut image = stage.read_inode(file)?;
    let mut map = FileMap::load(stage, &image);
    let homes = [file, InodeNr(sub.top_inode)];
    let mut is_longer = false;
    for (logical, home) in SubSuperblock::places(sub.cube).into_iter().zip(homes) {
        let logical = LogicalBlock(logical);
        let block = match map.find(logical) {
            Some(block) => block,
            None => {
                let group = stage.geometry.place_of(home).map_or(GroupNr(0), |(group, _)| group);
                let block = stage.allocate(stage.geometry.group_start(group))?;
                map.runs.push(Extent { logical, run: BlockRun::new(block, 1), unwritten: false });
                is_longer = true;
                block
            }
        };
        stage.write_block(block, &sub.encode()[..])?;
    }
    if is_longer {
        map.sort();
        map.store(stage, &mut image)?;
        let total = map.blocks();
        inodes::set_blocks(stage, &mut image, total);
        stage.write_inode(&image)?;
    }
    Ok(())
}

/// Removes both copies of a sub-superblock from `/.cubes/super`.
fn drop_copies(stage: &mut Stage<'_>, cube: u32) -> Result<(), Failure> {
    let file = known_super_file(stage);
    if file.0 == 0 {
        return Ok(());
    }
    let mut image = stage.read_inode(file)?;
    let mut map = FileMap::load(stage, &image);
    for place in SubSuperblock::places(cube) {
        map.runs = map.runs.iter().flat_map(|extent| without(extent, place)).collect();
    }
    map.store(stage, &mut image)?;
    let total = map.blocks();
    inodes::set_blocks(stage, &mut image, total);
    stage.write_inode(&image)
}

/// The parts of an extent before and behind a logical block.
fn without(extent: &Extent, logical: u64) -> Vec<Extent> {
    let at = logical.checked_sub(extent.logical.0).filter(|at| *at < extent.run.len_blocks);
    let Some(at) = at else { return vec![*extent] };
    let (start, first) = (extent.run.start.0, extent.logical.0);
    let parts = [(0, at), (at + 1, extent.run.len_blocks - at - 1)];
    let part = |(from, len_blocks): (u64, u64)| Extent {
        logical: LogicalBlock(first + from),
        run: BlockRun::new(BlockNr(start + from), len_blocks),
        unwritten: extent.unwritten,
    };
    parts.into_iter().filter(|(_, len)| *len > 0).map(part).collect()
}

/// `/.cubes/super` as the repair has set it, or as the check found it: after a crash the superblock, which is not logged, may
/// name another inode. 0: there is none.
fn known_super_file(stage: &Stage<'_>) -> InodeNr {
    let named = |superblock| Identity::of(superblock).map_or(0, |own| own.super_inode);
    let volume = &stage.evidence.volume;
    let now = named(stage.superblock());
    match &volume.cubes {
        Some(cubes) if now == named(&volume.superblock) => cubes.super_file(),
        _ => InodeNr(now),
    }
}

/// The inode of `/.cubes/super`, which is made if there is none.
fn super_file(stage: &mut Stage<'_>) -> Result<InodeNr, Failure> {
    let identity = Identity::of(stage.superblock());
    let identity = identity.ok_or(Failure::NotNow("the file system has no identity yet"))?;
    let known = known_super_file(stage);
    if known.0 > 0 {
        return Ok(known);
    }
    let home = OwnFiles::of(&stage.evidence.volume).and_then(|own| own.home);
    let home = home.ok_or(Failure::NotNow("the directory /.cubes cannot be read"))?;
    let file = stage.allocate_inode(home)?;
    let mut image = stage.new_inode(file, MODE_PRIVATE)?;
    image.base.flags = (InodeFlags::IMMUTABLE | InodeFlags::EXTENTS).bits();
    FileMap::empty(stage).store(stage, &mut image)?;
    image.set_size_bytes(SUPER_BYTES);
    stage.write_inode(&image)?;
    names::link(stage, home, file, SUPER_NAME, FileType::Regular)?;
    Identity { super_inode: file.0, ..identity }.put(stage.superblock_mut());
    Ok(file)
}
