//! Replays the journal into an overlay: scan, revoke, replay.
//!
//! Rules: `fs/jbd2/recovery.c` of the kernel and `docs/problems.md` (journal). A transaction counts
//! only if its commit block is present with the right number. Blocks are staged as references to
//! their place in the journal, so a large journal needs a map entry per block instead of a copy.

use std::collections::HashMap;

use floe_blockdev::{Overlay, ReadBlocks, WriteBlocks};
use floe_exec::Phase;
use floe_format::ext::jbd2::{
    self, CHECKSUM_CRC32, CHECKSUM_CRC32_SIZE, Checksums, CommitBlock, JournalFormat,
    JournalIncompat, TagFlags,
};
use floe_format::{BlockNr, Geometry};

use super::behind_end::End;
use super::event::{JournalEvent, JournalPlace, RecoveryFault};
use super::fast_commit;
use super::finish;
use super::locate::Journal;
use super::log::{Log, Ring, is_after};
use super::seen::seen;

/// The result of a replay.
#[derive(Debug)]
pub struct Replay<D> {
    /// The device after recovery. Superblock and descriptors must be read again.
    pub overlay: Overlay<D>,
    /// The events, in order.
    pub events: Vec<JournalEvent>,
    /// Transactions replayed.
    pub transactions: u32,
    /// Blocks replayed, each copy counted.
    pub blocks: u64,
    /// Blocks skipped because a later transaction revoked them.
    pub revoked_blocks: u64,
    /// Tags of fast commits replayed.
    pub fast_commit_tags: u64,
    /// The superblock to write to the device of an external journal, after everything else.
    pub external: Option<finish::EmptiedBlock>,
}

impl<D> Replay<D> {
    /// Nothing is replayed yet.
    pub(super) const fn into_empty(overlay: Overlay<D>) -> Self {
        Self {
            overlay,
            events: Vec::new(),
            transactions: 0,
            blocks: 0,
            revoked_blocks: 0,
            fast_commit_tags: 0,
            external: None,
        }
    }
}

/// Replays a journal over `device` in memory, if it needs recovery; otherwise only copies its
/// recorded error to the superblock. `external` is the device of an external journal.
///
/// Nothing is written; damage is reported and skipped. Work and memory are bounded by the size of
/// the journal.
pub fn replay<D: ReadBlocks>(
    device: D,
    geo: &Geometry,
    journal: &Journal,
    external: Option<&dyn ReadBlocks>,
) -> Replay<D> {
    replay_onto(Overlay::new(device, geo.block_size), geo, journal, external, None)
}

/// Like [`replay`], into an empty overlay; `phase` counts each block of the log that is read.
pub fn replay_onto<D: ReadBlocks>(
    overlay: Overlay<D>,
    geo: &Geometry,
    journal: &Journal,
    external: Option<&dyn ReadBlocks>,
    phase: Option<&Phase>,
) -> Replay<D> {
    let mut replay = Replay::into_empty(overlay);
    let is_external = journal.place == JournalPlace::External;
    if is_external && external.is_none() {
        return replay;
    }
    let mut next = journal.superblock.sequence;
    let mut stop = Stop::default();
    if journal.needs_replay && journal.superblock.start != 0 {
        let device: &dyn ReadBlocks = external.unwrap_or(replay.overlay.base());
        let log = Log { device, journal, phase };
        let mut recovery = Recovery {
            log,
            geo,
            format: journal.superblock.format(),
            overlay: &replay.overlay,
            in_place: !is_external,
            report: Report::default(),
        };
        let fast = recovery.run();
        let report = recovery.report;
        next = report.lost.unwrap_or(report.end);
        stop = report.stop;
        replay.events = report.events;
        replay.transactions = report.transactions;
        replay.blocks = report.blocks;
        replay.revoked_blocks = report.revoked_blocks;
        replay.fast_commit_tags =
            fast_commit::replay(&replay.overlay, geo, &fast, &mut replay.events);
        stop.failed |=
            replay.events.iter().any(|event| matches!(event, JournalEvent::RecoveryFailed(_)));
    }
    let external = external.filter(|_| is_external);
    replay.external = finish::finish(&replay.overlay, geo, journal, next, stop, external);
    replay
}

/// The result of the replay of one of several journals.
#[derive(Debug, Default)]
pub struct Pass {
    /// The events, in order.
    pub events: Vec<JournalEvent>,
    /// Transactions replayed.
    pub transactions: u32,
    /// Blocks replayed, each copy counted.
    pub blocks: u64,
    /// Some of it could not be replayed. The log is not emptied then.
    pub failed: bool,
}

/// Replays the journal of a cube, as far as it holds anything, into an overlay that may hold the replay of others. `device` is
/// the device below the overlay. The superblock of the file system stays as it is.
pub fn replay_into<D: ReadBlocks>(
    overlay: &Overlay<D>,
    geo: &Geometry,
    journal: &Journal,
    phase: Option<&Phase>,
) -> Pass {
    if journal.superblock.start == 0 {
        // Only where its superblock is wrong.
        empty(overlay, geo, journal, journal.superblock.sequence);
        return Pass::default();
    }
    let log = Log { device: overlay.base(), journal, phase };
    let (format, report) = (journal.superblock.format(), Report::default());
    let mut recovery = Recovery { log, geo, format, overlay, in_place: true, report };
    // A journal of a cube has no area for fast commits.
    drop(recovery.run());
    let report = recovery.report;
    let failed = report.stop.failed || report.stop.corrupt;
    if !failed {
        // Transactions that were dropped stay in the log.
        let newest = journal.cut.and_then(|_| seen(overlay.base(), geo, journal, report.end).ok());
        empty(overlay, geo, journal, newest.map_or(report.end, |newest| newest.sequence));
    }
    let (events, transactions, blocks) = (report.events, report.transactions, report.blocks);
    Pass { events, transactions, blocks, failed }
}

/// Empties a journal; `next` is the transaction that its log expected at its end.
fn empty<D: ReadBlocks>(overlay: &Overlay<D>, geo: &Geometry, journal: &Journal, next: u32) {
    let emptied = finish::emptied(overlay.base(), geo, journal, next, false, false);
    // Cannot fail: the journal lies inside the device.
    drop(emptied.map(|(offset, block)| overlay.write_at(offset, &block)));
}

/// How a recovery ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stop {
    /// It failed in part or as a whole: `VALID_FS` is cleared.
    pub(crate) failed: bool,
    /// A transaction was corrupt: `ERROR_FS` is set.
    pub(crate) corrupt: bool,
}

#[derive(Default)]
struct Report {
    events: Vec<JournalEvent>,
    transactions: u32,
    blocks: u64,
    revoked_blocks: u64,
    /// The transaction after the last one.
    end: u32,
    /// The last one that was committed behind the end.
    lost: Option<u32>,
    stop: Stop,
}

/// A descriptor or revoke block.
struct Control {
    kind: Kind,
    /// Block of the journal.
    at: u32,
    sequence: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Descriptor,
    Revoke,
}

struct Recovery<'a, D> {
    log: Log<'a>,
    geo: &'a Geometry,
    format: JournalFormat,
    overlay: &'a Overlay<D>,
    /// The journal lies on the same device, so its blocks can be staged as references.
    in_place: bool,
    report: Report,
}

/// The scan's state between two control blocks.
struct Scan {
    at: u32,
    /// First block of the transaction.
    start: u32,
    sequence: u32,
    /// Blocks of the log not yet scanned; ends the scan of a log without an end.
    budget: u32,
    /// A control block of this transaction failed its checksum.
    doubtful: bool,
    last_commit_seconds: u64,
    /// Version 1: checksum of the transaction so far.
    crc: u32,
    /// Where replay must end although scanning continues (asynchronous commits).
    end: Option<u32>,
}

/// The next step of the scan after a control block.
#[derive(PartialEq, Eq)]
enum Next {
    GoOn,
    Done,
    Abort,
}

impl<D: ReadBlocks> Recovery<'_, D> {
    /// Runs the three passes. Returns the fast commits to replay after them.
    fn run(&mut self) -> fast_commit::FastCommits {
        let superblock = &self.log.journal.superblock;
        self.report.end = superblock.sequence;
        let Some(ring) = self.log.journal.ring().filter(|ring| ring.contains(superblock.start))
        else {
            self.fail(RecoveryFault::LogBounds);
            return fast_commit::FastCommits::default();
        };
        let Some(controls) = self.scan(ring) else {
            return fast_commit::FastCommits::default();
        };
        let Some(revoked) = self.revoke(&controls) else {
            return fast_commit::FastCommits::default();
        };
        for control in controls.iter().filter(|control| control.kind == Kind::Descriptor) {
            self.replay_descriptor(control, ring, &revoked);
        }
        let first = superblock.sequence;
        self.report.transactions = self.report.end.wrapping_sub(first);
        fast_commit::scan(self.log, self.geo, self.report.end, &mut self.report.events)
    }

    fn fail(&mut self, fault: RecoveryFault) {
        self.report.stop.failed = true;
        self.report.events.push(JournalEvent::RecoveryFailed(fault));
    }

    /// Scans the log to its end. Returns the control blocks of all transactions before
    /// `report.end`; `None` if nothing may be replayed.
    fn scan(&mut self, ring: Ring) -> Option<Vec<Control>> {
        let superblock = &self.log.journal.superblock;
        let mut scan = Scan {
            at: superblock.start,
            start: superblock.start,
            sequence: superblock.sequence,
            budget: ring.len_blocks(),
            doubtful: false,
            last_commit_seconds: 0,
            crc: u32::MAX,
            end: None,
        };
        let mut controls = Vec::new();
        let mut block = vec![0; self.log.journal.block_size as usize];
        loop {
            let at = scan.at;
            if self.log.journal.cut == Some(scan.sequence) {
                break;
            }
            let Some(budget) = scan.budget.checked_sub(1) else { break };
            if self.log.read(at, &mut block).is_err() {
                self.fail(RecoveryFault::Unreadable { log_block: at });
                return None;
            }
            scan.budget = budget;
            scan.at = ring.advance(at, 1);
            let header = jbd2::header(&block);
            let Some(header) = header.filter(|header| header.sequence == scan.sequence) else {
                break;
            };
            let sequence = scan.sequence;
            let next = match header.blocktype {
                jbd2::DESCRIPTOR_BLOCK => {
                    controls.push(Control { kind: Kind::Descriptor, at, sequence });
                    self.scan_descriptor(&mut scan, ring, &block)
                }
                jbd2::REVOKE_BLOCK => {
                    controls.push(Control { kind: Kind::Revoke, at, sequence });
                    scan.doubtful |= !self.format.tail_ok(&block);
                    Next::GoOn
                }
                jbd2::COMMIT_BLOCK => self.scan_commit(&mut scan, &block),
                _ => Next::Done,
            };
            match next {
                Next::GoOn => {}
                Next::Done => break,
                Next::Abort => return None,
            }
        }
        self.judge_end(&scan, ring);
        let end = scan.end.unwrap_or(scan.sequence);
        self.report.end = end;
        controls.retain(|control| is_after(end, control.sequence));
        Some(controls)
    }

    /// Tells transactions that were committed behind the end of the scan. A repair replays all before it.
    fn judge_end(&mut self, scan: &Scan, ring: Ring) {
        let end = End {
            log: self.log,
            format: self.format,
            ring,
            start: scan.start,
            sequence: scan.end.unwrap_or(scan.sequence),
            last_commit_seconds: scan.last_commit_seconds,
            is_async: self.is_async(),
        };
        // Damage that was told hides nothing.
        let Some(last) = (if self.report.stop.corrupt { None } else { end.lost_commit() }) else {
            return;
        };
        self.report.lost = Some(last);
        let (sequence, is_native) = (end.sequence, self.log.journal.is_native);
        if is_native {
            self.fail(RecoveryFault::EndsEarly { sequence });
        } else {
            self.report.events.push(JournalEvent::EndsEarly { sequence, last });
        }
    }

    fn scan_descriptor(&mut self, scan: &mut Scan, ring: Ring, block: &[u8]) -> Next {
        scan.doubtful |= !self.format.tail_ok(block);
        let tags = u32::try_from(self.format.tags(block).count()).unwrap_or(u32::MAX);
        let Some(budget) = scan.budget.checked_sub(tags) else { return Next::Done };
        scan.budget = budget;
        if self.format.checksums == Checksums::V1 && !scan.doubtful && scan.end.is_none() {
            scan.crc = floe_format::crc::crc32_be(scan.crc, block);
            let mut data = vec![0; block.len()];
            for tag in 0..tags {
                let at = ring.advance(scan.at, tag);
                if self.log.read(at, &mut data).is_err() {
                    self.fail(RecoveryFault::Unreadable { log_block: at });
                    return Next::Abort;
                }
                scan.crc = floe_format::crc::crc32_be(scan.crc, &data);
            }
        }
        scan.at = ring.advance(scan.at, tags);
        Next::GoOn
    }

    fn scan_commit(&mut self, scan: &mut Scan, block: &[u8]) -> Next {
        let commit = CommitBlock::decode(block.first_chunk().unwrap_or(&[0; 60]));
        let older = commit.commit_sec < scan.last_commit_seconds;
        if scan.doubtful {
            if !older && self.log.journal.is_native {
                return Next::Done;
            }
            if !older {
                // Linux and e2fsck replay nothing then; but all before it is sound.
                self.fail(RecoveryFault::ControlChecksum { sequence: scan.sequence });
            }
            // Or a commit block of the past, from an earlier use of this part of the log.
            return Next::Done;
        }
        let v1 = self.format.checksums == Checksums::V1;
        if v1 && let Some(end) = scan.end {
            self.corrupt(end);
            return Next::Done;
        }
        let fits = self.format.commit_ok(block) || self.format.torn_commit_ok(block);
        if (v1 && !v1_fits(&commit, scan.crc)) || !fits {
            if older {
                return Next::Done;
            }
            if scan.end.is_none() {
                scan.end = Some(scan.sequence);
                self.corrupt_unless_async(scan.sequence);
            }
            if !self.is_async() {
                return Next::Done;
            }
        }
        scan.crc = u32::MAX;
        scan.last_commit_seconds = commit.commit_sec;
        scan.start = scan.at;
        scan.sequence = scan.sequence.wrapping_add(1);
        Next::GoOn
    }

    fn is_async(&self) -> bool {
        self.log.journal.superblock.incompat().contains(JournalIncompat::ASYNC_COMMIT)
    }

    fn corrupt_unless_async(&mut self, sequence: u32) {
        if !self.is_async() {
            self.corrupt(sequence);
        }
    }

    fn corrupt(&mut self, sequence: u32) {
        self.report.stop.corrupt = true;
        self.report.events.push(JournalEvent::TransactionCorrupt { sequence });
    }

    /// For each revoked block, the last transaction that revoked it.
    fn revoke(&mut self, controls: &[Control]) -> Option<HashMap<u64, u32>> {
        let mut revoked: HashMap<u64, u32> = HashMap::new();
        let mut block = vec![0; self.log.journal.block_size as usize];
        for control in controls.iter().filter(|control| control.kind == Kind::Revoke) {
            if self.log.read(control.at, &mut block).is_err() {
                self.fail(RecoveryFault::Unreadable { log_block: control.at });
                return None;
            }
            let Some(numbers) = self.format.revoked(&block) else {
                self.fail(RecoveryFault::RevokeCount { sequence: control.sequence });
                return None;
            };
            for number in numbers {
                let last = revoked.entry(number).or_insert(control.sequence);
                if is_after(control.sequence, *last) {
                    *last = control.sequence;
                }
            }
        }
        Some(revoked)
    }

    fn replay_descriptor(&mut self, control: &Control, ring: Ring, revoked: &HashMap<u64, u32>) {
        let mut block = vec![0; self.log.journal.block_size as usize];
        if self.log.read(control.at, &mut block).is_err() {
            self.fail(RecoveryFault::Unreadable { log_block: control.at });
            return;
        }
        let mut data = vec![0; block.len()];
        let mut at = control.at;
        for tag in self.format.tags(&block) {
            at = ring.advance(at, 1);
            let revoked_by = revoked.get(&tag.block);
            if revoked_by.is_some_and(|&last| !is_after(control.sequence, last)) {
                self.report.revoked_blocks += 1;
                continue;
            }
            self.replay_block(control.sequence, &tag, at, &mut data);
        }
    }

    fn replay_block(&mut self, sequence: u32, tag: &jbd2::Tag, at: u32, data: &mut [u8]) {
        let block = BlockNr(tag.block);
        // Block 0 may lie before the first data block: with 1 KiB blocks it is the boot block.
        if tag.block >= self.geo.blocks_count {
            self.fail(RecoveryFault::TargetOutOfRange { sequence, block });
            return;
        }
        let escaped = tag.flags.contains(TagFlags::ESCAPE);
        let to = self.geo.offset_bytes(block);
        let by_reference = self.in_place && !escaped;
        if !by_reference || self.format.has_block_tails() {
            if self.log.read(at, data).is_err() {
                self.fail(RecoveryFault::Unreadable { log_block: at });
                return;
            }
            if !self.format.data_ok(tag, sequence, data) {
                self.fail(RecoveryFault::DataChecksum { sequence, block });
                return;
            }
        }
        let content = (!by_reference).then_some(data);
        if self.log.stage(self.overlay, (at, to), escaped, content).is_ok() {
            self.report.blocks += 1;
        } else {
            self.fail(RecoveryFault::TargetOutOfRange { sequence, block });
        }
    }
}

/// Whether a commit block of version 1 fits its transaction. One without a checksum fits, too,
/// because old kernels wrote none.
pub(super) fn v1_fits(commit: &CommitBlock, crc: u32) -> bool {
    let stored = (commit.chksum_type, commit.chksum_size, commit.chksum[0]);
    stored == (CHECKSUM_CRC32, CHECKSUM_CRC32_SIZE, crc) || stored == (0, 0, 0)
}
