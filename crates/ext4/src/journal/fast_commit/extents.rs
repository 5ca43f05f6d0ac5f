//! The extents of one inode as a list, and the tree that holds them.

use std::collections::HashSet;

use floe_blockdev::ReadBlocks;
use floe_format::crc::crc32c;
use floe_format::ext::extent::{
    ENTRY_SIZE, Extent, ExtentHeader, ExtentNode, MAGIC, MAX_DEPTH, MAX_INIT_LEN, RawExtent,
    RawIndex,
};
use floe_format::ext::inode::{Inode, InodeFlags};
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

use super::editor::{Editor, Impossible};

/// Entries of the root in `i_block`.
const ROOT_ENTRIES: usize = 4;

/// All extents of an inode and the blocks of its tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExtentList {
    /// By logical block, not overlapping.
    pub(crate) extents: Vec<Extent>,
    /// Blocks of the tree below the root.
    pub(crate) nodes: Vec<BlockNr>,
}

impl ExtentList {
    /// Reads the extents of an inode. A root without magic is empty; an inode that does not use
    /// extents cannot be changed by fast commits.
    pub(crate) fn read<D: ReadBlocks>(
        editor: &mut Editor<'_, D>,
        inode: &Inode<'_>,
    ) -> Result<Self, Impossible> {
        if !inode.flags().contains(InodeFlags::EXTENTS) {
            return Err(Impossible);
        }
        let mut list = Self::default();
        let root = ExtentNode::new(&inode.base.block).ok_or(Impossible)?;
        if root.header().magic == MAGIC {
            list.read_node(editor, root, root.header().depth, &mut HashSet::new())?;
        }
        Ok(list)
    }

    /// Depth is at most [`MAX_DEPTH`] and falls with each call; no node is read twice.
    fn read_node<D: ReadBlocks>(
        &mut self,
        editor: &mut Editor<'_, D>,
        node: ExtentNode<'_>,
        depth: u16,
        seen: &mut HashSet<BlockNr>,
    ) -> Result<(), Impossible> {
        let header = node.header();
        if !node.header_ok() || header.depth != depth || depth > MAX_DEPTH {
            return Err(Impossible);
        }
        editor.charge(1 + u64::from(header.entries) / 16)?;
        for at in 0..header.entries {
            if depth == 0 {
                let extent = node.extent(at);
                let end = self.extents.last().map_or(0, end_of);
                if !editor.is_inside(extent.run) || extent.logical.0 < end {
                    return Err(Impossible);
                }
                self.extents.push(extent);
                continue;
            }
            let below = node.index(at).node;
            if !seen.insert(below) {
                return Err(Impossible);
            }
            self.nodes.push(below);
            let bytes = editor.read_block(below)?;
            self.read_node(editor, ExtentNode::new(&bytes).ok_or(Impossible)?, depth - 1, seen)?;
        }
        Ok(())
    }

    /// The blocks mapped by a range of logical blocks.
    pub(crate) fn runs_in(&self, start: u64, end: u64) -> Vec<BlockRun> {
        let inside = |extent: &Extent| {
            let (from, to) = (extent.logical.0.max(start), end_of(extent).min(end));
            (from < to).then(|| part(extent, from, to).run)
        };
        self.extents.iter().filter_map(inside).collect()
    }

    /// Takes a range of logical blocks out.
    pub(crate) fn remove(&mut self, start: u64, end: u64) {
        let mut kept = Vec::with_capacity(self.extents.len() + 1);
        for extent in &self.extents {
            let (from, to) = (extent.logical.0, end_of(extent));
            for (from, to) in [(from, to.min(start)), (from.max(end), to)] {
                if from < to {
                    kept.push(part(extent, from, to));
                }
            }
        }
        self.extents = kept;
    }

    /// Puts an extent over whatever is there, and joins neighbours that go on.
    pub(crate) fn insert(&mut self, extent: Extent) {
        self.remove(extent.logical.0, end_of(&extent));
        let at = self.extents.partition_point(|other| other.logical < extent.logical);
        self.extents.insert(at, extent);
        let mut joined: Vec<Extent> = Vec::with_capacity(self.extents.len());
        for extent in self.extents.drain(..) {
            match joined.last_mut() {
                Some(last) if goes_on(last, &extent) => {
                    last.run.len_blocks += extent.run.len_blocks;
                }
                _ => joined.push(extent),
            }
        }
        self.extents = joined;
    }

    /// Where a logical block lies.
    pub(crate) fn block(&self, logical: u64) -> Option<BlockNr> {
        let at = self.extents.partition_point(|extent| extent.logical.0 <= logical);
        let extent = self.extents.get(at.checked_sub(1)?)?;
        let offset = logical.checked_sub(extent.logical.0)?;
        (offset < extent.run.len_blocks).then(|| BlockNr(extent.run.start.0 + offset))
    }

    /// All blocks in use: data and tree.
    pub(crate) fn runs(&self) -> impl Iterator<Item = BlockRun> + '_ {
        let nodes = self.nodes.iter().map(|&node| BlockRun::new(node, 1));
        self.extents.iter().map(|extent| extent.run).chain(nodes)
    }

    /// Writes the tree: the root into `i_block` of `raw`, nodes into the blocks of the old tree
    /// first, then into newly allocated ones. Nodes no longer needed are freed.
    pub(crate) fn write<D: ReadBlocks>(
        &mut self,
        editor: &mut Editor<'_, D>,
        inode: InodeNr,
        raw: &mut [u8],
    ) -> Result<(), Impossible> {
        let generation = Inode::decode(raw).ok_or(Impossible)?.base.generation;
        let seed = editor.seed.of_inode(inode, generation);
        let mut spare = std::mem::take(&mut self.nodes);
        let mut entries: Vec<[u8; ENTRY_SIZE]> =
            self.extents.iter().map(encode_extent).collect::<Option<_>>().ok_or(Impossible)?;
        let mut starts: Vec<u32> = entries
            .iter()
            .map(|entry| u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]))
            .collect();
        let per_node = editor.geo.block_size as usize / ENTRY_SIZE - 1;
        let mut depth = 0;
        while entries.len() > ROOT_ENTRIES {
            let (mut above, mut above_starts) = (Vec::new(), Vec::new());
            for (chunk, starts) in entries.chunks(per_node).zip(starts.chunks(per_node)) {
                let block = match spare.pop() {
                    Some(block) => block,
                    None => editor.allocate(inode)?,
                };
                let bytes = encode_node(chunk, depth, editor.geo.block_size as usize, seed);
                editor.write_block(block, &bytes)?;
                self.nodes.push(block);
                above.push(encode_index(starts[0], block));
                above_starts.push(starts[0]);
            }
            (entries, starts) = (above, above_starts);
            depth += 1;
        }
        for block in spare {
            editor.set_blocks(BlockRun::new(block, 1), false)?;
        }
        let root = raw.get_mut(0x28..0x28 + 60).ok_or(Impossible)?;
        root.fill(0);
        fill_node(root, &entries, depth, ROOT_ENTRIES);
        Ok(())
    }
}

fn end_of(extent: &Extent) -> u64 {
    extent.logical.0 + extent.run.len_blocks
}

/// The part of an extent from logical block `from` up to `to`, which lie in it.
fn part(extent: &Extent, from: u64, to: u64) -> Extent {
    let start = BlockNr(extent.run.start.0 + (from - extent.logical.0));
    Extent { logical: LogicalBlock(from), run: BlockRun::new(start, to - from), ..*extent }
}

fn goes_on(last: &Extent, next: &Extent) -> bool {
    let most = if next.unwritten { MAX_INIT_LEN - 1 } else { MAX_INIT_LEN };
    end_of(last) == next.logical.0
        && last.run.end() == next.run.start
        && last.unwritten == next.unwritten
        && last.run.len_blocks + next.run.len_blocks <= u64::from(most)
}

fn encode_extent(extent: &Extent) -> Option<[u8; ENTRY_SIZE]> {
    let len = u16::try_from(extent.run.len_blocks).ok()?;
    let start = extent.run.start.0;
    let raw = RawExtent {
        block: u32::try_from(extent.logical.0).ok()?,
        len: if extent.unwritten { len.checked_add(MAX_INIT_LEN)? } else { len },
        start_hi: u16::try_from(start >> 32).ok()?,
        start_lo: (start & 0xffff_ffff) as u32,
    };
    let mut bytes = [0; ENTRY_SIZE];
    raw.encode_into(&mut bytes);
    Some(bytes)
}

fn encode_index(block: u32, node: BlockNr) -> [u8; ENTRY_SIZE] {
    let leaf_hi = (node.0 >> 32 & 0xffff) as u16;
    let raw = RawIndex { block, leaf_lo: (node.0 & 0xffff_ffff) as u32, leaf_hi, unused: 0 };
    let mut bytes = [0; ENTRY_SIZE];
    raw.encode_into(&mut bytes);
    bytes
}

fn encode_node(entries: &[[u8; ENTRY_SIZE]], depth: u16, size: usize, seed: u32) -> Vec<u8> {
    let mut bytes = vec![0; size];
    let max = size / ENTRY_SIZE - 1;
    fill_node(&mut bytes, entries, depth, max);
    let tail = ENTRY_SIZE * (max + 1);
    // With 1 KiB blocks 1024 - 85 * 12 = 4 bytes are left, and never less.
    let crc = crc32c(seed, &bytes[..tail]);
    if let Some(bytes) = bytes.get_mut(tail..tail + 4) {
        bytes.copy_from_slice(&crc.to_le_bytes());
    }
    bytes
}

fn fill_node(into: &mut [u8], entries: &[[u8; ENTRY_SIZE]], depth: u16, max: usize) {
    let header = ExtentHeader {
        magic: MAGIC,
        // At most what fits into a block of 64 KiB: 5460.
        entries: entries.len() as u16,
        max: max as u16,
        depth,
        generation: 0,
    };
    let mut chunks = into.chunks_exact_mut(ENTRY_SIZE);
    if let Some(bytes) = chunks.next().and_then(|bytes| bytes.first_chunk_mut()) {
        header.encode_into(bytes);
    }
    for (into, entry) in chunks.zip(entries) {
        into.copy_from_slice(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(logical: u64, start: u64, len: u64) -> Extent {
        let run = BlockRun::new(BlockNr(start), len);
        Extent { logical: LogicalBlock(logical), run, unwritten: false }
    }

    #[test]
    fn ranges_are_cut_split_and_joined() {
        let mut list = ExtentList { extents: vec![extent(0, 100, 10)], nodes: vec![] };
        list.remove(3, 5);
        assert_eq!(list.extents, [extent(0, 100, 3), extent(5, 105, 5)]);
        list.insert(extent(3, 103, 2));
        assert_eq!(list.extents, [extent(0, 100, 10)]);
        list.insert(extent(4, 500, 2));
        assert_eq!(list.extents, [extent(0, 100, 4), extent(4, 500, 2), extent(6, 106, 4)]);
        assert_eq!(
            list.runs_in(3, 7),
            [(103, 1), (500, 2), (106, 1)].map(|(start, len)| BlockRun::new(BlockNr(start), len))
        );
        assert_eq!(list.block(5), Some(BlockNr(501)));
        assert_eq!(list.block(10), None);
        list.remove(0, u64::MAX);
        assert!(list.extents.is_empty());
    }

    #[test]
    fn a_full_extent_is_not_joined() {
        let mut list = ExtentList { extents: vec![extent(0, 100, 32768)], nodes: vec![] };
        list.insert(extent(32768, 100 + 32768, 1));
        assert_eq!(list.extents.len(), 2);
    }
}
