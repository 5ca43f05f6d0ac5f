//! Decodes and encodes the on-disk structures of ext2, ext3 and ext4.
//!
//! This crate does no I/O and starts no threads. Decoding is total: every structure is decoded from
//! an array whose size is part of the type, offsets are checked while compiling, and no value is
//! refused, because judging is not decoding (`floe-check` judges).
//!
//! Field names at the point of decoding are the kernel's (`fs/ext4/ext4.h`, `fs/jbd2`), without
//! their one-letter prefix. Sources of rules are the kernel documentation
//! (`Documentation/filesystems/ext4`) and the headers.
//!
//! Begin with [`ext::superblock::Superblock`] and [`Geometry`], which says where everything else is;
//! each structure has a module of its own in [`ext`]. `examples/features.rs` decodes the superblock
//! of an image.
//!
//! ```
//! use floe_format::ext::superblock::{MAGIC, Superblock};
//!
//! // Any bytes decode to a superblock; the magic tells whether they are one.
//! let nothing = Superblock::decode(&[0; 1024]);
//! assert_ne!(nothing.magic, MAGIC);
//!
//! let mut bytes = [0; 1024];
//! let own = Superblock { magic: MAGIC, feature_ro_compat: 0x400, ..nothing };
//! own.encode_with_checksum(&mut bytes);
//! assert!(Superblock::checksum_ok(&bytes));
//! assert_eq!(own.features().names(), ["metadata_csum"]);
//! ```

#![warn(clippy::print_stderr, clippy::print_stdout)] // messages are the program's

#[macro_use]
pub mod layout;
pub mod checksum_seed;
pub mod crc;
pub mod ext;
pub mod features;
pub mod geometry;
pub mod ids;
mod largest_file;
pub mod native;
pub mod rext3;
pub mod words;

pub use geometry::Geometry;
pub use ids::{BlockNr, BlockRun, ClusterNr, GroupNr, InodeNr, LogicalBlock};
