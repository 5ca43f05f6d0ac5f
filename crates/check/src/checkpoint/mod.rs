//! Checkpoints: a check that was ended by whatever goes on where it was (`docs/resume.md`).
//!
//! The passes over inodes and directories run in legs. What the workers found in a leg is one record,
//! appended to the checkpoint; since evidence may be merged in any order, the records of all legs
//! merged are what an uninterrupted pass would have. So nothing is written twice, and a leg costs what
//! its own evidence costs. A record that was cut off is not there ([`crate::evidence::saved`]).
//!
//! This crate does not know files: a [`Keeper`] has the bytes.
//!
//! A checkpoint: [`MAGIC`], then records. The first is the [`Header`]: of which file system, in which
//! state, with which options. All others are legs. Each leg has witnesses: a few places that it read, with hashes of what was
//! there. Before a check goes on, some are read again.

mod header;
mod session;
mod witness;

use std::io::{self, Read, Write};

use floe_exec::Interrupt;

pub use header::Header;
pub use session::{Begun, Legs, Session};

/// First bytes of every checkpoint, whatever its version.
pub const MAGIC: &[u8; 7] = b"FLOECKP";
/// The byte behind them: the version of all that follows.
pub const VERSION: u8 = b'1';
/// Bytes before the first record.
pub(crate) const START_BYTES: u64 = MAGIC.len() as u64 + 1;

/// Keeps a checkpoint, tells when the next leg is to end, and tells people what became of it.
pub trait Keeper: Sync {
    /// The wish to stop. It is held while a leg runs: whoever asks meanwhile has the leg ended, its
    /// record written, and [`crate::CheckError::Stopped`] returned.
    fn interrupt(&self) -> &Interrupt;

    /// Whether it is time to end the leg that is running. Each worker asks after each unit of work.
    fn due(&self) -> bool;

    /// Whether to begin anew whatever there is.
    fn restart(&self) -> bool;

    /// The bytes of the checkpoint that there is; `None` without one.
    ///
    /// # Errors
    /// It cannot be read.
    fn stored(&self) -> io::Result<Option<Box<dyn Read + '_>>>;

    /// Makes a checkpoint of these bytes in place of the one that there is, or of none. Whatever
    /// happens meanwhile, one or the other is there, whole.
    ///
    /// # Errors
    /// That cannot be done; the old one is still there.
    fn replace(&self, bytes: &[u8]) -> io::Result<()>;

    /// Goes on with the checkpoint that there is, of which the first `bytes` are good.
    ///
    /// # Errors
    /// It cannot be written.
    fn resume(&self, bytes: u64) -> io::Result<()>;

    /// Adds what `write` writes, and makes it last.
    ///
    /// # Errors
    /// It cannot be written. Then nothing will be added any more.
    fn append(&self, write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> io::Result<()>;

    /// Tells whoever waits.
    fn tell(&self, notice: &Notice);
}

/// What became of a checkpoint.
#[derive(Debug)]
pub enum Notice {
    /// The check goes on from it.
    Resumed {
        /// When the check was begun, in seconds since 1970.
        begun_seconds: i64,
        /// Parts of inode tables that were read before, and all.
        parts: (usize, usize),
        /// Runs of directory blocks that were read before.
        runs: usize,
        /// Whether its end could not be used.
        cut: bool,
    },
    /// It could not be used, and the check begins anew.
    Restarted {
        /// Why: a clause that begins with "it".
        why: String,
    },
    /// It could not be written any more; the check goes on without.
    Lost(io::Error),
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
        /// What was to be done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}
