//! Checkpoints: a later run continues a check that was killed (`docs/resume.md`).
//!
//! The passes over inodes and directories run in legs. Each leg appends one record, the evidence
//! that its workers collected. Because evidence may be merged in any order, the records of all legs
//! together equal the result of an uninterrupted pass. Nothing is written twice, so a leg costs
//! only the size of its own evidence. A record that was cut off is ignored ([`crate::saved`]).
//!
//! This crate does not know files: a [`Keeper`] stores the bytes.
//!
//! A checkpoint is [`MAGIC`], then records. The first is the [`Header`], which identifies the file
//! system, its state, and the options. All others are legs. Each leg has witnesses: hashes of a few
//! places that it read. Before a check continues, it reads some of them again.
//!
//! A part ([`Part`], `docs/fleet.md`) is a file in the same format that one shard of a check writes:
//! the same header, a record that tells which shard, and one with the evidence of a range of groups.

mod closer;
mod header;
mod part;
mod session;
mod witness;

pub use closer::{Closer, Judged};
pub use header::Header;
pub use part::{Found, Merged, Part, PartEvidence, merge_parts};
pub use session::{Begun, Legs, Session};

pub use crate::error::{PartRefusal, Refusal};
pub use crate::keeper::{Keeper, Notice, Parts, Round, Share};

/// First bytes of every checkpoint, whatever its version.
pub const MAGIC: &[u8; 7] = b"FLOECKP";
/// The byte behind them: the version of all that follows.
pub const VERSION: u8 = b'5';
/// Bytes before the first record.
pub(crate) const START_BYTES: u64 = MAGIC.len() as u64 + 1;
