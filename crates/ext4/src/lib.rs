//! Reads and changes the structures of ext2, ext3 and ext4 file systems: the role of libext2fs in
//! e2fsprogs.
//!
//! This crate starts no threads, has no policy and gives no verdicts: `floe-check` judges, and
//! `floe-repair` decides. A structure that cannot be followed is refused with a typed error.
//!
//! Changes are made to blocks of a [`tx::Tx`]. [`group`] marks blocks and inodes as used, [`alloc`]
//! allocates them, [`inode_table`] locates inodes, [`apart`] those that damaged descriptors cost. [`files`] reads files by path. [`map`] has the
//! maps of files (extent trees and block maps), [`dir`] directories, [`journal`] the journal and
//! its recovery, [`make`] whole structures that both a new file system and a repair need.

#![warn(clippy::print_stderr, clippy::print_stdout)] // messages are the program's

pub mod alloc;
pub mod apart;
pub mod cubes;
pub mod dir;
pub mod files;
pub mod fs;
pub mod group;
pub mod inode_table;
pub mod journal;
pub mod make;
pub mod map;
pub mod superblocks;
pub mod tx;
