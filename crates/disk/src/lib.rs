//! How an ext2, ext3 or ext4 file system is made, and (later) how changes to one become durable.
//!
//! [`mkfs`] makes file systems: a plan that writes nothing, then a writer.

pub mod mkfs;
pub mod source;
