//! The findings about a primary superblock that cannot be used while a backup can.

use floe_blockdev::ReadBlocks;
use floe_format::BlockNr;
use floe_format::ext::superblock::OFFSET_BYTES;
use floe_format::geometry::Strictness;

use super::Opened;
use super::candidate::{Refusal, read_candidate};
use crate::problem::Problem;

/// The findings about a primary superblock that cannot be used: whoever names a backup is to know, too.
pub(super) fn of_lost_primary(device: &dyn ReadBlocks) -> Vec<Problem> {
    match read_candidate(device, OFFSET_BYTES, None, None, Strictness::Relaxed) {
        Ok(_) | Err(Refusal::Revision(_) | Refusal::Features(_)) => Vec::new(),
        Err(refusal) => beside_a_backup(&refusal),
    }
}

/// The findings about a primary superblock whose backup is in use. A field out of range is damage then, but the check goes on: the
/// finding that ends a run belongs to a run that ended.
pub(super) fn beside_a_backup(refusal: &Refusal) -> Vec<Problem> {
    let mut own = refusal.problems(BlockNr(0));
    own.push(Problem::PrimarySuperblockOpenFailed { reason: refusal.reason() });
    own.retain(|problem| !matches!(problem, Problem::SuperblockFieldOutOfRange { .. }));
    own
}

/// The findings about the primary superblock that the journal brought back: without a recovery by a program that looks for backups,
/// nobody would have found the journal.
pub fn lost_primary(before: &Opened, after: &Opened) -> Vec<Problem> {
    let is_lost = |problem: &&Problem| {
        matches!(problem, Problem::PrimarySuperblockOpenFailed { .. })
            && !after.found.0.contains(problem)
    };
    let lost = before.found.0.iter().filter(is_lost).cloned();
    lost.chain(other_identity(before, after)).collect()
}

/// The finding that the primary superblock has another UUID than the descriptors, and the journal brings the right one back. Linux
/// judges the descriptors before it replays anything, so it does not mount, and tells the log for another file system's.
fn other_identity(before: &Opened, after: &Opened) -> Option<Problem> {
    let unproven = |opened: &Opened| {
        let bad =
            |problem: &&Problem| matches!(problem, Problem::GroupDescriptorChecksumBad { .. });
        opened.found.0.iter().filter(bad).count()
    };
    let all = before.groups.len();
    let differs = before.superblock.uuid != after.superblock.uuid;
    let is_other = differs && unproven(before) == all && unproven(after) < all;
    is_other.then_some(Problem::PrimarySuperblockUuidWrong)
}
