//! Places in a file system. A bare integer never stands for a place.

use std::fmt;

macro_rules! place {
    ($(#[$meta:meta])* $name:ident($inner:ty), $word:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($word, " {}"), self.0)
            }
        }
    };
}

place!(
    /// A block counted from the start of the file system; never from a group or a file.
    BlockNr(u64), "block"
);
place!(
    /// A cluster of blocks (bigalloc; elsewhere one block), counted from the first data block of the file system.
    ClusterNr(u64), "cluster"
);
place!(
    /// An inode; the first is 1. 0 means "none" on the disk.
    InodeNr(u32), "inode"
);
place!(
    /// A block group; the first is 0.
    GroupNr(u32), "group"
);
place!(
    /// A block counted from the start of a file or directory.
    LogicalBlock(u64), "logical block"
);

/// A run of adjacent blocks. It need not lie inside the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockRun {
    /// First block.
    pub start: BlockNr,
    /// Number of blocks.
    pub len_blocks: u64,
}

impl BlockRun {
    /// `len_blocks` blocks from `start` on.
    pub const fn new(start: BlockNr, len_blocks: u64) -> Self {
        Self { start, len_blocks }
    }

    /// The block after the last one, saturating at the largest number.
    pub const fn end(&self) -> BlockNr {
        BlockNr(self.start.0.saturating_add(self.len_blocks))
    }

    /// Whether a block is one of them.
    pub const fn contains(&self, block: BlockNr) -> bool {
        self.start.0 <= block.0 && block.0 < self.end().0
    }
}

impl InodeNr {
    /// The bad-blocks inode.
    pub const BAD_BLOCKS: Self = Self(1);
    /// The root directory.
    pub const ROOT: Self = Self(2);
    /// The user quota file.
    pub const USER_QUOTA: Self = Self(3);
    /// The group quota file.
    pub const GROUP_QUOTA: Self = Self(4);
    /// The boot loader inode.
    pub const BOOT_LOADER: Self = Self(5);
    /// The reserved group descriptors ("resize") inode.
    pub const RESIZE: Self = Self(7);
    /// The usual journal inode.
    pub const JOURNAL: Self = Self(8);
}
