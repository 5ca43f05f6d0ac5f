//! Prefetches mapping blocks (extent nodes, indirect blocks). They are discovered inode by inode,
//! and on an aged file system they lie anywhere. Their addresses are collected from many inodes at
//! once, sorted and joined, and announced to the device before the inodes are judged: it reads them
//! in disk order and several at a time, while single reads would seek and wait for each. Addresses
//! are not announced if three sampled blocks are all cached.
//!
//! Prefetching is only a hint: it judges nothing, skips invalid addresses, and changes nothing but
//! the time.

use floe_format::BlockNr;
use floe_format::ext::extent::ExtentNode;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::layout::{le16_at, le32_at};

use crate::volume::Volume;

/// Blocks between two wanted ones that are read along: cheaper than another request.
const GAP_BLOCKS: u64 = 8;

/// Tells the device which blocks the maps of some inodes lead to. `table` is a piece of an inode table;
/// `blocks` is room to list them. `false`: there was nothing to tell.
pub(crate) fn announce_maps(volume: &Volume<'_>, table: &[u8], blocks: &mut Vec<BlockNr>) -> bool {
    blocks.clear();
    for raw in table.chunks_exact(volume.geometry.inode_size.max(128) as usize) {
        first_level(raw, blocks);
    }
    announce_listed(volume, blocks)
}

/// Tells the device which blocks will be read; `room` is room to list them.
pub fn announce(
    volume: &Volume<'_>,
    blocks: impl Iterator<Item = BlockNr>,
    room: &mut Vec<BlockNr>,
) {
    room.clear();
    room.extend(blocks);
    announce_listed(volume, room);
}

/// The blocks that an inode itself names as blocks of its map.
fn first_level(raw: &[u8], blocks: &mut Vec<BlockNr>) {
    let links = le16_at(raw, 0x1a).unwrap_or(0);
    let mapped = le16_at(raw, 0)
        .and_then(FileType::of_mode)
        .is_some_and(|kind| matches!(kind, FileType::Regular | FileType::Directory));
    let (Some(flags), Some(map)) = (le32_at(raw, 0x20), raw.get(0x28..0x28 + 60)) else { return };
    let flags = InodeFlags::from_bits_retain(flags);
    if links == 0 || !mapped || flags.contains(InodeFlags::INLINE_DATA) {
        return;
    }
    if flags.contains(InodeFlags::EXTENTS) {
        let Some(root) = ExtentNode::new(map).filter(ExtentNode::header_ok) else { return };
        if root.header().depth > 0 {
            blocks.extend((0..root.header().entries).map(|at| root.index(at).node));
        }
    } else {
        let indirect = (12..15).filter_map(|at| le32_at(map, at * 4));
        blocks.extend(indirect.map(|block| BlockNr(block.into())));
    }
}

/// Whether things that lie on the disk are in memory, by the first, the middle and the last of them; `place`
/// says where one is.
pub(crate) fn are_at_hand<T>(volume: &Volume<'_>, of: &[T], place: impl Fn(&T) -> BlockNr) -> bool {
    let three = [0, of.len() / 2, of.len().saturating_sub(1)];
    three.into_iter().filter_map(|at| of.get(at)).all(|one| is_cached(volume, place(one)))
}

/// Whether a block is in memory.
pub fn is_cached(volume: &Volume<'_>, block: BlockNr) -> bool {
    volume.device.is_cached(volume.geometry.offset_bytes(block))
}

/// In the order of the disk; those outside the file system are left out. `false`: there was nothing to tell.
fn announce_listed(volume: &Volume<'_>, blocks: &mut Vec<BlockNr>) -> bool {
    let geometry = &volume.geometry;
    blocks.retain(|block| block.0 != 0 && geometry.contains(*block));
    blocks.sort_unstable();
    // From memory they come as they are asked for, and telling would cost a fifth of the reading.
    if are_at_hand(volume, blocks, |block| *block) {
        return false;
    }
    let near = |left: &BlockNr, right: &BlockNr| right.0 - left.0 <= GAP_BLOCKS;
    for run in blocks.chunk_by(near) {
        if let [first, ..] = run
            && let Some(last) = run.last()
        {
            let len_blocks = last.0 - first.0 + 1;
            let bytes = len_blocks * u64::from(geometry.block_size);
            volume.device.will_need(geometry.offset_bytes(*first), bytes);
        }
    }
    true
}
