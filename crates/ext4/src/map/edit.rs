//! Edits extent trees in place: inserts and removes extents, splits, merges and frees nodes, and
//! updates the checksum of every node that changes.

use std::ops::Range;

use floe_format::ext::extent::{
    self, ENTRY_SIZE, Extent, ExtentHeader, ExtentNode, Index, MAGIC, MAX_DEPTH, MAX_INIT_LEN,
};
use floe_format::{BlockNr, BlockRun, LogicalBlock};

use super::extent_tree::{NodeForm, merged};
use super::mapping::ROOT_BYTES;
use crate::alloc::Allocate;
use crate::tx::{Refusal, Tx};

/// Capacity of the root, in entries.
const ROOT_ENTRIES: usize = ROOT_BYTES / ENTRY_SIZE - 1;

/// Edits the extent tree of one inode, whose root is `i_block`. It validates headers, depths and
/// the order of entries of each node on its path, but not that nodes are named once: for a tree
/// that may be hostile, check that first ([`super::runs::BlockMap`]).
pub struct TreeEditor<'t> {
    /// Where nodes are read and changed.
    pub tx: &'t mut dyn Tx,
    /// Allocates and frees nodes.
    pub space: &'t mut dyn Allocate,
    /// The form of nodes.
    pub form: NodeForm,
    /// The preferred place of new nodes.
    pub goal: BlockNr,
    /// Nodes read so far: a measure of work.
    pub steps: u64,
}

/// Entries of a node, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entries {
    Leaf(Vec<Extent>),
    Interior(Vec<Index>),
}

/// A change of a tree.
enum Change<'c> {
    Insert(Extent),
    /// Unmaps a range of logical blocks, and collects what was mapped there.
    Remove(Range<u64>, &'c mut Vec<BlockRun>),
}

impl Change<'_> {
    /// The logical blocks that it affects.
    fn range(&self) -> Range<u64> {
        match self {
            Self::Insert(extent) => extent.logical.0..end_of(extent),
            Self::Remove(range, _) => range.clone(),
        }
    }
}

impl TreeEditor<'_> {
    /// `i_block` of a file without extents.
    pub const EMPTY: [u8; ROOT_BYTES] = {
        let mut root = [0; ROOT_BYTES];
        [root[0], root[1]] = MAGIC.to_le_bytes();
        // `eh_max`.
        root[4] = ROOT_ENTRIES as u8;
        root
    };

    /// Maps an extent where nothing is mapped, and merges it with adjacent extents.
    ///
    /// # Errors
    /// [`Refusal::TooMuch`] if a block is mapped there, or numbers do not fit the tree;
    /// [`Refusal::Damaged`], [`Refusal::Full`], or an error of reading or changing a node. After an
    /// error the tree may be half changed, so the caller must drop the transaction.
    pub fn insert(&mut self, root: &mut [u8; ROOT_BYTES], extent: Extent) -> Result<(), Refusal> {
        let pieces = merged(&[extent])
            .map_err(|_| Refusal::TooMuch("the extent is beyond the reach of the tree"))?;
        pieces.into_iter().try_for_each(|piece| self.change(root, &mut Change::Insert(piece)))
    }

    /// Turns a range of logical blocks into a hole. Returns the blocks that were mapped there,
    /// which the caller must free. Nodes that are no longer needed are freed here.
    ///
    /// # Errors
    /// Those of [`TreeEditor::insert`].
    pub fn remove(
        &mut self,
        root: &mut [u8; ROOT_BYTES],
        range: Range<u64>,
    ) -> Result<Vec<BlockRun>, Refusal> {
        let mut freed = Vec::new();
        if !range.is_empty() {
            self.change(root, &mut Change::Remove(range, &mut freed))?;
        }
        Ok(freed)
    }

    /// The extent that maps a logical block.
    ///
    /// # Errors
    /// [`Refusal::Damaged`], or an error of reading a node.
    pub fn find(
        &mut self,
        root: &[u8; ROOT_BYTES],
        logical: LogicalBlock,
    ) -> Result<Option<Extent>, Refusal> {
        let (mut entries, mut depth) = parse_root(root)?;
        loop {
            match entries {
                Entries::Leaf(extents) => {
                    let at = extents.partition_point(|extent| extent.logical <= logical);
                    let found = at.checked_sub(1).and_then(|at| extents.get(at)).copied();
                    return Ok(found.filter(|extent| logical.0 < end_of(extent)));
                }
                Entries::Interior(indexes) => {
                    let at = indexes.partition_point(|index| index.logical <= logical);
                    let Some(index) = at.checked_sub(1).and_then(|at| indexes.get(at)) else {
                        return Ok(None);
                    };
                    depth -= 1;
                    entries = self.load(index.node, depth)?;
                }
            }
        }
    }

    /// Updates the checksums of all nodes after a change of the inode's generation, which they
    /// include.
    ///
    /// # Errors
    /// Those of [`TreeEditor::find`].
    pub(crate) fn reseal(&mut self, root: &[u8; ROOT_BYTES]) -> Result<(), Refusal> {
        let (entries, depth) = parse_root(root)?;
        self.reseal_below(&entries, depth)
    }

    fn reseal_below(&mut self, entries: &Entries, depth: u16) -> Result<(), Refusal> {
        let Entries::Interior(indexes) = entries else { return Ok(()) };
        for index in indexes {
            let below = self.load(index.node, depth - 1)?;
            self.store(index.node, depth - 1, &below)?;
            self.reseal_below(&below, depth - 1)?;
        }
        Ok(())
    }

    fn change(
        &mut self,
        root: &mut [u8; ROOT_BYTES],
        change: &mut Change<'_>,
    ) -> Result<(), Refusal> {
        let (mut entries, mut depth) = parse_root(root)?;
        self.apply(&mut entries, depth, change)?;
        if entries.len() > ROOT_ENTRIES {
            if depth >= MAX_DEPTH {
                return Err(Refusal::TooMuch("the extent tree would be too deep"));
            }
            let node = self.space.block(self.tx, self.goal)?;
            self.tx.zeroed(node)?;
            self.store(node, depth, &entries)?;
            entries = Entries::Interior(vec![Index { logical: entries.first(), node }]);
            depth += 1;
        }
        if let Change::Remove(..) = change {
            self.pull_up(&mut entries, &mut depth)?;
        }
        *root = [0; ROOT_BYTES];
        encode(root, depth, &entries, 0)
    }

    /// Moves the entries of the root's only node into the root if they fit.
    fn pull_up(&mut self, entries: &mut Entries, depth: &mut u16) -> Result<(), Refusal> {
        while let Entries::Interior(indexes) = entries {
            match indexes[..] {
                [] => (*entries, *depth) = (Entries::Leaf(Vec::new()), 0),
                [index] => {
                    let below = self.load(index.node, *depth - 1)?;
                    if below.len() > ROOT_ENTRIES {
                        return Ok(());
                    }
                    self.free(index.node)?;
                    (*entries, *depth) = (below, *depth - 1);
                }
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    /// Changes the entries of a node, and the nodes below. Afterwards it may have one entry more
    /// than fits.
    fn apply(
        &mut self,
        entries: &mut Entries,
        depth: u16,
        change: &mut Change<'_>,
    ) -> Result<(), Refusal> {
        let indexes = match entries {
            Entries::Leaf(extents) => return change_leaf(extents, change),
            Entries::Interior(indexes) => indexes,
        };
        let range = change.range();
        // The nodes whose logical blocks overlap the range; an inserted extent goes to exactly one
        // of them.
        let first = indexes.partition_point(|index| index.logical.0 <= range.start);
        let first = first.saturating_sub(1);
        let end = match change {
            Change::Insert(_) => (first + 1).min(indexes.len()),
            Change::Remove(..) => indexes.partition_point(|index| index.logical.0 < range.end),
        };
        let touched = indexes.get(first..end).unwrap_or(&[]).to_vec();
        let mut instead = Vec::with_capacity(touched.len() + 1);
        for index in &touched {
            self.change_below(index.node, depth - 1, change, &mut instead)?;
        }
        let behind = first + instead.len();
        indexes.splice(first..first + touched.len(), instead);
        if let Change::Remove(..) = change {
            self.join(indexes, depth, first.saturating_sub(1)..behind)?;
        }
        Ok(())
    }

    /// Changes a child node; `instead` receives the entries that replace it: none, itself, or two
    /// halves.
    fn change_below(
        &mut self,
        node: BlockNr,
        depth: u16,
        change: &mut Change<'_>,
        instead: &mut Vec<Index>,
    ) -> Result<(), Refusal> {
        let mut entries = self.load(node, depth)?;
        let last = entries.last();
        self.apply(&mut entries, depth, change)?;
        if entries.len() == 0 {
            return self.free(node);
        }
        if entries.len() > self.capacity() {
            // Appending to a file should leave full nodes behind.
            let at = if entries.last() > last { entries.len() - 1 } else { entries.len() / 2 };
            let half = entries.split_off(at);
            self.store(node, depth, &entries)?;
            instead.push(Index { logical: entries.first(), node });
            let other = self.space.block(self.tx, self.goal)?;
            self.tx.zeroed(other)?;
            self.store(other, depth, &half)?;
            instead.push(Index { logical: half.first(), node: other });
            return Ok(());
        }
        self.store(node, depth, &entries)?;
        instead.push(Index { logical: entries.first(), node });
        Ok(())
    }

    /// Merges adjacent child nodes that fit into one node.
    fn join(
        &mut self,
        indexes: &mut Vec<Index>,
        depth: u16,
        places: Range<usize>,
    ) -> Result<(), Refusal> {
        let (mut at, mut end) = (places.start, places.end);
        while at < end && at + 1 < indexes.len() {
            let (left, right) = (indexes[at].node, indexes[at + 1].node);
            let mut entries = self.load(left, depth - 1)?;
            let other = self.load(right, depth - 1)?;
            if entries.len() + other.len() > self.capacity() {
                at += 1;
                continue;
            }
            entries.append(other);
            self.store(left, depth - 1, &entries)?;
            self.free(right)?;
            indexes.remove(at + 1);
            end = end.saturating_sub(1);
        }
        Ok(())
    }

    /// Capacity of a node in a block, in entries.
    const fn capacity(&self) -> usize {
        self.form.block_size as usize / ENTRY_SIZE - 1
    }

    fn load(&mut self, node: BlockNr, depth: u16) -> Result<Entries, Refusal> {
        self.steps += 1;
        self.space.judge_node(node)?;
        let bytes = self.tx.block(node)?;
        super::seek::verify_node(self.tx, &bytes, self.form.inode_seed)?;
        parse(&bytes, depth)
    }

    fn store(&mut self, node: BlockNr, depth: u16, entries: &Entries) -> Result<(), Refusal> {
        let bytes = self.tx.block_mut(node)?;
        encode(bytes, depth, entries, self.form.owner_hint)?;
        if let Some(seed) = self.form.inode_seed {
            let room = extent::write_checksum(seed, bytes);
            room.ok_or(Refusal::Damaged("a node of an extent tree"))?;
        }
        Ok(())
    }

    fn free(&mut self, node: BlockNr) -> Result<(), Refusal> {
        self.space.release(self.tx, BlockRun::new(node, 1))
    }
}

impl Entries {
    fn len(&self) -> usize {
        match self {
            Self::Leaf(extents) => extents.len(),
            Self::Interior(indexes) => indexes.len(),
        }
    }

    /// The first logical block of the first entry.
    fn first(&self) -> LogicalBlock {
        let first = match self {
            Self::Leaf(extents) => extents.first().map(|extent| extent.logical),
            Self::Interior(indexes) => indexes.first().map(|index| index.logical),
        };
        first.unwrap_or_default()
    }

    /// The first logical block of the last entry.
    fn last(&self) -> LogicalBlock {
        let last = match self {
            Self::Leaf(extents) => extents.last().map(|extent| extent.logical),
            Self::Interior(indexes) => indexes.last().map(|index| index.logical),
        };
        last.unwrap_or_default()
    }

    fn split_off(&mut self, at: usize) -> Self {
        match self {
            Self::Leaf(extents) => Self::Leaf(extents.split_off(at)),
            Self::Interior(indexes) => Self::Interior(indexes.split_off(at)),
        }
    }

    /// Appends the entries of a node of the same depth.
    fn append(&mut self, other: Self) {
        match (self, other) {
            (Self::Leaf(extents), Self::Leaf(more)) => extents.extend(more),
            (Self::Interior(indexes), Self::Interior(more)) => indexes.extend(more),
            // Nodes of the same depth are of the same kind.
            (Self::Leaf(_), Self::Interior(_)) | (Self::Interior(_), Self::Leaf(_)) => {}
        }
    }
}

fn end_of(extent: &Extent) -> u64 {
    extent.logical.0.saturating_add(extent.run.len_blocks)
}

/// The part of an extent from logical block `from` up to `to`, which must lie in it.
fn part(extent: &Extent, from: u64, to: u64) -> Extent {
    let start = BlockNr(extent.run.start.0 + (from - extent.logical.0));
    Extent { logical: LogicalBlock(from), run: BlockRun::new(start, to - from), ..*extent }
}

/// Whether an extent continues another one, and one entry can hold both.
fn goes_on(last: &Extent, next: &Extent) -> bool {
    let most = if next.unwritten { MAX_INIT_LEN - 1 } else { MAX_INIT_LEN };
    end_of(last) == next.logical.0
        && last.run.end() == next.run.start
        && last.unwritten == next.unwritten
        && last.run.len_blocks + next.run.len_blocks <= u64::from(most)
}

fn change_leaf(extents: &mut Vec<Extent>, change: &mut Change<'_>) -> Result<(), Refusal> {
    match change {
        Change::Insert(extent) => insert_in_leaf(extents, *extent),
        Change::Remove(range, freed) => {
            let mut kept = Vec::with_capacity(extents.len() + 1);
            for extent in &*extents {
                let (from, to) = (extent.logical.0, end_of(extent));
                let (start, end) = (range.start.clamp(from, to), range.end.clamp(from, to));
                if start >= end {
                    kept.push(*extent);
                    continue;
                }
                freed.push(part(extent, start, end).run);
                for (from, to) in [(from, start), (end, to)] {
                    if from < to {
                        kept.push(part(extent, from, to));
                    }
                }
            }
            *extents = kept;
            Ok(())
        }
    }
}

fn insert_in_leaf(extents: &mut Vec<Extent>, extent: Extent) -> Result<(), Refusal> {
    let at = extents.partition_point(|other| other.logical < extent.logical);
    let before = at.checked_sub(1).and_then(|before| extents.get(before));
    let overlaps = before.is_some_and(|before| end_of(before) > extent.logical.0)
        || extents.get(at).is_some_and(|next| end_of(&extent) > next.logical.0);
    if overlaps {
        return Err(Refusal::TooMuch("a block is already mapped there"));
    }
    extents.insert(at, extent);
    // The later pair first, so that indexes stay valid.
    for first in [Some(at), at.checked_sub(1)].into_iter().flatten() {
        if let [last, next, ..] = extents[first..]
            && goes_on(&last, &next)
        {
            extents[first].run.len_blocks += next.run.len_blocks;
            extents.remove(first + 1);
        }
    }
    Ok(())
}

fn parse_root(root: &[u8; ROOT_BYTES]) -> Result<(Entries, u16), Refusal> {
    let depth = ExtentNode::new(root).map_or(0, |node| node.header().depth);
    if depth > MAX_DEPTH {
        return Err(Refusal::Damaged("the root of an extent tree"));
    }
    Ok((parse(root, depth)?, depth))
}

/// The entries of a node of this depth, if they are in order and do not overlap.
fn parse(bytes: &[u8], depth: u16) -> Result<Entries, Refusal> {
    let damaged = Refusal::Damaged("a node of an extent tree");
    let node = ExtentNode::new(bytes).filter(|node| node.header_ok());
    let Some(node) = node.filter(|node| node.header().depth == depth) else {
        return Err(damaged);
    };
    let count = node.header().entries;
    if depth > 0 {
        let indexes: Vec<Index> = (0..count).map(|at| node.index(at)).collect();
        let sorted = indexes.is_sorted_by(|one, next| one.logical < next.logical);
        return if sorted { Ok(Entries::Interior(indexes)) } else { Err(damaged) };
    }
    let extents: Vec<Extent> = (0..count).map(|at| node.extent(at)).collect();
    let sorted = extents.is_sorted_by(|one, next| end_of(one) <= next.logical.0)
        && extents.iter().all(|extent| extent.run.len_blocks > 0);
    if sorted { Ok(Entries::Leaf(extents)) } else { Err(damaged) }
}

/// Writes header and entries over a node, and zeroes the rest. The caller ensures that they fit.
fn encode(bytes: &mut [u8], depth: u16, entries: &Entries, owner_hint: u32) -> Result<(), Refusal> {
    let max = bytes.len() / ENTRY_SIZE - 1;
    let beyond = Refusal::TooMuch("the extent is beyond the reach of the tree");
    if entries.len() > max {
        return Err(beyond);
    }
    bytes.fill(0);
    // At most 5,460, which fit a block of 64 KiB.
    let (count, max) = (entries.len() as u16, max as u16);
    let header = ExtentHeader { magic: MAGIC, entries: count, max, depth, generation: owner_hint };
    let (slots, _) = bytes.as_chunks_mut::<ENTRY_SIZE>();
    let mut slots = slots.iter_mut();
    if let Some(first) = slots.next() {
        header.encode_into(first);
    }
    match entries {
        Entries::Leaf(extents) => {
            for (slot, extent) in slots.zip(extents) {
                let Some(raw) = extent.to_raw() else { return Err(beyond) };
                raw.encode_into(slot);
            }
        }
        Entries::Interior(indexes) => {
            for (slot, index) in slots.zip(indexes) {
                let Some(raw) = index.to_raw() else { return Err(beyond) };
                raw.encode_into(slot);
            }
        }
    }
    Ok(())
}
