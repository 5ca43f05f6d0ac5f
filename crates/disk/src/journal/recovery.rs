//! Recovery: what a log holds goes home, then the log is emptied, then the superblock says so. Each step is flushed
//! before the next one begins, so that recovery can be cut off anywhere and begun again.

use std::io;
use std::ops::Range;

use floe_blockdev::{Noting, Overlay, ReadBlocks, WriteBlocks};
use floe_ext4::apart::Lots;
use floe_ext4::fs::read_superblock;
use floe_ext4::inode_table::{desc_place, read_groups_to};
use floe_ext4::journal::{
    self, Choices, CubeJournal, CubeJournals, Cuts, Journal, JournalEvent, Seen, Taken, in_words,
};
use floe_ext4::tx::Refusal;
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::features::{Compat, Incompat};
use floe_format::native::identity::Identity;
use floe_format::native::is_locked;
use floe_format::native::lot::lot_groups;
use floe_format::{BlockNr, Geometry, GroupNr, InodeNr};

use super::JournalError;

const MIDDLE: &str = "its log is damaged in the middle";

/// The result of a recovery.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Transactions replayed.
    pub transactions: u32,
    /// Blocks replayed, each copy counted.
    pub blocks: u64,
    /// Tags of fast commits replayed.
    pub fast_commit_tags: u64,
    /// The newest numbers in the log, where it was recovered: a writer goes on behind them.
    pub seen: Option<Seen>,
    /// The journals of cubes, where they were looked at.
    pub cubes: Vec<RecoveredCube>,
    /// Entries in lists of orphans of cubes that name something of another cube: dropped by [`take_over`](super::take_over).
    pub strays: Vec<(u32, InodeNr)>,
}

/// The journal of a cube after recovery.
#[derive(Clone, Debug)]
pub struct RecoveredCube {
    /// Number of the cube.
    pub cube: u32,
    /// Inode of the journal.
    pub inode: InodeNr,
    /// The newest numbers in its log.
    pub seen: Option<Seen>,
    /// Why it was not recovered: its log is as it was, and the other journals are recovered.
    pub failed: Option<String>,
    /// A repair is to weigh the log: until then nothing of the cube is written, nor in its lots.
    pub waits: bool,
}

/// Finds the journal of a file system. It needs the descriptors up to the journal's inode.
pub(crate) fn find(
    device: &dyn ReadBlocks,
    superblock: &Superblock,
    geometry: &Geometry,
) -> Result<Journal, JournalError> {
    if !geometry.features.compat.contains(Compat::HAS_JOURNAL) {
        return Err(JournalError::Absent);
    }
    let noting = Noting::new(device);
    let groups = read_groups_to(InodeNr(superblock.journal_inum), &noting, geometry);
    let groups = groups.unwrap_or_default();
    let (journal, events) = journal::find(&noting, superblock, geometry, &groups, None);
    noting.judge().map_err(JournalError::io("looking for the journal"))?;
    let external = |event: &JournalEvent| matches!(event, JournalEvent::ExternalNotFound { .. });
    match journal {
        Some(journal) => Ok(journal),
        None if events.iter().any(external) => {
            Err(JournalError::Unsupported("it lies on another device"))
        }
        None => Err(JournalError::Damaged(events)),
    }
}

/// `Err` if the superblock is wrong. Only a repair writes beside a damaged log, although this one can be read.
fn refuse_wrong_superblock(journal: &Journal) -> Result<(), JournalError> {
    let events = journal.damage.map(JournalEvent::from);
    events.map_or(Ok(()), |event| Err(JournalError::Damaged(vec![event])))
}

/// Recovers a file system from its journals by the rules of Linux and e2fsck, fast commits included, if it needs that; those of
/// cubes by `docs/journal.md`. Orphans are left to whoever opens it.
///
/// # Errors
/// [`JournalError::Absent`] and [`JournalError::Unsupported`]; [`JournalError::Damaged`] if any part of inode 8's log cannot be
/// replayed, [`JournalError::Cube`] if a further journal of the root cube cannot be used, or the log of a cube is damaged in its
/// middle and bound to others (nothing is written then, to no journal); [`JournalError::Io`], after which recovery can be begun again.
pub fn recover<D: WriteBlocks>(device: &D) -> Result<Recovered, JournalError> {
    let (superblock, geometry) = read_superblock(device).map_err(JournalError::FileSystem)?;
    let geometry = &geometry;
    let mut journal = find(device, &superblock, geometry)?;
    refuse_wrong_superblock(&journal)?;
    let mut recovered = Recovered::default();
    if is_locked(&superblock) {
        let found = find_cubes(device, &superblock, geometry)?;
        recover_cubes(device, (&superblock, geometry), found, &mut journal, &mut recovered)?;
    }
    let noting = Noting::new(device);
    let replay = journal::replay(&noting, geometry, &journal, None);
    noting.judge().map_err(JournalError::io("reading the log"))?;
    if replay.events.iter().any(is_damage) {
        return Err(JournalError::Damaged(replay.events));
    }
    recovered.transactions += replay.transactions;
    recovered.blocks += replay.blocks;
    recovered.fast_commit_tags = replay.fast_commit_tags;
    if journal.needs_replay {
        recovered.seen = Some(newest(device, geometry, &journal)?);
    }
    if !replay.overlay.is_empty() {
        let log_superblock = journal.offset_bytes(0);
        let log_superblock =
            log_superblock.ok_or(JournalError::Unsupported("it has no superblock"))?;
        write(device, &replay.overlay, log_superblock)
            .map_err(JournalError::io("writing what the journal held"))?;
    }
    Ok(recovered)
}

/// The newest numbers in a log.
pub(super) fn newest(
    device: &dyn ReadBlocks,
    geometry: &Geometry,
    journal: &Journal,
) -> Result<Seen, JournalError> {
    let seen = journal::seen(device, geometry, journal, journal.superblock.sequence);
    seen.map_err(JournalError::io("reading the log"))
}

/// The journals of cubes, also those of lots whose descriptors are damaged: the log may hold these.
fn find_cubes(
    device: &dyn ReadBlocks,
    superblock: &Superblock,
    geometry: &Geometry,
) -> Result<CubeJournals, JournalError> {
    let Some(lots) = Lots::read(device, superblock, geometry) else {
        return Ok(CubeJournals::default());
    };
    if let Err(refusal @ Refusal::Io { .. }) = lots.lost(device, superblock, geometry) {
        return Err(JournalError::FileSystem(refusal));
    }
    let found = lots.find_cubes(device, superblock, geometry);
    found.map_err(JournalError::io("looking for the journals of cubes"))
}

/// Recovers the journals of cubes. First the transactions that do not count are erased, in all logs; only then anything goes
/// home: recovery that is cut off finds the same ones the next time.
fn recover_cubes<D: WriteBlocks>(
    device: &D,
    (superblock, geometry): (&Superblock, &Geometry),
    found: CubeJournals,
    root: &mut Journal,
    recovered: &mut Recovered,
) -> Result<(), JournalError> {
    if let Some(lost) = found.unusable.iter().find(|lost| lost.cube == 0) {
        return Err(JournalError::Cube { cube: 0, why: lost.why.to_owned() });
    }
    let wrong = |own: &&CubeJournal| own.journal.damage.is_some();
    if let Some(own) = found.usable.iter().filter(wrong).find(|own| own.cube == 0) {
        let why = in_words(own.journal.damage.map(JournalEvent::from).as_slice());
        return Err(JournalError::Cube { cube: 0, why });
    }
    // An empty one is left to the repair.
    let mut found = found.usable;
    found.retain(|own| own.journal.damage.is_none() || own.journal.needs_replay);
    let noting = Noting::new(device);
    let all = found.iter().map(|own| &own.journal).chain([&*root]);
    let mut damaged = journal::damaged_logs(&noting, geometry, all);
    noting.judge().map_err(JournalError::io("reading the journals of cubes"))?;
    for own in found.iter().filter(wrong) {
        damaged.entry(own.inode.0).or_insert(Taken::Before);
    }
    recovered.cubes = leave_damaged(device, (superblock, geometry), root, &found, &damaged)?;
    found.retain(|own| recovered.cubes.iter().all(|left| left.inode != own.inode));
    let mut numbers = Vec::new();
    for own in &found {
        numbers.push(newest(device, geometry, &own.journal)?);
    }
    let mut logs: Vec<&mut Journal> = vec![root];
    logs.extend(found.iter_mut().map(|own| &mut own.journal));
    let cuts = journal::cut_off(&noting, &mut logs, &damaged);
    noting.judge().map_err(JournalError::io("reading the journals of cubes"))?;
    let Cuts { cuts, early } = cuts.map_err(JournalError::io("reading the journals of cubes"))?;
    if let Some((inode, first)) = early.into_iter().next() {
        let events = vec![journal::ends_early(first)];
        let Some(own) = found.iter().find(|own| own.inode.0 == inode) else {
            return Err(JournalError::Damaged(events));
        };
        let why = format!("{}; nothing was changed, floe repair may help", in_words(&events));
        return Err(JournalError::Cube { cube: own.cube, why });
    }
    judge_root(device, geometry, root, &found)?;
    for cut in &cuts {
        let mark = journal::dropped(cut.sequence, geometry.block_size);
        let erased = device.write_at(cut.offset_bytes, &mark);
        erased.map_err(JournalError::io("erasing a transaction that does not count"))?;
    }
    if !cuts.is_empty() {
        let flushed = device.flush();
        flushed.map_err(JournalError::io("erasing transactions that do not count"))?;
    }
    for (own, seen) in found.into_iter().zip(numbers) {
        let staged = Overlay::new(Noting::new(device), geometry.block_size);
        let pass = journal::replay_into(&staged, geometry, &own.journal, None);
        staged.base().judge().map_err(JournalError::io("reading the journal of a cube"))?;
        let failed =
            pass.failed.then(|| format!("it cannot be recovered: {}", in_words(&pass.events)));
        if failed.is_none() && !staged.is_empty() {
            recovered.transactions += pass.transactions;
            recovered.blocks += pass.blocks;
            write_cube(device, &staged, geometry, superblock, &own.journal)
                .map_err(JournalError::io("writing what the journal of a cube held"))?;
        }
        let (cube, inode, seen) = (own.cube, own.inode, Some(seen));
        recovered.cubes.push(RecoveredCube { cube, inode, seen, failed, waits: false });
    }
    Ok(())
}

/// The damaged logs of cubes. Only a repair knows what of such a log still counts, and only as long as nothing was written since: they
/// stay as they are, and so do their cubes. `Err` where others have parts of their changes.
fn leave_damaged(
    device: &dyn ReadBlocks,
    (superblock, geometry): (&Superblock, &Geometry),
    root: &Journal,
    found: &[CubeJournal],
    damaged: &Choices,
) -> Result<Vec<RecoveredCube>, JournalError> {
    let mut left = Vec::new();
    let doing = "reading the journals of cubes";
    for own in found.iter().filter(|own| own.cube != 0 && damaged.contains_key(&own.inode.0)) {
        let others = found.iter().filter(|other| other.inode != own.inode);
        let others = others.map(|other| &other.journal).chain([root]);
        let bound = journal::bound(device, geometry, own, others, damaged);
        let bound = bound.map_err(JournalError::io(doing))?;
        let coupled = Identity::is_coupled(superblock)
            .then_some("another system has written since, so its files may lie in other cubes");
        let (cube, inode, waits) = (own.cube, own.inode, true);
        let wrong = own.journal.damage.map(|_| "the superblock of its log is damaged");
        let damage = wrong.unwrap_or(MIDDLE);
        if let Some(reason) = bound.or(coupled) {
            let why = format!("{damage}, and {reason}; nothing was changed, floe repair may help");
            return Err(JournalError::Cube { cube, why });
        }
        let failed = Some(format!(
            "{damage}, and waits for `floe repair`, which weighs what it holds; until then nothing of the cube is read or written"
        ));
        left.push(RecoveredCube { cube, inode, seen: None, failed, waits });
    }
    Ok(left)
}

pub(super) fn is_damage(event: &JournalEvent) -> bool {
    matches!(
        event,
        JournalEvent::RecoveryFailed(_)
            | JournalEvent::TransactionCorrupt { .. }
            // Linux takes it for the end, and writes older copies over newer blocks.
            | JournalEvent::EndsEarly { .. }
    )
}

/// `Err` if inode 8's log, or a further one of the root cube, cannot be replayed. Nothing is written by then, nor to other cubes: the
/// root cube is recovered as a whole, and without it none is served.
fn judge_root(
    device: &dyn ReadBlocks,
    geometry: &Geometry,
    root: &Journal,
    found: &[CubeJournal],
) -> Result<(), JournalError> {
    let further = found.iter().filter(|own| own.cube == 0).map(|own| &own.journal);
    for (log, is_further) in further.map(|log| (log, true)).chain([(root, false)]) {
        let staged = Overlay::new(Noting::new(device), geometry.block_size);
        let pass = journal::replay_into(&staged, geometry, log, None);
        staged.base().judge().map_err(JournalError::io("reading a journal of the root cube"))?;
        if !pass.failed && !pass.events.iter().any(is_damage) {
            continue;
        }
        if is_further {
            let why =
                format!("{}; nothing was changed, floe repair may help", in_words(&pass.events));
            return Err(JournalError::Cube { cube: 0, why });
        }
        return Err(JournalError::Damaged(pass.events));
    }
    Ok(())
}

/// The ranges that recovery staged. Pages that read from the log keep their bytes, should a damaged log name its own blocks.
fn settled_ranges(staged: &Overlay<impl ReadBlocks>) -> io::Result<Vec<Range<u64>>> {
    let ranges = staged.staged_ranges();
    staged.settle(|read| {
        ranges.iter().any(|written| read.start < written.end && written.start < read.end)
    })?;
    Ok(ranges)
}

/// Writes what the journal of a cube held: all but the records of lots, by which recovery finds it; those; the emptied log.
fn write_cube<D: WriteBlocks>(
    device: &D,
    staged: &Overlay<impl ReadBlocks>,
    geometry: &Geometry,
    superblock: &Superblock,
    own: &Journal,
) -> io::Result<()> {
    let ranges = settled_ranges(staged)?;
    let page = staged.page_bytes();
    let log_superblock = own.offset_bytes(0).unwrap_or(0) / page * page;
    let lot_groups = lot_groups(superblock).max(1);
    let is_record = |start: u64| {
        let block = BlockNr(start / u64::from(geometry.block_size));
        let first =
            geometry.group_of(block).map(|group| GroupNr(group.0 / lot_groups * lot_groups));
        first.is_some_and(|first| desc_place(first, geometry).0 == block)
    };
    let starts: Vec<u64> =
        ranges.iter().flat_map(|range| (range.start..range.end).step_by(page as usize)).collect();
    let (records, others): (Vec<u64>, Vec<u64>) =
        starts.into_iter().filter(|start| *start != log_superblock).partition(|at| is_record(*at));
    for starts in [others, records, vec![log_superblock]] {
        for start in &starts {
            device.write_at(*start, &read(staged, *start..start + page)?)?;
        }
        if !starts.is_empty() {
            device.flush()?;
        }
    }
    Ok(())
}

/// Writes what recovery staged: all but the two superblocks' last word, the emptied log, the recovered superblock.
fn write<D: WriteBlocks>(
    device: &D,
    staged: &Overlay<impl ReadBlocks>,
    log_superblock: u64,
) -> io::Result<()> {
    let ranges = settled_ranges(staged)?;
    let page = staged.page_bytes();
    let of = |offset: u64| offset / page * page..offset / page * page + page;
    let (log_page, own_page) = (of(log_superblock), of(OFFSET_BYTES));
    for range in ranges {
        for start in (range.start..range.end).step_by(page as usize) {
            let end = range.end.min(start + page);
            let mut bytes = read(staged, start..end)?;
            if start == log_page.start {
                continue;
            }
            if start == own_page.start {
                still_needs_recovery(&mut bytes[(OFFSET_BYTES - start) as usize..]);
            }
            device.write_at(start, &bytes)?;
        }
    }
    device.flush()?;
    device.write_at(log_page.start, &read(staged, log_page)?)?;
    device.flush()?;
    let end = OFFSET_BYTES + 1024;
    device.write_at(OFFSET_BYTES, &read(staged, OFFSET_BYTES..end)?)?;
    device.flush()
}

fn read<D: ReadBlocks>(staged: &Overlay<D>, range: Range<u64>) -> io::Result<Vec<u8>> {
    // A page, or the superblock.
    let mut bytes = vec![0; (range.end - range.start) as usize];
    staged.read_at(range.start, &mut bytes)?;
    Ok(bytes)
}

/// As long as the log is not empty, the superblock must not look recovered: Linux would drop the log.
fn still_needs_recovery(bytes: &mut [u8]) {
    let Some(bytes) = bytes.first_chunk_mut() else { return };
    let mut superblock = Superblock::decode(bytes);
    superblock.feature_incompat |= Incompat::RECOVER.bits();
    superblock.encode_with_checksum(bytes);
}
