//! Paths of inodes, for reports: not a check. Used only when there is something to report.

use std::collections::{BTreeMap, BTreeSet};

use floe_exec::{Accumulator, Pool};
use floe_format::InodeNr;

use super::connectivity::DirTree;
use super::entry_scan;
use crate::dir_pass::DirCx;
use crate::evidence::dirs::DirRun;
use crate::evidence::ledger::Ledger;
use crate::problem::Name;

/// Directories of a path, at most; what is deeper is cut in front.
const MOST_LEVELS: usize = 4096;

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
        other.0.into_iter().for_each(|(inode, entry)| self.add(inode, entry));
    }
}

/// A path of each of the inodes that has one, as bytes: of several, the one in the directory with
/// the lowest inode. A path that does not begin at the root starts with the inode of its first
/// directory, as `<320>/name`. `met` says which directory blocks are worth a look.
pub fn find(
    cx: &DirCx<'_>,
    tree: &DirTree,
    met: &Ledger,
    wanted: &BTreeSet<InodeNr>,
    pool: &Pool,
) -> BTreeMap<InodeNr, Vec<u8>> {
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
    wanted.iter().filter_map(|&inode| Some((inode, path(cx, tree, inode, &entries)?))).collect()
}

/// Finds the entries of some inodes in some directories. Of a directory only the one that counts.
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

fn path(cx: &DirCx<'_>, tree: &DirTree, inode: InodeNr, entries: &Entries) -> Option<Vec<u8>> {
    if inode == InodeNr::ROOT {
        return Some(b"/".to_vec());
    }
    let mut names = Vec::new();
    let mut at = inode;
    let mut seen = BTreeSet::new();
    while at != InodeNr::ROOT && names.len() < MOST_LEVELS && seen.insert(at) {
        let Some(entry) = entries.0.get(&at) else { break };
        names.push(&entry.name.0);
        at = entry.dir;
        if cx.index.get(at).is_some_and(|rank| tree.parent(rank).is_none()) {
            break;
        }
    }
    if names.is_empty() {
        return None;
    }
    let mut path =
        if at == InodeNr::ROOT { Vec::new() } else { format!("<{}>", at.0).into_bytes() };
    for name in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    Some(path)
}

#[cfg(test)]
mod laws {
    use super::*;

    // Of the entries of an inode the first one stays, whoever found it.
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
