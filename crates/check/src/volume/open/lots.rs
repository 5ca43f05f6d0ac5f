//! Damaged descriptors of a lot of a native file system: each lot has copies of its own, so that the descriptors of all others are
//! read from their own places. A backup of the whole file system would be older than they are, and hide what other cubes have.

use floe_blockdev::ReadBlocks;
use floe_format::GroupNr;
use floe_format::ext::group_desc::{DescChecksum, GroupDesc};
use floe_format::native::lot::is_desc_size;

use super::Opened;
use crate::volume::layout_map::LayoutMap;

/// The file system with the copies of damaged descriptors, if that makes all of them sane.
pub(super) fn mended(device: &dyn ReadBlocks, opened: &Opened) -> Option<Opened> {
    opened.layout.insane?;
    let geometry = &opened.geometry;
    // The identity may be lost, and what shows one cube alone has none.
    if !is_desc_size(geometry.desc_size) {
        return None;
    }
    let per_lot = geometry.descs_per_block();
    let checksum = DescChecksum::of(&opened.superblock);
    let mut mended = opened.clone();
    for lot in 0..geometry.desc_blocks {
        let first = lot * per_lot;
        let end = (first + per_lot).min(geometry.group_count);
        let read = |block| {
            let mut bytes = vec![0; geometry.block_size as usize];
            device.read_at(geometry.offset_bytes(block), &mut bytes).ok()?;
            let raws =
                (first..end).map(GroupNr).zip(bytes.chunks_exact(geometry.desc_size as usize));
            let descs: Vec<(bool, GroupDesc)> = raws
                .map(|(group, raw)| {
                    let desc = GroupDesc::of(raw);
                    (checksum.compute(group, raw) == Some(desc.checksum), desc)
                })
                .collect();
            descs.iter().all(|(fits, _)| *fits).then_some(descs)
        };
        if read(geometry.primary_desc_block(lot)).is_some() {
            continue;
        }
        // All groups of a lot with a copy, but for the first one, whose block was read.
        let copies = (first + 1..end).map(|group| geometry.group_desc_run(GroupNr(group)));
        let copy = copies.filter(|run| run.len_blocks > 0).find_map(|run| read(run.start));
        for (group, (_, desc)) in (first as usize..).zip(copy.into_iter().flatten()) {
            *mended.groups.get_mut(group)? = desc;
        }
    }
    let size_bytes = device.size_bytes();
    mended.layout = LayoutMap::new(&mended.superblock, geometry, &mended.groups, size_bytes);
    mended.layout.insane.is_none().then_some(mended)
}
