//! Why a check could not be made.

use std::io;

use crate::keeper::Round;
use crate::problem::Problem;

/// Why a check could not go on. Damage on the disk is a [`Problem`], never one of these.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// No superblock could be used. The problems say why.
    #[error("no usable superblock")]
    NoSuperblock {
        /// Problems of the primary one, and of the backups that were tried.
        problems: Vec<Problem>,
        /// Blocks of backup superblocks that look good, with the block size they state.
        backups: Vec<(floe_format::BlockNr, u32)>,
        /// The superblock that was asked for, if that was not the primary one, and why it cannot be used.
        named: Option<(floe_format::BlockNr, &'static str)>,
    },
    /// Features that Floe does not know.
    #[error("unknown features: {}; nothing was changed", names.join(", "))]
    UnknownFeatures {
        /// Their names, as `FEATURE_I7`.
        names: Vec<String>,
        /// A backup superblock that has none of them, with the block size it states: there may be a flipped bit in the primary one.
        backup: Option<(floe_format::BlockNr, u32)>,
    },
    /// A condition with which a check must not go on (fatal rows of the problem table).
    #[error("{problem}")]
    Fatal {
        /// The condition.
        problem: Problem,
    },
    /// The caller wanted the check to end; what was done is in the checkpoint.
    #[error("stopped")]
    Stopped,
    /// The check was not begun, for its checkpoint is in the way, or cannot be kept.
    #[error("the checkpoint cannot be used: {0}")]
    Checkpoint(#[from] Refusal),
    /// The parts of a check cannot be merged. Nothing was checked.
    #[error("the parts cannot be merged: {0}")]
    Parts(#[from] PartRefusal),
    /// The check would take more memory than it may. Nothing was changed.
    #[error("{phase} takes {need_bytes} bytes of memory, of {budget_bytes} that are allowed")]
    OverBudget {
        /// The next step; "start" before the first.
        phase: &'static str,
        /// Bytes that would do, as far as is known.
        need_bytes: u64,
        /// Bytes that are allowed.
        budget_bytes: u64,
    },
    /// The superblock or the descriptors could not be read.
    #[error("cannot read {what}")]
    Read {
        /// The structure that could not be read.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

/// Why a check was not begun: what is in the way of its checkpoint was left as it is.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The file is something else.
    #[error("it is not a checkpoint of Floe")]
    NotOurs,
    /// It belongs to another file system.
    #[error("it is the checkpoint of another file system (UUID {uuid}, {size_bytes} bytes)")]
    OtherFileSystem {
        /// Its UUID.
        uuid: String,
        /// The size of its device.
        size_bytes: u64,
    },
    /// The check was begun in another way.
    #[error("the check in it was begun {theirs}, this one is {ours}")]
    OtherOptions {
        /// How that one was begun.
        theirs: String,
        /// How this one was.
        ours: String,
    },
    /// It could not be read or made.
    #[error("cannot {what} it: {source}")]
    File {
        /// The attempted operation.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

/// Why parts of a check were not merged. Names are those that the caller gave them.
#[derive(Debug, thiserror::Error)]
pub enum PartRefusal {
    /// The file is something else.
    #[error("{name} is not a part of a check by Floe")]
    NotOurs {
        /// Its name.
        name: String,
    },
    /// The file is not as it was written.
    #[error("{name} is {how}: run its shard again")]
    Damaged {
        /// Its name.
        name: String,
        /// "truncated" or "damaged".
        how: &'static str,
    },
    /// The file cannot be read.
    #[error("cannot read {name}: {source}")]
    File {
        /// Its name.
        name: String,
        /// The error of the system.
        source: io::Error,
    },
    /// It belongs to another check.
    #[error("{name} is no part of this check: {how}")]
    Foreign {
        /// Its name.
        name: String,
        /// How it differs: a clause.
        how: String,
    },
    /// The file system was changed since the shard was run.
    #[error(
        "{name} does not describe the file system as it is now, because {why}: run all shards again"
    )]
    Changed {
        /// Its name.
        name: String,
        /// Why: a clause that begins with "it".
        why: String,
    },
    /// Two parts are of one shard.
    #[error("{name} and {other} are both of {} {index}/{count}: give only one of them", round.shard())]
    Repeated {
        /// The name of the second.
        name: String,
        /// The name of the first.
        other: String,
        /// Their round.
        round: Round,
        /// The shard.
        index: u32,
        /// Shards of the check.
        count: u32,
    },
    /// Parts are missing.
    #[error(
        "parts are missing: of {count} {} there is none of {}",
        round.shards(),
        numbers(missing)
    )]
    Missing {
        /// The round that is not complete.
        round: Round,
        /// The shards without a part, ascending; at least one.
        missing: Vec<u32>,
        /// Shards of the round.
        count: u32,
    },
    /// A refinement is wanted, but both of its rounds are among the parts.
    #[error("the parts of both rounds of refinement are there: merge them without --refine")]
    NothingLeft,
}

/// Some numbers, and how many more there are.
fn numbers(all: &[u32]) -> String {
    const SHOWN: usize = 16;
    let shown: Vec<String> = all.iter().take(SHOWN).map(u32::to_string).collect();
    let more = all.len().saturating_sub(SHOWN);
    let text = shown.join(", ");
    if more > 0 { format!("{text} and {more} more") } else { text }
}
