//! The fence: a file whose unwritten extents are all free blocks in lots of cubes, so that a system that does not know cubes puts
//! nothing there. Made before the file system is handed to such a system, and taken away when Floe writes again.

use floe_ext4::map::file;
use floe_ext4::tx::Tx;
use floe_format::ext::inode::InodeFlags;
use floe_format::native::cube::FENCE_NAME;
use floe_format::native::identity::Identity;
use floe_format::{BlockRun, InodeNr, LogicalBlock};

use super::staged::Op;
use super::{Caller, NewInode, OpError};
use crate::volume::Volume;

/// Runs of blocks that one transaction takes or gives back.
const MOST_RUNS: usize = 64;
/// Largest file with blocks of 4 KiB: logical blocks have 32 bits.
const MOST_BLOCKS: u64 = u32::MAX as u64;

impl Volume {
    /// Puts free blocks of a cube's lot into the fence, which is made if there is none. Blocks of regions, which reservation files
    /// hold, are left out. Returns whether there may be more: then it is to be called again.
    ///
    /// # Errors
    /// The file cannot be made or changed.
    pub fn fence_lot(
        &mut self,
        tx: &mut dyn Tx,
        caller: &Caller,
        lot: u32,
    ) -> Result<bool, OpError> {
        self.op(tx, caller, |op| op.fence_lot(lot))
    }

    /// Gives some blocks of the fence back; without any it is deleted, and its inode, an orphan then, comes back. `None`: there
    /// are more.
    ///
    /// # Errors
    /// The file cannot be changed.
    pub fn take_fence_back(
        &mut self,
        tx: &mut dyn Tx,
        caller: &Caller,
    ) -> Result<Option<InodeNr>, OpError> {
        self.op(tx, caller, |op| op.take_fence_back())
    }

    /// Whether there is a fence.
    pub fn has_fence(&self) -> bool {
        Identity::of(self.superblock()).is_some_and(|own| own.fence_inode > 0)
    }
}

impl Op<'_> {
    fn fence_inode(&self) -> InodeNr {
        InodeNr(Identity::of(self.volume.superblock()).map_or(0, |own| own.fence_inode))
    }

    fn name_fence(&mut self, inode: u32) -> Result<(), OpError> {
        self.edit_superblock(|superblock| {
            if let Some(own) = Identity::of(superblock) {
                Identity { fence_inode: inode, ..own }.put(superblock);
            }
        })
    }

    fn fence_lot(&mut self, lot: u32) -> Result<bool, OpError> {
        let space = &mut self.volume.fs.space;
        let runs = space.take_free(&mut self.tx, lot, MOST_RUNS)?;
        if runs.is_empty() {
            return Ok(false);
        }
        let mut fence = match self.fence_inode() {
            InodeNr(0) => {
                let mut home = self.directory(self.cubes_home()?)?;
                let new = NewInode::regular(0o600);
                let mut fence = self.new_inode(&home, Some(FENCE_NAME), &new, None)?;
                fence.set_flags(InodeFlags::IMMUTABLE, true);
                self.put(&mut fence)?;
                self.add_name(&mut home, FENCE_NAME, &fence)?;
                self.name_fence(fence.number.0)?;
                fence
            }
            known => self.inode(known)?,
        };
        let block_bytes = u64::from(self.volume.geometry().block_size);
        let mut at = fence.size_bytes() / block_bytes;
        for run in &runs {
            if at + run.len_blocks > MOST_BLOCKS {
                return Err(OpError::TooLarge);
            }
            self.map_run(&mut fence, LogicalBlock(at), *run, true)?;
            file::count(&self.volume.fs, &mut fence, run.len_blocks.cast_signed());
            at += run.len_blocks;
        }
        fence.set_size_bytes(at * block_bytes);
        self.put(&mut fence)?;
        Ok(runs.len() == MOST_RUNS)
    }

    fn take_fence_back(&mut self) -> Result<Option<InodeNr>, OpError> {
        let mut fence = self.inode(self.fence_inode())?;
        let (mut runs, mut at): (Vec<BlockRun>, u64) = (Vec::new(), 0);
        while runs.len() < MOST_RUNS {
            let Some(extent) = self.next_extent(&fence, LogicalBlock(at))? else { break };
            at = extent.logical.0 + extent.run.len_blocks;
            runs.push(extent.run);
        }
        if runs.is_empty() {
            self.name_fence(0)?;
            let mut home = self.directory(self.cubes_home()?)?;
            self.take_name(&mut home, FENCE_NAME)?;
            fence.base.links_count = 0;
            fence.set_size_bytes(0);
            fence.set_flags(InodeFlags::IMMUTABLE, false);
            self.add_orphan(&mut fence)?;
            self.put(&mut fence)?;
            return Ok(Some(fence.number));
        }
        file::remove(&mut self.tx, &mut self.volume.fs, &mut fence, 0..at)?;
        for run in runs {
            // They never held anything.
            self.volume.fs.space.release_data(&mut self.tx, run)?;
            file::count(&self.volume.fs, &mut fence, -run.len_blocks.cast_signed());
        }
        self.put(&mut fence)?;
        Ok(None)
    }
}
