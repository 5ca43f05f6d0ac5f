//! Nanoseconds of one thread, on the machine of docs/progress.md with all in the page cache; and those of a disk, if
//! what is read is not in memory (`cargo xtask eta --weights`).

use std::time::Duration;

/// A group, when descriptors are read, judged, and when the claims of metadata are merged.
pub(super) const OPEN: f64 = 650.0;
pub(super) const DESCRIPTOR: f64 = 300.0;
pub(super) const METADATA: f64 = 35.0;
/// A part of an inode table that is read by itself.
pub(super) const PART: f64 = 900.0;
/// A slot of an inode table, used or not.
pub(super) const SLOT: f64 = 4.0;
/// An inode in use.
pub(super) const INODE: f64 = 32.0;
/// A block of a map.
pub(super) const MAP_BLOCK: f64 = 1700.0;
/// An entry of a directory.
pub(super) const ENTRY: f64 = 21.0;
/// A block of a directory.
pub(super) const DIRECTORY_BLOCK: f64 = 330.0;
/// A directory, when directories are put in order, and when they are counted by groups; by one thread.
pub(super) const DIRECTORY: f64 = 9.0;
/// A directory in the tree; by one thread.
pub(super) const CONNECTION: f64 = 16.0;
/// A link count compared.
pub(super) const LINK_COUNT: f64 = 0.3;
/// A directory, whose count is no plain one.
pub(super) const DIRECTORY_LINKS: f64 = 9.0;
/// A group whose bitmaps are computed.
pub(super) const GROUP: f64 = 150.0;
/// A bitmap of blocks, and one of inodes, that is read and compared, besides.
pub(super) const BLOCK_BITMAP: f64 = 1150.0;
pub(super) const INODE_BITMAP: f64 = 500.0;
/// A bit of an inode bitmap.
pub(super) const INODE_BIT: f64 = 0.2;
/// A block of the journal.
pub(super) const JOURNAL_BLOCK: f64 = 1000.0;
/// A byte that is read, besides.
pub(super) const BYTE: f64 = 0.1;

/// A place of a disk that is gone to.
pub(super) const PLACE_WAIT: f64 = 30_000.0;
/// Tables side by side, as so many: the system begins to read ahead with little, and is waited for again.
pub(super) const TABLES_ANEW: f64 = 2.0;
/// One of many that the disk was told of before: as a part of that.
pub(super) const ANNOUNCED: f64 = 0.25;
/// A byte that a disk reads, besides.
pub(super) const BYTE_WAIT: f64 = 0.55;

/// Weights of equation 1 of pFSCK for the stages of `overlap`, until the run has measured its own: an
/// inode in use with its slot and its share of a part, and a directory block with its entries where
/// files are many.
pub const INODE_TIME: Duration = Duration::from_nanos((INODE + SLOT + PART / 2048.0) as u64);
/// See [`INODE_TIME`].
pub const DIRECTORY_BLOCK_TIME: Duration =
    Duration::from_nanos((DIRECTORY_BLOCK + 16.0 * ENTRY) as u64);
