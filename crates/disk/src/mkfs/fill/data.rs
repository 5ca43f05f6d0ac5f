//! Finds the blocks of a file that contain data, and reads them.

use std::io;

use floe_format::ext::inode::FileType;

use super::TreePlan;
use crate::mkfs::params::PlanError;
use crate::mkfs::tree::{Body, Contents, Data, Node};

/// Longest target of a symbolic link that fits in the inode, in bytes.
pub(super) const FAST_SYMLINK: usize = 59;

/// Whether the symbolic link at an index of the order needs a block.
pub(super) fn needs_block(plan: &TreePlan<'_>, at: usize) -> Result<bool, PlanError> {
    let node = plan.order[at];
    let Body::Symlink(target) = plan.tree.node(node).body() else { return Ok(false) };
    // Linux requires space for a NUL.
    if target.is_empty() || target.len() >= plan.plan.geometry.block_size.min(4096) as usize {
        return Err(plan.refuse(node, "the target of the symbolic link is empty or too long"));
    }
    Ok(target.len() > FAST_SYMLINK)
}

/// Runs of logical blocks with data (first, length), in order. With bigalloc they are whole
/// clusters, up to the end of the file.
pub(super) fn data_runs(node: &Node, block_size: u64, ratio: u64) -> Vec<(u64, u64)> {
    let Body::File { size, data } = node.body() else { return Vec::new() };
    let end = size.div_ceil(block_size);
    let extents = match data {
        Data::Whole { .. } if end == 0 => return Vec::new(),
        Data::Whole { .. } => return vec![(0, end)],
        Data::Sparse(extents) => extents,
    };
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for extent in extents {
        let first = extent.at / block_size / ratio * ratio;
        let behind = (extent.at + extent.len).div_ceil(block_size).next_multiple_of(ratio).min(end);
        match runs.last_mut() {
            Some((start, len)) if first <= *start + *len => *len = (*len).max(behind - *start),
            _ => runs.push((first, behind - first)),
        }
    }
    runs
}

/// Fills `into` with the bytes of a file from byte `from` on, with zeroes in holes and past its
/// end.
///
/// # Errors
/// Errors of reading the content.
pub(super) fn read(
    node: &Node,
    contents: &dyn Contents,
    from: u64,
    into: &mut [u8],
) -> io::Result<()> {
    match node.body() {
        Body::File { size, data: Data::Whole { content, from: start } } => {
            let have = size.saturating_sub(from).min(into.len() as u64) as usize;
            let (data, rest) = into.split_at_mut(have);
            rest.fill(0);
            if have > 0 {
                contents.read_at(*content, start + from, data)?;
            }
        }
        Body::File { data: Data::Sparse(extents), .. } => {
            into.fill(0);
            let end = from + into.len() as u64;
            let first = extents.partition_point(|extent| extent.at + extent.len <= from);
            for extent in extents[first..].iter().take_while(|extent| extent.at < end) {
                let (start, stop) = (extent.at.max(from), (extent.at + extent.len).min(end));
                let part = &mut into[(start - from) as usize..(stop - from) as usize];
                contents.read_at(extent.content, extent.from + (start - extent.at), part)?;
            }
        }
        Body::Symlink(target) if from == 0 => {
            into.fill(0);
            if let Some(place) = into.get_mut(..target.len()) {
                place.copy_from_slice(target);
            }
        }
        _ => into.fill(0),
    }
    Ok(())
}

/// Whether a node's blocks are placed with the directories rather than with file data.
pub(super) fn among_names(file_type: FileType) -> bool {
    matches!(file_type, FileType::Directory | FileType::Symlink)
}
