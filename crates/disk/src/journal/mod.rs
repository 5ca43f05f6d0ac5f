//! The journal of a file system that is being changed (jbd2, inode 8): Linux and e2fsck recover what is written here.
//!
//! A change is a transaction of its own towards its caller, and joins the *running* one when it is finished, so that many
//! changes become durable with one commit (group commit):
//!
//! ```no_run
//! # use floe_blockdev::MemDevice;
//! # use floe_disk::journal::{Journal, JournalError};
//! # use floe_ext4::tx::Tx;
//! # use floe_format::BlockNr;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let device = MemDevice::new(Vec::new());
//! let journal = Journal::open(device)?; // recovered first, if it must be
//! let mut tx = journal.begin(8)?; // at most 8 blocks change
//! tx.block_mut(BlockNr(1000))?[0] = 1; // dropped here, the transaction would change nothing
//! let id = tx.finish()?; // seen by all from now on; durable with the next commit
//! journal.commit(id)?; // durable: fsync may return
//! let device = journal.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! `docs/journal.md` has the rules. In short: *new data and log blocks, flush, commit block, flush*; a block goes home
//! from a durable image only; the tail of the log moves behind a flush of what went home; blocks that a transaction freed
//! may be used again when [`Journal::durable`] has reached it; the first failed write or flush ends the journal.
//!
//! Handles change blocks one after the other; [`Journal::commit`] waits apart from them, and one flush serves all who wait.
//! While one transaction waits for its last flush, the next one is written, and the same flush orders it.

mod commit;
mod error;
mod log;
mod open;
pub mod recovery;
mod state;
mod tx;

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use floe_blockdev::{ReadBlocks, WriteBlocks};
use floe_format::ext::superblock::OFFSET_BYTES;
use floe_format::{BlockNr, Geometry};
use floe_sync::atomic::{AtomicU64, Ordering};
use floe_sync::{Condvar, Mutex, MutexGuard, PoisonError};

pub use error::JournalError;
pub use state::TransactionId;
pub use tx::JournalTx;

use log::Log;
use state::State;

/// The clock of commit blocks: seconds since 1970 and nanoseconds.
pub type Clock = fn() -> (u64, u32);

/// The time of the system.
fn system_clock() -> (u64, u32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs(), since.subsec_nanos())
}

/// A file system on `D` that is changed through its journal. It reads ([`ReadBlocks`]) with all finished changes, whether
/// they are durable or not; written as a device ([`WriteBlocks`]) it takes data of files, past the log, and a flush of it is
/// [`Journal::sync`]. Dropped without [`Journal::close`] it leaves the device as a crash would: to be recovered.
#[derive(Debug)]
pub struct Journal<D> {
    device: D,
    geometry: Geometry,
    log: Log,
    clock: Clock,
    /// Held by the one open handle.
    handle: Mutex<()>,
    state: Mutex<State>,
    /// Told whenever a turn of work ends.
    changed: Condvar,
    /// Writes of data that have ended.
    data_writes: AtomicU64,
}

/// What a caller waits for.
#[derive(Clone, Copy)]
struct Goal {
    transaction: TransactionId,
    data_writes: u64,
}

impl Goal {
    fn is_reached(self, state: &State) -> bool {
        state.durable >= self.transaction && state.data_durable >= self.data_writes
    }
}

impl<D: WriteBlocks> Journal<D> {
    /// What follows from the superblock.
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Begins a change of `credits` blocks, or a few more; waits until no other handle is open, and for room in the log. A
    /// thread that holds a handle must not begin another.
    ///
    /// # Errors
    /// [`JournalError::TooLong`] for more than a quarter of the log (rule R11), [`JournalError::Aborted`], or what stopped a
    /// commit or checkpoint that had to make room.
    pub fn begin(&self, credits: u32) -> Result<JournalTx<'_, D>, JournalError> {
        // Poisoned by a panic between changes of a handle that never joined: nothing of it was kept.
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        let more = u64::from(credits);
        let joined_len = |state: &State| {
            let running = &state.running;
            (running.images.len() as u64 + more, running.revoked.len() as u64 + more)
        };
        drop(self.room_for(joined_len)?);
        Ok(JournalTx::new(self, handle))
    }

    /// Makes a finished transaction, and all before it, durable: returns when a flush behind its commit block has
    /// succeeded. With a transaction that is durable already, returns at once.
    ///
    /// # Errors
    /// [`JournalError::Aborted`], or the failed write or flush: it is not durable then, and never will be.
    pub fn commit(&self, transaction: TransactionId) -> Result<(), JournalError> {
        self.reach(|state| Goal { transaction: transaction.min(state.last()), data_writes: 0 })
    }

    /// Makes everything durable: all finished transactions, and all data that was written.
    ///
    /// # Errors
    /// As [`Journal::commit`].
    pub fn sync(&self) -> Result<(), JournalError> {
        self.lock().judge()?;
        let data_writes = self.data_writes.load(Ordering::SeqCst);
        self.reach(|state| Goal { transaction: state.last(), data_writes })
    }

    /// The last durable transaction: whatever it or an earlier one freed may be used again (rule R7).
    pub fn durable(&self) -> TransactionId {
        self.lock().durable
    }

    /// Writes data of a file, past the log, to blocks that no *durable* transaction gave to anything else. It is ordered
    /// (rule R8) before any transaction that is finished later: map the blocks in one of those.
    ///
    /// # Errors
    /// [`JournalError::Aborted`]; [`JournalError::Io`], after which the journal goes on: nothing refers to the data yet.
    pub fn write_data(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), JournalError> {
        self.lock().judge()?;
        let written = self.device.write_at(offset_bytes, bytes);
        written.map_err(JournalError::io("writing data"))?;
        // After the write has ended: a flush that began before does not cover it.
        self.data_writes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Writes home what is durable and frees its part of the log. Happens by itself when the log is full.
    ///
    /// # Errors
    /// As [`Journal::commit`].
    pub fn checkpoint(&self) -> Result<(), JournalError> {
        let mut state = self.lock();
        loop {
            state.judge()?;
            if state.home_due.is_empty() {
                return Ok(());
            }
            state = if state.working { self.wait(state) } else { self.turn(state, Self::go_home)? };
        }
    }

    /// Waits until a goal is reached; works towards it whenever nobody else does.
    fn reach(&self, goal: impl FnOnce(&State) -> Goal) -> Result<(), JournalError> {
        let mut state = self.lock();
        let goal = goal(&state);
        state.wanted = state.wanted.max(goal.transaction);
        while !goal.is_reached(&state) {
            state.judge()?;
            state = if state.working { self.wait(state) } else { self.turn(state, Self::step)? };
        }
        Ok(())
    }

    /// Waits until the running transaction with a change fits into a transaction and into the log. `joined_len` counts its
    /// images and revokes then.
    fn room_for(
        &self,
        joined_len: impl Fn(&State) -> (u64, u64),
    ) -> Result<MutexGuard<'_, State>, JournalError> {
        let limit = self.log.limit();
        loop {
            let state = self.lock();
            state.judge()?;
            let (images, revokes) = joined_len(&state);
            let blocks = self.log.cost(images, revokes);
            let too_long = blocks > u64::from(limit);
            if !too_long && blocks <= state.room_blocks(&self.log) {
                return Ok(state);
            }
            if too_long && state.running.is_empty() {
                return Err(JournalError::TooLong { blocks, limit });
            }
            let (due, last) = (!state.home_due.is_empty(), state.last());
            drop(state);
            if due && !too_long {
                self.checkpoint()?;
            } else {
                self.commit(last)?;
            }
        }
    }

    /// The state. A panic elsewhere cannot have left half a change of it: changes call nothing that panics.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks of which a range of bytes has a part.
    fn blocks_of(&self, offset_bytes: u64, len_bytes: u64) -> std::ops::Range<BlockNr> {
        let size = u64::from(self.geometry.block_size);
        let end = offset_bytes.saturating_add(len_bytes).div_ceil(size);
        BlockNr(offset_bytes / size)..BlockNr(end.max(offset_bytes / size))
    }

    /// Block of the primary superblock, and its byte in it.
    fn superblock_place(&self) -> (BlockNr, usize) {
        let size = u64::from(self.geometry.block_size);
        // Below the size of a block.
        (BlockNr(OFFSET_BYTES / size), (OFFSET_BYTES % size) as usize)
    }
}

impl<D: WriteBlocks> ReadBlocks for Journal<D> {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        let blocks = self.blocks_of(offset_bytes, into.len() as u64);
        let end = offset_bytes.saturating_add(into.len() as u64);
        loop {
            // First the images, then the device: in between, an image may go home but not away.
            let (images, checkpoints) = {
                let state = self.lock();
                (state.newest_of(blocks.clone()), state.checkpoints)
            };
            self.device.read_at(offset_bytes, into)?;
            for (block, image) in images {
                let start = self.geometry.offset_bytes(block);
                let (from, to) = (start.max(offset_bytes), end.min(start + image.len() as u64));
                // Both lie in the range, and in the block.
                into[(from - offset_bytes) as usize..(to - offset_bytes) as usize]
                    .copy_from_slice(&image[(from - start) as usize..(to - start) as usize]);
            }
            // A checkpoint that began since may have been writing a block that had no image before.
            if self.lock().checkpoints == checkpoints {
                return Ok(());
            }
        }
    }

    fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        let blocks = self.blocks_of(offset_bytes, len_bytes);
        self.lock().newest_of(blocks).is_empty() && self.device.is_hole(offset_bytes, len_bytes)
    }

    fn will_need(&self, offset_bytes: u64, len_bytes: u64) {
        self.device.will_need(offset_bytes, len_bytes);
    }
}

impl<D: WriteBlocks> WriteBlocks for Journal<D> {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        self.write_data(offset_bytes, from).map_err(into_io)
    }

    fn flush(&self) -> io::Result<()> {
        self.sync().map_err(into_io)
    }

    fn current_size_bytes(&self) -> io::Result<u64> {
        self.device.current_size_bytes()
    }

    fn forget(&self, offset_bytes: u64, len_bytes: u64) {
        self.device.forget(offset_bytes, len_bytes);
    }
}

/// The device's own error where there is one.
fn into_io(error: JournalError) -> io::Error {
    match error {
        JournalError::Io { source, .. } => source,
        other => io::Error::other(other),
    }
}
