//! Builds the block map of ext2 and ext3: the 15 words of `i_block` and the indirect blocks.

use floe_format::ext::indirect::{DIRECT, IndirectForm, SINGLE};
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

use super::mapping::{BuildError, Built, ROOT_BYTES, block_bytes};
use super::pointers::end_of_reach;

/// A run of data blocks and its place in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedRun {
    /// First logical block.
    pub logical: LogicalBlock,
    /// Data blocks.
    pub run: BlockRun,
}

/// `runs` without empty ones, if a map can store them.
fn checked(runs: &[MappedRun], form: IndirectForm) -> Result<Vec<MappedRun>, BuildError> {
    block_bytes(form.block_size())?;
    let reach = end_of_reach(form);
    let mut end = 0;
    let mut checked = Vec::with_capacity(runs.len());
    for run in runs.iter().filter(|run| run.run.len_blocks > 0) {
        if run.logical.0 < end {
            return Err(BuildError::NotSorted { logical: run.logical });
        }
        end = run.logical.0.saturating_add(run.run.len_blocks);
        if end > reach.0 {
            let logical = LogicalBlock(run.logical.0.max(reach.0));
            return Err(BuildError::LogicalOutOfReach { logical });
        }
        if run.run.end().0 > 1 << 32 {
            let block = BlockNr(run.run.start.0.max(1 << 32));
            return Err(BuildError::BlockOutOfReach { block });
        }
        if run.run.start.0 == 0 {
            // A pointer of 0 means a hole.
            return Err(BuildError::BlockOutOfReach { block: run.run.start });
        }
        checked.push(*run);
    }
    Ok(checked)
}

/// The place of the pointer to a logical block behind the direct ones. Indirect blocks of a level
/// are numbered consecutively from 0.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Path {
    /// The indirect block of level 1 that holds the pointer.
    single: u64,
    /// The pointer's index in it.
    index: u64,
}

impl Path {
    fn to(logical: LogicalBlock, per_block: u64) -> Option<Self> {
        let behind = logical.0.checked_sub(DIRECT)?;
        Some(Self { single: behind / per_block, index: behind % per_block })
    }
}

/// The block of level 2 that points to a block of level 1, and the index there; `None` for the
/// first one, to which `i_block` points.
fn double_of(single: u64, per_block: u64) -> Option<(u64, u64)> {
    let below = single.checked_sub(1)?;
    Some((below / per_block, below % per_block))
}

/// Blocks that the map of these runs needs, besides the inode.
///
/// # Errors
/// Runs overlap or are not in order, or a number does not fit the map.
pub fn nodes_needed(runs: &[MappedRun], form: IndirectForm) -> Result<usize, BuildError> {
    let runs = checked(runs, form)?;
    let per_block = form.pointers_per_block();
    let (mut singles, mut doubles) = (Distinct::default(), Distinct::default());
    for run in &runs {
        let last = LogicalBlock(run.logical.0 + run.run.len_blocks - 1);
        let Some(Path { single: last, .. }) = Path::to(last, per_block) else { continue };
        let first = Path::to(run.logical, per_block).map_or(0, |path| path.single);
        singles.add(first, last);
        if let Some((last, _)) = double_of(last, per_block) {
            doubles.add(double_of(first, per_block).map_or(0, |(first, _)| first), last);
        }
    }
    // The inode points to the first block of level 2, and the single block of level 3 to all
    // others.
    let triple = u64::from(doubles.end > 1);
    Ok(usize::try_from(singles.count + doubles.count + triple).unwrap_or(usize::MAX))
}

/// Counts the distinct numbers in ascending ranges.
#[derive(Default)]
struct Distinct {
    count: u64,
    end: u64,
}

impl Distinct {
    fn add(&mut self, first: u64, last: u64) {
        self.count += (last + 1).saturating_sub(first.max(self.end));
        self.end = self.end.max(last + 1);
    }
}

/// Builds the map of `runs`, which must be sorted and must not overlap. Its indirect blocks use the
/// first of `nodes`, in the order in which reading the file meets them, and name `owner` where they have
/// a header.
///
/// # Errors
/// Those of [`nodes_needed`], [`BuildError::TooFewNodes`], and [`BuildError::BlockOutOfReach`] for
/// an indirect block.
pub fn build(
    runs: &[MappedRun],
    form: IndirectForm,
    owner: InodeNr,
    nodes: &[BlockNr],
) -> Result<Built, BuildError> {
    let needed = nodes_needed(runs, form)?;
    let nodes =
        nodes.get(..needed).ok_or(BuildError::TooFewNodes { needed, offered: nodes.len() })?;
    let mut map = Map {
        root: [0; ROOT_BYTES],
        blocks: Vec::with_capacity(needed),
        spare: nodes.iter(),
        form,
        owner,
        open: [None; 3],
    };
    for run in checked(runs, form)? {
        for step in 0..run.run.len_blocks {
            let logical = LogicalBlock(run.logical.0 + step);
            let pointer = pointer_to(BlockNr(run.run.start.0 + step))?;
            map.set(logical, pointer)?;
        }
    }
    Ok(Built { root: map.root, blocks: map.blocks })
}

fn pointer_to(block: BlockNr) -> Result<u32, BuildError> {
    match u32::try_from(block.0) {
        Ok(pointer) if pointer != 0 => Ok(pointer),
        _ => Err(BuildError::BlockOutOfReach { block }),
    }
}

/// The place of a pointer.
#[derive(Clone, Copy)]
enum Slot {
    /// A word of `i_block`.
    Root(usize),
    /// A word of an indirect block.
    Block(usize, u64),
}

/// A map under construction, from the first logical block to the last.
struct Map<'n> {
    root: [u8; ROOT_BYTES],
    blocks: Vec<(BlockNr, Vec<u8>)>,
    spare: std::slice::Iter<'n, BlockNr>,
    form: IndirectForm,
    owner: InodeNr,
    /// For levels 1 to 3, the current indirect block: its number and its index in `blocks`.
    open: [Option<(u64, usize)>; 3],
}

impl Map<'_> {
    fn set(&mut self, logical: LogicalBlock, pointer: u32) -> Result<(), BuildError> {
        let per_block = self.form.pointers_per_block();
        let slot = match Path::to(logical, per_block) {
            None => Slot::Root(usize::try_from(logical.0).unwrap_or(usize::MAX)),
            Some(path) => Slot::Block(self.single(path.single, per_block)?, path.index),
        };
        self.put(slot, pointer);
        Ok(())
    }

    /// The block of level 1 with this number, as an index into `blocks`.
    fn single(&mut self, single: u64, per_block: u64) -> Result<usize, BuildError> {
        if let Some(open) = self.opened(0, single) {
            return Ok(open);
        }
        let slot = match double_of(single, per_block) {
            None => Slot::Root(SINGLE),
            Some((double, index)) => Slot::Block(self.double(double)?, index),
        };
        self.begin(0, single, slot)
    }

    fn double(&mut self, double: u64) -> Result<usize, BuildError> {
        if let Some(open) = self.opened(1, double) {
            return Ok(open);
        }
        let slot = match double.checked_sub(1) {
            None => Slot::Root(SINGLE + 1),
            Some(index) => {
                let triple = match self.opened(2, 0) {
                    Some(open) => open,
                    None => self.begin(2, 0, Slot::Root(SINGLE + 2))?,
                };
                Slot::Block(triple, index)
            }
        };
        self.begin(1, double, slot)
    }

    fn opened(&self, level: usize, number: u64) -> Option<usize> {
        self.open[level].filter(|&(open, _)| open == number).map(|(_, at)| at)
    }

    /// Starts an indirect block and stores a pointer to it in `slot`.
    fn begin(&mut self, level: usize, number: u64, slot: Slot) -> Result<usize, BuildError> {
        let at = self.blocks.len();
        // `nodes_needed` counted them, so this cannot fail.
        let node =
            *self.spare.next().ok_or(BuildError::TooFewNodes { needed: at + 1, offered: at })?;
        self.put(slot, pointer_to(node)?);
        let mut bytes = vec![0; self.form.block_size() as usize];
        // 1 to 3.
        self.form.put_header(&mut bytes, self.owner, level as u32 + 1);
        self.blocks.push((node, bytes));
        self.open[level] = Some((number, at));
        Ok(at)
    }

    fn put(&mut self, slot: Slot, pointer: u32) {
        let form = self.form;
        let (bytes, word) = match slot {
            Slot::Root(word) => (&mut self.root[..], word),
            Slot::Block(at, word) => match self.blocks.get_mut(at) {
                Some((_, bytes)) => {
                    (form.body_mut(bytes), usize::try_from(word).unwrap_or(usize::MAX))
                }
                None => return,
            },
        };
        let (words, _) = bytes.as_chunks_mut::<4>();
        if let Some(place) = words.get_mut(word) {
            *place = pointer.to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use floe_format::ext::indirect::pointers;
    use proptest::prelude::*;

    use super::*;

    fn run(logical: u64, start: u64, len_blocks: u64) -> MappedRun {
        MappedRun { logical: LogicalBlock(logical), run: BlockRun::new(BlockNr(start), len_blocks) }
    }

    const OWNER: InodeNr = InodeNr(12);
    const PLAIN: IndirectForm = IndirectForm::plain(1024);

    /// Reads a map back with the format crate's arithmetic of slots and spans.
    fn read(built: &Built, form: IndirectForm) -> BTreeMap<u64, u64> {
        struct Walk<'b> {
            blocks: BTreeMap<u64, &'b [u8]>,
            form: IndirectForm,
            found: BTreeMap<u64, u64>,
            order: Vec<BlockNr>,
        }
        impl Walk<'_> {
            fn visit(&mut self, pointer: u32, first: u64, level: u32) {
                let pointer = u64::from(pointer);
                if pointer == 0 {
                    return;
                }
                if level == 0 {
                    assert!(self.found.insert(first, pointer).is_none());
                    return;
                }
                self.order.push(BlockNr(pointer));
                let (span, bytes) = (self.form.span_blocks(level - 1), self.blocks[&pointer]);
                if let Some(header) = self.form.header(bytes) {
                    assert_eq!((InodeNr(header.inode), header.level), (OWNER, level));
                }
                for (at, below) in (0u64..).zip(pointers(self.form.body(bytes))) {
                    self.visit(below, first + at * span, level - 1);
                }
            }
        }
        let blocks = built.blocks.iter().map(|(nr, bytes)| (nr.0, &bytes[..])).collect();
        let mut walk = Walk { blocks, form, found: BTreeMap::new(), order: Vec::new() };
        for (index, pointer) in pointers(&built.root).enumerate() {
            let (first, level) = form.root_slot(index).unwrap();
            walk.visit(pointer, first.0, level);
        }
        let used: Vec<_> = built.blocks.iter().map(|(block, _)| *block).collect();
        assert_eq!(walk.order, used, "blocks are not in the order of reading");
        walk.found
    }

    fn blocks_of(runs: &[MappedRun]) -> BTreeMap<u64, u64> {
        runs.iter()
            .flat_map(|one| {
                (0..one.run.len_blocks).map(|at| (one.logical.0 + at, one.run.start.0 + at))
            })
            .collect()
    }

    /// Sorted runs, with gaps of all magnitudes, so that some holes span whole indirect blocks.
    fn sorted_runs() -> impl Strategy<Value = Vec<MappedRun>> {
        let gap = prop_oneof![0u64..3, 0u64..400, 0u64..70_000, 0u64..4_000_000];
        let one = (gap, 1u64..600, 1u64..1 << 31);
        proptest::collection::vec(one, 0..12).prop_map(|parts| {
            let mut runs = Vec::new();
            let mut end = 0;
            for (gap, len, start) in parts {
                let form = IndirectForm::with_header(1024);
                if end + gap + len > end_of_reach(form).0 {
                    break;
                }
                runs.push(run(end + gap, start, len));
                end += gap + len;
            }
            runs
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_map_says_what_it_was_built_from(
            runs in sorted_runs(),
            form in prop_oneof![
                Just(IndirectForm::plain(4096)),
                Just(IndirectForm::plain(1024)),
                Just(IndirectForm::with_header(4096)),
                Just(IndirectForm::with_header(1024)),
            ],
        ) {
            let needed = nodes_needed(&runs, form).unwrap();
            let nodes: Vec<_> = (0..needed as u64 + 2).map(|at| BlockNr((1 << 31) + at)).collect();
            let built = build(&runs, form, OWNER, &nodes).unwrap();
            prop_assert_eq!(built.blocks.len(), needed);
            prop_assert_eq!(read(&built, form), blocks_of(&runs));
            if needed > 0 {
                let offered = needed - 1;
                let fault = build(&runs, form, OWNER, &nodes[..offered]);
                prop_assert_eq!(fault, Err(BuildError::TooFewNodes { needed, offered }));
            }
        }

        #[test]
        fn no_runs_panic(
            parts in proptest::collection::vec(any::<(u64, u64, u8)>(), 0..6),
            near in 0u64..20_000_000,
            block_size: u32,
            nodes in proptest::collection::vec(any::<u64>(), 0..8),
        ) {
            let nodes: Vec<_> = nodes.into_iter().map(BlockNr).collect();
            let runs: Vec<_> = parts.iter().map(|&(l, p, n)| run(l, p, u64::from(n))).collect();
            for (runs, block_size) in [
                (&runs[..], block_size),
                (&runs[..], 1024),
                (&[run(near, 7, 300)][..], 1024),
            ] {
                for form in [IndirectForm::plain(block_size), IndirectForm::with_header(block_size)] {
                    let _ = nodes_needed(runs, form);
                    let _ = build(runs, form, OWNER, &nodes);
                }
            }
        }
    }

    #[test]
    fn each_level_begins_where_it_must() {
        let needed = |logical| nodes_needed(&[run(logical, 50, 1)], PLAIN).unwrap();
        let (double, triple) = (12 + 256, 12 + 256 + 256 * 256);
        assert_eq!((needed(11), needed(12), needed(double - 1)), (0, 1, 1));
        assert_eq!((needed(double), needed(triple - 1), needed(triple)), (2, 2, 3));
        assert_eq!(nodes_needed(&[run(0, 50, triple + 1)], PLAIN), Ok(1 + 1 + 256 + 3));
    }

    #[test]
    fn what_no_map_can_say_is_refused() {
        let refused = |runs: &[MappedRun]| nodes_needed(runs, PLAIN).unwrap_err();
        let reach = 12 + 256 + 256 * 256 + 256 * 256 * 256;
        assert_eq!(end_of_reach(PLAIN), LogicalBlock(reach));
        let reach_of = |block_size| end_of_reach(IndirectForm::plain(block_size));
        assert_eq!(reach_of(4096), LogicalBlock(12 + 1024 + (1 << 20) + (1 << 30)));
        assert_eq!(reach_of(65536), LogicalBlock(u64::from(u32::MAX)));
        assert_eq!(nodes_needed(&[run(reach - 1, 9, 1)], PLAIN), Ok(3));
        let logical = LogicalBlock(reach);
        assert_eq!(refused(&[run(reach - 1, 9, 2)]), BuildError::LogicalOutOfReach { logical });
        let twice = [run(0, 9, 2), run(1, 50, 1)];
        assert_eq!(refused(&twice), BuildError::NotSorted { logical: LogicalBlock(1) });
        let block = BlockNr(1 << 32);
        assert_eq!(refused(&[run(0, block.0 - 1, 2)]), BuildError::BlockOutOfReach { block });
        let hole = BlockNr(0);
        assert_eq!(refused(&[run(0, 0, 2)]), BuildError::BlockOutOfReach { block: hole });
        assert!(build(&[run(12, 9, 1)], PLAIN, OWNER, &[BlockNr(0)]).is_err());
    }
}
