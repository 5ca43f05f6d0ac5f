//! Looks up one place in a file's map, without following the rest of it.

use std::fmt;

use floe_format::ext::extent::{Extent, ExtentNode, Index, MAX_DEPTH};
use floe_format::ext::indirect::{self, IndirectForm};
use floe_format::ext::inode::InodeFlags;
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

use super::mapping::ROOT_BYTES;
use crate::alloc::Allocate;
use crate::tx::{Block, Refusal, Tx, verify};

const DAMAGED: Refusal = Refusal::Damaged("the map of a file");

/// Refuses nodes that cannot be an inode's own.
#[derive(Clone, Copy)]
pub struct NodeJudge<'m> {
    /// Knows which blocks inodes may have.
    pub space: &'m dyn Allocate,
    /// The inode.
    pub inode: InodeNr,
}

impl fmt::Debug for NodeJudge<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeJudge").field("inode", &self.inode).finish_non_exhaustive()
    }
}

/// A map of a file, of either kind, for lookups.
#[derive(Clone, Copy, Debug)]
pub struct MapLook<'m> {
    /// `i_block`.
    pub root: &'m [u8; ROOT_BYTES],
    /// `i_flags`, which tell the kind.
    pub flags: InodeFlags,
    /// The form of indirect blocks.
    pub form: IndirectForm,
    /// The seed of the checksums of extent nodes, with metadata_csum.
    pub inode_seed: Option<u32>,
    /// Judges nodes of an extent tree before they are read.
    pub judge: Option<NodeJudge<'m>>,
}

/// Verifies the checksum of an extent node in a block, in a transaction that verifies.
pub(super) fn verify_node(
    tx: &dyn Tx,
    bytes: &[u8],
    inode_seed: Option<u32>,
) -> Result<(), Refusal> {
    let Some(seed) = inode_seed else { return Ok(()) };
    let fits = |node: ExtentNode<'_>| node.stored_checksum() == Some(node.compute_checksum(seed));
    verify(tx, "a node of an extent tree", || ExtentNode::new(bytes).is_some_and(fits))
}

impl MapLook<'_> {
    /// The first extent that ends behind a logical block: the one that maps it, or the next. In a
    /// block map, runs end at the end of an indirect block.
    ///
    /// # Errors
    /// [`Refusal::Damaged`], or an error of reading a node.
    pub fn next(&self, tx: &mut dyn Tx, from: LogicalBlock) -> Result<Option<Extent>, Refusal> {
        if !self.flags.contains(InodeFlags::EXTENTS) {
            return self.next_pointers(tx, from);
        }
        let depth = ExtentNode::new(self.root).ok_or(DAMAGED)?.header().depth;
        if depth > MAX_DEPTH {
            return Err(DAMAGED);
        }
        self.next_below(tx, self.root, depth, from)
    }

    /// Reads a node of an extent tree.
    fn node(&self, tx: &mut dyn Tx, node: BlockNr) -> Result<Block, Refusal> {
        if let Some(judge) = self.judge {
            judge.space.judge_file(judge.inode, BlockRun::new(node, 1))?;
        }
        let bytes = tx.block(node)?;
        verify_node(tx, &bytes, self.inode_seed)?;
        Ok(bytes)
    }

    /// The extent that maps a logical block.
    ///
    /// # Errors
    /// Those of [`MapLook::next`].
    pub fn find(&self, tx: &mut dyn Tx, at: LogicalBlock) -> Result<Option<Extent>, Refusal> {
        Ok(self.next(tx, at)?.filter(|extent| extent.logical <= at))
    }

    /// The last extent of the file.
    ///
    /// # Errors
    /// Those of [`MapLook::next`].
    pub fn last(&self, tx: &mut dyn Tx) -> Result<Option<Extent>, Refusal> {
        if !self.flags.contains(InodeFlags::EXTENTS) {
            return self.last_pointers(tx);
        }
        let mut bytes = Block::new(self.root.to_vec());
        let mut depth = ExtentNode::new(&bytes).ok_or(DAMAGED)?.header().depth;
        if depth > MAX_DEPTH {
            return Err(DAMAGED);
        }
        loop {
            let node = judged(&bytes, depth)?;
            let Some(last) = node.header().entries.checked_sub(1) else { return Ok(None) };
            if depth == 0 {
                return Ok(Some(node.extent(last)));
            }
            depth -= 1;
            bytes = self.node(tx, node.index(last).node)?;
        }
    }

    fn next_below(
        &self,
        tx: &mut dyn Tx,
        bytes: &[u8],
        depth: u16,
        from: LogicalBlock,
    ) -> Result<Option<Extent>, Refusal> {
        let node = judged(bytes, depth)?;
        let count = node.header().entries;
        if depth == 0 {
            let ends_behind = |extent: &Extent| extent.logical.0 + extent.run.len_blocks > from.0;
            // Entries are sorted: the last one that starts at or before the place, or the one behind
            // it.
            let first = split(count, |at| node.extent(at).logical <= from).saturating_sub(1);
            return Ok((first..count).map(|at| node.extent(at)).find(ends_behind));
        }
        let indexes: Vec<Index> = (0..count).map(|at| node.index(at)).collect();
        let first = indexes.partition_point(|index| index.logical <= from).saturating_sub(1);
        // The first one's subtree may end before the place; then the next one starts behind it.
        for index in indexes.iter().skip(first).take(2) {
            let below = self.node(tx, index.node)?;
            if let Some(found) = self.next_below(tx, &below, depth - 1, from)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn next_pointers(
        &self,
        tx: &mut dyn Tx,
        from: LogicalBlock,
    ) -> Result<Option<Extent>, Refusal> {
        let words: Vec<u32> = indirect::pointers(self.root).collect();
        for (index, &word) in words.iter().enumerate() {
            let Some((base, level)) = self.form.root_slot(index) else { break };
            let end = base.0 + self.form.span_blocks(level);
            if word == 0 || end <= from.0 {
                continue;
            }
            if level == 0 {
                let behind = &words[index..indirect::DIRECT as usize];
                return Ok(Some(run_of(behind, base)));
            }
            let found = self.next_in(tx, BlockNr(u64::from(word)), level, base, from)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn next_in(
        &self,
        tx: &mut dyn Tx,
        node: BlockNr,
        level: u32,
        base: LogicalBlock,
        from: LogicalBlock,
    ) -> Result<Option<Extent>, Refusal> {
        let bytes = tx.block(node)?;
        let words: Vec<u32> = indirect::pointers(self.form.body(&bytes)).collect();
        let span = self.form.span_blocks(level - 1);
        // Less than the pointers of a block.
        let first = (from.0.saturating_sub(base.0) / span) as usize;
        for (index, &word) in words.iter().enumerate().skip(first) {
            if word == 0 {
                continue;
            }
            let below = LogicalBlock(base.0 + index as u64 * span);
            if level == 1 {
                return Ok(Some(run_of(&words[index..], below)));
            }
            let found = self.next_in(tx, BlockNr(u64::from(word)), level - 1, below, from)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn last_pointers(&self, tx: &mut dyn Tx) -> Result<Option<Extent>, Refusal> {
        for (index, word) in
            indirect::pointers(self.root).enumerate().collect::<Vec<_>>().iter().rev()
        {
            let Some((base, level)) = self.form.root_slot(*index) else {
                continue;
            };
            if *word == 0 {
                continue;
            }
            let found = self.last_in(tx, BlockNr(u64::from(*word)), level, base)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The last mapped block below a pointer.
    fn last_in(
        &self,
        tx: &mut dyn Tx,
        node: BlockNr,
        level: u32,
        base: LogicalBlock,
    ) -> Result<Option<Extent>, Refusal> {
        if level == 0 {
            let run = BlockRun::new(node, 1);
            return Ok(Some(Extent { logical: base, run, unwritten: false }));
        }
        let bytes = tx.block(node)?;
        let words: Vec<u32> = indirect::pointers(self.form.body(&bytes)).collect();
        let span = self.form.span_blocks(level - 1);
        for (index, &word) in words.iter().enumerate().rev().filter(|(_, word)| **word != 0) {
            let below = LogicalBlock(base.0 + index as u64 * span);
            let found = self.last_in(tx, BlockNr(u64::from(word)), level - 1, below)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

/// The run of contiguous blocks that consecutive pointers name; the first is not 0.
fn run_of(words: &[u32], logical: LogicalBlock) -> Extent {
    let first = words.first().copied().unwrap_or(0);
    let len = (0u32..).zip(words).take_while(|(at, word)| first.checked_add(*at) == Some(**word));
    let run = BlockRun::new(BlockNr(u64::from(first)), len.count() as u64);
    Extent { logical, run, unwritten: false }
}

/// A node with a valid header and this depth.
fn judged(bytes: &[u8], depth: u16) -> Result<ExtentNode<'_>, Refusal> {
    let node = ExtentNode::new(bytes).filter(|node| node.header_ok()).ok_or(DAMAGED)?;
    if node.header().depth == depth { Ok(node) } else { Err(DAMAGED) }
}

/// The first of `count` indexes at which `before` is no longer true.
fn split(count: u16, before: impl Fn(u16) -> bool) -> u16 {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle) { low = middle + 1 } else { high = middle }
    }
    low
}
