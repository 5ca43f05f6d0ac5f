//! Makes ext2, ext3 and ext4 file systems, and makes changes to them durable.
//!
//! [`mkfs`] makes file systems: a plan that writes nothing, then a writer. [`volume`] is one that is written, [`ops`] what
//! can be done to it, [`space`] its free space. [`journal`] changes one so that a crash at any write leaves all or nothing
//! of each transaction, and [`recovery`] puts that right afterwards.

#![warn(clippy::print_stderr, clippy::print_stdout)] // messages are the program's

mod caller;
pub mod journal;
pub mod mkfs;
mod op_error;
pub mod ops;
mod orphans;
mod sha256;
pub mod source;
pub mod space;
pub mod volume;

pub use journal::recovery;
