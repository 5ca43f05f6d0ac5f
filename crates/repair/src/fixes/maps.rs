//! Maps of files: extent trees and block maps.
//!
//! All edits of one file are made together: the walk omits the removed entries, and the map is then
//! rebuilt.

use std::collections::HashSet;

use floe_format::ext::extent::{self, Extent, ExtentHeader};
use floe_format::ext::inode::InodeFlags;
use floe_format::{BlockNr, InodeNr, LogicalBlock};

use crate::edit::MapEdit;
use crate::failure::Failure;
use crate::file_map::FileMap;
use crate::stage::{InodeImage, Stage};
use floe_ext4::map::walk::Entry;

use super::extent_order::Leaf;
use super::gathered::gather;

/// Makes all edits of one file.
pub(super) fn apply_all(
    stage: &mut Stage<'_>,
    inode: InodeNr,
    edits: &[MapEdit],
) -> Result<(), Failure> {
    let mut image = stage.read_inode(inode)?;
    if edits.iter().all(MapEdit::keeps_entries) && !gives_others_a_header(stage, edits) {
        return in_place(stage, &image, edits);
    }
    if !image.flags().contains(InodeFlags::EXTENTS) {
        let contested = !has_no_content(inode)
            && FileMap::load(stage, &image).nodes.iter().any(|&node| stage.is_contested(node));
        if contested {
            // Nodes that may hold another owner's data are not modified; the map is written
            // elsewhere.
            let mut drop = |entry: &Entry| edits.iter().any(|edit| names_pointer(edit, entry));
            let mut map = FileMap::load_without(stage, &image, &mut drop);
            map.store(stage, &mut image)?;
        } else {
            zero_pointers(stage, &mut image, edits)?;
        }
        if edits.contains(&MapEdit::ToExtents) {
            let mut map = FileMap::load(stage, &image);
            map.extents = true;
            map.store(stage, &mut image)?;
        }
        return stage.write_inode(&image);
    }
    let mut drop = |entry: &Entry| edits.iter().any(|edit| names(edit, entry));
    let mut map = match with_leaves_sorted_out(stage, &image, edits) {
        Some(map) => map,
        None => FileMap::load_without(stage, &image, &mut drop),
    };
    for edit in edits {
        match *edit {
            // A pointer out of range; in an extent tree, a whole extent.
            MapEdit::ZeroPointer { logical, block, .. } => {
                map.runs.retain(|extent| !covers(extent, logical, block));
            }
            MapEdit::CloseGap { logical, to } => close_gap(&mut map, logical, to),
            MapEdit::CutAt { first } => cut(&mut map, first),
            MapEdit::MarkWritten => {
                map.runs.iter_mut().for_each(|extent| extent.unwritten = false);
            }
            MapEdit::RemoveExtent { .. }
            | MapEdit::Checksum { .. }
            | MapEdit::Depth { .. }
            | MapEdit::Header { .. }
            | MapEdit::IndexStarts
            | MapEdit::ToExtents
            | MapEdit::Gather => {}
        }
    }
    if edits.contains(&MapEdit::Gather) {
        gather(stage, &image, &mut map);
    }
    map.store(stage, &mut image)?;
    stage.write_inode(&image)
}

/// The map after resolving leaves whose extents contradict each other. `None` if the map has other
/// damage too.
fn with_leaves_sorted_out(
    stage: &Stage<'_>,
    image: &InodeImage,
    edits: &[MapEdit],
) -> Option<FileMap> {
    let of_leaves =
        |edit: &MapEdit| matches!(edit, MapEdit::RemoveExtent { .. }) || edit.keeps_entries();
    if !edits.iter().all(of_leaves) {
        return None;
    }
    // Collect the leaves in order; the walk then fills in their extents.
    let mut leaves: Vec<Leaf> = Vec::new();
    let mut named = Vec::new();
    let mut whole_nodes_go = false;
    let mut note = |entry: &Entry| {
        let is_named = edits.iter().any(|edit| names(edit, entry));
        if entry.level == 0 {
            named.push((leaves.len().saturating_sub(1), is_named));
            return false;
        }
        whole_nodes_go |= is_named;
        if let Some(last) = leaves.last_mut() {
            last.limit = Some(entry.extent.logical.0);
        }
        leaves.push(Leaf { floor: entry.extent.logical.0, ..Leaf::default() });
        false
    };
    let mut map = FileMap::load_without(stage, image, &mut note);
    if whole_nodes_go {
        return None;
    }
    if leaves.is_empty() {
        // The root in the inode holds the extents.
        leaves.push(Leaf::default());
    }
    for (&extent, (leaf, is_named)) in map.runs.iter().zip(named) {
        leaves[leaf].extents.push((extent, is_named));
    }
    // The examination counts no claims of extents that a finding names. Several extents of a file
    // may share a cluster.
    let is_claimed = |block: BlockNr, named: bool| {
        stage.geometry.cluster_blocks == 1
            && (stage.is_contested(block) || (named && stage.is_claimed(block)))
    };
    let believed = |leaf: &Leaf| match leaf.is_disordered() {
        true => leaf.sorted_out(&stage.geometry, &is_claimed),
        false => leaf.extents.iter().map(|(extent, _)| *extent).collect(),
    };
    let runs: Vec<Extent> = leaves.iter().flat_map(believed).collect();
    let changed = runs != map.runs;
    map.runs = runs;
    changed.then_some(map)
}

/// Whether an edit turns a pointer into a hole.
fn names_pointer(edit: &MapEdit, entry: &Entry) -> bool {
    match *edit {
        MapEdit::ZeroPointer { logical, level, block } => {
            entry.extent.run.start == block
                && (level == u8::MAX
                    || (entry.extent.logical == logical && entry.level == u16::from(level)))
        }
        MapEdit::CutAt { first } => entry.extent.logical >= first,
        _ => false,
    }
}

/// Whether an edit removes an entry.
fn names(edit: &MapEdit, entry: &Entry) -> bool {
    match *edit {
        MapEdit::RemoveExtent { node, logical, block } => {
            entry.node == node
                && entry.extent.logical == logical
                && block.is_none_or(|block| entry.extent.run.start == block)
        }
        MapEdit::CutAt { first } => entry.extent.logical >= first,
        _ => false,
    }
}

/// Shortens the extent that reaches past the last block before `first`.
fn cut(map: &mut FileMap, first: LogicalBlock) {
    map.runs.retain(|extent| extent.logical < first);
    for extent in &mut map.runs {
        extent.run.len_blocks = extent.run.len_blocks.min(first.0 - extent.logical.0);
    }
}

fn covers(extent: &Extent, logical: LogicalBlock, block: BlockNr) -> bool {
    let Some(offset) = logical.0.checked_sub(extent.logical.0) else { return false };
    offset < extent.run.len_blocks && extent.run.start.0 + offset == block.0
}

/// Moves the extent that begins at `logical` down to `to`, and all later ones by the same distance.
fn close_gap(map: &mut FileMap, logical: LogicalBlock, to: LogicalBlock) {
    for extent in map.runs.iter_mut().filter(|extent| extent.logical == logical) {
        extent.logical = to;
    }
}

/// Whether an edit changes the header of a node that others claim too. Without checksums the node
/// may be their data, so the tree is written elsewhere.
fn gives_others_a_header(stage: &Stage<'_>, edits: &[MapEdit]) -> bool {
    edits.iter().any(|edit| match *edit {
        MapEdit::Depth { node, .. } | MapEdit::Header { node, .. } => stage.is_contested(node),
        _ => false,
    })
}

/// Edits nodes in place, keeping their entries.
fn in_place(stage: &Stage<'_>, image: &InodeImage, edits: &[MapEdit]) -> Result<(), Failure> {
    for edit in edits {
        let (node, depth) = match *edit {
            MapEdit::Checksum { node } => (node, None),
            MapEdit::Depth { node, depth } => (node, Some(depth)),
            MapEdit::Header { node, level } => {
                let mut bytes = stage.read_block(node)?;
                let form = stage.geometry.indirect();
                form.put_header(&mut bytes, image.number, u32::from(level));
                stage.write_block(node, &bytes)?;
                continue;
            }
            _ => continue,
        };
        let mut bytes = stage.read_block(node)?;
        if let (Some(depth), Some(header)) = (depth, bytes.first_chunk_mut()) {
            ExtentHeader { depth, ..ExtentHeader::decode(header) }.encode_into(header);
        }
        if stage.checksummed() {
            // A node without room for a checksum has a finding of its own.
            let _ = extent::write_checksum(stage.inode_seed(image), &mut bytes);
        }
        stage.write_block(node, &bytes)?;
    }
    Ok(())
}

/// Recomputes the checksums of all nodes of a file whose inode number or generation changed.
pub(super) fn rechecksum(stage: &Stage<'_>, image: &InodeImage) -> Result<(), Failure> {
    if !stage.checksummed() || !image.flags().contains(InodeFlags::EXTENTS) {
        return Ok(());
    }
    let nodes = FileMap::load(stage, image).nodes;
    let edits: Vec<MapEdit> = nodes.iter().map(|&node| MapEdit::Checksum { node }).collect();
    in_place(stage, image, &edits)
}

/// Rebuilds an extent tree with minimal depth.
pub(super) fn rebuild(stage: &mut Stage<'_>, inode: InodeNr) -> Result<(), Failure> {
    let mut image = stage.read_inode(inode)?;
    let mut map = FileMap::load(stage, &image);
    map.store(stage, &mut image)?;
    stage.write_inode(&image)
}

/// Whether the map of an inode is a plain list of blocks, whose logical numbers mean nothing.
fn has_no_content(inode: InodeNr) -> bool {
    matches!(inode, InodeNr::RESIZE | InodeNr::BAD_BLOCKS)
}

/// Turns pointers of a block map into holes, in place.
fn zero_pointers(
    stage: &Stage<'_>,
    image: &mut InodeImage,
    edits: &[MapEdit],
) -> Result<(), Failure> {
    let wanted: HashSet<(LogicalBlock, u8, BlockNr)> = edits
        .iter()
        .filter_map(|edit| match *edit {
            MapEdit::ZeroPointer { logical, level, block } => Some((logical, level, block)),
            _ => None,
        })
        .collect();
    let by_block = has_no_content(image.number);
    let cut_at = edits.iter().find_map(|edit| match *edit {
        MapEdit::CutAt { first } => Some(first),
        _ => None,
    });
    let mut zero = Zero { stage, wanted, seen: HashSet::new(), by_block, cut_at };
    for index in 0..15 {
        if let Some((logical, level)) = stage.geometry.indirect().root_slot(index) {
            let slot = &mut image.base.block[index * 4..index * 4 + 4];
            let mut word = [0; 4];
            word.copy_from_slice(slot);
            if zero.pointer(u32::from_le_bytes(word), logical, level)? {
                slot.fill(0);
            }
        }
    }
    Ok(())
}

struct Zero<'w, 'a> {
    stage: &'w Stage<'a>,
    wanted: HashSet<(LogicalBlock, u8, BlockNr)>,
    seen: HashSet<BlockNr>,
    /// Matches pointers by target block instead of logical block: see [`has_no_content`].
    by_block: bool,
    /// Nothing from here on stays.
    cut_at: Option<LogicalBlock>,
}

impl Zero<'_, '_> {
    /// Returns whether a pointer is removed, after processing those below it.
    fn pointer(&mut self, word: u32, logical: LogicalBlock, level: u32) -> Result<bool, Failure> {
        let block = BlockNr(u64::from(word));
        if word == 0 {
            return Ok(false);
        }
        // At most 3: `IndirectForm::root_slot` returns no deeper level.
        let anywhere = (LogicalBlock(0), u8::MAX, block);
        let named = self.cut_at.is_some_and(|first| logical >= first)
            || self.wanted.contains(&(logical, level as u8, block))
            || (level > 0 && self.wanted.contains(&anywhere))
            || (self.by_block && self.wanted.iter().any(|(_, _, other)| *other == block));
        if named {
            return Ok(true);
        }
        if level == 0 || !self.seen.insert(block) {
            return Ok(false);
        }
        // Nodes on critical metadata are not modified: cloning gives the file its own.
        if !self.by_block && self.stage.evidence.volume.is_metadata(block) {
            return Ok(false);
        }
        // In a plain list only the pointer is removed, because the node may hold another owner's
        // data.
        if self.by_block && self.stage.is_contested(block) {
            return Ok(true);
        }
        let Ok(mut bytes) = self.stage.read_block(block) else { return Ok(false) };
        let form = self.stage.geometry.indirect();
        let span = form.span_blocks(level - 1);
        let mut changed = false;
        for (index, slot) in (0u64..).zip(form.body_mut(&mut bytes).chunks_exact_mut(4)) {
            let mut word = [0; 4];
            word.copy_from_slice(slot);
            let below = LogicalBlock(logical.0 + index * span);
            if self.pointer(u32::from_le_bytes(word), below, level - 1)? {
                slot.fill(0);
                changed = true;
            }
        }
        if changed {
            self.stage.write_block(block, &bytes)?;
        }
        Ok(false)
    }
}
