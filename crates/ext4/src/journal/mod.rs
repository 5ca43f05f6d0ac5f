//! The journal: locating, validating and replaying it into memory.
//!
//! [`find`] locates and validates the journal. [`replay`] recovers it into an
//! [`Overlay`](floe_blockdev::Overlay), so that the file system can be checked in its state after
//! recovery while nothing is written. [`find_orphans`] lists the inodes that recovery will delete
//! or truncate.
//!
//! This module does not know the problem table: it returns [`JournalEvent`]s.
//!
//! Reads: superblock, journal, and the structures that fast commits change.  Keeps: the journal's
//! block map, one small record per control block of the log, and per replayed block the place of
//! its last copy.  Does not verify: the resulting file system.

mod behind_end;
mod controls;
mod cubes;
mod event;
mod fast_commit;
mod finish;
mod locate;
mod log;
mod mended;
mod mixed;
mod orphans;
mod pieces;
mod rebuilt;
mod recover;
mod seen;
mod several;
mod stable;
mod words;

pub use behind_end::dropped;
pub use cubes::{
    CubeFile, CubeJournal, CubeJournals, Unusable, find_cube, find_cubes, follow_chain, orphans_in,
};
pub use event::{
    InodeFault, JournalEvent, JournalPlace, LogBounds, OrphanFault, RecoveryFault, SuperblockFault,
};
pub use finish::EmptiedBlock;
pub use locate::{Journal, external_superblock, find};
pub use log::{Ring, is_after};
pub use mended::SuperblockDamage;
pub use mixed::{first_damaged, has_block_checksums, with_sound_ones, without_log};
pub use orphans::{find_orphans, next_orphan};
pub use recover::{Pass, Replay, replay, replay_into, replay_onto};
pub use seen::{Seen, seen};
pub use several::{
    Choices, Cuts, Several, Taken, bound, cut_off, damaged_logs, ends_early, inode_of,
    replay_several,
};
pub use stable::Cut;
pub use words::in_words;
