//! Finds damage in ext2, ext3 and ext4 file systems. Reads, never writes.
//!
//! The folders, each of which uses only those after it: [`cube`] (the check of one cube), [`passes`] (the order of a check, and its
//! threads), [`estimate`] and [`checkpoint`], [`checks`] (one file a check), [`scan`] (reading in
//! disk order), [`volume`] (the opened file system), [`evidence`] (facts that workers collect and
//! merge), [`problem`] (the table of problems), [`saved`] (the encoding of evidence in
//! checkpoints).
//!
//! The passes, in order: `open` (superblock, descriptors), `recovery` (`floe-ext4` replays the
//! journal into memory), inodes (and directories along with them: `overlap`), attribute blocks,
//! shared blocks, directories, connectivity, link counts, bitmaps and counts, quota. Each pass is
//! parallel; findings are sorted, so that they do not depend on the number of threads.
//!
//! [`check`] takes a device and options, and returns a [`Report`] with every [`Problem`] that it
//! found. The crate `floe-report` formats it. [`Reader`] reads a file system without judging it,
//! and [`view()`] its files as they are after recovery. `examples/verdict.rs` prints the problems
//! of an image. [`check_shard`] checks a share of one, and [`check`] merges the parts of all shards;
//! `examples/shards.rs` does that.
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

#![warn(clippy::print_stderr, clippy::print_stdout)] // messages are the program's

pub mod checkpoint;
pub mod checks;
pub mod cube;
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
pub use options::{CheckOptions, Checkpoints, MemoryLimit, Observer, SharedCores, Tuning};
pub use passes::pipeline::{Examination, check, examine, examine_again};
pub use passes::refine_shard::refine_shard;
pub use passes::shard::check_shard;
pub use passes::{recovery, rescan};
pub use problem::Problem;
pub use reader::Reader;
pub use report::Report;
pub use view::{lacks_changes, view};
pub use volume::journal::JournalUse;
pub use volume::{Volume, descriptors, open};
