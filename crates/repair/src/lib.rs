//! What to do about a damaged ext2, ext3 or ext4 file system: the only crate that edits one.
//!
//! A repair is planned from the findings of a check, staged in memory, checked again until it is
//! clean, and only then written: old blocks go to an undo file first.

pub mod build;
