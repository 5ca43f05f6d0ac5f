//! Maps of files: from logical to physical blocks. [`walk`] follows both kinds; [`edit`] changes
//! extent trees in place.

pub mod block_map;
pub mod edit;
pub mod extent_tree;
pub mod mapping;
pub mod runs;
pub mod walk;
