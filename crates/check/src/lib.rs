//! What is wrong with an ext2, ext3 or ext4 file system. Reads, never writes.
//!
//! The passes, in order: `open` (superblock, descriptors), `recovery` (the journal, replayed into memory by `floe-ext4`),
//! `inode_pass` (with directories along it: `overlap`), attribute blocks, shared blocks, `dir_pass`, connectivity, link counts, bitmaps and
//! counts, quota. Each is parallel inside; findings come out sorted, so that the number of threads
//! cannot be seen in them.
//!
//! [`check`] is the way in: a device, options, and a [`Report`] with every [`Problem`] that was found.
//! The crate `floe-report` writes it down. [`Reader`] reads a file
//! system without judging it, and [`view()`] its files as they are after recovery. `examples/verdict.rs` prints what is wrong with an image.
//!
//! ```
//! use floe_blockdev::MemDevice;
//! use floe_check::{CheckError, CheckOptions, check};
//!
//! // Damage is no error; a device without a file system is.
//! let noise = MemDevice::new(vec![0x5a; 1 << 20]);
//! let answer = check(&noise, &CheckOptions::default());
//! assert!(matches!(answer, Err(CheckError::NoSuperblock { .. })));
//! ```

pub mod checkpoint;
pub mod checks;
pub mod descriptors;
pub mod dir_pass;
pub mod error;
pub mod evidence;
pub mod inode_pass;
pub mod inode_tables;
pub mod layout_map;
pub mod memory;
pub mod open;
pub mod options;
pub mod overlap;
pub mod pipeline;
pub mod problem;
pub mod read_ahead;
pub mod reader;
pub mod recovery;
pub mod refine;
pub mod report;
pub mod rescan;

pub mod view;
pub mod volume;
pub mod work;

pub use error::CheckError;
pub use options::{Accounting, CheckOptions, JournalUse, SharedCores};
pub use pipeline::{Examination, check, examine, examine_again};
pub use problem::Problem;
pub use reader::Reader;
pub use report::Report;
pub use view::view;
pub use volume::Volume;
