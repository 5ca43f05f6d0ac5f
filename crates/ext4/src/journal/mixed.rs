//! Other states than the one before the damage, for a log that is damaged between its transactions: the file system without the
//! log, and with all of its transactions that are sound.
//!
//! Reads: the log, and home blocks that a transaction before the damage has.  Keeps: a record per copy in the log, a number per
//! block of the log that nothing leads to.  Does not judge which state is the best (`floe_check`, `passes/weighed.rs`).
//!
//! Home blocks are written long before the tail of the log moves behind their transactions, so they may be newer than the copies
//! before the damage.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;

use floe_blockdev::{Overlay, ReadBlocks};
use floe_format::ext::jbd2::{self, CommitBlock, JournalFormat, JournalIncompat, Tag, TagFlags};
use floe_format::{BlockNr, Geometry};

use super::behind_end::End;
use super::event::{JournalEvent, JournalPlace, RecoveryFault};
use super::fast_commit;
use super::finish;
use super::locate::Journal;
use super::log::{Log, Ring, is_after};
use super::recover::{Replay, Stop};

/// Bytes of the header of a block of the log.
const HEADER_BYTES: usize = 12;

/// The first transaction that could not be replayed although it was committed. `None`: the log was replayed to its end, but for
/// single blocks perhaps.
pub fn first_damaged(events: &[JournalEvent]) -> Option<u32> {
    let mut damaged: Option<u32> = None;
    for event in events {
        let (JournalEvent::TransactionCorrupt { sequence }
        | JournalEvent::EndsEarly { sequence, .. }
        | JournalEvent::RecoveryFailed(
            RecoveryFault::ControlChecksum { sequence } | RecoveryFault::EndsEarly { sequence },
        )) = *event
        else {
            continue;
        };
        damaged = damaged.filter(|first| is_after(sequence, *first)).or(Some(sequence));
    }
    damaged
}

/// The file system with an empty log: home blocks as they are.
pub fn without_log<D: ReadBlocks>(
    overlay: Overlay<D>,
    geo: &Geometry,
    journal: &Journal,
    external: Option<&dyn ReadBlocks>,
) -> Replay<D> {
    let mut replay = Replay::into_empty(overlay);
    end(&mut replay, geo, journal, external);
    replay
}

/// The file system with all sound transactions of the log, also those behind the damage. A control block that fits its checksum
/// with one bit flipped back is sound. Blocks that only a damaged control block names stay as they are, and so do those that have
/// content of a damaged transaction already. `None`: the log has no checksums to go by.
pub fn with_sound_ones<D: ReadBlocks>(
    overlay: Overlay<D>,
    geo: &Geometry,
    journal: &Journal,
    external: Option<&dyn ReadBlocks>,
    damaged: u32,
) -> Option<Replay<D>> {
    let mut replay = Replay::into_empty(overlay);
    let format = journal.superblock.format();
    let ring = journal.ring().filter(|ring| ring.contains(journal.superblock.start))?;
    if !format.has_block_tails() {
        return None;
    }
    {
        let is_external = journal.place == JournalPlace::External;
        let device: &dyn ReadBlocks = external.unwrap_or(replay.overlay.base());
        let log = Log { device, journal, phase: None };
        let mut walk = Walk::new(log, format, ring, damaged);
        walk.run().ok()?;
        let last = walk.last;
        replay.transactions = walk.sequence.wrapping_sub(journal.superblock.sequence);
        replay.blocks = walk.stage(&replay.overlay, geo, is_external).ok()?;
        let fast = fast_commit::scan(log, geo, last.wrapping_add(1), &mut replay.events);
        replay.fast_commit_tags =
            fast_commit::replay(&replay.overlay, geo, &fast, &mut replay.events);
    }
    end(&mut replay, geo, journal, external);
    Some(replay)
}

/// Empties the log. It goes on behind all numbers that are still in it.
fn end<D: ReadBlocks>(
    replay: &mut Replay<D>,
    geo: &Geometry,
    journal: &Journal,
    external: Option<&dyn ReadBlocks>,
) {
    let external = external.filter(|_| journal.place == JournalPlace::External);
    let stop = Stop { failed: true, corrupt: false };
    let next = journal.superblock.sequence;
    replay.external = finish::finish(&replay.overlay, geo, journal, next, stop, external);
}

/// A copy of a home block in the log.
struct Copy {
    tag: Tag,
    sequence: u32,
    /// Block of the log.
    at: u32,
}

/// A way through the log that goes on behind damage.
struct Walk<'a> {
    log: Log<'a>,
    format: JournalFormat,
    ring: Ring,
    at: u32,
    sequence: u32,
    /// The last transaction that was committed.
    last: u32,
    commit_seconds: u64,
    copies: Vec<Copy>,
    /// For each revoked block, the last transaction that revoked it.
    revoked: HashMap<u64, u32>,
    /// Blocks of the log that no sound control block leads to, with the transaction.
    unknown: Vec<(u32, u32)>,
}

impl<'a> Walk<'a> {
    fn new(log: Log<'a>, format: JournalFormat, ring: Ring, damaged: u32) -> Self {
        let superblock = &log.journal.superblock;
        let is_async = superblock.incompat().contains(JournalIncompat::ASYNC_COMMIT);
        let end = End {
            log,
            format,
            ring,
            start: superblock.start,
            sequence: damaged,
            last_commit_seconds: 0,
            is_async,
        };
        let lost = end.lost_commit().filter(|last| is_after(*last, damaged));
        Self {
            log,
            format,
            ring,
            at: superblock.start,
            sequence: superblock.sequence,
            last: lost.unwrap_or(damaged),
            commit_seconds: 0,
            copies: Vec::new(),
            revoked: HashMap::new(),
            unknown: Vec::new(),
        }
    }

    fn run(&mut self) -> io::Result<()> {
        let mut block = vec![0; self.log.journal.block_size as usize];
        let mut budget = self.ring.len_blocks();
        while budget > 0 && !is_after(self.sequence, self.last) {
            self.log.read(self.at, &mut block)?;
            let next = header_of(&block, self.sequence.wrapping_add(1));
            let mut len_blocks = 1;
            if self.is_sound(&mut block, self.sequence) {
                match jbd2::header(&block).map(|header| header.blocktype) {
                    Some(jbd2::DESCRIPTOR_BLOCK) => len_blocks += self.descriptor(&block),
                    Some(jbd2::REVOKE_BLOCK) => self.revoke(&block),
                    _ if !self.commit(&block) => break,
                    _ => {}
                }
            } else if next.is_some_and(|kind| kind != jbd2::COMMIT_BLOCK) {
                // The commit block before it is damaged.
                self.sequence = self.sequence.wrapping_add(1);
                continue;
            } else {
                self.unknown.push((self.at, self.sequence));
            }
            self.at = self.ring.advance(self.at, len_blocks);
            budget = budget.saturating_sub(len_blocks);
        }
        Ok(())
    }

    /// Whether a block is a control block of a transaction; one bit is flipped back where that makes it one.
    fn is_sound(&self, block: &mut [u8], sequence: u32) -> bool {
        if self.fits(block, sequence) {
            return true;
        }
        if let Some(bit) = bit_of_header(block, sequence) {
            return self.fits_with(block, sequence, bit);
        }
        match header_of(block, sequence) {
            // Data blocks have checksums of their own.
            Some(jbd2::COMMIT_BLOCK) => true,
            Some(_) => {
                let bits = HEADER_BYTES * 8..block.len() * 8;
                bits.into_iter().any(|bit| self.fits_with(block, sequence, bit))
            }
            None => false,
        }
    }

    /// Flips a bit of the block, and back if it does not fit with it.
    fn fits_with(&self, block: &mut [u8], sequence: u32, bit: usize) -> bool {
        block[bit / 8] ^= 1 << (bit % 8);
        let fits = self.fits(block, sequence);
        if !fits {
            block[bit / 8] ^= 1 << (bit % 8);
        }
        fits
    }

    fn fits(&self, block: &[u8], sequence: u32) -> bool {
        match header_of(block, sequence) {
            Some(jbd2::COMMIT_BLOCK) => self.format.commit_ok(block),
            Some(_) => self.format.tail_ok(block),
            None => false,
        }
    }

    /// Notes the copies behind a descriptor, and returns how many there are.
    fn descriptor(&mut self, block: &[u8]) -> u32 {
        let mut count = 0;
        for tag in self.format.tags(block) {
            count += 1;
            let at = self.ring.advance(self.at, count);
            self.copies.push(Copy { tag, sequence: self.sequence, at });
        }
        count
    }

    fn revoke(&mut self, block: &[u8]) {
        for number in self.format.revoked(block).into_iter().flatten() {
            self.revoked.insert(number, self.sequence);
        }
    }

    /// Ends a transaction. `false`: it is one of an earlier turn of the ring.
    fn commit(&mut self, block: &[u8]) -> bool {
        let commit = CommitBlock::decode(block.first_chunk().unwrap_or(&[0; 60]));
        if self.format.commit_ok(block) {
            if commit.commit_sec < self.commit_seconds {
                return false;
            }
            self.commit_seconds = commit.commit_sec;
        }
        self.sequence = self.sequence.wrapping_add(1);
        true
    }

    /// Stages the last copy of each block. Returns how many there are.
    fn stage<D: ReadBlocks>(
        &self,
        overlay: &Overlay<D>,
        geo: &Geometry,
        is_external: bool,
    ) -> io::Result<u64> {
        let mut data = vec![0; self.log.journal.block_size as usize];
        let mut newest: HashMap<u64, &Copy> = HashMap::new();
        for copy in &self.copies {
            let revoked = self.revoked.get(&copy.tag.block);
            let counts = revoked.is_none_or(|by| is_after(copy.sequence, *by));
            if !counts || is_after(copy.sequence, self.last) || copy.tag.block >= geo.blocks_count {
                continue;
            }
            self.log.read(copy.at, &mut data)?;
            if self.format.data_ok(&copy.tag, copy.sequence, &data) {
                newest.insert(copy.tag.block, copy);
            }
        }
        let mut damaged = HashSet::new();
        for (at, _) in &self.unknown {
            self.log.read(*at, &mut data)?;
            damaged.insert(hash(&data));
        }
        let last_damaged = self.unknown.iter().map(|(_, sequence)| *sequence).next_back();
        let mut staged = 0;
        for copy in newest.into_values() {
            let to = geo.offset_bytes(BlockNr(copy.tag.block));
            if last_damaged.is_some_and(|last| is_after(last, copy.sequence)) {
                overlay.base().read_at(to, &mut data)?;
                if damaged.contains(&hash(&data)) {
                    continue;
                }
            }
            let escaped = copy.tag.flags.contains(TagFlags::ESCAPE);
            let by_reference = !is_external && !escaped;
            if !by_reference {
                self.log.read(copy.at, &mut data)?;
            }
            let content = (!by_reference).then_some(&mut data[..]);
            self.log.stage(overlay, (copy.at, to), escaped, content)?;
            staged += 1;
        }
        Ok(staged)
    }
}

fn hash(data: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    data.hash(&mut hasher);
    hasher.finish()
}

/// The kind of a control block of a transaction.
fn header_of(block: &[u8], sequence: u32) -> Option<u32> {
    let kinds = [jbd2::DESCRIPTOR_BLOCK, jbd2::REVOKE_BLOCK, jbd2::COMMIT_BLOCK];
    let header = jbd2::header(block).filter(|header| header.sequence == sequence)?;
    Some(header.blocktype).filter(|kind| kinds.contains(kind))
}

/// The one bit by which the header differs from that of a control block of a transaction.
fn bit_of_header(block: &[u8], sequence: u32) -> Option<usize> {
    let header = block.get(..HEADER_BYTES)?;
    let kinds = [jbd2::DESCRIPTOR_BLOCK, jbd2::REVOKE_BLOCK, jbd2::COMMIT_BLOCK];
    kinds.into_iter().find_map(|kind| {
        let words = [jbd2::MAGIC, kind, sequence];
        let expected = words.into_iter().flat_map(u32::to_be_bytes);
        let mut differing = header.iter().zip(expected).enumerate().filter(|(_, (a, b))| *a != b);
        let (at, (byte, expected)) = differing.next()?;
        let bits = byte ^ expected;
        let is_one = bits.is_power_of_two() && differing.next().is_none();
        is_one.then_some(at * 8 + bits.trailing_zeros() as usize)
    })
}
