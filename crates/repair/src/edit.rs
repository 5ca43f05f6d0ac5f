//! What a repair changes, as data: one value for each kind of change, made from findings by
//! [`crate::plan`], carried out by [`crate::fixes`].
//!
//! Edits are ordered by phase, then by object, and equal ones are one: several findings may ask for
//! the same.

use floe_check::problem::Name;
use floe_format::ext::inode_flips::Flips;
use floe_format::{BlockNr, GroupNr, InodeNr, LogicalBlock};

/// When an edit is made. Later phases look at what earlier ones left: the file system is examined
/// again in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Superblock, descriptors, journal: what everything else is found by.
    Ground,
    /// Inodes, their maps and attributes.
    Inodes,
    /// Blocks with more than one owner.
    SharedBlocks,
    /// Blocks of directories and their entries.
    Directories,
    /// The tree: the root, lost+found, directories without a place.
    Tree,
    /// Directories and extent trees written anew.
    Rebuild,
    /// Files without a name, link counts.
    Links,
    /// Bitmaps, counts, quotas, the orphan file, a new journal.
    Counts,
}

impl Phase {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ground => "superblock",
            Self::Inodes => "inodes",
            Self::SharedBlocks => "shared blocks",
            Self::Directories => "directories",
            Self::Tree => "tree",
            Self::Rebuild => "rebuild",
            Self::Links => "links",
            Self::Counts => "counts",
        }
    }
}

/// What a repair costs the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Loss {
    /// Nothing.
    None,
    /// A file or directory lost its name and is in lost+found.
    Moved,
    /// A name was removed or changed.
    Name,
    /// Extended attributes were dropped.
    Attributes,
    /// A part of a file may be gone or may hold what another file holds.
    Data,
    /// A file is gone.
    File,
}

impl Loss {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Moved => "moved",
            Self::Name => "name",
            Self::Attributes => "attributes",
            Self::Data => "data",
            Self::File => "file",
        }
    }
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Edit {
    /// The superblock.
    Superblock(SuperblockEdit),
    /// A group descriptor, or where it says that bitmaps and tables are.
    Group {
        /// The group.
        group: GroupNr,
        /// The change.
        edit: GroupEdit,
    },
    /// The journal.
    Journal(JournalEdit),
    /// The block against multiple mounts is written clean.
    CleanMmp,
    /// The list of orphans: what it names is finished as recovery does.
    Orphans(OrphanEdit),
    /// The inode that reserves blocks for growing is made anew.
    RecreateResizeInode,
    /// Blocks are put on the list of bad blocks.
    BadBlocks {
        /// The blocks.
        blocks: Vec<BlockNr>,
        /// Whether what is on it goes.
        replace: bool,
    },
    /// A block is taken off the list of bad blocks.
    NotBad {
        /// The block.
        block: BlockNr,
    },
    /// An inode.
    Inode {
        /// The inode.
        inode: InodeNr,
        /// The change.
        edit: InodeEdit,
    },
    /// The map of a file.
    Map {
        /// The file.
        inode: InodeNr,
        /// The change.
        edit: MapEdit,
    },
    /// A block of attributes.
    AttributeBlock {
        /// The block.
        block: BlockNr,
        /// The change.
        edit: AttributeBlockEdit,
    },
    /// Blocks of a file that others claim too are copied, so that it has its own.
    CloneShared {
        /// The file.
        inode: InodeNr,
    },
    /// A block of a directory.
    Directory {
        /// The directory.
        dir: InodeNr,
        /// The block.
        logical: LogicalBlock,
        /// The change.
        edit: DirectoryEdit,
    },
    /// An entry of a directory.
    Entry {
        /// The directory.
        dir: InodeNr,
        /// The block.
        logical: LogicalBlock,
        /// Byte of the entry in its block.
        offset_bytes: u32,
        /// The change.
        edit: EntryEdit,
    },
    /// The tree of directories.
    Tree(TreeEdit),
    /// A directory is written anew, sorted and indexed.
    RebuildDirectory {
        /// The directory.
        dir: InodeNr,
    },
    /// An extent tree is written anew, as flat as it can be.
    RebuildExtents {
        /// The file.
        inode: InodeNr,
    },
    /// A file or directory without a name is entered in lost+found.
    Attach {
        /// The inode.
        inode: InodeNr,
    },
    /// An empty file without a name is given up, once every name there is has been saved.
    Release {
        /// The inode.
        inode: InodeNr,
    },
    /// A link count.
    LinkCount {
        /// The inode.
        inode: InodeNr,
        /// Names found.
        links: u16,
    },
    /// The bitmaps and counts of a group are written as computed.
    GroupMaps {
        /// The group.
        group: GroupNr,
    },
    /// The free totals of the superblock are written as computed.
    Totals,
    /// A quota file is written anew with the usage that was counted.
    QuotaFile {
        /// `user`, `group` or `project`.
        kind: &'static str,
    },
    /// The orphan file.
    OrphanFile(OrphanFileEdit),
    /// All backup superblocks and descriptors are written anew.
    Backups,
}

/// A change of the superblock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // the names say it
pub enum SuperblockEdit {
    /// The primary superblock and descriptors are written anew from the backup in use.
    PrimaryFromBackup,
    RandomUuid,
    InodesCount(u32),
    InodesPerGroup(u32),
    /// Bytes of a group descriptor.
    DescriptorSize(u16),
    Revision1,
    ClearTestFlag,
    HashSignedness,
    MountTimeNow,
    WriteTimeNow,
    MinExtraIsize(u16),
    WantExtraIsize(u16),
    NoReservedDescriptors,
    /// The first meta block group is the one that a backup names.
    FirstMetaBg(u32),
    DropMetaBg,
    DropResizeInodeFeature,
    DropChecksumSeed,
    DropGroupChecksums,
    DropFiletype,
    /// Protection against multiple mounts is switched off: its block is lost.
    DropMmp,
    /// The number that a backup superblock has.
    MmpBlock(BlockNr),
    SetIncompat(u32),
    SetRoCompat(u32),
    ClearRoCompat(u32),
    NoJournalDevice,
    MadeByLinux,
    /// A field gets the value with which the file system was looked at.
    AsExamined(&'static str),
    /// The number gets the value with which the file system was looked at.
    MendQuotaInode(&'static str),
    ProjectQuotaInode(InodeNr),
    MoveQuotaInode(&'static str),
}

/// A change of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum GroupEdit {
    /// Shortcuts are no longer trusted and the checksum is written anew.
    Distrust,
    ClearUninit,
    ItableUnusedZero,
    ClearBlockUninit,
    ClearInodeUninit,
    /// The location is lost: a new one.
    PlaceBlockBitmap,
    PlaceInodeBitmap,
    /// From a backup descriptor if one is good, else an empty table elsewhere.
    PlaceInodeTable,
    /// From a backup descriptor, which leads to more of what looks like inodes.
    InodeTableFromBackup,
    /// The location is taken: the content moves.
    MoveBlockBitmap,
    MoveInodeBitmap,
    MoveInodeTable,
}

/// A change of the journal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum JournalEdit {
    /// The journal is dropped, to be made anew at the end.
    Drop,
    /// A fresh, empty journal superblock.
    Reset,
    /// The superblock forgets a journal that it says not to have.
    Forget,
    ClearNeedsRecovery,
    /// Recovery is asked for, and made.
    Replay,
    ZeroStaleFields,
    /// `s_first` and `s_maxlen` get the values with which the log was looked at.
    Bounds {
        first: u32,
        blocks: u32,
    },
    /// An error that the journal recorded was dealt with.
    ClearError,
    /// A new journal, after the old one was dropped.
    Create,
    BackUpMap,
    /// The visible journal file becomes the hidden inode.
    Hide(Name),
    /// The superblock of an external journal gets its checksum.
    ExternalChecksum,
}

/// A change of the orphan list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum OrphanEdit {
    /// An inode of the list is released, or cut to its size.
    Finish(InodeNr),
    /// The list is emptied.
    Empty,
}

/// A change of the orphan file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum OrphanFileEdit {
    /// The superblock forgets a number that is not the orphan file's.
    Forget,
    /// The superblock names this inode if it names no other one, else the inode is released.
    Adopt(InodeNr),
    Remove,
    Recreate,
    /// All blocks are written clean.
    Clean,
    ClearPresent,
}

/// A change of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum InodeEdit {
    /// The file is deleted.
    Clear,
    /// All bytes become zero.
    Zero,
    /// The first 128 bytes become zero.
    ZeroBase,
    Checksum,
    /// An inode that lies amid garbage, and is proved by other evidence, gets its checksum.
    Keep,
    /// Bits that were flipped, as the checksum proves, are flipped back.
    FlipBack(Flips),
    DtimeZero,
    DtimeNow,
    /// The deletion time that looks like an orphan link: zero if the inode has links, else now.
    SettleDtime,
    Mode(u16),
    /// The type becomes directory, permissions stay.
    BecomeDirectory,
    SetFlags(u32),
    ClearFlags(u32),
    Size(u64),
    Sectors(u64),
    FaddrZero,
    FragZero,
    FsizeZero,
    SizeHighZero,
    BlocksHighZero,
    FileAclHighZero,
    /// The attribute block is forgotten.
    DropAttributeBlock,
    /// The attributes in the inode are dropped.
    DropOwnAttributes,
    ExtraIsize,
    /// A date before 1970 gets its epoch bits right.
    Epoch(&'static str),
    /// A file whose inline data are missing becomes empty.
    EmptyInline,
    /// The size of an inline directory becomes a possible one.
    InlineDirectorySize,
    EaReferences(u64),
    /// An attribute gets the size of its value, which lies in an inode of its own. Block 0: the
    /// attribute is in the inode itself.
    ValueSize {
        block: BlockNr,
        offset_bytes: u32,
        size: u32,
    },
    /// An attribute that names an inode has its value beside its name after all. Block 0: the
    /// attribute is in the inode itself.
    ValueHere {
        block: BlockNr,
        offset_bytes: u32,
    },
}

/// A change of the map of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum MapEdit {
    /// An entry of an extent node goes, with all below it. `node` 0: the root in the inode. `block`:
    /// where it leads, where that is known.
    RemoveExtent { node: BlockNr, logical: LogicalBlock, block: Option<BlockNr> },
    /// A pointer of a block map becomes a hole. Level 0: to data.
    ZeroPointer { logical: LogicalBlock, level: u8, block: BlockNr },
    /// An extent node keeps its content and gets its checksum.
    Checksum { node: BlockNr },
    /// An extent node keeps its entries and says how many levels are below it.
    Depth { node: BlockNr, depth: u16 },
    /// The first logical blocks of index entries follow their nodes.
    IndexStarts,
    /// An extent of a directory moves down to close a gap.
    CloseGap { logical: LogicalBlock, to: LogicalBlock },
    /// Extents of a directory that were never written count as written.
    MarkWritten,
    /// The block map becomes extents.
    ToExtents,
}

/// A change of a block of attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum AttributeBlockEdit {
    Checksum,
    References(u32),
}

/// A change of a block of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum DirectoryEdit {
    /// Broken records are mended, so that all names that can be told apart stay.
    Salvage,
    /// A hole gets a block.
    Fill,
    /// A block that cannot be read counts as empty.
    Empty,
    Checksum,
    /// The first slot becomes `.`.
    MakeDot,
    /// The second slot becomes `..`.
    MakeDotdot,
    /// `.` is cut to its size.
    TrimDot,
}

/// A change of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum EntryEdit {
    Clear,
    Type(u8),
    /// Slashes and zero bytes become dots.
    LegalCharacters,
    /// What is no valid text becomes dots.
    ValidText,
}

/// A change of the tree of directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum TreeEdit {
    CreateRoot,
    CreateLostFound,
    /// What is called lost+found, and cannot be it, loses the name.
    UnlinkLostFound,
    /// Entries of a directory that name another one go: they close a loop.
    Unlink {
        dir: InodeNr,
        child: InodeNr,
    },
    /// A directory that hangs on nothing is entered in lost+found.
    Reconnect(InodeNr),
    /// `..` is made to name the parent.
    Parent {
        dir: InodeNr,
        parent: InodeNr,
    },
}

impl Edit {
    /// When the edit is made.
    pub const fn phase(&self) -> Phase {
        match self {
            Self::Superblock(_)
            | Self::Group { .. }
            | Self::Journal(_)
            | Self::CleanMmp
            | Self::RecreateResizeInode
            | Self::BadBlocks { .. }
            | Self::NotBad { .. }
            | Self::OrphanFile(OrphanFileEdit::Forget | OrphanFileEdit::Adopt(_))
            | Self::Orphans(_) => Phase::Ground,
            Self::Inode { .. } | Self::Map { .. } | Self::AttributeBlock { .. } => Phase::Inodes,
            Self::CloneShared { .. } => Phase::SharedBlocks,
            Self::Directory { .. } | Self::Entry { .. } => Phase::Directories,
            Self::Tree(_) => Phase::Tree,
            Self::RebuildDirectory { .. } | Self::RebuildExtents { .. } => Phase::Rebuild,
            Self::Attach { .. } | Self::Release { .. } | Self::LinkCount { .. } => Phase::Links,
            Self::GroupMaps { .. }
            | Self::Totals
            | Self::QuotaFile { .. }
            | Self::OrphanFile(_)
            | Self::Backups => Phase::Counts,
        }
    }

    /// Whether nothing that other findings are about depends on the edit: neither which blocks and
    /// inodes are in use, nor the tree of directories.
    pub const fn is_quiet(&self) -> bool {
        match self {
            Self::Inode { edit, .. } => matches!(
                edit,
                InodeEdit::Checksum
                    | InodeEdit::DtimeZero
                    | InodeEdit::Sectors(_)
                    | InodeEdit::FaddrZero
                    | InodeEdit::FragZero
                    | InodeEdit::FsizeZero
                    | InodeEdit::BlocksHighZero
                    | InodeEdit::Epoch(_)
                    | InodeEdit::EaReferences(_)
            ),
            Self::Map { edit, .. } => {
                matches!(edit, MapEdit::Checksum { .. } | MapEdit::Depth { .. })
            }
            Self::Directory { edit, .. } => matches!(edit, DirectoryEdit::Checksum),
            Self::Entry { edit, .. } => matches!(edit, EntryEdit::Clear | EntryEdit::Type(_)),
            Self::AttributeBlock { .. }
            | Self::LinkCount { .. }
            | Self::GroupMaps { .. }
            | Self::Totals => true,
            _ => false,
        }
    }

    /// What the edit costs.
    pub const fn loss(&self) -> Loss {
        match self {
            Self::Inode { edit, .. } => match edit {
                InodeEdit::Clear | InodeEdit::Zero => Loss::File,
                InodeEdit::DropAttributeBlock | InodeEdit::DropOwnAttributes => Loss::Attributes,
                InodeEdit::EmptyInline => Loss::Data,
                _ => Loss::None,
            },
            Self::Map {
                edit: MapEdit::RemoveExtent { .. } | MapEdit::ZeroPointer { .. }, ..
            } => Loss::Data,
            Self::Group { edit: GroupEdit::PlaceInodeTable, .. } | Self::Release { .. } => {
                Loss::File
            }
            Self::CloneShared { .. } => Loss::Data,
            Self::Directory { edit: DirectoryEdit::Salvage | DirectoryEdit::Empty, .. }
            | Self::Entry {
                edit: EntryEdit::Clear | EntryEdit::LegalCharacters | EntryEdit::ValidText,
                ..
            } => Loss::Name,
            Self::Tree(TreeEdit::Reconnect(_)) | Self::Attach { .. } => Loss::Moved,
            _ => Loss::None,
        }
    }
}
