//! Opening: recover, take up the logs, say so in the superblock.

use std::collections::BTreeMap;

use floe_blockdev::{ReadBlocks, WriteBlocks};
use floe_ext4::apart;
use floe_ext4::cubes::stored as stored_cubes;
use floe_ext4::fs::read_superblock;
use floe_ext4::journal::{
    CubeJournal, CubeJournals, JournalEvent, JournalPlace, Seen, in_words, is_after, seen,
};
use floe_ext4::tx::{Refusal, read_block};
use floe_format::Geometry;
use floe_format::ext::orphan_file::OrphanBlock;
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::features::Incompat;
use floe_format::native::is_locked;
use floe_sync::atomic::AtomicU64;
use floe_sync::{Arc, Condvar, Mutex};

use super::cubes::open_lane;
use super::error::JournalError;
use super::handles::Handles;
use super::log::{Barriers, Log, stored_superblock};
use super::recovery::{self, Recovered, recover};
use super::shared::{Flushes, Lane, Lock, Lots, Shared};
use super::state::{State, TransactionId};
use super::{Clock, Journal, Times, system_clock};

impl<D: WriteBlocks> Journal<D> {
    /// Opens the journals of a file system for writing: recovers them if they must be, and marks the file system as in use
    /// (`needs_recovery`). Orphans are not looked at. The journal of a cube that cannot be recovered has failed from the start.
    ///
    /// # Errors
    /// [`JournalError::Absent`], [`JournalError::Unsupported`] (an external journal, or one of version 1),
    /// [`JournalError::Damaged`], [`JournalError::Io`].
    pub fn open(device: D) -> Result<Self, JournalError> {
        Self::open_with(device, system_clock)
    }

    /// As [`Journal::open`], with a clock of the caller's for commit blocks.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open_with(device: D, clock: Clock) -> Result<Self, JournalError> {
        // Before a recovery, which writes.
        refuse_cut_off(&device)?;
        let recovered = recover(&device)?;
        Self::open_after(device, &recovered, Times::Clock(clock), Barriers::Two)
    }

    /// As [`Journal::open`], behind a [`recover`] that said so, with this number of barriers for a transaction, as long as there is one
    /// journal; with several they have two. (A second recovery finds empty logs, and so not the numbers that are still in them: rule R9.)
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open_recovered(
        device: D,
        recovered: &Recovered,
        barriers: Barriers,
    ) -> Result<Self, JournalError> {
        Self::open_after(device, recovered, Times::Clock(system_clock), barriers)
    }

    /// As [`Journal::open`], behind a [`recover`] that said so, with one time for all commit blocks, in seconds since 1970: the same changes
    /// leave the same bytes.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open_dated(
        device: D,
        recovered: &Recovered,
        now_seconds: u64,
    ) -> Result<Self, JournalError> {
        Self::open_after(device, recovered, Times::Seconds(now_seconds), Barriers::Two)
    }

    fn open_after(
        device: D,
        recovered: &Recovered,
        times: Times,
        barriers: Barriers,
    ) -> Result<Self, JournalError> {
        let (fs_superblock, geometry) = refuse_cut_off(&device)?;
        let place = recovery::find(&device, &fs_superblock, &geometry)?;
        if place.place == JournalPlace::External {
            return Err(JournalError::Unsupported("it lies on another device"));
        }
        let stored = stored_superblock(&device, &place)?;
        let (last, mut commit_time) = behind(stored.sequence, recovered.seen);
        let mut lots = Lots::of(&fs_superblock);
        let log = Log::of(place, &geometry.features, barriers)?;
        let state = State::new(TransactionId::of(0, last), log.first_head());
        let root = Lane::new((0, 0), None, log, state);
        let mut lanes = vec![root];
        let lock = if is_locked(&fs_superblock) { Lock::Set } else { Lock::Open };
        if lots.is_native() {
            let found = find_and_lose(&device, &fs_superblock, &geometry, &mut lots)?;
            let latest = open_cubes(&device, &geometry, found, recovered, &mut lanes, &mut lots)?;
            commit_time = commit_time.max(latest);
        }
        if lanes.len() > 1 {
            // Transactions depend on each other then, and recovery erases what it drops.
            lanes[0].log = Arc::new(lanes[0].log.with_two_barriers());
        }
        let log = &lanes[0].log;
        if log.differs_from(&stored) {
            log.write_superblock(&device, stored.sequence, 0, stored.head)?;
        }
        let superblock = set_needs_recovery(&device)?;
        let shared = Shared {
            has_further: lanes.iter().skip(1).any(|lane| lane.cube == 0),
            lanes,
            lock,
            superblock: None,
            superblock_due: false,
            flushes: Flushes::default(),
            waiting: 0,
            checkpoints: 0,
            data_durable: 0,
            commit_time,
            loans: 0,
            lots,
        };
        Ok(Self {
            device,
            geometry,
            times,
            is_native: shared.lots.is_native(),
            has_several: shared.has_further,
            handles: Handles::default(),
            shared: Mutex::new(shared),
            superblock_writes: Mutex::new(superblock),
            changed: Condvar::new(),
            data_writes: AtomicU64::new(0),
            gathered: Mutex::default(),
            most_kept_bytes: AtomicU64::new(u64::MAX),
        })
    }
}

/// The last number to be left behind (as Linux: what an empty log expects next may have been begun before a crash), and the
/// latest time of a commit.
pub(super) fn behind(sequence: u32, seen: Option<Seen>) -> (u32, (u64, u32)) {
    match seen {
        Some(seen) if is_after(seen.sequence, sequence) => (seen.sequence, seen.commit_time),
        Some(seen) => (sequence, seen.commit_time),
        None => (sequence, (0, 0)),
    }
}

/// Finds the journals of cubes. Those with damaged descriptors lose their lots, and have no journal here.
fn find_and_lose(
    device: &dyn ReadBlocks,
    superblock: &Superblock,
    geometry: &Geometry,
    lots: &mut Lots,
) -> Result<CubeJournals, JournalError> {
    let Some(stored) = apart::Lots::read(device, superblock, geometry) else {
        return Ok(CubeJournals::default());
    };
    let lost = match stored.lost(device, superblock, geometry) {
        Err(refusal @ Refusal::Io { .. }) => return Err(JournalError::FileSystem(refusal)),
        // Whoever opens the volume judges checksums.
        lost => lost.unwrap_or_default(),
    };
    let found = stored.find_cubes(device, superblock, geometry);
    let mut found = found.map_err(JournalError::io("looking for the journals of cubes"))?;
    for (cube, own) in &lost {
        lots.lose(*cube, &own.lots, &own.why());
        lots.waiting.insert(*cube);
        let log = found.usable.iter().find(|log| log.cube == *cube);
        let holds_nothing = match log {
            Some(log) => is_empty(device, geometry, log),
            None if found.unusable.iter().any(|log| log.cube == *cube) => false,
            None => {
                let sub = stored_cubes(device, superblock, geometry, &stored.descs, Some(*cube));
                sub.get(cube).is_some_and(|sub| sub.journal.inode == 0)
            }
        };
        if holds_nothing {
            lots.without_log.insert(*cube);
        }
    }
    found.usable.retain(|log| !lost.contains_key(&log.cube));
    found.unusable.retain(|log| !lost.contains_key(&log.cube));
    Ok(found)
}

/// Whether the journal of a cube holds no change, and lists no orphan.
fn is_empty(device: &dyn ReadBlocks, geometry: &Geometry, own: &CubeJournal) -> bool {
    let bytes = read_block(device, geometry, own.orphan_block).ok();
    let stored = bytes.as_ref().and_then(|bytes| OrphanBlock::new(bytes));
    let has_orphans = stored.is_none_or(|stored| stored.orphans().next().is_some());
    !own.journal.needs_replay && own.journal.damage.is_none() && !has_orphans
}

/// Takes up the journals of cubes, and gives their lots to them. Returns the latest time of a commit in them.
fn open_cubes<D: WriteBlocks>(
    device: &D,
    geometry: &Geometry,
    found: CubeJournals,
    recovered: &Recovered,
    lanes: &mut Vec<Lane>,
    lots: &mut Lots,
) -> Result<(u64, u32), JournalError> {
    for lost in found.unusable {
        if lost.cube == 0 {
            // Without it the root cube could be changed in part only; and a crash would leave what nobody recovers.
            return Err(JournalError::Cube { cube: 0, why: lost.why.to_owned() });
        }
        // Also after an unmount, when it held nothing that counts: the cube has not what its administrator gave it.
        let why = format!("the journal of cube {} cannot be used: {}", lost.cube, lost.why);
        lots.lose(lost.cube, &lost.lots, &why);
    }
    let waits = |own: &CubeJournal| {
        recovered.cubes.iter().any(|cube| cube.inode == own.inode && cube.waits)
    };
    let is_wrong = |own: &CubeJournal| own.journal.damage.is_some() && !waits(own);
    let (wrong, usable): (Vec<_>, Vec<_>) = found.usable.into_iter().partition(is_wrong);
    for own in wrong {
        let why = in_words(own.journal.damage.map(JournalEvent::from).as_slice());
        if own.cube == 0 {
            return Err(JournalError::Cube { cube: 0, why });
        }
        lots.lose(own.cube, &own.lots, &why);
    }
    let by_inode: BTreeMap<u32, &Option<String>> =
        recovered.cubes.iter().map(|cube| (cube.inode.0, &cube.failed)).collect();
    let mut latest = (0, 0);
    for mut own in usable {
        let failed = by_inode.get(&own.inode.0).copied().cloned().flatten();
        if let Some(why) = failed.clone().filter(|_| own.cube == 0) {
            return Err(JournalError::Cube { cube: 0, why });
        }
        if waits(&own) {
            lots.lose(own.cube, &own.lots, &failed.unwrap_or_default());
            lots.waiting.insert(own.cube);
            continue;
        }
        if own.journal.needs_replay && failed.is_none() {
            // Without the bit that keeps others out, others wrote since: what is left in the log must never come back.
            let from = own.journal.superblock.sequence;
            let newest = seen(device, geometry, &own.journal, from);
            let newest = newest.map_err(JournalError::io("reading the journal of a cube"))?;
            let log = Log::of(own.journal.clone(), &geometry.features, Barriers::Two)?;
            let next = newest.sequence.wrapping_add(1);
            log.write_superblock(device, next, 0, 0)?;
            device.flush().map_err(JournalError::io("discarding the journal of a cube"))?;
            (own.journal.superblock.sequence, own.journal.superblock.start) = (next, 0);
        }
        let seen = recovered.cubes.iter().find(|cube| cube.inode == own.inode);
        let seen = seen.and_then(|cube| cube.seen);
        let (of_lots, index) = (own.lots.clone(), lanes.len());
        let mut lane = open_lane(device, own, index, &geometry.features)?;
        if let Some(seen) = seen {
            let (last, time) = behind(lane.state.durable.sequence(), Some(seen));
            lane.state = State::new(TransactionId::of(index, last), lane.log.first_head());
            latest = latest.max(time);
        }
        lane.state.failed = failed;
        lanes.push(lane);
        of_lots.into_iter().for_each(|lot| lots.give(lot, index));
    }
    Ok(latest)
}

/// Sets `needs_recovery` in the primary superblock, which comes back, and flushes the device.
///
/// The one write that is not atomic where a device tears writes between sectors of 512 bytes (the feature and the checksum
/// lie in different ones). The log is empty at that time, and Linux takes the same risk; e2fsck and `floe repair` mend it.
fn set_needs_recovery<D: WriteBlocks>(device: &D) -> Result<[u8; Superblock::SIZE], JournalError> {
    let mut bytes = [0; Superblock::SIZE];
    let doing = "marking the file system in its superblock";
    device.read_at(OFFSET_BYTES, &mut bytes).map_err(JournalError::io(doing))?;
    let mut superblock = Superblock::decode(&bytes);
    superblock.feature_incompat |= Incompat::RECOVER.bits();
    superblock.encode_with_checksum(&mut bytes);
    device.write_at(OFFSET_BYTES, &bytes).map_err(JournalError::io(doing))?;
    device.flush().map_err(JournalError::io(doing))?;
    Ok(bytes)
}

/// Superblock and geometry of a file system that its device holds as a whole.
fn refuse_cut_off(device: &dyn ReadBlocks) -> Result<(Superblock, Geometry), JournalError> {
    let (superblock, geometry) = read_superblock(device).map_err(JournalError::FileSystem)?;
    match device.size_bytes() < geometry.size_bytes() {
        true => Err(JournalError::Unsupported("its device is shorter than the file system")),
        false => Ok((superblock, geometry)),
    }
}
