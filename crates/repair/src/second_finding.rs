//! Looks for a second finding about an inode whose wrong checksum two flipped bits explain.
//!
//! Right bytes with a stale checksum look like two flipped bits once in 2,000 (`ext/inode_flips.rs`), and
//! flipping two right bits would damage the inode. So two bits are flipped only if something else is wrong as
//! well: a finding names the inode, the bitmaps or quotas contradict it as it is and agree with it as it was, or
//! most wrong checksums in its block of the inode table are explained in the same way.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use floe_check::Problem;
use floe_check::problem::{Evidence as Value, Object};
use floe_format::ext::inode_flips::Flips;
use floe_format::{BlockRun, InodeNr};

use crate::file_map::FileMap;
use crate::stage::{InodeImage, Stage};

/// Bytes of an inode that say whom quotas charge: owner, group and project.
const CHARGED: [std::ops::Range<usize>; 4] = [0x02..0x04, 0x18..0x1a, 0x78..0x7c, 0x9c..0xa0];

/// The findings of one examination, by the object that they contradict.
#[derive(Debug, Default)]
pub(crate) struct SecondFindings {
    index: OnceCell<Index>,
}

#[derive(Debug, Default)]
struct Index {
    /// Inodes with a finding besides the checksum.
    inodes: BTreeSet<InodeNr>,
    /// Blocks that are marked as used although nothing uses them; ascending.
    leaked: Vec<BlockRun>,
    /// Blocks in use that are marked as free; ascending.
    missing: Vec<BlockRun>,
    /// Whether quotas disagree with what was counted.
    quotas: bool,
}

impl SecondFindings {
    /// Whether anything but the checksum says that `before` is wrong and `after`, with the bits flipped back,
    /// right.
    pub(crate) fn concern(
        &self,
        stage: &Stage<'_>,
        flips: Flips,
        before: &InodeImage,
        after: &InodeImage,
    ) -> bool {
        let index = self.index.get_or_init(|| Index::of(&stage.evidence.report.found));
        let is_charged = |at: usize| CHARGED.iter().any(|bytes| bytes.contains(&at));
        index.inodes.contains(&before.number)
            || (index.quotas && flips.bytes().any(|(at, _)| is_charged(at)))
            || index.has_moved(&FileMap::load(stage, before), &FileMap::load(stage, after))
    }
}

impl Index {
    fn of(found: &[Problem]) -> Self {
        let mut index = Self::default();
        for problem in found {
            match *problem {
                Problem::InodeChecksumBad { .. } | Problem::InodeBlockGarbage { .. } => {}
                Problem::BlockBitmapLeakedBlock { block, .. } => {
                    index.leaked.push(BlockRun::new(block, 1));
                }
                Problem::BlockBitmapLeakedRange { block, len, .. } => {
                    index.leaked.push(BlockRun::new(block, len));
                }
                Problem::BlockBitmapMissingBlock { block, .. } => {
                    index.missing.push(BlockRun::new(block, 1));
                }
                Problem::BlockBitmapMissingRange { block, len, .. } => {
                    index.missing.push(BlockRun::new(block, len));
                }
                Problem::QuotaUsageWrong { .. } => index.quotas = true,
                _ => index.inodes.extend(named(problem)),
            }
        }
        index.leaked.sort_unstable_by_key(|run| run.start);
        index.missing.sort_unstable_by_key(|run| run.start);
        index
    }

    /// Whether the flipped bits have moved a file off blocks that the bitmaps keep for it, or onto blocks that
    /// they mark as free.
    fn has_moved(&self, before: &FileMap, after: &FileMap) -> bool {
        let (old, new) = (runs_of(before), runs_of(after));
        let only_in =
            |one: &BTreeSet<(u64, u64)>, other: &BTreeSet<(u64, u64)>, of: &[BlockRun]| {
                one.difference(other).any(|&(start, end)| overlaps(of, start, end))
            };
        only_in(&new, &old, &self.leaked) || only_in(&old, &new, &self.missing)
    }
}

/// First block and end of all runs of a map, with its nodes.
fn runs_of(map: &FileMap) -> BTreeSet<(u64, u64)> {
    let nodes = map.nodes.iter().map(|&node| BlockRun::new(node, 1));
    let runs = map.runs.iter().map(|extent| extent.run).chain(nodes);
    runs.map(|run| (run.start.0, run.end().0)).collect()
}

/// Whether a run overlaps one of `sorted`, which do not overlap each other.
fn overlaps(sorted: &[BlockRun], start: u64, end: u64) -> bool {
    let at = sorted.partition_point(|run| run.end().0 <= start);
    sorted.get(at).is_some_and(|run| run.start.0 < end)
}

/// The inodes that a finding contradicts; a directory is not contradicted by a single entry of it.
fn named(problem: &Problem) -> impl Iterator<Item = InodeNr> {
    let of_entry = problem.row().object == Object::Dirent;
    let values = problem.evidence().into_iter();
    values.filter_map(move |(name, value)| match value {
        Value::Inode(inode) if !(of_entry && matches!(name, "dir" | "parent")) => Some(inode),
        _ => None,
    })
}
