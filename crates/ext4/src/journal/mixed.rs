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
use floe_format::ext::jbd2::{
    self, Checksums, CommitBlock, JournalFormat, JournalIncompat, Tag, TagFlags,
};
use floe_format::native::commit::{self, Dependency};
use floe_format::{BlockNr, Geometry};

use super::behind_end::End;
use super::controls::{Control, Controls};
use super::event::{JournalEvent, JournalPlace, RecoveryFault};
use super::fast_commit;
use super::finish;
use super::locate::Journal;
use super::log::{Log, Ring, is_after};
use super::recover::{Replay, Stop, v1_fits};
use super::stable::Committed;

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
/// content of a damaged transaction already. Without [checksums of blocks](has_block_checksums) the order of control blocks, and
/// checksums of transactions, say which are sound. `damaged` is the first transaction that is not. Says also whether nothing was lost.
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
        is_whole: journal.superblock.format().has_block_tails()
            && walk.unknown.is_empty()
            && walk.is_at_end()
            && lost == 0,
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
    /// No checksum of its transaction says otherwise.
    is_proved: bool,
}

/// A transaction, as far as it was followed.
#[derive(Default)]
struct Part {
    /// Copies before it.
    copies_before: usize,
    revoked: Vec<u64>,
    /// Its checksum so far (version 1).
    sum: u32,
    /// A block of it may be unknown.
    has_gap: bool,
}

/// A way through the log that goes on behind damage.
struct Walk<'a> {
    log: Log<'a>,
    format: JournalFormat,
    ring: Ring,
    sequence: u32,
    /// The last transaction that was committed.
    last: u32,
    commit_seconds: u64,
    copies: Vec<Copy>,
    /// The transaction that is being followed.
    part: Part,
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
        let ring = log.journal.ring().filter(|ring| ring.contains(superblock.start))?;
        let format = superblock.format();
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
            sequence: superblock.sequence,
            last: cut.filter(|cut| is_after(last, *cut)).unwrap_or(last),
            commit_seconds: 0,
            copies: Vec::new(),
            part: Part { sum: JournalFormat::FIRST_SUM, ..Part::default() },
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
        let numbers = (self.sequence, self.last);
        let (log, format, ring) = (self.log, self.format, self.ring);
        let controls = Controls { log, format, ring, numbers }.find();
        let mut expected = log.journal.superblock.start;
        for (nr, control) in controls.iter().enumerate() {
            if control.sequence != self.sequence {
                self.go_on_with(control.sequence);
            }
            // All between belongs to control blocks that are damaged.
            self.unknown_until(expected, control);
            expected = control.at;
            if self.read(control, &mut block).is_none() {
                continue;
            }
            let next = controls.get(nr + 1).map(|next| ring.distance(control.at, next.at) - 1);
            let room = next.unwrap_or(ring.len_blocks() - 1);
            expected = ring.advance(control.at, 1);
            match control.kind {
                jbd2::DESCRIPTOR_BLOCK => {
                    let count = self.descriptor(&block, control.at, room);
                    expected = ring.advance(expected, count);
                }
                jbd2::REVOKE_BLOCK => self.revoke(&block),
                _ if !self.commit(&block, nr + 1 == controls.len()) => break,
                _ => {}
            }
        }
        self.go_on_with(self.sequence);
    }

    /// Ends what is known of a transaction, behind which another one follows.
    fn go_on_with(&mut self, next: u32) {
        for block in std::mem::take(&mut self.part.revoked) {
            self.revoked.insert(block, self.sequence);
        }
        let copies_before = self.copies.len();
        self.part = Part { copies_before, sum: JournalFormat::FIRST_SUM, ..Part::default() };
        self.sequence = next;
    }

    /// Notes the blocks of the log from one on, up to a control block.
    fn unknown_until(&mut self, from: u32, control: &Control) {
        let count = self.ring.distance(from, control.at);
        self.unknown.extend((0..count).map(|by| self.ring.advance(from, by)));
        if count > 0 {
            self.last_unknown = Some(control.sequence);
            self.part.has_gap = true;
        }
    }

    /// Reads a control block, with the bit that was wrong in it flipped back.
    fn read(&self, control: &Control, block: &mut [u8]) -> Option<()> {
        self.log.read(control.at, block).ok()?;
        if let Some(bit) = control.wrong_bit {
            block[bit / 8] ^= 1 << (bit % 8);
        }
        Some(())
    }

    /// Notes the copies behind a descriptor, and returns how many there are. One that names more than there is room for is damaged.
    fn descriptor(&mut self, block: &[u8], at: u32, room: u32) -> u32 {
        let tags: Vec<Tag> = self.format.tags(block).collect();
        let count = u32::try_from(tags.len()).unwrap_or(u32::MAX);
        if count > room {
            return 0;
        }
        self.part.sum = self.format.sum_up(self.part.sum, block);
        let mut data = vec![0; block.len()];
        for (tag, by) in tags.into_iter().zip(1..) {
            let at = self.ring.advance(at, by);
            if self.format.checksums == Checksums::V1 && self.log.read(at, &mut data).is_ok() {
                self.part.sum = self.format.sum_up(self.part.sum, &data);
            }
            self.copies.push(Copy { tag, sequence: self.sequence, at, is_proved: true });
        }
        count
    }

    fn revoke(&mut self, block: &[u8]) {
        self.part.revoked.extend(self.format.revoked(block).into_iter().flatten());
    }

    /// Ends a transaction. `false`: it is one of an earlier turn of the ring.
    fn commit(&mut self, block: &[u8], is_last: bool) -> bool {
        let commit = CommitBlock::decode(block.first_chunk().unwrap_or(&[0; 60]));
        if self.format.commit_ok(block) {
            if commit.commit_sec < self.commit_seconds {
                return false;
            }
            self.commit_seconds = commit.commit_sec;
            self.dependencies.insert(self.sequence, commit::of(block));
        }
        let is_v1 = self.format.checksums == Checksums::V1;
        if is_v1 && !self.part.has_gap && !v1_fits(&commit, self.part.sum) {
            let own = &mut self.copies[self.part.copies_before..];
            own.iter_mut().for_each(|copy| copy.is_proved = false);
            let superblock = &self.log.journal.superblock;
            if is_last && superblock.incompat().contains(JournalIncompat::ASYNC_COMMIT) {
                // It arrived before its transaction, which a crash cut off.
                self.part.revoked.clear();
                self.last = self.sequence.wrapping_sub(1);
            }
        }
        self.go_on_with(self.sequence.wrapping_add(1));
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
            let is_sound = copy.is_proved && self.format.data_ok(&copy.tag, copy.sequence, &data);
            if read.is_ok() && is_sound {
                lost.remove(&copy.tag.block);
                newest.insert(copy.tag.block, copy);
            } else {
                lost.insert(copy.tag.block, copy);
            }
        }
        // Where home has what the damaged copy had, nothing is missing, and an earlier copy would set it back.
        lost.retain(|block, copy| {
            let is_home = self.is_home(overlay, geo, copy);
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

    /// Whether a block has at home what a damaged copy had: by its checksum, or without one by the bytes of both.
    fn is_home<D: ReadBlocks>(&self, overlay: &Overlay<D>, geo: &Geometry, copy: &Copy) -> bool {
        let mut home = vec![0; self.log.journal.block_size as usize];
        let to = geo.offset_bytes(BlockNr(copy.tag.block));
        if overlay.base().read_at(to, &mut home).is_err() {
            return false;
        }
        if self.format.has_block_tails() {
            return self.format.data_ok(&copy.tag, copy.sequence, &home);
        }
        let mut own = vec![0; home.len()];
        self.log.read(copy.at, &mut own).is_ok() && own == home
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
