//! Check: the hash index of a directory: each index block, and the tree they make.
//! Reads: index blocks; the names of leaves, as they pass by.
//! Keeps: the entries of index blocks, and the range of hashes of each leaf.
//! Emits: 0x010049-0x01004C, 0x01008D, 0x01008E, 0x020034-0x02003F, 0x020040, 0x020049, 0x02004A.
//! Does not verify: linear entries, checksums of leaves (`checks/directory/dirents.rs`).
//!
//! Damage that has the index dropped ends its judgement: how its blocks hang together is not asked.

use floe_format::InodeNr;
use floe_format::LogicalBlock;
use floe_format::ext::casefold;
use floe_format::ext::dirent::DirEntry;
use floe_format::ext::dirhash::dirhash;
use floe_format::ext::htree::{
    DxBlock, DxEntry, DxRootInfo, FLAG_INCOMPAT, HashVersion, ROOT_INFO_LENGTH, looks_like_node,
};

use crate::checks::context::directory::{DirCx, DirEvidence};
use crate::evidence::dirs::DirFlags;
use crate::evidence::htree::{Leaf, Node, Root};
use crate::problem::{Problem, Sink};
use crate::scan::directory_blocks::DirBlock;

/// Deepest index that is known at all, in levels below the root (with large_dir).
pub const MOST_LEVELS: u8 = 3;

/// The role of a block in the index of its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// There is no index.
    Linear,
    /// The root.
    Root,
    /// An interior node.
    Node,
    /// A leaf.
    Leaf,
}

/// Finds out what a block is.
#[inline]
pub fn begin(cx: &DirCx<'_>, block: &DirBlock<'_>) -> Role {
    if !block.flags.contains(DirFlags::INDEXED) || block.flags.contains(DirFlags::INLINE) {
        Role::Linear
    } else if block.logical == 0 {
        Role::Root
    } else if looks_like_node(block.bytes, cx.metadata_csum) {
        Role::Node
    } else {
        Role::Leaf
    }
}

impl Role {
    /// Whether the block is a linear one, with a checksum tail.
    #[inline]
    pub(crate) fn is_leaf(self) -> bool {
        matches!(self, Self::Linear | Self::Leaf)
    }

    /// Collector for the hashes of names; it stays empty if the block is not a leaf.
    #[inline]
    pub(crate) fn leaf_hashes(self, cx: &DirCx<'_>, block: &DirBlock<'_>) -> LeafHashes {
        let version = (self == Self::Leaf).then(|| cx.usual_hash(block.flags));
        LeafHashes { version, min: u32::MAX, max: 0 }
    }

    /// Keeps what the tree needs of the block, and judges an index block.
    pub fn finish(
        self,
        cx: &DirCx<'_>,
        block: &DirBlock<'_>,
        hashes: LeafHashes,
        evidence: &mut DirEvidence,
    ) {
        match self {
            Self::Linear => {}
            Self::Leaf => evidence.htree.leaves.push(Leaf {
                rank: block.rank,
                logical: block.logical,
                min: hashes.min,
                max: hashes.max,
            }),
            Self::Root => {
                if let Some(root) = check_root(cx, block, evidence) {
                    check_node(cx, block, DxBlock::root(block.bytes), Some(root), evidence);
                }
            }
            Self::Node => check_node(cx, block, DxBlock::node(block.bytes), None, evidence),
        }
    }
}

/// The range of hashes of the names of a leaf.
#[derive(Clone, Copy, Debug)]
pub struct LeafHashes {
    version: Option<HashVersion>,
    min: u32,
    max: u32,
}

impl LeafHashes {
    /// An empty range of a leaf whose names are hashed as `version` says.
    pub fn new(version: HashVersion) -> Self {
        Self { version: Some(version), min: u32::MAX, max: 0 }
    }

    /// Smallest and largest hash.
    pub fn range(&self) -> (u32, u32) {
        (self.min, self.max)
    }

    /// Adds the name of an entry.
    #[inline]
    pub fn add(&mut self, cx: &DirCx<'_>, block: &DirBlock<'_>, entry: &DirEntry<'_>) {
        if let Some(version) = self.version {
            self.add_hash(version, cx, block, entry);
        }
    }

    fn add_hash(
        &mut self,
        version: HashVersion,
        cx: &DirCx<'_>,
        block: &DirBlock<'_>,
        entry: &DirEntry<'_>,
    ) {
        let hash = if version == HashVersion::SipHash {
            // Nobody can compute it without the key; the entry carries it.
            entry.stored_hash().map(|(hash, _)| hash & !1)
        } else if block.flags.contains(DirFlags::CASEFOLD) {
            let folded = casefold::fold(entry.name);
            let name = folded.as_deref().unwrap_or(entry.name);
            dirhash(version, name, &cx.hash_seed).map(|hash| hash.hash)
        } else {
            dirhash(version, entry.name, &cx.hash_seed).map(|hash| hash.hash)
        };
        if let Some(hash) = hash {
            self.min = self.min.min(hash);
            self.max = self.max.max(hash);
        }
    }
}

/// Judges what the root says of itself; `None` if the index is to be dropped for it.
fn check_root(cx: &DirCx<'_>, block: &DirBlock<'_>, evidence: &mut DirEvidence) -> Option<Root> {
    let inode = block.dir;
    let judged = DxBlock::root_info(block.bytes)
        .ok_or(Problem::HtreeRootInvalid { inode, reason: "the block is too short" })
        .and_then(|info| judge_root(cx, block, &info));
    match judged {
        Ok(root) => Some(root),
        Err(problem) => {
            evidence.found.push(problem);
            evidence.htree.dropped.push(inode);
            None
        }
    }
}

fn judge_root(cx: &DirCx<'_>, block: &DirBlock<'_>, info: &DxRootInfo) -> Result<Root, Problem> {
    let inode = block.dir;
    if info.reserved_zero != 0 {
        return Err(Problem::HtreeRootInvalid { inode, reason: "its reserved word is not zero" });
    }
    if info.info_length < ROOT_INFO_LENGTH {
        return Err(Problem::HtreeRootInvalid { inode, reason: "its information is too short" });
    }
    let Some(version) = HashVersion::of_root(info.hash_version, cx.unsigned_hash) else {
        return Err(Problem::HtreeHashVersionUnknown { inode, version: info.hash_version });
    };
    match (block.hashed(), version == HashVersion::SipHash) {
        (true, false) => {
            return Err(Problem::HtreeSiphashRequired { inode, version: info.hash_version });
        }
        (false, true) => return Err(Problem::HtreeSiphashNotAllowed { inode }),
        _ => {}
    }
    if info.unused_flags & FLAG_INCOMPAT != 0 {
        return Err(Problem::HtreeIncompatFlag { inode, flags: info.unused_flags });
    }
    let levels = info.indirect_levels;
    let allowed = if cx.large_dir { MOST_LEVELS } else { MOST_LEVELS - 1 };
    if levels > MOST_LEVELS || (levels > allowed && !cx.needs_three_levels(block.rank)) {
        return Err(Problem::HtreeTooDeep { inode, depth: levels });
    }
    if levels >= allowed {
        return Err(Problem::HtreeRootBad { dir: inode, reason: "too many levels" });
    }
    Ok(Root { version, levels })
}

/// Judges an index block and keeps its entries.
fn check_node(
    cx: &DirCx<'_>,
    block: &DirBlock<'_>,
    index: Option<DxBlock<'_>>,
    root: Option<Root>,
    evidence: &mut DirEvidence,
) {
    let Some(index) = index else {
        let reason = "its entries lie outside the block";
        evidence.found.push(Problem::HtreeRootBad { dir: block.dir, reason });
        evidence.htree.dropped.push(block.dir);
        return;
    };
    if let Some(problem) = judge_node(cx, block, &index) {
        evidence.found.push(problem);
        evidence.htree.dropped.push(block.dir);
    }
    // A directory has 2^32 blocks at most, of which 28 bits are used here.
    let entry = |entry: DxEntry| (entry.hash & !1, entry.block.0 as u32);
    let entries: Box<[_]> = index.entries().map(entry).collect();
    evidence.htree.nodes.push(Node { rank: block.rank, logical: block.logical, root, entries });
}

/// The problem of an index block, judged by the block alone.
fn judge_node(cx: &DirCx<'_>, block: &DirBlock<'_>, index: &DxBlock<'_>) -> Option<Problem> {
    let (dir, logical) = (block.dir, block.logical());
    let (limit, count) = (index.limit(), index.count());
    let expected = index.expected_limit(cx.metadata_csum);
    if limit != expected {
        return Some(Problem::HtreeLimitWrong { dir, logical, stored: limit, expected });
    }
    if count > expected {
        return Some(Problem::HtreeCountTooLarge { dir, logical, stored: count, limit: expected });
    }
    let mut before = 0;
    for (at, entry) in index.entries().enumerate() {
        let hash = entry.hash & !1;
        if hash < before {
            // At most `count`, which has 16 bits.
            return Some(Problem::HtreeHashesUnordered { dir, logical, entry: at as u16 });
        }
        before = hash;
    }
    check_index_checksum(cx, block, index)
}

fn check_index_checksum(
    cx: &DirCx<'_>,
    block: &DirBlock<'_>,
    index: &DxBlock<'_>,
) -> Option<Problem> {
    if !cx.metadata_csum {
        return None;
    }
    let seed = cx.volume.seed.of_inode(block.dir, block.generation);
    // As libext2fs, look for the checksum where the block's own entries say that it is.
    let good = DxBlock::detect(block.bytes).is_some_and(|(_, index)| index.checksum_ok(seed));
    if good {
        return None;
    }
    let stored = index.tail().map_or(0, |tail| tail.checksum);
    let expected = index.compute_checksum(seed).unwrap_or(0);
    let dir = block.dir;
    Some(if block.logical == 0 {
        Problem::HtreeRootChecksumBad { dir, stored, expected }
    } else {
        Problem::HtreeNodeChecksumBad { dir, logical: block.logical(), stored, expected }
    })
}

/// One block of an indexed directory, in its tree.
#[derive(Clone, Copy, Debug)]
struct Placed {
    logical: u32,
    is_leaf: bool,
    min: u32,
    max: u32,
    references: u32,
    parent: u32,
    is_first: bool,
    is_last: bool,
    /// Where its range begins and ends, as its parent says.
    begins: u32,
    ends: u32,
}

/// The index of one directory, ready to be judged.
pub struct Tree<'a> {
    /// The directory.
    pub dir: InodeNr,
    /// Number of its blocks, holes included.
    pub blocks: u32,
    /// Its index blocks, in order; the first is the root.
    pub nodes: &'a [Node],
    /// Its leaves, in order.
    pub leaves: &'a [Leaf],
    /// Whether the index is dropped anyway, so that only its numbers are judged.
    pub dropped: bool,
}

impl Tree<'_> {
    /// Judges how the blocks of the index hang together.
    pub fn check(&self, found: &mut impl Sink) {
        let Some(root) = self.nodes.first().and_then(|node| node.root) else { return };
        let before = self.check_numbers(found);
        if before || self.dropped {
            return;
        }
        let mut placed = self.place();
        self.carry_up(&mut placed);
        let mut bad = false;
        for block in placed.iter().filter(|block| block.logical != 0 || block.references > 1) {
            bad |= self.judge(block, u32::from(root.levels) + 1, &placed, found);
        }
        if bad {
            found.push(Problem::HtreeInconsistent { dir: self.dir });
        }
    }

    /// Reports entries that lead out of the directory; whether there is one.
    fn check_numbers(&self, found: &mut impl Sink) -> bool {
        let mut any = false;
        for node in self.nodes {
            let beyond = node.entries.iter().find(|(_, block)| *block >= self.blocks);
            if let Some(&(_, value)) = beyond {
                let logical = LogicalBlock(u64::from(node.logical));
                found.push(Problem::HtreeBlockNumberBad { dir: self.dir, logical, value });
                any = true;
            }
        }
        any
    }

    /// All blocks by number, with what the index blocks say of them.
    fn place(&self) -> Vec<Placed> {
        let new = |logical, is_leaf, min, max| Placed {
            logical,
            is_leaf,
            min,
            max,
            references: u32::from(logical == 0),
            parent: 0,
            is_first: logical == 0,
            is_last: logical == 0,
            begins: 0,
            ends: 0,
        };
        let leaves = self.leaves.iter().map(|leaf| new(leaf.logical, true, leaf.min, leaf.max));
        let nodes = self.nodes.iter().map(|node| {
            let max = node.entries.iter().map(|(hash, _)| *hash).max().unwrap_or(0);
            new(node.logical, false, if node.entries.is_empty() { u32::MAX } else { 0 }, max)
        });
        let mut placed: Vec<_> = leaves.chain(nodes).collect();
        placed.sort_unstable_by_key(|block| block.logical);
        for node in self.nodes {
            for (at, &(hash, block)) in node.entries.iter().enumerate() {
                let slot = placed.binary_search_by_key(&block, |block| block.logical);
                let Some(slot) = slot.ok().and_then(|slot| placed.get_mut(slot)) else { continue };
                slot.references += 1;
                if slot.references == 1 {
                    slot.parent = node.logical;
                }
                slot.begins = hash;
                slot.is_first |= at == 0;
                let next = node.entries.get(at + 1);
                slot.is_last |= next.is_none();
                slot.ends = next.map_or(0xffff_fffe, |(hash, _)| *hash);
            }
        }
        placed
    }

    /// The range of a node's names is that of its first and last child, not of its entries.
    fn carry_up(&self, placed: &mut [Placed]) {
        let mut order: Vec<_> = (0..placed.len())
            .filter(|&at| placed[at].logical != 0 && placed[at].references > 0)
            .map(|at| (std::cmp::Reverse(depth(&placed[at], placed)), at))
            .collect();
        order.sort_unstable();
        for (_, at) in order {
            let child = placed[at];
            let parent = placed.binary_search_by_key(&child.parent, |block| block.logical);
            let Some(parent) = parent.ok().and_then(|at| placed.get_mut(at)) else { continue };
            if child.is_first {
                parent.min = child.min;
            }
            if child.is_last {
                parent.max = child.max;
            }
        }
    }

    fn judge(
        &self,
        block: &Placed,
        depth_expected: u32,
        placed: &[Placed],
        found: &mut impl Sink,
    ) -> bool {
        let (dir, logical) = (self.dir, LogicalBlock(u64::from(block.logical)));
        match block.references {
            0 => {
                found.push(Problem::HtreeBlockUnreferenced { dir, logical });
                return true;
            }
            1 => {}
            _ => {
                found.push(Problem::HtreeBlockReferencedTwice { dir, logical });
                return true;
            }
        }
        let mut bad = false;
        if !block.is_first && block.min < block.begins {
            let (at, limit) = (block.min, block.begins);
            found.push(Problem::HtreeHashBelowRange { dir, logical, found: at, limit });
            bad = true;
        }
        if !block.is_last && block.max > block.ends {
            let (at, limit) = (block.max, block.ends);
            found.push(Problem::HtreeHashAboveRange { dir, logical, found: at, limit });
            bad = true;
        }
        let depth = if block.is_leaf { depth(block, placed) } else { depth_expected };
        if depth != depth_expected {
            // A few levels; what goes round in circles is cut there.
            let (depth, expected) = (depth as u16, depth_expected as u16);
            found.push(Problem::HtreeLeafDepthWrong { dir, logical, depth, expected });
            bad = true;
        }
        bad
    }
}

/// Steps from a block up to the root; cut where no index can be that deep.
fn depth(block: &Placed, placed: &[Placed]) -> u32 {
    let mut at = *block;
    for steps in 0..=u32::from(MOST_LEVELS) + 2 {
        if at.logical == 0 {
            return steps;
        }
        let parent = placed.binary_search_by_key(&at.parent, |block| block.logical);
        match parent.ok().and_then(|parent| placed.get(parent)) {
            Some(parent) => at = *parent,
            None => return steps + 1,
        }
    }
    u32::from(MOST_LEVELS) + 3
}
