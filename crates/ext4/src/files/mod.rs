//! Reading files: path lookup, directories, contents, symbolic links, attributes. Never writes.
//!
//! Works on damaged file systems as far as possible. A structure that cannot be followed is
//! returned as a [`FileFault`] beside all that was readable; a [`FilesError`] means that nothing
//! was. Nothing is cached between calls, and no bytes on the disk can make a call loop.
//!
//! The caller opens the file system and replays its journal; `floe_check::view` does both.

use std::borrow::Cow;
use std::io;

use floe_blockdev::ReadBlocks;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::superblock::Superblock;
use floe_format::{BlockNr, BlockRun, Geometry, InodeNr, LogicalBlock};
use floe_sync::{Arc, OnceLock};

mod attributes;
mod content;
mod directory;
mod map;
mod node;
mod path;
mod walk;

pub use attributes::Attribute;
pub use content::{Content, Segment, SegmentKind, is_usable_target};
pub use directory::{DirectoryEntry, Listing};
pub use floe_format::ext::inode::Timestamp;
pub use map::FileMap;
pub use node::{Fields, Node, is_plausible};
pub use path::Follow;
pub use walk::{Step, Visit, Walk};

/// Why a file, directory or attribute could not be reached at all.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The file system has no such inode.
    #[error("there is no {inode}; the file system has inodes 1 to {last}")]
    NoSuchInode {
        /// The number asked for.
        inode: InodeNr,
        /// The last inode of the file system.
        last: u32,
    },
    /// The inode table of its group lies outside the file system.
    #[error("{inode} cannot be found: the inode table of its group is outside the file system")]
    NoTable {
        /// The inode asked for.
        inode: InodeNr,
    },
    /// The inode cannot be read.
    #[error("{inode} cannot be read: {source}")]
    Read {
        /// The inode asked for.
        inode: InodeNr,
        /// The system's error.
        source: io::Error,
    },
    /// The inode is not in use: it was deleted, or never written.
    #[error("{inode} is not in use")]
    Unused {
        /// The inode asked for.
        inode: InodeNr,
    },
    /// A component of a path does not exist.
    #[error("there is no {name} in {directory}")]
    NoSuchName {
        /// The missing name, escaped for printing.
        name: String,
        /// The directory that was searched, escaped for printing.
        directory: String,
    },
    /// A component of a path that is not its last one is not a directory.
    #[error("{path} is not a directory")]
    NotADirectory {
        /// The path up to it, escaped for printing.
        path: String,
    },
    /// More than 40 symbolic links in one path, as Linux counts them.
    #[error("{path}: too many levels of symbolic links")]
    TooManyLinks {
        /// The path, escaped for printing.
        path: String,
    },
    /// The content is encrypted, and Floe has no keys.
    #[error("{inode} is encrypted, and its content cannot be read without the key")]
    Encrypted {
        /// The inode.
        inode: InodeNr,
    },
    /// The inode has no content: it is a directory, device, pipe or socket.
    #[error("{inode} has no content: it is neither a regular file nor a symbolic link")]
    NoContent {
        /// The inode.
        inode: InodeNr,
    },
}

/// A part of a file that could not be read; the rest was.
#[derive(Debug, thiserror::Error)]
pub enum FileFault {
    /// The checksum of the inode does not fit.
    #[error("the checksum of the inode is wrong")]
    InodeChecksum,
    /// An entry has the name of an earlier one.
    #[error("the name {} is there twice; that of {inode} is left out", printable(.name))]
    NameTwice {
        /// The name.
        name: Vec<u8>,
        /// The inode that it names.
        inode: InodeNr,
    },
    /// A block of the mapping cannot be read. Everything it maps reads as zeroes.
    #[error("mapping {block} cannot be read: {source}")]
    MapUnreadable {
        /// The first logical block that it maps.
        logical: LogicalBlock,
        /// The mapping block.
        block: BlockNr,
        /// The system's error.
        source: io::Error,
    },
    /// A node of the mapping is damaged. Everything it maps reads as zeroes.
    #[error("the mapping is damaged at {logical}")]
    MapDamaged {
        /// The first logical block that the node maps.
        logical: LogicalBlock,
    },
    /// The checksum of a mapping block does not fit; the block was used nevertheless.
    #[error("the checksum of mapping {block} is wrong")]
    MapChecksum {
        /// The mapping block.
        block: BlockNr,
    },
    /// The mapping names blocks outside the file system, which read as zeroes.
    #[error("{logical} is mapped to {} blocks from {} on, outside the file system", .run.len_blocks, .run.start)]
    MapOutside {
        /// First logical block.
        logical: LogicalBlock,
        /// These blocks.
        run: BlockRun,
    },
    /// The mapping names blocks that belong to another cube ([`Bounds`]), which read as zeroes.
    #[error("{logical} is mapped to {} blocks from {} on, which belong to another cube", .run.len_blocks, .run.start)]
    MapOfAnother {
        /// First logical block.
        logical: LogicalBlock,
        /// These blocks.
        run: BlockRun,
    },
    /// The block of attributes belongs to another cube ([`Bounds`]); nothing of it was used.
    #[error("attribute {block} belongs to another cube")]
    AttributesOfAnother {
        /// The block.
        block: BlockNr,
    },
    /// Two extents map the same logical block; the first one counts.
    #[error("{logical} is mapped twice")]
    MapOverlap {
        /// First logical block of the second extent.
        logical: LogicalBlock,
    },
    /// The inode has inline data, but its attribute is missing or damaged.
    #[error("the inline data are incomplete")]
    InlineDamaged,
    /// Data blocks cannot be read, and read as zeroes.
    #[error("{len_bytes} bytes from byte {offset_bytes} on cannot be read: {source}")]
    DataUnreadable {
        /// Offset in the file.
        offset_bytes: u64,
        /// Number of bytes.
        len_bytes: u64,
        /// The system's error.
        source: io::Error,
    },
    /// A block of a directory cannot be read.
    #[error("{logical} of the directory cannot be read: {source}")]
    DirectoryUnreadable {
        /// Block of the directory.
        logical: LogicalBlock,
        /// The system's error.
        source: io::Error,
    },
    /// A directory block is damaged; entries before the damage were read.
    #[error("{logical} of the directory is damaged from byte {offset_bytes} on")]
    DirectoryDamaged {
        /// Block of the directory.
        logical: LogicalBlock,
        /// First invalid byte of the block.
        offset_bytes: u32,
    },
    /// The checksum of a directory block does not fit; its entries were used nevertheless.
    #[error("the checksum of {logical} of the directory is wrong")]
    DirectoryChecksum {
        /// Block of the directory.
        logical: LogicalBlock,
    },
    /// An entry whose name no program could use: empty, or with a `/` or a zero byte.
    #[error("an entry for {inode} has the impossible name {name}")]
    ImpossibleName {
        /// The inode it names.
        inode: InodeNr,
        /// The name, escaped for printing.
        name: String,
    },
    /// The block of attributes cannot be read.
    #[error("attribute {block} cannot be read: {source}")]
    AttributesUnreadable {
        /// The block.
        block: BlockNr,
        /// The system's error.
        source: io::Error,
    },
    /// Attributes are damaged; those before the damage were read.
    #[error("the extended attributes are damaged")]
    AttributesDamaged,
    /// The value of an attribute cannot be read.
    #[error("the value of attribute {name} cannot be read")]
    AttributeValue {
        /// Its name, escaped for printing.
        name: String,
    },
}

/// Knows which blocks an inode may have, in a file system whose parts belong to different owners.
pub trait Bounds: Send + Sync {
    /// Whether all blocks of a run may be those of an inode.
    fn may_have(&self, inode: InodeNr, run: BlockRun) -> bool;
}

/// A file system whose files can be read. Cheap to create; threads may share it.
#[derive(Clone)]
pub struct Files<'d> {
    device: &'d dyn ReadBlocks,
    superblock: Superblock,
    geometry: Geometry,
    groups: Cow<'d, [GroupDesc]>,
    refuses_garbage: bool,
    refuses_damaged_names: bool,
    bounds: OnceLock<Arc<dyn Bounds>>,
}

impl<'d> Files<'d> {
    /// Opens the files of a file system: its journal must be empty or replayed over `device`, and
    /// `groups` are all its descriptors.
    pub fn new(
        device: &'d dyn ReadBlocks,
        superblock: Superblock,
        geometry: Geometry,
        groups: impl Into<Cow<'d, [GroupDesc]>>,
    ) -> Self {
        Self {
            device,
            superblock,
            geometry,
            groups: groups.into(),
            refuses_garbage: false,
            refuses_damaged_names: false,
            bounds: OnceLock::new(),
        }
    }

    /// From now on blocks that an inode may not have are faults, and are not read. Only the first call counts.
    pub fn keep_within(&self, bounds: Arc<dyn Bounds>) {
        let _ = self.bounds.set(bounds);
    }

    fn may_have(&self, inode: InodeNr, run: BlockRun) -> bool {
        self.bounds.get().is_none_or(|bounds| bounds.may_have(inode, run))
    }

    /// The same files, except that bytes that no checksum proves and that do not look like an inode
    /// ([`is_plausible`]) count as an unused one.
    pub fn without_garbage(self) -> Self {
        Self { refuses_garbage: true, ..self }
    }

    /// The same files, except that entries of directory blocks with a wrong checksum are left out, because they may lead to
    /// the files of another directory. The fault is listed as ever.
    pub fn without_damaged_names(self) -> Self {
        Self { refuses_damaged_names: true, ..self }
    }

    /// The superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// All descriptors, by group.
    pub fn groups(&self) -> &[GroupDesc] {
        &self.groups
    }

    /// Where structures lie.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Reads an inode.
    ///
    /// # Errors
    /// [`FilesError::NoSuchInode`], [`FilesError::NoTable`], [`FilesError::Read`]. An unused inode
    /// is not an error.
    pub fn node(&self, inode: InodeNr) -> Result<Node, FilesError> {
        let last = self.geometry.inodes_count;
        if self.geometry.place_of(inode).is_none() {
            return Err(FilesError::NoSuchInode { inode, last });
        }
        let offset = crate::inode_table::inode_offset(inode, &self.geometry, &self.groups)
            .ok_or(FilesError::NoTable { inode })?;
        let mut bytes = vec![0; self.geometry.inode_size as usize];
        self.device
            .read_at(offset, &mut bytes)
            .map_err(|source| FilesError::Read { inode, source })?;
        Ok(Node::new(inode, bytes, self))
    }

    /// Reads one block.
    fn block(&self, block: BlockNr) -> io::Result<Vec<u8>> {
        if !self.geometry.contains(block) {
            let outside = format!("{block} is outside the file system");
            return Err(io::Error::new(io::ErrorKind::InvalidData, outside));
        }
        let mut bytes = vec![0; self.geometry.block_size as usize];
        self.device.read_at(self.geometry.offset_bytes(block), &mut bytes)?;
        Ok(bytes)
    }

    fn checksums(&self) -> bool {
        self.geometry.features.metadata_csum()
    }

    fn seed_of(&self, node: &Node) -> u32 {
        self.superblock.seed().of_inode(node.number, node.inode().base.generation)
    }
}

/// A name or path for people: printable text unchanged, everything else escaped.
pub fn printable(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                character if character.is_control() => text.extend(character.escape_default()),
                character => text.push(character),
            }
        }
        text.extend(chunk.invalid().escape_ascii().map(char::from));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn names_for_people_hide_nothing() {
        assert_eq!(printable("caf\u{e9}".as_bytes()), "caf\u{e9}");
        assert_eq!(printable(b"a\nb\\c\x1b[0m"), "a\\nb\\\\c\\u{1b}[0m");
        assert_eq!(printable(b"\xff\xfe."), "\\xff\\xfe.");
    }
}
