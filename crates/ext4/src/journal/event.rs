//! The events of reading a journal, and the problem that each stands for.

use floe_format::{BlockNr, InodeNr, LogicalBlock};

use super::mended::SuperblockDamage;

/// The place of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalPlace {
    /// In an inode.
    Inode(InodeNr),
    /// In an inode whose map was taken from the copy in the superblock (`s_jnl_blocks`), because
    /// the inode itself is unusable.
    InodeBackup(InodeNr),
    /// On a device of its own.
    External,
}

/// Why a journal inode is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InodeFault {
    /// Its number is 0 or past the last inode.
    Number,
    /// It cannot be read.
    Unreadable,
    /// No links, not a regular file, or encrypted.
    NotAJournalFile,
    /// Fewer than 1024 blocks.
    TooShort,
    /// A hole, a block outside the file system or a damaged map below its size.
    Map,
    /// Its first block lacks the journal's magic (or cannot be read).
    NoMagic,
    /// Its superblock is damaged and the file system does not claim to have a journal.
    BadSuperblock,
}

/// Why a journal superblock is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuperblockFault {
    /// It is a descriptor, commit or revoke block.
    BlockType(u32),
    /// Two checksum versions at once.
    ChecksumVersions,
    /// A checksum type that is not crc32c.
    ChecksumType(u8),
    /// The checksum does not fit.
    Checksum,
    /// Its block size is not that of the file system.
    BlockSize(u32),
    /// `s_maxlen` exceeds its actual length.
    TooLong {
        /// `s_maxlen`.
        stated_blocks: u32,
        /// Actual length.
        actual_blocks: u32,
    },
    /// The fast-commit area leaves fewer than 1024 blocks.
    FastCommitArea(u32),
}

/// Why recovery failed in part or as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryFault {
    /// `s_start`, `s_first` and the end of the log contradict each other. Nothing was replayed.
    LogBounds,
    /// A block of the log cannot be read.
    Unreadable {
        /// Block of the journal.
        log_block: u32,
    },
    /// A descriptor or revoke block of a transaction does not fit its checksum although its commit
    /// is recent. Those before it were replayed.
    ControlChecksum {
        /// The transaction.
        sequence: u32,
    },
    /// Transactions behind the one at which the log of a native file system seems to end were committed. Those before it
    /// were replayed.
    EndsEarly {
        /// The transaction that is not there.
        sequence: u32,
    },
    /// `r_count` of a revoke block passes its end. Nothing was replayed.
    RevokeCount {
        /// The transaction.
        sequence: u32,
    },
    /// A data block does not fit its checksum; it was not replayed.
    DataChecksum {
        /// The transaction.
        sequence: u32,
        /// Its home block.
        block: BlockNr,
    },
    /// The home block of a data block lies outside the file system; it was not replayed.
    TargetOutOfRange {
        /// The transaction.
        sequence: u32,
        /// The home block in its tag.
        block: BlockNr,
    },
    /// There are fast commits, but they need unknown features; they were not replayed.
    FastCommitFeatures {
        /// The unknown bits.
        features: u32,
    },
    /// The first fast commit is damaged, or one with a sound one behind it. Those before it were replayed.
    FastCommitDamaged,
    /// A fast commit requests an impossible change; it and those after it were not replayed.
    FastCommitImpossible {
        /// Its inode.
        inode: InodeNr,
    },
}

/// The damage of an orphan list or orphan file, which is then ignored as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrphanFault {
    /// The block of a cube names an inode of another cube, which is left alone.
    Stray {
        /// The cube whose block it is.
        cube: u32,
        /// The inode.
        inode: InodeNr,
    },
    /// `s_last_orphan` is no inode that may be an orphan (0x23).
    Head(InodeNr),
    /// The next pointer (`i_dtime`) of an orphan is no such inode (0x24).
    Next {
        /// The orphan.
        inode: InodeNr,
        /// Its pointer.
        next: InodeNr,
    },
    /// The list returns to an inode that it already contains.
    Loop(InodeNr),
    /// An orphan, or the orphan file's inode, cannot be read.
    Unreadable(InodeNr),
    /// A slot of the orphan file is no inode that may be an orphan.
    Slot(InodeNr),
    /// A block of the orphan file is not mapped (0x52).
    Hole(LogicalBlock),
    /// A block of the orphan file lacks its magic (0x53).
    Magic(BlockNr),
    /// A block of the orphan file does not fit its checksum (0x54).
    Checksum(BlockNr),
    /// The size of the orphan file is no multiple of the block size (0x55).
    Unaligned {
        /// `i_size`.
        size_bytes: u64,
    },
}

/// Where the log begins and ends, in blocks of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogBounds {
    /// `s_first`: the first block of the log.
    pub first: u32,
    /// `s_maxlen`: the number of blocks of the journal.
    pub maxlen: u32,
}

impl From<SuperblockDamage> for JournalEvent {
    fn from(damage: SuperblockDamage) -> Self {
        match damage {
            SuperblockDamage::Bit(bit) => Self::SuperblockBit { bit },
            SuperblockDamage::Rebuilt(reason) => Self::SuperblockRebuilt { reason },
        }
    }
}

/// An event of reading a journal and its surroundings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalEvent {
    /// The journal inode is unusable, and so is its copy in the superblock (0x0F).
    InodeInvalid {
        /// `s_journal_inum`.
        inode: InodeNr,
        /// Why.
        fault: InodeFault,
    },
    /// The journal inode is unusable; its copy in the superblock was used.
    InodeFromBackup {
        /// `s_journal_inum`.
        inode: InodeNr,
        /// The fault of the inode.
        fault: InodeFault,
    },
    /// More than one file system shares the external journal (0x10). Fatal.
    MultipleUsers {
        /// `s_nr_users`.
        users: u32,
    },
    /// The journal is external and was not given (0x11). Fatal.
    ExternalNotFound {
        /// `s_journal_uuid`.
        uuid: [u8; 16],
    },
    /// The device given is no external journal (0x12). Fatal.
    ExternalNotAJournal,
    /// The device given is the journal of another file system (0x13). Fatal.
    ExternalUuidMismatch {
        /// `s_uuid` of the device.
        found: [u8; 16],
    },
    /// The checksum of the external journal's file system superblock is wrong (0x4A).
    ExternalChecksum,
    /// The journal superblock is unusable (0x15).
    SuperblockCorrupt {
        /// Why.
        fault: SuperblockFault,
    },
    /// One bit of the journal superblock is wrong, as its checksum tells. The log was read with the right one.
    SuperblockBit {
        /// Counted from the first byte, least significant first.
        bit: u32,
    },
    /// The journal superblock is lost while the log is in use. The log was read with one that was made from it.
    SuperblockRebuilt {
        /// The fault, to follow a colon.
        reason: &'static str,
    },
    /// `s_first` or `s_maxlen` of the journal superblock, as stored, leaves the log no room, so that Linux does
    /// not mount the file system; the log was looked at with the expected value.
    BoundsWrong {
        /// Both as stored.
        stored: LogBounds,
        /// The bounds that were used.
        expected: LogBounds,
    },
    /// A journal without the has_journal feature (0x16).
    PresentWithoutFeature,
    /// needs_recovery without a journal (0x17).
    NeedsRecoveryWithoutJournal,
    /// The journal holds transactions, but needs_recovery is clear (0x18, then 0x2B or 0x2C). By
    /// the default answer the journal is replayed.
    DataWithoutNeedsRecovery,
    /// An unknown ro_compat bit in the journal superblock (0x25). Fatal by default.
    UnknownRoCompat {
        /// The unknown bits.
        bits: u32,
    },
    /// An unknown incompat bit in the journal superblock (0x26). Fatal by default.
    UnknownIncompat {
        /// The unknown bits.
        bits: u32,
    },
    /// A journal superblock of an unknown kind (0x27). Fatal by default.
    UnknownVersion {
        /// `h_blocktype`.
        blocktype: u32,
    },
    /// The journal inode is not 8, and the root directory may name it (0x28, to be decided by the
    /// check of directories).
    InodeNotReserved {
        /// `s_journal_inum`.
        inode: InodeNr,
    },
    /// Fields of version 2 where they must be zero (0x2A).
    StaleV2Fields,
    /// The copy of the journal inode in the superblock is missing or old (0x2D).
    InodeBackupStale {
        /// `s_journal_inum`.
        inode: InodeNr,
    },
    /// The journal's `s_errno` is set: the file system has errors (`ERROR_FS`).
    ErrorRecorded {
        /// `s_errno` as stored.
        errno: u32,
    },
    /// A committed transaction does not fit the checksum of its commit block (0x3A); it and
    /// those after it were not replayed.
    TransactionCorrupt {
        /// The transaction.
        sequence: u32,
    },
    /// Transactions behind the one at which the log of a stock file system seems to end were committed. Linux and e2fsck take it
    /// for the end, and so do we: those before it were replayed.
    EndsEarly {
        /// The transaction that is not there.
        sequence: u32,
        /// The last one that was committed.
        last: u32,
    },
    /// Recovery failed in part or as a whole: a full check follows.
    RecoveryFailed(RecoveryFault),
    /// An orphan that recovery will delete (no links) or truncate (0x20).
    Orphan {
        /// The inode.
        inode: InodeNr,
    },
    /// The orphan list or file is damaged: a full check follows.
    OrphansDamaged(OrphanFault),
}
