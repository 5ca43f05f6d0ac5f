//! Renaming.

use floe_ext4::tx::Tx;
use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags, OwnedInode, TimeField};

use super::create::{NewInode, NewKind};
use super::credits::Reach;
use super::directory::{judge_fixed, type_byte};
use super::names::Removed;
use super::staged::Op;
use super::{Caller, OpError};
use crate::volume::Volume;

/// The treatment of a name that is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameMode {
    /// It is replaced.
    #[default]
    Replace,
    /// [`OpError::Exists`].
    NoReplace,
    /// Both names change places.
    Exchange,
    /// It is replaced, and the old name gets a character device 0:0 (overlayfs' whiteout).
    Whiteout,
}

/// The result of a rename.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Renamed {
    /// The inode that lost the name.
    pub replaced: Option<Removed>,
    /// Directories whose name or parent is another one now; two after an exchange.
    pub directories: [Option<InodeNr>; 2],
}

/// A place for a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'n> {
    pub(super) dir: InodeNr,
    pub(super) name: &'n [u8],
}

impl Volume {
    /// Renames, within a directory or from one to another. Two names of one inode stay both, as POSIX wants it.
    ///
    /// # Errors
    /// [`OpError::NotFound`], [`OpError::Exists`], [`OpError::IsADirectory`], [`OpError::NotADirectory`],
    /// [`OpError::NotEmpty`], [`OpError::Invalid`] into itself, [`OpError::TooManyLinks`], [`OpError::CrossProject`],
    /// [`OpError::NotPermitted`], [`OpError::NoSpace`].
    pub fn rename(
        &mut self,
        tx: &mut dyn Tx,
        caller: &Caller,
        from: (InodeNr, &[u8]),
        to: (InodeNr, &[u8]),
        mode: RenameMode,
    ) -> Result<Renamed, OpError> {
        let from = Place { dir: from.0, name: from.1 };
        let to = Place { dir: to.0, name: to.1 };
        self.op_of(Reach::One, tx, caller, |op| op.rename(from, to, mode))
    }
}

impl Op<'_> {
    fn rename(
        &mut self,
        from: Place<'_>,
        to: Place<'_>,
        mode: RenameMode,
    ) -> Result<Renamed, OpError> {
        let mut old_dir = self.open_directory(from.dir)?;
        let mut new_dir = self.open_directory(to.dir)?;
        judge_source(&old_dir)?;
        for name in [from.name, to.name] {
            if matches!(name, b"." | b"..") {
                return Err(OpError::Invalid("this name cannot be renamed"));
            }
        }
        // Nothing of the other cube is looked at for this one.
        if self.judge_cube(&old_dir, &new_dir).is_err() && !self.is_one_place(from.dir, to.dir)? {
            return Err(OpError::CrossCube);
        }
        let source = self.lookup(&mut old_dir, from.name)?.ok_or(OpError::NotFound("name"))?;
        let target = self.lookup(&mut new_dir, to.name)?;
        let moved = self.inode(source.inode)?;
        judge_fixed(&moved)?;
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(OpError::Exists),
            (RenameMode::Exchange, None) => return Err(OpError::NotFound("name to exchange with")),
            (_, Some(target)) if target.inode == source.inode => return Ok(Renamed::default()),
            _ => {}
        }
        self.judge_name(&new_dir, to.name)?;
        self.judge_project(&new_dir, &moved)?;
        self.judge_top(&old_dir, &moved)?;
        if from.dir != to.dir && is_directory(&moved) {
            self.judge_inside(moved.number, to.dir)?;
        }
        let target = target.map(|target| self.inode(target.inode)).transpose()?;
        if let Some(target) = &target {
            judge_fixed(target)?;
            self.judge_top(&new_dir, target)?;
        }
        match (mode, target) {
            (RenameMode::Exchange, Some(target)) => {
                if from.dir != to.dir && is_directory(&target) {
                    self.judge_inside(target.number, from.dir)?;
                }
                self.judge_project(&old_dir, &target)?;
                let directories = [directory_of(&moved), directory_of(&target)];
                self.exchange(from, to, moved, target)?;
                Ok(Renamed { replaced: None, directories })
            }
            (_, target) => self.move_name(from, to, moved, target, mode),
        }
    }

    /// Whether two directories lie in one cube by their paths: another system may have given them inodes in different ones.
    fn is_one_place(&mut self, one: InodeNr, other: InodeNr) -> Result<bool, OpError> {
        let is_coupled = self.volume.fs.space.is_coupled();
        Ok(is_coupled && self.home_of(one)? == self.home_of(other)?)
    }

    /// The cube whose directory a path leads through last; 0: none.
    fn home_of(&mut self, dir: InodeNr) -> Result<u32, OpError> {
        let is_top = |op: &Self, at| {
            let space = &op.volume.fs.space;
            space.top_of(space.cube_of(at)) == Some(at)
        };
        let top = self.on_the_way_up(dir, is_top)?;
        Ok(top.map_or(0, |top| self.volume.fs.space.cube_of(top)))
    }

    /// The first directory that is accepted, from one up to the root; `None`: none is.
    fn on_the_way_up(
        &mut self,
        dir: InodeNr,
        accepts: impl Fn(&Self, InodeNr) -> bool,
    ) -> Result<Option<InodeNr>, OpError> {
        let mut at = dir;
        // A chain of parents in a circle is damage.
        for _ in 0..self.volume.geometry().inodes_count {
            if accepts(self, at) {
                return Ok(Some(at));
            }
            if at == InodeNr::ROOT {
                return Ok(None);
            }
            let mut here = self.directory(at)?;
            at = self.lookup(&mut here, b"..")?.ok_or(super::content::DAMAGED)?.inode;
        }
        Err(super::content::DAMAGED)
    }

    /// Refuses the directory of a cube, which stays where it is. Other things in another cube than their directory were put
    /// there by programs that do not know cubes; they may get another name in it.
    fn judge_top(&self, dir: &OwnedInode, inode: &OwnedInode) -> Result<(), OpError> {
        let may_be_top = is_directory(inode) && self.volume.fs.space.may_be_top(inode.number);
        if may_be_top && self.judge_cube(dir, inode).is_err() {
            // Not as another cube's: `mv` would copy all out of the cube.
            return Err(OpError::NotPermitted("the directory of a cube stays where it is"));
        }
        Ok(())
    }

    /// Refuses a `dir` that is `top` or lies below it.
    fn judge_inside(&mut self, top: InodeNr, dir: InodeNr) -> Result<(), OpError> {
        match self.on_the_way_up(dir, |_, at| at == top)? {
            Some(_) => Err(OpError::Invalid("a directory cannot be moved into itself")),
            None => Ok(()),
        }
    }

    fn move_name(
        &mut self,
        from: Place<'_>,
        to: Place<'_>,
        mut moved: OwnedInode,
        target: Option<OwnedInode>,
        mode: RenameMode,
    ) -> Result<Renamed, OpError> {
        let replaced = match target {
            Some(target) => Some(self.replace(to, &moved, target)?),
            None => {
                let mut dir = self.inode(to.dir)?;
                self.add_name(&mut dir, to.name, &moved)?;
                None
            }
        };
        // Read again: both places may be one directory.
        let mut old_dir = self.inode(from.dir)?;
        if mode == RenameMode::Whiteout {
            let kind = NewKind::CharDevice { major: 0, minor: 0 };
            let new = NewInode { kind, permissions: 0, umask: 0 };
            let whiteout = self.new_inode(&old_dir, Some(from.name), &new, None)?;
            self.names(&mut old_dir)?
                .replace(from.name, whiteout.number, type_byte(&whiteout))?
                .ok_or(OpError::NotFound("name"))?;
            self.touch(&mut old_dir, &[TimeField::Modification, TimeField::Change]);
            self.put(&mut old_dir)?;
        } else {
            self.take_name(&mut old_dir, from.name)?;
        }
        self.touch(&mut moved, &[TimeField::Change]);
        self.note_name(&mut moved, to.dir, to.name);
        if is_directory(&moved) {
            if from.dir != to.dir {
                self.set_parent(&mut moved, to.dir)?;
                let mut new_dir = self.inode(to.dir)?;
                if replaced.is_none() {
                    self.add_subdirectory(&mut new_dir)?;
                }
                self.put(&mut new_dir)?;
                let mut old_dir = self.inode(from.dir)?;
                self.drop_subdirectory(&mut old_dir);
                self.put(&mut old_dir)?;
            } else if replaced.is_some() {
                let mut dir = self.inode(from.dir)?;
                self.drop_subdirectory(&mut dir);
                self.put(&mut dir)?;
            }
        }
        self.put(&mut moved)?;
        Ok(Renamed { replaced, directories: [directory_of(&moved), None] })
    }

    /// Lets a name that is taken lead to another inode.
    fn replace(
        &mut self,
        to: Place<'_>,
        moved: &OwnedInode,
        mut target: OwnedInode,
    ) -> Result<Removed, OpError> {
        match (is_directory(moved), is_directory(&target)) {
            (true, false) => return Err(OpError::NotADirectory),
            (false, true) => return Err(OpError::IsADirectory),
            (true, true) if self.has_names(&mut target)? => return Err(OpError::NotEmpty),
            _ => {}
        }
        let mut dir = self.inode(to.dir)?;
        judge_source(&dir)?;
        self.lead(&mut dir, to.name, moved)?;
        self.lose_name(&mut target, to.dir, to.name)
    }

    /// Lets a name lead to an inode; the directory is written.
    fn lead(
        &mut self,
        dir: &mut OwnedInode,
        name: &[u8],
        inode: &OwnedInode,
    ) -> Result<(), OpError> {
        self.names(dir)?
            .replace(name, inode.number, type_byte(inode))?
            .ok_or(OpError::NotFound("name"))?;
        self.touch(dir, &[TimeField::Modification, TimeField::Change]);
        self.put(dir)
    }

    fn exchange(
        &mut self,
        from: Place<'_>,
        to: Place<'_>,
        mut one: OwnedInode,
        mut other: OwnedInode,
    ) -> Result<(), OpError> {
        for (place, inode) in [(from, &other), (to, &one)] {
            let mut dir = self.inode(place.dir)?;
            judge_source(&dir)?;
            self.lead(&mut dir, place.name, inode)?;
        }
        if from.dir != to.dir {
            for (inode, left, entered) in [(&mut one, from, to), (&mut other, to, from)] {
                if !is_directory(inode) {
                    continue;
                }
                self.set_parent(inode, entered.dir)?;
                let mut dir = self.inode(left.dir)?;
                self.drop_subdirectory(&mut dir);
                self.put(&mut dir)?;
                let mut dir = self.inode(entered.dir)?;
                self.add_subdirectory(&mut dir)?;
                self.put(&mut dir)?;
            }
        }
        for (inode, place) in [(&mut one, to), (&mut other, from)] {
            self.note_name(inode, place.dir, place.name);
            self.touch(inode, &[TimeField::Change]);
            self.put(inode)?;
        }
        Ok(())
    }
}

fn directory_of(inode: &OwnedInode) -> Option<InodeNr> {
    is_directory(inode).then_some(inode.number)
}

fn is_directory(inode: &OwnedInode) -> bool {
    inode.file_type() == Some(FileType::Directory)
}

/// Whether names may be taken away from a directory.
fn judge_source(dir: &OwnedInode) -> Result<(), OpError> {
    if dir.flags().contains(InodeFlags::APPEND) {
        return Err(OpError::NotPermitted("the directory is append-only"));
    }
    Ok(())
}
