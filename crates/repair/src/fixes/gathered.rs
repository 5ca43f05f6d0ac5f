//! Puts blocks back into a damaged map: those that nobody claims, and that say by their checksums that they are the file's.

use std::collections::BTreeSet;

use floe_format::ext::extent::{Extent, ExtentNode};
use floe_format::ext::inode::FileType;
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

use crate::file_map::FileMap;
use crate::stage::{InodeImage, Stage};

/// Whether blocks are found that a file lost.
pub(crate) fn finds_lost_blocks(stage: &Stage<'_>, inode: InodeNr) -> bool {
    let Ok(image) = stage.read_inode(inode) else { return false };
    let mut map = FileMap::load(stage, &image);
    gather(stage, &image, &mut map) > 0
}

/// The size of a file with all blocks of its map, in bytes, if the bitmaps have each block from `first` on in use, and nobody else
/// claims one: then the map is newer than the size and the sectors, which agree on an earlier end. `None`: the blocks may be free
/// or others' by now.
pub(crate) fn size_of_newer_map(
    stage: &Stage<'_>,
    inode: InodeNr,
    first: LogicalBlock,
) -> Option<u64> {
    let image = stage.read_inode(inode).ok()?;
    let map = FileMap::load(stage, &image);
    let in_order = |one: &Extent, next: &Extent| {
        one.logical.0.saturating_add(one.run.len_blocks) <= next.logical.0
    };
    let is_newer = map.runs.is_sorted_by(in_order)
        && map.runs.iter().all(|extent| {
            let known = first.0.saturating_sub(extent.logical.0).min(extent.run.len_blocks);
            let start = BlockNr(extent.run.start.0 + known);
            let rest = BlockRun::new(start, extent.run.len_blocks - known);
            rest.len_blocks == 0 || stage.is_lost(rest)
        });
    let last = map.runs.last().filter(|_| is_newer)?;
    let end = last.logical.0.saturating_add(last.run.len_blocks);
    (end > first.0).then(|| end.saturating_mul(u64::from(stage.geometry.block_size)))
}

/// Adds blocks that a file lost to its map, and says how many. Only those count that fit: blocks in use that nobody else claims, in
/// places of the file that nothing else takes.
pub(super) fn gather(stage: &Stage<'_>, image: &InodeImage, map: &mut FileMap) -> u64 {
    let Some(parts) = stage.lost_parts(image) else { return 0 };
    let before = map.data_blocks();
    add_leaves(stage, &parts.leaves, map);
    // They are written anew, so that no other block is needed.
    let spare = parts.above.iter().filter(|node| !map.nodes.contains(node));
    let spare: Vec<BlockNr> = spare.copied().collect();
    map.nodes.extend(spare);
    let is_directory = FileType::of_mode(image.base.mode) == Some(FileType::Directory);
    if is_directory && map.runs.is_empty() {
        add_names(image.number, &parts.names, map);
    }
    map.data_blocks() - before
}

/// Adds the extents of leaves, but for those leaves that want a place of the file which the map has, or which another one of them wants.
/// A leaf that has nothing to add does not become a block of the map either: it is freed as it is.
fn add_leaves(stage: &Stage<'_>, leaves: &[BlockNr], map: &mut FileMap) {
    let found: Vec<(BlockNr, Vec<Extent>)> =
        leaves.iter().map(|leaf| (*leaf, extents_of(stage, *leaf))).collect();
    let of_leaves = found.iter().flat_map(|(leaf, all)| all.iter().map(|one| (one, Some(*leaf))));
    let of_map = map.runs.iter().map(|one| (one, None));
    let contested = contested(of_leaves.chain(of_map).collect());
    for (leaf, extents) in found {
        if extents.is_empty() || contested.contains(&leaf) || map.nodes.contains(&leaf) {
            continue;
        }
        map.runs.extend(extents);
        map.nodes.push(leaf);
    }
    map.sort();
}

/// The leaves with an extent that meets one of another leaf, or of the map (`None`).
fn contested(mut all: Vec<(&Extent, Option<BlockNr>)>) -> BTreeSet<BlockNr> {
    all.sort_by_key(|(extent, _)| extent.logical);
    let mut contested = BTreeSet::new();
    // The extent that reaches furthest so far: where one before it meets one behind it, both meet it, too.
    let (mut end, mut furthest) = (0, None);
    for (extent, of) in all {
        if extent.logical.0 < end && of != furthest {
            contested.extend([of, furthest].into_iter().flatten());
        }
        let own_end = extent.logical.0 + extent.run.len_blocks;
        if own_end > end {
            (end, furthest) = (own_end, of);
        }
    }
    contested
}

/// The extents of a leaf, if all of them are in order, and lead to blocks in use that nobody claims.
fn extents_of(stage: &Stage<'_>, leaf: BlockNr) -> Vec<Extent> {
    let Ok(bytes) = stage.read_block(leaf) else { return Vec::new() };
    let Some(node) = ExtentNode::new(&bytes).filter(ExtentNode::header_ok) else {
        return Vec::new();
    };
    let extents: Vec<Extent> = (0..node.header().entries).map(|at| node.extent(at)).collect();
    let in_order =
        extents.is_sorted_by(|one, next| one.logical.0 + one.run.len_blocks <= next.logical.0);
    let fits = |extent: &Extent| extent.run.len_blocks > 0 && stage.is_lost(extent.run);
    if in_order && extents.iter().all(fits) { extents } else { Vec::new() }
}

/// Maps the blocks of a directory of which only they are left: the one with `.` first, the others as they lie.
fn add_names(own: InodeNr, names: &[(BlockNr, Option<InodeNr>)], map: &mut FileMap) {
    let firsts = names.iter().filter(|(_, dot)| *dot == Some(own)).map(|(block, _)| *block);
    let firsts: Vec<BlockNr> = firsts.collect();
    let [first] = firsts[..] else { return };
    let others = names.iter().filter(|(_, dot)| dot.is_none()).map(|(block, _)| *block);
    for (logical, block) in (0..).map(LogicalBlock).zip([first].into_iter().chain(others)) {
        map.runs.push(Extent { logical, run: BlockRun::new(block, 1), unwritten: false });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn those_that_meet_are_those_of_all_pairs(
            places in proptest::collection::vec((0u64..40, 1u64..6, proptest::option::of(0u64..4)), 0..12),
        ) {
            let all: Vec<(Extent, Option<BlockNr>)> = places
                .into_iter()
                .map(|(logical, len, of)| {
                    let run = BlockRun::new(BlockNr(logical), len);
                    (Extent { logical: LogicalBlock(logical), run, unwritten: false }, of.map(BlockNr))
                })
                .collect();
            let end = |extent: &Extent| extent.logical.0 + extent.run.len_blocks;
            let meets = |one: &Extent, other: &Extent| {
                one.logical.0 < end(other) && other.logical.0 < end(one)
            };
            // Extents of one leaf do not meet each other.
            let alone = |one: &(Extent, Option<BlockNr>)| {
                all.iter().filter(|other| other.1 == one.1 && meets(&one.0, &other.0)).count() == 1
            };
            prop_assume!(all.iter().filter(|one| one.1.is_some()).all(alone));
            let expected: BTreeSet<BlockNr> = all
                .iter()
                .filter(|one| all.iter().any(|other| other.1 != one.1 && meets(&one.0, &other.0)))
                .filter_map(|(_, of)| *of)
                .collect();
            let all = all.iter().map(|(extent, of)| (extent, *of)).collect();
            prop_assert_eq!(contested(all), expected);
        }
    }
}
