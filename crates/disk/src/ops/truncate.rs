//! Files are cut and deleted, in steps.

use floe_blockdev::WriteBlocks;
use floe_ext4::map::file;
use floe_ext4::map::walk::has_map;
use floe_ext4::tx::Tx;
use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags, OwnedInode, TimeField};

use super::staged::Op;
use super::{Caller, OpError};
use crate::volume::Volume;

/// Extents that one step frees: each may lie in two groups, so that a step changes some 150 blocks at most.
const EXTENTS_PER_STEP: usize = 32;

/// Whether an operation is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Step {
    /// It is.
    Done,
    /// The inode is an orphan: do the same again, or [`Volume::continue_cut`], in this transaction or a later one, until it is
    /// done.
    More,
}

impl Volume {
    /// Sets the size of a regular file. Shorter: what is behind it is freed, in steps: the size is the new one from the first
    /// on. Longer: a hole.
    ///
    /// # Errors
    /// [`OpError::TooLarge`], [`OpError::NotPermitted`], [`OpError::Unsupported`] for encrypted files, or that it is not a
    /// regular file.
    pub fn truncate(
        &mut self,
        tx: &mut dyn Tx,
        data: &dyn WriteBlocks,
        caller: &Caller,
        inode: InodeNr,
        size_bytes: u64,
    ) -> Result<Step, OpError> {
        self.op(tx, caller, |op| op.truncate(data, inode, size_bytes))
    }

    /// One more step of [`Volume::truncate`], while somebody may have the file open.
    ///
    /// # Errors
    /// It cannot be read or changed.
    pub fn continue_cut(
        &mut self,
        tx: &mut dyn Tx,
        data: &dyn WriteBlocks,
        caller: &Caller,
        inode: InodeNr,
    ) -> Result<Step, OpError> {
        self.op(tx, caller, |op| match op.volume.cutting.contains(&inode) {
            true => {
                let mut inode = op.inode(inode)?;
                op.go_on_cutting(data, &mut inode)
            }
            // Somebody else was faster.
            false => Ok(Step::Done),
        })
    }

    /// One more step of an orphan, which must wait until nobody has it open. One without names is deleted; one with names, which
    /// [`Volume::truncate`] has not finished, is cut to its size.
    ///
    /// # Errors
    /// It cannot be read or changed.
    pub fn finish_orphan(
        &mut self,
        tx: &mut dyn Tx,
        data: &dyn WriteBlocks,
        caller: &Caller,
        inode: InodeNr,
    ) -> Result<Step, OpError> {
        self.op(tx, caller, |op| {
            if !op.volume.orphans.contains(inode) {
                return Ok(Step::Done);
            }
            let mut inode = op.inode(inode)?;
            if inode.base.links_count > 0 {
                return op.go_on_cutting(data, &mut inode);
            }
            // Whoever was cutting it has ended, perhaps by a failure.
            op.volume.cutting.remove(&inode.number);
            op.delete(&mut inode)
        })
    }
}

impl Op<'_> {
    fn truncate(
        &mut self,
        data: &dyn WriteBlocks,
        number: InodeNr,
        size: u64,
    ) -> Result<Step, OpError> {
        let mut inode = self.open_file(data, number)?;
        if inode.flags().contains(InodeFlags::APPEND) {
            return Err(OpError::NotPermitted("the file is append-only"));
        }
        if size > self.volume.most_bytes(&inode) {
            return Err(OpError::TooLarge);
        }
        let before = inode.size_bytes();
        self.touch(&mut inode, &[TimeField::Modification, TimeField::Change]);
        if size > before {
            self.zero_tail(data, &inode, before)?;
            self.grow_to(&mut inode, size)?;
            self.put(&mut inode)?;
            return Ok(Step::Done);
        }
        self.zero_tail(data, &inode, size)?;
        inode.set_size_bytes(size);
        self.cut(&mut inode)
    }

    fn go_on_cutting(
        &mut self,
        data: &dyn WriteBlocks,
        inode: &mut OwnedInode,
    ) -> Result<Step, OpError> {
        let size = inode.size_bytes();
        self.zero_tail(data, inode, size)?;
        self.cut(inode)
    }

    /// Frees blocks behind the end of a file, those at the end first. The inode is written.
    fn cut(&mut self, inode: &mut OwnedInode) -> Result<Step, OpError> {
        let size = u64::from(self.volume.geometry().block_size);
        let keep = inode.size_bytes().div_ceil(size);
        let done = !has_map(&inode.base) || self.free_behind(inode, keep)?;
        match done {
            // Without names it stays an orphan.
            true if inode.base.links_count == 0 => {}
            true => self.remove_orphan(inode)?,
            false => self.add_orphan(inode)?,
        }
        self.put(inode)?;
        if done {
            self.volume.cutting.remove(&inode.number);
            return Ok(Step::Done);
        }
        self.volume.cutting.insert(inode.number);
        Ok(Step::More)
    }

    /// Frees blocks of a file from logical block `keep` on, as many as a step may; returns whether none are left.
    fn free_behind(&mut self, inode: &mut OwnedInode, keep: u64) -> Result<bool, OpError> {
        let per_node = u64::from(self.volume.geometry().block_size / 4);
        let has_tree = inode.flags().contains(InodeFlags::EXTENTS);
        for done in 0..EXTENTS_PER_STEP {
            if done > 0 && self.is_half_full() {
                return Ok(false);
            }
            let last = file::look(&self.volume.fs, inode).last(&mut self.tx)?;
            let end = last.map_or(0, |last| last.logical.0 + last.run.len_blocks);
            let Some(last) = last.filter(|_| end > keep) else { return Ok(true) };
            // Pointers have no lengths: as many as an indirect block has.
            let from = if has_tree { last.logical.0 } else { end.saturating_sub(per_node) };
            self.free_range(inode, from.max(keep)..end)?;
        }
        Ok(false)
    }

    /// Deletes an inode without names; its blocks first.
    pub(super) fn delete(&mut self, inode: &mut OwnedInode) -> Result<Step, OpError> {
        if has_map(&inode.base) && !self.free_behind(inode, 0)? {
            self.put(inode)?;
            return Ok(Step::More);
        }
        if !self.drop_attributes(inode)? {
            self.put(inode)?;
            return Ok(Step::More);
        }
        self.remove_orphan(inode)?;
        let is_directory = inode.file_type() == Some(FileType::Directory);
        inode.set_size_bytes(0);
        // The low half: it only has to differ from 0.
        let seconds = self.caller.time.seconds.max(1);
        inode.base.dtime = (seconds & 0xffff_ffff) as u32;
        self.put(inode)?;
        self.weigh_gone(inode.number);
        let (volume, tx) = (&mut *self.volume, &mut self.tx);
        volume.fs.space.release_inode(tx, inode.number, is_directory)?;
        Ok(Step::Done)
    }
}
