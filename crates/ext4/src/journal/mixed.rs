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
use floe_format::native::commit::{self, Dependency};
use floe_format::{BlockNr, Geometry};

use super::behind_end::End;
use super::event::{JournalEvent, JournalPlace, RecoveryFault};
use super::fast_commit;
use super::finish;
use super::locate::Journal;
use super::log::{Log, Ring, is_after};
use super::recover::{Replay, Stop};
use super::stable::Committed;

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
/// content of a damaged transaction already. The log must have the [checksums](has_block_checksums) for that. `damaged` is the first
/// transaction that is. Says also whether nothing was lost.
pub fn with_sound_ones<D: ReadBlocks>(
    overlay: Overlay<D>,
    geo: &Geometry,
    journal: &Journal,
    external: Option<&dyn ReadBlocks>,
    damaged: u32,
) -> (Replay<D>, bool) {
    let mut replay = Replay::into_empty(overlay);
    let device: &dyn ReadBlocks = external.unwrap_or(replay.overlay.base());
    let sound = stage_sound(device, &replay.overlay, geo, journal, damaged);
    (replay.transactions, replay.blocks) = (sound.transactions, sound.blocks);
    let log = Log { device, journal, phase: None };
    let fast = fast_commit::scan(log, geo, sound.last.wrapping_add(1), &mut replay.events);
    replay.fast_commit_tags = fast_commit::replay(&replay.overlay, geo, &fast, &mut replay.events);
    end(&mut replay, geo, journal, external);
    (replay, sound.is_whole)
}

/// Whether each block of a log has a checksum, so that sound ones are known behind damage, too.
pub fn has_block_checksums(journal: &Journal) -> bool {
    let ring = journal.ring().filter(|ring| ring.contains(journal.superblock.start));
    ring.is_some() && journal.superblock.format().has_block_tails()
}

/// Sound transactions of a damaged log.
#[derive(Default)]
pub(super) struct Sound {
    pub(super) transactions: u32,
    pub(super) blocks: u64,
    /// The last transaction that was committed.
    last: u32,
    /// Nothing was lost.
    pub(super) is_whole: bool,
}

/// Stages them, as [`with_sound_ones`] does. `device` holds the log.
pub(super) fn stage_sound<D: ReadBlocks>(
    device: &dyn ReadBlocks,
    overlay: &Overlay<D>,
    geo: &Geometry,
    journal: &Journal,
    damaged: u32,
) -> Sound {
    let log = Log { device, journal, phase: None };
    let Some(mut walk) = Walk::new(log, damaged) else { return Sound::default() };
    walk.run();
    let is_external = journal.place == JournalPlace::External;
    let (blocks, lost) = walk.stage(overlay, geo, is_external);
    Sound {
        transactions: walk.last.wrapping_add(1).wrapping_sub(journal.superblock.sequence),
        blocks,
        last: walk.last,
        is_whole: walk.unknown.is_empty() && walk.is_at_end() && lost == 0,
    }
}

/// The places to which a damaged log leads, as far as they are known.
pub(super) struct Leads {
    /// The transactions of other logs on which its own depend.
    pub(super) dependencies: Vec<Dependency>,
    /// Home blocks that it names.
    pub(super) homes: Vec<BlockNr>,
}

/// The same for a log whose first damaged transaction is `damaged`. `None`: it cannot be followed.
pub(super) fn leads(device: &dyn ReadBlocks, journal: &Journal, damaged: u32) -> Option<Leads> {
    let mut walk = Walk::new(Log { device, journal, phase: None }, damaged)?;
    walk.run();
    let dependencies = walk.dependencies.into_values().flatten().collect();
    let revoked = walk.revoked.into_keys();
    let homes = walk.copies.iter().map(|copy| copy.tag.block).chain(revoked).map(BlockNr);
    Some(Leads { dependencies, homes: homes.collect() })
}

/// All transactions of a damaged log, those whose commit blocks are damaged without dependencies: what follows them was written
/// when they were durable.
pub(super) fn committed_despite(
    device: &dyn ReadBlocks,
    journal: &Journal,
    damaged: u32,
) -> Vec<Committed> {
    let log = Log { device, journal, phase: None };
    let Some(mut walk) = Walk::new(log, damaged) else { return Vec::new() };
    walk.run();
    let (first, start) = (journal.superblock.sequence, journal.superblock.start);
    let count = walk.last.wrapping_add(1).wrapping_sub(first);
    let numbers = (0..count).map(|by| first.wrapping_add(by));
    let of = |sequence| {
        let dependencies = walk.dependencies.remove(&sequence).unwrap_or_default();
        Committed { sequence, start, dependencies }
    };
    numbers.map(of).collect()
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
    /// Blocks of the log that no sound control block leads to.
    unknown: Vec<u32>,
    /// The last transaction to which any of them may belong.
    last_unknown: Option<u32>,
    /// The lists in sound commit blocks.
    dependencies: HashMap<u32, Vec<Dependency>>,
}

impl<'a> Walk<'a> {
    /// `None`: the log cannot be followed.
    fn new(log: Log<'a>, damaged: u32) -> Option<Self> {
        let superblock = &log.journal.superblock;
        if !has_block_checksums(log.journal) {
            return None;
        }
        let (format, ring) = (superblock.format(), log.journal.ring()?);
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
        let last = lost.unwrap_or(damaged);
        let cut = log.journal.cut.map(|cut| cut.wrapping_sub(1));
        Some(Self {
            log,
            format,
            ring,
            at: superblock.start,
            sequence: superblock.sequence,
            last: cut.filter(|cut| is_after(last, *cut)).unwrap_or(last),
            commit_seconds: 0,
            copies: Vec::new(),
            revoked: HashMap::new(),
            unknown: Vec::new(),
            last_unknown: None,
            dependencies: HashMap::new(),
        })
    }

    fn is_at_end(&self) -> bool {
        is_after(self.sequence, self.last)
    }

    fn run(&mut self) {
        let mut block = vec![0; self.log.journal.block_size as usize];
        let mut budget = self.ring.len_blocks();
        let mut between = 0;
        while budget > 0 && !self.is_at_end() {
            // One that cannot be read is known as little as one that is overwritten.
            if self.log.read(self.at, &mut block).is_err() {
                block.fill(0);
            }
            let next = header_of(&block, self.sequence.wrapping_add(1));
            let mut len_blocks = 1;
            let unknown = self.unknown.len();
            if self.is_sound(&mut block, self.sequence) {
                match jbd2::header(&block).map(|header| header.blocktype) {
                    Some(jbd2::DESCRIPTOR_BLOCK) => len_blocks += self.descriptor(&block),
                    Some(jbd2::REVOKE_BLOCK) => self.revoke(&block),
                    _ if !self.commit(&block) => break,
                    _ => {}
                }
                between = unknown;
            } else if let Some((sequence, kind)) = self.later(&block) {
                // All control blocks between are damaged.
                let last_lost = sequence.wrapping_sub(u32::from(kind != jbd2::COMMIT_BLOCK));
                self.last_unknown = self.last_unknown.map(|_| last_lost);
                self.sequence = sequence;
                continue;
            } else if next.is_some_and(|kind| kind != jbd2::COMMIT_BLOCK) {
                // The commit block before it is damaged.
                self.sequence = self.sequence.wrapping_add(1);
                continue;
            } else {
                self.unknown.push(self.at);
                self.last_unknown = Some(self.sequence);
            }
            self.at = self.ring.advance(self.at, len_blocks);
            budget = budget.saturating_sub(len_blocks);
        }
        if !self.is_at_end() {
            // The last commit block is lost. Behind it lie remnants of earlier turns of the ring, which are at home.
            self.unknown.truncate(between);
        }
    }

    /// The transaction and the kind of a sound control block that belongs behind the transaction that is looked for.
    fn later(&self, block: &[u8]) -> Option<(u32, u32)> {
        let sequence = jbd2::header(block)?.sequence;
        let kind = header_of(block, sequence)?;
        let is_later = is_after(sequence, self.sequence) && !is_after(sequence, self.last);
        (is_later && self.fits(block, sequence)).then_some((sequence, kind))
    }

    /// Whether a block is a control block of a transaction; one bit is flipped back where that makes it one.
    fn is_sound(&self, block: &mut [u8], sequence: u32) -> bool {
        if self.fits(block, sequence) {
            return true;
        }
        match header_of(block, sequence) {
            // Data blocks have checksums of their own.
            Some(jbd2::COMMIT_BLOCK) => true,
            Some(_) => {
                let bit = self.format.wrong_bit(block);
                bit.is_some_and(|bit| self.fits_with(block, sequence, bit))
            }
            None => bit_of_header(block, sequence)
                .is_some_and(|bit| self.fits_with(block, sequence, bit)),
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
            self.dependencies.insert(self.sequence, commit::of(block));
        }
        self.sequence = self.sequence.wrapping_add(1);
        true
    }

    /// Stages the last copy of each block. Returns how many there are, and of how many blocks the last copy is damaged.
    fn stage<D: ReadBlocks>(
        &self,
        overlay: &Overlay<D>,
        geo: &Geometry,
        is_external: bool,
    ) -> (u64, u64) {
        let mut data = vec![0; self.log.journal.block_size as usize];
        let mut newest: HashMap<u64, &Copy> = HashMap::new();
        let mut lost: HashMap<u64, &Copy> = HashMap::new();
        for copy in &self.copies {
            let revoked = self.revoked.get(&copy.tag.block);
            let counts = revoked.is_none_or(|by| is_after(copy.sequence, *by));
            if !counts || is_after(copy.sequence, self.last) || copy.tag.block >= geo.blocks_count {
                continue;
            }
            let read = self.log.read(copy.at, &mut data);
            if read.is_ok() && self.format.data_ok(&copy.tag, copy.sequence, &data) {
                lost.remove(&copy.tag.block);
                newest.insert(copy.tag.block, copy);
            } else {
                lost.insert(copy.tag.block, copy);
            }
        }
        // Where home has what the damaged copy had, nothing is missing, and an earlier copy would set it back.
        lost.retain(|block, copy| {
            let to = geo.offset_bytes(BlockNr(*block));
            let is_home = overlay.base().read_at(to, &mut data).is_ok()
                && self.format.data_ok(&copy.tag, copy.sequence, &data);
            if is_home {
                newest.remove(block);
            }
            !is_home
        });
        let mut damaged = HashSet::new();
        for at in &self.unknown {
            // Home blocks that nobody has written yet have zeroes, too.
            if self.log.read(*at, &mut data).is_ok() && data.iter().any(|byte| *byte != 0) {
                damaged.insert(hash(&data));
            }
        }
        let mut staged = 0;
        for copy in newest.into_values() {
            let to = geo.offset_bytes(BlockNr(copy.tag.block));
            if self.last_unknown.is_some_and(|last| is_after(last, copy.sequence))
                && overlay.base().read_at(to, &mut data).is_ok()
                && damaged.contains(&hash(&data))
            {
                continue;
            }
            staged += u64::from(self.stage_one(overlay, copy, to, is_external).is_ok());
        }
        (staged, lost.len() as u64)
    }

    fn stage_one<D: ReadBlocks>(
        &self,
        overlay: &Overlay<D>,
        copy: &Copy,
        to: u64,
        is_external: bool,
    ) -> io::Result<()> {
        let escaped = copy.tag.flags.contains(TagFlags::ESCAPE);
        if !is_external && !escaped {
            return self.log.stage(overlay, (copy.at, to), escaped, None);
        }
        let mut data = vec![0; self.log.journal.block_size as usize];
        self.log.read(copy.at, &mut data)?;
        self.log.stage(overlay, (copy.at, to), escaped, Some(&mut data))
    }
}

/// A hash of a block.
pub(super) fn hash(data: &[u8]) -> u64 {
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
