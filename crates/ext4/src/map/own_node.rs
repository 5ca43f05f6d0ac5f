//! Whether a block holds a node of an extent tree, where something else should be: what lies there
//! decides whom it belongs to.

use floe_format::ext::extent::ExtentNode;
use floe_format::{BlockRun, LogicalBlock};

/// Whether the bytes of a block are the node of a tree that has `depth` levels below it: its checksum
/// is that of the inode, or all of it can be right. `seed` is that of the inode's checksums, `None`
/// without them; `is_possible` says whether blocks can be the file's.
pub fn is_own_node(
    bytes: &[u8],
    depth: u16,
    seed: Option<u32>,
    is_possible: impl Fn(BlockRun) -> bool,
) -> bool {
    let Some(node) = ExtentNode::new(bytes).filter(|node| node.header_ok()) else { return false };
    let header = node.header();
    if header.entries == 0 {
        return false;
    }
    let is_sealed = |seed| node.stored_checksum() == Some(node.compute_checksum(seed));
    if seed.is_some_and(is_sealed) {
        return true;
    }
    let mut floor = LogicalBlock(0);
    let mut is_next = |logical: LogicalBlock, blocks: u64| {
        let in_order = logical >= floor && blocks > 0;
        floor = LogicalBlock(logical.0.saturating_add(blocks));
        in_order
    };
    header.depth == depth
        && (0..header.entries).all(|at| match depth {
            0 => {
                let extent = node.extent(at);
                is_next(extent.logical, extent.run.len_blocks) && is_possible(extent.run)
            }
            _ => {
                let index = node.index(at);
                is_next(index.logical, 1) && is_possible(BlockRun::new(index.node, 1))
            }
        })
}

#[cfg(test)]
mod tests {
    use floe_format::BlockNr;
    use floe_format::ext::extent::{Extent, ExtentHeader, RawExtent, write_checksum};

    use super::*;

    const SEED: u32 = 77;

    fn leaf(starts: &[u64]) -> Vec<u8> {
        let mut bytes = vec![0; 1024];
        let entries = starts.len() as u16;
        let header = ExtentHeader { magic: 0xf30a, entries, max: 84, depth: 0, generation: 0 };
        header.encode_into(bytes.first_chunk_mut().unwrap());
        for (at, start) in starts.iter().enumerate() {
            let run = BlockRun::new(BlockNr(*start), 1);
            let extent = Extent { logical: LogicalBlock(2 * at as u64), run, unwritten: false };
            let raw: RawExtent = extent.to_raw().unwrap();
            raw.encode_into(bytes[12 * (at + 1)..].first_chunk_mut().unwrap());
        }
        write_checksum(SEED, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_checksum_or_plausible_entries_prove_a_node() {
        let below_100 = |run: BlockRun| run.end().0 <= 100;
        let own = |bytes: &[u8], depth, seed| is_own_node(bytes, depth, seed, below_100);
        let (good, far) = (leaf(&[5, 9]), leaf(&[5, 900]));
        assert!(own(&good, 0, None) && own(&good, 0, Some(SEED)) && own(&good, 0, Some(1)));
        assert!(!own(&good, 1, None), "another level");
        assert!(!own(&far, 0, None) && !own(&far, 0, Some(1)), "a block that cannot be");
        assert!(own(&far, 0, Some(SEED)), "the checksum says whose it is");
        assert!(!own(&leaf(&[]), 0, Some(SEED)), "nothing to keep");
        assert!(!own(&[0; 1024], 0, None));
    }
}
