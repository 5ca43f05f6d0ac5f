//! A file system on a disk that is read and written. Each operation is a transaction of its own.

mod cubes;
mod lower;

use floe_blockdev::WriteBlocks;
use floe_disk::ops::{Caller, OpError, Removed, Step};
use floe_disk::volume::Volume;
use floe_ext4::files::{Attribute, Files};
use floe_ext4::tx::{Refusal, Tx};
use floe_format::InodeNr;
use floe_sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::{ChangeError, Disk, DiskError};
use crate::faults::{Fault, Faults, OnError};
use crate::op::{Applied, Op, OpKind};
use crate::store::{SeekFor, Space, Store};
use crate::{Attributes, Directory, FsError, Image, Timestamp};

/// Blocks of a write that are mapped in one transaction: a longer write is several.
const BLOCKS_PER_WRITE: u64 = 256;

/// A file system on a disk that is read and written.
///
/// Reads go through the same code as those of an [`Image`]. The caller keeps readers away from changes, as
/// [`FileSystem`](crate::FileSystem) does.
#[derive(Debug)]
pub struct Live<'f, 'd, D> {
    disk: &'d Disk<D>,
    image: Image<'f, 'd>,
    work: Mutex<Work>,
    /// Sizes, of which the free ones change.
    space: Space,
    faults: Faults,
}

#[derive(Debug)]
struct Work {
    volume: Volume,
    /// Groups with a damaged bitmap that are recorded.
    damaged_groups: usize,
    /// Why nothing is written any more.
    ended: Option<String>,
}

impl<'f, 'd, D: WriteBlocks> Live<'f, 'd, D> {
    /// Begins to write: marks the file system as in use, and deletes what the last user left without a name.
    /// `files` are those of `disk`.
    ///
    /// # Errors
    /// The disk cannot be read or written.
    pub fn new(
        disk: &'d Disk<D>,
        files: &'f Files<'d>,
        volume: Volume,
        now: Timestamp,
    ) -> Result<Self, FsError> {
        let work = Mutex::new(Work { volume, damaged_groups: 0, ended: None });
        let (image, faults) = (Image::new(files), Faults::default());
        let space = image.space();
        let live = Self { disk, image, work, space, faults };
        live.run(|volume, tx| volume.begin_writing(tx, now))?;
        live.finish_orphans(now)?;
        live.sync()?;
        Ok(live)
    }

    /// Sets what follows on damaged or unreadable metadata.
    #[must_use]
    pub fn on_error(self, on_error: OnError) -> Self {
        Self { faults: Faults::new(on_error), ..self }
    }

    /// Keeps about so many bytes of maps of files, 1 MiB at least.
    #[must_use]
    pub fn within(self, memory_bytes: u64) -> Self {
        Self { image: self.image.within(memory_bytes), ..self }
    }

    /// Reads something of an inode. A fault is recorded in the superblock.
    fn watch<T>(
        &self,
        read: impl FnOnce(&Image<'f, 'd>) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        self.faults.judge()?;
        let read = read(&self.image);
        if let Err(error) = &read {
            self.meet(error);
        }
        read
    }

    /// Records a fault in the superblock, and does what follows on it.
    pub(crate) fn meet(&self, error: &FsError) {
        let Some(record) = self.faults.meet(error) else { return };
        // If it cannot be recorded, writing has ended, which every call says from now on.
        let _ = self.run_once(|volume, tx| volume.record_error(tx, crate::now(), &record));
        self.faults.react();
    }

    /// Ends writing: deletes what has no name, and says in the superblock that all is clean. The disk is to be closed
    /// then.
    ///
    /// # Errors
    /// As [`Store::apply`]. What is durable by then is recovered at the next mount.
    pub fn finish(self, now: Timestamp) -> Result<(), FsError> {
        if !self.is_read_only() {
            self.finish_orphans(now)?;
            self.reserve_regions(now)?;
        }
        self.run(|volume, tx| volume.end_writing(tx, now))?;
        self.sync()
    }

    /// Gives the free blocks of regions to reservation files (native file systems).
    fn reserve_regions(&self, now: Timestamp) -> Result<(), FsError> {
        let lots = self.work().volume.lots_to_reserve();
        if lots.is_empty() {
            return Ok(());
        }
        // What was freed is free for good then.
        self.sync()?;
        for &lot in &lots {
            self.run(|volume, tx| volume.reserve_lot(tx, now, lot))?;
        }
        self.sync()?;
        let copied = self.work().volume.back_up_descriptors(self.disk, &lots);
        copied.map_err(|error| FsError::Ended(error.to_string()))
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        // A panic in an operation has told its volume to stop, or nothing.
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs an operation as a transaction. A fault is recorded in the superblock.
    fn run<T>(
        &self,
        run: impl FnMut(&mut Volume, &mut dyn Tx) -> Result<T, OpError>,
    ) -> Result<T, FsError> {
        let done = self.run_once(run);
        if let Err(error) = &done {
            self.meet(error);
        }
        self.meet_damaged_groups();
        done
    }

    /// Records damaged bitmaps, over which operations pass without an error.
    fn meet_damaged_groups(&self) {
        let mut work = self.work();
        let damaged = work.volume.damaged_groups();
        let known = std::mem::replace(&mut work.damaged_groups, damaged.len());
        drop(work);
        let Some(first) = damaged.first().filter(|_| damaged.len() > known) else { return };
        let what = format!("a bitmap of {first}");
        self.meet(&FsError::Damaged { inode: InodeNr(0), what, fault: Fault::DAMAGE });
    }

    /// Runs an operation as a transaction; once more after a commit where only that gives free blocks back.
    fn run_once<T>(
        &self,
        mut run: impl FnMut(&mut Volume, &mut dyn Tx) -> Result<T, OpError>,
    ) -> Result<T, FsError> {
        let mut again = true;
        loop {
            let mut work = self.work();
            if let Some(why) = &work.ended {
                return Err(FsError::Ended(why.clone()));
            }
            self.faults.judge()?;
            let volume = &mut work.volume;
            match self.disk.change(|tx| run(volume, tx)) {
                Ok((value, id)) => {
                    if id.is_none() {
                        // Without a journal it is written already.
                        let epoch = work.volume.end_epoch();
                        work.volume.durable(epoch);
                    }
                    return Ok(value);
                }
                Err(ChangeError::Refused(OpError::NoSpace))
                    if again && work.volume.holds_back() =>
                {
                    drop(work);
                    self.sync()?;
                    again = false;
                }
                Err(ChangeError::Refused(error)) => return Err(of_op(error)),
                Err(ChangeError::Ended(why)) => {
                    work.ended = Some(why.clone());
                    self.faults.end_writing();
                    return Err(FsError::Ended(why));
                }
            }
        }
    }

    /// Does the steps of an operation, each a transaction of its own.
    fn steps(
        &self,
        mut run: impl FnMut(&mut Volume, &mut dyn Tx) -> Result<Step, OpError>,
    ) -> Result<(), FsError> {
        while self.run(&mut run)? == Step::More {}
        Ok(())
    }

    fn finish_orphans(&self, now: Timestamp) -> Result<(), FsError> {
        let orphans = self.work().volume.orphans();
        for inode in orphans {
            match self.finish_orphan(inode, now) {
                // It is recorded, and stays an orphan for `floe repair`.
                Err(FsError::Damaged { .. } | FsError::Unreadable { .. }) => {}
                other => other?,
            }
        }
        Ok(())
    }

    fn finish_orphan(&self, inode: InodeNr, now: Timestamp) -> Result<(), FsError> {
        let caller = Caller::system(now);
        self.image.forget(inode);
        self.steps(|volume, tx| volume.finish_orphan(tx, self.disk, &caller, inode))
    }

    /// Changes fields of an inode, its size last.
    fn change(&self, caller: &Caller, kind: &OpKind<'_>) -> Result<(), FsError> {
        let OpKind::Change { inode, size_bytes, change } = *kind else { return Ok(()) };
        self.image.forget(inode);
        if let Some(size) = size_bytes {
            let mut first = true;
            self.steps(|volume, tx| {
                if std::mem::take(&mut first) {
                    volume.truncate(tx, self.disk, caller, inode, size)
                } else {
                    volume.finish_orphan(tx, self.disk, caller, inode)
                }
            })?;
        }
        if change == Default::default() {
            return Ok(());
        }
        self.run(|volume, tx| volume.change(tx, caller, inode, &change))
    }

    /// Writes, in pieces that one transaction can map.
    fn write(
        &self,
        caller: &Caller,
        inode: InodeNr,
        offset_bytes: u64,
        bytes: &[u8],
    ) -> Result<(), FsError> {
        let block = u64::from(self.work().volume.geometry().block_size);
        let piece = usize::try_from(BLOCKS_PER_WRITE * block).unwrap_or(usize::MAX);
        self.image.forget(inode);
        for (at, piece) in bytes.chunks(piece).scan(offset_bytes, |at, piece| {
            let start = *at;
            *at = at.saturating_add(piece.len() as u64);
            Some((start, piece))
        }) {
            self.write_piece(caller, inode, at, piece)?;
        }
        Ok(())
    }

    /// Writes bytes in one transaction, or in two where their blocks are so scattered that one cannot hold the change.
    fn write_piece(
        &self,
        caller: &Caller,
        inode: InodeNr,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), FsError> {
        let fits =
            self.run(|volume, tx| match volume.write(tx, self.disk, caller, inode, at, bytes) {
                Err(OpError::TooLong) if bytes.len() > 1 => Ok(false),
                written => written.map(|()| true),
            })?;
        if fits {
            return Ok(());
        }
        let (first, second) = bytes.split_at(bytes.len() / 2);
        self.write_piece(caller, inode, at, first)?;
        self.write_piece(caller, inode, at.saturating_add(first.len() as u64), second)
    }
}

impl<D: WriteBlocks> Store for Live<'_, '_, D> {
    fn attributes(&self, inode: InodeNr) -> Result<Attributes, FsError> {
        self.watch(|image| image.attributes(inode))
    }

    fn directory(&self, inode: InodeNr) -> Result<Arc<Directory>, FsError> {
        let directory = self.watch(|image| image.read_directory(inode))?;
        if let Some((what, fault)) = directory.fault() {
            self.meet(&FsError::Damaged { inode, what: what.to_owned(), fault });
        }
        Ok(Arc::new(directory))
    }

    fn read(&self, inode: InodeNr, offset_bytes: u64, into: &mut [u8]) -> Result<usize, FsError> {
        self.watch(|image| image.read(inode, offset_bytes, into))
    }

    fn seek(&self, inode: InodeNr, offset_bytes: u64, what: SeekFor) -> Result<u64, FsError> {
        self.watch(|image| image.seek(inode, offset_bytes, what))
    }

    fn target(&self, inode: InodeNr) -> Result<Vec<u8>, FsError> {
        self.watch(|image| image.target(inode))
    }

    fn extended_attributes(&self, inode: InodeNr) -> Result<Vec<Attribute>, FsError> {
        self.watch(|image| image.extended_attributes(inode))
    }

    fn space(&self) -> Space {
        let room = self.work().volume.room();
        Space {
            free_blocks: room.free_blocks,
            available_blocks: room.available_blocks.saturating_sub(self.image.kept_blocks()),
            free_inodes: room.free_inodes,
            ..self.space
        }
    }

    fn block_bytes(&self) -> u32 {
        self.image.block_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.faults.is_read_only()
    }

    fn apply(&self, op: &Op<'_>) -> Result<Applied, FsError> {
        match op.kind {
            OpKind::Change { .. } => self.change(&caller_of(op), &op.kind)?,
            OpKind::Write { inode, offset_bytes, bytes } => {
                self.write(&caller_of(op), inode, offset_bytes, bytes)?
            }
            OpKind::Range { inode, mode, ref bytes } => {
                self.image.forget(inode);
                self.steps(|volume, tx| {
                    let caller = caller_of(op);
                    volume.change_range(tx, self.disk, &caller, inode, mode, bytes.clone())
                })?
            }
            _ => {
                let applied = self.run(|volume, tx| in_one(volume, tx, op))?;
                if let Some(inode) = applied.created {
                    // Its number may have been another's.
                    self.image.forget(inode);
                }
                return Ok(applied);
            }
        }
        Ok(Applied::default())
    }

    fn release(&self, inode: InodeNr) -> Result<(), FsError> {
        if self.is_read_only() {
            // It stays an orphan, which the next mount deletes.
            return Ok(());
        }
        self.finish_orphan(inode, crate::now())
    }

    fn sync(&self) -> Result<(), FsError> {
        self.faults.judge()?;
        let epoch = {
            let mut work = self.work();
            if let Some(why) = &work.ended {
                return Err(FsError::Ended(why.clone()));
            }
            work.volume.end_epoch()
        };
        if let Err(error) = self.disk.flush() {
            let why = error.to_string();
            self.work().ended = Some(why.clone());
            self.faults.end_writing();
            return Err(FsError::Ended(why));
        }
        self.work().volume.durable(epoch);
        Ok(())
    }
}

/// Makes a change of names or attributes, which takes one transaction; nothing for any other.
fn in_one(volume: &mut Volume, tx: &mut dyn Tx, op: &Op<'_>) -> Result<Applied, OpError> {
    let caller = caller_of(op);
    let nameless = |removed: Removed| removed.last.then_some(removed.inode);
    let (mut created, mut gone) = (None, None);
    match op.kind {
        OpKind::Create { place, new } => {
            created = Some(volume.create(tx, &caller, place.directory, place.name, &new)?);
        }
        OpKind::CreateUnnamed { directory, new } => {
            created = Some(volume.create_unnamed(tx, &caller, directory, &new)?);
        }
        OpKind::Link { inode, place } => {
            volume.link(tx, &caller, inode, place.directory, place.name)?;
        }
        OpKind::Unlink(place) => {
            gone = nameless(volume.unlink(tx, &caller, place.directory, place.name)?);
        }
        OpKind::RemoveDirectory(place) => {
            gone = nameless(volume.rmdir(tx, &caller, place.directory, place.name)?);
        }
        OpKind::Rename { from, to, mode } => {
            let (from, to) = ((from.directory, from.name), (to.directory, to.name));
            gone = volume.rename(tx, &caller, from, to, mode)?.replaced.and_then(nameless);
        }
        OpKind::SetAttribute { inode, name, value, mode } => {
            volume.set_attribute(tx, &caller, inode, name, value, mode)?;
        }
        OpKind::RemoveAttribute { inode, name } => {
            volume.remove_attribute(tx, &caller, inode, name)?;
        }
        OpKind::Change { .. } | OpKind::Write { .. } | OpKind::Range { .. } => {}
    }
    Ok(Applied { created, nameless: gone })
}

fn caller_of(op: &Op<'_>) -> Caller {
    Caller { uid: op.uid, gid: op.gid, time: op.time, may_use_reserve: op.uid == 0 }
}

impl From<DiskError> for FsError {
    fn from(error: DiskError) -> Self {
        Self::Ended(error.to_string())
    }
}

fn of_op(error: OpError) -> FsError {
    match error {
        OpError::NotFound("attribute") => FsError::NoAttribute,
        OpError::NotFound(_) => FsError::NotFound,
        OpError::Exists => FsError::Exists,
        OpError::NotADirectory => FsError::NotADirectory,
        OpError::IsADirectory => FsError::IsADirectory,
        OpError::NotEmpty => FsError::NotEmpty,
        OpError::NameTooLong => FsError::NameTooLong,
        OpError::BadName | OpError::Invalid(_) => FsError::Invalid,
        OpError::TooManyLinks => FsError::TooManyLinks,
        OpError::NoSpace | OpError::NoRoom => FsError::NoSpace,
        OpError::QuotaExceeded => FsError::QuotaExceeded,
        OpError::TooLarge => FsError::TooLarge,
        OpError::NotPermitted(_) => FsError::NotPermitted,
        OpError::CrossProject | OpError::CrossCube => FsError::CrossProject,
        OpError::Unsupported(what) => FsError::Unsupported(what),
        OpError::TooLong => FsError::Unsupported("a change of so many blocks at once"),
        OpError::Data { block, source } => FsError::Io {
            inode: InodeNr(0),
            source: std::io::Error::other(format!("{block}: {source}")),
        },
        OpError::Refused(refusal) => {
            let (inode, what) = (InodeNr(0), refusal.to_string());
            let fault = Fault::of_refusal(&refusal);
            match refusal {
                Refusal::Io { .. } => FsError::Unreadable { inode, what, fault },
                _ => FsError::Damaged { inode, what, fault },
            }
        }
        OpError::Stopped => FsError::Ended(error.to_string()),
    }
}
