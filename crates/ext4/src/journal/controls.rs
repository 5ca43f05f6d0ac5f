//! The control blocks of a damaged log: those in its whole ring that follow each other by their numbers.
//!
//! Reads: the ring.  Keeps: a record per control block.
//! Data blocks in a log never begin as control blocks do. One that is damaged is missing here; a copy that got elsewhere breaks the order
//! and does not count, nor does what earlier turns of the ring left.

use floe_format::ext::jbd2::{self, CommitBlock, JournalFormat};

use super::log::{Log, Ring, is_after};
use super::pieces::each_block;

/// Bytes of the header of a block of the log.
const HEADER_BYTES: usize = 12;
/// The first bit of the number in it.
const NUMBER_BIT: usize = 64;
const KINDS: [u32; 3] = [jbd2::DESCRIPTOR_BLOCK, jbd2::REVOKE_BLOCK, jbd2::COMMIT_BLOCK];

/// A control block of a transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Control {
    /// Block of the log.
    pub(super) at: u32,
    pub(super) sequence: u32,
    pub(super) kind: u32,
    /// The bit without which it fits: to be flipped back.
    pub(super) wrong_bit: Option<usize>,
}

/// A log to be searched.
pub(super) struct Controls<'a> {
    pub(super) log: Log<'a>,
    pub(super) format: JournalFormat,
    pub(super) ring: Ring,
    /// The first transaction and the last one.
    pub(super) numbers: (u32, u32),
}

impl Controls<'_> {
    /// The control blocks, in the order of the log.
    pub(super) fn find(&self) -> Vec<Control> {
        let (log, mut all) = (self.log, Vec::new());
        for range in self.ring.from(log.journal.superblock.start) {
            each_block(log.device, log.journal, range, |at, block| {
                all.extend(block.ok().and_then(|block| self.control(at, block)));
            });
        }
        self.in_order(&all)
    }

    fn has(&self, sequence: u32) -> bool {
        let (first, last) = self.numbers;
        !is_after(first, sequence) && !is_after(sequence, last)
    }

    fn control(&self, at: u32, block: &[u8]) -> Option<Control> {
        let found = jbd2::header(block).filter(|header| KINDS.contains(&header.blocktype));
        let Some(header) = found.filter(|header| self.has(header.sequence)) else {
            return self.with_header_bit(at, block);
        };
        let (sequence, kind) = (header.sequence, header.blocktype);
        let control = Control { at, sequence, kind, wrong_bit: None };
        if kind == jbd2::COMMIT_BLOCK {
            // Data blocks have checksums of their own. Remnants of earlier uses are older.
            let commit = CommitBlock::decode(block.first_chunk()?);
            let is_new = commit.commit_sec >= self.log.journal.since_seconds;
            return match self.format.commit_ok(block) {
                true => is_new.then_some(control),
                false => self.by_header_bit(at, block).or(Some(control)),
            };
        }
        if self.format.tail_ok(block) {
            return Some(control);
        }
        let bit = self.format.wrong_bit(block)?;
        self.with_bit(at, block, bit)
    }

    /// A control block in whose header one bit is wrong.
    fn with_header_bit(&self, at: u32, block: &[u8]) -> Option<Control> {
        let (magic, kind) = (word(block, 0)?, word(block, 4)?);
        let differing = (magic ^ jbd2::MAGIC).count_ones();
        if differing > 1 || KINDS.iter().all(|one| differing + (kind ^ one).count_ones() > 1) {
            return None;
        }
        self.by_header_bit(at, block)
    }

    fn by_header_bit(&self, at: u32, block: &[u8]) -> Option<Control> {
        // An older number is that of an earlier turn of the ring, where no checksum proves it.
        let bits = if self.format.has_block_tails() { HEADER_BYTES * 8 } else { NUMBER_BIT };
        (0..bits).find_map(|bit| self.with_bit(at, block, bit))
    }

    /// The control block that a block is with a bit flipped.
    fn with_bit(&self, at: u32, block: &[u8], bit: usize) -> Option<Control> {
        let mut block = block.to_vec();
        *block.get_mut(bit / 8)? ^= 1 << (bit % 8);
        let header = jbd2::header(&block).filter(|header| self.has(header.sequence))?;
        let (sequence, kind) = (header.sequence, header.blocktype);
        let fits = match kind {
            jbd2::COMMIT_BLOCK => self.format.commit_ok(&block),
            _ => KINDS.contains(&kind) && self.format.tail_ok(&block),
        };
        fits.then_some(Control { at, sequence, kind, wrong_bit: Some(bit) })
    }

    /// As many as follow each other: none comes before one with a higher number, and commit blocks end transactions.
    fn in_order(&self, all: &[Control]) -> Vec<Control> {
        let key = |control: &Control| {
            let by = u64::from(control.sequence.wrapping_sub(self.numbers.0));
            by * 2 + u64::from(control.kind == jbd2::COMMIT_BLOCK)
        };
        // The last of each length, and which one comes before each.
        let (mut lasts, mut before): (Vec<usize>, Vec<Option<usize>>) = (Vec::new(), Vec::new());
        for (nr, control) in all.iter().enumerate() {
            let own = key(control);
            let precedes = |other: &usize| {
                let other = key(&all[*other]);
                other < own || other == own && control.kind != jbd2::COMMIT_BLOCK
            };
            let len = lasts.partition_point(precedes);
            before.push(len.checked_sub(1).map(|last| lasts[last]));
            lasts.truncate(lasts.len().max(len));
            match lasts.get_mut(len) {
                Some(last) => *last = nr,
                None => lasts.push(nr),
            }
        }
        let mut chain = Vec::new();
        let mut next = lasts.last().copied();
        while let Some(nr) = next {
            chain.push(all[nr]);
            next = before[nr];
        }
        chain.reverse();
        chain
    }
}

fn word(block: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*block.get(at..)?.first_chunk()?))
}
