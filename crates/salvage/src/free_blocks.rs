//! Which blocks were freed, by block bitmaps whose checksum proves them.

use floe_blockdev::ReadBlocks;
use floe_format::ext::bitmap;
use floe_format::{BlockNr, GroupNr};

use crate::frame::Frame;

/// The blocks among `blocks` that a valid block bitmap calls free: what they hold was deleted. Blocks
/// of groups without a valid bitmap are not among them. Sorted, like `blocks`.
pub(crate) fn freed(device: &dyn ReadBlocks, frame: &Frame, blocks: &[BlockNr]) -> Vec<BlockNr> {
    let geometry = &frame.geometry;
    let mut freed = Vec::new();
    let mut current: Option<(GroupNr, Option<Vec<u8>>)> = None;
    for &block in blocks {
        let Some(group) = geometry.group_of(block) else { continue };
        if current.as_ref().is_none_or(|(of, _)| *of != group) {
            current = Some((group, proved_bitmap(device, frame, group)));
        }
        let Some((_, Some(bits))) = &current else { continue };
        let first = geometry.cluster_of(geometry.group_start(group));
        let at = geometry.cluster_of(block) - first;
        // A group has fewer than 2^32 clusters.
        if !bitmap::test(bits, at as u32) {
            freed.push(block);
        }
    }
    freed
}

/// The block bitmap of a group; `None` if no checksum proves it.
fn proved_bitmap(device: &dyn ReadBlocks, frame: &Frame, group: GroupNr) -> Option<Vec<u8>> {
    let (geometry, seed) = (&frame.geometry, frame.seed()?);
    let desc = frame.groups.get(usize::try_from(group.0).ok()?)?;
    if !frame.has_tables() || desc.block_uninit() || !geometry.contains(desc.block_bitmap) {
        return None;
    }
    let mut bits = vec![0; geometry.block_size as usize];
    device.read_at(geometry.offset_bytes(desc.block_bitmap), &mut bits).ok()?;
    let computed = bitmap::checksum(seed, &bits, geometry.clusters_per_group);
    bitmap::checksum_fits(desc.block_bitmap_csum, computed, geometry.desc_size).then_some(bits)
}
