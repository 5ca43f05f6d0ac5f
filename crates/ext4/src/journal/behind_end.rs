//! Looks for commits behind the place at which a scan of the log ended: they prove that the end is damage, not the end.
//!
//! Reads: the rest of the ring.  Keeps: nothing.
//! A commit block is written only when the transactions before it are durable (`docs/journal.md`), so one with a higher number is
//! no state that a crash leaves. Remnants of earlier turns of the ring have lower numbers, or, where a number was counted anew, an
//! earlier time.

use floe_format::ext::jbd2::{self, Checksums, CommitBlock, JournalFormat};

use super::log::{Log, Ring, is_after};
use super::pieces::each_block;

const NANOSECONDS: u32 = 1_000_000_000;

/// A device may tear the write of a block between sectors.
const SECTOR_BYTES: usize = 512;

/// The block that a recovery writes over the first one of a transaction that it drops, because others lack a part of it: no damage
/// looks like that.
pub fn dropped(sequence: u32, block_size: u32) -> Vec<u8> {
    let mut block = vec![0; block_size as usize];
    let text = b"floe: dropped";
    block[..text.len()].copy_from_slice(text);
    block[16..20].copy_from_slice(&sequence.to_be_bytes());
    block
}

/// Where a scan ended.
pub(super) struct End<'a> {
    pub(super) log: Log<'a>,
    pub(super) format: JournalFormat,
    pub(super) ring: Ring,
    /// First block of the transaction that is not there.
    pub(super) start: u32,
    /// Its number.
    pub(super) sequence: u32,
    /// The last commit before it, in seconds since 1970.
    pub(super) last_commit_seconds: u64,
    /// Commit blocks may reach the device before their transactions.
    pub(super) is_async: bool,
}

impl End<'_> {
    /// The last transaction that was committed although the log seems to end before it. `None`: the end may be one.
    ///
    /// With asynchronous commits two transactions may be on their way at the same time: the first one may lack its commit block,
    /// and the second one be whole.
    pub(super) fn lost_commit(&self) -> Option<u32> {
        let (journal, checksums) = (self.log.journal, self.format.checksums);
        // A native journal whose features are damaged has another fault. Commits are asynchronous where it is the only one.
        let is_known = match checksums {
            Checksums::V3 => !self.is_async,
            Checksums::V1 => self.is_async,
            _ => false,
        };
        if journal.cut == Some(self.sequence) || (journal.is_native && !is_known) {
            return None;
        }
        let least = self.sequence.wrapping_add(if self.is_async { 2 } else { 0 });
        let mut last: Option<u32> = None;
        for range in self.ring.but(self.start) {
            each_block(self.log.device, journal, range, |_, block| {
                let is_newest = |number: &u32| {
                    !is_after(least, *number) && last.is_none_or(|last| is_after(*number, last))
                };
                last = block.ok().and_then(|block| self.commit(block)).filter(is_newest).or(last);
            });
        }
        last.filter(|last| *last != self.sequence || !self.is_nothing())
    }

    /// Whether the transaction that is not there changed nothing, or is dropped: its mark stands for it, or no block at all, as
    /// debugfs writes what changes nothing.
    fn is_nothing(&self) -> bool {
        let log = Log { phase: None, ..self.log };
        let mut block = vec![0; self.log.journal.block_size as usize];
        if log.read(self.start, &mut block).is_err() {
            return false;
        }
        let mark = dropped(self.sequence, self.log.journal.block_size);
        if block[..SECTOR_BYTES] == mark[..SECTOR_BYTES] {
            return true;
        }
        let is_zero = block.iter().all(|byte| *byte == 0);
        !self.log.journal.is_native
            && is_zero
            && log.read(self.ring.advance(self.start, 1), &mut block).is_ok()
            && self.commit(&block) == Some(self.sequence)
    }

    /// The number of a commit block of the present turn of the ring.
    fn commit(&self, block: &[u8]) -> Option<u32> {
        let header = jbd2::header(block).filter(|header| header.blocktype == jbd2::COMMIT_BLOCK)?;
        let commit = CommitBlock::decode(block.first_chunk()?);
        let since = self.last_commit_seconds.max(self.log.journal.since_seconds);
        let is_close = header.sequence.wrapping_sub(self.sequence) <= self.ring.len_blocks();
        let fits = is_close
            && commit.commit_sec >= since
            && commit.commit_nsec < NANOSECONDS
            && self.format.commit_ok(block);
        fits.then_some(header.sequence)
    }
}
