//! The end of the journals of cubes for programs that know one journal: recovered, empty, and their orphans in the list that
//! everybody knows.

use floe_blockdev::{Noting, Overlay, ReadBlocks, WriteBlocks};
use floe_ext4::fs::FileSystem;
use floe_ext4::journal::{
    Choices, CubeJournal, CubeJournals, Journal, JournalEvent, Seen, find_cubes, in_words,
    inode_of, orphans_in, replay_several,
};
use floe_ext4::tx::DirectTx;
use floe_format::ext::orphan_file::encode_clean;
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::native::LOCK;
use floe_format::{Geometry, InodeNr};

use super::JournalError;
use super::end::mark_backups;
use super::log::{Barriers, Log};
use super::open::behind;
use super::recovery::{Recovered, RecoveredCube, find, is_damage, newest};

/// Recovers all journals of a native file system as a mount does, moves the orphans of cubes to the list of the superblock
/// (`s_last_orphan`), and takes the bit away that keeps others out. From then on only inode 8 counts, and a repair may change
/// any block.
///
/// A damaged log counts as far as `choices` say, and the rest is dropped; [`Recovered::cubes`] says which are damaged. A journal
/// that cannot be used at all is left for the repair, and so are its orphans.
///
/// For an overlay: a crash while a device itself is changed here would leave orphans in both lists.
///
/// # Errors
/// As [`recover`](super::recovery::recover), but for damage, and [`JournalError::Cube`] for a journal that cannot be read.
pub fn take_over<D: WriteBlocks>(device: &D, choices: &Choices) -> Result<Recovered, JournalError> {
    let mut recovered = replay_all(device, choices)?;
    // Descriptors may be others now.
    let mut fs = FileSystem::open(device).map_err(JournalError::FileSystem)?;
    let geometry = fs.geometry().clone();
    let found = find_journals(device, &fs)?;
    for own in &found.usable {
        recovered.strays.extend(move_orphans(device, &mut fs, own)?);
        let seen = recovered.cubes.iter().find(|cube| cube.inode == own.inode);
        go_past(device, own.journal.clone(), seen.and_then(|cube| cube.seen), &geometry)?;
    }
    let root = find_root(device, &fs.superblock, &geometry)?;
    if root.blocks > 0 {
        go_past(device, root, recovered.seen, &geometry)?;
    }
    let doing = "writing the superblock";
    fs.superblock.feature_incompat &= !LOCK;
    mark_backups(device, &geometry, &fs.superblock, false)?;
    let mut bytes = [0; Superblock::SIZE];
    device.read_at(OFFSET_BYTES, &mut bytes).map_err(JournalError::io(doing))?;
    fs.superblock.encode_with_checksum(&mut bytes);
    device.write_at(OFFSET_BYTES, &bytes).map_err(JournalError::io(doing))?;
    device.flush().map_err(JournalError::io(doing))?;
    Ok(recovered)
}

/// The journal in inode 8; one that holds nothing where it is lost, so that the others are recovered, and a repair makes a new one.
fn find_root(
    device: &dyn ReadBlocks,
    superblock: &Superblock,
    geometry: &Geometry,
) -> Result<Journal, JournalError> {
    match find(device, superblock, geometry) {
        Err(JournalError::Damaged(_)) => Ok(Journal::gone(superblock, geometry)),
        found => found,
    }
}

/// The journals of cubes, all of which can be read.
fn find_journals(device: &dyn ReadBlocks, fs: &FileSystem) -> Result<CubeJournals, JournalError> {
    let groups = fs.space.groups.descs();
    let found = find_cubes(device, &fs.superblock, fs.geometry(), groups).whole();
    let found = found.map_err(JournalError::io("looking for the journals of cubes"))?;
    match found.unusable.iter().find(|lost| lost.is_unread) {
        Some(lost) => Err(JournalError::Cube { cube: lost.cube, why: lost.why.to_owned() }),
        None => Ok(found),
    }
}

/// Replays all logs.
fn replay_all<D: WriteBlocks>(device: &D, choices: &Choices) -> Result<Recovered, JournalError> {
    let fs = FileSystem::open(device).map_err(JournalError::FileSystem)?;
    let geometry = fs.geometry();
    let root = find_root(device, &fs.superblock, geometry)?;
    let found = find_journals(device, &fs)?.usable;
    let mut recovered = Recovered::default();
    if root.needs_replay {
        recovered.seen = Some(newest(device, geometry, &root)?);
    }
    let mut numbers = Vec::new();
    for own in &found {
        numbers.push(newest(device, geometry, &own.journal)?);
    }
    let staged = Overlay::new(Noting::new(device), geometry.block_size);
    let logs = replay_several(staged, geometry, &root, &found, choices, None);
    let doing = "reading the journals";
    logs.root.overlay.base().judge().map_err(JournalError::io(doing))?;
    logs.root.overlay.copy_to(device).map_err(JournalError::io("staging what journals held"))?;
    (recovered.transactions, recovered.blocks) = logs.totals();
    recovered.fast_commit_tags = logs.root.fast_commit_tags;
    let why = |events: &[JournalEvent]| {
        Some(format!("it cannot be recovered as a whole: {}", in_words(events)))
    };
    for ((own, pass), seen) in found.into_iter().zip(&logs.further).zip(numbers) {
        let failed = if pass.failed { why(&pass.events) } else { None };
        let (cube, inode, seen) = (own.cube, own.inode, Some(seen));
        recovered.cubes.push(RecoveredCube { cube, inode, seen, failed, waits: false });
    }
    let inode = inode_of(&root);
    let is_chosen = choices.contains_key(&inode) && root.damage.is_none();
    if is_chosen || logs.root.events.iter().any(is_damage) {
        let (inode, failed) = (InodeNr(inode), why(&logs.root.events));
        let (cube, seen, waits) = (0, None, false);
        recovered.cubes.push(RecoveredCube { cube, inode, seen, failed, waits });
    }
    Ok(recovered)
}

/// Lets an empty log begin behind all numbers that are still in it (rule R9): transactions that did not count were erased at
/// their first block alone.
fn go_past<D: WriteBlocks>(
    device: &D,
    journal: Journal,
    seen: Option<Seen>,
    geometry: &Geometry,
) -> Result<(), JournalError> {
    let (last, _) = behind(journal.superblock.sequence, seen);
    let log = Log::of(journal, &geometry.features, Barriers::Two)?;
    log.write_superblock(device, last.wrapping_add(1), 0, 0)
}

/// Moves the orphans of a cube to the list that begins in the superblock and goes on in the inodes. Returns entries that name
/// something of another cube, with the cube: they are dropped. A list that is damaged or cannot be read stays as it is: a check finds it, and gives its orphans names.
fn move_orphans<D: WriteBlocks>(
    device: &D,
    fs: &mut FileSystem,
    own: &CubeJournal,
) -> Result<Vec<(u32, InodeNr)>, JournalError> {
    let geometry = fs.geometry().clone();
    let (doing, offset) = ("moving the orphans of a cube", geometry.offset_bytes(own.orphan_block));
    let mut bytes = vec![0; geometry.block_size as usize];
    if device.read_at(offset, &mut bytes).is_err() {
        return Ok(Vec::new());
    }
    let mut tx = DirectTx::new(device, geometry.clone());
    let next = &mut |inode| Some(fs.inode(&mut tx, inode).ok()?.base.dtime);
    let stored = orphans_in(own, &geometry, &bytes, next);
    let Some(stored) = stored else { return Ok(Vec::new()) };
    let (orphans, strays): (Vec<InodeNr>, Vec<InodeNr>) =
        stored.into_iter().partition(|orphan| own.owns(&geometry, *orphan));
    for orphan in orphans {
        let mut inode = fs.inode(&mut tx, orphan).map_err(JournalError::FileSystem)?;
        inode.base.dtime = fs.superblock.last_orphan;
        fs.put_inode(&mut tx, &mut inode).map_err(JournalError::FileSystem)?;
        fs.superblock.last_orphan = orphan.0;
    }
    tx.commit().map_err(JournalError::FileSystem)?;
    encode_clean(&mut bytes, own.seed, own.orphan_block);
    device.write_at(offset, &bytes).map_err(JournalError::io(doing))?;
    Ok(strays.into_iter().map(|inode| (own.cube, inode)).collect())
}
