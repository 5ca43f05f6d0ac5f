//! A device whose file system is changed: through its journal, or at once where it has none.

use std::io;

use floe_blockdev::{ReadBlocks, WriteBlocks};
use floe_disk::journal::{Barriers, Dependencies, Journal, JournalError, TransactionId};
use floe_disk::ops::OpError;
use floe_disk::recovery::recover;
use floe_disk::volume::{OpenError, ReadOnly, Volume, judge, seal};
use floe_ext4::files::Files;
use floe_ext4::fs::{FileSystem, read_superblock};
use floe_ext4::tx::{DirectTx, Refusal, Tx};
use floe_format::Geometry;
use floe_format::features::Compat;
use floe_format::native::lot::lot_groups;

/// Blocks of the log that are reserved for a change: more than most operations take, and less than a quarter of the
/// smallest journal. A change that takes more waits for them when it joins its transaction.
const CREDITS: u32 = 192;

/// A device whose file system is changed. Reads see all changes; [`WriteBlocks::write_at`] is for data of files alone.
/// Dropped without [`Disk::close`] it leaves what a crash leaves.
#[derive(Debug)]
pub enum Disk<D> {
    /// Changes go through the journal: all of one are there after a crash, or nothing.
    Journaled(Box<Journal<D>>),
    /// There is no journal: changes are written one block after the other, and a crash leaves damage, as with ext2.
    Direct {
        /// The device.
        device: D,
        /// The geometry that follows from its superblock.
        geometry: Geometry,
    },
}

/// Why a file system cannot be changed. Unless the journal had to be recovered, nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// Only reading is safe.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The file system cannot be read.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The first or last change failed.
    #[error(transparent)]
    Operation(#[from] OpError),
    /// The device failed.
    #[error("the device failed: {0}")]
    Device(#[from] io::Error),
}

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    /// The operation was refused: nothing changed.
    #[error(transparent)]
    Refused(OpError),
    /// The journal of a cube ended while it made room: nothing changed on the disk, but in the volume, which is to be read anew.
    #[error("the journal of a cube ended")]
    Apart,
    /// It could not be written: nothing more can be.
    #[error("{0}")]
    Ended(String),
}

impl<D: WriteBlocks> Disk<D> {
    /// Recovers the journal if it must be, judges whether the file system can be written safely, and opens the journal. A commit of
    /// little takes one flush of the device in stock file systems, two in native ones, whose logs tell all damage.
    ///
    /// # Errors
    /// [`DiskError`].
    pub fn open(device: D) -> Result<(Self, Volume), DiskError> {
        Self::open_with(device, None)
    }

    /// The same, where a commit of little takes one flush in native file systems, too, as long as inode 8's journal is the only one. It
    /// costs them the checksums of blocks in the log: damage of the last transaction passes for one that was being written, and one
    /// damaged block costs all of its transaction.
    ///
    /// # Errors
    /// [`DiskError`].
    pub fn open_with_async_commits(device: D) -> Result<(Self, Volume), DiskError> {
        Self::open_with(device, Some(Barriers::One))
    }

    fn open_with(device: D, barriers: Option<Barriers>) -> Result<(Self, Volume), DiskError> {
        let (superblock, geometry) = read_superblock(&device)?;
        // Before a recovery, which writes.
        if let Err(error @ ReadOnly::CutOff { .. }) = judge(&superblock, device.size_bytes()) {
            return Err(DiskError::Open(error.into()));
        }
        let usual = if lot_groups(&superblock) > 0 { Barriers::Two } else { Barriers::One };
        if !geometry.features.compat.contains(Compat::HAS_JOURNAL) {
            let volume = Volume::open(&device)?;
            return Ok((Self::Direct { device, geometry }, volume));
        }
        let recovered = recover(&device)?;
        // Judged before the journal marks the file system as in need of recovery.
        let volume = Volume::open_beside_lost(&device)?;
        let journal = Journal::open_recovered(device, &recovered, barriers.unwrap_or(usual))?;
        Ok((Self::Journaled(Box::new(journal)), volume))
    }

    /// Sets how changes that concern several journals of the root cube are there as a whole after a crash, or not at all: recovery
    /// takes both. Without several journals it makes no difference.
    pub fn set_dependencies(&self, dependencies: Dependencies) {
        if let Self::Journaled(journal) = self {
            journal.set_dependencies(dependencies);
        }
    }

    /// The files, with all changes at any time. Names in directory blocks with a wrong checksum are not among them.
    ///
    /// # Errors
    /// The file system cannot be read.
    pub fn files(&self) -> Result<Files<'_>, DiskError> {
        let (superblock, geometry) = read_superblock(self)?;
        let (fs, _) = FileSystem::of_sound(self, superblock, geometry)?;
        let (geometry, groups) = (fs.geometry().clone(), fs.space.groups.descs().to_vec());
        Ok(Files::new(self, fs.superblock, geometry, groups).without_damaged_names())
    }

    /// The same, with the descriptors that an open volume has read. Nobody may have changed anything yet.
    ///
    /// # Errors
    /// The superblock cannot be read.
    pub fn files_of(&self, volume: &Volume) -> Result<Files<'_>, DiskError> {
        let ((superblock, geometry), groups) = (read_superblock(self)?, volume.groups().to_vec());
        Ok(Files::new(self, superblock, geometry, groups).without_damaged_names())
    }

    /// Writes all that is left home and empties the journal. Seals a native file system.
    ///
    /// # Errors
    /// The device failed; the journal is recovered at the next mount then.
    pub fn close(self) -> Result<(), DiskError> {
        match self {
            Self::Journaled(journal) => seal(&(*journal).close()?)?,
            Self::Direct { device, .. } => device.flush()?,
        }
        Ok(())
    }

    /// Runs a change as one transaction; says which, where there is a journal.
    pub(crate) fn change<T>(
        &self,
        run: impl FnOnce(&mut dyn Tx) -> Result<T, OpError>,
    ) -> Result<(T, Option<TransactionId>), ChangeError> {
        let ended = |error: &dyn std::error::Error| ChangeError::Ended(error.to_string());
        match self {
            Self::Journaled(journal) => {
                let mut tx = journal.begin(CREDITS).map_err(|error| ended(&error))?;
                let value = run(&mut tx).map_err(ChangeError::Refused)?;
                let id = tx.finish().map_err(|error| match journal.is_sound() {
                    true => ChangeError::Apart,
                    false => ended(&error),
                })?;
                Ok((value, Some(id)))
            }
            Self::Direct { device, geometry } => {
                let mut tx = DirectTx::new(device, geometry.clone());
                let value = run(&mut tx).map_err(ChangeError::Refused)?;
                tx.commit().map_err(|error| ended(&error))?;
                Ok((value, None))
            }
        }
    }
}

impl<D: WriteBlocks> ReadBlocks for Disk<D> {
    fn size_bytes(&self) -> u64 {
        match self {
            Self::Journaled(journal) => journal.size_bytes(),
            Self::Direct { device, .. } => device.size_bytes(),
        }
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Journaled(journal) => journal.read_at(offset_bytes, into),
            Self::Direct { device, .. } => device.read_at(offset_bytes, into),
        }
    }
}

impl<D: WriteBlocks> WriteBlocks for Disk<D> {
    /// Writes data of a file, ordered before the change that maps them.
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        match self {
            Self::Journaled(journal) => {
                journal.write_data(offset_bytes, from).map_err(io::Error::other)
            }
            Self::Direct { device, .. } => device.write_at(offset_bytes, from),
        }
    }

    /// Discards free blocks: whatever freed them is durable.
    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<bool> {
        match self {
            Self::Journaled(journal) => {
                journal.discard_free(offset_bytes, len_bytes).map_err(io::Error::other)
            }
            Self::Direct { device, .. } => device.discard(offset_bytes, len_bytes),
        }
    }

    /// Makes all finished changes and all data durable, but those of cubes whose own journals have ended.
    fn flush(&self) -> io::Result<()> {
        match self {
            Self::Journaled(journal) => journal.sync_sound().map_err(io::Error::other),
            Self::Direct { device, .. } => device.flush(),
        }
    }

    fn current_size_bytes(&self) -> io::Result<u64> {
        match self {
            Self::Journaled(journal) => journal.current_size_bytes(),
            Self::Direct { device, .. } => device.current_size_bytes(),
        }
    }
}
