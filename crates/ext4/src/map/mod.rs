//! Maps of files: which blocks of the disk hold which blocks of a file. [`walk`] follows them, of either kind, [`seek`] looks
//! one place up; [`edit`] changes extent trees in place, [`pointers`] block maps, [`mod@file`] whichever a file has.

pub mod block_map;
pub mod edit;
pub mod extent_tree;
pub mod file;
pub mod mapping;
pub mod pointers;
pub mod runs;
pub mod seek;
pub mod walk;
