//! Maps of files: which blocks of the disk hold which blocks of a file. [`walk`] follows them, of either kind; [`edit`]
//! changes extent trees in place.

pub mod block_map;
pub mod edit;
pub mod extent_tree;
pub mod mapping;
pub mod runs;
pub mod walk;
