//! What is written, and in which order.

use floe_blockdev::WriteBlocks;
use floe_sync::MutexGuard;
use floe_sync::atomic::Ordering;

use super::Journal;
use super::error::JournalError;
use super::state::{Closed, Images, State};

/// Bytes of home blocks that are gathered for one write.
const MOST_GATHERED: usize = 1 << 20;

/// The right to write, for one turn of work. Lost without an end (a panic of the device), it ends the journal, so that
/// nobody waits for ever.
struct Turn<'a, D: WriteBlocks> {
    journal: &'a Journal<D>,
    result: Result<(), String>,
}

impl<D: WriteBlocks> Drop for Turn<'_, D> {
    fn drop(&mut self) {
        let mut state = self.journal.lock();
        state.working = false;
        if let Err(why) = &self.result {
            state.failed.get_or_insert_with(|| why.clone());
        }
        drop(state);
        self.journal.changed.notify_all();
    }
}

impl<D: WriteBlocks> Journal<D> {
    /// Does one piece of work, alone, without the lock; the state comes back locked. The first error ends the journal: a
    /// failed write or flush is never tried again, because the device may have dropped what it could not write (R10).
    pub(super) fn turn<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        work: fn(&Self) -> Result<(), JournalError>,
    ) -> Result<MutexGuard<'a, State>, JournalError> {
        state.working = true;
        drop(state);
        let mut turn = Turn { journal: self, result: Err("a thread panicked".to_owned()) };
        let result = work(self);
        turn.result = result.as_ref().map(|_| ()).map_err(ToString::to_string);
        drop(turn);
        result.map(|()| self.lock())
    }

    /// One step of group commit: the log blocks of the next transaction, if somebody waits for it; a flush, which also makes
    /// the transaction before it durable; its commit block (rule R4).
    pub(super) fn step(&self) -> Result<(), JournalError> {
        let (closing, first, committed) = {
            let mut state = self.lock();
            let closing = state.close_wanted(&self.log);
            (closing, state.marked_empty, state.committed)
        };
        if let Some(closing) = &closing {
            if first {
                // Durable with the flush before the first commit block, without which it finds no transaction.
                let sequence = closing.id.sequence();
                self.log.write_superblock(&self.device, sequence, closing.start, 0)?;
            }
            self.write_log(closing)?;
        }
        // All that ends before the flush begins is covered by it (rule R3): data as well.
        let data_writes = self.data_writes.load(Ordering::SeqCst);
        self.device.flush().map_err(JournalError::io("flushing the log"))?;
        let time = {
            let mut state = self.lock();
            state.marked_empty &= closing.is_none();
            state.flushed(committed);
            state.data_durable = state.data_durable.max(data_writes);
            closing.is_some().then(|| state.next_commit_time((self.clock)()))
        };
        self.changed.notify_all();
        if let (Some(closing), Some(time)) = (closing, time) {
            self.write_commit(&closing, time)?;
            self.lock().committed = closing.id;
        }
        Ok(())
    }

    /// Revoke blocks, and descriptors with the images behind them. The place of the commit block is zeroed: whatever an
    /// earlier round of the log left there cannot pass for it, and a torn commit block is whole or none.
    fn write_log(&self, closed: &Closed) -> Result<(), JournalError> {
        let (format, sequence) = (&self.log.format, closed.id.sequence());
        let mut stream = self.log.stream(&self.device, closed.start);
        for numbers in closed.revoked.chunks(format.revokes_per_block(self.log.block_len()).max(1))
        {
            stream.push(|block| format.write_revoke(block, sequence, numbers))?;
        }
        let images: Vec<_> = closed.images.iter().collect();
        for images in images.chunks(format.tags_per_block(self.log.block_len()).max(1)) {
            let mut copies = Vec::with_capacity(images.len());
            let mut tags = Vec::with_capacity(images.len());
            for (block, image) in images {
                let mut copy = image.to_vec();
                tags.push(format.prepare_data(block.0, sequence, &mut copy));
                copies.push(copy);
            }
            stream.push(|block| format.write_descriptor(block, sequence, &self.log.uuid, &tags))?;
            for copy in &copies {
                stream.push(|block| block.copy_from_slice(copy))?;
            }
        }
        stream.push(|_| ())?;
        stream.finish()
    }

    fn write_commit(&self, closed: &Closed, time: (u64, u32)) -> Result<(), JournalError> {
        let at = self.log.ring.advance(closed.start, closed.len_blocks - 1);
        let mut stream = self.log.stream(&self.device, at);
        let (sequence, (seconds, nanoseconds)) = (closed.id.sequence(), time);
        stream.push(|block| {
            self.log.format.write_commit(block, sequence, seconds, nanoseconds);
        })?;
        stream.finish()
    }

    /// A checkpoint: durable images go home, a flush, the tail of the log behind them, a flush; then their part of the log
    /// is free (rules R5 and R6).
    pub(super) fn go_home(&self) -> Result<(), JournalError> {
        let (images, tail) = {
            let mut state = self.lock();
            state.checkpoints += 1;
            (state.home_due.clone(), state.tail_behind_durable())
        };
        self.write_home(&images)?;
        self.device.flush().map_err(JournalError::io("flushing what went home"))?;
        let (start, id) = tail;
        self.log.write_superblock(&self.device, id.sequence(), start, 0)?;
        self.device.flush().map_err(JournalError::io("flushing the tail of the log"))?;
        self.lock().went_home();
        Ok(())
    }

    /// Writes images to their places, neighbours in one request.
    fn write_home(&self, images: &Images) -> Result<(), JournalError> {
        let (mut from, mut gathered) = (0, Vec::new());
        let write = |from: u64, bytes: &[u8]| {
            let written = if bytes.is_empty() { Ok(()) } else { self.device.write_at(from, bytes) };
            written.map_err(JournalError::io("writing blocks home"))
        };
        for (&block, image) in images {
            let offset = self.geometry.offset_bytes(block);
            if offset != from + gathered.len() as u64 || gathered.len() >= MOST_GATHERED {
                write(from, &gathered)?;
                (from, gathered) = (offset, Vec::new());
            }
            gathered.extend_from_slice(image);
        }
        write(from, &gathered)
    }

    /// Ends in order: everything durable and home, the log empty, `needs_recovery` gone. The device comes back.
    ///
    /// # Errors
    /// [`JournalError::Aborted`], or a failed write or flush: then the log still holds what is not home.
    pub fn close(self) -> Result<D, JournalError> {
        self.sync()?;
        self.checkpoint()?;
        let (last, head) = {
            let state = self.lock();
            state.judge()?;
            (state.last(), state.head)
        };
        let next = last.next().sequence();
        self.log.write_superblock(&self.device, next, 0, head)?;
        self.device.flush().map_err(JournalError::io("flushing the empty log"))?;
        super::open::set_needs_recovery(&self.device, false)?;
        Ok(self.device)
    }
}
