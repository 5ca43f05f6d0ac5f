//! Opening: recover, take up the log, say so in the superblock.

use floe_blockdev::WriteBlocks;
use floe_ext4::fs::FileSystem;
use floe_ext4::journal::{JournalPlace, is_after};
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::features::Incompat;
use floe_sync::atomic::AtomicU64;
use floe_sync::{Condvar, Mutex};

use super::error::JournalError;
use super::log::{Log, stored_superblock};
use super::recovery::{self, recover};
use super::state::{State, TransactionId};
use super::{Clock, Journal, system_clock};

impl<D: WriteBlocks> Journal<D> {
    /// Opens the journal of a file system for writing: recovers it if it must be, and marks the file system as in use
    /// (`needs_recovery`). Orphans are not looked at.
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
        let recovered = recover(&device)?;
        let fs = FileSystem::open(&device).map_err(JournalError::FileSystem)?;
        let geometry = fs.geometry().clone();
        let place = recovery::find(&device, &fs)?;
        if place.place == JournalPlace::External {
            return Err(JournalError::Unsupported("it lies on another device"));
        }
        let stored = stored_superblock(&device, &place)?;
        // As Linux: what an empty log expects next may have been begun before a crash.
        let mut last = stored.sequence;
        let mut commit_time = (0, 0);
        if let Some(seen) = recovered.seen {
            commit_time = seen.commit_time;
            if is_after(seen.sequence, last) {
                last = seen.sequence;
            }
        }
        let log = Log::of(place, &geometry.features)?;
        if log.differs_from(&stored) {
            log.write_superblock(&device, stored.sequence, 0, stored.head)?;
        }
        set_needs_recovery(&device, true)?;
        let state = State::new(TransactionId(u64::from(last)), log.first_head(), commit_time);
        Ok(Self {
            device,
            geometry,
            log,
            clock,
            handle: Mutex::new(()),
            state: Mutex::new(state),
            changed: Condvar::new(),
            data_writes: AtomicU64::new(0),
        })
    }
}

/// Sets or clears `needs_recovery` in the primary superblock, and flushes the device.
///
/// The one write that is not atomic where a device tears writes between sectors of 512 bytes (the feature and the checksum
/// lie in different ones). The log is empty at that time, and Linux takes the same risk; e2fsck and `floe repair` mend it.
pub(super) fn set_needs_recovery<D: WriteBlocks>(device: &D, on: bool) -> Result<(), JournalError> {
    let mut bytes = [0; 1024];
    let doing = "marking the file system in its superblock";
    device.read_at(OFFSET_BYTES, &mut bytes).map_err(JournalError::io(doing))?;
    let mut superblock = Superblock::decode(&bytes);
    if on {
        superblock.feature_incompat |= Incompat::RECOVER.bits();
    } else {
        superblock.feature_incompat &= !Incompat::RECOVER.bits();
    }
    superblock.encode_with_checksum(&mut bytes);
    device.write_at(OFFSET_BYTES, &bytes).map_err(JournalError::io(doing))?;
    device.flush().map_err(JournalError::io(doing))
}
