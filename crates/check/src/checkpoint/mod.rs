//! Checkpoints: a check that was ended by whatever goes on where it was (`docs/resume.md`).
//!
//! The passes over inodes and directories run in legs. What the workers found in a leg is one record,
//! appended to the checkpoint; since evidence may be merged in any order, the records of all legs
//! merged are what an uninterrupted pass would have. So nothing is written twice, and a leg costs what
//! its own evidence costs. A record that was cut off is not there ([`crate::saved`]).
//!
//! This crate does not know files: a [`Keeper`] has the bytes.
//!
//! A checkpoint: [`MAGIC`], then records. The first is the [`Header`]: of which file system, in which
//! state, with which options. All others are legs. Each leg has witnesses: a few places that it read, with hashes of what was
//! there. Before a check goes on, some are read again.
//!
//! A part is a file of the same form that a shard of a check writes ([`Part`], `docs/fleet.md`): the same header, and
//! one record with the evidence of a range of groups. What is merged is what the legs of a checkpoint would be.

mod header;
mod part;
mod session;
mod witness;

pub use header::Header;
pub use part::{Part, PartEvidence, merge_parts};
pub use session::{Begun, Legs, Session};

pub use crate::error::{PartRefusal, Refusal};
pub use crate::keeper::{Keeper, Notice, Parts, Share};

/// First bytes of every checkpoint, whatever its version.
pub const MAGIC: &[u8; 7] = b"FLOECKP";
/// The byte behind them: the version of all that follows.
pub const VERSION: u8 = b'2';
/// Bytes before the first record.
pub(crate) const START_BYTES: u64 = MAGIC.len() as u64 + 1;
