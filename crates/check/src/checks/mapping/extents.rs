//! Check: the extent tree of an inode.
//! Reads: the root in the inode, and its nodes.  Keeps: claims, directory runs.
//! Emits: `Extent*`, `Extents*`, `DirectoryExtent*`, `DirectoryTooBig`, `InodeExtentHeaderCorrupt`.
//! Does not verify: overlap with other inodes (`checks/space/shared_blocks.rs`).

use floe_ext4::map::own_node::is_own_node;
use floe_format::ext::extent::{Extent, ExtentHeader, ExtentNode, Index, MAX_DEPTH};
use floe_format::ext::inode::InodeFlags;
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

use crate::checks::context::inode::InodeCx;
use crate::checks::mapping::mapper::{Claimed, Mapper, Mapping};
use crate::checks::mapping::shape::{self, Level};
use crate::problem::Problem;
use crate::scan::read_ahead;

/// A level deeper than any sane tree: nothing below is followed.
const DEEPEST: u16 = 8;

/// Logical blocks that a file can have: the last number of 32 bits stands for no block.
pub(crate) const LOGICAL_LIMIT: u64 = u32::MAX as u64;

/// Whether the bytes of `i_block` hold a usable extent root: a good header, and if entries, a depth
/// that can be.
pub fn root_ok(cx: &InodeCx<'_>) -> bool {
    ExtentNode::new(&cx.inode.base.block).is_some_and(|root| root.header_ok())
}

/// The state of a walk over one extent tree.
struct Walk<'m, 'a, 'e> {
    mapper: &'m mut Mapper<'a, 'e>,
    depth: u16,
    levels: [Level; DEEPEST as usize + 1],
    /// First logical block not yet passed in the order of the tree.
    floor: u64,
    /// Blocks of the file by its size.
    size_blocks: u64,
    checksum_seed: Option<u32>,
    /// Findings of a wrong depth, and of a wrong checksum: those that are about no entry.
    of_depth: usize,
    of_checksum: usize,
}

/// The range of logical blocks that a node may hold.
#[derive(Clone, Copy)]
struct Range {
    /// First one: what the parent's entry says.
    start: u64,
    /// Last one, or `None` without a limit.
    last: Option<u64>,
    /// Where there is none: the last block of the file by its size, in nodes below the last entry.
    size_last: Option<u64>,
}

/// Walks the extent tree of an inode whose EXTENTS_FL is set.
pub fn walk(mapper: &mut Mapper<'_, '_>) -> Mapping {
    let cx = mapper.cx;
    let geometry = &cx.volume.geometry;
    let root = match ExtentNode::new(&cx.inode.base.block) {
        Some(root) if root.header_ok() => root,
        _ => {
            let inode = cx.number;
            let reason = "magic, count or capacity of the root";
            mapper.report(Problem::InodeExtentHeaderCorrupt { inode, reason });
            mapper.mapping.lost = true;
            return mapper.mapping;
        }
    };
    let depth = root.header().depth;
    // Most roots are leaves: what only trees need is not computed for them.
    let limit = if depth > MAX_DEPTH { deepest_needed(geometry.block_size) } else { MAX_DEPTH };
    if depth > limit {
        let inode = cx.number;
        mapper.report(Problem::ExtentTreeTooDeep { inode, stored: depth, limit });
    }
    if depth > MAX_DEPTH || root.header().entries == 0 {
        judge_root(cx.number, root.header(), mapper);
    }
    let checksum_seed = cx.volume.features().metadata_csum().then(|| cx.checksum_seed());
    let size_blocks = cx.inode.size_bytes().div_ceil(u64::from(geometry.block_size));
    let mut walk = Walk {
        mapper,
        depth,
        levels: Default::default(),
        floor: 0,
        size_blocks,
        checksum_seed,
        of_depth: 0,
        of_checksum: 0,
    };
    walk.node(&root, None, 0, Range { start: 0, last: None, size_last: None });
    if depth > 0 && !walk.mapper.mapping.lost {
        let levels = &walk.levels[..=usize::from(depth.min(DEEPEST))];
        let remark = shape::judge(cx.number, levels, depth > limit.max(7), geometry.block_size);
        walk.mapper.evidence.found.0.extend(remark);
    }
    walk.mapper.mapping
}

/// Depths that e2fsck passes over: more than Linux reads, and some where nothing is below.
#[cold]
fn judge_root(inode: InodeNr, header: ExtentHeader, mapper: &mut Mapper<'_, '_>) {
    let stored = header.depth;
    if header.entries == 0 && stored > 0 {
        mapper.report(Problem::ExtentRootDepthBad { inode, stored });
    } else if stored > MAX_DEPTH {
        mapper.report(Problem::ExtentTreeBeyondLinux { inode, stored });
    }
}

/// The depth that suffices for any file: how many levels 2^32 blocks need when each node is as
/// empty as a split leaves it.
fn deepest_needed(block_size: u32) -> u16 {
    let per_node = u64::from((block_size - 12) / 12);
    let (mut depth, mut extents) = (0, 1u64 << 32);
    while extents > 4 {
        extents = extents.div_ceil(per_node);
        depth += 1;
    }
    depth.max(MAX_DEPTH)
}

impl Walk<'_, '_, '_> {
    /// Walks one node: the root, or the node in block `at`.
    fn node(&mut self, node: &ExtentNode<'_>, at: Option<BlockNr>, level: u16, range: Range) {
        let header = node.header();
        if let Some(slot) = self.levels.get_mut(usize::from(level)) {
            slot.entries += u64::from(header.entries);
            // A node that is not full counts one slot less, as room that splitting leaves.
            let spare = u64::from(at.is_some() && header.entries < header.max);
            slot.room += u64::from(header.max) - spare;
        }
        let place = at.unwrap_or_default();
        let mut floor = range.start;
        for index in 0..header.entries {
            if level == self.depth {
                let extent = node.extent(index);
                if at.is_some() && self.ends_file(node, index, (place, floor)) {
                    continue;
                }
                let range = self.with_size(node, index, range);
                if self.leaf_entry(&extent, place, floor, range) {
                    floor = extent.logical.0 + extent.run.len_blocks;
                }
            } else {
                let entry = node.index(index);
                let next = (index + 1 < header.entries).then(|| node.index(index + 1).logical.0);
                self.index_entry(entry, next, place, level, range);
            }
        }
    }

    /// Whether a leaf extent, or its part past the size, is not the file's, which the inode says; the part
    /// below is mapped.
    fn ends_file(
        &mut self,
        node: &ExtentNode<'_>,
        index: u16,
        (at, floor): (BlockNr, u64),
    ) -> bool {
        let extent = node.extent(index);
        if extent.logical.0 + extent.run.len_blocks <= self.size_blocks || self.mapper.is_dir() {
            return false;
        }
        let len_blocks = self.size_blocks.saturating_sub(extent.logical.0);
        let range = Range { start: floor, last: None, size_last: None };
        let below = Extent { run: BlockRun::new(extent.run.start, len_blocks), ..extent };
        // Space that was reserved past the end is no content, and may have been left uncounted.
        let holds_content = (index..node.header().entries).any(|at| !node.extent(at).unwritten);
        if !self.mapper.ends_at_size && !holds_content {
            return false;
        }
        if len_blocks > 0 && self.judge_leaf(&below, at, floor, range).is_some() {
            return false;
        }
        let was_known = self.mapper.ends_at_size;
        let own = self.mapper.clusters_of(below.logical.0, below.run);
        if !self.mapper.is_past_agreed_size(extent.logical.0, own) {
            return false;
        }
        if len_blocks > 0 && !was_known {
            self.map(&below);
        }
        true
    }

    /// The range of one leaf extent: the end of the file limits an extent of the last leaf that
    /// alone lies behind it. (e2fsck drops every written extent behind the end there. Where several
    /// lie behind it, in order, more speaks for a wrong size than for so many wrong extents.)
    fn with_size(&self, node: &ExtentNode<'_>, index: u16, range: Range) -> Range {
        let Some(limit) = range.size_last.filter(|_| range.last.is_none()) else { return range };
        let end = |at: u16| {
            let extent = node.extent(at);
            (extent.logical.0 + extent.run.len_blocks).saturating_sub(1)
        };
        if end(index) <= limit {
            return range;
        }
        let next_is_before = index + 1 < node.header().entries
            && node.extent(index + 1).logical < node.extent(index).logical;
        let is_last = index + 1 >= node.header().entries;
        let first_behind = index.checked_sub(1).is_none_or(|before| end(before) <= limit);
        let alone = next_is_before || (is_last && first_behind);
        Range { last: alone.then_some(limit), ..range }
    }

    /// Judges one leaf extent and maps it. `false`: a repair would remove it.
    fn leaf_entry(&mut self, extent: &Extent, node: BlockNr, floor: u64, range: Range) -> bool {
        let Some(problem) = self.judge_leaf(extent, node, floor, range) else {
            self.map(extent);
            return true;
        };
        self.mapper.report(problem);
        false
    }

    /// The first thing wrong with a leaf extent, in e2fsck's order.
    fn judge_leaf(
        &self,
        extent: &Extent,
        node: BlockNr,
        floor: u64,
        range: Range,
    ) -> Option<Problem> {
        let cx = &self.mapper.cx;
        let geometry = &cx.volume.geometry;
        let inode = cx.number;
        let Extent { logical, run, unwritten } = *extent;
        let (block, len) = (run.start, run.len_blocks as u32);
        let last = (logical.0 + run.len_blocks).saturating_sub(1);
        if block.0 == 0 || !geometry.contains(block) {
            return Some(Problem::ExtentStartOutOfRange { inode, node, logical, block });
        }
        if logical.0 < floor {
            return Some(Problem::ExtentsOutOfOrder { inode, node, logical, block });
        }
        if let Some(limit) = range.last.filter(|&limit| last > limit) {
            let verity = cx.inode.flags().contains(InodeFlags::VERITY);
            let past_end = (unwritten || verity) && last >= self.size_blocks;
            if !past_end {
                let limit = LogicalBlock(limit);
                return Some(Problem::ExtentPastParentRange { inode, node, logical, len, limit });
            }
        }
        if len == 0 {
            return Some(Problem::ExtentLengthZero { inode, node, logical, block });
        }
        if run.end().0 > geometry.blocks_count {
            return Some(Problem::ExtentEndOutOfRange { inode, node, logical, block, len });
        }
        if self.mapper.too_far_for_dir(last) {
            return Some(Problem::DirectoryTooBig { inode, logical, block });
        }
        // In a directory it is a gap, which is closed (`map`): its blocks hold names wherever they are.
        if logical.0 + run.len_blocks > LOGICAL_LIMIT && !self.mapper.is_dir() {
            return Some(Problem::ExtentPastFileLimit { inode, node, logical, block, len });
        }
        (logical.0 < self.floor).then_some(Problem::ExtentOverlapsPrevious {
            inode,
            node,
            logical,
            block,
            len,
        })
    }

    /// Maps a leaf extent that was found good.
    fn map(&mut self, extent: &Extent) {
        let Extent { logical, run, unwritten } = *extent;
        let inode = self.mapper.inode();
        if self.mapper.is_dir() {
            let expected = self.mapper.next_logical();
            if logical.0 > expected {
                let expected = LogicalBlock(expected);
                self.mapper.report(Problem::DirectoryExtentGap { inode, logical, expected });
            }
            if unwritten {
                let (block, len) = (run.start, run.len_blocks as u32);
                self.mapper.report(Problem::DirectoryExtentUnwritten {
                    inode,
                    logical,
                    block,
                    len,
                });
            }
        }
        self.mapper.map(logical.0, run, !unwritten);
        self.floor = logical.0 + run.len_blocks;
    }

    /// Judges one index entry and walks the node below. Where entries are not in order, the nodes
    /// themselves say which of them starts elsewhere (`extent-index-start-mismatch`).
    fn index_entry(
        &mut self,
        entry: Index,
        next: Option<u64>,
        node: BlockNr,
        level: u16,
        range: Range,
    ) {
        let inode = self.mapper.inode();
        let Index { logical, node: block } = entry;
        if logical.0 >= self.size_blocks
            && level > 0
            && !self.mapper.is_dir()
            && self.mapper.is_past_agreed_size(logical.0, 0)
        {
            return;
        }
        if block.0 == 0 || !self.mapper.cx.volume.geometry.contains(block) {
            self.mapper.report(Problem::ExtentStartOutOfRange { inode, node, logical, block });
            return;
        }
        if logical.0 < range.start {
            self.mapper.report(Problem::ExtentsOutOfOrder { inode, node, logical, block });
            return;
        }
        if let Some(limit) = range.last.filter(|&limit| logical.0 > limit) {
            let limit = LogicalBlock(limit);
            self.mapper.report(Problem::ExtentPastParentRange {
                inode,
                node,
                logical,
                len: 0,
                limit,
            });
            return;
        }
        let below = Range {
            start: logical.0,
            last: next.filter(|&next| next > logical.0).map(|next| next - 1).or(range.last),
            size_last: match next {
                Some(_) => None,
                None if level == 0 => {
                    self.size_blocks.checked_sub(1).filter(|_| self.size_blocks >= logical.0)
                }
                None => range.size_last,
            },
        };
        self.descend(block, node, level + 1, below);
    }

    /// Reads the node in `block` and walks it.
    fn descend(&mut self, block: BlockNr, parent: BlockNr, level: u16, range: Range) {
        let inode = self.mapper.inode();
        let logical = LogicalBlock(range.start);
        let claimed = self.mapper.claim_node(block, logical);
        if claimed == Claimed::Again || level > DEEPEST {
            let reason = "a node is met twice, or the tree is too deep";
            self.mapper.report(Problem::ExtentTreeWalkFailed { inode, node: block, reason });
            return;
        }
        let mut bytes = std::mem::take(self.buffer(level));
        if self.mapper.cx.volume.read_block(block, &mut bytes).is_err() {
            self.mapper.report(Problem::UnreadableBlock { inode, block });
            self.mapper.report(Problem::ExtentTreeWalkFailed {
                inode,
                node: block,
                reason: "read error",
            });
        } else {
            match ExtentNode::new(&bytes) {
                Some(_) if claimed == Claimed::OnMetadata && !self.is_own(&bytes, level) => {
                    let reason = "metadata of the file system lies there";
                    self.lost_node(block, parent, logical, reason);
                }
                Some(node) if node.header_ok() => {
                    self.good_node(&node, block, parent, level, range)
                }
                _ => self.lost_node(block, parent, logical, "magic, count or capacity"),
            }
        }
        *self.buffer(level) = bytes;
    }

    /// Whether the bytes of a block on metadata are a node of this tree all the same.
    #[cold]
    fn is_own(&self, bytes: &[u8], level: u16) -> bool {
        let volume = self.mapper.cx.volume;
        let depth = self.depth.saturating_sub(level);
        is_own_node(bytes, depth, self.checksum_seed, |run| volume.is_free_of_metadata(run))
    }

    /// Reports the entry of a node that is none.
    fn lost_node(
        &mut self,
        block: BlockNr,
        node: BlockNr,
        logical: LogicalBlock,
        reason: &'static str,
    ) {
        let inode = self.mapper.inode();
        let problem = Problem::ExtentNodeHeaderCorrupt { inode, node, logical, block, reason };
        self.mapper.report(problem);
    }

    /// Judges a node with a good header as a whole, then walks it.
    fn good_node(
        &mut self,
        node: &ExtentNode<'_>,
        block: BlockNr,
        parent: BlockNr,
        level: u16,
        range: Range,
    ) {
        let inode = self.mapper.inode();
        let logical = LogicalBlock(range.start);
        let before = self.mapper.evidence.found.0.len();
        let (of_depth, of_checksum) = (self.of_depth, self.of_checksum);
        let header = node.header();
        if header.entries == 0 {
            let reason = "an empty node";
            self.mapper.report(Problem::ExtentTreeWalkFailed { inode, node: block, reason });
        } else {
            let expected =
                if level == self.depth { node.extent(0).logical } else { node.index(0).logical };
            if expected != logical {
                self.mapper.report(Problem::ExtentIndexStartMismatch {
                    inode,
                    node: parent,
                    logical,
                    block,
                    expected,
                });
            }
            if level < self.depth {
                let below = (0..header.entries).map(|at| node.index(at).node);
                let room = &mut self.mapper.evidence.buffers.ahead;
                read_ahead::announce(self.mapper.cx.volume, below, room);
            }
            let range = Range { start: expected.0, ..range };
            self.node(node, Some(block), level, range);
        }
        let (of_depth, of_checksum) = (self.of_depth - of_depth, self.of_checksum - of_checksum);
        let found = self.mapper.evidence.found.0.len() - before - of_depth;
        self.judge_form(node, block, logical, level, (found == 0, found == of_checksum));
    }

    /// Judges what a node says of itself. `untouched`: nothing else is wrong with it and all below it;
    /// `entries_sound`: nothing but checksums is.
    fn judge_form(
        &mut self,
        node: &ExtentNode<'_>,
        block: BlockNr,
        logical: LogicalBlock,
        level: u16,
        (untouched, entries_sound): (bool, bool),
    ) {
        let inode = self.mapper.inode();
        if let Some(seed) = self.checksum_seed
            && untouched
        {
            let (stored, expected) = (node.stored_checksum(), node.compute_checksum(seed));
            if stored != Some(expected) {
                let stored = stored.unwrap_or_default();
                self.of_checksum += 1;
                self.mapper.report(Problem::ExtentBlockChecksumBad {
                    inode,
                    node: block,
                    logical,
                    stored,
                    expected,
                });
            }
        }
        // Sound entries down to the leaves prove the depth: as those of another level they would lead
        // out of the file system. If any is not, the root may be what is wrong, and a repair that goes
        // by that finding writes all nodes anew.
        let (stored, expected) = (node.header().depth, self.depth - level);
        if stored != expected && entries_sound {
            self.of_depth += 1;
            self.mapper.report(Problem::ExtentNodeDepthWrong {
                inode,
                node: block,
                logical,
                stored,
                expected,
            });
        }
    }

    /// The buffer for nodes of a level.
    fn buffer(&mut self, level: u16) -> &mut Vec<u8> {
        let nodes = &mut self.mapper.evidence.buffers.nodes;
        let level = usize::from(level);
        if nodes.len() <= level {
            nodes.resize_with(level + 1, Vec::new);
        }
        &mut nodes[level]
    }
}
