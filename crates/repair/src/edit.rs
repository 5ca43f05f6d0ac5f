//! The changes that a repair can make, as data: [`crate::plan`] derives them from findings, and
//! [`crate::fixes`] carries them out.
//!
//! Edits are ordered by phase, then by object. Equal edits collapse into one, because several
//! findings may require the same change.

use floe_check::problem::Name;
use floe_format::ext::inode_flips::Flips;
use floe_format::{BlockNr, GroupNr, InodeNr, LogicalBlock};

/// When an edit is made. The file system is examined again between phases, so a later phase sees
/// the result of the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Superblock, descriptors and journal, on which everything else depends.
    Ground,
    /// Inodes, their maps and attributes.
    Inodes,
    /// Blocks with more than one owner.
    SharedBlocks,
    /// Blocks of directories and their entries.
    Directories,
    /// The directory tree: the root, lost+found, unconnected directories.
    Tree,
    /// Directories and extent trees that are rebuilt.
    Rebuild,
    /// Unattached files, link counts.
    Links,
    /// Bitmaps, counts, quotas, the orphan file, a new journal.
    Counts,
    /// Blocks that move into the cube of their file, once all else is sound.
    Cubes,
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
            Self::Cubes => "cubes",
        }
    }
}

/// Cost of a repair for the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Loss {
    /// Nothing.
    None,
    /// A file or directory lost its name and was connected to lost+found.
    Moved,
    /// A name was removed or changed.
    Name,
    /// Extended attributes were dropped.
    Attributes,
    /// Part of a file may be lost, or may hold another file's data.
    Data,
    /// A file is lost.
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
    /// A group descriptor, or the location of the bitmaps and tables that it names.
    Group {
        /// The group.
        group: GroupNr,
        /// The change.
        edit: GroupEdit,
    },
    /// The journal.
    Journal(JournalEdit),
    /// Marks the MMP block clean.
    CleanMmp,
    /// The orphan list: its inodes are processed as recovery does.
    Orphans(OrphanEdit),
    /// Recreates the resize inode.
    RecreateResizeInode,
    /// Adds blocks to the bad block list.
    BadBlocks {
        /// The blocks.
        blocks: Vec<BlockNr>,
        /// Whether the old list is dropped first.
        replace: bool,
    },
    /// Removes a block from the bad block list.
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
    /// A block of extended attributes.
    AttributeBlock {
        /// The block.
        block: BlockNr,
        /// The change.
        edit: AttributeBlockEdit,
    },
    /// Clones the multiply-claimed blocks of a file.
    CloneShared {
        /// The file.
        inode: InodeNr,
    },
    /// A directory block.
    Directory {
        /// The directory.
        dir: InodeNr,
        /// The block.
        logical: LogicalBlock,
        /// The change.
        edit: DirectoryEdit,
    },
    /// A directory entry.
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
    /// The directory tree.
    Tree(TreeEdit),
    /// Makes the directories of a native file system again, and gives its files their names back.
    OwnDirectories,
    /// Rebuilds a directory, sorted and indexed.
    RebuildDirectory {
        /// The directory.
        dir: InodeNr,
    },
    /// Rebuilds an extent tree with minimal depth.
    RebuildExtents {
        /// The file.
        inode: InodeNr,
    },
    /// Connects an unattached file or directory to lost+found.
    Attach {
        /// The inode.
        inode: InodeNr,
    },
    /// Releases an unattached empty file, once every directory entry that can be saved has been
    /// saved.
    Release {
        /// The inode.
        inode: InodeNr,
    },
    /// A link count.
    LinkCount {
        /// The inode.
        inode: InodeNr,
        /// Names counted.
        links: u16,
    },
    /// Rewrites the bitmaps and counts of a group as computed.
    GroupMaps {
        /// The group.
        group: GroupNr,
    },
    /// Rewrites the free totals of the superblock as computed.
    Totals,
    /// The reservation file of a lot of a native file system.
    Reservation {
        /// The first group of the lot.
        group: GroupNr,
        /// The change.
        edit: ReservationEdit,
    },
    /// Stores the names of all inodes of a native file system in them.
    Backpointers,
    /// The sub-superblock of a cube of a native file system.
    Cube {
        /// Its number.
        cube: u32,
        /// The change.
        edit: CubeEdit,
    },
    /// Gives an inode a number in the cube of all its names.
    MoveInode {
        /// The inode.
        inode: InodeNr,
    },
    /// Moves blocks of a file that lie in other cubes into its own.
    MoveHome {
        /// The file.
        inode: InodeNr,
    },
    /// Rewrites a quota file with the counted usage.
    QuotaFile {
        /// `user`, `group` or `project`.
        kind: &'static str,
    },
    /// The orphan file.
    OrphanFile(OrphanFileEdit),
    /// Rewrites all backup superblocks and descriptors.
    Backups,
}

/// A change of the superblock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // the names say it
pub enum SuperblockEdit {
    /// Restores the primary superblock and descriptors from the backup in use.
    PrimaryFromBackup,
    /// Nothing more: the journal, which was replayed, held a copy of the primary superblock.
    PrimaryFromJournal,
    /// Stores the identity of a native file system again.
    NativeIdentity,
    RandomUuid,
    InodesCount(u32),
    InodesPerGroup(u32),
    /// Bytes per group descriptor.
    DescriptorSize(u16),
    Revision1,
    ClearTestFlag,
    HashSignedness,
    MountTimeNow,
    WriteTimeNow,
    MinExtraIsize(u16),
    WantExtraIsize(u16),
    /// Names half MD4 as the hash of new directories.
    DefaultHash,
    NoEncryptionLevel,
    NoReservedDescriptors,
    /// Takes the first meta block group from a backup.
    FirstMetaBg(u32),
    DropMetaBg,
    DropResizeInodeFeature,
    DropChecksumSeed,
    DropGroupChecksums,
    DropFiletype,
    DropFastCommit,
    /// Switches multiple mount protection off, because its block is lost.
    DropMmp,
    /// The number that a backup superblock has.
    MmpBlock(BlockNr),
    SetCompat(u32),
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
    /// Clears the uninit flags and the unused inode count, and recomputes the checksum.
    Distrust,
    ClearUninit,
    ItableUnusedZero,
    ClearBlockUninit,
    ClearInodeUninit,
    /// The location is invalid: assign a new one.
    PlaceBlockBitmap,
    PlaceInodeBitmap,
    /// Takes the location from a valid backup descriptor, else creates an empty table elsewhere.
    PlaceInodeTable,
    /// Takes the location from a backup descriptor, because more of that table looks like inodes.
    InodeTableFromBackup,
    /// The location is already in use: move the content.
    MoveBlockBitmap,
    MoveInodeBitmap,
    MoveInodeTable,
    /// Stores the record of the group's lot again, in all its groups.
    LotRecord,
}

/// A change of a reservation file of a native file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReservationEdit {
    /// Makes an empty one with its name.
    Create,
    /// Lets its name lead to it.
    Name,
    /// Drops its map and sets its mode, owner and flags.
    Empty,
    /// Adds the free blocks of the region.
    Fill,
}

/// A change of the sub-superblock of a cube.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CubeEdit {
    /// Writes both copies, as the good one is.
    Copies,
    /// Clears the record of a failure.
    Clear,
    /// Makes it from the records of lots and the tree, or gives the lots back.
    Rebuild,
    /// Gives the lots in its list to the cube, or removes it.
    Lots,
    /// Makes its journal an empty one, or lets it have none.
    Journal,
    /// Records the smallest number of the cubes that it shares files with, itself among them.
    Couple(Option<u32>),
}

/// A change of the journal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum JournalEdit {
    /// Drops the journal; a new one is created at the end.
    Drop,
    /// Writes a fresh, empty journal superblock.
    Reset,
    /// Clears the journal fields of a superblock without the has_journal feature.
    Forget,
    ClearNeedsRecovery,
    /// Sets the recovery flag and replays the journal.
    Replay,
    ZeroStaleFields,
    /// Turns a journal of version 1 into one of version 2.
    Version2,
    /// Stores the `s_first` and `s_maxlen` with which the log was examined.
    Bounds {
        first: u32,
        blocks: u32,
    },
    /// Stores the size of the fast-commit area, in blocks.
    FastCommits(u32),
    /// Names this file system as the only user of an external journal.
    OneUser,
    /// Clears an error that the journal recorded.
    ClearError,
    /// Creates a new journal after the old one was dropped.
    Create,
    BackUpMap,
    /// Moves the visible journal file to the hidden inode.
    Hide(Name),
    /// Recomputes the checksum of an external journal's superblock.
    ExternalChecksum,
    /// Does without transactions that are damaged in the log: the replay has left them out.
    LoseTransactions,
    /// Does without fast commits that are damaged: the replay has left them out.
    LoseFastCommits,
    /// Flips back the bit of the superblock of the journal in an inode (0: the one on the other device) that its checksum tells.
    FlipBack(InodeNr),
}

/// A change of the orphan list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum OrphanEdit {
    /// Releases an inode of the list, or truncates it to its size.
    Finish(InodeNr),
    /// Clears the list.
    Empty,
}

/// A change of the orphan file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum OrphanFileEdit {
    /// Clears the number of an inode that is not the orphan file.
    Forget,
    /// Sets this inode as the orphan file if the superblock names no other one, else releases it.
    Adopt(InodeNr),
    Remove,
    Recreate,
    /// Clears all blocks.
    Clean,
    ClearPresent,
}

/// A change of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum InodeEdit {
    /// Deletes the file.
    Clear,
    /// Zeroes all bytes.
    Zero,
    /// Zeroes the first 128 bytes.
    ZeroBase,
    Checksum,
    /// Recomputes the checksum of an inode that lies amid garbage but is confirmed by other
    /// evidence.
    Keep,
    /// Flips back bits whose flip explains the wrong checksum.
    FlipBack(Flips),
    DtimeZero,
    DtimeNow,
    /// Corrects a deletion time that looks like an orphan link: zero if the inode has links, else
    /// now.
    SettleDtime,
    /// Gives an inode without links one, and no deletion time.
    Undelete,
    Mode(u16),
    /// Sets the type to directory and keeps the permissions.
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
    /// Clears the reference to the attribute block.
    DropAttributeBlock,
    /// Drops the attributes in the inode.
    DropOwnAttributes,
    /// Keeps the attributes in the inode that prove themselves, and removes the others, among them the one at
    /// this byte.
    SalvageAttributes {
        doubted: Option<u32>,
    },
    /// Stores the hash of the attribute value that the inode holds.
    ValueHash(u32),
    ExtraIsize,
    /// Corrects the epoch bits of a date before 1970.
    Epoch(&'static str),
    /// Truncates a file whose inline data are missing to zero.
    EmptyInline,
    /// Sets the size of an inline directory to a valid one.
    InlineDirectorySize,
    EaReferences(u64),
    /// Sets the size of an attribute value that lies in an inode of its own. Block 0: the attribute
    /// is in the inode itself.
    ValueSize {
        block: BlockNr,
        offset_bytes: u32,
        size: u32,
    },
    /// Clears the value inode number of an attribute whose value is in fact stored in place. Block
    /// 0: the attribute is in the inode itself.
    ValueHere {
        block: BlockNr,
        offset_bytes: u32,
    },
    /// Makes the name of an attribute one that Linux reads, or removes the attribute. Block 0: the
    /// attribute is in the inode itself.
    AttributeName {
        block: BlockNr,
        offset_bytes: u32,
    },
    /// Replaces an access list that Linux cannot read or misreads, or removes it. Block 0: the attribute
    /// is in the inode itself.
    AccessList {
        block: BlockNr,
        offset_bytes: u32,
    },
}

/// A change of the map of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum MapEdit {
    /// Removes an entry of an extent node, with everything below it. `node` 0: the root in the
    /// inode. `block`: where it leads, if known.
    RemoveExtent { node: BlockNr, logical: LogicalBlock, block: Option<BlockNr> },
    /// Turns a pointer of a block map into a hole. Level 0: to data.
    ZeroPointer { logical: LogicalBlock, level: u8, block: BlockNr },
    /// Drops everything from this block on.
    CutAt { first: LogicalBlock },
    /// Keeps the content of an extent node and recomputes its checksum.
    Checksum { node: BlockNr },
    /// Keeps the entries of an extent node and corrects its depth.
    Depth { node: BlockNr, depth: u16 },
    /// Keeps the pointers of an indirect block, and stores its inode and this level in its header.
    Header { node: BlockNr, level: u8 },
    /// Sets the first logical blocks of index entries to those of their nodes.
    IndexStarts,
    /// Moves an extent of a directory down to close a gap.
    CloseGap { logical: LogicalBlock, to: LogicalBlock },
    /// Marks the unwritten extents of a directory as written.
    MarkWritten,
    /// Converts a block map to extents.
    ToExtents,
    /// Puts blocks back that say by their checksums that they are the file's.
    Gather,
}

impl MapEdit {
    /// Whether the entries of all nodes stay as they are.
    pub(crate) const fn keeps_entries(&self) -> bool {
        matches!(self, Self::Checksum { .. } | Self::Depth { .. } | Self::Header { .. })
    }
}

/// A change of a block of extended attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum AttributeBlockEdit {
    /// Flips bits of one byte, which makes the checksum right. First of all, because other edits
    /// update the checksum.
    FlipBack {
        at: u16,
        bits: u8,
    },
    /// Keeps the attributes that prove themselves, and removes the others, among them the one at this byte.
    Salvage {
        doubted: Option<u32>,
    },
    Checksum,
    References(u32),
}

/// A change of a directory block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum DirectoryEdit {
    /// Repairs broken records, so that every readable name is kept.
    Salvage,
    /// Allocates a block for a hole.
    Fill,
    /// Replaces an unreadable block by an empty one.
    Empty,
    Checksum,
    /// Makes the first record `.`.
    MakeDot,
    /// Makes the second record `..`.
    MakeDotdot,
    /// Shortens the record of `.`.
    TrimDot,
}

/// A change of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum EntryEdit {
    Clear,
    Type(u8),
    /// Replaces slashes and zero bytes by dots.
    LegalCharacters,
    /// Replaces invalid UTF-8 by dots.
    ValidText,
}

/// A change of the directory tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum TreeEdit {
    CreateRoot,
    CreateLostFound,
    /// Removes the entry lost+found of an inode that cannot serve as such.
    UnlinkLostFound,
    /// Removes the entries of a directory that name another one, because they close a loop.
    Unlink {
        dir: InodeNr,
        child: InodeNr,
    },
    /// Connects an unconnected directory to lost+found.
    Reconnect(InodeNr),
    /// Makes `..` name the parent.
    Parent {
        dir: InodeNr,
        parent: InodeNr,
    },
}

impl Edit {
    /// Whether it moves a file, or blocks of one, into another cube.
    pub const fn moves_files(&self) -> bool {
        matches!(self.phase(), Phase::Cubes)
    }

    /// The phase in which the edit is made.
    pub const fn phase(&self) -> Phase {
        match self {
            // Types of entries prove inodes until those are mended.
            Self::Superblock(SuperblockEdit::DropFiletype) => Phase::Links,
            Self::Superblock(_)
            | Self::Group { .. }
            | Self::Journal(_)
            | Self::CleanMmp
            | Self::RecreateResizeInode
            | Self::BadBlocks { .. }
            | Self::NotBad { .. }
            | Self::OrphanFile(OrphanFileEdit::Forget | OrphanFileEdit::Adopt(_))
            | Self::Orphans(_) => Phase::Ground,
            Self::Inode { .. }
            | Self::Map { .. }
            | Self::AttributeBlock { .. }
            | Self::Reservation { edit: ReservationEdit::Empty, .. } => Phase::Inodes,
            Self::CloneShared { .. } => Phase::SharedBlocks,
            Self::Directory { .. } | Self::Entry { .. } => Phase::Directories,
            // Before files without names come into lost+found: the reservation file may be one.
            Self::Tree(_)
            | Self::OwnDirectories
            | Self::Reservation { edit: ReservationEdit::Name, .. } => Phase::Tree,
            Self::RebuildDirectory { .. } | Self::RebuildExtents { .. } => Phase::Rebuild,
            Self::Attach { .. }
            | Self::Release { .. }
            | Self::LinkCount { .. }
            | Self::Cube { .. }
            | Self::Reservation { edit: ReservationEdit::Create, .. } => Phase::Links,
            Self::GroupMaps { .. }
            | Self::Totals
            | Self::QuotaFile { .. }
            | Self::OrphanFile(_)
            | Self::Backpointers
            | Self::Reservation { edit: ReservationEdit::Fill, .. }
            | Self::Backups => Phase::Counts,
            Self::MoveInode { .. } | Self::MoveHome { .. } => Phase::Cubes,
        }
    }

    /// Whether no other finding depends on the edit: it changes neither the blocks and inodes in
    /// use nor the directory tree.
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
            Self::Map { edit, .. } => edit.keeps_entries(),
            Self::Directory { edit, .. } => matches!(edit, DirectoryEdit::Checksum),
            Self::Entry { edit, .. } => matches!(edit, EntryEdit::Clear | EntryEdit::Type(_)),
            Self::AttributeBlock { edit, .. } => {
                !matches!(edit, AttributeBlockEdit::Salvage { .. })
            }
            Self::LinkCount { .. } | Self::GroupMaps { .. } | Self::Totals => true,
            _ => false,
        }
    }

    /// Cost of the edit for the user.
    pub const fn loss(&self) -> Loss {
        match self {
            Self::Inode { edit, .. } => match edit {
                InodeEdit::Clear | InodeEdit::Zero => Loss::File,
                InodeEdit::DropAttributeBlock
                | InodeEdit::DropOwnAttributes
                | InodeEdit::SalvageAttributes { .. } => Loss::Attributes,
                InodeEdit::EmptyInline => Loss::Data,
                _ => Loss::None,
            },
            Self::Journal(JournalEdit::LoseTransactions | JournalEdit::LoseFastCommits)
            | Self::Cube { edit: CubeEdit::Journal, .. } => Loss::Data,
            Self::AttributeBlock { edit: AttributeBlockEdit::Salvage { .. }, .. } => {
                Loss::Attributes
            }
            Self::Map {
                edit:
                    MapEdit::RemoveExtent { .. } | MapEdit::ZeroPointer { .. } | MapEdit::CutAt { .. },
                ..
            } => Loss::Data,
            Self::Group { edit: GroupEdit::PlaceInodeTable, .. } | Self::Release { .. } => {
                Loss::File
            }
            Self::CloneShared { .. } | Self::Reservation { edit: ReservationEdit::Empty, .. } => {
                Loss::Data
            }
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
