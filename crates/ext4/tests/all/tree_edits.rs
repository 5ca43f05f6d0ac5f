//! Tests the editor of extent trees against a model in memory: after any inserts and removals the
//! tree equals the model, no node is leaked, and none is emptier than necessary.

use std::collections::{BTreeMap, BTreeSet};

use floe_ext4::alloc::Allocate;
use floe_ext4::map::edit::TreeEditor;
use floe_ext4::map::extent_tree::NodeForm;
use floe_ext4::map::walk::{Depths, Entry, Fault, Go, Visitor, walk};
use floe_ext4::tx::{Block, Refusal, Tx};
use floe_format::ext::extent::{Extent, ExtentNode};
use floe_format::ext::indirect::IndirectForm;
use floe_format::ext::inode::InodeFlags;
use floe_format::{BlockNr, BlockRun, LogicalBlock};
use proptest::collection::vec;
use proptest::prelude::*;

const BLOCK_SIZE: u32 = 1024;
const SEED: u32 = 7;
/// Nodes lie from here on; data lies elsewhere.
const FIRST_NODE: u64 = 1 << 40;

#[derive(Default)]
struct Blocks(BTreeMap<BlockNr, Vec<u8>>);

impl Tx for Blocks {
    fn block(&mut self, block: BlockNr) -> Result<Block, Refusal> {
        self.0.get(&block).cloned().map(Block::new).ok_or(Refusal::Outside(block))
    }

    fn block_mut(&mut self, block: BlockNr) -> Result<&mut [u8], Refusal> {
        self.0.get_mut(&block).map(|bytes| &mut bytes[..]).ok_or(Refusal::Outside(block))
    }

    fn zeroed(&mut self, block: BlockNr) -> Result<&mut [u8], Refusal> {
        self.0.insert(block, vec![0; BLOCK_SIZE as usize]);
        self.block_mut(block)
    }

    fn revoke(&mut self, run: BlockRun) {
        self.0.remove(&run.start);
    }
}

/// Allocates nodes by number, and records which are in use.
#[derive(Default)]
struct Nodes {
    used: BTreeSet<BlockNr>,
    next: u64,
    most: usize,
}

impl Allocate for Nodes {
    fn run(&mut self, _: &mut dyn Tx, _: BlockNr, _: u64) -> Result<BlockRun, Refusal> {
        if self.used.len() >= self.most {
            return Err(Refusal::Full("block"));
        }
        let block = BlockNr(FIRST_NODE + self.next);
        self.next += 1;
        self.used.insert(block);
        Ok(BlockRun::new(block, 1))
    }

    fn release(&mut self, tx: &mut dyn Tx, run: BlockRun) -> Result<(), Refusal> {
        assert!(self.used.remove(&run.start), "freed what is not in use");
        tx.revoke(run);
        Ok(())
    }
}

struct Reader<'b> {
    blocks: &'b Blocks,
    extents: Vec<Extent>,
    nodes: BTreeSet<BlockNr>,
}

impl Visitor for Reader<'_> {
    fn read(&mut self, node: BlockNr) -> Option<Vec<u8>> {
        let bytes = self.blocks.0.get(&node)?;
        let parsed = ExtentNode::new(bytes).unwrap();
        assert_eq!(parsed.stored_checksum(), Some(parsed.compute_checksum(SEED)));
        assert!(parsed.header().entries > 0, "an empty node was kept");
        self.nodes.insert(node);
        Some(bytes.clone())
    }

    fn entry(&mut self, entry: &Entry) -> Go {
        if entry.level == 0 {
            self.extents.push(entry.extent);
        } else {
            let below = ExtentNode::new(&self.blocks.0[&entry.extent.run.start]).unwrap();
            let first =
                if entry.level == 1 { below.extent(0).logical } else { below.index(0).logical };
            assert_eq!(
                entry.extent.logical, first,
                "an index entry and its node begin differently"
            );
        }
        Go::On
    }

    fn fault(&mut self, fault: Fault) -> Go {
        panic!("{fault:?}");
    }
}

/// The blocks of a file, and whether they are unwritten.
type Model = BTreeMap<u64, (u64, bool)>;

struct File {
    root: [u8; 60],
    blocks: Blocks,
    nodes: Nodes,
    model: Model,
}

impl File {
    fn new(most: usize) -> Self {
        let nodes = Nodes { most, ..Nodes::default() };
        Self { root: TreeEditor::EMPTY, blocks: Blocks::default(), nodes, model: Model::new() }
    }

    fn editor(&mut self) -> (TreeEditor<'_>, &mut [u8; 60]) {
        let form = NodeForm { block_size: BLOCK_SIZE, inode_seed: Some(SEED), owner_hint: 0 };
        let (tx, space) = (&mut self.blocks, &mut self.nodes);
        (TreeEditor { tx, space, form, goal: BlockNr(0), steps: 0 }, &mut self.root)
    }

    fn insert(&mut self, extent: Extent) -> Result<(), Refusal> {
        let (mut editor, root) = self.editor();
        editor.insert(root, extent)?;
        for at in 0..extent.run.len_blocks {
            let mapped = (extent.run.start.0 + at, extent.unwritten);
            assert!(self.model.insert(extent.logical.0 + at, mapped).is_none());
        }
        Ok(())
    }

    fn remove(&mut self, start: u64, end: u64) {
        let (mut editor, root) = self.editor();
        let freed = editor.remove(root, start..end).unwrap();
        let mut freed: Vec<u64> = freed.iter().flat_map(|run| run.start.0..run.end().0).collect();
        let mut expected: Vec<u64> = self.model.range(start..end).map(|(_, &(at, _))| at).collect();
        self.model.retain(|at, _| !(start..end).contains(at));
        freed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(freed, expected);
    }

    fn extents(&self) -> Vec<Extent> {
        let (extents, nodes) = (Vec::new(), BTreeSet::new());
        let mut reader = Reader { blocks: &self.blocks, extents, nodes };
        let form = IndirectForm::plain(BLOCK_SIZE);
        walk(&self.root, InodeFlags::EXTENTS, form, Depths::Agree, &mut reader);
        assert_eq!(reader.nodes, self.nodes.used, "an allocated node is not in the tree");
        reader.extents
    }

    fn judge(&mut self) {
        let blocks_of = |it: &Extent| {
            let it = *it;
            (0..it.run.len_blocks)
                .map(move |at| (it.logical.0 + at, (it.run.start.0 + at, it.unwritten)))
        };
        let found: Model = self.extents().iter().flat_map(blocks_of).collect();
        assert_eq!(found, self.model);
        let asked: Vec<u64> = self.model.keys().step_by(97).copied().collect();
        for at in asked {
            let expected = self.model[&at];
            let (mut editor, root) = self.editor();
            let extent = editor.find(root, LogicalBlock(at)).unwrap().unwrap();
            assert_eq!(extent.run.start.0 + at - extent.logical.0, expected.0);
            let (mut editor, root) = self.editor();
            let behind = editor.find(root, LogicalBlock(at + 1)).unwrap();
            assert_eq!(behind.is_some(), self.model.contains_key(&(at + 1)));
        }
    }
}

fn extent(logical: u64, start: u64, len_blocks: u64, unwritten: bool) -> Extent {
    let run = BlockRun::new(BlockNr(start), len_blocks);
    Extent { logical: LogicalBlock(logical), run, unwritten }
}

/// Positions on a grid, so that extents often touch; the physical block mostly follows the logical
/// one.
fn changes() -> impl Strategy<Value = Vec<(bool, u64, u64, u64, bool)>> {
    let len = prop_oneof![4 => 1u64..4, 1 => 1u64..600];
    let one = (prop::bool::weighted(0.75), 0u64..3000, len, 0u64..4, any::<bool>());
    vec(one, 0..700)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_tree_follows_its_model(changes in changes()) {
        let mut file = File::new(usize::MAX);
        for (insert, at, len, place, unwritten) in changes {
            let logical = at * 2;
            if insert {
                file.remove(logical, logical + len);
                file.insert(extent(logical, 10_000 + place * 100_000 + logical, len, unwritten)).unwrap();
            } else {
                file.remove(logical, logical + 20 * len);
            }
        }
        file.judge();
        file.remove(0, u64::MAX);
        file.judge();
        prop_assert!(file.nodes.used.is_empty());
        prop_assert_eq!(file.root, TreeEditor::EMPTY);
    }

    /// Without free blocks a change is refused; a mapped block is never mapped again.
    #[test]
    fn refusals_lose_nothing_that_was_mapped(starts in vec(0u64..4000, 1..400), most in 0usize..4) {
        let mut file = File::new(most);
        for start in starts {
            let new = extent(start * 3, 50_000 + start * 7, 2, false);
            let taken = file.model.contains_key(&(start * 3));
            match file.insert(new) {
                Ok(()) => assert!(!taken),
                Err(Refusal::TooMuch(_)) => assert!(taken),
                Err(Refusal::Full(_)) => return Ok(()),
                Err(other) => panic!("{other}"),
            }
        }
        file.judge();
    }
}

#[test]
fn a_growing_file_leaves_full_nodes() {
    let mut file = File::new(usize::MAX);
    for at in 0..84 * 84 {
        file.insert(extent(at * 2, 10_000 + at * 3, 1, false)).unwrap();
    }
    file.judge();
    // 1 KiB holds 84 entries.
    let least = 84 + 1;
    assert!(file.nodes.used.len() <= least + 1, "{} nodes", file.nodes.used.len());
}

#[test]
fn long_runs_are_cut_and_joined() {
    let mut file = File::new(usize::MAX);
    file.insert(extent(0, 1000, 70_000, false)).unwrap();
    assert_eq!(file.extents().len(), 3);
    file.insert(extent(70_000, 71_000, 10, false)).unwrap();
    assert_eq!(file.extents().len(), 3, "not merged with the last extent");
    file.remove(100, 101);
    file.insert(extent(100, 1100, 1, false)).unwrap();
    assert_eq!(file.extents().len(), 3, "not merged on both sides");
    assert!(file.insert(extent(100, 5, 1, false)).is_err());
}
