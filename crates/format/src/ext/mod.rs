//! ext4's own structures, one a file.

pub mod bitmap;
pub mod casefold;
pub mod crypt;
pub mod dirent;
pub mod dirhash;
pub mod extent;
pub mod fast_commit;
pub mod group_desc;
pub mod htree;
pub mod indirect;
pub mod inline_data;
pub mod inode;
pub mod inode256;
pub mod inode_flips;
pub mod jbd2;
pub mod mmp;
pub mod orphan_file;
pub mod quota;
pub mod superblock;
pub mod undo;
pub mod xattr;
