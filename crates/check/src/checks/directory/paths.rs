//! Paths of inodes, for reports: not a check. Used only when there is something to report.

use std::collections::{BTreeMap, BTreeSet};

use floe_exec::{Accumulator, Pool};
use floe_format::InodeNr;

use crate::checks::context::directory::DirCx;
use crate::checks::directory::connectivity::DirTree;
use crate::checks::directory::entry_scan;
use crate::evidence::dirs::DirRun;
use crate::evidence::ledger::Ledger;
use crate::problem::Name;

/// Bytes of a path, at most (`PATH_MAX` of Linux): what is deeper begins with an inode again. The paths of all
/// directories of a deep tree would take memory and time by the square of its depth.
const MOST_BYTES: usize = 4096;
/// Bytes of all paths together from which on they are cut shorter, and how short they get.
const ALL_BYTES: usize = 64 << 20;
const FEWEST_BYTES: usize = 512;

/// An entry that names an inode: the directory, its place there, the name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    dir: InodeNr,
    place: (u32, u32),
    rank: u32,
    name: Name,
}

/// The first entry of each inode that is looked for.
#[derive(Debug, Default)]
struct Entries(BTreeMap<InodeNr, Entry>);

impl Entries {
    fn add(&mut self, inode: InodeNr, entry: Entry) {
        match self.0.get_mut(&inode) {
            Some(known) if *known <= entry => {}
            Some(known) => *known = entry,
            None => {
                self.0.insert(inode, entry);
            }
        }
    }
}

impl Accumulator for Entries {
    fn merge(&mut self, other: Self) {
        let Self(other) = other;
        other.into_iter().for_each(|(inode, entry)| self.add(inode, entry));
    }
}

/// A path of each of the inodes that has one, as bytes: of several, the one in the directory with
/// the lowest inode. A path that does not begin at the root, or would be too long (`MOST_BYTES`),
/// starts with the inode of its first directory, as `<320>/name`. `met` says which directory blocks are worth a look.
pub fn find(
    cx: &DirCx<'_>,
    tree: &DirTree,
    met: &Ledger,
    wanted: &BTreeSet<InodeNr>,
    pool: &Pool,
) -> BTreeMap<InodeNr, Vec<u8>> {
    if wanted.is_empty() {
        return BTreeMap::new();
    }
    let (dirs, files): (BTreeSet<_>, BTreeSet<_>) =
        wanted.iter().copied().partition(|inode| cx.index.get(*inode).is_some());
    let mut entries = if files.is_empty() {
        Entries::default()
    } else {
        let naming = entry_scan::naming(cx, met, files.iter().copied());
        scan(cx, tree, pool, naming, &files)
    };
    let above = ancestors(cx, tree, &dirs, &entries);
    let parents: BTreeSet<InodeNr> = above
        .iter()
        .filter_map(|dir| tree.parent(cx.index.get(*dir)?))
        .map(|rank| cx.index.inode(rank))
        .collect();
    entries.merge(scan(cx, tree, pool, |dir, _| parents.contains(&dir), &above));
    let above = |inode| {
        let is_top = |dir| cx.index.get(dir).is_some_and(|rank| tree.parent(rank).is_none());
        entries.0.get(&inode).map(|entry| Step {
            dir: entry.dir,
            name: &entry.name.0,
            top: is_top(entry.dir),
        })
    };
    join(wanted, above)
}

/// Finds the entries of some inodes in some directories; for a directory, only its first entry.
fn scan(
    cx: &DirCx<'_>,
    tree: &DirTree,
    pool: &Pool,
    wanted: impl Fn(InodeNr, Option<&DirRun>) -> bool,
    inodes: &BTreeSet<InodeNr>,
) -> Entries {
    entry_scan::run(cx, pool, wanted, |entries: &mut Entries, block, entry| {
        if !inodes.contains(&entry.inode) {
            return;
        }
        let counts = match cx.index.get(entry.inode) {
            Some(rank) => tree.parent(rank) == Some(block.rank),
            None => true,
        };
        if counts {
            let place = (block.logical, entry.offset);
            let name = Name::new(entry.name);
            entries.add(entry.inode, Entry { dir: block.dir, place, rank: block.rank, name });
        }
    })
}

/// All directories whose names the paths need: `dirs`, those that hold `entries`, and all above.
fn ancestors(
    cx: &DirCx<'_>,
    tree: &DirTree,
    dirs: &BTreeSet<InodeNr>,
    entries: &Entries,
) -> BTreeSet<InodeNr> {
    let holders = entries.0.values().map(|entry| entry.dir);
    let mut above = BTreeSet::new();
    for dir in dirs.iter().copied().chain(holders) {
        let mut next = cx.index.get(dir);
        while let Some(rank) = next {
            if !above.insert(cx.index.inode(rank)) {
                break;
            }
            next = tree.parent(rank);
        }
    }
    above
}

/// One step of a path upwards.
#[derive(Clone, Copy)]
struct Step<'e> {
    /// The directory that names the inode.
    dir: InodeNr,
    /// Its name there.
    name: &'e [u8],
    /// Whether nothing is above that directory.
    top: bool,
}

/// The paths of inodes of which `above` knows the last step. Each directory's path is made once.
fn join<'e>(
    wanted: &BTreeSet<InodeNr>,
    above: impl Fn(InodeNr) -> Option<Step<'e>>,
) -> BTreeMap<InodeNr, Vec<u8>> {
    let most_bytes = (ALL_BYTES / wanted.len().max(1)).clamp(FEWEST_BYTES, MOST_BYTES);
    let mut known = BTreeMap::from([(InodeNr::ROOT, Vec::new())]);
    for &inode in wanted {
        while let Err(start) = climb(inode, &above, most_bytes, &mut known) {
            // Directories that name each other in a circle: it begins with the lowest inode of it.
            if let Some(step) = above(start) {
                known.insert(start, below(&base(step.dir), step, most_bytes));
            }
        }
    }
    known.insert(InodeNr::ROOT, b"/".to_vec());
    known.retain(|inode, _| wanted.contains(inode));
    known
}

/// Makes the path of an inode and of all above it that are not known yet.
///
/// # Errors
/// The lowest inode of a circle that it met.
fn climb<'e>(
    inode: InodeNr,
    above: &impl Fn(InodeNr) -> Option<Step<'e>>,
    most_bytes: usize,
    known: &mut BTreeMap<InodeNr, Vec<u8>>,
) -> Result<(), InodeNr> {
    let mut steps: Vec<(InodeNr, Step<'e>)> = Vec::new();
    let mut seen = BTreeSet::new();
    let mut at = inode;
    while !known.contains_key(&at) {
        if !seen.insert(at) {
            let circle = steps.iter().rev().map(|(inode, _)| *inode);
            let start = circle.take_while(|other| *other != at).chain([at]).min();
            return Err(start.unwrap_or(at));
        }
        let Some(step) = above(at) else { break };
        steps.push((at, step));
        at = step.dir;
        if step.top {
            break;
        }
    }
    let mut path = known.get(&at).cloned().unwrap_or_else(|| base(at));
    for (inode, step) in steps.into_iter().rev() {
        path = below(&path, step, most_bytes);
        known.insert(inode, path.clone());
    }
    Ok(())
}

/// The beginning of a path that does not start at the root.
fn base(dir: InodeNr) -> Vec<u8> {
    format!("<{}>", dir.0).into_bytes()
}

/// The path of what a directory with this path names.
fn below(path: &[u8], step: Step<'_>, most_bytes: usize) -> Vec<u8> {
    let fits = path.len() + 1 + step.name.len() <= most_bytes;
    let dir = if fits { path.to_vec() } else { base(step.dir) };
    [&dir, &b"/"[..], step.name].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Paths of inodes, where each is named `d` in the one that stands with it.
    fn paths(steps: &[(u32, u32)], wanted: &[u32]) -> Vec<(u32, String)> {
        let dirs: BTreeMap<u32, u32> = steps.iter().copied().collect();
        let above = |inode: InodeNr| {
            let dir = *dirs.get(&inode.0)?;
            let top = dir != 2 && !dirs.contains_key(&dir);
            Some(Step { dir: InodeNr(dir), name: b"d", top })
        };
        let wanted = wanted.iter().copied().map(InodeNr).collect();
        let text = |path: Vec<u8>| String::from_utf8_lossy(&path).into_owned();
        join(&wanted, above).into_iter().map(|(inode, path)| (inode.0, text(path))).collect()
    }

    #[test]
    fn a_path_begins_at_the_root_or_with_an_inode() {
        let found = paths(&[(12, 2), (13, 12), (15, 14)], &[2, 13, 15, 16]);
        let of = |inode: u32, path: &str| (inode, path.to_owned());
        assert_eq!(found, [of(2, "/"), of(13, "/d/d"), of(15, "<14>/d")]);
    }

    #[test]
    fn a_circle_begins_with_its_lowest_inode_whoever_asks() {
        let circle = [(20, 22), (21, 20), (22, 21), (30, 21)];
        let all = paths(&circle, &[20, 21, 22, 30]);
        let texts: Vec<&str> = all.iter().map(|(_, path)| &**path).collect();
        assert_eq!(texts, ["<22>/d", "<22>/d/d", "<22>/d/d/d", "<22>/d/d/d"]);
        for (inode, path) in &all {
            assert_eq!(paths(&circle, &[*inode]), [(*inode, path.clone())]);
        }
        assert_eq!(paths(&[(40, 40)], &[40]), [(40, "<40>/d".to_owned())]);
    }

    /// Directories, each in the one before it.
    fn deep(levels: u32) -> (Vec<(u32, u32)>, Vec<u32>) {
        let steps: Vec<(u32, u32)> =
            (0..levels).map(|at| (12 + at, if at == 0 { 2 } else { 11 + at })).collect();
        let inodes = steps.iter().map(|(inode, _)| *inode).collect();
        (steps, inodes)
    }

    #[test]
    fn a_deep_tree_has_paths_of_bounded_length() {
        let (steps, wanted) = deep(10_000);
        let found = paths(&steps, &wanted);
        assert_eq!(found.len(), steps.len());
        assert!(found.iter().all(|(_, path)| path.len() <= MOST_BYTES));
        assert_eq!(found[2047].1, "/d".repeat(2048));
        assert_eq!(found[2048].1, "<2059>/d");
        assert_eq!(paths(&steps, &wanted[9_999..]), found[9_999..]);
    }

    #[test]
    fn all_paths_of_a_deep_tree_are_not_much() {
        let (steps, wanted) = deep(400_000);
        let found = paths(&steps, &wanted);
        assert!(found.iter().all(|(_, path)| path.len() <= FEWEST_BYTES));
        assert!(found.iter().map(|(_, path)| path.len()).sum::<usize>() < 2 * ALL_BYTES);
    }
}

#[cfg(test)]
mod laws {
    use super::*;

    // The first entry of each inode wins, whichever worker found it.
    floe_exec::accumulator_laws!(
        Entries,
        (1u32..5, 1u32..5, 0u32..9),
        |all: &mut Entries, (inode, dir, offset): (u32, u32, u32)| {
            let name = Name::new(&[b'a' + offset as u8]);
            all.add(
                InodeNr(inode),
                Entry { dir: InodeNr(dir), place: (0, offset), rank: dir, name },
            );
        },
        |all: Entries| all.0
    );
}
