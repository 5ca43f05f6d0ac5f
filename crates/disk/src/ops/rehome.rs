//! Inodes that another system, which does not know cubes, has put into another cube than all their names: they get a new number in the
//! cube of those. For a repair: programs that have such a file open, or know its number, would lose it.

use floe_ext4::dir::{DirFormat, Sealed, gather, seal, set_inode};
use floe_ext4::map::file;
use floe_ext4::map::walk::has_map;
use floe_ext4::tx::Tx;
use floe_format::ext::extent::Extent;
use floe_format::ext::inode::{FileType, InodeFlags, OwnedInode};
use floe_format::features::{Compat, Incompat};
use floe_format::{BlockNr, InodeNr};

use super::content::DAMAGED;
use super::directory::type_byte;
use super::staged::Op;
use super::{Caller, OpError};
use crate::volume::Volume;

impl Volume {
    /// Gives an inode a number in the cube of its names, which must be all that it has; returns it. Content and the block of
    /// attributes stay where they are ([`Volume::move_home`] moves them). Times stay, too.
    ///
    /// # Errors
    /// [`OpError::Invalid`] if it has other names, [`OpError::Unsupported`] where the number is part of more than directories,
    /// [`OpError::NoSpace`]. Nothing is changed.
    pub fn move_inode_home(
        &mut self,
        tx: &mut dyn Tx,
        caller: &Caller,
        inode: InodeNr,
        names: &[(InodeNr, Vec<u8>)],
    ) -> Result<InodeNr, OpError> {
        self.op(tx, caller, |op| op.move_inode_home(inode, names))
    }
}

impl Op<'_> {
    fn move_inode_home(
        &mut self,
        number: InodeNr,
        names: &[(InodeNr, Vec<u8>)],
    ) -> Result<InodeNr, OpError> {
        let mut old = self.inode(number)?;
        self.judge_number(&old)?;
        let is_directory = old.file_type() == Some(FileType::Directory);
        let links = if is_directory { 1 } else { usize::from(old.base.links_count) };
        let home = names.first().map(|(dir, _)| *dir);
        let home = home.filter(|_| names.len() == links);
        let home = home.ok_or(OpError::Invalid("not all of its names are in one cube"))?;
        let new = self.new_number(home, is_directory, old.base.generation)?;
        let runs = if has_map(&old.base) { self.take_map(&mut old)? } else { Vec::new() };
        let (base, extra, raw) = (old.base.clone(), old.extra.clone(), old.raw.clone());
        let mut moved = OwnedInode { number: new, base, extra, raw };
        for extent in &runs {
            self.map_run(&mut moved, extent.logical, extent.run, extent.unwritten)?;
        }
        self.put(&mut moved)?;
        if is_directory {
            self.renumber_directory(&mut moved, number, &runs)?;
        }
        for (dir, name) in names {
            let mut dir = self.directory(*dir)?;
            let led = self.names(&mut dir)?.replace(name, new, type_byte(&moved))?;
            if led != Some(number) {
                return Err(OpError::NotFound("name"));
            }
            self.put(&mut dir)?;
        }
        self.forget_number(old, is_directory)?;
        Ok(new)
    }

    /// Refuses inodes whose number is known to more than directories, such as to keys of encrypted content.
    fn judge_number(&self, inode: &OwnedInode) -> Result<(), OpError> {
        let geo = self.volume.geometry();
        // Native file systems have no inline directories and no inodes that hold attributes.
        let others = Incompat::EA_INODE | Incompat::INLINE_DATA;
        let is_known = geo.is_reserved(inode.number)
            || geo.features.compat.contains(Compat::STABLE_INODES)
            || geo.features.incompat.intersects(others)
            || inode.flags().contains(InodeFlags::ENCRYPT);
        match is_known || inode.base.links_count == 0 {
            true => Err(OpError::Unsupported("another number for this inode")),
            false => Ok(()),
        }
    }

    fn new_number(
        &mut self,
        home: InodeNr,
        is_directory: bool,
        generation: u32,
    ) -> Result<InodeNr, OpError> {
        let space = &mut self.volume.fs.space;
        let new = space.free_inode(&mut self.tx, home, is_directory, generation)?;
        if space.cube_of(new) != space.cube_of(home) {
            return Err(OpError::NoSpace);
        }
        space.take_inode(&mut self.tx, new, is_directory)?;
        self.weigh_new(new);
        Ok(new)
    }

    /// Takes the map away from an inode, whose blocks stay in use.
    fn take_map(&mut self, inode: &mut OwnedInode) -> Result<Vec<Extent>, OpError> {
        let map = self.map_of(inode)?;
        let end = map.runs().last().map_or(0, |last| last.logical.0 + last.run.len_blocks);
        file::remove(&mut self.tx, &mut self.volume.fs, inode, 0..end)?;
        Ok(map.runs().to_vec())
    }

    /// Lets the blocks of a directory, and all that lies in it, know its new number.
    fn renumber_directory(
        &mut self,
        dir: &mut OwnedInode,
        before: InodeNr,
        runs: &[Extent],
    ) -> Result<(), OpError> {
        for (inode, name) in self.renumber_blocks(dir, runs)? {
            let mut inode = self.inode(inode)?;
            let is_named = inode.backpointer().is_some_and(|own| own.fits(before, &name));
            if is_named {
                self.note_name(&mut inode, dir.number, &name);
            }
            let is_directory = inode.file_type() == Some(FileType::Directory);
            if is_directory {
                self.set_parent(&mut inode, dir.number)?;
            }
            if is_named || is_directory {
                self.put(&mut inode)?;
            }
        }
        Ok(())
    }

    /// The same for its blocks alone; returns the inodes and names in them.
    fn renumber_blocks(
        &mut self,
        dir: &OwnedInode,
        runs: &[Extent],
    ) -> Result<Vec<(InodeNr, Vec<u8>)>, OpError> {
        let format = DirFormat::of(&self.volume.fs.superblock, self.volume.geometry());
        // The parent is not asked for.
        let about = self.about(dir, InodeNr(0));
        let mut names = Vec::new();
        for extent in runs {
            for at in 0..extent.run.len_blocks {
                let bytes = self.tx.block_mut(BlockNr(extent.run.start.0 + at))?;
                if extent.logical.0 + at == 0 {
                    set_inode(bytes, 0, dir.number).ok_or(DAMAGED)?;
                }
                if seal(bytes, about.inode_seed(&format)) == Sealed::NoRoom {
                    return Err(DAMAGED);
                }
                let entries = gather(bytes, &format, &about).into_iter();
                names.extend(entries.map(|entry| (entry.inode, entry.name.into_owned())));
            }
        }
        Ok(names)
    }

    /// Frees the old number; everything of it belongs to the new one.
    fn forget_number(&mut self, mut old: OwnedInode, is_directory: bool) -> Result<(), OpError> {
        (old.base.file_acl_lo, old.base.file_acl_high) = (0, 0);
        old.base.links_count = 0;
        old.set_blocks(0);
        old.set_size_bytes(0);
        let seconds = self.caller.time.seconds.max(1);
        old.base.dtime = (seconds & 0xffff_ffff) as u32;
        self.put(&mut old)?;
        self.weigh_gone(old.number);
        let (volume, tx) = (&mut *self.volume, &mut self.tx);
        Ok(volume.fs.space.release_inode(tx, old.number, is_directory)?)
    }
}
