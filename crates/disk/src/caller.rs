//! On whose behalf an operation runs.

use floe_format::ext::inode::Timestamp;

/// On whose behalf an operation runs, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Owner of what is created.
    pub uid: u32,
    /// Group of what is created, unless the directory says another.
    pub gid: u32,
    /// Now: inodes get it as their times.
    pub time: Timestamp,
    /// Whether the blocks reserved for the administrator may be used.
    pub may_use_reserve: bool,
}

impl Caller {
    /// The file system itself.
    pub const fn system(time: Timestamp) -> Self {
        Self { uid: 0, gid: 0, time, may_use_reserve: true }
    }
}
