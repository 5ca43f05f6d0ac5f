//! Builds an extent tree: the root in `i_block` and, if four entries are too few, nodes in blocks.
//!
//! Adjacent extents are merged, nodes are packed full, and children are complete before their
//! parent is written, so the tree is as shallow as possible.

use floe_format::crc::Seed;
use floe_format::ext::extent::{
    self, ENTRY_SIZE, Extent, ExtentHeader, Index, MAGIC, MAX_INIT_LEN, RawExtent, RawIndex,
};
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

use super::mapping::{BuildError, Built, ROOT_BYTES, block_bytes};

/// Capacity of the root, in entries.
const ROOT_ENTRIES: usize = ROOT_BYTES / ENTRY_SIZE - 1;
/// Blocks of an extent, at most.
const MOST_WRITTEN: u64 = MAX_INIT_LEN as u64;
/// Blocks of an unwritten extent, at most.
const MOST_UNWRITTEN: u64 = MAX_INIT_LEN as u64 - 1;
/// The end of the logical blocks (`EXT_MAX_BLOCKS`).
const LOGICAL_END: u64 = u32::MAX as u64;
/// The end of the physical blocks: a tree stores 48 bits.
const PHYSICAL_END: u64 = 1 << 48;

/// The form of the nodes of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeForm {
    /// Bytes of a block.
    pub block_size: u32,
    /// [`Seed::of_inode`] of the file's number and generation, if nodes carry checksums
    /// (metadata_csum).
    pub inode_seed: Option<u32>,
    /// The file's inode, which nodes in blocks carry as a hint (`eh_generation`); 0 where they carry none, as everywhere
    /// but in native file systems.
    pub owner_hint: u32,
}

impl NodeForm {
    /// The form of the nodes of `inode`; `seed` is set with metadata_csum.
    pub fn of(block_size: u32, seed: Option<Seed>, inode: InodeNr, generation: u32) -> Self {
        let inode_seed = seed.map(|seed| seed.of_inode(inode, generation));
        Self { block_size, inode_seed, owner_hint: 0 }
    }

    /// The same with the owner as a hint in the nodes of a native file system.
    #[must_use]
    pub const fn hinting(self, native: bool, inode: InodeNr) -> Self {
        Self { owner_hint: if native { inode.0 } else { 0 }, ..self }
    }
}

/// The fewest extents for the same mapping: adjacent ones merged, long ones cut at 32768 blocks
/// (32767 if unwritten), empty ones dropped.
///
/// # Errors
/// Extents overlap or are not in order, or a number does not fit the tree.
pub fn merged(extents: &[Extent]) -> Result<Vec<Extent>, BuildError> {
    let mut whole: Vec<Extent> = Vec::with_capacity(extents.len());
    for extent in extents.iter().filter(|extent| extent.run.len_blocks > 0) {
        check_reach(extent)?;
        let Some(last) = whole.last_mut() else {
            whole.push(*extent);
            continue;
        };
        let last_end = last.logical.0 + last.run.len_blocks;
        if extent.logical.0 < last_end {
            return Err(BuildError::NotSorted { logical: extent.logical });
        }
        let goes_on = extent.logical.0 == last_end
            && extent.run.start == last.run.end()
            && extent.unwritten == last.unwritten;
        if goes_on {
            last.run.len_blocks += extent.run.len_blocks;
        } else {
            whole.push(*extent);
        }
    }
    Ok(whole.iter().flat_map(pieces).collect())
}

fn check_reach(extent: &Extent) -> Result<(), BuildError> {
    let end = |start: u64| start.checked_add(extent.run.len_blocks);
    if end(extent.logical.0).is_none_or(|end| end > LOGICAL_END) {
        let logical = LogicalBlock(extent.logical.0.max(LOGICAL_END));
        return Err(BuildError::LogicalOutOfReach { logical });
    }
    if end(extent.run.start.0).is_none_or(|end| end > PHYSICAL_END) {
        let block = BlockNr(extent.run.start.0.max(PHYSICAL_END));
        return Err(BuildError::BlockOutOfReach { block });
    }
    Ok(())
}

/// `whole` in pieces that fit one entry.
fn pieces(whole: &Extent) -> impl Iterator<Item = Extent> + use<> {
    let (whole, most) = (*whole, if whole.unwritten { MOST_UNWRITTEN } else { MOST_WRITTEN });
    (0..whole.run.len_blocks.div_ceil(most)).map(move |nr| {
        let done = nr * most;
        let start = BlockNr(whole.run.start.0 + done);
        let len_blocks = most.min(whole.run.len_blocks - done);
        Extent {
            logical: LogicalBlock(whole.logical.0 + done),
            run: BlockRun::new(start, len_blocks),
            ..whole
        }
    })
}

/// Capacity of a node in a block, in entries.
fn node_entries(block_size: u32) -> Result<usize, BuildError> {
    Ok(block_bytes(block_size)? / ENTRY_SIZE - 1)
}

/// The number of nodes of each level, leaves first; empty if the root holds all `entries`.
fn levels(mut entries: usize, per_node: usize) -> Vec<usize> {
    let mut levels = Vec::new();
    while entries > ROOT_ENTRIES {
        entries = entries.div_ceil(per_node);
        levels.push(entries);
    }
    levels
}

/// Blocks that the tree of these extents needs, besides the inode.
///
/// # Errors
/// Those of [`merged`], and [`BuildError::BlockSize`].
pub fn nodes_needed(extents: &[Extent], block_size: u32) -> Result<usize, BuildError> {
    let per_node = node_entries(block_size)?;
    Ok(levels(merged(extents)?.len(), per_node).iter().sum())
}

/// Builds the tree of `extents`, which must be sorted and must not overlap. Its nodes use the first
/// of `nodes`, those near the root first.
///
/// # Errors
/// Those of [`nodes_needed`], [`BuildError::TooFewNodes`], and [`BuildError::BlockOutOfReach`] for
/// a node.
pub fn build(extents: &[Extent], form: NodeForm, nodes: &[BlockNr]) -> Result<Built, BuildError> {
    let per_node = node_entries(form.block_size)?;
    let extents = merged(extents)?;
    let levels = levels(extents.len(), per_node);
    let needed = levels.iter().sum();
    let nodes =
        nodes.get(..needed).ok_or(BuildError::TooFewNodes { needed, offered: nodes.len() })?;

    let mut entries = extents.iter().map(Entry::of_extent).collect::<Result<Vec<_>, _>>()?;
    let mut made = Vec::with_capacity(levels.len());
    // Leaves are built first, but lie behind their parents in `nodes`.
    let mut rest = nodes;
    for (depth, &count) in (0u16..).zip(&levels) {
        let (above, places) = rest.split_at(rest.len().saturating_sub(count));
        rest = above;
        let children = || entries.chunks(per_node).zip(places);
        made.push(
            children()
                .map(|(children, &place)| (place, node_block(children, depth, per_node, form)))
                .collect::<Vec<_>>(),
        );
        entries = children()
            .map(|(children, &place)| Entry::of_node(children, place))
            .collect::<Result<Vec<_>, _>>()?;
    }
    let mut root = [0; ROOT_BYTES];
    let depth = u16::try_from(levels.len()).unwrap_or(u16::MAX);
    write_node(&mut root, &entries, depth, ROOT_ENTRIES, 0);
    Ok(Built { root, blocks: made.into_iter().rev().flatten().collect() })
}

/// An entry of a node as stored, with its first logical block.
#[derive(Clone, Copy)]
struct Entry {
    logical: LogicalBlock,
    bytes: [u8; ENTRY_SIZE],
}

impl Entry {
    /// An entry of a leaf.
    fn of_extent(extent: &Extent) -> Result<Self, BuildError> {
        let raw = extent.to_raw().ok_or(BuildError::BlockOutOfReach { block: extent.run.start })?;
        let mut bytes = [0; RawExtent::SIZE];
        raw.encode_into(&mut bytes);
        Ok(Self { logical: extent.logical, bytes })
    }

    /// The entry of an interior node for the node of `children` at `place`.
    fn of_node(children: &[Self], place: BlockNr) -> Result<Self, BuildError> {
        let logical = children.first().map_or(LogicalBlock(0), |first| first.logical);
        let raw = Index { logical, node: place }
            .to_raw()
            .ok_or(BuildError::BlockOutOfReach { block: place })?;
        let mut bytes = [0; RawIndex::SIZE];
        raw.encode_into(&mut bytes);
        Ok(Self { logical, bytes })
    }
}

/// Writes the header and the entries of a node. `into` must have space for `max` entries.
fn write_node(into: &mut [u8], entries: &[Entry], depth: u16, max: usize, owner_hint: u32) {
    let count = |entries: usize| u16::try_from(entries).unwrap_or(u16::MAX);
    let (entries_in_use, max) = (count(entries.len()), count(max));
    let header =
        ExtentHeader { magic: MAGIC, entries: entries_in_use, max, depth, generation: owner_hint };
    let (slots, _) = into.as_chunks_mut::<ENTRY_SIZE>();
    let mut slots = slots.iter_mut();
    if let Some(first) = slots.next() {
        header.encode_into(first);
    }
    for (slot, entry) in slots.zip(entries) {
        *slot = entry.bytes;
    }
}

/// A node in a block, with its checksum.
fn node_block(entries: &[Entry], depth: u16, max: usize, form: NodeForm) -> Vec<u8> {
    let mut block = vec![0; form.block_size as usize];
    write_node(&mut block, entries, depth, max, form.owner_hint);
    if let Some(inode_seed) = form.inode_seed {
        // There is space for it, because no block size is a multiple of an entry's 12 bytes.
        let written = extent::write_checksum(inode_seed, &mut block);
        debug_assert!(written.is_some(), "a tail fits behind {max} entries");
    }
    block
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use floe_format::ext::extent::{ExtentNode, MAX_DEPTH};
    use proptest::prelude::*;

    use super::*;

    fn extent(logical: u64, start: u64, len: u64, unwritten: bool) -> Extent {
        let run = BlockRun::new(BlockNr(start), len);
        Extent { logical: LogicalBlock(logical), run, unwritten }
    }

    /// Reads a tree back, and verifies each node: header, order, checksum, fill.
    fn read(built: &Built, form: NodeForm) -> Vec<Extent> {
        let blocks: BTreeMap<_, _> = built.blocks.iter().cloned().collect();
        assert_eq!(blocks.len(), built.blocks.len(), "every node has a block of its own");
        let mut found = Vec::new();
        let mut seen = 0;
        // Node, expected depth (None at the root), expected first logical block.
        fn visit(
            bytes: &[u8],
            wanted: Option<(u16, LogicalBlock)>,
            (blocks, form): (&BTreeMap<BlockNr, Vec<u8>>, NodeForm),
            seen: &mut usize,
            found: &mut Vec<Extent>,
        ) {
            let node = ExtentNode::new(bytes).unwrap();
            assert!(node.header_ok());
            let header = node.header();
            assert!(header.depth <= MAX_DEPTH);
            if let Some((depth, first)) = wanted {
                *seen += 1;
                assert_eq!(header.depth, depth);
                assert!(header.entries > 0, "no node is empty");
                let own = if depth == 0 { node.extent(0).logical } else { node.index(0).logical };
                assert_eq!(own, first);
                if let Some(seed) = form.inode_seed {
                    assert_eq!(node.stored_checksum(), Some(node.compute_checksum(seed)));
                }
            }
            for at in 0..header.entries {
                if header.depth == 0 {
                    found.push(node.extent(at));
                } else {
                    let index = node.index(at);
                    let child = (header.depth - 1, index.logical);
                    visit(&blocks[&index.node], Some(child), (blocks, form), seen, found);
                }
            }
        }
        visit(&built.root, None, (&blocks, form), &mut seen, &mut found);
        assert_eq!(seen, built.blocks.len(), "every block is part of the tree");
        found
    }

    /// Every logical block of (short) extents, with its physical block.
    fn blocks_of(extents: &[Extent]) -> BTreeMap<u64, (u64, bool)> {
        extents
            .iter()
            .flat_map(|one| {
                (0..one.run.len_blocks)
                    .map(|step| (one.logical.0 + step, (one.run.start.0 + step, one.unwritten)))
            })
            .collect()
    }

    /// Sorted extents with random gaps and lengths, some of which continue the one before.
    fn sorted_extents() -> impl Strategy<Value = Vec<Extent>> {
        let one = (0u64..3, 1u64..40, 0u64..1 << 47, any::<bool>(), any::<bool>());
        proptest::collection::vec(one, 0..800).prop_map(|parts| {
            let mut extents: Vec<Extent> = Vec::new();
            for (gap, len, start, unwritten, goes_on) in parts {
                let (logical, end) = extents.last().map_or((0, BlockNr(start)), |last| {
                    (last.logical.0 + last.run.len_blocks, last.run.end())
                });
                let start = if goes_on { end.0 } else { start };
                extents.push(extent(logical + gap, start, len, unwritten));
            }
            extents
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_tree_says_what_it_was_built_from(
            extents in sorted_extents(),
            big: bool,
            seed in proptest::option::of(any::<u32>()),
        ) {
            let form = NodeForm {
                block_size: if big { 4096 } else { 1024 },
                inode_seed: seed,
                owner_hint: 0,
            };
            let needed = nodes_needed(&extents, form.block_size).unwrap();
            let nodes: Vec<_> = (0..needed as u64 + 3).map(|at| BlockNr((1 << 47) + at)).collect();
            let built = build(&extents, form, &nodes).unwrap();
            let used: Vec<_> = built.blocks.iter().map(|(block, _)| *block).collect();
            prop_assert_eq!(&used, &nodes[..needed]);
            let found = read(&built, form);
            prop_assert_eq!(blocks_of(&found), blocks_of(&extents));
            prop_assert_eq!(&found, &merged(&extents).unwrap());
            prop_assert!(found.len() <= extents.len());
            if needed > 0 {
                let offered = needed - 1;
                let fault = build(&extents, form, &nodes[..offered]);
                prop_assert_eq!(fault, Err(BuildError::TooFewNodes { needed, offered }));
            }
        }

        #[test]
        fn no_extents_panic(
            parts in proptest::collection::vec(any::<(u64, u64, u16, bool)>(), 0..6),
            block_size: u32,
            nodes in proptest::collection::vec(any::<u64>(), 0..4),
        ) {
            let extents: Vec<_> = parts
                .iter()
                .map(|&(logical, start, len, unwritten)| {
                    extent(logical, start, u64::from(len), unwritten)
                })
                .collect();
            let nodes: Vec<_> = nodes.into_iter().map(BlockNr).collect();
            for block_size in [block_size, 1024] {
                let _ = nodes_needed(&extents, block_size);
                let _ = build(&extents, NodeForm { block_size, inode_seed: Some(1), owner_hint: 0 }, &nodes);
            }
        }
    }

    const FORM: NodeForm = NodeForm { block_size: 1024, inode_seed: None, owner_hint: 0 };

    #[test]
    fn long_runs_are_cut_where_an_entry_ends() {
        let lengths = |unwritten| -> Vec<u64> {
            let halves =
                [extent(0, 9, 40_000, unwritten), extent(40_000, 40_009, 30_000, unwritten)];
            merged(&halves).unwrap().iter().map(|one| one.run.len_blocks).collect()
        };
        assert_eq!(lengths(false), [32768, 32768, 4464]);
        assert_eq!(lengths(true), [32767, 32767, 4466]);
    }

    #[test]
    fn neighbours_of_other_kinds_stay_apart() {
        let kinds = [extent(0, 9, 1, false), extent(1, 10, 1, true)];
        assert_eq!(merged(&kinds).unwrap(), kinds);
    }

    #[test]
    fn depth_grows_only_where_it_must() {
        let scattered = |count: u64| -> Vec<_> {
            (0..count).map(|at| extent(at * 2, 100 + at * 3, 1, false)).collect()
        };
        let needed = |count| nodes_needed(&scattered(count), 1024).unwrap();
        assert_eq!((needed(0), needed(4), needed(5)), (0, 0, 1));
        // 84 entries a node: up to four full leaves below the root, then one more level.
        assert_eq!((needed(84), needed(85), needed(4 * 84)), (1, 2, 4));
        assert_eq!((needed(4 * 84 + 1), needed(4 * 84 * 84 + 1)), (5 + 1, 337 + 5 + 1));
        // The most fragmented file, one extent a block, still has a depth that the kernel reads.
        assert!(levels(u32::MAX as usize, 84).len() <= usize::from(MAX_DEPTH));
    }

    #[test]
    fn deep_trees_are_read_back() {
        // One more than two levels below the root can hold.
        let count = 4 * 84 * 84 + 1;
        let extents: Vec<_> = (0..count).map(|at| extent(at * 2, at * 3, 1, false)).collect();
        let nodes: Vec<_> = (0..400).map(|at| BlockNr((1 << 40) + at)).collect();
        let built = build(&extents, FORM, &nodes).unwrap();
        assert_eq!(ExtentNode::new(&built.root).unwrap().header().depth, 3);
        assert_eq!(read(&built, FORM), extents);
    }

    #[test]
    fn what_no_tree_can_say_is_refused() {
        let refused = |extents: &[Extent]| merged(extents).unwrap_err();
        let twice = [extent(0, 9, 2, false), extent(1, 50, 1, false)];
        assert_eq!(refused(&twice), BuildError::NotSorted { logical: LogicalBlock(1) });
        let last = u64::from(u32::MAX);
        assert!(merged(&[extent(last - 1, 9, 1, false)]).is_ok());
        let logical = LogicalBlock(last);
        assert_eq!(
            refused(&[extent(last - 1, 9, 2, false)]),
            BuildError::LogicalOutOfReach { logical }
        );
        let block = BlockNr(1 << 48);
        assert!(merged(&[extent(0, block.0 - 1, 1, false)]).is_ok());
        assert_eq!(
            refused(&[extent(0, block.0 - 1, 2, false)]),
            BuildError::BlockOutOfReach { block }
        );
        let block_size = 1000;
        assert_eq!(nodes_needed(&[], block_size), Err(BuildError::BlockSize { block_size }));
    }
}
