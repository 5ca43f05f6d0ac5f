//! Journal recovery before the first pass: replays the journal into memory.

use floe_blockdev::{Overlay, ReadBlocks, SpillOptions};
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::native::is_locked;
use floe_format::{BlockNr, InodeNr};

use super::several;
pub use super::several::choose_logs;
use super::weighed::weigh;
use crate::checks::system_files::journal::{check_mountable, root_damage};
use crate::estimate::work;
use crate::options::CheckOptions;
use crate::problem::{Findings, Problem, Sink};
use crate::volume::journal::{JournalState, JournalUse};
use crate::volume::open::Opened;
use floe_ext4::journal::{self, Journal, JournalEvent, LogBounds, RecoveryFault, SuperblockFault};

/// The replayed journal may use 1/8 of the memory budget.
const REPLAY_SHARE: u64 = 8;

/// The device as it will be after recovery.
pub struct Recovery<'d> {
    /// The replayed journal over the device; `None` if there was nothing to replay, or it was not
    /// asked for.
    pub overlay: Option<Overlay<&'d dyn ReadBlocks>>,
    /// The state of the journal.
    pub state: JournalState,
    /// Problems of the journal.
    pub found: Findings,
    /// The superblock for an external journal, to be written after everything else.
    pub external: Option<journal::EmptiedBlock>,
}

/// Looks at the journal and replays it into memory if that was asked for. A journal that cannot be
/// used is a finding; the raw disk is judged then.
pub fn recover<'d>(
    device: &'d dyn ReadBlocks,
    opened: &Opened,
    options: &CheckOptions<'_>,
) -> Recovery<'d> {
    let Opened { superblock, geometry, groups, .. } = opened;
    let external = options.external_journal;
    let (found_journal, events) = journal::find(device, superblock, geometry, groups, external);
    let mut found = Findings::default();
    for event in &events {
        found.0.extend(problem_of(event, opened, found_journal.as_ref(), external));
    }
    if let Some(journal) = &found_journal {
        check_mountable(journal, superblock.features(), &mut found);
    }
    let Some(journal) = found_journal else {
        let state = if events.is_empty() { JournalState::None } else { JournalState::Unusable };
        return Recovery { overlay: None, state, found, external: None };
    };
    let locked = is_locked(superblock);
    if !journal.needs_replay && !locked {
        return Recovery { overlay: None, state: JournalState::Clean, found, external: None };
    }
    if options.journal != JournalUse::Replay {
        let JournalSequence { start, sequence } = JournalSequence::of(&journal);
        found.push(Problem::RecoveryPending { start, sequence });
        if options.journal == JournalUse::Read {
            found.0.extend(several::damage(device, opened, &journal, options));
        }
        return Recovery { overlay: None, state: JournalState::Ignored, found, external: None };
    }
    if let Some(progress) = options.observer.progress {
        progress.begin("journal");
        work::plan_journal(progress, journal.blocks, geometry.block_size);
    }
    let phase = options.observer.progress.and_then(|progress| progress.named("journal"));
    let empty = || empty(device, geometry.block_size, options);
    let (replay, (transactions, blocks)) = if locked {
        let replayed = several::replay(device, &empty, opened, &journal, options, phase);
        found.0.extend(replayed.found);
        let totals = replayed.logs.totals();
        (replayed.logs.root, totals)
    } else {
        let replay = journal::replay_onto(empty(), geometry, &journal, external, phase);
        let (replay, told) = weigh(replay, empty, opened, &journal, options);
        found.0.extend(told);
        let totals = (replay.transactions, replay.blocks);
        (replay, totals)
    };
    if let Some(progress) = options.observer.progress {
        progress.end();
    }
    for event in &replay.events {
        found.0.extend(problem_of(event, opened, Some(&journal), external));
    }
    let state = JournalState::Replayed { transactions: transactions.into(), blocks };
    Recovery { overlay: Some(replay.overlay), state, found, external: replay.external }
}

/// An overlay for a replayed log.
pub(super) fn empty<'d>(
    device: &'d dyn ReadBlocks,
    block_size: u32,
    options: &CheckOptions<'_>,
) -> Overlay<&'d dyn ReadBlocks> {
    match options.memory.limit_bytes {
        // The replayed blocks get an eighth of the budget; the rest goes to a temporary file.
        Some(budget) => {
            let spill = SpillOptions::in_temporary_folder(budget / REPLAY_SHARE);
            Overlay::with_spill(device, block_size, spill)
        }
        None => Overlay::new(device, block_size),
    }
}

struct JournalSequence {
    start: u32,
    sequence: u32,
}

impl JournalSequence {
    fn of(journal: &Journal) -> Self {
        Self { start: journal.superblock.start, sequence: journal.superblock.sequence }
    }
}

/// The finding that an event stands for. With a backup superblock in use, a journal with data is no
/// contradiction: backups never ask for recovery.
pub(super) fn problem_of(
    event: &JournalEvent,
    opened: &Opened,
    journal: Option<&Journal>,
    external: Option<&dyn ReadBlocks>,
) -> Option<Problem> {
    let superblock = &opened.superblock;
    let journal_inode = InodeNr(journal.map_or(superblock.journal_inum, journal::inode_of));
    Some(match *event {
        JournalEvent::InodeInvalid { inode, fault }
        | JournalEvent::InodeFromBackup { inode, fault } => {
            Problem::JournalInodeInvalid { inode, reason: fault.reason() }
        }
        JournalEvent::MultipleUsers { users } => Problem::ExternalJournalMultipleUsers { users },
        JournalEvent::ExternalNotFound { .. } => {
            Problem::ExternalJournalNotFound { device: superblock.journal_dev }
        }
        JournalEvent::ExternalNotAJournal => Problem::ExternalJournalNotAJournalDevice,
        JournalEvent::ExternalUuidMismatch { .. } => Problem::ExternalJournalUuidMismatch,
        JournalEvent::ExternalChecksum => {
            let mut bytes = [0; 1024];
            // It was read before; if that fails now, the zeroes are as good as anything.
            let read = external.map(|device| device.read_at(OFFSET_BYTES, &mut bytes));
            drop(read);
            Problem::ExternalJournalChecksumBad {
                stored: Superblock::decode(&bytes).checksum,
                expected: Superblock::compute_checksum(&bytes),
            }
        }
        JournalEvent::SuperblockCorrupt { fault } => unusable(journal_inode, fault),
        JournalEvent::SuperblockBit { .. } | JournalEvent::SuperblockRebuilt { .. } => {
            root_damage(journal?)?
        }
        JournalEvent::BoundsWrong { stored, expected } => {
            wrong_bounds(journal_inode, stored, expected)
        }
        JournalEvent::PresentWithoutFeature => {
            Problem::JournalPresentWithoutFeature { inode: journal_inode }
        }
        JournalEvent::NeedsRecoveryWithoutJournal => Problem::NeedsRecoveryWithoutJournal,
        JournalEvent::DataWithoutNeedsRecovery => {
            if opened.used_backup.is_some() {
                return None;
            }
            let start = journal.map_or(0, |journal| journal.superblock.start);
            Problem::JournalHasDataWithoutNeedsRecovery { inode: journal_inode, start }
        }
        JournalEvent::UnknownRoCompat { bits } => Problem::JournalUnknownRocompatFeature { bits },
        JournalEvent::UnknownIncompat { bits } => Problem::JournalUnknownIncompatFeature { bits },
        JournalEvent::UnknownVersion { blocktype } => {
            Problem::JournalVersionUnknown { value: blocktype }
        }
        // Whether a name leads to it is for whoever reads directories to say; the orphans are
        // looked for after the replay.
        JournalEvent::InodeNotReserved { .. }
        | JournalEvent::Orphan { .. }
        | JournalEvent::OrphansDamaged(_) => return None,
        JournalEvent::StaleV2Fields => Problem::JournalStaleV2Fields {
            inode: journal_inode,
            version: journal.map_or(0, |journal| journal.superblock.blocktype),
        },
        JournalEvent::InodeBackupStale { inode } => Problem::JournalInodeBackupStale { inode },
        JournalEvent::ErrorRecorded { errno } => {
            Problem::JournalErrorRecorded { errno: i64::from(errno.cast_signed()) }
        }
        JournalEvent::TransactionCorrupt { sequence } => Problem::JournalTransactionCorrupt {
            sequence,
            block: BlockNr(0),
            reason: "the checksum of its commit block is wrong",
        },
        JournalEvent::EndsEarly { sequence, last } => Problem::JournalEndsEarly { sequence, last },
        JournalEvent::RecoveryFailed(fault) => recovery_problem(fault),
    })
}

/// An external journal has no inode.
fn unusable(inode: InodeNr, fault: SuperblockFault) -> Problem {
    let reason = fault.reason();
    match inode.0 {
        0 => Problem::ExternalJournalSuperblockCorrupt { reason },
        _ => Problem::JournalSuperblockCorrupt { inode, reason },
    }
}

const fn wrong_bounds(inode: InodeNr, stored: LogBounds, expected: LogBounds) -> Problem {
    Problem::JournalBoundsWrong {
        inode,
        first: stored.first,
        blocks: stored.maxlen,
        expected_first: expected.first,
        expected_blocks: expected.maxlen,
    }
}

fn recovery_problem(fault: RecoveryFault) -> Problem {
    let reason = fault.reason();
    let corrupt = |sequence, block| Problem::JournalTransactionCorrupt { sequence, block, reason };
    match fault {
        RecoveryFault::LogBounds => corrupt(0, BlockNr(0)),
        RecoveryFault::Unreadable { log_block } => corrupt(0, BlockNr(u64::from(log_block))),
        RecoveryFault::ControlChecksum { sequence }
        | RecoveryFault::EndsEarly { sequence }
        | RecoveryFault::RevokeCount { sequence } => corrupt(sequence, BlockNr(0)),
        RecoveryFault::DataChecksum { sequence, block }
        | RecoveryFault::TargetOutOfRange { sequence, block } => corrupt(sequence, block),
        RecoveryFault::FastCommitFeatures { .. }
        | RecoveryFault::FastCommitDamaged
        | RecoveryFault::FastCommitImpossible { .. } => {
            Problem::FastCommitCorrupt { block: BlockNr(0), reason }
        }
    }
}
