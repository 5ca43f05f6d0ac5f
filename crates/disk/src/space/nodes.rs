//! The extents of a reservation file, whose nodes are blocks of the region that it reserves, too.

use floe_ext4::map::extent_tree::nodes_needed;
use floe_ext4::tx::Refusal;
use floe_format::ext::extent::Extent;
use floe_format::{BlockNr, BlockRun, LogicalBlock};

use super::region::NOT_A_RESERVATION;

/// The blocks of a reservation file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Divided {
    /// Blocks for the nodes of its tree: exactly as many as it needs.
    pub(super) nodes: Vec<BlockNr>,
    /// Runs of its content.
    pub(super) rest: Vec<BlockRun>,
}

/// The unwritten extents of runs of a region, each at its place in the region.
pub(super) fn extents(runs: &[BlockRun], region: BlockNr) -> Vec<Extent> {
    let extent = |run: &BlockRun| {
        let logical = LogicalBlock(run.start.0 - region.0);
        Extent { logical, run: *run, unwritten: true }
    };
    runs.iter().map(extent).collect()
}

/// Nodes of the tree of some runs.
pub(super) fn needed(
    runs: &[BlockRun],
    region: BlockNr,
    block_size: u32,
) -> Result<usize, Refusal> {
    nodes_needed(&extents(runs, region), block_size).map_err(|_| NOT_A_RESERVATION)
}

/// Divides the free runs of a region into nodes of their tree and its content, so that no block is left over. `None`: that
/// cannot be, as where all runs are single blocks and one of them less needs no node.
pub(super) fn split(
    free: &[BlockRun],
    region: BlockNr,
    block_size: u32,
) -> Result<Option<Divided>, Refusal> {
    let most = needed(free, region, block_size)?;
    let longest = (0..free.len()).max_by_key(|at| free[*at].len_blocks).unwrap_or(0);
    // From a long run, so that there are as many runs as before; else from the first ones, which may be gone then.
    let choices = (0..=most).rev().flat_map(|count| [(count, longest), (count, 0)]);
    for (count, from) in choices {
        let held = take(free, count as u64, from);
        if held.nodes.len() == count && needed(&held.rest, region, block_size)? == count {
            return Ok(Some(held));
        }
    }
    Ok(None)
}

/// Takes blocks of some runs, from one of them on.
fn take(free: &[BlockRun], count: u64, from: usize) -> Divided {
    let (mut nodes, mut rest, mut left) = (Vec::new(), Vec::new(), count);
    for (at, run) in free.iter().enumerate() {
        let own = if at < from { 0 } else { left.min(run.len_blocks) };
        nodes.extend((0..own).map(|at| BlockNr(run.start.0 + at)));
        left -= own;
        if own < run.len_blocks {
            rest.push(BlockRun::new(BlockNr(run.start.0 + own), run.len_blocks - own));
        }
    }
    Divided { nodes, rest }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REGION: BlockNr = BlockNr(100);

    fn runs(lens: &[u64]) -> Vec<BlockRun> {
        let mut at = REGION.0;
        let run = |len: &u64| {
            let run = BlockRun::new(BlockNr(at), *len);
            at += len + 1;
            run
        };
        lens.iter().map(run).collect()
    }

    proptest! {
        /// No block is lost, and there are as many nodes as the rest needs.
        #[test]
        fn all_blocks_are_held(lens in proptest::collection::vec(1u64..6, 0..900)) {
            let free = runs(&lens);
            if let Some(Divided { nodes, rest }) = split(&free, REGION, 4096).unwrap() {
                prop_assert_eq!(needed(&rest, REGION, 4096).unwrap(), nodes.len());
                let of_rest = rest.iter().flat_map(|run| run.start.0..run.end().0);
                let mut all: Vec<u64> = nodes.iter().map(|node| node.0).chain(of_rest).collect();
                all.sort_unstable();
                let expected = free.iter().flat_map(|run| run.start.0..run.end().0);
                prop_assert!(all.into_iter().eq(expected));
            } else {
                // A longer run would have had room for the nodes.
                let most = needed(&free, REGION, 4096).unwrap() as u64;
                prop_assert!(lens.iter().all(|len| *len <= most));
            }
        }
    }

    #[test]
    fn a_node_is_not_taken_from_a_run_that_it_would_end() {
        // Without the first run four were left, which need no node.
        let held = split(&runs(&[1, 1, 1, 1, 9]), REGION, 4096).unwrap().unwrap();
        assert_eq!((held.nodes.len(), held.rest.len()), (1, 5));
        assert_eq!(split(&runs(&[1; 5]), REGION, 4096).unwrap(), None);
        assert_eq!(split(&runs(&[1; 4]), REGION, 4096).unwrap().unwrap().nodes, []);
    }
}
