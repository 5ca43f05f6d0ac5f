//! The paths of inodes, for reports.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use floe_format::InodeNr;
use floe_format::ext::inode::FileType;

use super::Reader;

/// Finds out the paths of `wanted` inodes by walking the tree from the root, until all are found or
/// about `limit_blocks` directory blocks were read. An inode with several names gets the one that
/// is found first; one without gets none.
///
/// The walk is breadth-first and visits each directory once, so loops do not hold it.
pub fn paths(
    reader: &Reader<'_>,
    wanted: &BTreeSet<InodeNr>,
    limit_blocks: u64,
) -> BTreeMap<InodeNr, Vec<u8>> {
    let mut left: BTreeSet<InodeNr> = wanted.clone();
    let mut found = BTreeMap::new();
    if left.remove(&InodeNr::ROOT) {
        found.insert(InodeNr::ROOT, b"/".to_vec());
    }
    // Parent and name of each directory seen: a path is put together only where it is wanted.
    let mut tree: HashMap<InodeNr, (InodeNr, Vec<u8>)> = HashMap::new();
    let mut seen = HashSet::from([InodeNr::ROOT]);
    let mut queue = VecDeque::from([InodeNr::ROOT]);
    let mut budget = limit_blocks;
    while let Some(dir) = queue.pop_front() {
        if left.is_empty() || budget == 0 {
            break;
        }
        let mut spent = HashSet::new();
        for entry in reader.children(dir, budget) {
            spent.insert(entry.logical);
            if left.remove(&entry.inode) {
                found.insert(entry.inode, path_of(&tree, dir, &entry.name));
            }
            // Without types in the entries every one may be a directory.
            let may_be_dir = entry.file_type == FileType::Directory as u8 || entry.file_type == 0;
            if may_be_dir && seen.insert(entry.inode) {
                tree.insert(entry.inode, (dir, entry.name));
                queue.push_back(entry.inode);
            }
        }
        budget = budget.saturating_sub(spent.len().max(1) as u64);
    }
    found
}

fn path_of(tree: &HashMap<InodeNr, (InodeNr, Vec<u8>)>, dir: InodeNr, name: &[u8]) -> Vec<u8> {
    let mut names = vec![name];
    let mut at = dir;
    // Each directory entered the tree after its parent, so this ends at the root.
    while let Some((parent, name)) = tree.get(&at) {
        names.push(name);
        at = *parent;
    }
    let mut path = Vec::new();
    for name in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    path
}
