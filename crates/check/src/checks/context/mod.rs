//! Contexts: what checks look at, and the composite evidence that one worker of a pass keeps.

pub mod directory;
pub mod inode;
