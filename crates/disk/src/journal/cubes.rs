//! The journals of cubes: which have one, what became of it, and lots that move from one journal to another.

use std::collections::BTreeSet;

use floe_blockdev::WriteBlocks;
use floe_ext4::fs::read_superblock;
use floe_ext4::journal::{CubeJournal, find_cube};
use floe_format::BlockNr;
use floe_format::features::Features;
use floe_sync::Arc;

use super::Journal;
use super::error::JournalError;
use super::log::{Barriers, Log, stored_superblock};
use super::shared::{Lane, Shared};
use super::state::{State, TransactionId};

/// The journal of a cube, for whoever serves the cube.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CubeState {
    /// It has a journal of its own; otherwise that of inode 8 logs its changes.
    pub has_own: bool,
    /// Why nothing of it is written any more.
    pub failed: Option<String>,
}

/// The transactions finished at some time, in all logs. See [`Journal::finished`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished(Vec<TransactionId>);

impl<D: WriteBlocks> Journal<D> {
    /// All changes that are finished by now: whatever they freed may be used again when [`Journal::has_settled`] says that they
    /// are durable (rule R7). No handle is open.
    pub fn finished(&self) -> Finished {
        Finished(self.lock().lanes.iter().map(|lane| lane.state.last()).collect())
    }

    /// Whether all these changes are durable, those of cubes aside whose journal has ended: what such a cube freed lies in its
    /// own lots, where nothing is written any more.
    pub fn has_settled(&self, finished: &Finished) -> bool {
        let shared = self.lock();
        let mut known = shared.lanes.iter().zip(&finished.0).enumerate();
        known.all(|(index, (lane, last))| {
            lane.state.durable >= *last || index > 0 && lane.state.failed.is_some()
        })
    }

    /// The journal of a cube; 0: the root cube.
    pub fn cube_state(&self, cube: u32) -> CubeState {
        let shared = self.lock();
        if let Some(why) = shared.lots.lost_cube(cube) {
            return CubeState { has_own: true, failed: Some(why.to_owned()) };
        }
        let own = shared.lane_of_cube(cube);
        let lane = &shared.lanes[own.unwrap_or(0)];
        CubeState { has_own: own.is_some(), failed: lane.state.failed.clone() }
    }

    /// The cubes whose own journals have ended, or could not be used from the beginning, and those that wait for a repair; and why.
    pub fn ended_cubes(&self) -> Vec<(u32, String)> {
        let shared = self.lock();
        let own = shared.lanes.iter().filter(|lane| lane.cube > 0 && !lane.gone);
        let ended = own.filter_map(|lane| Some((lane.cube, lane.state.failed.clone()?)));
        ended.chain(shared.lots.lost_cubes()).collect()
    }

    /// The cubes that wait for a repair, and why: it is to weigh their log, and what lies in their lots is not as that has it, or to mend
    /// their descriptors.
    pub fn waiting_cubes(&self) -> Vec<(u32, String)> {
        let shared = self.lock();
        let why = |cube: &u32| Some((*cube, shared.lots.lost_cube(*cube)?.to_owned()));
        shared.lots.waiting.iter().filter_map(why).collect()
    }

    /// Whether the journal of inode 8 goes on, and with it all that have not ended.
    pub fn is_sound(&self) -> bool {
        let shared = self.lock();
        shared.lanes[0].state.failed.is_none() && shared.flushes.failed.is_none()
    }

    /// `Err` unless an error was that of a cube's journal, so that all others go on.
    pub(super) fn judge_root(&self, error: JournalError) -> Result<(), JournalError> {
        // A journal that has ended is left out the next time: without one, the error would come again.
        let has_ended = self.lock().lanes.iter().any(|lane| lane.state.failed.is_some());
        if self.is_sound() && has_ended { Ok(()) } else { Err(error) }
    }

    /// Ends the journal of a cube: nothing of it is written any more, and what was not durable is lost. The others go on, but
    /// for those whose running transaction shares a change with it.
    /// Returns `false`, and does nothing, where the cube has none of its own.
    pub fn abort_cube(&self, cube: u32, why: &str) -> bool {
        let mut shared = self.lock();
        let own = shared.lane_of_cube(cube).filter(|lane| *lane > 0);
        if let Some(lane) = own {
            shared.end_lanes([lane], why);
        }
        let calls = shared.call_all();
        self.wake(shared, calls);
        own.is_some()
    }

    /// As [`Journal::abort_cube`], without an end for anybody else: changes that the cube shares with others become durable first.
    ///
    /// # Errors
    /// As [`Journal::commit`].
    pub fn abandon_cube(&self, cube: u32, why: &str) -> Result<bool, JournalError> {
        let mut is_apart = false;
        loop {
            let mut shared = self.lock();
            let Some(lane) = shared.lane_of_cube(cube).filter(|lane| *lane > 0) else {
                return Ok(false);
            };
            let Lane { state, inode, .. } = &shared.lanes[lane];
            // So are those that inode 8 logged because they were too long for the cube's log.
            let is_lent = !is_apart && shared.lots.moves.values().any(|to| to == inode);
            if state.failed.is_none() && (is_lent || !state.running.partners.is_empty()) {
                drop(shared);
                self.commit_cube(cube)?;
                is_apart = true;
                continue;
            }
            shared.end_lanes([lane], why);
            let calls = shared.call_all();
            self.wake(shared, calls);
            return Ok(true);
        }
    }

    /// Makes all finished changes of a cube durable, and those of others that share a change with them: an fsync of a file in the
    /// cube. The journals of other cubes are not written. A cube without a journal of its own has that of inode 8.
    ///
    /// # Errors
    /// As [`Journal::commit`].
    pub fn commit_cube(&self, cube: u32) -> Result<(), JournalError> {
        self.commit_cube_for(cube, 1)
    }

    /// The same for so many threads, for whom the caller waits.
    ///
    /// # Errors
    /// As [`Journal::commit`].
    pub fn commit_cube_for(&self, cube: u32, threads: usize) -> Result<(), JournalError> {
        let data_writes = self.data_writes.load(floe_sync::atomic::Ordering::SeqCst);
        let goals = |shared: &Shared| {
            let own = shared.lane_of_cube(cube).unwrap_or(0);
            if own == 0 && shared.has_further {
                let lanes = shared.lanes_of_root();
                return lanes.map(|lane| (lane, shared.lanes[lane].state.last())).collect();
            }
            // Until a lot has moved, the journal of inode 8 logs a part of the cube.
            let root =
                own > 0 && shared.lots.moves.values().any(|to| *to == shared.lanes[own].inode);
            let lanes = if root { vec![own, 0] } else { vec![own] };
            lanes.into_iter().map(|lane| (lane, shared.lanes[lane].state.last())).collect()
        };
        self.reach(goals, data_writes, threads)
    }

    /// As [`Journal::commit_cube_for`], of an inode, whose place in the table lies in `block`. Where the root cube has several
    /// journals, that of the inode's lot has each change of it, and of its names; the others are not written unless they have a
    /// part of such a change.
    ///
    /// # Errors
    /// As [`Journal::commit`].
    pub fn commit_inode_for(
        &self,
        cube: u32,
        block: BlockNr,
        threads: usize,
    ) -> Result<(), JournalError> {
        if self.log_of(cube, block).is_none() {
            return self.commit_cube_for(cube, threads);
        }
        let data_writes = self.data_writes.load(floe_sync::atomic::Ordering::SeqCst);
        let goals =
            |shared: &Shared| shared.goals_of(shared.lots.own_lane_of(&self.geometry, block));
        self.reach(goals, data_writes, threads)
    }

    /// Whether the root cube has more journals than that of inode 8 when they are opened.
    pub const fn has_several(&self) -> bool {
        self.has_several
    }

    /// The journal that logs the lot of a block of the root cube, where that has several: a number by which they differ.
    pub fn log_of(&self, cube: u32, block: BlockNr) -> Option<usize> {
        let shared = self.lock();
        let is_one_of_several = cube == 0 && shared.has_further;
        is_one_of_several.then(|| shared.lots.own_lane_of(&self.geometry, block))
    }

    /// Lets lots move whose records name another journal: everything in the old one is durable, home, and behind its tail; only
    /// then may the new one log blocks of the lot. No handle is open.
    ///
    /// A new journal that cannot be read logs nothing yet: the old one goes on, and a change a second later tries again. A lot
    /// whose old journal has ended stays with that.
    pub(super) fn settle_moves(&self) -> Result<(), JournalError> {
        let now_seconds = self.times.now().0;
        let mut unread = BTreeSet::new();
        loop {
            let (lot, to, from, strays) = {
                let mut shared = self.lock();
                if shared.lots.moves.is_empty() || shared.lots.unread_at == Some(now_seconds) {
                    return Ok(());
                }
                let next = shared.lots.moves.iter().find(|(lot, _)| !unread.contains(*lot));
                let Some((&lot, &to)) = next else {
                    shared.lots.unread_at = Some(now_seconds);
                    return Ok(());
                };
                let from = shared.lots.lane_of_lot(lot);
                if from > 0 && shared.lanes[from].state.failed.is_some() {
                    shared.lots.moves.remove(&lot);
                    continue;
                }
                (lot, to, from, shared.lots.strays_of(&self.geometry, lot))
            };
            let mut logs = [from].into_iter().chain(strays);
            let settled = logs.try_for_each(|lane| self.empty_log(lane));
            if let Err(error) = settled {
                self.judge_root(error)?;
                unread.insert(lot);
                continue;
            }
            let lane = match to {
                0 => Some(0),
                inode => match self.lane_of_inode(inode, lot) {
                    Ok(lane) => lane,
                    Err(_) => {
                        unread.insert(lot);
                        continue;
                    }
                },
            };
            self.move_lot(lot, from, lane);
        }
    }

    /// Gives a lot to another log; without one, because that cannot be used, the old one goes on.
    fn move_lot(&self, lot: u32, from: usize, lane: Option<usize>) {
        let mut shared = self.lock();
        shared.lots.moves.remove(&lot);
        shared.lots.forget_strays_of(&self.geometry, lot);
        if let Some(lane) = lane {
            shared.lots.give(lot, lane);
        }
        let left = shared.lots.has_lots(from);
        if from > 0 && !left {
            shared.lanes[from].gone = true;
        }
    }

    /// The log with this inode, which the record of a lot names, opened if it is new; `None` if it cannot be used.
    fn lane_of_inode(&self, inode: u32, lot: u32) -> Result<Option<usize>, JournalError> {
        let known = |shared: &Shared| {
            let own = |lane: &Lane| lane.inode == inode && !lane.gone;
            shared.lanes.iter().position(own)
        };
        if let Some(lane) = known(&self.lock()) {
            return Ok(Some(lane));
        }
        // All of it is home by now.
        let (superblock, geometry) =
            read_superblock(&self.device).map_err(JournalError::FileSystem)?;
        let found = find_cube(&self.device, &superblock, &geometry, lot).whole();
        let found = found.map_err(JournalError::io("looking for the journal of a cube"))?;
        if found.unusable.iter().any(|own| own.inode.0 == inode && own.is_unread) {
            return Err(JournalError::Unsupported("that of a cube cannot be read"));
        }
        let is_it = |own: &CubeJournal| own.inode.0 == inode && own.journal.damage.is_none();
        let Some(own) = found.usable.into_iter().find(is_it) else {
            return Ok(None);
        };
        self.end_one_barrier()?;
        let index = self.lock().lanes.len();
        let lane = open_lane(&self.device, own, index, &self.geometry.features)?;
        let mut shared = self.lock();
        shared.add(lane);
        Ok(Some(index))
    }
}

impl<D: WriteBlocks> Journal<D> {
    /// Gives the log of inode 8 checksums of blocks instead of transactions, because there will be a second log. It is emptied first:
    /// features change on an empty log. No handle is open.
    fn end_one_barrier(&self) -> Result<(), JournalError> {
        if !self.has_one_barrier() {
            return Ok(());
        }
        self.empty_log(0)?;
        let lanes = BTreeSet::from([0]);
        let mut shared = self.lock();
        while shared.lanes[0].state.working {
            shared = self.wait(shared);
        }
        let (log, next, head) = {
            let Lane { log, state, .. } = &shared.lanes[0];
            let log = log.with_two_barriers();
            (log, state.last().next().sequence(), state.in_log.head)
        };
        let mut shared = self.turn(shared, &lanes, |journal| {
            log.write_superblock(&journal.device, next, 0, head)?;
            journal.flush_all(&lanes, "flushing the empty log")
        })?;
        let lane = &mut shared.lanes[0];
        (lane.log, lane.state.in_log.marked_empty) = (Arc::new(log), true);
        Ok(())
    }
}

/// Takes up the log of a cube, which holds nothing.
pub(super) fn open_lane<D: WriteBlocks>(
    device: &D,
    own: CubeJournal,
    index: usize,
    features: &Features,
) -> Result<Lane, JournalError> {
    let stored = stored_superblock(device, &own.journal)?;
    let log = Log::of(own.journal, features, Barriers::Two)?;
    if log.differs_from(&stored) {
        log.write_superblock(device, stored.sequence, 0, stored.head)?;
    }
    let state = State::new(TransactionId::of(index, stored.sequence), log.first_head());
    Ok(Lane::new((own.cube, own.inode.0), Some(own.orphan_block), log, state))
}
