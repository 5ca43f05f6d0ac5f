//! The interface to the disk below the file system in memory.

use std::fmt;

use floe_disk::ops::{DataWrite, Reserved};
use floe_format::InodeNr;
use floe_format::ext::quota::QuotaKind;
use floe_sync::Arc;

use super::quotas::Quotas;
use crate::cubes::Gates;
use crate::op::{Op, OpKind};
use crate::store::{Space, Store};
use crate::{FsError, NameHash};

/// Facts about the disk for the file system in memory.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// How cookies are made.
    pub hash: NameHash,
    /// New files get maps of extents.
    pub extents: bool,
    /// Inodes have a time of creation.
    pub has_crtime: bool,
    /// Blocks of a cluster; 1 without bigalloc.
    pub cluster_blocks: u32,
    /// Inodes of a group: files are created near their directory.
    pub inodes_per_group: u32,
    /// How quotas limit changes.
    pub quotas: Quotas,
    /// Why each change must reach the disk at once; `None` if changes may wait.
    pub immediate: Option<&'static str>,
}

/// A store that changes may reach late: each as a whole, in an order that the caller chooses.
pub trait Lower: Store {
    /// Facts for the file system in memory.
    fn facts(&self) -> Facts;

    /// Promises numbers of free inodes, 1 to `most`, near a directory. Nobody else gets them before
    /// [`Deed::Create`] or [`Lower::give_back`]; nothing on the disk changes.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], or that the disk cannot be read.
    fn reserve_inodes(
        &self,
        directory: InodeNr,
        is_directory: bool,
        most: usize,
    ) -> Result<Vec<Reserved>, FsError>;

    /// Takes a promise back.
    fn give_back(&self, inode: InodeNr);

    /// Bytes and inodes that are left to a user, group or project before the disk would refuse him something or begin a time
    /// of grace.
    ///
    /// # Errors
    /// The disk cannot be read.
    fn quota_left(&self, _kind: QuotaKind, _id: u32) -> Result<(u64, u64), FsError> {
        Ok((u64::MAX, u64::MAX))
    }

    /// Free space of a cube without a lot more, and how many blocks there content never gets, free or not: those of metadata
    /// regions. 0 stands for the root cube, whose share has all lots that no cube has.
    fn room_in(&self, _cube: u32) -> (Space, u64) {
        (self.space(), 0)
    }

    /// Whether cubes that are full may take free lots from the root cube. They may until this is called.
    fn let_grow(&self, _may: bool) {}

    /// The gates of the cubes, where there can be cubes.
    fn shared_gates(&self) -> Option<Arc<Gates>> {
        None
    }

    /// As [`Store::tend_cubes`], below a memory with changes that wait.
    fn tend_cubes_below(&self, _above: &Above<'_>) -> Vec<u32> {
        self.tend_cubes()
    }

    /// As [`Store::sync_inode`], for so many threads that wait for changes of the same cube.
    ///
    /// # Errors
    /// As [`Store::sync_inode`].
    fn sync_inode_for(&self, inode: InodeNr, _threads: usize) -> Result<(), FsError> {
        self.sync_inode(inode)
    }

    /// The journal that an inode becomes durable with, where its cube has several: fsyncs of one are made together.
    fn log_of(&self, _inode: InodeNr) -> usize {
        0
    }

    /// Writes content of changes to its place before [`Lower::make`] makes them, as far as that can be done while others change
    /// other cubes. No other change of this cube is made before those are.
    fn write_ahead(&self, _deeds: &[Deed<'_>]) -> Vec<DataWrite> {
        Vec::new()
    }

    /// Makes changes in their order: all, or those before the first that cannot be made, or fewer. The first one is made
    /// or refused. Returns how many were made, and why the next one was refused, if it was.
    fn make(&self, deeds: &[Deed<'_>], content: Carried) -> (usize, Result<(), FsError>);
}

/// The content of files that changes bring.
#[derive(Debug, Default)]
pub struct Carried {
    /// Its part that [`Lower::write_ahead`] wrote.
    pub ahead: Vec<DataWrite>,
    /// Somebody waits until it is durable, so that what is little goes through the log.
    pub is_awaited: bool,
}

/// The file system in memory above a disk that looks after a cube. Nobody is inside the cube meanwhile.
pub struct Above<'a> {
    /// Lets the disk have what waits for a cube.
    pub settle: &'a dyn Fn(u32) -> Result<(), FsError>,
    /// Forgets what memory has of a cube, because the disk was changed below it.
    pub forget: &'a dyn Fn(u32),
}

impl Above<'_> {
    /// Nobody: nothing waits, and nothing is kept.
    pub const NOBODY: Self = Self { settle: &|_| Ok(()), forget: &|_| {} };
}

impl fmt::Debug for Above<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Above").finish_non_exhaustive()
    }
}

impl Deed<'_> {
    /// Bytes of content.
    pub(crate) fn written_bytes(&self) -> usize {
        match self {
            Self::Apply(Op { kind: OpKind::Write { bytes, .. }, .. }) => bytes.len(),
            _ => 0,
        }
    }

    /// The inode in whose cube it is made.
    pub fn home(&self) -> InodeNr {
        match self {
            Self::Apply(op) | Self::Create(op, _) | Self::Erase(op, _) => op.kind.home(),
            Self::Release(inode) => *inode,
        }
    }
}

/// A change that waited, on its way to the disk.
#[derive(Debug)]
pub enum Deed<'r> {
    /// Any change.
    Apply(Op<'r>),
    /// A creation under a number that was promised.
    Create(Op<'r>, Reserved),
    /// A change that takes the last name of an inode, whose [`Deed::Release`] comes later and no other change of it before: it
    /// may be deleted at once.
    Erase(Op<'r>, InodeNr),
    /// The deletion of an inode without names. Nothing happens where that is done.
    Release(InodeNr),
}
