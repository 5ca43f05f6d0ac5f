//! The cubes of a native file system, read from its records and sub-superblocks (`docs/cubes.md`).

use std::collections::BTreeMap;

use floe_blockdev::ReadBlocks;
use floe_ext4::cubes;
use floe_ext4::files::Files;
use floe_ext4::inode_table::{desc_place, read_inode};
use floe_ext4::tx::read_block;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::inode::Inode;
use floe_format::ext::superblock::Superblock;
use floe_format::native::cube::SubSuperblock;
use floe_format::native::identity::Identity;
use floe_format::native::lot::LotRecord;
use floe_format::{Geometry, GroupNr, InodeNr};

/// The cube that owns each lot, by the records of the lots' first groups; lots of the root cube are left out.
pub fn owners(
    device: &dyn ReadBlocks,
    superblock: &Superblock,
    geometry: &Geometry,
) -> BTreeMap<u32, u32> {
    let mut owners = BTreeMap::new();
    if Identity::of(superblock).is_none() {
        return owners;
    }
    let lot_groups = 1u32.checked_shl(u32::from(superblock.log_groups_per_flex)).unwrap_or(0);
    let lots = if lot_groups > 0 { geometry.group_count.div_ceil(lot_groups) } else { 0 };
    for lot in 0..lots {
        let (block, at) = desc_place(GroupNr(lot.saturating_mul(lot_groups)), geometry);
        let bytes = read_block(device, geometry, block).unwrap_or_default();
        let record = bytes.get(at..at + geometry.desc_size as usize).and_then(LotRecord::of);
        if let Some(record) = record.filter(|record| record.lot == lot && record.cube > 0) {
            owners.insert(lot, record.cube);
        }
    }
    owners
}

/// The inode of `/.cubes/super`, by its name.
pub fn super_inode(
    device: &dyn ReadBlocks,
    superblock: &Superblock,
    geometry: &Geometry,
    descs: &[GroupDesc],
) -> Option<InodeNr> {
    let home = InodeNr(Identity::of(superblock)?.home_inode);
    let files = Files::new(device, superblock.clone(), geometry.clone(), descs.to_vec());
    cubes::super_inode(&files, home).ok()?
}

/// The sub-superblock of each cube, by its number. Cubes whose copies are both damaged are left out.
pub fn sub_superblocks(
    device: &dyn ReadBlocks,
    superblock: &Superblock,
    geometry: &Geometry,
    descs: &[GroupDesc],
) -> BTreeMap<u32, SubSuperblock> {
    let Some(number) = super_inode(device, superblock, geometry, descs) else {
        return BTreeMap::new();
    };
    let raw = read_inode(number, device, geometry, descs);
    let Some(inode) = raw.as_deref().and_then(Inode::decode) else { return BTreeMap::new() };
    let mut read = |block| read_block(device, geometry, block).ok();
    let copies = cubes::read(&inode.base.block, inode.flags(), geometry, &mut read);
    let current =
        |(cube, copies): (u32, cubes::Copies)| Some((cube, cubes::current(cube, &copies)?));
    copies.unwrap_or_default().into_iter().filter_map(current).collect()
}
