//! Ranges of files: reserved, zeroed, punched out, collapsed and inserted (the modes of fallocate).

use std::ops::Range;

use floe_blockdev::WriteBlocks;
use floe_ext4::map::file;
use floe_ext4::tx::Tx;
use floe_format::ext::extent::Extent;
use floe_format::ext::inode::{InodeFlags, OwnedInode, TimeField};
use floe_format::{InodeNr, LogicalBlock};

use super::staged::Op;
use super::{Caller, OpError, Step};
use crate::volume::Volume;

/// Extents that one step changes.
const EXTENTS_PER_STEP: usize = 32;
/// Extents that may move in one operation: some 60 nodes of a tree in blocks of 4 KiB.
const MOST_MOVED: usize = 10_000;

/// The modes of fallocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeMode {
    /// Holes get blocks that read as zeroes; the file grows to hold the range, unless `keep_size`.
    Reserve {
        /// Blocks may lie behind the end of the file.
        keep_size: bool,
    },
    /// The range reads as zeroes and has blocks; the file grows to hold it, unless `keep_size`.
    Zero {
        /// Blocks may lie behind the end of the file.
        keep_size: bool,
    },
    /// The range reads as zeroes, and its blocks are freed. The size stays.
    Punch,
    /// The range goes, and what is behind it comes closer. Whole blocks (clusters) before the end of the file.
    Collapse,
    /// A hole comes in, and what is behind it moves away. Whole blocks (clusters) before the end of the file.
    Insert,
}

impl Volume {
    /// Changes a range of a regular file. After [`Step::More`] do the same again: what is done already is passed over.
    ///
    /// # Errors
    /// [`OpError::Invalid`] for an empty range or one that is not of whole blocks where it must, [`OpError::TooLarge`],
    /// [`OpError::NoSpace`], [`OpError::NotPermitted`], [`OpError::Unsupported`] for files without extents (but for
    /// punching), encrypted files, and collapsing or inserting before more than 10,000 extents.
    pub fn change_range(
        &mut self,
        tx: &mut dyn Tx,
        data: &dyn WriteBlocks,
        caller: &Caller,
        inode: InodeNr,
        mode: RangeMode,
        bytes: Range<u64>,
    ) -> Result<Step, OpError> {
        self.op(tx, caller, |op| op.change_range(data, inode, mode, bytes))
    }
}

impl Op<'_> {
    fn change_range(
        &mut self,
        data: &dyn WriteBlocks,
        number: InodeNr,
        mode: RangeMode,
        bytes: Range<u64>,
    ) -> Result<Step, OpError> {
        let mut inode = self.open_file(data, number)?;
        if bytes.is_empty() {
            return Err(OpError::Invalid("the range is empty"));
        }
        let flags = inode.flags();
        let reserves = matches!(mode, RangeMode::Reserve { .. });
        if flags.contains(InodeFlags::APPEND) && !reserves {
            return Err(OpError::NotPermitted("the file is append-only"));
        }
        if !flags.contains(InodeFlags::EXTENTS) && mode != RangeMode::Punch {
            return Err(OpError::Unsupported("this for a file without extents"));
        }
        if bytes.end > self.volume.most_bytes(&inode) && mode != RangeMode::Punch {
            return Err(OpError::TooLarge);
        }
        let size = inode.size_bytes();
        let step = match mode {
            RangeMode::Reserve { keep_size } => {
                let step = self.reserve(&mut inode, self.touched(&bytes))?;
                self.grow_after(data, &mut inode, &bytes, keep_size, step)?;
                step
            }
            RangeMode::Zero { keep_size } => {
                let step = self.zero(data, &mut inode, &bytes)?;
                self.grow_after(data, &mut inode, &bytes, keep_size, step)?;
                step
            }
            // Behind the end there may be reserved blocks.
            RangeMode::Punch => self.punch(data, &mut inode, &bytes)?,
            RangeMode::Collapse | RangeMode::Insert => {
                let unit = u64::from(self.volume.geometry().block_size)
                    << self.volume.geometry().cluster_bits;
                let whole = bytes.start.is_multiple_of(unit) && bytes.end.is_multiple_of(unit);
                let len = bytes.end - bytes.start;
                let inside = if mode == RangeMode::Collapse { bytes.end } else { bytes.start };
                if !whole || inside >= size {
                    return Err(OpError::Invalid("not whole blocks before the end of the file"));
                }
                if mode == RangeMode::Collapse {
                    self.collapse(&mut inode, self.touched(&bytes))?;
                    inode.set_size_bytes(size - len);
                } else {
                    if size.saturating_add(len) > self.volume.most_bytes(&inode) {
                        return Err(OpError::TooLarge);
                    }
                    let blocks = self.touched(&bytes);
                    self.shift(&mut inode, blocks.start, |at| at + (blocks.end - blocks.start))?;
                    self.grow_to(&mut inode, size + len)?;
                }
                Step::Done
            }
        };
        self.touch(&mut inode, &[TimeField::Modification, TimeField::Change]);
        self.put(&mut inode)?;
        Ok(step)
    }

    /// Blocks that a range of bytes touches.
    fn touched(&self, bytes: &Range<u64>) -> Range<u64> {
        let size = u64::from(self.volume.geometry().block_size);
        bytes.start / size..bytes.end.div_ceil(size)
    }

    /// Blocks that lie in a range of bytes as a whole; empty where there are none.
    fn whole(&self, bytes: &Range<u64>) -> Range<u64> {
        let size = u64::from(self.volume.geometry().block_size);
        let (start, end) = (bytes.start.div_ceil(size), bytes.end / size);
        start..end.max(start)
    }

    /// Lets the file hold a range that is done.
    fn grow_after(
        &mut self,
        data: &dyn WriteBlocks,
        inode: &mut OwnedInode,
        bytes: &Range<u64>,
        keep_size: bool,
        step: Step,
    ) -> Result<(), OpError> {
        let size = inode.size_bytes();
        if keep_size || step == Step::More || bytes.end <= size {
            return Ok(());
        }
        self.zero_tail(data, inode, size)?;
        self.grow_to(inode, bytes.end)
    }

    /// Gives the holes of a range of blocks unwritten ones, as many as a step may.
    fn reserve(&mut self, inode: &mut OwnedInode, blocks: Range<u64>) -> Result<Step, OpError> {
        let (mut at, mut steps) = (blocks.start, 0);
        while at < blocks.end {
            let next = self.next_extent(inode, LogicalBlock(at))?;
            let stop = match next {
                Some(next) if next.logical.0 <= at => {
                    at = next.logical.0 + next.run.len_blocks;
                    continue;
                }
                next => next.map_or(blocks.end, |next| next.logical.0.min(blocks.end)),
            };
            if steps >= EXTENTS_PER_STEP {
                return Ok(Step::More);
            }
            let run = self.allocate(inode, LogicalBlock(at), stop - at)?;
            self.map_run(inode, LogicalBlock(at), run, true)?;
            at += run.len_blocks;
            steps += 1;
        }
        Ok(Step::Done)
    }

    /// Makes the bytes at both ends of a range that do not fill a block zeroes.
    fn zero_edges(
        &mut self,
        data: &dyn WriteBlocks,
        inode: &OwnedInode,
        bytes: &Range<u64>,
    ) -> Result<(), OpError> {
        let size = u64::from(self.volume.geometry().block_size);
        let (first, last) = (bytes.start / size, (bytes.end - 1) / size);
        if first == last {
            return self.zero_bytes(data, inode, bytes.start, bytes.end);
        }
        self.zero_bytes(data, inode, bytes.start, bytes.start.next_multiple_of(size))?;
        self.zero_bytes(data, inode, bytes.end / size * size, bytes.end)
    }

    fn zero(
        &mut self,
        data: &dyn WriteBlocks,
        inode: &mut OwnedInode,
        bytes: &Range<u64>,
    ) -> Result<Step, OpError> {
        self.zero_edges(data, inode, bytes)?;
        let whole = self.whole(bytes);
        let written: Vec<Extent> =
            self.extents_in(inode, whole)?.into_iter().filter(|one| !one.unwritten).collect();
        for part in written.iter().take(EXTENTS_PER_STEP) {
            self.remap(inode, *part, true)?;
        }
        if written.len() > EXTENTS_PER_STEP {
            return Ok(Step::More);
        }
        self.reserve(inode, self.touched(bytes))
    }

    fn punch(
        &mut self,
        data: &dyn WriteBlocks,
        inode: &mut OwnedInode,
        bytes: &Range<u64>,
    ) -> Result<Step, OpError> {
        self.zero_edges(data, inode, bytes)?;
        let mut whole = self.whole(bytes);
        let size = u64::from(self.volume.geometry().block_size);
        if bytes.end >= inode.size_bytes() {
            // The last block holds zeroes behind the end of the file already.
            whole.end = whole.end.max(bytes.end.div_ceil(size)).max(whole.start);
        }
        let extents = self.extents_in(inode, whole)?;
        for part in extents.iter().take(EXTENTS_PER_STEP) {
            self.free_range(inode, part.logical.0..part.logical.0 + part.run.len_blocks)?;
        }
        Ok(if extents.len() > EXTENTS_PER_STEP { Step::More } else { Step::Done })
    }

    fn collapse(&mut self, inode: &mut OwnedInode, blocks: Range<u64>) -> Result<(), OpError> {
        if self.extents_in(inode, blocks.clone())?.len() > MOST_MOVED {
            return Err(OpError::Unsupported("collapsing a range of so many extents"));
        }
        self.free_range(inode, blocks.clone())?;
        self.shift(inode, blocks.end, |at| at - (blocks.end - blocks.start))
    }

    /// Moves all that is mapped from a block on.
    fn shift(
        &mut self,
        inode: &mut OwnedInode,
        from: u64,
        to: impl Fn(u64) -> u64,
    ) -> Result<(), OpError> {
        let end = u64::from(u32::MAX);
        let extents = self.extents_in(inode, from..end)?;
        if extents.len() > MOST_MOVED {
            return Err(OpError::Unsupported("moving so many extents"));
        }
        file::remove(&mut self.tx, &mut self.volume.fs, inode, from..end)?;
        for part in extents {
            let moved = LogicalBlock(to(part.logical.0));
            self.map_run(inode, moved, part.run, part.unwritten)?;
        }
        Ok(())
    }
}
