//! New inodes.

use floe_ext4::dir::{DirFormat, first_block};
use floe_ext4::tx::Tx;
use floe_format::ext::inode::{BLOCK_BYTES, FileType, InodeFlags, OwnedInode, TimeField};
use floe_format::features::RoCompat;
use floe_format::{BlockRun, GroupNr, InodeNr, LogicalBlock};

use super::credits::Reach;
use super::staged::Op;
use super::{Caller, OpError, Step};
use crate::volume::Volume;

/// Set-group-ID: children of a directory with it get its group.
const SETGID: u16 = 0o2000;

/// Extra bytes of new inodes where the superblock does not ask for more (all fields up to `i_projid`).
const EXTRA_ISIZE: u16 = 32;

/// Something to be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewInode<'n> {
    /// Its type, and what that needs.
    pub kind: NewKind<'n>,
    /// Permissions with set-user-ID, set-group-ID and sticky: 0 to 0o7777.
    pub permissions: u16,
    /// Permissions that are not given, unless the directory has a default access list. Symbolic links have no umask.
    pub umask: u16,
}

/// A number that an inode will have, and its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The number.
    pub inode: InodeNr,
    /// `i_generation`.
    pub generation: u32,
}

/// A type of inode, and what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewKind<'n> {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link with its target: 1 byte up to one less than a block.
    Symlink(&'n [u8]),
    /// A character device.
    CharDevice {
        /// At most 4,095.
        major: u32,
        /// At most 1,048,575.
        minor: u32,
    },
    /// A block device.
    BlockDevice {
        /// At most 4,095.
        major: u32,
        /// At most 1,048,575.
        minor: u32,
    },
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
}

impl<'n> NewInode<'n> {
    /// A regular file with these permissions.
    pub const fn regular(permissions: u16) -> Self {
        Self { kind: NewKind::Regular, permissions, umask: 0 }
    }

    /// A directory with these permissions.
    pub const fn directory(permissions: u16) -> Self {
        Self { kind: NewKind::Directory, permissions, umask: 0 }
    }

    /// A symbolic link.
    pub const fn symlink(target: &'n [u8]) -> Self {
        Self { kind: NewKind::Symlink(target), permissions: 0o777, umask: 0 }
    }
}

impl NewKind<'_> {
    /// The type of file that it makes.
    pub const fn file_type(self) -> FileType {
        match self {
            Self::Regular => FileType::Regular,
            Self::Directory => FileType::Directory,
            Self::Symlink(_) => FileType::Symlink,
            Self::CharDevice { .. } => FileType::CharDevice,
            Self::BlockDevice { .. } => FileType::BlockDevice,
            Self::Fifo => FileType::Fifo,
            Self::Socket => FileType::Socket,
        }
    }
}

impl Volume {
    /// Creates something under a new name. Group, project, inheritable flags and the default access list come from
    /// the directory as Linux has it.
    ///
    /// # Errors
    /// [`OpError::Exists`], [`OpError::BadName`], [`OpError::NameTooLong`] (of a target, too), [`OpError::NoSpace`],
    /// [`OpError::TooManyLinks`], [`OpError::NotPermitted`], [`OpError::Unsupported`] in an encrypted directory.
    pub fn create(
        &mut self,
        tx: &mut dyn Tx,
        caller: &Caller,
        dir: InodeNr,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<InodeNr, OpError> {
        self.op_of(Reach::One, tx, caller, |op| op.create(dir, name, new, None))
    }

    /// Promises numbers of free inodes, 1 to `most`, near the directory of what they are for. Nothing on the disk changes;
    /// nobody else gets them until [`Volume::create_reserved`] or [`Volume::give_back`].
    ///
    /// # Errors
    /// [`OpError::NoSpace`], or that bitmaps cannot be read.
    pub fn reserve_inodes(
        &mut self,
        tx: &mut dyn Tx,
        dir: InodeNr,
        is_directory: bool,
        most: usize,
    ) -> Result<Vec<Reserved>, OpError> {
        let hint = self.draw();
        let inodes = self.fs.space.reserve_inodes(tx, dir, is_directory, hint, most)?;
        Ok(inodes.into_iter().map(|inode| Reserved { inode, generation: self.draw() }).collect())
    }

    /// The free blocks of a group that a discard may take: whatever freed them is durable ([`Volume::durable`]).
    ///
    /// # Errors
    /// The bitmap cannot be read.
    pub fn free_runs(&mut self, tx: &mut dyn Tx, group: GroupNr) -> Result<Vec<BlockRun>, OpError> {
        Ok(self.fs.space.free_runs(tx, group)?)
    }

    /// Whether a creation with a promised number changes no block of the table of inodes but its own. If not, it changes all
    /// before it that were never written, which are too many for one change of a small journal: [`Volume::open_table`] first.
    ///
    /// # Errors
    /// There is no such inode.
    pub fn is_table_open(&self, inode: InodeNr) -> Result<bool, OpError> {
        Ok(self.fs.space.is_table_open(inode)?)
    }

    /// Writes zeroes to blocks of the table of inodes before a promised number that were never written, as many as a step may.
    ///
    /// # Errors
    /// The table cannot be changed.
    pub fn open_table(&mut self, tx: &mut dyn Tx, inode: InodeNr) -> Result<Step, OpError> {
        self.op(tx, &Caller::system(Default::default()), |op| {
            while !op.volume.fs.space.open_table(&mut op.tx, inode)? {
                if op.is_half_full() {
                    return Ok(Step::More);
                }
            }
            Ok(Step::Done)
        })
    }

    /// Takes a promise of [`Volume::reserve_inodes`] back.
    pub fn give_back(&mut self, inode: InodeNr) {
        self.fs.space.end_reservation(inode);
    }

    /// As [`Volume::create`], with the number and generation that were promised. The promise ends where it succeeds.
    ///
    /// # Errors
    /// As [`Volume::create`].
    pub fn create_reserved(
        &mut self,
        tx: &mut dyn Tx,
        caller: &Caller,
        dir: InodeNr,
        name: &[u8],
        new: &NewInode<'_>,
        reserved: Reserved,
    ) -> Result<(), OpError> {
        self.op_of(Reach::One, tx, caller, |op| op.create(dir, name, new, Some(reserved)))?;
        self.fs.space.end_reservation(reserved.inode);
        Ok(())
    }

    /// Creates a file without a name (O_TMPFILE): an orphan until [`Volume::link`] gives it one.
    ///
    /// # Errors
    /// As [`Volume::create`]; [`OpError::Invalid`] for a directory.
    pub fn create_unnamed(
        &mut self,
        tx: &mut dyn Tx,
        caller: &Caller,
        dir: InodeNr,
        new: &NewInode<'_>,
    ) -> Result<InodeNr, OpError> {
        self.op_of(Reach::One, tx, caller, |op| {
            if new.kind == NewKind::Directory {
                return Err(OpError::Invalid("a directory needs a name"));
            }
            let dir = op.open_directory(dir)?;
            let mut inode = op.new_inode(&dir, None, new, None)?;
            inode.base.links_count = 0;
            op.add_orphan(&mut inode)?;
            op.put(&mut inode)?;
            Ok(inode.number)
        })
    }
}

impl Op<'_> {
    pub(super) fn create(
        &mut self,
        dir: InodeNr,
        name: &[u8],
        new: &NewInode<'_>,
        reserved: Option<Reserved>,
    ) -> Result<InodeNr, OpError> {
        let mut dir = self.open_directory(dir)?;
        self.judge_name(&dir, name)?;
        if self.lookup(&mut dir, name)?.is_some() {
            return Err(OpError::Exists);
        }
        let inode = self.new_inode(&dir, Some(name), new, reserved)?;
        if new.kind == NewKind::Directory {
            self.add_subdirectory(&mut dir)?;
        }
        self.add_name(&mut dir, name, &inode)?;
        Ok(inode.number)
    }

    /// An inode with one link (a directory: two) and its first content, written. `name` is the one that it will have in
    /// `parent`.
    pub(crate) fn new_inode(
        &mut self,
        parent: &OwnedInode,
        name: Option<&[u8]>,
        new: &NewInode<'_>,
        reserved: Option<Reserved>,
    ) -> Result<OwnedInode, OpError> {
        let kind = new.kind.file_type();
        let is_directory = kind == FileType::Directory;
        let generation = self.volume.draw();
        let space = &mut self.volume.fs.space;
        let Reserved { inode: number, generation } = match reserved {
            Some(reserved) => reserved,
            None => {
                let parent = parent.number;
                let inode = space.free_inode(&mut self.tx, parent, is_directory, generation)?;
                Reserved { inode, generation }
            }
        };
        // Blocks of the table before it come on top.
        let is_open = space.is_table_open(number)?;
        space.take_inode(&mut self.tx, number, is_directory)?;
        if !is_open {
            self.reach = Reach::Steps;
        }
        self.weigh_new(number);
        let size = self.volume.geometry().inode_size as usize;
        let inode = OwnedInode::new(number, size, self.extra_isize());
        let mut inode = inode.ok_or(super::content::DAMAGED)?;
        inode.base.generation = generation;
        inode.base.links_count = 1 + u16::from(kind == FileType::Directory);
        let inherits_group = parent.base.mode & SETGID != 0;
        let mut permissions = new.permissions & 0o7777;
        if inherits_group && kind == FileType::Directory {
            permissions |= SETGID;
        }
        inode.base.mode = kind.mode(permissions);
        inode.set_owner(
            self.caller.uid,
            if inherits_group { parent.gid() } else { self.caller.gid },
        );
        inode.set_flags(inherited(parent.flags(), kind), true);
        if parent.flags().contains(InodeFlags::PROJINHERIT)
            && self.volume.geometry().features.ro_compat.contains(RoCompat::PROJECT)
        {
            inode.set_project(parent.extra.projid);
        }
        self.touch(
            &mut inode,
            &[TimeField::Access, TimeField::Change, TimeField::Modification, TimeField::Creation],
        );
        if let Some(name) = name {
            self.note_name(&mut inode, parent.number, name);
        }
        self.inherit_list(parent, &mut inode, new.umask)?;
        self.first_content(parent.number, &mut inode, new.kind)?;
        self.put(&mut inode)?;
        Ok(inode)
    }

    fn first_content(
        &mut self,
        parent: InodeNr,
        inode: &mut OwnedInode,
        kind: NewKind<'_>,
    ) -> Result<(), OpError> {
        match kind {
            NewKind::Regular => self.empty_map(inode),
            NewKind::Directory => {
                self.empty_map(inode);
                let format = DirFormat::of(&self.volume.fs.superblock, self.volume.geometry());
                let about = self.about(inode, parent);
                self.fill_directory(inode, &first_block(&format, &about))?;
            }
            NewKind::Symlink(target) => self.store_target(inode, target)?,
            NewKind::CharDevice { major, minor } | NewKind::BlockDevice { major, minor } => {
                inode.set_device(major, minor);
            }
            NewKind::Fifo | NewKind::Socket => {}
        }
        Ok(())
    }

    /// Stores the target of a symbolic link: in the inode if it is short, else in a block, with a zero byte behind it.
    fn store_target(&mut self, inode: &mut OwnedInode, target: &[u8]) -> Result<(), OpError> {
        if target.is_empty() || target.contains(&0) {
            return Err(OpError::Invalid("a link needs a target without zero bytes"));
        }
        if target.len() < BLOCK_BYTES && inode.set_fast_symlink(target) {
            return Ok(());
        }
        if target.len() >= self.volume.geometry().block_size as usize {
            return Err(OpError::NameTooLong);
        }
        self.empty_map(inode);
        let run = self.allocate(inode, LogicalBlock(0), 1)?;
        self.map_run(inode, LogicalBlock(0), run, false)?;
        let block = self.tx.zeroed(run.start)?;
        block.get_mut(..target.len()).ok_or(OpError::NameTooLong)?.copy_from_slice(target);
        inode.set_size_bytes(target.len() as u64);
        Ok(())
    }

    /// Extra bytes of new inodes.
    pub(super) fn extra_isize(&self) -> u16 {
        let superblock = self.volume.superblock();
        let features = superblock.features();
        if !features.ro_compat.contains(RoCompat::EXTRA_ISIZE) {
            return EXTRA_ISIZE;
        }
        EXTRA_ISIZE.max(superblock.want_extra_isize).max(superblock.min_extra_isize)
    }
}

/// Flags that something new has from its directory (`EXT4_FL_INHERITED` and its masks).
fn inherited(parent: InodeFlags, kind: FileType) -> InodeFlags {
    let all = InodeFlags::SECRM
        | InodeFlags::UNRM
        | InodeFlags::COMPR
        | InodeFlags::SYNC
        | InodeFlags::NODUMP
        | InodeFlags::NOATIME
        | InodeFlags::JOURNAL_DATA
        | InodeFlags::NOTAIL
        | InodeFlags::DIRSYNC
        | InodeFlags::PROJINHERIT
        | InodeFlags::CASEFOLD
        | InodeFlags::DAX;
    let of_directories = InodeFlags::DIRSYNC | InodeFlags::CASEFOLD | InodeFlags::PROJINHERIT;
    let kept = match kind {
        FileType::Directory => all,
        FileType::Regular => all.difference(of_directories),
        _ => InodeFlags::NODUMP | InodeFlags::NOATIME,
    };
    parent & all & kept
}
