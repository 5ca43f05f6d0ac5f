//! How inode tables and directories are read: in disk order, in large reads, ahead of their judges. Nothing is judged
//! here.

pub mod directory_blocks;
pub mod forecast;
pub mod groups;
mod held;
pub mod inode_reader;
pub mod inode_tables;
pub mod lots;
pub mod map_reads;
mod needed;
pub mod read_ahead;
pub mod sweep;
