//! Replays all logs of a native file system into one overlay, those of cubes and of inode 8, where some may be damaged.
//!
//! Reads: the logs.  Keeps: an overlay.  Does not judge which state of a damaged log is the best (`floe_check`, `passes/weighed.rs`).

use std::collections::BTreeMap;
use std::io;

use floe_blockdev::{Overlay, ReadBlocks};
use floe_exec::Phase;
use floe_format::native::commit::Dependency;
use floe_format::{BlockNr, Geometry, InodeNr};

use super::cubes::{CubeJournal, replay_sound};
use super::event::{JournalEvent, JournalPlace, RecoveryFault};
use super::finish;
use super::locate::Journal;
use super::log::is_after;
use super::mixed::{
    self, committed_despite, first_damaged, has_block_checksums, stage_sound, with_sound_ones,
    without_log,
};
use super::recover::{Pass, Replay, replay_into, replay_onto};
use super::stable::{self, Cut, Stored, stable, stored};

/// The transactions of a damaged log that are replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// All sound ones; the first damaged transaction.
    Sound(u32),
    /// Those before the damage. Transactions of other logs miss nothing.
    Before,
    /// None. Transactions of other logs miss nothing.
    Nothing,
}

/// The part that counts of each damaged log, by the inode of the journal. The others count as a whole.
pub type Choices = BTreeMap<u32, Taken>;

const SHARED: &str = "other logs have parts of its changes";

/// All logs of a file system, replayed.
#[derive(Debug)]
pub struct Several<D> {
    /// Inode 8's, with the overlay of all.
    pub root: Replay<D>,
    /// The others, in the order in which they were given.
    pub further: Vec<Pass>,
    /// The first damaged transaction of each log that is not replayed to its end, by the inode of the journal.
    pub damaged: BTreeMap<u32, u32>,
    /// Damaged logs of which nothing was lost.
    pub whole: Vec<u32>,
}

impl<D> Several<D> {
    /// Transactions and blocks that were replayed, of all logs.
    pub fn totals(&self) -> (u32, u64) {
        let own = (self.root.transactions, self.root.blocks);
        let add = |(transactions, blocks), pass: &Pass| {
            (transactions + pass.transactions, blocks + pass.blocks)
        };
        self.further.iter().fold(own, add)
    }
}

/// The inode of a journal; 0: it lies on another device.
pub const fn inode_of(journal: &Journal) -> u32 {
    match journal.place {
        JournalPlace::Inode(InodeNr(inode)) | JournalPlace::InodeBackup(InodeNr(inode)) => inode,
        JournalPlace::External => 0,
    }
}

/// Replays all logs into an overlay, as far as their transactions count.
pub fn replay_several<D: ReadBlocks>(
    overlay: Overlay<D>,
    geo: &Geometry,
    root: &Journal,
    further: &[CubeJournal],
    choices: &Choices,
    phase: Option<&Phase>,
) -> Several<D> {
    let mut journals: Vec<Journal> = vec![root.clone()];
    journals.extend(further.iter().map(|own| own.journal.clone()));
    let mut logs: Vec<&mut Journal> = journals.iter_mut().collect();
    // A log that cannot be read is reported where it is replayed.
    let early = cut_off(overlay.base(), &mut logs, choices).map(|cuts| cuts.early);
    let early = early.unwrap_or_default();
    let fault = |journal: &Journal| early.get(&inode_of(journal)).map(|first| ends_early(*first));
    let (mut damaged, mut whole, mut passes) = (BTreeMap::new(), Vec::new(), Vec::new());
    for journal in journals.iter_mut().skip(1) {
        let taken = choices.get(&inode_of(journal)).copied();
        let fault = fault(journal);
        let (mut pass, is_whole) = replay_one(&overlay, geo, journal, taken);
        pass.failed |= fault.is_some();
        pass.events.extend(fault);
        damaged.extend(first_damaged(&pass.events).map(|first| (inode_of(journal), first)));
        whole.extend(is_whole.then_some(inode_of(journal)));
        passes.push(pass);
    }
    // Last, because it computes the totals of the file system.
    let root = &journals[0];
    let mut root = match choices.get(&inode_of(root)) {
        Some(Taken::Sound(first)) => {
            let (replay, is_whole) = with_sound_ones(overlay, geo, root, None, *first);
            whole.extend(is_whole.then_some(inode_of(root)));
            replay
        }
        Some(Taken::Nothing) => without_log(overlay, geo, root, None),
        Some(Taken::Before) | None => replay_onto(overlay, geo, root, None, phase),
    };
    root.events.extend(fault(&journals[0]));
    damaged.extend(first_damaged(&root.events).map(|first| (inode_of(&journals[0]), first)));
    Several { root, further: passes, damaged, whole }
}

/// Replays one of the further logs. Says also whether nothing was lost of a damaged one.
fn replay_one<D: ReadBlocks>(
    overlay: &Overlay<D>,
    geo: &Geometry,
    journal: &mut Journal,
    taken: Option<Taken>,
) -> (Pass, bool) {
    let (transactions, blocks, is_whole) = match taken {
        None | Some(Taken::Before) => return (replay_sound(overlay, geo, journal), false),
        Some(Taken::Nothing) => (0, 0, false),
        Some(Taken::Sound(first)) => {
            let sound = stage_sound(overlay.base(), overlay, geo, journal, first);
            (sound.transactions, sound.blocks, sound.is_whole)
        }
    };
    let device: &dyn ReadBlocks = overlay.base();
    let next = journal.superblock.sequence;
    if let Some((offset, block)) = finish::emptied(device, geo, journal, next, true, false) {
        // Cannot fail: the journal lies inside the device.
        drop(floe_blockdev::WriteBlocks::write_at(overlay, offset, &block));
    }
    (Pass { events: Vec::new(), transactions, blocks, failed: true }, is_whole)
}

/// The parts of the logs of one file system that do not count.
#[derive(Debug, Default)]
pub struct Cuts {
    /// Where each log is cut off of which not all counts.
    pub cuts: Vec<Cut>,
    /// The logs that end too early, by the inode of the journal: damage that only other logs show. The first transaction that is
    /// missing.
    pub early: BTreeMap<u32, u32>,
}

/// The event for a log that ends too early.
pub const fn ends_early(sequence: u32) -> JournalEvent {
    JournalEvent::RecoveryFailed(RecoveryFault::EndsEarly { sequence })
}

/// Finds what counts in the logs of one file system: sets [`Journal::cut`] where transactions are dropped because others are
/// missing. A journal that is not among them misses nothing: it is gone, or damaged as a whole. Behind damage, sound
/// transactions were durable, and so was all that they depend on; damage of one log drops nothing of another one.
///
/// # Errors
/// The device's error.
pub fn cut_off(
    device: &dyn ReadBlocks,
    journals: &mut [&mut Journal],
    choices: &Choices,
) -> io::Result<Cuts> {
    let (mut logs, mut places) = (Vec::new(), Vec::new());
    for (index, journal) in journals.iter().enumerate() {
        let inode = inode_of(journal);
        let log = match choices.get(&inode) {
            Some(Taken::Nothing | Taken::Before) => continue,
            Some(Taken::Sound(first)) if has_block_checksums(journal) => {
                let (tail, committed) =
                    (journal.superblock.sequence, committed_despite(device, journal, *first));
                Stored { inode, tail, committed }
            }
            _ => stored(device, journal, inode)?,
        };
        logs.push(log);
        places.push(index);
    }
    let kept = stable(&logs);
    let mut early = stable::ends_early(&logs);
    early.retain(|inode, _| !choices.contains_key(inode));
    let mut cuts = Vec::new();
    for ((index, log), kept) in places.into_iter().zip(&logs).zip(kept) {
        let Some(dropped) = log.committed.get(kept) else { continue };
        let journal = &mut *journals[index];
        journal.cut = Some(dropped.sequence);
        let offset_bytes = journal.offset_bytes(dropped.start);
        let offset_bytes = offset_bytes.ok_or(io::ErrorKind::UnexpectedEof)?;
        // Where a transaction begins behind damage is not known, and a damaged log is left alone.
        if !choices.contains_key(&log.inode) {
            cuts.push(Cut { index, sequence: dropped.sequence, offset_bytes });
        }
    }
    Ok(Cuts { cuts, early })
}

/// Why the damaged log of a cube cannot be left as it is while the other logs are recovered and go on. `None`: no transaction of it
/// depends on one in another log that is not home, nor the other way round, and it names no block outside of the lots of its cube.
/// `damaged` are all damaged logs, this one among them.
///
/// # Errors
/// The device's error.
pub fn bound<'a>(
    device: &dyn ReadBlocks,
    geo: &Geometry,
    own: &CubeJournal,
    others: impl IntoIterator<Item = &'a Journal>,
    damaged: &Choices,
) -> io::Result<Option<&'static str>> {
    let first = match damaged.get(&own.inode.0) {
        Some(Taken::Sound(first)) => *first,
        _ => own.journal.superblock.sequence,
    };
    let Some(leads) = mixed::leads(device, &own.journal, first) else {
        return Ok(Some("it cannot be followed"));
    };
    let lies_in = |block: &BlockNr| {
        let lot = geo.group_of(*block).and_then(|group| group.0.checked_div(own.lot_groups));
        lot.is_some_and(|lot| own.lots.contains(&lot))
    };
    if !leads.homes.iter().all(lies_in) {
        return Ok(Some("it names blocks outside of its cube"));
    }
    let (mut tails, tail) = (BTreeMap::new(), own.journal.superblock.sequence);
    for other in others {
        let inode = inode_of(other);
        let committed = match damaged.get(&inode) {
            Some(Taken::Sound(first)) if has_block_checksums(other) => {
                committed_despite(device, other, *first)
            }
            _ => stored(device, other, inode)?.committed,
        };
        let needs =
            |one: &Dependency| one.journal_inode == own.inode.0 && !is_after(tail, one.sequence);
        if committed.iter().flat_map(|one| &one.dependencies).any(needs) {
            return Ok(Some(SHARED));
        }
        tails.insert(inode, other.superblock.sequence);
    }
    let is_home = |one: &Dependency| {
        let tail = tails.get(&one.journal_inode);
        tail.is_some_and(|tail| is_after(*tail, one.sequence))
    };
    Ok((!leads.dependencies.iter().all(is_home)).then_some(SHARED))
}

/// The logs that cannot be replayed to their end, of which all sound transactions are taken.
pub fn damaged_logs<'a>(
    device: &dyn ReadBlocks,
    geo: &Geometry,
    journals: impl IntoIterator<Item = &'a Journal>,
) -> Choices {
    let mut all = Choices::new();
    for journal in journals {
        let scratch = Overlay::new(device, geo.block_size);
        let pass = replay_into(&scratch, geo, journal, None);
        let first = first_damaged(&pass.events);
        all.extend(first.map(|first| (inode_of(journal), Taken::Sound(first))));
    }
    all
}
