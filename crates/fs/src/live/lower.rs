//! The disk below the file system in memory: many changes in one transaction.

use std::panic::{AssertUnwindSafe, catch_unwind};

use floe_blockdev::WriteBlocks;
use floe_disk::ops::{Caller, DataWrite, NewKind, OpError, Plans, Reserved, Step, WrittenAhead};
use floe_disk::volume::Volume;
use floe_ext4::tx::Tx;
use floe_format::InodeNr;
use floe_format::ext::quota::QuotaKind;
use floe_format::features::{Incompat, RoCompat};
use floe_sync::Arc;

use super::{Live, caller_of, of_op};
use crate::FsError;
use crate::cubes::Gates;
use crate::directory::NameHash;
use crate::disk::{ChangeError, Disk};
use crate::memory::{Above, Carried, Deed, Facts, Lower, Quotas};
use crate::op::{Applied, Op, OpKind};
use crate::store::{Space, Store};

/// Bytes of content that go through the log with the changes that map it.
const MOST_LOGGED_BYTES: usize = 128 << 10;

/// The write that a deed is: who asks for it, and the inode, byte and content.
fn write_of<'d>(deed: &'d Deed<'_>) -> Option<(&'d Op<'d>, InodeNr, u64, &'d [u8])> {
    let Deed::Apply(op) = deed else { return None };
    let OpKind::Write { inode, offset_bytes, bytes } = op.kind else { return None };
    Some((op, inode, offset_bytes, bytes))
}

/// Blocks of a write that are mapped in one transaction: a longer write is several.
pub(super) const BLOCKS_PER_WRITE: u64 = 256;

impl<D: WriteBlocks> Lower for Live<'_, '_, D> {
    fn facts(&self) -> Facts {
        let files = self.image.files();
        let (superblock, geometry) = (files.superblock(), files.geometry());
        let features = geometry.features;
        let work = self.work();
        let quotas = match features.ro_compat.contains(RoCompat::QUOTA) {
            true if work.volume.enforces_limits() => Quotas::Enforced,
            true => Quotas::Counted,
            false => Quotas::None,
        };
        let immediate = match self.disk {
            Disk::Direct { .. } => Some("it has no journal"),
            // Too late to refuse a change that does not fit.
            Disk::Journaled(_)
                if work.volume.most_of_one_change() > work.volume.most_changed_blocks() =>
            {
                Some("its journal is too short")
            }
            Disk::Journaled(_) => None,
        };
        Facts {
            hash: NameHash::of(superblock),
            extents: features.incompat.contains(Incompat::EXTENTS),
            has_crtime: geometry.inode_size > 128,
            cluster_blocks: geometry.cluster_blocks,
            inodes_per_group: geometry.inodes_per_group,
            quotas,
            immediate,
        }
    }

    fn quota_left(&self, kind: QuotaKind, id: u32) -> Result<(u64, u64), FsError> {
        self.run(InodeNr::ROOT, |volume, tx| volume.quota_left(tx, kind, id))
    }

    fn reserve_inodes(
        &self,
        directory: InodeNr,
        is_directory: bool,
        most: usize,
    ) -> Result<Vec<Reserved>, FsError> {
        self.run(directory, |volume, tx| volume.reserve_inodes(tx, directory, is_directory, most))
    }

    fn give_back(&self, inode: InodeNr) {
        self.work().volume.give_back(inode);
    }

    fn room_in(&self, cube: u32) -> (Space, u64) {
        // Free blocks of regions are not for content.
        let regions = self.regions.get_or_init(|| self.work().volume.region_blocks(self.disk));
        let work = self.work();
        let (room, kept_blocks) = work.volume.room_in(cube, regions);
        drop(work);
        let kept = if cube == 0 { self.image.kept_blocks() } else { 0 };
        let available_blocks = room.available_blocks.saturating_sub(kept);
        let (free_blocks, free_inodes) = (room.free_blocks, room.free_inodes);
        (Space { free_blocks, available_blocks, free_inodes, ..self.space }, kept_blocks)
    }

    fn let_grow(&self, may: bool) {
        self.work().volume.let_grow(may);
    }

    fn shared_gates(&self) -> Option<Arc<Gates>> {
        Some(Arc::clone(&self.gates))
    }

    fn tend_cubes_below(&self, above: &Above<'_>) -> Vec<u32> {
        self.run_jobs(above)
    }

    fn sync_inode_for(&self, inode: InodeNr, threads: usize) -> Result<(), FsError> {
        self.sync_for(inode, threads)
    }

    fn log_of(&self, inode: InodeNr) -> usize {
        self.log_and_block(inode).map_or(0, |(log, _)| log)
    }

    fn write_ahead(&self, deeds: &[Deed<'_>]) -> Vec<DataWrite> {
        let writes = self.plan_ahead(deeds);
        let write = |(at, bytes): &DataWrite| self.disk.write_at(*at, bytes).is_ok();
        let is_written =
            |one: &DataWrite| catch_unwind(AssertUnwindSafe(|| write(one))).unwrap_or(false);
        // Content whose write fails, or meets a fault of Floe, is written again with the change, which tells whose it is.
        writes.into_iter().take_while(is_written).collect()
    }

    fn make(&self, deeds: &[Deed<'_>], content: Carried) -> (usize, Result<(), FsError>) {
        let made = match self.make_some(deeds, content) {
            Ok(made) => made,
            Err(error) => return (0, Err(error)),
        };
        let Some(first) = deeds.first().filter(|_| made == 0) else { return (made, Ok(())) };
        match self.make_one(first) {
            Ok(()) => (1, Ok(())),
            Err(error) => (0, Err(error)),
        }
    }
}

impl<D: WriteBlocks> Live<'_, '_, D> {
    /// Keeps to what goes with so many bytes of memory for files and changes: 1/16 of that for maps of files, and up to 1/4 more in each
    /// journal, for blocks that are not home.
    #[must_use]
    pub fn within(self, memory_bytes: u64) -> Self {
        if let Disk::Journaled(journal) = self.disk {
            journal.keep_within(memory_bytes / 8);
        }
        Self { image: self.image.within(memory_bytes / 16), ..self }
    }

    /// Where content of the writes that come first would go, in a cube: to blocks that their files have, and at the end to free
    /// ones, which nobody else takes. Those of the root cube may become another's.
    fn plan_ahead(&self, deeds: &[Deed<'_>]) -> Vec<DataWrite> {
        let home = deeds.first().filter(|deed| write_of(deed).is_some()).map(Deed::home);
        let cube = home.map_or(0, |home| self.gates.of_inode(home));
        let is_journaled = matches!(self.disk, Disk::Journaled(_));
        if cube == 0 || !is_journaled || self.gates.has_failed(cube) {
            return Vec::new();
        }
        let mut work = self.work();
        if work.ended.is_some() || self.faults.judge().is_err() {
            return Vec::new();
        }
        let (volume, mut plans) = (&mut work.volume, Plans::default());
        let block_bytes = volume.geometry().block_size;
        // Refused in the end, as each plan: nothing is changed. An error is met again by the change.
        let plan = || {
            let _ = self.disk.change(|tx| {
                for (op, inode, offset_bytes, bytes) in deeds.iter().map_while(write_of) {
                    let caller = caller_of(op);
                    let place = (inode, offset_bytes);
                    let plan = volume.plan_write(tx, self.disk, &caller, place, bytes);
                    if !plan.is_some_and(|plan| plans.add(plan, block_bytes)) {
                        break;
                    }
                }
                Err::<(), OpError>(OpError::Stopped)
            });
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(plan)) {
            self.revive(&mut work, &*panic);
            return Vec::new();
        }
        let planned = plans.into_writes();
        work.volume.hold_free_blocks(cube, !planned.is_empty());
        planned
    }

    /// Makes changes in one transaction of the journal, up to the first that needs more than is left of it or that is
    /// refused. Returns how many were made.
    fn make_some(&self, deeds: &[Deed<'_>], content: Carried) -> Result<usize, FsError> {
        if let Disk::Direct { .. } = self.disk {
            return Ok(0);
        }
        let mut work = self.work();
        let cube = deeds.first().map_or(0, |deed| self.gates.of_inode(deed.home()));
        // Nobody discards anything before the change is made.
        work.volume.hold_free_blocks(cube, false);
        let data = WrittenAhead::new(self.disk, content.ahead);
        if let Some(why) = &work.ended {
            return Err(FsError::Ended(why.clone()));
        }
        self.faults.judge()?;
        let volume = &mut work.volume;
        volume.log_content(content.is_awaited && self.logs_content(deeds));
        let usual_blocks = volume.most_changed_blocks();
        // All are changes of one cube; together they may take no more of its own journal than one may.
        let most_blocks = usual_blocks.min(volume.share_of_journal(cube));
        let many = || {
            self.disk.change(|tx| {
                let (mut made, mut left_blocks) = (0, most_blocks);
                for deed in deeds {
                    volume.limit_changes(left_blocks);
                    let made_now = self.attempt(volume, tx, &data, deed);
                    let Ok(Some(blocks)) = made_now else { break };
                    made += 1;
                    left_blocks = left_blocks.saturating_sub(blocks);
                }
                volume.limit_changes(usual_blocks);
                Ok(made)
            })
        };
        let many = catch_unwind(AssertUnwindSafe(many));
        work.volume.log_content(false);
        let many = match many {
            Ok(many) => many,
            Err(panic) => {
                // The first one is made alone then, so that a fault of it is that of its cube.
                self.revive(&mut work, &*panic);
                work.volume.limit_changes(usual_blocks);
                return Ok(0);
            }
        };
        match many {
            Ok((made, _)) => {
                let values = work.volume.unused_values();
                drop(work);
                self.finish_values(values);
                self.meet_damaged_groups();
                Ok(made)
            }
            Err(ChangeError::Refused(error)) => Err(of_op(error)),
            Err(ChangeError::Apart) => {
                self.read_anew(&mut work, "the journal of a cube ended");
                Ok(0)
            }
            Err(ChangeError::Ended(why)) => Err(self.end_work(&mut work, &why)),
        }
    }

    /// Whether the content of these changes goes through the log: where it is little, that saves a flush of the device.
    fn logs_content(&self, deeds: &[Deed<'_>]) -> bool {
        let Disk::Journaled(journal) = self.disk else { return false };
        let bytes: usize = deeds.iter().map(Deed::written_bytes).sum();
        journal.has_one_barrier() && bytes <= MOST_LOGGED_BYTES
    }

    /// Makes a change in a transaction with others, and returns how many blocks it changes; `None` if it needs transactions of
    /// its own.
    fn attempt(
        &self,
        volume: &mut Volume,
        tx: &mut dyn Tx,
        data: &dyn WriteBlocks,
        deed: &Deed<'_>,
    ) -> Result<Option<usize>, OpError> {
        match deed {
            Deed::Create(op, reserved) => {
                let OpKind::Create { place, new } = op.kind else { return Ok(None) };
                if !volume.is_table_open(reserved.inode)? {
                    return Ok(None);
                }
                self.image.forget(reserved.inode);
                let (caller, directory, name) = (caller_of(op), place.directory, place.name);
                volume.create_reserved(tx, &caller, directory, name, &new, *reserved)?;
            }
            Deed::Erase(op, inode) => {
                self.image.forget(*inode);
                let may_delete =
                    !self.is_read_only() && !self.gates.has_failed(self.gates.of_inode(*inode));
                let erased =
                    may_delete && volume.erasing(|volume| self.in_one(volume, tx, op)).is_ok();
                // Whatever keeps it from being deleted is met when it is released.
                if !erased {
                    self.in_one(volume, tx, op)?;
                }
            }
            // It stays an orphan, which the next mount deletes.
            Deed::Release(_) if self.is_read_only() => return Ok(Some(0)),
            Deed::Release(inode) if self.gates.has_failed(self.gates.of_inode(*inode)) => {
                return Ok(Some(0));
            }
            Deed::Release(inode) => {
                self.image.forget(*inode);
                let caller = Caller::system(crate::now());
                let step = volume.finish_orphan(tx, self.disk, &caller, *inode)?;
                return Ok((step == Step::Done).then(|| volume.last_changed_blocks()));
            }
            Deed::Apply(op) => match op.kind {
                OpKind::Change { inode, size_bytes: None, change } => {
                    volume.change(tx, &caller_of(op), inode, &change)?;
                }
                OpKind::Write { inode, offset_bytes, bytes } => {
                    let most_bytes = BLOCKS_PER_WRITE * u64::from(self.block_bytes());
                    if bytes.len() as u64 > most_bytes {
                        return Ok(None);
                    }
                    self.image.forget(inode);
                    let caller = caller_of(op);
                    volume.write(tx, data, &caller, inode, offset_bytes, bytes)?;
                }
                OpKind::Change { .. } | OpKind::Range { .. } => return Ok(None),
                _ => {
                    let applied = self.in_one(volume, tx, op)?;
                    applied.created.into_iter().for_each(|inode| self.image.forget(inode));
                }
            },
        }
        Ok(Some(volume.last_changed_blocks()))
    }

    /// Makes a change of names or attributes at once.
    pub(super) fn apply_in_one(&self, op: &Op<'_>) -> Result<Applied, FsError> {
        let home = op.kind.home();
        let created = match &op.kind {
            OpKind::Create { place, new } => Some((place.directory, new.kind)),
            OpKind::CreateUnnamed { directory, new } => Some((*directory, new.kind)),
            // Its value may get an inode of its own.
            OpKind::SetAttribute { inode, .. } => Some((*inode, NewKind::Regular)),
            _ => None,
        };
        let made = self.run(home, |volume, tx| match self.in_one(volume, tx, op) {
            Err(OpError::TooLong) if created.is_some() => Ok(None),
            done => done.map(Some),
        })?;
        let (None, Some((directory, kind))) = (&made, created) else {
            return made.ok_or(FsError::Invalid);
        };
        // It gets the number behind all that are promised, and so the table is opened for it first.
        let is_directory = kind == NewKind::Directory;
        for promised in self.reserve_inodes(directory, is_directory, 1)? {
            let opened = self.open_table(directory, promised.inode);
            self.give_back(promised.inode);
            opened?;
        }
        self.run(home, |volume, tx| self.in_one(volume, tx, op))
    }

    /// Lets the creation of a promised inode change no block of the table of inodes but its own.
    pub(super) fn open_table(&self, directory: InodeNr, inode: InodeNr) -> Result<(), FsError> {
        self.steps(directory, |volume, tx| match volume.is_table_open(inode)? {
            true => Ok(Step::Done),
            false => volume.open_table(tx, inode),
        })
    }

    /// Makes a change in as many transactions as it takes.
    fn make_one(&self, deed: &Deed<'_>) -> Result<(), FsError> {
        match deed {
            Deed::Apply(op) | Deed::Erase(op, _) => self.apply(op).map(drop),
            Deed::Release(inode) => self.release(*inode),
            Deed::Create(op, reserved) => {
                let OpKind::Create { place, new } = op.kind else { return Err(FsError::Invalid) };
                let (caller, directory, name) = (caller_of(op), place.directory, place.name);
                self.image.forget(reserved.inode);
                self.open_table(directory, reserved.inode)?;
                self.run(directory, |volume, tx| {
                    volume.create_reserved(tx, &caller, directory, name, &new, *reserved)
                })
            }
        }
    }
}
