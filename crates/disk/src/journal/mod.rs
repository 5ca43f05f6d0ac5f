//! The journal of a file system that is being changed (jbd2, inode 8): Linux and e2fsck recover what is written here. Cubes of a
//! native file system may have further ones, which Floe alone recovers.
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
//! [`Journal::commit`] waits apart from handles, and one flush serves all who wait. While one transaction waits for its last
//! flush, the next one is written, and the same flush orders it. Several handles may be open ([`Journal::change`]).
//!
//! A block is logged by the journal that owns its lot. A change of blocks that several own is a transaction in each; they name
//! each other in their commit blocks, and recovery keeps all of them or none ([`Journal::commit_cube`]).

mod awaited;
mod commit;
mod company;
mod cubes;
mod end;
mod error;
mod handles;
mod home;
mod in_log;
#[cfg(all(test, feature = "shuttle"))]
mod interleavings;
mod loan;
mod log;
mod open;
pub mod recovery;
mod shared;
mod state;
mod takeover;
mod tx;

use std::collections::BTreeSet;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use floe_blockdev::{ReadBlocks, WriteBlocks};
use floe_ext4::tx::Refusal;
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::{BlockNr, Geometry};
use floe_sync::atomic::{AtomicU64, Ordering};
use floe_sync::{Condvar, Mutex, MutexGuard, PoisonError};

pub use awaited::Dependencies;
pub use cubes::{CubeState, Finished};
pub use error::JournalError;
pub use log::Barriers;
pub use state::TransactionId;
pub use takeover::take_over;
pub use tx::JournalTx;

use company::Calls;
use handles::Handles;
use shared::Shared;

/// The clock of commit blocks: seconds since 1970 and nanoseconds.
pub type Clock = fn() -> (u64, u32);

/// The times of commit blocks; each is later than the one before, whatever this says.
#[derive(Clone, Copy, Debug)]
enum Times {
    Clock(Clock),
    /// Always the same, so that the same changes leave the same bytes.
    Seconds(u64),
}

impl Times {
    fn now(self) -> (u64, u32) {
        match self {
            Self::Clock(clock) => clock(),
            Self::Seconds(seconds) => (seconds, 0),
        }
    }
}

/// The time of the system.
fn system_clock() -> (u64, u32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs(), since.subsec_nanos())
}

/// A file system on `D` that is changed through its journals. It reads ([`ReadBlocks`]) with all finished changes, whether
/// they are durable or not; written as a device ([`WriteBlocks`]) it takes data of files, past the log, and a flush of it is
/// [`Journal::sync`]. Dropped without [`Journal::close`] it leaves the device as a crash would: to be recovered.
#[derive(Debug)]
pub struct Journal<D> {
    device: D,
    geometry: Geometry,
    times: Times,
    /// Lots have owners, and the superblock is never logged.
    is_native: bool,
    /// The root cube has more journals than that of inode 8 when it is opened.
    has_several: bool,
    handles: Handles,
    shared: Mutex<Shared>,
    /// The primary superblock of the device, as long as it is never logged. Held while it is written, so that an older one never
    /// replaces a newer one.
    superblock_writes: Mutex<[u8; Superblock::SIZE]>,
    /// Told whenever a turn of work or a flush ends, if somebody waits for that.
    changed: Condvar,
    /// Writes of data that have ended.
    data_writes: AtomicU64,
    /// Room for what is written to a log next.
    gathered: Mutex<Vec<u8>>,
    /// Bytes of images that a log keeps in memory: so much of its running transaction, and so much that is to go home.
    most_kept_bytes: AtomicU64,
}

impl<D: WriteBlocks> Journal<D> {
    /// The geometry that follows from the superblock.
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Whether a commit of a transaction takes one flush instead of two, where no data was written past it.
    pub fn has_one_barrier(&self) -> bool {
        self.lock().lanes[0].log.one_barrier
    }

    /// Begins a change of `credits` blocks, or a few more, alone: waits until no other handle is open, and for room in the log
    /// of inode 8. A thread that holds a handle must not begin another.
    ///
    /// # Errors
    /// [`JournalError::TooLong`] for more than a quarter of the log (rule R11), [`JournalError::Aborted`], or what stopped a
    /// commit or checkpoint that had to make room.
    pub fn begin(&self, credits: u32) -> Result<JournalTx<'_, D>, JournalError> {
        let handle = self.handles.begin_alone();
        self.lock().lanes[0].state.judge()?;
        self.settle_moves()?;
        let more = u64::from(credits);
        drop(self.room_for(|shared| {
            let running = &shared.lanes[0].state.running;
            vec![(0, running.images.len() as u64 + more, running.revoked.len() as u64 + more)]
        })?);
        Ok(JournalTx::new(self, handle))
    }

    /// Begins a change beside other handles, with `blocks` as its own. It makes each further block its own that it reads or
    /// changes, and waits where that is another's. To wait in a circle is not possible: [`Refusal::Busy`] says that another
    /// handle has a block that comes before one of this handle's; then it is to be dropped and begun again, with all blocks
    /// that it had and this one.
    ///
    /// # Errors
    /// As [`Journal::begin`].
    pub fn begin_beside(
        &self,
        credits: u32,
        blocks: &BTreeSet<BlockNr>,
    ) -> Result<JournalTx<'_, D>, JournalError> {
        self.lock().lanes[0].state.judge()?;
        // Room first, then blocks (rule R2): whoever waits for room has nothing that others wait for.
        let more = u64::from(credits);
        drop(self.room_for(|shared| {
            let running = &shared.lanes[0].state.running;
            vec![(0, running.images.len() as u64 + more, running.revoked.len() as u64 + more)]
        })?);
        Ok(JournalTx::new(self, self.handles.begin_beside(blocks)))
    }

    /// Makes a change beside others: runs it once more, with its blocks taken in order, whenever it met one that it must not
    /// wait for. Returns its value and its transaction.
    ///
    /// # Errors
    /// Those of the journal; or `run` refuses, and nothing is changed.
    pub fn change<T>(
        &self,
        credits: u32,
        mut run: impl FnMut(&mut JournalTx<'_, D>) -> Result<T, Refusal>,
    ) -> Result<Result<(T, TransactionId), Refusal>, JournalError> {
        let mut blocks = BTreeSet::new();
        loop {
            let mut tx = self.begin_beside(credits, &blocks)?;
            match run(&mut tx) {
                Ok(value) => return tx.finish().map(|id| Ok((value, id))),
                Err(Refusal::Busy(block)) => {
                    blocks.extend(tx.owned());
                    blocks.insert(block);
                }
                Err(refusal) => return Ok(Err(refusal)),
            }
        }
    }

    /// Makes a finished transaction, and all before it in its log, durable: returns when a flush behind its commit block has
    /// succeeded. With a transaction that is durable already, returns at once.
    ///
    /// # Errors
    /// [`JournalError::Aborted`], or the failed write or flush: it is not durable then, and never will be.
    pub fn commit(&self, transaction: TransactionId) -> Result<(), JournalError> {
        let lane = transaction.lane();
        let goals = |shared: &Shared| match shared.lanes.get(lane) {
            Some(known) => vec![(lane, transaction.min(known.state.last()))],
            None => Vec::new(),
        };
        self.reach(goals, 0, 1)
    }

    /// As [`Journal::sync`], where an error of a cube's journal ends that one alone, which [`Journal::ended_cubes`] tells.
    ///
    /// # Errors
    /// As [`Journal::commit`] for the journal of inode 8.
    pub fn sync_sound(&self) -> Result<(), JournalError> {
        let most = self.lock().lanes.len();
        for _ in 0..most {
            match self.sync() {
                Ok(()) => return Ok(()),
                Err(error) => self.judge_root(error)?,
            }
        }
        self.sync()
    }

    /// Makes everything durable: all finished transactions, and all data that was written. Those of a cube whose journal has
    /// ended are left out.
    ///
    /// # Errors
    /// As [`Journal::commit`].
    pub fn sync(&self) -> Result<(), JournalError> {
        self.lock().lanes[0].state.judge()?;
        let data_writes = self.data_writes.load(Ordering::SeqCst);
        let goals = |shared: &Shared| {
            let lanes = shared.lanes.iter().enumerate();
            let sound = lanes.filter(|(_, lane)| lane.state.failed.is_none());
            sound.map(|(index, lane)| (index, lane.state.last())).collect()
        };
        self.reach(goals, data_writes, 1)
    }

    /// The last durable transaction of inode 8's log: whatever it or an earlier one freed may be used again (rule R7).
    pub fn durable(&self) -> TransactionId {
        self.lock().lanes[0].state.durable
    }

    /// Whether a transaction, of whichever log, is durable.
    pub fn is_durable(&self, transaction: TransactionId) -> bool {
        let shared = self.lock();
        let lane = shared.lanes.get(transaction.lane());
        lane.is_some_and(|lane| lane.state.durable >= transaction)
    }

    /// Discards free blocks, past the log. Whatever freed them is durable, so no log brings back what they held (rule R7).
    ///
    /// # Errors
    /// As [`Journal::write_data`].
    pub fn discard_free(&self, offset_bytes: u64, len_bytes: u64) -> Result<bool, JournalError> {
        self.judge_data(offset_bytes)?;
        let done = self.device.discard(offset_bytes, len_bytes);
        done.map_err(JournalError::io("discarding free blocks"))
    }

    /// `Err` where nothing may be written any more.
    fn judge_data(&self, offset_bytes: u64) -> Result<(), JournalError> {
        let shared = self.lock();
        let block = BlockNr(offset_bytes / u64::from(self.geometry.block_size));
        shared.lanes[0].state.judge()?;
        shared.lanes[shared.lane_of(&self.geometry, block)].state.judge()?;
        match shared.lots.lost(&self.geometry, block) {
            Some(why) => Err(JournalError::Aborted { why: why.to_owned() }),
            None => Ok(()),
        }
    }

    /// Writes data of a file, past the log, to blocks that no *durable* transaction gave to anything else. It is ordered
    /// (rule R8) before any transaction that is finished later: map the blocks in one of those.
    ///
    /// # Errors
    /// [`JournalError::Aborted`]; [`JournalError::Io`], after which the journal goes on: nothing refers to the data yet.
    pub fn write_data(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), JournalError> {
        self.judge_data(offset_bytes)?;
        let written = self.device.write_at(offset_bytes, bytes);
        written.map_err(JournalError::io("writing data"))?;
        // After the write has ended: a flush that began before does not cover it.
        self.data_writes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Writes home what is durable and frees its part of the logs. Happens by itself when a log is full.
    ///
    /// # Errors
    /// As [`Journal::commit`].
    pub fn checkpoint(&self) -> Result<(), JournalError> {
        let lanes: Vec<usize> = {
            let shared = self.lock();
            shared.lanes[0].state.judge()?;
            let lanes = shared.lanes.iter().enumerate();
            lanes.filter(|(_, lane)| lane.state.failed.is_none()).map(|(index, _)| index).collect()
        };
        lanes.into_iter().try_for_each(|lane| self.checkpoint_lane(lane, true))
    }

    /// Frees the log of one lane: all of it, or the older half.
    fn checkpoint_lane(&self, lane: usize, whole: bool) -> Result<(), JournalError> {
        let lanes = BTreeSet::from([lane]);
        let mut shared = self.lock();
        loop {
            let state = &shared.lanes[lane].state;
            state.judge()?;
            if state.in_log.is_empty() {
                return Ok(());
            }
            if state.working {
                shared = self.wait(shared);
                continue;
            }
            shared = self.turn(shared, &lanes, |journal| journal.go_home(lane, whole))?;
            if !whole {
                return Ok(());
            }
        }
    }

    /// Waits until transactions and data are durable; works towards it whenever nobody else does. So many threads wait for that.
    fn reach(
        &self,
        goals: impl FnOnce(&Shared) -> Vec<(usize, TransactionId)>,
        data_writes: u64,
        threads: usize,
    ) -> Result<(), JournalError> {
        let (goals, waiter) = {
            let mut shared = self.lock();
            let goals = goals(&shared);
            shared.want(&goals);
            let waiter = self.begin_to_wait(&mut shared, &goals, threads);
            (goals, waiter)
        };
        // Behind the waiter, whose end takes the lock, too.
        let mut shared = self.lock();
        loop {
            let (mut left, mut failed) = (Vec::new(), Ok(()));
            for &(lane, id) in &goals {
                let state = &shared.lanes[lane].state;
                if state.durable < id {
                    failed = failed.and_then(|()| state.judge());
                    left.push(lane);
                }
            }
            failed?;
            if left.is_empty() {
                if shared.data_durable >= data_writes {
                    return Ok(());
                }
                // With no log to write, a flush covers the data; so does one that others wait for.
                let calls = shared.call();
                drop(shared);
                calls.ring();
                self.flush_all(&BTreeSet::new(), "flushing data")?;
                shared = self.lock();
                continue;
            }
            let lanes = shared.closure(left);
            let is_busy = lanes.iter().any(|&lane| shared.lanes[lane].state.working);
            let until = match is_busy {
                true => shared.expect(&lanes, None),
                false => shared.company_until(&lanes),
            };
            if is_busy || until.is_some() {
                shared = waiter.sleep(shared, until);
                continue;
            }
            shared = self.turn(shared, &lanes, |journal| journal.step(&lanes, &goals))?;
        }
    }

    /// Waits until the running transactions with a change fit into transactions and into their logs. `joined_len` counts their
    /// images and revokes then.
    fn room_for(
        &self,
        joined_len: impl Fn(&Shared) -> Vec<(usize, u64, u64)>,
    ) -> Result<MutexGuard<'_, Shared>, JournalError> {
        loop {
            let shared = self.lock();
            let mut wanting = None;
            for (lane, images, revokes) in joined_len(&shared) {
                let (log, state) = (&shared.lanes[lane].log, &shared.lanes[lane].state);
                state.judge()?;
                let (blocks, limit) = (log.cost(images, revokes), log.limit());
                let too_long = blocks > u64::from(limit);
                if !too_long && blocks <= state.room_blocks(log) {
                    match self.kept_too_much(log, state) {
                        Some(is_due) => wanting = Some((lane, is_due, state.last())),
                        None => continue,
                    }
                    break;
                }
                if too_long && state.running.is_empty() {
                    return Err(JournalError::TooLong { blocks, limit });
                }
                wanting = Some((lane, !too_long && !state.in_log.is_empty(), state.last()));
                break;
            }
            let Some((lane, due, last)) = wanting else { return Ok(shared) };
            drop(shared);
            if due {
                self.checkpoint_lane(lane, false)?;
            } else {
                self.commit(last)?;
            }
        }
    }

    /// The state. A panic elsewhere cannot have left half a change of it: changes call nothing that panics.
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, mut shared: MutexGuard<'a, Shared>) -> MutexGuard<'a, Shared> {
        shared.waiting += 1;
        let mut shared = self.changed.wait(shared).unwrap_or_else(PoisonError::into_inner);
        shared.waiting -= 1;
        shared
    }

    /// Gives the lock back, and wakes those who wait for the end of work, and those who are called.
    fn wake(&self, shared: MutexGuard<'_, Shared>, calls: Calls) {
        let is_awaited = shared.waiting > 0;
        drop(shared);
        if is_awaited {
            self.changed.notify_all();
        }
        calls.ring();
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
                let shared = self.lock();
                (shared.newest_of(&self.geometry, &blocks), shared.checkpoints)
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
        self.lock().newest_of(&self.geometry, &blocks).is_empty()
            && self.device.is_hole(offset_bytes, len_bytes)
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
