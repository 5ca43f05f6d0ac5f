//! What is wrong with an ext2, ext3 or ext4 file system. Reads, never writes.

pub mod problem;
