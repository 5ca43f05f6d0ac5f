//! Maps of files: which blocks of the disk hold which blocks of a file. [`walk`] follows them, of either kind.

pub mod block_map;
pub mod extent_tree;
pub mod mapping;
pub mod runs;
pub mod walk;
