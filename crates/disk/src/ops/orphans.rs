//! Orphans: inodes that lost their last name while they were open, or that are being cut. Whoever opens the file system after a
//! crash finds them in the list (`s_last_orphan`, then `i_dtime`) or in the orphan file, and finishes them. Those of a cube with a
//! journal of its own are in a block behind that journal, so that no other journal has a part of them: in slots as in the orphan
//! file, and where these are full in a list that begins in the last slot and goes on in `i_dtime`, so that there may be as many as
//! the cube has inodes. The orphan file of a native file system grows, because its superblock is not logged.

use floe_ext4::journal::follow_chain;
use floe_ext4::map::file;
use floe_ext4::tx::{Refusal, Tx};
use floe_format::ext::inode::OwnedInode;
use floe_format::ext::orphan_file::{MAGIC, OrphanBlock, encode_clean};
use floe_format::features::{Compat, RoCompat};
use floe_format::native::identity::Identity;
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

use super::OpError;
use super::staged::Op;
use crate::orphans::{Link, Orphans, Place};

const DAMAGED: OpError = OpError::Refused(Refusal::Damaged("the list of orphans"));
/// Bytes of the longest orphan file: Linux takes no longer one.
const MOST_FILE_BYTES: u64 = 32 << 20;

impl Op<'_> {
    /// Reads the list and the file.
    pub(crate) fn read_orphans(&mut self) -> Result<(), OpError> {
        let mut orphans = Orphans::default();
        let geo = self.volume.geometry().clone();
        let head = InodeNr(self.volume.superblock().last_orphan);
        let list = self.follow(head, &[], None)?;
        orphans.set_list(0, &list);
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
        self.volume.orphans.replace(orphans);
        Ok(())
    }

    /// The orphans of a list that goes through inodes, of one cube if that is given.
    fn follow(
        &mut self,
        head: InodeNr,
        others: &[InodeNr],
        cube: Option<u32>,
    ) -> Result<Vec<InodeNr>, OpError> {
        let geo = self.volume.geometry().clone();
        let next = &mut |inode| {
            let is_own = cube.is_none_or(|cube| self.orphans_of(inode) == cube);
            if is_own { Ok(self.inode(inode)?.base.dtime) } else { Err(DAMAGED) }
        };
        follow_chain(head, others, &|inode| !geo.is_reserved(inode), next)?.ok_or(DAMAGED)
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
            self.read_orphan_block(orphans, (block, 0, seed), present)?;
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
        self.read_orphan_block(orphans, (block, cube, seed), true)
    }

    /// Reads a block with slots; that of a cube also begins a list.
    fn read_orphan_block(
        &mut self,
        orphans: &mut Orphans,
        (block, cube, seed): (BlockNr, u32, Option<u32>),
        present: bool,
    ) -> Result<(), OpError> {
        let bytes = self.tx.block(block)?;
        let stored = OrphanBlock::new(&bytes).ok_or(DAMAGED)?;
        let fits = |seed| stored.stored_checksum() == stored.compute_checksum(seed, block);
        if stored.magic() != MAGIC || !seed.is_none_or(fits) {
            return Err(DAMAGED);
        }
        let used = |(_, orphan): &(usize, InodeNr)| present && orphan.0 != 0;
        let mut slots: Vec<(usize, InodeNr)> = stored.slots().enumerate().filter(used).collect();
        let (plain, mut list) = (plain_slots(&stored, cube), Vec::new());
        if let Some(head) = slots.pop_if(|(slot, _)| *slot >= plain) {
            if self.orphans_of(head.1) == cube {
                let others: Vec<InodeNr> = slots.iter().map(|(_, orphan)| *orphan).collect();
                list = self.follow(head.1, &others, Some(cube))?;
            } else {
                slots.push(head);
            }
        }
        let at = orphans.add_block(Place { block, cube, seed, free: plain });
        for (slot, orphan) in slots {
            match self.orphans_of(orphan) == cube {
                true => orphans.set_slot(orphan, Some((at, slot))),
                false => orphans.strays.push((cube, orphan)),
            }
        }
        if !list.is_empty() {
            orphans.set_list(cube, &list);
        }
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
        let number = inode.number;
        if self.volume.orphans.contains(number) {
            return Ok(());
        }
        let cube = self.orphans_of(number);
        let is_logged = cube > 0 || Identity::of(self.volume.superblock()).is_none();
        let slot = match self.free_slot(cube)? {
            // The list begins in the superblock, which is not logged here.
            None if !is_logged => Some((self.grow_orphan_file()?, 0)),
            slot => slot,
        };
        if let Some((at, slot)) = slot {
            self.write_slot(at, slot, number)?;
            self.volume.orphans.set_slot(number, Some((at, slot)));
            return Ok(());
        }
        let next = self.volume.orphans.head(cube);
        inode.base.dtime = next.0;
        self.write_head(cube, number)?;
        let orphans = &mut self.volume.orphans;
        if let Some(link) = orphans.link(next) {
            orphans.set_link(next, Some(Link { before: number, ..link }));
        }
        orphans.set_link(number, Some(Link { list: cube, before: InodeNr(0), next }));
        Ok(())
    }

    /// Forgets that an inode is an orphan. The inode is the caller's to write.
    pub(crate) fn remove_orphan(&mut self, inode: &mut OwnedInode) -> Result<(), OpError> {
        let number = inode.number;
        if let Some((at, slot)) = self.volume.orphans.slot(number) {
            self.write_slot(at, slot, InodeNr(0))?;
            self.volume.orphans.set_slot(number, None);
            return Ok(());
        }
        let Some(Link { list, before, next }) = self.volume.orphans.link(number) else {
            return Ok(());
        };
        match before {
            InodeNr(0) => self.write_head(list, next)?,
            before => {
                let mut before = self.inode(before)?;
                before.base.dtime = next.0;
                self.put(&mut before)?;
            }
        }
        inode.base.dtime = 0;
        let orphans = &mut self.volume.orphans;
        orphans.set_link(number, None);
        if let Some(link) = orphans.link(before) {
            orphans.set_link(before, Some(Link { next, ..link }));
        }
        if let Some(link) = orphans.link(next) {
            orphans.set_link(next, Some(Link { before, ..link }));
        }
        Ok(())
    }

    /// Lets the orphan file list the orphans of a cube that has no journal any more.
    pub(super) fn move_orphans_of(&mut self, cube: u32) -> Result<(), OpError> {
        for orphan in self.volume.orphans.of_cube(cube) {
            let mut inode = self.inode(orphan)?;
            self.remove_orphan(&mut inode)?;
            self.add_orphan(&mut inode)?;
            self.put(&mut inode)?;
        }
        Ok(())
    }

    /// Lets a list begin with another inode; 0: it is empty.
    fn write_head(&mut self, list: u32, head: InodeNr) -> Result<(), OpError> {
        if list == 0 {
            self.edit_superblock(|sb| sb.last_orphan = head.0)?;
        } else {
            let place = self.volume.orphans.blocks_of(list).next();
            let (at, block) = place.map(|(at, place)| (at, place.block)).ok_or(DAMAGED)?;
            let bytes = self.tx.block(block)?;
            let stored = OrphanBlock::new(&bytes).ok_or(DAMAGED)?;
            self.write_slot(at, plain_slots(&stored, list), head)?;
        }
        self.volume.orphans.set_head(list, head);
        Ok(())
    }

    /// A slot that is free, in the block of a cube or (0) in the orphan file.
    fn free_slot(&mut self, cube: u32) -> Result<Option<(usize, usize)>, OpError> {
        let mut places = self.volume.orphans.blocks_of(cube).filter(|(_, place)| place.free > 0);
        let Some((at, place)) = places.next() else { return Ok(None) };
        let bytes = self.tx.block(place.block)?;
        let stored = OrphanBlock::new(&bytes).ok_or(DAMAGED)?;
        let mut slots = stored.slots().take(plain_slots(&stored, cube));
        let slot = slots.position(|orphan| orphan.0 == 0);
        Ok(Some((at, slot.ok_or(DAMAGED)?)))
    }

    /// Adds a block to the orphan file; returns its number.
    fn grow_orphan_file(&mut self) -> Result<usize, OpError> {
        let size = u64::from(self.volume.geometry().block_size);
        let number = InodeNr(self.volume.superblock().orphan_file_inum);
        let mut file = self.inode(number)?;
        let logical = LogicalBlock(file.size_bytes() / size);
        if number.0 == 0 || file.size_bytes() + size > MOST_FILE_BYTES {
            return Err(OpError::NoSpace);
        }
        // Room that is kept for root: nobody can do without a place for what was removed.
        self.volume.fs.space.use_reserve(true);
        let run = self.allocate(&mut file, logical, 1);
        self.volume.fs.space.use_reserve(self.caller.may_use_reserve);
        let block = run?.start;
        self.map_run(&mut file, logical, BlockRun::new(block, 1), false)?;
        file.set_size_bytes((logical.0 + 1) * size);
        self.put(&mut file)?;
        let seed = self.volume.fs.seed().map(|seed| file.seed(seed));
        let bytes = self.tx.zeroed(block)?;
        encode_clean(bytes, seed, block);
        let stored = OrphanBlock::new(bytes).ok_or(DAMAGED)?;
        let free = plain_slots(&stored, 0);
        Ok(self.volume.orphans.add_block(Place { block, cube: 0, seed, free }))
    }

    fn write_slot(&mut self, at: usize, slot: usize, inode: InodeNr) -> Result<(), OpError> {
        let Place { block, seed, .. } = self.volume.orphans.place(at).ok_or(DAMAGED)?;
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

/// Slots of a block that name one orphan each; in the block of a cube, one more begins a list.
fn plain_slots(stored: &OrphanBlock<'_>, cube: u32) -> usize {
    if cube > 0 { stored.chain_slot() } else { stored.slots().len() }
}
