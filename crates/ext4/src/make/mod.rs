//! Whole structures that both a new file system and a repair need: bytes in, bytes out, no I/O.

pub mod journal_superblock;
pub mod quota_file;
