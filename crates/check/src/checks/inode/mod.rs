//! Inodes: fields, sizes, times, and what their types ask for.

pub mod inline_data;
pub mod inode_sizes;
pub mod inode_times;
pub mod inodes;
pub mod linux_refuses;
pub mod lost_directory;
pub mod plain_inodes;
pub mod slots;
pub mod special_files;
pub mod symlinks;
pub mod table_block;
