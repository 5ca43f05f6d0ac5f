//! Files of the file system itself.

pub mod bad_blocks;
pub mod journal;
pub mod orphan_file;
pub mod orphans;
pub mod quota;
mod quota_lists;
pub mod reserved_inodes;
pub mod resize_inode;
