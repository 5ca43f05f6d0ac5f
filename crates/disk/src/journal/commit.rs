//! Writes a commit, in the order that makes it durable.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use floe_blockdev::{SECTOR_BYTES, WriteBlocks};
use floe_format::ext::jbd2::{JournalFormat, Tag, TagFlags};
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::native::LOCK;
use floe_format::native::commit::{self, Dependency};
use floe_format::native::identity::{FLAG_RESERVED, Identity};
use floe_format::{BlockNr, InodeNr};
use floe_sync::atomic::Ordering;
use floe_sync::{Arc, MutexGuard, PoisonError};

use super::Journal;
use super::company::{Calls, MOST_YIELDS};
use super::error::JournalError;
use super::log::Log;
use super::shared::{Lock, Shared};
use super::state::{Closed, Image, TransactionId};

/// Bytes of home blocks that are gathered for one write.
const MOST_GATHERED: usize = 1 << 20;
/// Bytes of room that is kept from one write of the log to the next.
const MOST_SPARE: usize = 1 << 19;

/// The right to write some logs, for one turn of work. Lost without an end (a panic of the device), it ends their journals, so
/// that nobody waits for ever.
struct Turn<'a, D: WriteBlocks> {
    journal: &'a Journal<D>,
    lanes: &'a BTreeSet<usize>,
    result: Result<(), String>,
}

impl<D: WriteBlocks> Drop for Turn<'_, D> {
    fn drop(&mut self) {
        let mut shared = self.journal.lock();
        for &lane in self.lanes {
            let state = &mut shared.lanes[lane].state;
            (state.working, state.at_flush) = (false, false);
        }
        let calls = match &self.result {
            Ok(()) => shared.call(),
            Err(why) => {
                shared.end_lanes(self.lanes.iter().copied(), why);
                shared.call_all()
            }
        };
        self.journal.wake(shared, calls);
    }
}

/// The right to flush; lost without an end, it ends all journals.
struct Flushing<'a, D: WriteBlocks> {
    journal: &'a Journal<D>,
    number: u64,
    result: Result<(), String>,
}

impl<D: WriteBlocks> Drop for Flushing<'_, D> {
    fn drop(&mut self) {
        let mut shared = self.journal.lock();
        shared.flushes.running.remove(&self.number);
        let calls = match &self.result {
            Ok(()) => {
                shared.flushes.done = shared.flushes.done.max(self.number);
                Calls::default()
            }
            Err(why) => {
                for lane in &mut shared.lanes {
                    lane.state.failed.get_or_insert_with(|| why.clone());
                }
                shared.flushes.failed.get_or_insert_with(|| why.clone());
                shared.call_all()
            }
        };
        self.journal.wake(shared, calls);
    }
}

/// A transaction that is being written, with its log.
struct Writing {
    lane: usize,
    inode: u32,
    log: Arc<Log>,
    closed: Arc<Closed>,
    /// The log was marked as empty until now.
    first: bool,
    /// Checksum of the blocks in the log.
    sum: Cell<u32>,
}

impl<D: WriteBlocks> Journal<D> {
    /// Does one piece of work on some logs, without the lock; the state comes back locked. The first error ends their journals:
    /// a failed write or flush is never tried again, because the device may have dropped what it could not write (R10).
    pub(super) fn turn<'a>(
        &'a self,
        mut shared: MutexGuard<'a, Shared>,
        lanes: &BTreeSet<usize>,
        work: impl FnOnce(&Self) -> Result<(), JournalError>,
    ) -> Result<MutexGuard<'a, Shared>, JournalError> {
        for &lane in lanes {
            shared.lanes[lane].state.working = true;
            // Whoever waits for others there waits for the end of this turn now.
            shared.lanes[lane].company.expected = None;
        }
        drop(shared);
        let mut turn = Turn { journal: self, lanes, result: Err("a thread panicked".to_owned()) };
        let result = work(self);
        turn.result = result.as_ref().map(|_| ()).map_err(ToString::to_string);
        drop(turn);
        result.map(|()| self.lock())
    }

    /// Flushes the device: returns when a flush that began after this call has succeeded. One flush serves all who wait, of
    /// whichever log (rule R4), and makes durable what was committed before it began (rule R3). Where the device takes several at
    /// once, those for other logs are not waited for; `lanes` are the logs of the caller, none: all.
    pub(super) fn flush_all(
        &self,
        lanes: &BTreeSet<usize>,
        doing: &'static str,
    ) -> Result<(), JournalError> {
        let most = self.device.most_flushes();
        let mut shared = self.lock();
        let (wanted, mut turns) = (shared.flushes.begun + 1, 0);
        let most_turns = MOST_YIELDS + shared.flushes.looks();
        loop {
            if let Some(why) = &shared.flushes.failed {
                return Err(JournalError::Aborted { why: why.clone() });
            }
            if shared.flushes.done >= wanted {
                return Ok(());
            }
            if !shared.flushes.may_begin(lanes, wanted, most) {
                shared = self.wait(shared);
                continue;
            }
            // Others are about to ask for a flush: one serves them, too, if they get there at once.
            let others = shared.lanes.iter().any(|lane| lane.state.working && !lane.state.at_flush);
            if !others || most > 1 || turns == most_turns {
                break;
            }
            drop(shared);
            Self::let_others_write(turns);
            turns += 1;
            shared = self.lock();
        }
        shared.flushes.begun += 1;
        let number = shared.flushes.begun;
        shared.flushes.running.insert(number, lanes.clone());
        let committed: Vec<_> = shared.lanes.iter().map(|lane| lane.state.committed).collect();
        let data_writes = self.data_writes.load(Ordering::SeqCst);
        drop(shared);
        let result = Err("a flush panicked".to_owned());
        let mut flushing = Flushing { journal: self, number, result };
        let began = Instant::now();
        let mut flushed = self.device.flush().map_err(JournalError::io(doing));
        let mut shared = self.lock();
        if let Some(why) = &shared.flushes.failed {
            // Another one failed meanwhile, perhaps with what this one was to write (rule R10).
            flushed = flushed.and_then(|()| Err(JournalError::Aborted { why: why.clone() }));
        }
        flushing.result = flushed.as_ref().map(|_| ()).map_err(ToString::to_string);
        let mut calls = Calls::default();
        if flushed.is_ok() {
            shared.flushes.took = began.elapsed();
            let mut served = BTreeSet::new();
            for (index, (lane, committed)) in shared.lanes.iter_mut().zip(committed).enumerate() {
                let before = lane.state.durable;
                lane.state.flushed(committed);
                if lane.state.durable > before {
                    served.insert(index);
                }
            }
            calls = shared.note_served(&served);
            shared.data_durable = shared.data_durable.max(data_writes);
        }
        drop(shared);
        calls.ring();
        drop(flushing);
        flushed
    }

    /// One step of group commit: the log blocks of the next transactions of some logs, if somebody waits for them; a flush,
    /// which also makes the transactions before them durable; their commit blocks (rule R4). Where nobody wants another
    /// transaction by then, the flush that makes them durable follows at once; otherwise it is that of the next step. The caller
    /// leaves as soon as `goals` are durable: he comes back with other changes, and whoever waits still goes on.
    pub(super) fn step(
        &self,
        lanes: &BTreeSet<usize>,
        goals: &[(usize, TransactionId)],
    ) -> Result<(), JournalError> {
        let is_written = self.write_next(lanes)?;
        let goes_on = {
            let shared = self.lock();
            is_written && !shared.is_any_wanted(lanes) && shared.lacks_any(goals)
        };
        if goes_on { self.flush_for(lanes, "flushing the commit") } else { Ok(()) }
    }

    /// Returns whether there are transactions that only a flush makes durable.
    fn write_next(&self, lanes: &BTreeSet<usize>) -> Result<bool, JournalError> {
        let (mut writing, superblock, one_barrier) = {
            let mut shared = self.lock();
            // Before any transaction, of whichever log: it says that the seal is broken.
            let wanted = lanes.contains(&0) && shared.lanes[0].state.is_superblock_wanted();
            let superblock = shared.superblock_due || wanted;
            shared.superblock_due = false;
            let writing = close_all(&mut shared, lanes);
            let is_ordered = shared.data_durable >= self.data_writes.load(Ordering::SeqCst);
            let one_barrier = is_ordered && !superblock && takes_one_barrier(&writing);
            (writing, superblock, one_barrier)
        };
        if one_barrier {
            return self.write_whole(lanes, &mut writing);
        }
        if writing.iter().any(|one| one.lane > 0) {
            self.lock_out()?;
        }
        self.write_each(&mut writing, |one| {
            if one.first {
                // Durable with the flush before the first commit block, without which it finds no transaction.
                let sequence = one.closed.id.sequence();
                one.log.write_superblock(&self.device, sequence, one.closed.start, 0)?;
            }
            // The place of the commit block is zeroed: whatever an earlier round of the log left there cannot pass for it, and
            // a torn commit block is whole or none.
            let sum = self.write_log(&one.log, &one.closed, |_, _| ())?;
            one.sum.set(sum);
            Ok(())
        })?;
        if superblock {
            self.write_superblock()?;
        }
        self.flush_for(lanes, "flushing the log")?;
        let time = {
            let mut shared = self.lock();
            for one in &writing {
                shared.lanes[one.lane].state.in_log.marked_empty = false;
            }
            (!writing.is_empty()).then(|| shared.next_commit_time(self.times.now()))
        };
        let Some(time) = time else { return Ok(false) };
        let numbers: BTreeMap<usize, Dependency> =
            writing.iter().map(Writing::dependency).collect();
        self.write_each(&mut writing, |one| {
            let partners = one.closed.partners.iter().filter_map(|other| numbers.get(other));
            let dependencies: Vec<_> = partners.copied().collect();
            self.write_commit(one, time, &dependencies)
        })?;
        let mut shared = self.lock();
        // All at once: a flush in between would acknowledge a part of what must be whole.
        for one in &writing {
            shared.lanes[one.lane].state.committed = one.closed.id;
        }
        Ok(true)
    }

    /// Writes a part of each transaction. An error in the log of a cube ends the journals that share a change with it, and the
    /// others go on without them; one that concerns inode 8 is returned.
    fn write_each(
        &self,
        writing: &mut Vec<Writing>,
        write: impl Fn(&Writing) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        let mut at = 0;
        while let Some(one) = writing.get(at) {
            // Whoever commits writes the logs of all: a panic over one of them is caught here, before it ends his call.
            let written = catch_unwind(AssertUnwindSafe(|| write(one)));
            let panicked = |_| Err(JournalError::Aborted { why: "a thread panicked".to_owned() });
            let Err(error) = written.unwrap_or_else(panicked) else {
                at += 1;
                continue;
            };
            let lost = partners_of(writing, one.lane);
            let (why, mut shared) = (error.to_string(), self.lock());
            if lost.iter().any(|lane| shared.lanes[*lane].cube == 0) {
                return Err(error);
            }
            shared.end_lanes(lost.iter().copied(), &why);
            let calls = shared.call_all();
            drop(shared);
            calls.ring();
            at = writing[..at].iter().filter(|one| !lost.contains(&one.lane)).count();
            writing.retain(|one| !lost.contains(&one.lane));
        }
        Ok(())
    }

    /// A flush in a turn of work on some logs, for which no other flush waits meanwhile.
    fn flush_for(&self, lanes: &BTreeSet<usize>, doing: &'static str) -> Result<(), JournalError> {
        self.set_at_flush(lanes, true);
        self.flush_all(lanes, doing)?;
        self.set_at_flush(lanes, false);
        Ok(())
    }

    fn set_at_flush(&self, lanes: &BTreeSet<usize>, at_flush: bool) {
        let mut shared = self.lock();
        for &lane in lanes {
            shared.lanes[lane].state.at_flush = at_flush;
        }
    }

    /// Writes a transaction with its commit block, all of which one flush makes durable: recovery takes it as a whole, by its
    /// checksum, or not at all.
    ///
    /// The commit block of the next transaction is not written before that flush: behind one that is torn, Linux would take it for
    /// the sign of a damaged log. Transactions before it may lack their commit block: then neither counts.
    fn write_whole(
        &self,
        lanes: &BTreeSet<usize>,
        writing: &mut Vec<Writing>,
    ) -> Result<bool, JournalError> {
        let time = self.lock().next_commit_time(self.times.now());
        self.write_each(writing, |one| {
            let (format, sequence) = (&one.log.format, one.closed.id.sequence());
            let commit = |block: &mut [u8], sum| {
                format.write_commit(block, sequence, time.0, time.1);
                format.put_sum(block, sum);
            };
            self.write_log(&one.log, &one.closed, commit).map(drop)
        })?;
        {
            let mut shared = self.lock();
            for one in &*writing {
                shared.lanes[one.lane].state.committed = one.closed.id;
            }
        }
        self.flush_for(lanes, "flushing the commit")?;
        Ok(false)
    }

    /// Revoke blocks, descriptors with the images behind them, and in the end the place of the commit block, which `commit`
    /// makes from zeroes and the checksum of all. Returns that.
    fn write_log(
        &self,
        log: &Log,
        closed: &Closed,
        commit: impl FnOnce(&mut [u8], u32),
    ) -> Result<u32, JournalError> {
        let (format, sequence) = (&log.format, closed.id.sequence());
        let most_bytes = closed.len_blocks as usize * log.block_len();
        let mut stream = log.stream(&self.device, closed.start, self.spare_bytes(most_bytes));
        for numbers in closed.revoked.chunks(format.revokes_per_block(log.block_len()).max(1)) {
            stream.push(|block| format.write_revoke(block, sequence, numbers))?;
        }
        let images: Vec<_> = closed.images.iter().collect();
        let mut sum = JournalFormat::FIRST_SUM;
        for images in images.chunks(format.tags_per_block(log.block_len()).max(1)) {
            let tag = |(block, image): &(&BlockNr, &Image)| format.tag_of(block.0, sequence, image);
            let tags: Vec<Tag> = images.iter().map(tag).collect();
            sum = stream.push(|block| {
                format.write_descriptor(block, sequence, &log.uuid, &tags);
                format.sum_up(sum, block)
            })?;
            for ((_, image), tag) in images.iter().zip(&tags) {
                let escaped = tag.flags.contains(TagFlags::ESCAPE);
                sum = stream.push_copy(image, |copy| {
                    if let Some(word) = copy.get_mut(..4).filter(|_| escaped) {
                        word.fill(0);
                    }
                    format.sum_up(sum, copy)
                })?;
            }
        }
        stream.push(|block| commit(block, sum))?;
        self.spare(stream.finish()?);
        Ok(sum)
    }

    /// Room for bytes that are gathered for one write: that of the last one, if nobody else has it.
    fn spare_bytes(&self, most_bytes: usize) -> Vec<u8> {
        let mut spare =
            std::mem::take(&mut *self.gathered.lock().unwrap_or_else(PoisonError::into_inner));
        spare.reserve(most_bytes.min(MOST_GATHERED));
        spare
    }

    /// Keeps that room for the next one.
    fn spare(&self, bytes: Vec<u8>) {
        if bytes.capacity() <= MOST_SPARE {
            *self.gathered.lock().unwrap_or_else(PoisonError::into_inner) = bytes;
        }
    }

    fn write_commit(
        &self,
        one: &Writing,
        time: (u64, u32),
        dependencies: &[Dependency],
    ) -> Result<(), JournalError> {
        let Writing { log, closed, sum, .. } = one;
        let at = log.ring.advance(closed.start, closed.len_blocks - 1);
        let mut stream = log.stream(&self.device, at, self.spare_bytes(log.block_len()));
        let (sequence, (seconds, nanoseconds)) = (closed.id.sequence(), time);
        stream.push(|block| {
            log.format.write_commit(block, sequence, seconds, nanoseconds);
            commit::put(block, dependencies);
            log.format.seal_commit(block);
            log.format.put_sum(block, sum.get());
        })?;
        self.spare(stream.finish()?);
        Ok(())
    }

    /// Writes the superblock in its place, where it is never logged: as one of a file system in use.
    fn write_superblock(&self) -> Result<(), JournalError> {
        let writes = self.superblock_writes.lock();
        let mut known = writes.unwrap_or_else(PoisonError::into_inner);
        let (image, lock) = {
            let shared = self.lock();
            (shared.superblock.clone(), shared.lock)
        };
        let mut bytes = [0; Superblock::SIZE];
        let (_, at) = self.superblock_place();
        let image = image.as_ref().and_then(|image| image.get(at..at + bytes.len()));
        let Some(own) = image else { return Ok(()) };
        bytes.copy_from_slice(own);
        let mut superblock = Superblock::decode(&bytes);
        if lock == Lock::Set {
            superblock.feature_incompat |= LOCK;
        }
        if let Some(identity) = Identity::of(&superblock) {
            // True when the transaction is home, and then the last superblock says so.
            let flags = identity.flags & !FLAG_RESERVED;
            Identity { flags, ..identity }.put(&mut superblock);
        }
        superblock.encode_with_checksum(&mut bytes);
        *known = bytes;
        let written = self.device.write_at(OFFSET_BYTES, &bytes);
        written.map_err(JournalError::io("writing the superblock"))
    }
}

impl Writing {
    fn dependency(&self) -> (usize, Dependency) {
        let journal_inode = if self.lane == 0 { InodeNr::JOURNAL.0 } else { self.inode };
        (self.lane, Dependency { journal_inode, sequence: self.closed.id.sequence() })
    }
}

/// A log and all whose transactions share changes with its own, directly or by others.
fn partners_of(writing: &[Writing], lane: usize) -> BTreeSet<usize> {
    let (mut all, mut open) = (BTreeSet::new(), vec![lane]);
    while let Some(lane) = open.pop() {
        if all.insert(lane) {
            let own = writing.iter().filter(|one| one.lane == lane);
            open.extend(own.flat_map(|one| &one.closed.partners));
        }
    }
    all
}

/// Whether all of what is written is proved by the checksums of commit blocks. They do not cover revoke blocks, but sectors are not
/// torn: a revoke block whose numbers lie in its first sector is whole, or recovery ends at it.
fn takes_one_barrier(writing: &[Writing]) -> bool {
    let is_proved = |one: &Writing| {
        let sector = one.log.format.revokes_per_block(SECTOR_BYTES);
        one.log.one_barrier && !one.first && one.closed.revoked.len() <= sector
    };
    !writing.is_empty() && writing.iter().all(is_proved)
}

/// Closes the wanted transactions of some logs.
fn close_all(shared: &mut Shared, lanes: &BTreeSet<usize>) -> Vec<Writing> {
    let mut writing = Vec::new();
    for &index in lanes {
        let lane = &mut shared.lanes[index];
        let first = lane.state.in_log.marked_empty;
        if let Some(closed) = lane.state.close_wanted(&lane.log) {
            let (log, inode) = (Arc::clone(&lane.log), lane.inode);
            let sum = Cell::new(JournalFormat::FIRST_SUM);
            writing.push(Writing { lane: index, inode, log, closed, first, sum });
        }
    }
    writing
}
