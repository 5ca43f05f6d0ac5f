//! Maps of files: which blocks of the disk hold which blocks of a file.

pub mod block_map;
pub mod extent_tree;
pub mod mapping;
