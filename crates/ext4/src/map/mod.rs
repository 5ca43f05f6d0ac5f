//! Maps of files: from logical to physical blocks. [`walk`] follows both kinds, [`seek`] looks up
//! one block; [`edit`] changes extent trees in place, [`pointers`] block maps, [`mod@file`] the
//! kind that a file has. [`own_node`] tells nodes from other bytes.

pub mod block_map;
pub mod edit;
pub mod extent_tree;
pub mod file;
pub mod mapping;
pub mod own_node;
pub mod pointers;
pub mod runs;
pub mod seek;
pub mod walk;
