//! Directories: entries, indexes, the tree, and links.

pub mod connectivity;
pub mod dir_holes;
pub mod dirents;
pub mod dot_entries;
pub mod entry_rules;
pub mod entry_scan;
pub mod htree;
pub mod htree_trees;
pub mod inline_dirs;
pub mod link_counts;
pub mod paths;
pub mod plain_entries;
