//! Cubes: made, changed and removed, each in one transaction (`docs/cubes.md`).

use std::collections::BTreeMap;

use floe_ext4::alloc::Allocate;
use floe_ext4::cubes::{self, Copies};
use floe_ext4::map::file;
use floe_ext4::tx::{Refusal, Tx};
use floe_format::ext::inode::{FileType, InodeFlags, OwnedInode};
use floe_format::native::cube::{
    FEWEST_JOURNAL_BLOCKS, MOST_CUBES, MOST_LOTS, MOST_PATH_BYTES, Policies, SUPER_BYTES,
    SUPER_NAME, State, SubSuperblock,
};
use floe_format::native::identity::Identity;
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

use super::content::DAMAGED;
use super::staged::Op;
use super::{Caller, NewInode, OpError, Removed, Reserved};
use crate::volume::Volume;

/// A cube to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewCube<'n> {
    /// The directory in which it is made; not in a cube.
    pub parent: InodeNr,
    /// Its name there.
    pub name: &'n [u8],
    /// Its path from the root, with a slash at the beginning: at most 2,048 bytes.
    pub path: &'n [u8],
    /// Permissions of its directory: 0 to 0o7777.
    pub permissions: u16,
    /// Blocks of a journal of its own: [`FEWEST_JOURNAL_BLOCKS`] at least, or 0 for none.
    pub journal_blocks: u32,
    /// How it is to behave.
    pub policies: Policies,
}

impl Volume {
    /// Makes a cube: a directory with a free lot of its own. Returns the cube's number.
    ///
    /// # Errors
    /// [`OpError::Unsupported`] on a stock file system, in a cube or in lost+found; [`OpError::NoSpace`] without a free lot;
    /// [`OpError::Invalid`] for a limit below one lot; those of [`Volume::create`].
    pub fn create_cube(
        &mut self,
        tx: &mut dyn Tx,
        caller: &Caller,
        new: &NewCube<'_>,
    ) -> Result<u32, OpError> {
        self.op(tx, caller, |op| op.create_cube(new))
    }

    /// Changes how a cube is to behave. A limit below what the cube has only keeps it from growing.
    ///
    /// # Errors
    /// [`OpError::NotFound`], [`OpError::Invalid`] for a limit below one lot.
    pub fn set_cube(
        &mut self,
        tx: &mut dyn Tx,
        caller: &Caller,
        cube: u32,
        policies: Policies,
    ) -> Result<(), OpError> {
        self.op(tx, caller, |op| op.set_cube(cube, policies))
    }

    /// Records that a cube has failed, or that it is sound again.
    ///
    /// # Errors
    /// [`OpError::NotFound`], and of writing the sub-superblock.
    pub fn note_cube_state(
        &mut self,
        tx: &mut dyn Tx,
        caller: &Caller,
        cube: u32,
        state: State,
    ) -> Result<(), OpError> {
        self.op(tx, caller, |op| op.edit_sub(cube, |sub| sub.state = state))
    }

    /// Records with which others a cube is coupled: the smallest of their numbers.
    ///
    /// # Errors
    /// As [`Volume::note_cube_state`].
    pub fn couple_cube(
        &mut self,
        tx: &mut dyn Tx,
        caller: &Caller,
        cube: u32,
        coupled: Option<u32>,
    ) -> Result<(), OpError> {
        self.op(tx, caller, |op| op.edit_sub(cube, |sub| sub.coupled = coupled))
    }

    /// Writes the lists of lots in sub-superblocks anew where they are out of date, and the paths of cubes that `moved` has by their
    /// number, of 2,048 bytes at most; to be called before [`Volume::end_writing`].
    ///
    /// # Errors
    /// A sub-superblock cannot be read or written.
    pub fn renew_cubes(
        &mut self,
        tx: &mut dyn Tx,
        caller: &Caller,
        moved: &BTreeMap<u32, Vec<u8>>,
    ) -> Result<(), OpError> {
        if !self.fs.space.has_cubes() {
            return Ok(());
        }
        self.op(tx, caller, |op| op.renew_hints(moved))
    }

    /// Removes a cube, whose lots are the root cube's then. `place` is the directory and name of the cube's directory, which
    /// must be empty and is removed; without it the directory stays with all its files. Returns the directory if it is an
    /// orphan now.
    ///
    /// # Errors
    /// [`OpError::NotFound`], [`OpError::NotEmpty`], [`OpError::Invalid`] if the name leads elsewhere.
    pub fn remove_cube(
        &mut self,
        tx: &mut dyn Tx,
        caller: &Caller,
        cube: u32,
        place: Option<(InodeNr, &[u8])>,
    ) -> Result<Option<Removed>, OpError> {
        self.op(tx, caller, |op| op.remove_cube(cube, place))
    }
}

impl Op<'_> {
    fn create_cube(&mut self, new: &NewCube<'_>) -> Result<u32, OpError> {
        let Some(identity) = Identity::of(self.volume.superblock()) else {
            return Err(OpError::Unsupported(
                "cubes on a file system that was not made by `mkfs -t native`",
            ));
        };
        if self.volume.fs.space.cube_of(new.parent) > 0 {
            return Err(OpError::Unsupported("a cube in a cube"));
        }
        // A repair gives what it puts there a new name, and whoever tidies up there removes it.
        if new.path.starts_with(b"/lost+found/") {
            return Err(OpError::Unsupported("a cube in lost+found"));
        }
        if new.path.len() < 2 || new.path.len() > MOST_PATH_BYTES {
            return Err(OpError::Invalid("the path of a cube has 2 to 2048 bytes"));
        }
        self.judge_policies(&new.policies, new.journal_blocks > 0)?;
        if new.journal_blocks > 0 && new.journal_blocks < FEWEST_JOURNAL_BLOCKS {
            return Err(OpError::Invalid("the journal of a cube has 64 blocks at least"));
        }
        let mut file = match InodeNr(identity.super_inode) {
            InodeNr(0) => self.make_super(InodeNr(identity.home_inode))?,
            known => self.inode(known)?,
        };
        let cube = self.free_number(&file)?;
        let space = &mut self.volume.fs.space;
        space.limit_cube(cube, new.policies.limit_blocks);
        if !space.grow(&mut self.tx, cube)? {
            return Err(OpError::NoSpace);
        }
        let lots = space.lots_of(cube);
        let first = space.first_group(lots.first().copied().ok_or(DAMAGED)?);
        // The first inode of a lot is that of its reservation file.
        let inode = space.inode_in(&mut self.tx, first)?;
        let generation = self.volume.draw();
        let directory = NewInode::directory(new.permissions);
        let reserved = Some(Reserved { inode, generation });
        let top_inode = self.create(new.parent, new.name, &directory, reserved)?.0;
        let (path, policies) = (new.path.to_vec(), new.policies);
        let journal = self.make_journal(InodeNr(identity.home_inode), cube, new.journal_blocks)?;
        let (epoch, state, coupled) = (1, State::Sound, None);
        let sub =
            SubSuperblock { cube, top_inode, epoch, path, lots, journal, policies, state, coupled };
        self.put_sub(&mut file, &sub)?;
        self.volume.fs.space.note_top(cube, sub.top_inode);
        self.volume.fs.space.note_number(cube);
        self.volume.fs.space.log_data(cube, policies.journal_mode);
        Ok(cube)
    }

    /// The smallest number that no cube has: none owns a lot by it, and it has no sub-superblock. Numbers below the one that was
    /// found last are not looked at again.
    fn free_number(&mut self, file: &OwnedInode) -> Result<u32, OpError> {
        let from = self.volume.fs.space.next_number();
        'numbers: for cube in from..=MOST_CUBES {
            if self.volume.fs.space.has_lots(cube) {
                continue;
            }
            for logical in SubSuperblock::places(cube) {
                let extent = self.next_extent(file, LogicalBlock(logical))?;
                if extent.is_some_and(|extent| extent.logical.0 <= logical) {
                    continue 'numbers;
                }
            }
            return Ok(cube);
        }
        Err(OpError::Invalid("there are 32767 cubes already"))
    }

    fn set_cube(&mut self, cube: u32, policies: Policies) -> Result<(), OpError> {
        let before = self.sub(cube)?;
        let has_journal = before.journal.inode > 0;
        // Cubes that older versions made keep what they have.
        let judged = match policies.is_new(&before.policies) {
            true => policies,
            false => Policies { limit_blocks: policies.limit_blocks, ..Policies::default() },
        };
        self.judge_policies(&judged, has_journal)?;
        self.edit_sub(cube, |sub| sub.policies = policies)?;
        self.volume.fs.space.limit_cube(cube, policies.limit_blocks);
        self.volume.fs.space.log_data(cube, policies.journal_mode);
        Ok(())
    }

    /// Changes a sub-superblock, and brings its list of lots up to date.
    fn edit_sub(
        &mut self,
        cube: u32,
        edit: impl FnOnce(&mut SubSuperblock),
    ) -> Result<(), OpError> {
        let mut file = self.super_file()?;
        let mut sub = self.sub(cube)?;
        sub.lots = self.lots_listed(cube);
        sub.epoch = sub.epoch.saturating_add(1);
        edit(&mut sub);
        self.put_sub(&mut file, &sub)
    }

    /// The sub-superblock of a cube.
    fn sub(&mut self, cube: u32) -> Result<SubSuperblock, OpError> {
        let file = self.super_file()?;
        let copies = self.copies_of(&file, Some(cube))?;
        let current = copies.get(&cube).and_then(|copies| cubes::current(cube, copies));
        current.ok_or(OpError::NotFound("cube"))
    }

    fn lots_listed(&self, cube: u32) -> Vec<u32> {
        let mut lots = self.volume.fs.space.lots_of(cube);
        lots.truncate(MOST_LOTS);
        lots
    }

    /// Writes sub-superblocks anew whose list of lots or path is out of date.
    fn renew_hints(&mut self, moved: &BTreeMap<u32, Vec<u8>>) -> Result<(), OpError> {
        let file = self.super_file()?;
        let all = self.copies(&file)?;
        let current = all.iter().filter_map(|(cube, copies)| cubes::current(*cube, copies));
        let old: Vec<u32> = current
            .filter(|sub| sub.lots != self.lots_listed(sub.cube) || moved.contains_key(&sub.cube))
            .map(|sub| sub.cube)
            .collect();
        old.into_iter().try_for_each(|cube| {
            self.edit_sub(cube, |sub| {
                if let Some(path) = moved.get(&cube) {
                    sub.path.clone_from(path);
                }
            })
        })
    }

    fn remove_cube(
        &mut self,
        cube: u32,
        place: Option<(InodeNr, &[u8])>,
    ) -> Result<Option<Removed>, OpError> {
        let mut file = self.super_file()?;
        let copies = self.copies_of(&file, Some(cube))?;
        let copies = copies.get(&cube).ok_or(OpError::NotFound("cube"))?;
        let journal = self.volume.fs.space.journal_of(cube);
        for lot in self.volume.fs.space.lots_of(cube) {
            self.volume.fs.space.give_lot(&mut self.tx, lot, 0)?;
        }
        if let Some(journal) = journal {
            self.drop_journal(cube, journal)?;
        }
        for (logical, copy) in SubSuperblock::places(cube).into_iter().zip(copies) {
            if copy.block().is_some() {
                self.free_super_block(&mut file, logical)?;
            }
        }
        self.put(&mut file)?;
        self.volume.fs.space.forget_cube(cube);
        let Some((dir, name)) = place else { return Ok(None) };
        // The directory is the root cube's by now.
        let removed = self.rmdir(dir, name)?;
        match cubes::current(cube, copies) {
            Some(sub) if sub.top_inode != removed.inode.0 => {
                Err(OpError::Invalid("the path leads to another directory than that of the cube"))
            }
            _ => Ok(Some(removed)),
        }
    }

    fn judge_policies(&self, policies: &Policies, has_journal: bool) -> Result<(), OpError> {
        if let Some(why) = policies.objection(has_journal) {
            return Err(OpError::Invalid(why));
        }
        let limit = policies.limit_blocks;
        if limit > 0 && limit < self.volume.fs.space.lot_blocks() {
            return Err(OpError::Invalid("the size of a cube is one lot at least"));
        }
        Ok(())
    }

    /// The inode of `/.cubes`.
    pub(super) fn cubes_home(&self) -> Result<InodeNr, OpError> {
        let own = Identity::of(self.volume.superblock());
        own.map(|own| InodeNr(own.home_inode)).ok_or(OpError::NotFound("cube"))
    }

    /// The inode of `/.cubes/super`.
    fn super_file(&mut self) -> Result<OwnedInode, OpError> {
        let own = Identity::of(self.volume.superblock()).map_or(0, |own| own.super_inode);
        if own == 0 { Err(OpError::NotFound("cube")) } else { self.inode(InodeNr(own)) }
    }

    /// Whether an inode is `/.cubes/super` or `/.cubes/fence`, whose blocks lie in all cubes.
    pub(super) fn is_super_file(&self, inode: InodeNr) -> bool {
        let own = Identity::of(self.volume.superblock());
        own.is_some_and(|own| [own.super_inode, own.fence_inode].contains(&inode.0))
    }

    /// Makes `/.cubes/super`.
    fn make_super(&mut self, home: InodeNr) -> Result<OwnedInode, OpError> {
        let mut home = self.directory(home)?;
        let name = Some(SUPER_NAME);
        let mut file = self.new_inode(&home, name, &NewInode::regular(0o600), None)?;
        file.set_flags(InodeFlags::IMMUTABLE, true);
        file.set_size_bytes(SUPER_BYTES);
        self.put(&mut file)?;
        self.add_name(&mut home, SUPER_NAME, &file)?;
        let number = file.number.0;
        self.edit_superblock(|superblock| {
            if let Some(own) = Identity::of(superblock) {
                Identity { super_inode: number, ..own }.put(superblock);
            }
        })?;
        Ok(file)
    }

    /// Both copies of all sub-superblocks.
    fn copies(&mut self, file: &OwnedInode) -> Result<BTreeMap<u32, Copies>, OpError> {
        self.copies_of(file, None)
    }

    /// Both copies of one cube's sub-superblock, or of all.
    fn copies_of(
        &mut self,
        file: &OwnedInode,
        only: Option<u32>,
    ) -> Result<BTreeMap<u32, Copies>, OpError> {
        if file.file_type() != Some(FileType::Regular) {
            return Err(DAMAGED);
        }
        let geometry = self.volume.geometry().clone();
        let mut read = |block| self.tx.block(block).ok().map(|bytes| bytes.to_vec());
        let read = cubes::read_of(&file.base.block, file.flags(), &geometry, only, &mut read);
        read.map_err(|_| DAMAGED)
    }

    /// Writes both copies of a sub-superblock: the first beside those of the others, the second in a lot of the cube.
    fn put_sub(&mut self, file: &mut OwnedInode, sub: &SubSuperblock) -> Result<(), OpError> {
        let bytes = sub.encode();
        let places = SubSuperblock::places(sub.cube);
        let top = self.volume.geometry().place_of(InodeNr(sub.top_inode)).ok_or(DAMAGED)?;
        let own = self.volume.geometry().group_start(top.0);
        for (at, logical) in places.into_iter().enumerate() {
            let logical = LogicalBlock(logical);
            let known = self.next_extent(file, logical)?;
            let known = known.filter(|extent| extent.logical.0 <= logical.0);
            let block = match known {
                Some(extent) => BlockNr(extent.run.start.0 + (logical.0 - extent.logical.0)),
                None if at == 0 => self.map_one(file, logical, None)?,
                None => self.map_one(file, logical, Some(own))?,
            };
            // Where the journal of the cube has ended, which every read of its blocks says, the first copy is the newer one and
            // counts. A write would be refused too late: when the change joins its transaction.
            if at == 1 && matches!(self.tx.block(block), Err(Refusal::Io { .. })) {
                continue;
            }
            self.tx.zeroed(block)?.copy_from_slice(&bytes[..]);
        }
        self.put(file)
    }

    fn map_one(
        &mut self,
        file: &mut OwnedInode,
        logical: LogicalBlock,
        goal: Option<BlockNr>,
    ) -> Result<BlockNr, OpError> {
        let home = self.volume.geometry().place_of(file.number).ok_or(DAMAGED)?.0;
        let goal = goal.unwrap_or_else(|| self.volume.geometry().group_start(home));
        let run = BlockRun::new(self.volume.fs.space.block(&mut self.tx, goal)?, 1);
        file::count(&self.volume.fs, file, 1);
        self.map_run(file, logical, run, false)?;
        Ok(run.start)
    }

    /// Frees a block of `/.cubes/super`, older copies of which may be in the log.
    fn free_super_block(&mut self, file: &mut OwnedInode, logical: u64) -> Result<(), OpError> {
        let range = logical..logical + 1;
        let runs = file::remove(&mut self.tx, &mut self.volume.fs, file, range)?;
        for run in runs {
            // So that the seal gives the block to the reservation file.
            self.volume.fs.space.open_lot_of(&mut self.tx, run.start)?;
            self.volume.fs.space.release(&mut self.tx, run)?;
            file::count(&self.volume.fs, file, -run.len_blocks.cast_signed());
        }
        Ok(())
    }
}
