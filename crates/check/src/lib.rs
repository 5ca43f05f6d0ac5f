//! What is wrong with an ext2, ext3 or ext4 file system. Reads, never writes.
//!
//! The rooms, each of which uses only those behind it: [`passes`] (the order of a check, and what runs in parallel),
//! [`estimate`] and [`checkpoint`], [`checks`] (one file a check), [`scan`] (reading in disk order), [`volume`] (the
//! file system as it was opened), [`evidence`] (data that workers keep and merge), [`problem`] (the table of
//! verdicts), [`saved`] (how both are written down).
//!
//! The passes, in order: `open` (superblock, descriptors), `recovery` (the journal, replayed into memory by
//! `floe-ext4`), inodes (with directories along them: `overlap`), attribute blocks, shared blocks, directories,
//! connectivity, link counts, bitmaps and counts, quota. Each is parallel inside; findings come out sorted, so that
//! the number of threads cannot be seen in them.
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
pub mod error;
pub mod estimate;
pub mod evidence;
pub mod keeper;
pub mod options;
pub mod passes;
pub mod problem;
pub mod reader;
pub mod report;
pub mod saved;
pub mod scan;
pub mod view;
pub mod volume;

pub use error::CheckError;
pub use estimate::{memory, work};
pub use evidence::accounting::Accounting;
pub use options::{CheckOptions, SharedCores};
pub use passes::pipeline::{Examination, check, examine, examine_again};
pub use passes::shard::check_shard;
pub use passes::{recovery, rescan};
pub use problem::Problem;
pub use reader::Reader;
pub use report::Report;
pub use view::view;
pub use volume::journal::JournalUse;
pub use volume::{Volume, descriptors, open};
