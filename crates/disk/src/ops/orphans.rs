//! Orphans: inodes that lost their last name while they were open, or that are being cut. Whoever opens the file system after a
//! crash finds them in the list (`s_last_orphan`, then `i_dtime`) or in the orphan file, and finishes them. Those of a cube with a
//! journal of its own are in a block behind that journal, so that no other journal has a part of them.

use floe_ext4::map::file;
use floe_ext4::tx::{Refusal, Tx};
use floe_format::ext::inode::OwnedInode;
use floe_format::ext::orphan_file::{MAGIC, OrphanBlock};
use floe_format::features::{Compat, RoCompat};
use floe_format::native::identity::Identity;
use floe_format::{BlockNr, InodeNr, LogicalBlock};

use super::OpError;
use super::staged::Op;
use crate::orphans::{Orphans, Place};

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
        for (cube, journal) in self.volume.fs.space.journals() {
            // A cube whose journal has ended is not changed; its orphans stay where they are.
            match self.read_orphans_of_cube(&mut orphans, cube, journal) {
                Err(OpError::Refused(Refusal::Io { .. })) => {}
                // Nor is one whose list is damaged, until it is repaired.
                Err(OpError::Refused(_)) => orphans.damaged.push(cube),
                other => other?,
            }
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
            self.read_orphan_block(orphans, Place { block, cube: Some(0), seed }, present)?;
        }
        Ok(())
    }

    /// Reads the block behind the journal of a cube.
    pub(crate) fn read_orphans_of_cube(
        &mut self,
        orphans: &mut Orphans,
        cube: u32,
        journal: InodeNr,
    ) -> Result<(), OpError> {
        let inode = self.inode(journal)?;
        let seed = self.volume.fs.seed().map(|seed| inode.seed(seed));
        let blocks = inode.size_bytes() / u64::from(self.volume.geometry().block_size);
        let logical = blocks.checked_sub(1).ok_or(DAMAGED)?;
        let look = file::look(&self.volume.fs, &inode);
        let extent = look.find(&mut self.tx, LogicalBlock(logical))?.ok_or(DAMAGED)?;
        let block = BlockNr(extent.run.start.0 + (logical - extent.logical.0));
        self.read_orphan_block(orphans, Place { block, cube: Some(cube), seed }, true)
    }

    fn read_orphan_block(
        &mut self,
        orphans: &mut Orphans,
        place: Place,
        present: bool,
    ) -> Result<(), OpError> {
        let bytes = self.tx.block(place.block)?;
        let stored = OrphanBlock::new(&bytes).ok_or(DAMAGED)?;
        let fits = |seed| stored.stored_checksum() == stored.compute_checksum(seed, place.block);
        if stored.magic() != MAGIC || !place.seed.is_none_or(fits) {
            return Err(DAMAGED);
        }
        for (slot, orphan) in stored.slots().enumerate().filter(|(_, orphan)| orphan.0 != 0) {
            let list = place.cube.unwrap_or(0);
            if present && self.orphans_of(orphan) != list {
                orphans.strays.push((list, orphan));
            } else if present {
                orphans.slots.insert(orphan, (orphans.blocks.len(), slot));
            }
        }
        orphans.blocks.push(place);
        Ok(())
    }

    /// The cube in whose block an inode is listed as an orphan; 0: in the orphan file.
    fn orphans_of(&self, inode: InodeNr) -> u32 {
        let space = &self.volume.fs.space;
        let cube = space.cube_of(inode);
        if space.journal_of(cube).is_some() { cube } else { 0 }
    }

    /// Notes an inode as an orphan, unless it is one. The inode is the caller's to write.
    pub(crate) fn add_orphan(&mut self, inode: &mut OwnedInode) -> Result<(), OpError> {
        if self.volume.orphans.contains(inode.number) {
            return Ok(());
        }
        let cube = self.orphans_of(inode.number);
        if let Some((at, slot)) = self.free_slot(cube)? {
            self.write_slot(at, slot, inode.number)?;
            self.orphans().slots.insert(inode.number, (at, slot));
            return Ok(());
        }
        if Identity::of(self.volume.superblock()).is_some() {
            // The list begins in the superblock, which is not logged here.
            return Err(OpError::NoSpace);
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

    /// A slot that is free, in the block of a cube or (0) in the orphan file.
    fn free_slot(&mut self, cube: u32) -> Result<Option<(usize, usize)>, OpError> {
        let blocks = self.volume.orphans.blocks.clone();
        for (at, place) in blocks.iter().enumerate().filter(|(_, place)| place.cube == Some(cube)) {
            let bytes = self.tx.block(place.block)?;
            let stored = OrphanBlock::new(&bytes).ok_or(DAMAGED)?;
            if let Some(slot) = stored.slots().position(|orphan| orphan.0 == 0) {
                return Ok(Some((at, slot)));
            }
        }
        Ok(None)
    }

    fn write_slot(&mut self, at: usize, slot: usize, inode: InodeNr) -> Result<(), OpError> {
        let Place { block, seed, .. } =
            self.volume.orphans.blocks.get(at).copied().ok_or(DAMAGED)?;
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
