//! The end: everything home, the logs empty, and the marks of use gone.

use std::collections::BTreeSet;

use floe_blockdev::WriteBlocks;
use floe_format::ext::orphan_file::OrphanBlock;
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::features::Incompat;
use floe_format::native::LOCK;
use floe_format::{Geometry, GroupNr};
use floe_sync::{Arc, PoisonError};

use super::Journal;
use super::error::JournalError;
use super::shared::{Lane, Lock};

/// The right to set the bit that keeps others out; lost without an end, the bit is not set.
struct Setting<'a, D: WriteBlocks> {
    journal: &'a Journal<D>,
}

impl<D: WriteBlocks> Drop for Setting<'_, D> {
    fn drop(&mut self) {
        let mut shared = self.journal.lock();
        if shared.lock == Lock::Setting {
            shared.lock = Lock::Open;
        }
        drop(shared);
        self.journal.changed.notify_all();
    }
}

impl<D: WriteBlocks> Journal<D> {
    /// Ends in order: everything durable and home, the logs empty, `needs_recovery` gone, and with it the bit that keeps others
    /// out, unless the journal of a cube has failed or lists orphans. The device comes back.
    ///
    /// # Errors
    /// [`JournalError::Aborted`], or a failed write or flush: then the log still holds what is not home.
    pub fn close(self) -> Result<D, JournalError> {
        // Each error of a cube's journal ends that one, and is no concern of the others.
        let mut left = self.lock().lanes.len();
        while let Err(error) = self.sync_sound().and_then(|()| self.checkpoint()) {
            left = left.saturating_sub(1);
            if left == 0 {
                return Err(error);
            }
            self.judge_root(error)?;
        }
        let ended: Vec<_> = {
            let shared = self.lock();
            shared.lanes[0].state.judge()?;
            let sound =
                shared.lanes.iter().filter(|lane| lane.state.failed.is_none() && !lane.gone);
            let end = |lane: &Lane| {
                (Arc::clone(&lane.log), lane.state.last().next().sequence(), lane.state.in_log.head)
            };
            sound.map(end).collect()
        };
        for (log, next, head) in ended {
            log.write_last_superblock(&self.device, next, head)?;
        }
        self.flush_all(&BTreeSet::new(), "flushing the empty log")?;
        self.write_last_superblock()?;
        Ok(self.device)
    }

    fn write_last_superblock(&self) -> Result<(), JournalError> {
        let doing = "marking the file system in its superblock";
        let (image, lock, failed) = {
            let shared = self.lock();
            let ended = |lane: &Lane| lane.state.failed.is_some() && !lane.gone;
            let failed = shared.lanes.iter().any(ended) || shared.lots.has_lost_log();
            (shared.superblock.clone(), shared.lock, failed)
        };
        let keeps_lock = failed || self.has_orphans_of_cubes();
        let mut bytes = [0; Superblock::SIZE];
        let (_, at) = self.superblock_place();
        match image.as_ref().and_then(|image| image.get(at..at + bytes.len())) {
            Some(own) => bytes.copy_from_slice(own),
            None if self.is_native => {
                let known = self.superblock_writes.lock();
                bytes = *known.unwrap_or_else(PoisonError::into_inner);
            }
            None => {
                let mut read = || self.device.read_at(OFFSET_BYTES, &mut bytes);
                // One failed read does not leave a whole mount unclean.
                read().or_else(|_| read()).map_err(JournalError::io(doing))?;
            }
        }
        let mut superblock = Superblock::decode(&bytes);
        superblock.feature_incompat &= !Incompat::RECOVER.bits();
        if self.is_native && !keeps_lock {
            // A crash may have left it in backups alone.
            mark_backups(&self.device, &self.geometry, &superblock, false)?;
            if lock == Lock::Set {
                self.flush_all(&BTreeSet::new(), doing)?;
            }
            superblock.feature_incompat &= !LOCK;
        }
        superblock.encode_with_checksum(&mut bytes);
        self.device.write_at(OFFSET_BYTES, &bytes).map_err(JournalError::io(doing))?;
        self.flush_all(&BTreeSet::new(), doing)
    }

    /// Whether a cube has orphans that nobody but Floe would find, or may have.
    fn has_orphans_of_cubes(&self) -> bool {
        let blocks: Vec<_> = {
            let shared = self.lock();
            let lanes = shared.lanes.iter().filter(|lane| !lane.gone);
            lanes.filter_map(|lane| lane.orphan_block).collect()
        };
        let mut bytes = vec![0; self.geometry.block_size as usize];
        for block in blocks {
            let read = self.device.read_at(self.geometry.offset_bytes(block), &mut bytes);
            let stored = OrphanBlock::new(&bytes).filter(|_| read.is_ok());
            if stored.is_none_or(|stored| stored.orphans().next().is_some()) {
                return true;
            }
        }
        false
    }

    /// Sets the bit that keeps others out, before anything is written to a journal that they do not know: in all backups, then
    /// in the primary superblock, each flushed.
    pub(super) fn lock_out(&self) -> Result<(), JournalError> {
        let mut shared = self.lock();
        while shared.lock == Lock::Setting {
            shared.lanes[0].state.judge()?;
            shared = self.wait(shared);
        }
        if shared.lock == Lock::Set {
            return Ok(());
        }
        shared.lock = Lock::Setting;
        drop(shared);
        // Others wait for its end, also for that of a panic.
        let setting = Setting { journal: self };
        let writes = self.superblock_writes.lock();
        let mut writes = writes.unwrap_or_else(PoisonError::into_inner);
        let done = self.write_lock(&mut writes);
        let mut shared = self.lock();
        if done.is_ok() {
            shared.lock = Lock::Set;
            if let Some(image) = shared.superblock.take() {
                shared.superblock = Some(Arc::new(self.with_lock(image.to_vec())));
            }
        }
        drop(shared);
        drop(setting);
        done
    }

    /// `bytes`: the superblock on the device, which is not read, because one failed read would end the journals.
    fn write_lock(&self, bytes: &mut [u8; Superblock::SIZE]) -> Result<(), JournalError> {
        let doing = "setting the bit that keeps other programs out";
        let mut superblock = Superblock::decode(bytes);
        mark_backups(&self.device, &self.geometry, &superblock, true)?;
        self.flush_all(&BTreeSet::new(), doing)?;
        superblock.feature_incompat |= LOCK;
        superblock.encode_with_checksum(bytes);
        self.device.write_at(OFFSET_BYTES, &*bytes).map_err(JournalError::io(doing))?;
        self.flush_all(&BTreeSet::new(), doing)
    }

    /// The block of the superblock, with the bit set.
    fn with_lock(&self, mut block: Vec<u8>) -> Vec<u8> {
        let (_, at) = self.superblock_place();
        if let Some(bytes) = block.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
            let mut superblock = Superblock::decode(bytes);
            superblock.feature_incompat |= LOCK;
            superblock.encode_with_checksum(bytes);
        }
        block
    }
}

/// Sets or clears the bit in all backups of a superblock. A block in the place of a backup that is none is left alone, and
/// so is one in a bad block: it lies in a lot of a cube, whose fault must not end the journals of others, and nobody can
/// start from it.
pub(super) fn mark_backups<D: WriteBlocks>(
    device: &D,
    geometry: &Geometry,
    primary: &Superblock,
    on: bool,
) -> Result<(), JournalError> {
    for group in (1..geometry.group_count).map(GroupNr) {
        let Some(block) = geometry.superblock_of(group) else { continue };
        let offset = geometry.offset_bytes(block);
        let mut bytes = [0; Superblock::SIZE];
        if device.read_at(offset, &mut bytes).is_err() {
            continue;
        }
        let mut backup = Superblock::decode(&bytes);
        if backup.magic != primary.magic || backup.uuid != primary.uuid {
            continue;
        }
        let before = backup.feature_incompat;
        backup.feature_incompat = if on { before | LOCK } else { before & !LOCK };
        if backup.feature_incompat != before {
            backup.encode_with_checksum(&mut bytes);
            // One that arrived by half is whole after a second try.
            let _ = device.write_at(offset, &bytes).or_else(|_| device.write_at(offset, &bytes));
        }
    }
    Ok(())
}
