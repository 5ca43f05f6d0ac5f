//! Makes file systems. [`tree`] is the tree of files that one is filled from.

pub mod tree;
