//! A file system on a disk that is read and written. Each operation is a transaction of its own.

mod cubes;
mod durable;
mod fence;
mod journals;
mod lower;
mod online;
mod orphans;
mod projects;
mod serve;
mod trim;
mod untangle;
mod ways;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use floe_blockdev::WriteBlocks;
use floe_disk::ops::{Caller, OpError, Removed, Step, panic_message};
use floe_disk::volume::Volume;
use floe_ext4::files::Files;
use floe_ext4::tx::{Refusal, Tx};
use floe_format::InodeNr;
use floe_sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::cubes::Gates;
use crate::disk::{ChangeError, Disk, DiskError};
use crate::error::twice;
use crate::faults::{Fault, Faults, OnError};
use crate::op::{Applied, Op, OpKind};
use crate::store::{Space, Store};
use crate::{FsError, Image, Timestamp};
use lower::BLOCKS_PER_WRITE;

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
    gates: Arc<Gates>,
    /// Blocks of the metadata regions of lots, once somebody asked for them.
    regions: OnceLock<Vec<u64>>,
}

#[derive(Debug)]
struct Work {
    volume: Volume,
    /// Groups with a damaged bitmap that are recorded.
    damaged_groups: usize,
    /// Changes of owners of lots that the gates know.
    owner_changes: usize,
    /// Why nothing is written any more.
    ended: Option<String>,
    durable: durable::Waiting,
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
        let (image, faults) = (Image::new(files), Faults::default());
        let space = image.space();
        let gates = cubes::gates_of(&volume, files);
        let work = Mutex::new(Work {
            volume,
            damaged_groups: 0,
            owner_changes: 0,
            ended: None,
            durable: durable::Waiting::default(),
        });
        let live = Self { disk, image, work, space, faults, gates, regions: OnceLock::new() };
        live.learn_cubes();
        let waits = matches!(disk, Disk::Journaled(journal) if !journal.waiting_cubes().is_empty());
        live.run(InodeNr::ROOT, |volume, tx| volume.begin_writing_beside(tx, now, waits))?;
        live.note_waiting();
        live.meet_stray_orphans();
        live.finish_all_orphans(now)?;
        live.make_durable()?;
        live.know_unusable_cubes();
        live.take_fence_back(now)?;
        live.untangle(now);
        Ok(live)
    }

    /// Sets what follows on damaged or unreadable metadata.
    #[must_use]
    pub fn on_error(self, on_error: OnError) -> Self {
        Self { faults: Faults::new(on_error), ..self }
    }

    /// Reads something of an inode. A fault is recorded for its cube; one of the root cube in the superblock.
    fn watch<T>(
        &self,
        inode: InodeNr,
        read: impl FnOnce(&Image<'f, 'd>) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        self.faults.judge()?;
        // Caught here, before it unwinds through memory, which all cubes share.
        let read = catch_unwind(AssertUnwindSafe(|| read(&self.image)));
        let read = read.unwrap_or_else(|panic| {
            let what = panic_message(&*panic);
            Store::note_panic(self, self.gates.of_inode(inode), &what);
            Err(FsError::Panicked { what })
        });
        if let Err(error) = &read {
            self.meet(error);
        }
        read
    }

    /// Records a fault in the superblock, and does what follows on it.
    pub(crate) fn meet(&self, error: &FsError) {
        if let FsError::Damaged { inode, .. } | FsError::Unreadable { inode, .. } = error {
            let cube = self.gates.of_inode(*inode);
            if cube > 0 {
                return self.fail_cube(cube, error.to_string());
            }
        }
        let Some(record) = self.faults.meet(error) else { return };
        // If it cannot be recorded, writing has ended, which every call says from now on.
        let _ = self.run_once(|volume, tx| volume.record_error(tx, crate::now(), &record));
        self.faults.react();
    }

    /// Ends writing: deletes what has no name, and says in the superblock that all is clean. The disk is to be closed
    /// then.
    ///
    /// # Errors
    /// As [`Store::apply`]. Changes durable by then are recovered at the next mount.
    pub fn finish(self, now: Timestamp) -> Result<(), FsError> {
        if !self.is_read_only() {
            // Tells which cubes have failed before something of them is written.
            self.make_durable()?;
            self.finish_all_orphans(now)?;
            self.renew_cubes(now);
            self.fence(now)?;
            self.reserve_regions(now)?;
        }
        twice(|| self.run(InodeNr::ROOT, |volume, tx| volume.end_writing(tx, now)))?;
        self.make_durable()
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        // A panic in an operation has told its volume to stop, or nothing.
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs an operation on an inode as a transaction. A fault is recorded for its cube; of the root cube in the superblock.
    fn run<T>(
        &self,
        home: InodeNr,
        run: impl FnMut(&mut Volume, &mut dyn Tx) -> Result<T, OpError>,
    ) -> Result<T, FsError> {
        let done = self.run_once(run).map_err(|error| of_home(error, home));
        match &done {
            Err(FsError::Panicked { what }) => {
                Store::note_panic(self, self.gates.of_inode(home), what);
            }
            Err(error) => self.meet(error),
            Ok(_) => {}
        }
        self.meet_damaged_groups();
        done
    }

    /// The same for something of a cube that is no inode; 0: the root cube.
    fn run_of<T>(
        &self,
        cube: u32,
        run: impl FnMut(&mut Volume, &mut dyn Tx) -> Result<T, OpError>,
    ) -> Result<T, FsError> {
        if cube == 0 {
            return self.run(InodeNr::ROOT, run);
        }
        let done = self.run_once(run);
        match &done {
            Err(error) if error.is_local() => self.fail_cube(cube, error.to_string()),
            _ => {}
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
        if damaged.len() <= known {
            return;
        }
        for group in damaged.iter().filter(|group| self.gates.of_group(**group) > 0) {
            self.fail_cube(self.gates.of_group(*group), format!("a bitmap of {group} is damaged"));
        }
        let mut of_root = damaged.iter().filter(|group| self.gates.of_group(**group) == 0);
        let Some(first) = of_root.next() else { return };
        let what = format!("a bitmap of {first}");
        self.meet(&FsError::Damaged { inode: InodeNr(0), what, fault: Fault::DAMAGE });
    }

    /// Runs an operation as a transaction; once more after a commit where only that gives free blocks back.
    fn run_once<T>(
        &self,
        mut run: impl FnMut(&mut Volume, &mut dyn Tx) -> Result<T, OpError>,
    ) -> Result<T, FsError> {
        let (mut again, mut once_more) = (true, true);
        loop {
            let mut work = self.work();
            if let Some(why) = &work.ended {
                return Err(FsError::Ended(why.clone()));
            }
            self.faults.judge()?;
            let volume = &mut work.volume;
            let changed = catch_unwind(AssertUnwindSafe(|| self.disk.change(|tx| run(volume, tx))));
            let changed = match changed {
                Ok(changed) => changed,
                Err(panic) => return Err(self.revive(&mut work, &*panic)),
            };
            match changed {
                Ok((value, id)) => {
                    if work.volume.owner_changes() != work.owner_changes {
                        work.owner_changes = work.volume.owner_changes();
                        self.tell_owners(&work);
                    }
                    if id.is_none() {
                        // Without a journal it is written already.
                        let epoch = work.volume.end_epoch();
                        work.volume.durable(epoch);
                    }
                    let values = work.volume.unused_values();
                    drop(work);
                    self.finish_values(values);
                    return Ok(value);
                }
                Err(ChangeError::Refused(OpError::NoSpace))
                    if again && work.volume.holds_back() =>
                {
                    drop(work);
                    self.make_durable()?;
                    again = false;
                }
                Err(ChangeError::Refused(error)) => return Err(of_op(error)),
                // A change that concerns the cube is refused now.
                Err(ChangeError::Apart) if once_more => {
                    self.read_anew(&mut work, "the journal of a cube ended");
                    once_more = false;
                }
                Err(ChangeError::Apart) => return Err(self.end_work(&mut work, "a journal ended")),
                Err(ChangeError::Ended(why)) => return Err(self.end_work(&mut work, &why)),
            }
        }
    }

    /// Nothing is written any more.
    fn end_work(&self, work: &mut Work, why: &str) -> FsError {
        work.ended = Some(why.to_owned());
        self.faults.end_writing();
        FsError::Ended(why.to_owned())
    }

    /// Reads the volume anew after an operation panicked.
    fn revive(&self, work: &mut Work, panic: &(dyn Any + Send)) -> FsError {
        let what = panic_message(panic);
        self.read_anew(work, &what);
        FsError::Panicked { what }
    }

    /// Reads the volume anew after a transaction was given up. Without that nothing is written any more.
    fn read_anew(&self, work: &mut Work, what: &str) {
        let flushed = self.disk.flush().map_err(|error| error.to_string());
        let volume = &mut work.volume;
        let read = flushed.and_then(|()| {
            let read = || self.disk.change(|tx| volume.reopen(self.disk, tx));
            let read = catch_unwind(AssertUnwindSafe(read)).map_err(|panic| panic_message(&*panic));
            read?.map(drop).map_err(|error| error.to_string())
        });
        // Those of changes that were given up are none.
        self.gates.note_renames();
        // Its spans of freeings begin anew.
        work.durable = work.durable.begin_anew();
        if let Err(why) = read {
            self.end_work(work, &format!("{what}; {why}"));
        }
    }

    /// Does the steps of an operation on an inode, each a transaction of its own.
    fn steps(
        &self,
        home: InodeNr,
        mut run: impl FnMut(&mut Volume, &mut dyn Tx) -> Result<Step, OpError>,
    ) -> Result<(), FsError> {
        while self.run(home, &mut run)? == Step::More {}
        Ok(())
    }

    /// Makes a change of names or attributes, which takes one transaction; nothing for any other.
    fn in_one(
        &self,
        volume: &mut Volume,
        tx: &mut dyn Tx,
        op: &Op<'_>,
    ) -> Result<Applied, OpError> {
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
                let renamed = volume.rename(tx, &caller, from, to, mode)?;
                self.gates.note_renamed(renamed.directories.into_iter().flatten());
                gone = renamed.replaced.and_then(nameless);
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

    /// Changes fields of an inode, its size last.
    fn change(&self, caller: &Caller, kind: &OpKind<'_>) -> Result<(), FsError> {
        let OpKind::Change { inode, size_bytes, change } = *kind else { return Ok(()) };
        self.image.forget(inode);
        if let Some(size) = size_bytes {
            let mut first = true;
            self.steps(inode, |volume, tx| {
                if std::mem::take(&mut first) {
                    volume.truncate(tx, self.disk, caller, inode, size)
                } else {
                    volume.continue_cut(tx, self.disk, caller, inode)
                }
            })?;
        }
        if size_bytes.is_some() && change == Default::default() {
            return Ok(());
        }
        self.run(inode, |volume, tx| volume.change(tx, caller, inode, &change))
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
        let mut done = 0;
        for piece in bytes.chunks(piece) {
            let at = offset_bytes.saturating_add(done as u64);
            self.write_piece(caller, inode, at, piece).map_err(|error| error.behind(done))?;
            done += piece.len();
        }
        Ok(())
    }

    /// Writes bytes in one transaction; in several where their blocks are so scattered that one cannot hold the change, or
    /// where not all of them fit: then as much is written as fits.
    fn write_piece(
        &self,
        caller: &Caller,
        inode: InodeNr,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), FsError> {
        let first = self.first_half(at, bytes.len());
        let fits = self.run(inode, |volume, tx| {
            match volume.write(tx, self.disk, caller, inode, at, bytes) {
                Err(OpError::TooLong) if bytes.len() > 1 => Ok(false),
                written => written.map(|()| true),
            }
        });
        match fits {
            Ok(true) => return Ok(()),
            // As much is written as there is room for, or as a file can have.
            Err(FsError::NoSpace | FsError::QuotaExceeded | FsError::TooLarge)
                if first.is_some() => {}
            Err(error) => return Err(error),
            Ok(false) => {}
        }
        let (first, second) = bytes.split_at(first.unwrap_or(bytes.len() / 2));
        self.write_piece(caller, inode, at, first)?;
        let written =
            self.write_piece(caller, inode, at.saturating_add(first.len() as u64), second);
        written.map_err(|error| error.behind(first.len()))
    }

    /// Bytes of the first half of a write that touches several blocks, up to the end of a block.
    fn first_half(&self, at: u64, len_bytes: usize) -> Option<usize> {
        let block = u64::from(self.image.block_bytes());
        let (first, last) = (at / block, at.saturating_add(len_bytes as u64 - 1) / block);
        let middle = (first + (last - first).div_ceil(2)) * block;
        let len = usize::try_from(middle.checked_sub(at)?).ok()?;
        (0 < len && len < len_bytes).then_some(len)
    }
}

/// The error of an operation on an inode, where it names none.
fn of_home(mut error: FsError, home: InodeNr) -> FsError {
    if let FsError::Damaged { inode, .. }
    | FsError::Unreadable { inode, .. }
    | FsError::Io { inode, .. } = &mut error
        && inode.0 == 0
    {
        *inode = home;
    }
    error
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
        OpError::Panicked(what) => FsError::Panicked { what },
        OpError::Stopped => FsError::Ended(error.to_string()),
    }
}
