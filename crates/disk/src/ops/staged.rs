//! One operation: its changes reach the transaction together, or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use floe_ext4::dir::edit::DirEditor;
use floe_ext4::tx::{Block, ChangedBlocks, Refusal, Staging, Tx, judge_inside};
use floe_format::ext::inode::{OwnedInode, TimeField, Timestamp};
use floe_format::ext::superblock::{OFFSET_BYTES, STATE_VALID, Superblock};
use floe_format::features::{Compat, RoCompat};
use floe_format::{BlockNr, BlockRun, Geometry, InodeNr};

use super::credits::Reach;
use super::quota::Weight;
use super::{Caller, OpError, panic_message};
use crate::space::Pool;
use crate::volume::{Volume, seconds_of, settle_native};

/// Changes over a transaction that are not in it yet.
pub(crate) struct Staged<'s> {
    outer: &'s mut dyn Tx,
    pub(super) changed: ChangedBlocks,
    revoked: Vec<BlockRun>,
    geometry: Geometry,
}

impl<'s> Staged<'s> {
    fn new(outer: &'s mut dyn Tx, geometry: &Geometry) -> Self {
        let (changed, revoked) = (ChangedBlocks::new(), Vec::new());
        Self { outer, changed, revoked, geometry: geometry.clone() }
    }

    /// Puts all changes into the transaction; returns how many blocks they are.
    fn apply(self) -> Result<usize, Refusal> {
        let count = self.changed.len();
        for run in self.revoked {
            self.outer.revoke(run);
        }
        for (block, bytes) in self.changed.into_blocks() {
            self.outer.put(block, bytes)?;
        }
        Ok(count)
    }
}

impl Staging for Staged<'_> {
    fn changed(&mut self) -> &mut ChangedBlocks {
        &mut self.changed
    }

    fn block_bytes(&self) -> usize {
        self.geometry.block_size as usize
    }

    fn read_below(&mut self, block: BlockNr) -> Result<Block, Refusal> {
        self.outer.block(block)
    }

    fn admit(&mut self, block: BlockNr) -> Result<(), Refusal> {
        judge_inside(&self.geometry, block)?;
        // Refused now, an operation fails; at its end, it would stop the volume.
        self.outer.may_change(block)
    }

    fn note_freed(&mut self, run: BlockRun) {
        self.revoked.push(run);
    }

    fn is_logged_below(&mut self, run: BlockRun) -> bool {
        self.outer.is_logged(run)
    }

    fn verifies(&self) -> bool {
        true
    }
}

/// An operation that runs.
pub(crate) struct Op<'o> {
    pub(crate) tx: Staged<'o>,
    pub(crate) volume: &'o mut Volume,
    pub(crate) caller: Caller,
    superblock_before: Option<Box<Superblock>>,
    /// Inodes that the operation changed, as they were weighed before; `None` if they were free.
    pub(super) weights: BTreeMap<InodeNr, Option<Weight>>,
    /// Those of them that are free now.
    pub(super) gone: BTreeSet<InodeNr>,
    pub(super) reach: Reach,
    /// Values of attributes that are orphans from now on.
    pub(super) unused_values: Vec<InodeNr>,
}

impl Volume {
    /// Runs an operation. If it fails, nothing of it is left.
    pub(crate) fn op<T>(
        &mut self,
        tx: &mut dyn Tx,
        caller: &Caller,
        run: impl FnOnce(&mut Op<'_>) -> Result<T, OpError>,
    ) -> Result<T, OpError> {
        self.op_of(Reach::Steps, tx, caller, run)
    }

    /// The same for one that can be divided, or cannot.
    pub(super) fn op_of<T>(
        &mut self,
        reach: Reach,
        tx: &mut dyn Tx,
        caller: &Caller,
        run: impl FnOnce(&mut Op<'_>) -> Result<T, OpError>,
    ) -> Result<T, OpError> {
        if self.stopped {
            return Err(OpError::Stopped);
        }
        let mark = self.fs.space.mark();
        self.fs.space.use_reserve(caller.may_use_reserve);
        self.orphans.begin();
        let mut op = Op {
            tx: Staged::new(tx, self.fs.geometry()),
            volume: self,
            caller: *caller,
            superblock_before: None,
            weights: BTreeMap::new(),
            gone: BTreeSet::new(),
            reach,
            unused_values: Vec::new(),
        };
        // A panic is a bug of ours: nothing of the operation is left, as of one that fails.
        let ran = catch_unwind(AssertUnwindSafe(|| run(&mut op)));
        let ran = ran.unwrap_or_else(|panic| Err(OpError::Panicked(panic_message(&*panic))));
        let done = ran.and_then(|value| {
            op.count_usage()?;
            if op.fits() { Ok(value) } else { Err(OpError::TooLong) }
        });
        let Op { tx: staged, superblock_before, unused_values, .. } = op;
        let error = match done {
            Err(error) => error,
            Ok(value) => {
                let applied = staged.apply();
                self.fs.space.keep();
                self.stopped |= applied.is_err();
                self.last_changed = applied?;
                self.orphans.unused_values.extend(unused_values);
                return Ok(value);
            }
        };
        self.fs.space.roll_back(mark);
        if let Some(superblock) = superblock_before {
            self.fs.superblock = *superblock;
        }
        self.orphans.roll_back();
        Err(error)
    }
}

impl Op<'_> {
    /// Whether more than half of the blocks that the operation may change are changed.
    pub(crate) fn is_half_full(&self) -> bool {
        let changed = &self.tx.changed;
        changed.len() > self.volume.most_changed / 2
            || !self.volume.fs.space.fits_journals(changed.numbers(), true)
    }

    /// Reads an inode.
    pub(crate) fn inode(&mut self, number: InodeNr) -> Result<OwnedInode, OpError> {
        Ok(self.volume.fs.inode(&mut self.tx, number)?)
    }

    /// Writes an inode.
    pub(crate) fn put(&mut self, inode: &mut OwnedInode) -> Result<(), OpError> {
        self.weigh(inode.number)?;
        Ok(self.volume.fs.put_inode(&mut self.tx, inode)?)
    }

    /// Sets times of an inode to now.
    pub(crate) fn touch(&self, inode: &mut OwnedInode, fields: &[TimeField]) {
        for &field in fields {
            inode.set_time(field, self.caller.time);
        }
    }

    /// The names of a directory that is not inline.
    pub(crate) fn names<'e>(
        &'e mut self,
        dir: &'e mut OwnedInode,
    ) -> Result<DirEditor<'e, Pool>, OpError> {
        Ok(DirEditor::open(&mut self.tx, &mut self.volume.fs, dir, InodeNr(0))?)
    }

    /// Changes fields of the primary superblock, on the disk and here. Others may have changed the one on the disk.
    pub(crate) fn edit_superblock(
        &mut self,
        edit: impl Fn(&mut Superblock),
    ) -> Result<(), OpError> {
        let size = u64::from(self.volume.geometry().block_size);
        let bytes = self.tx.block_mut(BlockNr(OFFSET_BYTES / size))?;
        // Below the size of a block.
        let place = bytes.get_mut((OFFSET_BYTES % size) as usize..);
        let place = place.and_then(|rest| rest.first_chunk_mut::<1024>());
        let place = place.ok_or(OpError::Refused(Refusal::Damaged("the superblock")))?;
        let mut stored = Superblock::decode(place);
        edit(&mut stored);
        stored.encode_with_checksum(place);
        let own = &mut self.volume.fs.superblock;
        if self.superblock_before.is_none() {
            self.superblock_before = Some(Box::new(own.clone()));
        }
        edit(own);
        Ok(())
    }

    /// Writes the totals; `clean`: for good.
    pub(crate) fn settle(&mut self, now: Timestamp, clean: bool) -> Result<(), OpError> {
        let (features, room) = (self.volume.geometry().features, self.volume.room());
        // Never more than there are inodes, whose number has 32 bits.
        let free_inodes = u32::try_from(room.free_inodes).unwrap_or(u32::MAX);
        let no_orphans = self.volume.orphans.file_is_empty();
        // A file system that was not clean before was not checked meanwhile: leave it so, as Linux does.
        let was_clean = self.volume.was_clean;
        // A lot with a damaged bitmap was passed over.
        let space = &self.volume.fs.space;
        let reserved = clean
            && space.open_lots().is_empty()
            && space.damaged().is_empty()
            && self.volume.lost_cubes().is_empty();
        self.edit_superblock(|sb| {
            sb.free_blocks_count_lo = (room.free_blocks & 0xffff_ffff) as u32;
            sb.free_blocks_count_hi = (room.free_blocks >> 32) as u32;
            sb.free_inodes_count = free_inodes;
            (sb.wtime, sb.wtime_hi) = seconds_of(now);
            if clean && was_clean {
                sb.state |= STATE_VALID;
            }
            if reserved {
                settle_native(sb);
            }
            if clean && no_orphans && features.compat.contains(Compat::ORPHAN_FILE) {
                sb.feature_ro_compat &= !RoCompat::ORPHAN_PRESENT.bits();
            }
        })
    }
}
