//! ext4's own structures, one a file.

pub mod extent;
pub mod group_desc;
pub mod indirect;
pub mod inode;
pub mod superblock;
