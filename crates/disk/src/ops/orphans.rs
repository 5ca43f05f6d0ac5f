//! Orphans: inodes that lost their last name while they were open, or that are being cut. Whoever opens the file system after a
//! crash finds them in the list (`s_last_orphan`, then `i_dtime`) or in the orphan file, and finishes them.

use floe_ext4::map::file;
use floe_ext4::tx::{Refusal, Tx};
use floe_format::ext::inode::OwnedInode;
use floe_format::ext::orphan_file::{MAGIC, OrphanBlock, TAIL_SIZE};
use floe_format::features::{Compat, RoCompat};
use floe_format::{BlockNr, InodeNr, LogicalBlock};

use super::OpError;
use super::staged::Op;
use crate::orphans::Orphans;

const DAMAGED: OpError = OpError::Refused(Refusal::Damaged("the list of orphans"));

impl Op<'_> {
    /// Reads the list and the file.
    pub(crate) fn read_orphans(&mut self) -> Result<(), OpError> {
        let mut orphans = Orphans::default();
        let geo = self.volume.geometry().clone();
        let mut next = InodeNr(self.volume.superblock().last_orphan);
        while next.0 != 0 {
            if geo.is_reserved(next) || orphans.list.contains(&next) {
                return Err(DAMAGED);
            }
            orphans.list.push(next);
            next = InodeNr(self.inode(next)?.base.dtime);
        }
        orphans.list.reverse();
        if geo.features.compat.contains(Compat::ORPHAN_FILE) {
            self.read_orphan_file(&mut orphans)?;
        }
        *self.orphans() = orphans;
        Ok(())
    }

    fn read_orphan_file(&mut self, orphans: &mut Orphans) -> Result<(), OpError> {
        let geo = self.volume.geometry().clone();
        let number = InodeNr(self.volume.superblock().orphan_file_inum);
        let inode = self.inode(number)?;
        let seed = self.volume.fs.seed().map(|seed| inode.seed(seed));
        let present = geo.features.ro_compat.contains(RoCompat::ORPHAN_PRESENT);
        for logical in 0..inode.size_bytes() / u64::from(geo.block_size) {
            let look = file::look(&self.volume.fs, &inode);
            let extent = look.find(&mut self.tx, LogicalBlock(logical))?.ok_or(DAMAGED)?;
            let block = BlockNr(extent.run.start.0 + (logical - extent.logical.0));
            let bytes = self.tx.block(block)?;
            let stored = OrphanBlock::new(&bytes).ok_or(DAMAGED)?;
            let fits = |seed| stored.stored_checksum() == stored.compute_checksum(seed, block);
            if stored.magic() != MAGIC || !seed.is_none_or(fits) {
                return Err(DAMAGED);
            }
            for (slot, orphan) in stored.slots().enumerate().filter(|(_, orphan)| orphan.0 != 0) {
                if present {
                    orphans.slots.insert(orphan, (orphans.file.len(), slot));
                }
            }
            orphans.file.push(block);
        }
        orphans.file_seed = seed;
        Ok(())
    }

    /// Notes an inode as an orphan, unless it is one. The inode is the caller's to write.
    pub(crate) fn add_orphan(&mut self, inode: &mut OwnedInode) -> Result<(), OpError> {
        if self.volume.orphans.contains(inode.number) {
            return Ok(());
        }
        if let Some((at, slot)) = self.free_slot()? {
            self.write_slot(at, slot, inode.number)?;
            self.orphans().slots.insert(inode.number, (at, slot));
            return Ok(());
        }
        let head = self.volume.orphans.list.last().copied().unwrap_or_default();
        inode.base.dtime = head.0;
        let number = inode.number;
        self.edit_superblock(|sb| sb.last_orphan = number.0)?;
        self.orphans().list.push(number);
        Ok(())
    }

    /// Forgets that an inode is an orphan. The inode is the caller's to write.
    pub(crate) fn remove_orphan(&mut self, inode: &mut OwnedInode) -> Result<(), OpError> {
        let number = inode.number;
        if let Some(&(at, slot)) = self.volume.orphans.slots.get(&number) {
            self.write_slot(at, slot, InodeNr(0))?;
            self.orphans().slots.remove(&number);
            return Ok(());
        }
        let list = &self.volume.orphans.list;
        let Some(at) = list.iter().position(|&one| one == number) else { return Ok(()) };
        // The head is last: the one behind in the list stands before.
        let next = at.checked_sub(1).and_then(|at| list.get(at)).copied().unwrap_or_default();
        match list.get(at + 1).copied() {
            None => self.edit_superblock(|sb| sb.last_orphan = next.0)?,
            Some(before) => {
                let mut before = self.inode(before)?;
                before.base.dtime = next.0;
                self.put(&mut before)?;
            }
        }
        inode.base.dtime = 0;
        self.orphans().list.remove(at);
        Ok(())
    }

    /// A slot of the orphan file that is free.
    fn free_slot(&mut self) -> Result<Option<(usize, usize)>, OpError> {
        let blocks = self.volume.orphans.file.clone();
        let slots = (self.volume.geometry().block_size as usize - TAIL_SIZE) / 4;
        if self.volume.orphans.slots.len() >= slots * blocks.len() {
            return Ok(None);
        }
        for (at, &block) in blocks.iter().enumerate() {
            let bytes = self.tx.block(block)?;
            let stored = OrphanBlock::new(&bytes).ok_or(DAMAGED)?;
            if let Some(slot) = stored.slots().position(|orphan| orphan.0 == 0) {
                return Ok(Some((at, slot)));
            }
        }
        Ok(None)
    }

    fn write_slot(&mut self, at: usize, slot: usize, inode: InodeNr) -> Result<(), OpError> {
        let seed = self.volume.orphans.file_seed;
        let block = self.volume.orphans.file.get(at).copied().ok_or(DAMAGED)?;
        let bytes = self.tx.block_mut(block)?;
        let place = bytes.get_mut(slot * 4..slot * 4 + 4).ok_or(DAMAGED)?;
        place.copy_from_slice(&inode.0.to_le_bytes());
        let checksum = seed.and_then(|seed| {
            OrphanBlock::new(bytes).map(|stored| stored.compute_checksum(seed, block))
        });
        let end = bytes.len();
        if let (Some(checksum), Some(place)) = (checksum, bytes.get_mut(end - 4..)) {
            place.copy_from_slice(&checksum.to_le_bytes());
        }
        Ok(())
    }
}
