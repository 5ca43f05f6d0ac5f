//! One file a check, named by its object. A check reads and reports; it writes nothing and never
//! stops at the first fault.

pub mod bitmaps;
pub mod block_map;
pub mod encryption;
pub mod extents;
pub mod group_desc;
pub mod inline_data;
pub mod inode_block;
pub mod inode_sizes;
pub mod inode_times;
pub mod inodes;
pub mod lost_directory;
pub mod mapping;
pub mod mmp;
pub mod orphans;
pub mod reserved_inodes;
pub mod resize_inode;
pub mod shared_blocks;
pub mod special_files;
pub mod superblock;
pub mod symlinks;
pub mod xattrs;
