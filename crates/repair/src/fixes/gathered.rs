//! Puts blocks back into a damaged map: those that nobody claims, and that say by their checksums that they are the file's.

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

/// Adds blocks that a file lost to its map, and says how many. Only those count that fit: blocks in use that nobody else claims, in
/// places of the file that nothing else takes.
pub(super) fn gather(stage: &Stage<'_>, image: &InodeImage, map: &mut FileMap) -> u64 {
    let Some(parts) = stage.lost_parts(image) else { return 0 };
    let before = map.data_blocks();
    for leaf in &parts.leaves {
        add_leaf(stage, *leaf, &parts.leaves, map);
    }
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

/// Adds the extents of a leaf, if they fit, and none of another leaf that was found takes their place.
fn add_leaf(stage: &Stage<'_>, leaf: BlockNr, all: &[BlockNr], map: &mut FileMap) {
    let extents = extents_of(stage, leaf);
    let meets = |one: &Extent, other: &Extent| {
        let ends_before =
            |left: &Extent, right: &Extent| left.logical.0 + left.run.len_blocks <= right.logical.0;
        !ends_before(one, other) && !ends_before(other, one)
    };
    let others = all.iter().filter(|other| **other != leaf);
    let others: Vec<Extent> = others.flat_map(|other| extents_of(stage, *other)).collect();
    let taken = |one: &Extent| map.runs.iter().chain(&others).any(|other| meets(one, other));
    if extents.iter().any(taken) || map.nodes.contains(&leaf) {
        return;
    }
    map.runs.extend(extents);
    map.sort();
    map.nodes.push(leaf);
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
