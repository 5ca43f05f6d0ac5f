//! Whole structures from what they must say: bytes in, bytes out, no I/O.

pub mod block_map;
pub mod directory;
pub mod extent_tree;
pub mod journal_superblock;
pub mod mapping;
pub mod quota_file;
