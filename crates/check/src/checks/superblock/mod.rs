//! The superblock, its copies, and multiple-mount protection.

pub mod backups;
pub mod fields;
pub mod mmp;
