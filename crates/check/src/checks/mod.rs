//! One file a check, named by its object. A check reads and reports; it writes nothing and never
//! stops at the first fault.

pub mod bitmaps;
pub mod block_map;
pub mod connectivity;
pub mod dir_holes;
pub mod dirent_salvage;
pub mod dirents;
pub mod dot_entries;
pub mod encryption;
pub mod entry_rules;
pub mod entry_scan;
pub mod extents;
pub mod group_desc;
pub mod htree;
pub mod htree_trees;
pub mod inline_data;
pub mod inline_dirs;
pub mod inode_block;
pub mod inode_sizes;
pub mod inode_times;
pub mod inodes;
pub mod link_counts;
pub mod lost_directory;
pub mod mapping;
pub mod mmp;
pub mod orphans;
pub mod paths;
pub mod reserved_inodes;
pub mod resize_inode;
pub mod shared_blocks;
pub mod special_files;
pub mod superblock;
pub mod symlinks;
pub mod xattrs;
