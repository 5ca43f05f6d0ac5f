//! Check: the directories make one tree, and `..` leads up in it.
//! Reads: which directory names which, and what `..` says.  Keeps: the parent of each directory.
//! Emits: 0x020006, 0x030001, 0x030003, 0x030005, 0x03001D; as remarks 0x030004, 0x030017,
//! 0x030018, 0x03001B.
//! Does not verify: files (`checks/directory/link_counts.rs`).
//!
//! All workers take part: parents are entered, and `..` compared, in any order. A directory whose parent has a
//! lower rank need not be followed: only those whose parent has a higher one can be part of a loop.

use floe_exec::{Accumulator, Pool};
use floe_format::ext::inode::FileType;
use floe_format::features::Compat;
use floe_format::{BlockNr, InodeNr, LogicalBlock};
use floe_sync::atomic::{AtomicU32, Ordering};

use crate::checks::context::directory::{DirCx, DirEvidence};
use crate::checks::directory::entry_scan;
use crate::evidence::ledger::Ledger;
use crate::evidence::pieces::{Cells, Places, pieces};
use crate::problem::{Findings, Name, Problem, Sink};
use crate::scan::inode_reader::InodeReader;

/// No directory.
const NONE: u32 = u32::MAX;

/// The number in a cell of the tree, if there is one.
#[inline]
fn known(cell: &AtomicU32) -> Option<u32> {
    Some(cell.load(Ordering::Relaxed)).filter(|number| *number != NONE)
}

/// The tree of directories: 12 bytes each.
#[derive(Debug, Default)]
pub struct DirTree {
    /// For each directory the one that holds its entry, as ranks; `u32::MAX` without one.
    parents: Cells,
    /// For each directory the inode that `..` names; `u32::MAX` if it has no usable one.
    dotdots: Cells,
    /// For each directory how many `..` of others will name it, once repaired.
    children: Cells,
}

impl DirTree {
    /// The rank of the directory that holds the entry of another.
    #[inline]
    pub fn parent(&self, rank: u32) -> Option<u32> {
        self.parents.get(rank as usize).filter(|parent| *parent != NONE)
    }

    /// The inode that `..` of a directory names; 0 if it has no usable one.
    #[inline]
    fn dotdot(&self, rank: u32) -> InodeNr {
        InodeNr(self.dotdots.get(rank as usize).filter(|inode| *inode != NONE).unwrap_or(0))
    }

    /// Links that a directory has, once repaired: its entry, its `.`, and `..` of those in it.
    #[inline]
    pub fn links(&self, rank: u32) -> u32 {
        self.children.get(rank as usize).map_or(2, |children| children.saturating_add(2))
    }
}

/// Puts the tree together and judges it.
pub fn check(cx: &DirCx<'_>, evidence: &mut DirEvidence, pool: &Pool) -> (DirTree, Findings) {
    let mut found = Findings::default();
    let count = cx.index.len();
    let [parents, dotdots, children] = Cells::new(count, [NONE, NONE, 0], pool);
    let tree = DirTree { parents, dotdots, children };
    let contested = settle_first(&tree, std::mem::take(&mut evidence.named), pool);
    gather_dotdots(&tree, std::mem::take(&mut evidence.dotdots), pool);
    settle_contested(cx, &tree, &contested, &evidence.met, pool, &mut found);
    let root = cx.index.get(InodeNr::ROOT);
    if root.is_none() && !cx.facts_of(InodeNr::ROOT, 0).is_used() {
        found.push(Problem::RootInodeMissing { inode: InodeNr::ROOT });
    }
    let uphill = uphill(&tree, root, pool);
    let cut = walk_up(cx, &tree, root, &uphill, &mut found);
    check_dotdots(cx, &tree, root, &cut, pool, &mut found);
    if root.is_some() {
        check_lost_found(cx, evidence, &mut found);
    }
    (tree, found)
}

/// Enters the inode that `..` of each directory names.
fn gather_dotdots(tree: &DirTree, named: Vec<(u32, InodeNr)>, pool: &Pool) {
    pool.watched(None).run(&pieces(named.len()), |(): &mut (), piece| {
        for &(rank, inode) in &named[piece.clone()] {
            // Two blocks may both claim to be the first one, on a damaged map: the lower inode wins.
            if let Some(slot) = tree.dotdots.cell(rank as usize)
                && inode.0 != 0
            {
                // Relaxed, here and below: the workers have ended before anybody reads.
                slot.fetch_min(inode.0, Ordering::Relaxed);
            }
        }
    });
}

/// Enters the parent of each directory; returns the directories that more than one entry names.
fn settle_first(tree: &DirTree, named: Vec<(u32, u32)>, pool: &Pool) -> Vec<usize> {
    let contested = pool.watched(None).run(&pieces(named.len()), |all: &mut Places, piece| {
        for &(child, parent) in &named[piece.clone()] {
            let Some(slot) = tree.parents.cell(child as usize) else { continue };
            // The lowest one, until it is decided: the same, whoever comes first.
            if slot.fetch_min(parent, Ordering::Relaxed) != NONE {
                all.0.push(child as usize);
            }
        }
    });
    contested.in_order()
}

/// An entry that names a contested directory. Ordered as e2fsck finds them: with dir_index first
/// blocks of directories before others; then by place on the disk.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    child: u32,
    not_first_block: bool,
    block: BlockNr,
    dir: InodeNr,
    logical: u32,
    offset_bytes: u32,
    rank: u32,
    name: Name,
}

#[derive(Debug, Default)]
struct ContestedNames(Vec<Claim>);

impl Accumulator for ContestedNames {
    fn merge(&mut self, other: Self) {
        let Self(mut other) = other;
        self.0.append(&mut other);
    }
}

/// Decides which entry of a directory with several is the one that stays.
fn settle_contested(
    cx: &DirCx<'_>,
    tree: &DirTree,
    contested: &[usize],
    met: &Ledger,
    pool: &Pool,
    found: &mut impl Sink,
) {
    if contested.is_empty() {
        return;
    }
    let first_blocks_first = cx.volume.has_compat(Compat::DIR_INDEX);
    let ContestedNames(mut names) = entry_scan::run(
        cx,
        pool,
        entry_scan::naming(cx, met, contested.iter().map(|rank| cx.index.inode(*rank as u32))),
        |all: &mut ContestedNames, block, entry| {
            let child = cx.index.get(entry.inode);
            if let Some(child) =
                child.filter(|child| contested.binary_search(&(*child as usize)).is_ok())
            {
                all.0.push(Claim {
                    child,
                    not_first_block: first_blocks_first && block.logical != 0,
                    block: block.block,
                    dir: block.dir,
                    logical: block.logical,
                    offset_bytes: entry.offset,
                    rank: block.rank,
                    name: Name::new(entry.name),
                });
            }
        },
    );
    names.sort_unstable();
    for of_child in names.chunk_by(|one, other| one.child == other.child) {
        let Some((first, others)) = of_child.split_first() else { continue };
        if let Some(slot) = tree.parents.cell(first.child as usize) {
            slot.store(first.rank, Ordering::Relaxed);
        }
        for other in others {
            found.push(Problem::DirectoryHardLink {
                dir: other.dir,
                logical: LogicalBlock(u64::from(other.logical)),
                offset_bytes: other.offset_bytes,
                inode_named: cx.index.inode(other.child),
                name: other.name.clone(),
            });
        }
    }
}

/// How far a directory has been followed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Unseen,
    OnTheWay,
    Done,
}

/// The directories without a parent and those whose parent has no lower rank, but for the root. Whoever
/// follows any other one upwards comes to one of these or to the root, and each loop has one of them.
fn uphill(tree: &DirTree, root: Option<u32>, pool: &Pool) -> Vec<usize> {
    let uphill =
        pool.watched(None).run(&pieces(tree.parents.count()), |all: &mut Places, piece| {
            for (at, parent) in tree.parents.piece(piece).iter().enumerate() {
                // Ranks fit 32 bits, and the highest number is no parent.
                let (rank, parent) = (piece.start + at, parent.load(Ordering::Relaxed));
                if parent as usize >= rank && Some(rank as u32) != root {
                    all.0.push(rank);
                }
            }
        });
    uphill.in_order()
}

/// Follows `starts` up to the root. Returns those that hang on nothing, as ranks in order: without a
/// parent, or (one for each loop, the lowest inode) in a loop.
fn walk_up(
    cx: &DirCx<'_>,
    tree: &DirTree,
    root: Option<u32>,
    starts: &[usize],
    found: &mut impl Sink,
) -> Vec<u32> {
    if starts.is_empty() {
        return Vec::new();
    }
    let mut steps = vec![Step::Unseen; tree.parents.count()];
    let mut cut = Vec::new();
    for &start in starts {
        let mut at = start;
        while steps[at] == Step::Unseen {
            steps[at] = Step::OnTheWay;
            let rank = at as u32;
            if Some(rank) == root {
                break;
            }
            let Some(parent) = tree.parent(rank) else {
                report_unconnected(cx, tree, rank, &mut cut, found);
                break;
            };
            at = parent as usize;
            if steps[at] == Step::OnTheWay {
                report_loop(cx, tree, parent, &mut cut, found);
            }
        }
        let mut at = start;
        while steps[at] == Step::OnTheWay {
            steps[at] = Step::Done;
            let Some(parent) = tree.parent(at as u32) else { break };
            at = parent as usize;
        }
    }
    cut.sort_unstable();
    cut
}

fn report_unconnected(
    cx: &DirCx<'_>,
    tree: &DirTree,
    rank: u32,
    cut: &mut Vec<u32>,
    found: &mut impl Sink,
) {
    let dir = cx.index.inode(rank);
    cut.push(rank);
    let facts = cx.facts_of(dir, FileType::Directory as u8);
    // A directory that goes itself, or that no entry may name, need not be connected.
    if !facts.is_bad() && !facts.is_orphan() {
        let parent = tree.dotdot(rank);
        found.push(Problem::DirectoryUnconnected { dir, parent });
    }
}

/// Cuts a loop at its lowest inode. `at` is in it.
fn report_loop(cx: &DirCx<'_>, tree: &DirTree, at: u32, cut: &mut Vec<u32>, found: &mut impl Sink) {
    let (mut lowest, mut next) = (at, tree.parent(at));
    while let Some(rank) = next.filter(|rank| *rank != at) {
        lowest = lowest.min(rank);
        next = tree.parent(rank);
    }
    let parent = tree.parent(lowest).map_or(InodeNr(0), |rank| cx.index.inode(rank));
    cut.push(lowest);
    found.push(Problem::DirectoryLoop { dir: cx.index.inode(lowest), parent });
}

/// Compares `..` of each directory with its parent, and counts the links that `..` will be.
fn check_dotdots(
    cx: &DirCx<'_>,
    tree: &DirTree,
    root: Option<u32>,
    cut: &[u32],
    pool: &Pool,
    found: &mut Findings,
) {
    let one = |found: &mut Findings, rank: u32, stored: InodeNr, parent: Option<u32>| {
        let is_root = Some(rank) == root;
        let parent = if is_root { root } else { parent };
        let is_cut = !is_root && (parent.is_none() || cut.binary_search(&rank).is_ok());
        // A directory moved to lost+found moves its `..`, and thereby a link, to lost+found.
        let target = if is_cut { cx.index.get(stored) } else { parent };
        let target = target.filter(|_| !is_root);
        if let Some(children) = target.and_then(|target| tree.children.cell(target as usize)) {
            children.fetch_add(1, Ordering::Relaxed);
        }
        if let (Some(parent), false) = (parent, is_cut) {
            let expected = cx.index.inode(parent);
            // Without a usable `..`, the directory pass has said so.
            if stored.0 != 0 && stored != expected {
                let dir = cx.index.inode(rank);
                found.push(Problem::DotdotWrongParent { dir, stored, expected });
            }
        }
    };
    let pieces = pieces(tree.parents.count());
    found.merge(pool.watched(None).run(&pieces, |found: &mut Findings, piece| {
        let cells = tree.dotdots.piece(piece).iter().zip(tree.parents.piece(piece));
        for (at, (dotdot, parent)) in cells.enumerate() {
            // `array::map` would take thirty instructions more for each directory.
            let (stored, parent) = (known(dotdot), known(parent));
            // Ranks fit 32 bits.
            one(found, (piece.start + at) as u32, InodeNr(stored.unwrap_or(0)), parent);
        }
    }));
}

/// Looks whether a repair could put files into lost+found.
fn check_lost_found(cx: &DirCx<'_>, evidence: &DirEvidence, found: &mut impl Sink) {
    let Some(entry) = evidence.lost_found else {
        found.push(Problem::LostFoundMissing);
        return;
    };
    let inode = entry.inode;
    let named_as = if cx.index.get(inode).is_some() { FileType::Directory as u8 } else { 0 };
    let facts = cx.facts_of(inode, named_as);
    if !facts.is_dir() {
        let mut reader = InodeReader::default();
        let mode = reader.read(cx.volume, inode).map_or(0, |inode| inode.base.mode);
        found.push(Problem::LostFoundNotDirectory { inode, mode });
    } else if facts.is_encrypted() {
        found.push(Problem::LostFoundEncrypted { inode });
    } else if cx.dirs.inline.binary_search(&inode).is_ok() {
        found.push(Problem::LostFoundInline { inode });
    }
}

#[cfg(test)]
mod laws {
    use super::*;

    floe_exec::accumulator_laws!(
        ContestedNames,
        (0u32..4, 1u32..5, 0u32..9),
        |all: &mut ContestedNames, (child, dir, offset_bytes): (u32, u32, u32)| {
            all.0.push(Claim {
                child,
                not_first_block: offset_bytes > 4,
                block: BlockNr(u64::from(dir)),
                dir: InodeNr(dir),
                logical: 0,
                offset_bytes,
                rank: dir,
                name: Name::new(b"name"),
            });
        },
        |mut all: ContestedNames| {
            all.0.sort_unstable();
            all.0
        }
    );
}
