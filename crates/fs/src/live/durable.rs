//! Durability: whose journals a call waits for, and when freed space may be used again.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use floe_blockdev::WriteBlocks;
use floe_disk::journal::{Finished, Journal, JournalError};
use floe_disk::space::Epoch;
use floe_disk::volume::Volume;
use floe_format::{BlockNr, InodeNr};

use super::{Live, Work};
use crate::FsError;
use crate::disk::Disk;

/// Freed space that waits for its transactions.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Spans of freeings, oldest first, each with all that was finished when it ended.
    freed: VecDeque<(Epoch, Finished)>,
    /// Blocks that were freed are given back to the device before they are used again.
    discards: bool,
    /// Cubes whose journal has ended, of which a program was told that changes are lost.
    told: BTreeSet<u32>,
}

/// Gives the blocks that durable transactions freed back to the device; `false` if it takes none. Nobody uses them before the
/// caller says that they are free.
fn discard<D: WriteBlocks>(volume: &Volume, journal: &Journal<D>, epoch: Epoch) -> bool {
    let block_bytes = u64::from(volume.geometry().block_size);
    let mut runs: Vec<Range<u64>> = volume.freed_until(epoch).collect();
    runs.sort_unstable_by_key(|run| run.start);
    runs.dedup_by(|next, run| {
        let joins = next.start == run.end;
        if joins {
            run.end = next.end;
        }
        joins
    });
    // An error costs nothing but the room: blocks of a cube that has failed are left alone, and a device that fails is met by
    // the next write.
    runs.into_iter().all(|run| {
        let (start, len) = (run.start * block_bytes, (run.end - run.start) * block_bytes);
        !matches!(journal.discard_free(start, len), Ok(false))
    })
}

impl Waiting {
    /// The same for a volume that was read anew.
    pub(super) fn begin_anew(&self) -> Self {
        Self { discards: self.discards, ..Self::default() }
    }

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
            if self.discards {
                self.discards = discard(volume, journal, *epoch);
            }
            volume.durable(*epoch);
            self.freed.pop_front();
        }
    }
}

impl<D: WriteBlocks> Live<'_, '_, D> {
    /// Whether blocks that are freed are given back to the device once that is durable, before they are used again; without a
    /// journal they are not. A device that takes none is not asked again.
    #[must_use]
    pub fn discard_freed(self, discards: bool) -> Self {
        self.work().durable.discards = discards;
        self
    }

    /// Makes all durable. Cubes whose journal has ended fail, and the others go on.
    pub(super) fn make_durable(&self) -> Result<(), FsError> {
        self.faults.judge()?;
        self.wait(Journal::sync).map_err(|error| self.end(&error))?;
        self.fail_ended_cubes();
        Ok(())
    }

    /// Makes an inode durable, for so many threads, unless its cube ignores fsync.
    pub(super) fn sync_for(&self, inode: InodeNr, threads: usize) -> Result<(), FsError> {
        if self.gates.ignores_fsync(self.gates.of_inode(inode)) {
            // As at any other call: what ended says so.
            return self.faults.judge();
        }
        self.make_inode_durable(inode, threads)
    }

    /// Makes an inode durable: waits for the journal of its cube, and for those of others that share a change with it. One flush
    /// serves all who wait.
    fn make_inode_durable(&self, inode: InodeNr, threads: usize) -> Result<(), FsError> {
        self.faults.judge()?;
        let cube = self.work().volume.cube_of(inode);
        let block = self.log_and_block(inode).map(|(_, block)| block);
        let done = self.wait(|journal| match block {
            Some(block) => journal.commit_inode_for(cube, block, threads),
            None => journal.commit_cube_for(cube, threads),
        });
        if let Disk::Journaled(journal) = self.disk {
            journal.relieve(cube, block);
        }
        let ended = self.fail_ended_cubes();
        match done {
            _ if cube > 0 && ended.contains(&cube) && self.work().ended.is_none() => {
                Err(FsError::CubeFailed { cube })
            }
            done => done.map_err(|error| self.end(&error)),
        }
    }

    /// Where the root cube has several journals and the inode is one of it: its journal, and its block in the table, by which that
    /// is found.
    pub(super) fn log_and_block(&self, inode: InodeNr) -> Option<(usize, BlockNr)> {
        let Disk::Journaled(journal) = self.disk else { return None };
        if !journal.has_several() {
            return None;
        }
        let block = self.image.table_block(inode)?;
        Some((journal.log_of(self.gates.of_inode(inode), block)?, block))
    }

    /// Says, once for each cube, that its journal has ended, and changes with it: all else is durable.
    pub(super) fn tell_lost_cubes(&self) -> Result<(), FsError> {
        let ended = self.fail_ended_cubes();
        let mut work = self.work();
        let new = ended.into_iter().find(|cube| work.durable.told.insert(*cube));
        new.map_or(Ok(()), |cube| Err(FsError::CubeFailed { cube }))
    }

    /// Notes the cubes whose journals cannot be used from the beginning: a mount says so, and as nothing of theirs is changed, nothing
    /// of it is lost later.
    pub(super) fn know_unusable_cubes(&self) {
        let ended = self.fail_ended_cubes();
        self.work().durable.told.extend(ended);
    }

    /// Lets cubes fail whose journals have ended, unless all have. Returns their numbers.
    fn fail_ended_cubes(&self) -> BTreeSet<u32> {
        let Disk::Journaled(journal) = self.disk else { return BTreeSet::new() };
        let mut ended = journal.ended_cubes();
        // Such a cube lost nothing since the mount.
        ended.retain(|(cube, _)| !self.gates.waits(*cube));
        if ended.is_empty() || journal.cube_state(0).failed.is_some() {
            return BTreeSet::new();
        }
        let numbers = ended.iter().map(|(cube, _)| *cube).collect();
        for (cube, why) in ended {
            self.fail_cube(cube, format!("its journal ended: {why}"));
        }
        numbers
    }

    /// `Err` if somebody has cut off the image since it was opened: nothing that lay behind its end is there any more.
    fn judge_size(&self, volume: &Volume) -> Result<(), JournalError> {
        let needed_bytes = volume.geometry().size_bytes();
        match self.disk.current_size_bytes() {
            Ok(bytes) if bytes < needed_bytes => {
                let why = format!(
                    "its image was cut off while it was mounted, and has {bytes} of {needed_bytes} bytes"
                );
                Err(JournalError::Aborted { why })
            }
            _ => Ok(()),
        }
    }

    /// Waits for journals; what they make durable can be used again.
    fn wait(
        &self,
        commit: impl FnOnce(&Journal<D>) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        let ended = |why: &String| JournalError::Aborted { why: why.clone() };
        let mut work = self.work();
        work.ended.as_ref().map(ended).map_or(Ok(()), Err)?;
        self.judge_size(&work.volume)?;
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
