//! The places of inodes and descriptors.

use std::io;

use floe_blockdev::ReadBlocks;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::{BlockNr, Geometry, GroupNr, InodeNr};

/// Beyond every file system: ext4 has blocks of 48 bits.
const NOWHERE: BlockNr = BlockNr(1 << 48);

/// Stands for the descriptor of a group of a lot that is not used: nothing is free in it, and it leads nowhere.
pub const LOST: GroupDesc = GroupDesc {
    block_bitmap: NOWHERE,
    inode_bitmap: NOWHERE,
    inode_table: NOWHERE,
    free_blocks_count: 0,
    free_inodes_count: 0,
    used_dirs_count: 0,
    flags: 0,
    block_bitmap_csum: 0,
    inode_bitmap_csum: 0,
    itable_unused: 0,
    checksum: 0,
};

/// Whether a descriptor is [`LOST`].
pub fn is_lost(desc: &GroupDesc) -> bool {
    desc.inode_table == NOWHERE
}

/// The bytes of an inode; `None` if its number or table is out of range or it cannot be read.
pub fn read_inode(
    inode: InodeNr,
    device: &dyn ReadBlocks,
    geo: &Geometry,
    groups: &[GroupDesc],
) -> Option<Vec<u8>> {
    let offset = inode_offset(inode, geo, groups)?;
    let mut raw = vec![0; geo.inode_size as usize];
    device.read_at(offset, &mut raw).ok().map(|()| raw)
}

/// Byte of the device at which an inode starts.
pub fn inode_offset(inode: InodeNr, geo: &Geometry, groups: &[GroupDesc]) -> Option<u64> {
    let (group, index) = geo.place_of(inode)?;
    let table = groups.get(usize::try_from(group.0).ok()?)?.inode_table;
    let last = BlockNr(table.0.checked_add(u64::from(geo.inode_table_blocks))?.checked_sub(1)?);
    if !geo.contains(table) || !geo.contains(last) {
        return None;
    }
    Some(geo.offset_bytes(table) + u64::from(index) * u64::from(geo.inode_size))
}

/// The block of an inode, and its offset in it.
pub fn inode_place(
    inode: InodeNr,
    geo: &Geometry,
    groups: &[GroupDesc],
) -> Option<(BlockNr, usize)> {
    let (offset, size) = (inode_offset(inode, geo, groups)?, u64::from(geo.block_size));
    // Less than the size of a block.
    Some((BlockNr(offset / size), (offset % size) as usize))
}

/// The block of a group's primary descriptor, and its offset in it.
pub fn desc_place(group: GroupNr, geo: &Geometry) -> (BlockNr, usize) {
    let per_block = geo.descs_per_block();
    let block = geo.primary_desc_block(group.0 / per_block);
    (block, (group.0 % per_block * geo.desc_size) as usize)
}

/// Blocks of descriptors that one read takes at most.
const BLOCKS_PER_READ: usize = 256;

/// All descriptors of the primary table; `None` if one cannot be read.
pub fn read_groups(device: &dyn ReadBlocks, geo: &Geometry) -> Option<Vec<GroupDesc>> {
    let mut groups = Vec::with_capacity(usize::try_from(geo.group_count).ok()?);
    each_desc(device, geo, |_, raw| groups.push(GroupDesc::of(raw))).ok()?;
    Some(groups)
}

/// The descriptors up to that of an inode's group, and perhaps some behind it: all that is needed to read the inode, which a
/// large file system has in its first groups. `None` as [`read_groups`].
pub fn read_groups_to(
    inode: InodeNr,
    device: &dyn ReadBlocks,
    geo: &Geometry,
) -> Option<Vec<GroupDesc>> {
    let (group, _) = geo.place_of(inode).unwrap_or_default();
    let blocks = (group.0 / geo.descs_per_block().max(1) + 1).min(geo.desc_blocks);
    let mut groups = Vec::new();
    each_desc_in(device, geo, blocks, |_, raw| groups.push(GroupDesc::of(raw))).ok()?;
    Some(groups)
}

/// Hands all descriptors of the primary table to `take`, in order. Neighbouring blocks are read at once.
///
/// # Errors
/// The first of the blocks that could not be read, which a backup may have.
pub fn each_desc(
    device: &dyn ReadBlocks,
    geo: &Geometry,
    take: impl FnMut(GroupNr, &[u8]),
) -> Result<(), (BlockNr, io::Error)> {
    each_desc_in(device, geo, geo.desc_blocks, take)
}

/// The same for the first blocks of the table.
fn each_desc_in(
    device: &dyn ReadBlocks,
    geo: &Geometry,
    blocks: u32,
    mut take: impl FnMut(GroupNr, &[u8]),
) -> Result<(), (BlockNr, io::Error)> {
    let blocks: Vec<BlockNr> = (0..blocks).map(|at| geo.primary_desc_block(at)).collect();
    let mut groups = (0..geo.group_count).map(GroupNr);
    let mut bytes = Vec::new();
    let runs = blocks.chunk_by(|one, next| one.0 + 1 == next.0);
    for part in runs.flat_map(|run| run.chunks(BLOCKS_PER_READ)) {
        let Some(&first) = part.first() else { continue };
        bytes.resize(part.len() * geo.block_size as usize, 0);
        device.read_at(geo.offset_bytes(first), &mut bytes).map_err(|error| (first, error))?;
        for (raw, group) in bytes.chunks_exact(geo.desc_size as usize).zip(&mut groups) {
            take(group, raw);
        }
    }
    Ok(())
}
