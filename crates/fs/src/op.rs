//! Changes as values: the same one is asked for by a program, applied to a disk, and shown in a log.

use std::ops::Range;

use floe_disk::ops::{Change, NewInode, RangeMode, RenameMode, SetMode};
use floe_format::InodeNr;

use crate::Timestamp;

/// A change, and on whose behalf it is made.
#[derive(Clone, Debug)]
pub struct Op<'a> {
    /// Owner of what is created. 0 may use the blocks that are reserved.
    pub uid: u32,
    /// Group of what is created, unless the directory says another.
    pub gid: u32,
    /// Now: inodes get it as their times.
    pub time: Timestamp,
    /// The change.
    pub kind: OpKind<'a>,
}

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// The directory.
    pub directory: InodeNr,
    /// The name.
    pub name: &'a [u8],
}

/// A change.
#[derive(Clone, Debug)]
pub enum OpKind<'a> {
    /// Something new gets a name.
    Create {
        /// Its name.
        place: Place<'a>,
        /// Its type, permissions and content.
        new: NewInode<'a>,
    },
    /// A new file without a name, which is gone when nobody uses it any more unless a link gives it one.
    CreateUnnamed {
        /// A directory, whose rules hold for the file.
        directory: InodeNr,
        /// Its type, permissions and content.
        new: NewInode<'a>,
    },
    /// A further name.
    Link {
        /// The inode that gets the name.
        inode: InodeNr,
        /// The name.
        place: Place<'a>,
    },
    /// A name of anything but a directory goes.
    Unlink(Place<'a>),
    /// An empty directory goes.
    RemoveDirectory(Place<'a>),
    /// A name moves.
    Rename {
        /// From here.
        from: Place<'a>,
        /// To here.
        to: Place<'a>,
        /// Whether a name that is there is kept, replaced or exchanged.
        mode: RenameMode,
    },
    /// Fields of an inode change.
    Change {
        /// The inode.
        inode: InodeNr,
        /// The new size of a regular file.
        size_bytes: Option<u64>,
        /// Other fields.
        change: Change,
    },
    /// Bytes of a regular file change.
    Write {
        /// The file.
        inode: InodeNr,
        /// The first byte.
        offset_bytes: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// A range of a regular file is reserved, zeroed or freed, or moves what is behind it.
    Range {
        /// The file.
        inode: InodeNr,
        /// Whether the range is allocated, zeroed or removed.
        mode: RangeMode,
        /// The range.
        bytes: Range<u64>,
    },
    /// An extended attribute is set.
    SetAttribute {
        /// The inode that gets it.
        inode: InodeNr,
        /// Its whole name.
        name: &'a [u8],
        /// Its value. Access lists have the form that system calls use.
        value: &'a [u8],
        /// Whether it may, must or must not be there.
        mode: SetMode,
    },
    /// An extended attribute goes.
    RemoveAttribute {
        /// The inode that loses it.
        inode: InodeNr,
        /// Its whole name.
        name: &'a [u8],
    },
}

impl OpKind<'_> {
    /// The inode whose cube the change is made in: what changes, or the directory of the name.
    pub const fn home(&self) -> InodeNr {
        match self {
            Self::Create { place, .. } | Self::Unlink(place) | Self::RemoveDirectory(place) => {
                place.directory
            }
            Self::Rename { from, .. } => from.directory,
            Self::CreateUnnamed { directory, .. } => *directory,
            Self::Link { inode, .. }
            | Self::Change { inode, .. }
            | Self::Write { inode, .. }
            | Self::Range { inode, .. }
            | Self::SetAttribute { inode, .. }
            | Self::RemoveAttribute { inode, .. } => *inode,
        }
    }
}

/// The result of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The inode that was created.
    pub created: Option<InodeNr>,
    /// The inode that lost its last name, or one whose names several threads remove, so that it may have. Release it when it
    /// has none and nobody uses it.
    pub nameless: Option<InodeNr>,
}
