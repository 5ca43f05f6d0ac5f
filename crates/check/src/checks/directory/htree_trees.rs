//! Check: all indexes, each put together from its blocks after the directory pass.
//! Reads: what the pass kept; leaves again, of a directory with an unusual hash.
//! Keeps: nothing.  Emits: what `checks/directory/htree.rs` does, and 0x020039.

use std::collections::BTreeMap;

use floe_exec::{Accumulator, Pool};
use floe_format::InodeNr;
use floe_format::ext::htree::HashVersion;

use crate::checks::context::directory::{DirCx, DirEvidence};
use crate::checks::directory::entry_scan::{self, Scan};
use crate::checks::directory::htree::{LeafHashes, Role, Tree, begin};
use crate::evidence::dirs::{DirFlags, DirRun};
use crate::evidence::htree::{HtreeEvidence, Leaf, Node};
use crate::evidence::pieces::places_in;
use crate::problem::{Findings, Problem, Sink};
use crate::scan::directory_blocks::scan_runs;

/// Indexes of one unit of work.
const UNIT: usize = 64;

/// Judges all indexes.
pub fn check(cx: &DirCx<'_>, all: &mut DirEvidence, pool: &Pool) {
    let mut kept = std::mem::take(&mut all.htree);
    let sizes = sizes(cx, pool);
    if sizes.is_empty() {
        return;
    }
    hash_again(cx, &mut kept, pool);
    kept.nodes.sort_unstable();
    kept.leaves.sort_unstable();
    kept.dropped.sort_unstable();
    check_large(cx, &kept, &mut all.found);
    let units: Vec<_> = sizes.chunks(UNIT).collect();
    let found = pool.run(&units, |found: &mut Findings, unit: &&[(u32, InodeNr, u32)]| {
        for &(rank, dir, blocks) in *unit {
            Tree {
                dir,
                blocks,
                nodes: of(&kept.nodes, rank, |node| node.rank),
                leaves: of(&kept.leaves, rank, |leaf| leaf.rank),
                dropped: kept.dropped.binary_search(&dir).is_ok(),
            }
            .check(found);
        }
    });
    all.found.merge(found);
    check_unmapped_roots(cx, &kept, &sizes, &mut all.found);
}

/// The part of a sorted list that belongs to a directory.
fn of<T>(list: &[T], rank: u32, rank_of: impl Fn(&T) -> u32) -> &[T] {
    let start = list.partition_point(|item| rank_of(item) < rank);
    let rest = list.get(start..).unwrap_or(&[]);
    rest.get(..rest.partition_point(|item| rank_of(item) == rank)).unwrap_or(&[])
}

/// Rank, inode and number of blocks (holes included) of each indexed directory that has blocks.
fn sizes(cx: &DirCx<'_>, pool: &Pool) -> Vec<(u32, InodeNr, u32)> {
    let end = |run: &DirRun| run.logical.saturating_add(u32::from(run.len_blocks));
    let runs = &cx.dirs.runs;
    let indexed = places_in(runs, pool, |run| run.flags.contains(DirFlags::INDEXED));
    let mut sizes: Vec<_> = indexed
        .into_iter()
        .map(|at| &runs[at])
        .filter_map(|run| Some((cx.index.get(run.dir)?, run.dir, end(run))))
        .collect();
    // The largest end of a directory comes last: keep that one.
    sizes.sort_unstable_by_key(|&(rank, _, end)| (rank, std::cmp::Reverse(end)));
    sizes.dedup_by_key(|(rank, ..)| *rank);
    sizes
}

/// An index whose root is not mapped is none.
fn check_unmapped_roots(
    cx: &DirCx<'_>,
    kept: &HtreeEvidence,
    sizes: &[(u32, InodeNr, u32)],
    found: &mut impl Sink,
) {
    let with_leaves = sizes.iter().filter(|(rank, dir, _)| {
        of(&kept.nodes, *rank, |node| node.rank).first().is_none_or(|node| node.root.is_none())
            && kept.dropped.binary_search(dir).is_err()
    });
    for &(rank, inode, _) in with_leaves {
        // A root that could not be read is reported as such, and has a run.
        let mapped = cx.dirs.runs.iter().any(|run| run.dir == inode && run.logical == 0);
        if !mapped && cx.index.get(inode) == Some(rank) {
            found.push(Problem::HtreeRootInvalid { inode, reason: "its block is not mapped" });
        }
    }
}

/// A directory of 2 GiB, or with an index of more than two levels, needs large_dir.
fn check_large(cx: &DirCx<'_>, kept: &HtreeEvidence, found: &mut impl Sink) {
    if cx.large_dir {
        return;
    }
    let block_size = u64::from(cx.volume.geometry.block_size);
    for node in kept.nodes.iter().filter(|node| node.root.is_some()) {
        if u64::from(cx.size_blocks(node.rank)) * block_size >= 1 << 31 {
            found.push(Problem::LargeDirFeatureMissing { dir: cx.index.inode(node.rank) });
        }
    }
}

#[derive(Debug, Default)]
struct Leaves(Vec<Leaf>);

impl Accumulator for Leaves {
    fn merge(&mut self, other: Self) {
        let Self(mut other) = other;
        self.0.append(&mut other);
    }
}

/// Hashes the names of directories again whose root says another hash than was used.
fn hash_again(cx: &DirCx<'_>, kept: &mut HtreeEvidence, pool: &Pool) {
    let unusual = |node: &Node| {
        let version = node.root?.version;
        let usual = cx.usual_hash(DirFlags::default());
        // An encrypted and casefolded directory has SipHash, or a bad root.
        (version != usual && version != HashVersion::SipHash).then_some((node.rank, version))
    };
    let unusual: BTreeMap<u32, HashVersion> = kept.nodes.iter().filter_map(unusual).collect();
    if unusual.is_empty() {
        return;
    }
    let version_of = |dir| cx.index.get(dir).and_then(|rank| unusual.get(&rank)).copied();
    let runs: Vec<DirRun> =
        cx.dirs.runs.iter().filter(|run| version_of(run.dir).is_some()).copied().collect();
    let again = scan_runs(cx.volume, cx.index, &runs, pool, |scan: &mut Scan<Leaves>, block| {
        let Some(version) = version_of(block.dir) else { return };
        if begin(cx, &block) != Role::Leaf {
            return;
        }
        let mut hashes = LeafHashes::new(version);
        entry_scan::look(cx, &block, scan, |_, block, entry| {
            hashes.add(cx, block, entry);
        });
        let (min, max) = hashes.range();
        scan.own.0.push(Leaf { rank: block.rank, logical: block.logical, min, max });
    });
    kept.leaves.retain(|leaf| !unusual.contains_key(&leaf.rank));
    kept.leaves.extend(again.own.0);
}

#[cfg(test)]
mod laws {
    use super::*;

    floe_exec::accumulator_laws!(
        Leaves,
        (0u32..9, 0u32..9),
        |all: &mut Leaves, (rank, logical): (u32, u32)| {
            all.0.push(Leaf { rank, logical, min: 0, max: 9 });
        },
        |mut all: Leaves| {
            all.0.sort_unstable();
            all.0
        }
    );
}
