//! Durability: whose journals a call waits for, and when freed space may be used again.

use std::collections::{BTreeSet, VecDeque};

use floe_blockdev::WriteBlocks;
use floe_disk::journal::{Finished, Journal, JournalError};
use floe_disk::space::Epoch;
use floe_disk::volume::Volume;
use floe_format::InodeNr;

use super::{Live, Work};
use crate::FsError;
use crate::disk::Disk;

/// Freed space that waits for its transactions.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Spans of freeings, oldest first, each with all that was finished when it ended.
    freed: VecDeque<(Epoch, Finished)>,
    /// Cubes whose journal has ended, of which a program was told that changes are lost.
    told: BTreeSet<u32>,
}

impl Waiting {
    /// Ends a span of freeings. Several journals become durable apart from each other, so all of them must have what was
    /// finished until now.
    fn end_epoch<D: WriteBlocks>(&mut self, volume: &mut Volume, journal: &Journal<D>) {
        let (epoch, finished) = (volume.end_epoch(), journal.finished());
        match self.freed.back_mut() {
            Some((last, same)) if *same == finished => *last = epoch,
            _ => self.freed.push_back((epoch, finished)),
        }
    }

    /// Lets the volume use again what durable transactions freed.
    fn settle<D: WriteBlocks>(&mut self, volume: &mut Volume, journal: &Journal<D>) {
        while let Some((epoch, finished)) = self.freed.front()
            && journal.has_settled(finished)
        {
            volume.durable(*epoch);
            self.freed.pop_front();
        }
    }
}

impl<D: WriteBlocks> Live<'_, '_, D> {
    /// Makes all durable. Cubes whose journal has ended fail, and the others go on.
    pub(super) fn make_durable(&self) -> Result<(), FsError> {
        self.faults.judge()?;
        self.wait(Journal::sync).map_err(|error| self.end(&error))?;
        self.fail_ended_cubes();
        Ok(())
    }

    /// Makes an inode durable: waits for the journal of its cube, and for those of others that share a change with it. One flush
    /// serves all who wait.
    pub(super) fn make_inode_durable(&self, inode: InodeNr) -> Result<(), FsError> {
        self.faults.judge()?;
        let cube = self.work().volume.cube_of(inode);
        let done = self.wait(|journal| journal.commit_cube(cube));
        let ended = self.fail_ended_cubes();
        match done {
            _ if cube > 0 && ended.contains(&cube) && self.work().ended.is_none() => {
                Err(FsError::CubeFailed { cube })
            }
            done => done.map_err(|error| self.end(&error)),
        }
    }

    /// Says, once for each cube, that its journal has ended, and changes with it: all else is durable.
    pub(super) fn tell_lost_cubes(&self) -> Result<(), FsError> {
        let ended = self.fail_ended_cubes();
        let mut work = self.work();
        let new = ended.into_iter().find(|cube| work.durable.told.insert(*cube));
        new.map_or(Ok(()), |cube| Err(FsError::CubeFailed { cube }))
    }

    /// Lets cubes fail whose journals have ended, unless all have. Returns their numbers.
    fn fail_ended_cubes(&self) -> BTreeSet<u32> {
        let Disk::Journaled(journal) = self.disk else { return BTreeSet::new() };
        let ended = journal.ended_cubes();
        if ended.is_empty() || journal.cube_state(0).failed.is_some() {
            return BTreeSet::new();
        }
        let numbers = ended.iter().map(|(cube, _)| *cube).collect();
        for (cube, why) in ended {
            self.fail_cube(cube, format!("its journal ended: {why}"));
        }
        numbers
    }

    /// Waits for journals; what they make durable can be used again.
    fn wait(
        &self,
        commit: impl FnOnce(&Journal<D>) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        let ended = |why: &String| JournalError::Aborted { why: why.clone() };
        let mut work = self.work();
        work.ended.as_ref().map(ended).map_or(Ok(()), Err)?;
        match self.disk {
            Disk::Direct { device, .. } => {
                let epoch = work.volume.end_epoch();
                drop(work);
                let flushed = device.flush();
                flushed.map_err(|source| JournalError::Io { doing: "flushing", source })?;
                self.work().volume.durable(epoch);
            }
            Disk::Journaled(journal) => {
                let Work { volume, durable, .. } = &mut *work;
                durable.end_epoch(volume, journal);
                drop(work);
                commit(journal)?;
                let mut work = self.work();
                let Work { volume, durable, .. } = &mut *work;
                durable.settle(volume, journal);
            }
        }
        Ok(())
    }

    /// Ends writing after a failure of the device.
    fn end(&self, error: &JournalError) -> FsError {
        let why = match error {
            JournalError::Aborted { why } => why.clone(),
            error => error.to_string(),
        };
        let why = self.work().ended.get_or_insert(why).clone();
        self.faults.end_writing();
        FsError::Ended(why)
    }
}
