//! Bitmaps, counts of free space, and blocks that several inodes claim.

pub mod bitmaps;
pub mod shared_blocks;
