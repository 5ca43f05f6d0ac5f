//! How the structures of an ext2, ext3 or ext4 file system are found and changed: the role that
//! libext2fs has for e2fsprogs.
//!
//! This crate starts no threads, follows no policy and gives no verdicts: `floe-check` judges, and
//! `floe-repair` decides. A structure that cannot be followed is refused with a typed error.
//!
//! Changes are made to blocks of a [`tx::Tx`]. [`group`] marks what is in use, [`alloc`] finds room, [`inode_table`] says where
//! inodes lie. [`files`] reads files by path. [`map`] has the maps of files (extent trees and block maps), [`dir`] directories, [`journal`] the
//! journal and its recovery, [`make`] whole structures that both a new file system and a repair need.

pub mod alloc;
pub mod dir;
pub mod files;
pub mod fs;
pub mod group;
pub mod inode_table;
pub mod journal;
pub mod make;
pub mod map;
pub mod tx;
