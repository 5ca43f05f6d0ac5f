//! One file a check, named by its object. A check reads and reports; it writes nothing and never
//! stops at the first fault.

pub mod inode_block;
pub mod inodes;
pub mod xattrs;
