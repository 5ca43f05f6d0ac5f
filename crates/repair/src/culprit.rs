//! Which owner of shared blocks is the one that is wrong, where the evidence tells.

use std::collections::{BTreeMap, BTreeSet};

use floe_check::{Problem, Report};
use floe_format::InodeNr;

/// What is done about blocks that several inodes claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharedBlocks {
    /// Every owner gets its own copy. Nothing is deleted, and somebody has foreign data.
    #[default]
    Clone,
    /// The owner that is damaged otherwise too is deleted, if all it shares blocks with are sound;
    /// else as `Clone`.
    DropCulprit,
}

/// Inodes that share blocks and whose maps or checksums are damaged, while no other owner's are:
/// their claims are not to be believed.
pub(crate) fn culprits(report: &Report) -> BTreeSet<InodeNr> {
    let found = &report.found;
    let suspects: BTreeSet<InodeNr> =
        found.iter().filter(|problem| casts_doubt(problem)).filter_map(Problem::inode).collect();
    let mut sharers: BTreeMap<InodeNr, bool> = BTreeMap::new();
    for problem in found {
        if let Problem::MultiplyClaimedSharer { inode, sharer } = problem {
            *sharers.entry(*inode).or_insert(true) &= !suspects.contains(sharer);
        }
    }
    let convicted = |(inode, others_sound): (InodeNr, bool)| {
        let may_go = !report.geometry.is_reserved(inode) && inode != InodeNr::ROOT;
        (others_sound && may_go && suspects.contains(&inode)).then_some(inode)
    };
    sharers.into_iter().filter_map(convicted).collect()
}

/// Whether a finding says that an inode, or its map, holds what nobody wrote there on purpose.
fn casts_doubt(problem: &Problem) -> bool {
    matches!(
        problem,
        Problem::InodeChecksumBad { .. }
            | Problem::ExtentBlockChecksumBad { .. }
            | Problem::ExtentStartOutOfRange { .. }
            | Problem::ExtentEndOutOfRange { .. }
            | Problem::ExtentNodeHeaderCorrupt { .. }
            | Problem::ExtentsOutOfOrder { .. }
            | Problem::ExtentOverlapsPrevious { .. }
            | Problem::BlockMapBlockOutOfRange { .. }
            | Problem::BlockMapTooManyBadBlocks { .. }
            | Problem::InodeModeIllegal { .. }
            | Problem::InodeBlockGarbage { .. }
    )
}
