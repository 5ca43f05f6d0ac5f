//! The journal: finding it, judging it, and replaying it into memory.
//!
//! [`find`] locates and validates the journal; [`replay`] recovers it into an
//! [`Overlay`](floe_blockdev::Overlay), so that the file system can be judged as it will be after
//! recovery while nothing is written. [`find_orphans`] lists the inodes that recovery will delete
//! or truncate.
//!
//! This module knows nothing of the problem table: what it meets comes back as [`JournalEvent`]s.
//!
//! Reads: superblock, journal, and what fast commits change.  Keeps: the journal's block map, one
//! small record per log block of control data, and per replayed block the place of its last copy.
//! Does not verify: the file system that comes out of it.

mod event;
mod fast_commit;
mod finish;
mod locate;
mod log;
mod orphans;
mod recover;
mod seen;

pub use event::{
    InodeFault, JournalEvent, JournalPlace, LogBounds, OrphanFault, RecoveryFault, SuperblockFault,
};
pub use finish::EmptiedBlock;
pub use locate::{Journal, external_superblock, find};
pub use log::{Ring, is_after};
pub use orphans::find_orphans;
pub use recover::{Replay, replay, replay_onto};
pub use seen::{Seen, seen};
