//! Maps of files from extent nodes: of files without an inode, and of files whose tree is damaged.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;

use floe_format::ext::extent::{Extent, ExtentNode};
use floe_format::ext::inode::FileType;
use floe_format::{BlockNr, InodeNr};

use crate::evidence::{NodeFound, OwnerKey};
use crate::state::State;
use crate::summary::Provenance;

/// Logical blocks of a file, at most: extents number them with 32 bits.
pub(crate) const BLOCKS_OF_A_FILE: u64 = 1 << 32;

/// A map rebuilt from nodes.
#[derive(Debug, Default)]
struct Rebuilt {
    extents: Vec<Extent>,
    /// Logical blocks of nodes that are named and were not found, or between leaves that do not
    /// adjoin.
    lost: Vec<Range<u64>>,
}

/// A file without an inode before, for the directories.
#[derive(Clone, Debug)]
pub(crate) struct NewFile {
    pub(crate) inode: InodeNr,
    /// Its name if no directory has one.
    pub(crate) name: String,
}

impl State<'_> {
    /// Rebuilds the files of all seeds that have extent nodes. Returns those with new inode numbers.
    pub(crate) fn rebuild_files(&mut self) -> io::Result<Vec<NewFile>> {
        let directories: BTreeSet<OwnerKey> =
            self.evidence.directory_blocks.iter().map(|found| found.owner).collect();
        let nodes = std::mem::take(&mut self.evidence.nodes);
        let mut files = Vec::new();
        for group in self.groups_of(&nodes) {
            let Some(owner) = group.first().map(|node| node.owner) else { continue };
            // The map of a directory: its blocks say more.
            if directories.contains(&owner) {
                continue;
            }
            match self.owners.get(&owner).copied() {
                Some(inode) if self.is_live(inode) => self.mend(inode, &group)?,
                known => files.extend(self.new_file(known, owner, &group)?),
            }
        }
        Ok(files)
    }

    /// The nodes of each owner. Without checksums, the nodes that one interior node leads to.
    fn groups_of(&self, nodes: &[NodeFound]) -> Vec<Vec<NodeFound>> {
        if self.frame.seed().is_some() {
            return nodes
                .chunk_by(|one, other| one.owner == other.owner)
                .map(<[_]>::to_vec)
                .collect();
        }
        let by_block: BTreeMap<BlockNr, NodeFound> =
            nodes.iter().map(|node| (node.block, *node)).collect();
        let mut taken = BTreeSet::new();
        let mut groups = Vec::new();
        let mut tops: Vec<&NodeFound> = nodes.iter().collect();
        tops.sort_by_key(|node| (std::cmp::Reverse(node.depth), node.block));
        for top in tops {
            let (mut group, mut queue) = (Vec::new(), vec![*top]);
            while let Some(node) = queue.pop() {
                if !taken.insert(node.block) {
                    continue;
                }
                let below = self.children(&node).into_iter();
                let child = |(_, block): (u64, BlockNr)| by_block.get(&block).copied();
                queue.extend(below.filter_map(child).filter(|child| child.depth < node.depth));
                group.push(node);
            }
            if !group.is_empty() {
                groups.push(group);
            }
        }
        groups
    }

    /// The nodes that an interior node names, with their first logical blocks.
    fn children(&self, node: &NodeFound) -> Vec<(u64, BlockNr)> {
        if node.depth == 0 {
            return Vec::new();
        }
        let bytes = self.block_or_zeroes(node.block);
        let Some(found) = ExtentNode::new(&bytes).filter(ExtentNode::header_ok) else {
            return Vec::new();
        };
        let indexes = (0..found.header().entries).map(|at| found.index(at));
        indexes.map(|index| (index.logical.0, index.node)).collect()
    }

    /// Joins the leaves of one owner. Leaves that a node names come first, then those outside the
    /// journal; a leaf that overlaps an earlier one is an old copy.
    fn join(&self, nodes: &[NodeFound], root: &[(u64, BlockNr)]) -> Rebuilt {
        let interior = nodes.iter().filter(|node| node.depth > 0);
        let mut named: BTreeMap<BlockNr, u64> =
            interior.flat_map(|node| self.children(node)).map(|(at, node)| (node, at)).collect();
        named.extend(root.iter().map(|(at, node)| (*node, *at)));
        let mut leaves: Vec<&NodeFound> = nodes.iter().filter(|node| node.depth == 0).collect();
        leaves.sort_by_key(|leaf| {
            let is_named = named.contains_key(&leaf.block);
            (!is_named, self.is_in_journal(leaf.block), leaf.first, leaf.block)
        });
        // First and last logical block of each leaf that was taken, by the first.
        let mut taken: BTreeMap<u64, u64> = BTreeMap::new();
        let mut extents: Vec<Extent> = Vec::new();
        for leaf in leaves {
            let bytes = self.block_or_zeroes(leaf.block);
            let Some(node) = ExtentNode::new(&bytes).filter(ExtentNode::header_ok) else {
                continue;
            };
            let entries = || (0..node.header().entries).map(|at| node.extent(at));
            let (Some(first), Some(last)) = (entries().next(), entries().next_back()) else {
                continue;
            };
            let (first, end) = (first.logical.0, last.logical.0 + last.run.len_blocks);
            let before = taken.range(..end).next_back();
            if before.is_some_and(|(_, taken_end)| *taken_end > first) {
                continue;
            }
            taken.insert(first, end);
            extents.extend(entries());
        }
        extents.sort_by_key(|extent| extent.logical);
        let found: BTreeSet<BlockNr> = nodes.iter().map(|node| node.block).collect();
        let starts: BTreeSet<u64> = taken.keys().chain(named.values()).copied().collect();
        let end_of = |first: u64| starts.range(first + 1..).next().copied();
        let not_found = named.iter().filter(|(block, _)| !found.contains(block));
        let mut lost: Vec<Range<u64>> = not_found
            .map(|(_, first)| *first..end_of(*first).unwrap_or(BLOCKS_OF_A_FILE))
            .collect();
        if named.is_empty() {
            let ends = std::iter::once(0).chain(taken.values().copied());
            let gaps = ends.zip(taken.keys()).filter(|(end, first)| end < first);
            lost.extend(gaps.map(|(end, first)| end..*first));
        }
        Rebuilt { extents, lost }
    }

    /// Rebuilds the damaged map of a file in use, if that finds any block.
    fn mend(&mut self, number: InodeNr, nodes: &[NodeFound]) -> io::Result<()> {
        if !self.broken.contains(&number) {
            return Ok(());
        }
        let Some(mut inode) = self.space.inode(number) else { return Ok(()) };
        let root = ExtentNode::new(&inode.base.block).filter(ExtentNode::header_ok);
        let root = root.filter(|root| root.header().depth > 0);
        let indexes = root.map(|root| (0..root.header().entries).map(move |at| root.index(at)));
        let named: Vec<_> =
            indexes.into_iter().flatten().map(|index| (index.logical.0, index.node)).collect();
        let rebuilt = self.join(nodes, &named);
        let before = self.space.files().map_of(&inode);
        let blocks = |extents: &[Extent]| extents.iter().map(|one| one.run.len_blocks).sum::<u64>();
        if blocks(&rebuilt.extents) < blocks(&before.extents) {
            return Ok(());
        }
        if self.space.put_map(&mut inode, &rebuilt.extents)?.is_some() {
            self.summary.maps_rebuilt += 1;
            let is_partial = self.summary.lose(number, rebuilt.lost);
            self.summary.provenance.insert(number, Provenance::Map { is_partial });
        }
        Ok(())
    }

    /// Makes a file of the nodes of an owner without an inode.
    fn new_file(
        &mut self,
        known: Option<InodeNr>,
        owner: OwnerKey,
        nodes: &[NodeFound],
    ) -> io::Result<Option<NewFile>> {
        // Old copies in the journal alone may belong to a deleted file.
        if nodes.iter().all(|node| self.is_in_journal(node.block)) {
            return Ok(None);
        }
        let rebuilt = self.join(nodes, &[]);
        if !self.are_unclaimed(&rebuilt.extents) {
            return Ok(None);
        }
        let Some(number) = known.or_else(|| self.space.take_inode()) else { return Ok(None) };
        if !self.make_file(number, &rebuilt.extents)? {
            return Ok(None);
        }
        self.summary.files_numbered += u64::from(known.is_some());
        let is_partial = self.summary.lose(number, rebuilt.lost);
        let is_named = known.is_some();
        self.summary.provenance.insert(number, Provenance::Extents { is_partial, is_named });
        let name = known.map_or_else(|| owner.name(), |known| format!("#{}", known.0));
        Ok(Some(NewFile { inode: number, name }))
    }

    /// Whether there are extents, and no file and no directory in use has any of their blocks: without checksums, nothing else tells
    /// that a node is of the map of such a directory.
    pub(crate) fn are_unclaimed(&self, extents: &[Extent]) -> bool {
        let is_claimed = |extent: &Extent| {
            let (start, len) = (extent.run.start.0, extent.run.len_blocks);
            self.claimed.meets_run(start, len) || self.listed.meets_run(start, len)
        };
        !extents.is_empty() && !extents.iter().any(is_claimed)
    }

    /// Makes a regular file of extents that are not claimed; `false` if the inode or the map cannot be made.
    pub(crate) fn make_file(&mut self, number: InodeNr, extents: &[Extent]) -> io::Result<bool> {
        let Some(mut inode) = self.space.new_inode(number, FileType::Regular.mode(0o644), 0) else {
            return Ok(false);
        };
        inode.set_size_bytes(self.size_of(extents));
        if self.space.put_map(&mut inode, extents)?.is_none() {
            return Ok(false);
        }
        self.live.insert(u64::from(number.0));
        for extent in extents {
            self.claimed.insert_run(extent.run.start.0, extent.run.len_blocks);
        }
        self.summary.files_from_extents += 1;
        Ok(true)
    }

    /// The size of a file in bytes, up to the last byte of its last written block that is not zero,
    /// because Linux fills the block behind the end of a file with zeroes.
    pub(crate) fn size_of(&self, extents: &[Extent]) -> u64 {
        let Some(last) = extents.iter().rev().find(|extent| !extent.unwritten) else { return 0 };
        let size = u64::from(self.frame.geometry.block_size);
        let last_block = last.logical.0 + last.run.len_blocks - 1;
        let bytes = self.space.block(BlockNr(last.run.end().0 - 1)).unwrap_or_default();
        let used = match bytes.iter().rposition(|byte| *byte != 0) {
            Some(at) => at as u64 + 1,
            None => size,
        };
        last_block * size + used
    }
}
