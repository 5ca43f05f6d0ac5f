//! Determines which fast commits are valid: all up to the last tail with a valid checksum.

use floe_format::Geometry;
use floe_format::ext::fast_commit::{FcRecords, FcTag, KNOWN_FEATURES};
use floe_format::features::Compat;

use crate::journal::event::{JournalEvent, RecoveryFault};
use crate::journal::log::Log;

/// The blocks of the fast-commit area to replay.
#[derive(Clone, Debug, Default)]
pub(crate) struct FastCommits {
    /// Whole blocks, in order.
    pub(crate) blocks: Vec<Vec<u8>>,
    /// Tags up to and including the last valid tail.
    pub(crate) tags: u64,
}

/// How the scan of a block of the area ended.
enum End {
    /// The fast commit continues in the next block.
    GoOn,
    /// The rest is stale.
    Stop,
    /// Damage, or unknown features.
    Fault(RecoveryFault),
}

#[derive(Default)]
struct State {
    crc: u32,
    tags: u64,
    good_tags: u64,
}

/// Reads the fast-commit area. `expected` is the transaction after the last full commit: fast
/// commits of any other transaction are stale.
pub(crate) fn scan(
    log: Log<'_>,
    geo: &Geometry,
    expected: u32,
    events: &mut Vec<JournalEvent>,
) -> FastCommits {
    let mut commits = FastCommits::default();
    if !geo.features.compat.contains(Compat::FAST_COMMIT) {
        return commits;
    }
    let mut state = State::default();
    let first = log.journal.blocks.saturating_sub(log.journal.fast_commit_blocks);
    // The fast-commit area starts one block behind the end of the log.
    for at in first.saturating_add(1)..log.journal.blocks {
        let mut block = vec![0; log.journal.block_size as usize];
        if log.read(at, &mut block).is_err() {
            events.push(JournalEvent::RecoveryFailed(RecoveryFault::Unreadable { log_block: at }));
            break;
        }
        let end =
            scan_block(&block, geo.inode_size, expected, commits.blocks.is_empty(), &mut state);
        commits.blocks.push(block);
        match end {
            End::GoOn => {}
            End::Stop => break,
            End::Fault(fault) => {
                // After a valid fast commit, damage only means that the next one was being written.
                if state.good_tags == 0 {
                    events.push(JournalEvent::RecoveryFailed(fault));
                }
                break;
            }
        }
    }
    commits.tags = state.good_tags;
    if commits.tags == 0 {
        commits.blocks.clear();
    }
    commits
}

fn scan_block(block: &[u8], inode_size: u32, expected: u32, first: bool, state: &mut State) -> End {
    let mut records = FcRecords::new(block, inode_size);
    for (index, record) in records.by_ref().enumerate() {
        if first && index == 0 && !matches!(record.tag, FcTag::Head { .. }) {
            return End::Stop;
        }
        state.tags += 1;
        state.crc = record.checksum(state.crc);
        match record.tag {
            FcTag::Head { features, .. } if features & !KNOWN_FEATURES != 0 => {
                return End::Fault(RecoveryFault::FastCommitFeatures { features });
            }
            // Stale: from before the last full commit.
            FcTag::Head { tid, .. } if tid != expected => return End::Stop,
            FcTag::Tail { tid, crc } => {
                let fits = tid == expected && crc == state.crc;
                state.crc = 0;
                if !fits {
                    return if state.good_tags > 0 {
                        End::Stop
                    } else {
                        End::Fault(RecoveryFault::FastCommitDamaged)
                    };
                }
                state.good_tags = state.tags;
            }
            _ => {}
        }
    }
    match (records.is_broken(), state.good_tags, first && state.tags == 0) {
        (false, _, _) => End::GoOn,
        // Without even a first tag, the area was never used.
        (true, _, true) => End::Stop,
        (true, 0, false) => End::Fault(RecoveryFault::FastCommitDamaged),
        (true, _, false) => End::Stop,
    }
}
