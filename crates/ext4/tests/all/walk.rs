//! Tests the walker of maps: it visits what was built, and for any bytes it ends after reading each
//! node at most once.

use std::collections::BTreeMap;

use floe_ext4::map::block_map::{self, MappedRun};
use floe_ext4::map::extent_tree::{self, NodeForm};
use floe_ext4::map::mapping::Built;
use floe_ext4::map::walk::{Depths, Entry, Fault, Go, Visitor, push_joined, walk};
use floe_format::ext::extent::{Extent, ExtentHeader, Index, MAGIC};
use floe_format::ext::indirect::IndirectForm;
use floe_format::ext::inode::InodeFlags;
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};
use proptest::collection::vec;
use proptest::prelude::*;

const DEPTHS: [Depths; 3] = [Depths::Agree, Depths::OfRoot, Depths::OfAnyRoot];
const BLOCK_SIZE: u32 = 1024;
const FORM: IndirectForm = IndirectForm::plain(BLOCK_SIZE);

/// Records everything, and reacts to every fault in the same way.
struct Notes<'a> {
    blocks: &'a BTreeMap<BlockNr, Vec<u8>>,
    read: Vec<BlockNr>,
    data: Vec<Extent>,
    entries: usize,
    faults: Vec<Fault>,
    open: Vec<BlockNr>,
    on_fault: Go,
}

impl<'a> Notes<'a> {
    fn of(
        blocks: &'a BTreeMap<BlockNr, Vec<u8>>,
        root: &[u8; 60],
        flags: InodeFlags,
        depths: Depths,
        on_fault: Go,
    ) -> Self {
        let mut notes = Self {
            blocks,
            read: Vec::new(),
            data: Vec::new(),
            entries: 0,
            faults: Vec::new(),
            open: Vec::new(),
            on_fault,
        };
        walk(root, flags, FORM, depths, &mut notes);
        assert!(notes.open.is_empty(), "every node that was entered was left");
        notes
    }
}

impl Visitor for Notes<'_> {
    fn read(&mut self, node: BlockNr) -> Option<Vec<u8>> {
        self.read.push(node);
        self.blocks.get(&node).cloned()
    }

    fn entry(&mut self, entry: &Entry) -> Go {
        self.entries += 1;
        assert_eq!(entry.node, self.open.last().copied().unwrap_or_default());
        if entry.level == 0 {
            push_joined(&mut self.data, entry.extent);
        }
        Go::On
    }

    fn enter(&mut self, node: &Entry) {
        self.open.push(node.extent.run.start);
    }

    fn leave(&mut self, node: &Entry) {
        assert_eq!(self.open.pop(), Some(node.extent.run.start));
    }

    fn fault(&mut self, fault: Fault) -> Go {
        self.faults.push(fault);
        self.on_fault
    }
}

/// Runs with gaps: single blocks at odd offsets, so that trees have many entries.
fn runs() -> impl Strategy<Value = Vec<Extent>> {
    vec((1u64..300, 1u64..9, 0u64..1 << 30), 0..400).prop_map(|parts| {
        let mut logical = 0;
        let mut runs: Vec<Extent> = Vec::new();
        for (gap, len_blocks, start) in parts {
            logical += gap;
            let run = BlockRun::new(BlockNr(1000 + start), len_blocks);
            runs.push(Extent { logical: LogicalBlock(logical), run, unwritten: false });
            logical += len_blocks;
        }
        runs
    })
}

fn judge_built(built: &Built, flags: InodeFlags, expected: &[Extent]) {
    let blocks: BTreeMap<BlockNr, Vec<u8>> = built.blocks.iter().cloned().collect();
    for depths in DEPTHS {
        let mut notes = Notes::of(&blocks, &built.root, flags, depths, Go::End);
        assert_eq!((&notes.data[..], &notes.faults[..]), (expected, &[][..]));
        notes.read.sort_unstable();
        assert!(notes.read.iter().eq(blocks.keys()), "every node, once");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_was_built_is_found(runs in runs()) {
        let nodes: Vec<BlockNr> = (1..1000).map(BlockNr).collect();
        let form = NodeForm { block_size: BLOCK_SIZE, inode_seed: Some(3), owner_hint: 0 };
        let built = extent_tree::build(&runs, form, &nodes).unwrap();
        let mut expected = Vec::new();
        runs.iter().for_each(|&run| push_joined(&mut expected, run));
        judge_built(&built, InodeFlags::EXTENTS, &expected);
        let mapped: Vec<MappedRun> =
            runs.iter().map(|it| MappedRun { logical: it.logical, run: it.run }).collect();
        let built = block_map::build(&mapped, FORM, InodeNr(12), &nodes).unwrap();
        judge_built(&built, InodeFlags::empty(), &expected);
    }

    /// Nodes with valid headers that point to each other in any way, so that the walk goes deep.
    #[test]
    fn any_graph_of_nodes_is_walked_once(
        root in (0u16..12, vec(0u64..40, 0..5)),
        nodes in vec((0u16..6, vec(0u64..40, 0..84)), 1..32),
        end_at_faults: bool,
    ) {
        let node = |(depth, leads): &(u16, Vec<u64>), size: usize| {
            let max = (size / 12 - 1) as u16;
            let mut bytes = vec![0; size];
            let entries = (leads.len() as u16).min(max);
            let header = ExtentHeader { magic: MAGIC, entries, max, depth: *depth, generation: 0 };
            header.encode_into(bytes.first_chunk_mut().unwrap());
            for (place, &block) in bytes[12..].chunks_exact_mut(12).zip(leads) {
                let index = Index { logical: LogicalBlock(block), node: BlockNr(block) };
                index.to_raw().unwrap().encode_into(place.first_chunk_mut().unwrap());
            }
            bytes
        };
        let blocks: BTreeMap<BlockNr, Vec<u8>> =
            (1u64..).map(BlockNr).zip(nodes.iter().map(|it| node(it, 1024))).collect();
        let root: [u8; 60] = node(&root, 60).try_into().unwrap();
        let on_fault = if end_at_faults { Go::End } else { Go::Past };
        for depths in DEPTHS {
            let notes = Notes::of(&blocks, &root, InodeFlags::EXTENTS, depths, on_fault);
            judge_walk(&notes, blocks.len())?;
        }
    }

    #[test]
    fn any_bytes_are_walked_once(
        words in vec(0u32..40, 15),
        nodes in vec(vec(prop_oneof![3 => Just(0u32), 2 => 0u32..40, 1 => any::<u32>()], 256), 1..32),
        extents: bool,
        end_at_faults: bool,
    ) {
        let bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let blocks: BTreeMap<BlockNr, Vec<u8>> =
            (1u64..).map(BlockNr).zip(nodes.iter().map(|words| bytes(words))).collect();
        let root: [u8; 60] = bytes(&words).try_into().unwrap();
        let flags = if extents { InodeFlags::EXTENTS } else { InodeFlags::empty() };
        let on_fault = if end_at_faults { Go::End } else { Go::Past };
        for depths in DEPTHS {
            let notes = Notes::of(&blocks, &root, flags, depths, on_fault);
            judge_walk(&notes, blocks.len())?;
        }
    }
}

/// Each block was read at most once, the number of entries is bounded by the blocks read, and a
/// walk that ended at a fault reported one.
fn judge_walk(notes: &Notes<'_>, blocks: usize) -> Result<(), TestCaseError> {
    let mut read = notes.read.clone();
    read.sort_unstable();
    read.dedup();
    prop_assert_eq!(read.len(), notes.read.len(), "a node was read twice");
    let known = notes.read.iter().filter(|node| notes.blocks.contains_key(node)).count();
    prop_assert!(known <= blocks && notes.entries <= 15 + known * 256);
    if notes.on_fault == Go::End {
        prop_assert!(notes.faults.len() <= 1);
    }
    Ok(())
}
