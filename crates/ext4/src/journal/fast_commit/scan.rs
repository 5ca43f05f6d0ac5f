//! Determines which fast commits are valid: all up to the last tail with a valid checksum. A valid one behind that proves damage, and so
//! does one that is valid but for one bit: a crash cuts off whole sectors.

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

#[derive(Clone, Copy, Default)]
struct State {
    crc: u32,
    tags: u64,
    good_tags: u64,
}

/// Looks for sound fast commits behind the seeming end. Linux begins one when the one before it is durable, so there are none
/// behind one that was being written.
#[derive(Default)]
struct Behind {
    crc: u32,
    found: bool,
}

impl Behind {
    /// Whether a fast commit of the expected transaction ends in this block, the next one of the area.
    fn has_sound_one(&mut self, block: &[u8], inode_size: u32, expected: u32) -> bool {
        let mut records = FcRecords::new(block, inode_size);
        for record in records.by_ref() {
            self.crc = record.checksum(self.crc);
            if let FcTag::Tail { tid, crc } = record.tag {
                self.found |= tid == expected && crc == self.crc;
                // The next block begins another one.
                self.crc = 0;
            }
        }
        if records.is_broken() {
            self.crc = 0;
        }
        self.found
    }
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
    let (mut end, mut behind) = (End::GoOn, Behind::default());
    let mut has_wrong_bit = false;
    let first = log.journal.blocks.saturating_sub(log.journal.fast_commit_blocks);
    // The fast-commit area starts one block behind the end of the log.
    for at in first.saturating_add(1)..log.journal.blocks {
        let mut block = vec![0; log.journal.block_size as usize];
        let was_read = log.read(at, &mut block).is_ok();
        if !matches!(end, End::GoOn) {
            if was_read && behind.has_sound_one(&block, geo.inode_size, expected) {
                break;
            }
            continue;
        }
        if !was_read {
            end = End::Fault(RecoveryFault::Unreadable { log_block: at });
            continue;
        }
        let is_first = commits.blocks.is_empty();
        let before = state;
        let scan_it = |block: &[u8], state: &mut State| {
            scan_block(block, geo.inode_size, expected, is_first, state)
        };
        end = scan_it(&block, &mut state);
        if matches!(end, End::Stop | End::Fault(RecoveryFault::FastCommitDamaged)) {
            has_wrong_bit = fits_but_for_a_bit(&block, |block| {
                let mut state = before;
                scan_it(block, &mut state);
                state.good_tags > before.good_tags
            });
        }
        commits.blocks.push(block);
    }
    let fault = match end {
        End::Fault(RecoveryFault::FastCommitDamaged) | End::Stop => {
            // Otherwise it was being written, which has not been told to any program.
            (behind.found || has_wrong_bit).then_some(RecoveryFault::FastCommitDamaged)
        }
        End::Fault(fault) => Some(fault),
        End::GoOn => None,
    };
    events.extend(fault.map(JournalEvent::RecoveryFailed));
    commits.tags = state.good_tags;
    if commits.tags == 0 {
        commits.blocks.clear();
    }
    commits
}

/// Whether a block fits once one of its bits is flipped.
fn fits_but_for_a_bit(block: &[u8], fits: impl Fn(&[u8]) -> bool) -> bool {
    // Padding behind has no meaning.
    let len = block.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let mut block = block.to_vec();
    (0..len * 8).any(|bit| {
        block[bit / 8] ^= 1 << (bit % 8);
        let is_it = fits(&block);
        block[bit / 8] ^= 1 << (bit % 8);
        is_it
    })
}

fn scan_block(block: &[u8], inode_size: u32, expected: u32, first: bool, state: &mut State) -> End {
    let mut records = FcRecords::new(block, inode_size);
    let before = state.tags;
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
                    // A fast commit whose last block was not written lies before older ones.
                    return if state.good_tags > 0 || (tid != expected && !first) {
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
        // The block was not written: the fast commit has no end.
        (true, 0, false) if state.tags == before => End::Stop,
        (true, 0, false) => End::Fault(RecoveryFault::FastCommitDamaged),
        (true, _, false) => End::Stop,
    }
}
