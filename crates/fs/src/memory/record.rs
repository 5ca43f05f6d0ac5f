//! A change that the disk has not got yet, as the log keeps it.

use floe_disk::ops::{Change, NewInode, NewKind, RenameMode, Reserved, SetMode};
use floe_ext4::files::Timestamp;
use floe_format::InodeNr;

use super::lower::Deed;
use super::short::Short;
use crate::op::{Op, OpKind, Place};

/// The place of a record in the order of all changes. The sequential order of the calls is the order of stamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Stamp(pub(crate) u64);

/// A change in the log: on whose behalf, when, and which.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) time: Timestamp,
    pub(crate) action: Action,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OwnedPlace {
    pub(crate) directory: InodeNr,
    pub(crate) name: Short,
}

/// The two names of a rename.
#[derive(Clone, Debug)]
pub(crate) struct OwnedWay {
    pub(crate) from: OwnedPlace,
    pub(crate) to: OwnedPlace,
}

impl OwnedPlace {
    fn place(&self) -> Place<'_> {
        Place { directory: self.directory, name: &self.name }
    }
}

impl From<&Place<'_>> for OwnedPlace {
    fn from(place: &Place<'_>) -> Self {
        Self { directory: place.directory, name: place.name.into() }
    }
}

/// The type of something new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BornKind {
    Regular,
    Directory,
    Symlink(Box<[u8]>),
    Fifo,
    Socket,
}

impl BornKind {
    /// `None` for devices, which are made at once.
    pub(crate) fn of(kind: NewKind<'_>) -> Option<Self> {
        Some(match kind {
            NewKind::Regular => Self::Regular,
            NewKind::Directory => Self::Directory,
            NewKind::Symlink(target) => Self::Symlink(target.into()),
            NewKind::Fifo => Self::Fifo,
            NewKind::Socket => Self::Socket,
            NewKind::CharDevice { .. } | NewKind::BlockDevice { .. } => return None,
        })
    }

    fn kind(&self) -> NewKind<'_> {
        match self {
            Self::Regular => NewKind::Regular,
            Self::Directory => NewKind::Directory,
            Self::Symlink(target) => NewKind::Symlink(target),
            Self::Fifo => NewKind::Fifo,
            Self::Socket => NewKind::Socket,
        }
    }
}

/// A change in the log. Content and sizes of files are not logged: a flush takes them from the mnode. Rare ones that are large
/// are boxed, because thousands wait.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Something new got its first name.
    Create { place: OwnedPlace, kind: BornKind, permissions: u16, umask: u16, reserved: Reserved },
    /// A file got a further name.
    Link { inode: InodeNr, place: OwnedPlace },
    /// A file lost a name.
    Unlink { inode: InodeNr, place: OwnedPlace },
    /// An empty directory went.
    RemoveDirectory { inode: InodeNr, place: OwnedPlace },
    /// A name moved. A directory that got another parent notes the directories above its new place.
    Rename {
        moved: InodeNr,
        replaced: Option<InodeNr>,
        way: Box<OwnedWay>,
        ancestors: Box<[InodeNr]>,
    },
    /// Permissions, owner or times changed.
    Change { inode: InodeNr, change: Box<Change> },
    /// An extended attribute was set, or it went.
    SetAttribute { inode: InodeNr, name: Box<[u8]>, value: Option<Box<[u8]>> },
    /// Nobody uses an inode without names any more.
    Release { inode: InodeNr },
}

impl Record {
    /// Calls `visit` for each mnode that the change concerns: two changes that share none can be made in any order.
    pub(crate) fn each_mnode(&self, mut visit: impl FnMut(InodeNr)) {
        match &self.action {
            Action::Create { place, reserved, .. } => {
                visit(place.directory);
                visit(reserved.inode);
            }
            Action::Link { inode, place }
            | Action::Unlink { inode, place }
            | Action::RemoveDirectory { inode, place } => {
                visit(place.directory);
                visit(*inode);
            }
            Action::Rename { moved, replaced, way, ancestors } => {
                let OwnedWay { from, to } = &**way;
                visit(from.directory);
                if to.directory != from.directory {
                    visit(to.directory);
                }
                visit(*moved);
                if let Some(replaced) = replaced {
                    visit(*replaced);
                }
                // The chain of parents begins with the new directory, which was visited.
                ancestors.iter().filter(|one| **one != from.directory).for_each(|one| visit(*one));
            }
            Action::Change { inode, .. }
            | Action::SetAttribute { inode, .. }
            | Action::Release { inode } => visit(*inode),
        }
    }

    /// The directory that gets a name, and bytes of the entry.
    pub(crate) fn new_name(&self) -> Option<(InodeNr, u64)> {
        match &self.action {
            Action::Create { place, .. } | Action::Link { place, .. } => Some(place),
            Action::Rename { way, .. } => Some(&way.to),
            _ => None,
        }
        // An entry is the name and 8 bytes, in multiples of 4.
        .map(|place| (place.directory, (place.name.len() as u64 + 8).next_multiple_of(4)))
    }

    /// The operation requested from the disk.
    pub(crate) fn deed(&self) -> Deed<'_> {
        let op = |kind| Op { uid: self.uid, gid: self.gid, time: self.time, kind };
        Deed::Apply(op(match &self.action {
            Action::Create { place, kind, permissions, umask, reserved } => {
                let (permissions, umask) = (*permissions, *umask);
                let new = NewInode { kind: kind.kind(), permissions, umask };
                let kind = OpKind::Create { place: place.place(), new };
                return Deed::Create(op(kind), *reserved);
            }
            Action::Link { inode, place } => OpKind::Link { inode: *inode, place: place.place() },
            Action::Unlink { place, .. } => OpKind::Unlink(place.place()),
            Action::RemoveDirectory { place, .. } => OpKind::RemoveDirectory(place.place()),
            Action::Rename { way, .. } => {
                let mode = RenameMode::Replace;
                OpKind::Rename { from: way.from.place(), to: way.to.place(), mode }
            }
            Action::Change { inode, change } => {
                OpKind::Change { inode: *inode, size_bytes: None, change: **change }
            }
            Action::SetAttribute { inode, name, value: Some(value) } => {
                OpKind::SetAttribute { inode: *inode, name, value, mode: SetMode::Any }
            }
            Action::SetAttribute { inode, name, value: None } => {
                OpKind::RemoveAttribute { inode: *inode, name }
            }
            Action::Release { inode } => return Deed::Release(*inode),
        }))
    }
}
