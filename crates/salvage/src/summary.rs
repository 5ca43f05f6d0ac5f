//! The result of a run: the source of each rebuilt object, and totals.

use std::collections::BTreeMap;

use floe_format::InodeNr;

use crate::frame::Origin;

/// The source of an inode that is not simply in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Provenance {
    /// Another copy of the inode, usually in the journal. The file may have changed since.
    Copy,
    /// The inode is in its place, but its map was rebuilt from extent blocks.
    Map {
        /// Parts of the map are lost.
        is_partial: bool,
    },
    /// Only extent blocks are left. Mode, owner and times are unknown; zeroes at the end of the file are
    /// dropped, because its size is unknown.
    Extents {
        /// Parts of the map are lost, or there are holes that may be lost parts.
        is_partial: bool,
        /// The inode number, and so the name, is known.
        is_named: bool,
    },
    /// A directory rebuilt from its blocks, or only from the entries of others. Mode, owner and
    /// times are unknown.
    Directory,
    /// A directory in its place to which entries were added.
    Extended,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The source of superblock and geometry.
    pub origin: Origin,
    /// Whether metadata carry checksums, which say whose they are.
    pub has_checksums: bool,
    /// Blocks that cannot be read.
    pub unreadable_blocks: u64,
    /// Inodes in use in their places.
    pub inodes_in_place: u64,
    /// Inodes taken from copies elsewhere.
    pub inodes_from_copies: u64,
    /// Copies of inodes that were not used, because other files own their blocks.
    pub copies_refused: u64,
    /// Files in place whose maps were rebuilt.
    pub maps_rebuilt: u64,
    /// Files without an inode whose content was found by extent blocks.
    pub files_from_extents: u64,
    /// Those among them whose inode number is known.
    pub files_numbered: u64,
    /// Directories rebuilt without an inode.
    pub directories_rebuilt: u64,
    /// Directories in place to which entries were added.
    pub directories_extended: u64,
    /// Entries of old directory blocks in the journal that were put back.
    pub names_from_journal: u64,
    /// Files and directories that lost their names, and got new ones.
    pub unnamed: u64,
    /// The source of each object that is not simply in its place.
    pub provenance: BTreeMap<InodeNr, Provenance>,
}

impl Summary {
    pub(crate) fn new(origin: Origin, has_checksums: bool) -> Self {
        Self {
            origin,
            has_checksums,
            unreadable_blocks: 0,
            inodes_in_place: 0,
            inodes_from_copies: 0,
            copies_refused: 0,
            maps_rebuilt: 0,
            files_from_extents: 0,
            files_numbered: 0,
            directories_rebuilt: 0,
            directories_extended: 0,
            names_from_journal: 0,
            unnamed: 0,
            provenance: BTreeMap::new(),
        }
    }
}
