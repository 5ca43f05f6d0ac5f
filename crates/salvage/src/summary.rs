//! The result of a run: the source of each rebuilt object, and totals.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use floe_format::{BlockRun, InodeNr};

use crate::cut::Cut;
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
    /// The inode is in its place, but its size was impossible, and now ends with its last mapped
    /// block.
    Size,
    /// A directory rebuilt from its blocks, or only from the entries of others. Mode, owner and
    /// times are unknown.
    Directory,
    /// A directory in its place to which entries were added.
    Extended,
}

/// Inodes that were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodeCounts {
    /// Files without a name whose backpointers (native file systems) say which directory they are in.
    pub placed_by_hints: u64,
    /// In use, in their places.
    pub in_place: u64,
    /// Taken from copies elsewhere.
    pub from_copies: u64,
    /// Copies that were not used, because other files own their blocks.
    pub copies_refused: u64,
    /// Files whose impossible sizes were replaced.
    pub sizes_corrected: u64,
}

/// Losses that no later step can mend.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    /// A piece that the image lost from its middle.
    pub cut: Option<Cut>,
    /// Blocks that cannot be read. A piece that is missing counts.
    pub unreadable_blocks: u64,
    /// Bytes of the file system behind the end of the device.
    pub missing_bytes: u64,
    /// Blocks that cannot be read, with those behind the end of the device. Sorted.
    pub unreadable: Vec<BlockRun>,
    /// Directories in their places that lost entries.
    pub partial_directories: BTreeSet<InodeNr>,
    /// Logical blocks whose place is lost, of files with a rebuilt map. The last range may end behind
    /// the file.
    pub lost_blocks: BTreeMap<InodeNr, Vec<Range<u64>>>,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The source of superblock and geometry.
    pub origin: Origin,
    /// Whether metadata carry checksums, which say whose they are.
    pub has_checksums: bool,
    /// Losses that no later step can mend.
    pub losses: Losses,
    /// Inodes that were found.
    pub inodes: InodeCounts,
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
            losses: Losses::default(),
            inodes: InodeCounts::default(),
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

    /// Notes which logical blocks of a file are lost. Returns whether there are any.
    pub(crate) fn lose(&mut self, inode: InodeNr, blocks: Vec<Range<u64>>) -> bool {
        let is_partial = !blocks.is_empty();
        if is_partial {
            self.losses.lost_blocks.insert(inode, blocks);
        }
        is_partial
    }
}
