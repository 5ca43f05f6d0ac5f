//! Names: looked up, given and taken away.

use floe_ext4::tx::Tx;
use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags, OwnedInode, TimeField};
use floe_format::native::backpointer::{Backpointer, FLAG_SEVERAL};

use super::credits::Reach;
use super::directory::{MOST_LINKS, judge_fixed};
use super::staged::Op;
use super::{Caller, OpError, Step};
use crate::volume::Volume;

/// The target of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// The inode.
    pub inode: InodeNr,
    /// The type that the entry states; `None` where entries have none.
    pub file_type: Option<FileType>,
}

/// An inode that lost a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The inode.
    pub inode: InodeNr,
    /// It was the last one: the inode is an orphan now, and [`Volume::finish_orphan`] deletes it when nobody has it open.
    pub last: bool,
}

impl Volume {
    /// Looks a name up in a directory; `.` and `..` too. Where case does not count, any spelling is found.
    ///
    /// # Errors
    /// [`OpError::NotADirectory`], [`OpError::NameTooLong`] above 255 bytes, or that the directory cannot be read.
    pub fn lookup(
        &mut self,
        tx: &mut dyn Tx,
        dir: InodeNr,
        name: &[u8],
    ) -> Result<Option<Named>, OpError> {
        self.op(tx, &Caller::system(Default::default()), |op| {
            let mut dir = op.directory(dir)?;
            op.lookup(&mut dir, name)
        })
    }

    /// An inode as it is, with all changes.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn inode(&self, tx: &mut dyn Tx, inode: InodeNr) -> Result<OwnedInode, OpError> {
        Ok(self.fs.inode(tx, inode)?)
    }

    /// Gives an inode another name. One without names (made by [`Volume::create_unnamed`]) is no orphan any longer.
    ///
    /// # Errors
    /// [`OpError::IsADirectory`], [`OpError::Exists`], [`OpError::TooManyLinks`] at 65,000, [`OpError::NotPermitted`],
    /// [`OpError::CrossProject`], [`OpError::NoSpace`], or those of names and directories.
    pub fn link(
        &mut self,
        tx: &mut dyn Tx,
        caller: &Caller,
        inode: InodeNr,
        dir: InodeNr,
        name: &[u8],
    ) -> Result<(), OpError> {
        self.op_of(Reach::One, tx, caller, |op| op.link(inode, dir, name))
    }

    /// Takes a name away from anything but a directory.
    ///
    /// # Errors
    /// [`OpError::NotFound`], [`OpError::IsADirectory`], [`OpError::NotPermitted`].
    pub fn unlink(
        &mut self,
        tx: &mut dyn Tx,
        caller: &Caller,
        dir: InodeNr,
        name: &[u8],
    ) -> Result<Removed, OpError> {
        self.op_of(Reach::One, tx, caller, |op| op.unlink(dir, name))
    }

    /// Runs operations after which nobody has open what lost its last name: it is deleted with the name, and was never an
    /// orphan. One that would take more than a step is refused with [`OpError::TooLong`].
    pub fn erasing<T>(&mut self, run: impl FnOnce(&mut Self) -> T) -> T {
        self.orphans.avoids = true;
        // An operation that panics ends as one that fails.
        let done = run(self);
        self.orphans.avoids = false;
        done
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`OpError::NotFound`], [`OpError::NotADirectory`], [`OpError::NotEmpty`], [`OpError::NotPermitted`].
    pub fn rmdir(
        &mut self,
        tx: &mut dyn Tx,
        caller: &Caller,
        dir: InodeNr,
        name: &[u8],
    ) -> Result<Removed, OpError> {
        self.op_of(Reach::One, tx, caller, |op| op.rmdir(dir, name))
    }
}

impl Op<'_> {
    fn link(&mut self, number: InodeNr, dir: InodeNr, name: &[u8]) -> Result<(), OpError> {
        let mut dir = self.open_directory(dir)?;
        self.judge_name(&dir, name)?;
        let mut inode = self.inode(number)?;
        if inode.file_type() == Some(FileType::Directory) {
            return Err(OpError::IsADirectory);
        }
        judge_fixed(&inode)?;
        self.judge_project(&dir, &inode)?;
        self.judge_cube(&dir, &inode)?;
        if inode.base.links_count >= MOST_LINKS {
            return Err(OpError::TooManyLinks);
        }
        if self.lookup(&mut dir, name)?.is_some() {
            return Err(OpError::Exists);
        }
        if inode.base.links_count == 0 {
            if !self.volume.orphans.contains(number) {
                return Err(OpError::NotFound("inode"));
            }
            self.remove_orphan(&mut inode)?;
        }
        inode.base.links_count += 1;
        match inode.backpointer() {
            Some(own) if inode.base.links_count > 1 => {
                let flags = own.flags | FLAG_SEVERAL;
                inode.set_backpointer(Some(&Backpointer { flags, ..own }));
            }
            _ => self.note_name(&mut inode, dir.number, name),
        }
        self.touch(&mut inode, &[TimeField::Change]);
        self.put(&mut inode)?;
        self.add_name(&mut dir, name, &inode)
    }

    /// Whether a directory and something else, which may be a directory, too, are in one cube.
    pub(crate) fn judge_cube(&self, dir: &OwnedInode, other: &OwnedInode) -> Result<(), OpError> {
        let space = &self.volume.fs.space;
        let is_same = space.cube_of(dir.number) == space.cube_of(other.number);
        if is_same { Ok(()) } else { Err(OpError::CrossCube) }
    }

    /// Whether something of another project may come into a directory whose children inherit its own.
    pub(crate) fn judge_project(
        &self,
        dir: &OwnedInode,
        inode: &OwnedInode,
    ) -> Result<(), OpError> {
        let inherits = dir.flags().contains(InodeFlags::PROJINHERIT);
        if inherits && dir.extra.projid != inode.extra.projid {
            return Err(OpError::CrossProject);
        }
        Ok(())
    }

    fn unlink(&mut self, dir: InodeNr, name: &[u8]) -> Result<Removed, OpError> {
        let (mut dir, mut inode) = self.victim(dir, name)?;
        if inode.file_type() == Some(FileType::Directory) {
            return Err(OpError::IsADirectory);
        }
        self.take_name(&mut dir, name)?;
        let dir = dir.number;
        self.lose_name(&mut inode, dir, name)
    }

    pub(super) fn rmdir(&mut self, dir: InodeNr, name: &[u8]) -> Result<Removed, OpError> {
        if matches!(name, b"." | b"..") {
            return Err(OpError::Invalid("a directory cannot be removed by this name"));
        }
        let (mut dir, mut inode) = self.victim(dir, name)?;
        if inode.file_type() != Some(FileType::Directory) {
            return Err(OpError::NotADirectory);
        }
        if self.judge_cube(&dir, &inode).is_err() && self.volume.fs.space.may_be_top(inode.number) {
            return Err(OpError::NotPermitted("it is a cube, which `floe cube remove` removes"));
        }
        if self.has_names(&mut inode)? {
            return Err(OpError::NotEmpty);
        }
        self.drop_subdirectory(&mut dir);
        self.take_name(&mut dir, name)?;
        self.lose_name(&mut inode, dir.number, name)
    }

    /// A directory and what a name in it leads to, both of which allow the name to be taken away.
    fn victim(&mut self, dir: InodeNr, name: &[u8]) -> Result<(OwnedInode, OwnedInode), OpError> {
        let mut dir = self.open_directory(dir)?;
        if dir.flags().contains(InodeFlags::APPEND) {
            return Err(OpError::NotPermitted("the directory is append-only"));
        }
        if matches!(name, b"." | b"..") {
            return Err(OpError::IsADirectory);
        }
        let named = self.lookup(&mut dir, name)?.ok_or(OpError::NotFound("name"))?;
        let inode = self.inode(named.inode)?;
        judge_fixed(&inode)?;
        Ok((dir, inode))
    }

    /// Stores a name of an inode in it, in a native file system. The inode is the caller's to write.
    pub(super) fn note_name(&self, inode: &mut OwnedInode, dir: InodeNr, name: &[u8]) {
        if self.volume.fs.is_native() {
            let links = inode.base.links_count;
            let several = inode.file_type() != Some(FileType::Directory) && links > 1;
            let flags = if several { FLAG_SEVERAL } else { 0 };
            inode.set_backpointer(Some(&Backpointer { flags, ..Backpointer::new(dir, name) }));
        }
    }

    /// Counts one name less; a directory loses all. Without names the inode is an orphan.
    pub(crate) fn lose_name(
        &mut self,
        inode: &mut OwnedInode,
        dir: InodeNr,
        name: &[u8],
    ) -> Result<Removed, OpError> {
        if inode.backpointer().is_some_and(|own| own.fits(dir, name)) {
            // The other names, if there are any, are not known here.
            inode.set_backpointer(None);
        }
        let links = inode.base.links_count;
        let is_directory = inode.file_type() == Some(FileType::Directory);
        inode.base.links_count = if is_directory { 0 } else { links.saturating_sub(1) };
        self.touch(inode, &[TimeField::Change]);
        let last = inode.base.links_count == 0;
        // One that is being cut is an orphan already, and its cutting ends first.
        if last && self.volume.orphans.avoids && !self.volume.cutting.contains(&inode.number) {
            self.reach = Reach::Steps;
            return match self.delete(inode)? {
                Step::Done => Ok(Removed { inode: inode.number, last }),
                Step::More => Err(OpError::TooLong),
            };
        }
        if last {
            self.add_orphan(inode)?;
        }
        self.put(inode)?;
        Ok(Removed { inode: inode.number, last })
    }
}
