//! The bytes of attribute values that lie in inodes of their own, as Linux reads them: by the map alone, whatever the type of the
//! inode, and from unwritten extents, too.
//! Reads: mapping blocks of an inode that holds a value, and its bytes.

use floe_ext4::map::runs::BlockMap;
use floe_ext4::map::walk::Depths;
use floe_format::BlockNr;
use floe_format::ext::inode::{InodeBase, InodeFlags};
use floe_format::ext::xattr::MAX_VALUE_SIZE;

use crate::volume::Volume;

/// Why a value was not read.
pub(super) enum Unread {
    /// Part of its map cannot be read.
    MapUnreadable,
    /// This block of it cannot be read.
    Unreadable(BlockNr),
    /// It is none, for this reason.
    Fault(&'static str),
}

/// Reads the first `size` bytes of an inode that holds a value.
pub(super) fn read(volume: &Volume<'_>, inode: &InodeBase, size: u32) -> Result<Vec<u8>, Unread> {
    if size > MAX_VALUE_SIZE {
        return Err(Unread::Fault("it is longer than values can be"));
    }
    let geo = &volume.geometry;
    let block_size = u64::from(geo.block_size);
    let blocks = u64::from(size).div_ceil(block_size);
    let mut is_readable = true;
    let mut node = |node| {
        let mut bytes = Vec::new();
        is_readable &= volume.read_block(node, &mut bytes).is_ok();
        is_readable.then_some(bytes)
    };
    let flags = InodeFlags::from_bits_retain(inode.flags);
    let map = BlockMap::follow(&inode.block, flags, geo, Depths::OfRoot, blocks, &mut node);
    if !is_readable {
        return Err(Unread::MapUnreadable);
    }
    let Ok(map) = map else { return Err(Unread::Fault("the map of that inode is damaged")) };
    if map.blocks_without_hole() < blocks {
        return Err(Unread::Fault("that inode lacks blocks of it"));
    }
    let mut value = vec![0; size as usize];
    let mut rest = value.as_mut_slice();
    for run in map.runs().iter().map(|extent| extent.run) {
        let len = run.len_blocks.saturating_mul(block_size).min(rest.len() as u64) as usize;
        let (part, left) = rest.split_at_mut(len);
        if volume.device.read_at(geo.offset_bytes(run.start), part).is_err() {
            return Err(Unread::Unreadable(first_unreadable(volume, run.start, part)));
        }
        rest = left;
    }
    Ok(value)
}

/// The first block of a run that cannot be read.
fn first_unreadable(volume: &Volume<'_>, start: BlockNr, bytes: &mut [u8]) -> BlockNr {
    let geo = &volume.geometry;
    let mut block = start;
    for part in bytes.chunks_mut(geo.block_size as usize) {
        if volume.device.read_at(geo.offset_bytes(block), part).is_err() {
            break;
        }
        block.0 += 1;
    }
    block
}
