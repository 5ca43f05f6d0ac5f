//! One file a check, in a folder named by its object. A check reads and reports; it writes nothing and never
//! stops at the first fault.

pub mod context;
pub mod directory;
pub mod group;
pub mod inode;
pub mod mapping;
pub mod space;
pub mod superblock;
pub mod system_files;
pub mod xattr;
