//! The cubes of a native file system, read from its records and sub-superblocks (`docs/cubes.md`).

use std::collections::BTreeMap;

use floe_blockdev::ReadBlocks;
use floe_ext4::alloc::Space;
use floe_ext4::cubes;
use floe_ext4::files::Files;
use floe_ext4::inode_table::{desc_place, is_lost};
use floe_ext4::tx::read_block;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::superblock::Superblock;
use floe_format::native::identity::Identity;
use floe_format::native::lot::{LotRecord, lot_groups};
use floe_format::{Geometry, GroupNr, InodeNr};

use super::{Room, Volume};

/// The cube that owns each lot, by the records of the lots' first groups; lots of the root cube are left out, and those whose
/// descriptors are lost.
pub fn owners(
    device: &dyn ReadBlocks,
    superblock: &Superblock,
    geometry: &Geometry,
    descs: &[GroupDesc],
) -> BTreeMap<u32, u32> {
    let mut owners = BTreeMap::new();
    let lot_groups = lot_groups(superblock);
    let lots = if lot_groups > 0 { geometry.group_count.div_ceil(lot_groups) } else { 0 };
    for lot in 0..lots {
        if descs.get((lot * lot_groups) as usize).is_some_and(is_lost) {
            continue;
        }
        let (block, at) = desc_place(GroupNr(lot.saturating_mul(lot_groups)), geometry);
        let bytes = read_block(device, geometry, block).unwrap_or_default();
        let record = bytes.get(at..at + geometry.desc_size as usize).and_then(LotRecord::of);
        if let Some(record) = record.filter(|record| record.lot == lot && record.cube > 0) {
            owners.insert(lot, record.cube);
        }
    }
    owners
}

/// The inodes of `/.cubes/super` and `/.cubes/fence`, by their names.
pub(super) fn own_inodes(
    device: &dyn ReadBlocks,
    superblock: &Superblock,
    geometry: &Geometry,
    descs: &[GroupDesc],
) -> Option<(Option<InodeNr>, Option<InodeNr>)> {
    let home = InodeNr(Identity::of(superblock)?.home_inode);
    let files = Files::new(device, superblock.clone(), geometry.clone(), descs);
    cubes::own_inodes(&files, home).ok()
}

impl Volume {
    /// The cube that owns each lot; lots of the root cube are left out.
    pub fn lot_owners(&self) -> BTreeMap<u32, u32> {
        self.fs.space.lot_owners()
    }

    /// How often a lot has changed its owner since the volume was opened.
    pub fn owner_changes(&self) -> usize {
        self.fs.space.owner_changes()
    }

    /// Groups of a lot; 0 in a stock file system.
    pub fn lot_groups(&self) -> u32 {
        self.fs.space.lot_groups()
    }

    /// Blocks of a whole lot.
    pub fn lot_blocks(&self) -> u64 {
        self.fs.space.lot_blocks()
    }

    /// Blocks that the journal of a new cube has at most, by the lot without a cube that has most free blocks; `None` if there
    /// is none.
    pub fn most_cube_journal(&self) -> Option<u64> {
        let (owners, per_lot) = (self.lot_owners(), self.lot_groups() as usize);
        // Lot 0 is never a cube's.
        let lots = self.groups().chunks(per_lot.max(1)).zip(0..).skip(1);
        let free = lots.filter(|(_, lot)| !owners.contains_key(lot)).map(|(descs, _)| {
            descs.iter().map(|desc| u64::from(desc.free_blocks_count)).sum::<u64>()
        });
        // The block for orphans lies behind the journal.
        free.max().map(|free| free.saturating_sub(1))
    }

    /// Blocks and free blocks, inodes and free inodes of a cube's lots.
    pub fn room_of_cube(&self, cube: u32) -> [u64; 4] {
        let groups = self.fs.space.groups();
        let geometry = groups.geometry();
        let mut room = [0; 4];
        for (group, desc) in (0..).map(GroupNr).zip(groups.descs()) {
            if self.fs.space.cube_of_group(group) == cube {
                let inodes = [geometry.inodes_per_group, desc.free_inodes_count].map(u64::from);
                let blocks = [geometry.blocks_of(group).len_blocks, desc.free_blocks_count.into()];
                let more = blocks.into_iter().chain(inodes);
                room.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
            }
        }
        room
    }

    /// Free space in the lots that a cube has now, and the sum of `regions`, which are blocks by lot, of them. 0 stands for the
    /// root cube, which has all lots that no cube has; the blocks that are reserved for the administrator are its.
    pub fn room_in(&self, cube: u32, regions: &[u64]) -> (Room, u64) {
        let kept = |lots: &mut dyn Iterator<Item = u32>| -> u64 {
            lots.filter_map(|lot| regions.get(lot as usize)).sum()
        };
        let free = |lots: &mut dyn Iterator<Item = u32>| -> (u64, u64) {
            let geo = self.geometry();
            let mut sum = (0, 0);
            for lot in lots {
                let first = self.fs.space.first_group(lot).0;
                let groups = first..first.saturating_add(self.lot_groups()).min(geo.group_count);
                for desc in groups.filter_map(|group| self.groups().get(group as usize)) {
                    sum.0 += u64::from(desc.free_blocks_count) << geo.cluster_bits;
                    sum.1 += u64::from(desc.free_inodes_count);
                }
            }
            sum
        };
        if cube > 0 {
            let lots = self.fs.space.lots_of(cube);
            let (free_blocks, free_inodes) = free(&mut lots.iter().copied());
            let room = Room { free_blocks, available_blocks: free_blocks, free_inodes };
            return (room, kept(&mut lots.iter().copied()));
        }
        let all = self.room();
        if !self.has_cubes() {
            return (all, regions.iter().sum());
        }
        let owned = || self.lot_owners().into_keys();
        let (blocks, inodes) = free(&mut owned());
        let room = Room {
            free_blocks: all.free_blocks.saturating_sub(blocks),
            available_blocks: all.available_blocks.saturating_sub(blocks),
            free_inodes: all.free_inodes.saturating_sub(inodes),
        };
        (room, regions.iter().sum::<u64>().saturating_sub(kept(&mut owned())))
    }

    /// Blocks that a change of a cube may take of its own journal; without one there is no limit.
    pub fn share_of_journal(&self, cube: u32) -> usize {
        self.fs.space.share_of_journal(cube)
    }

    /// Whether a cube that is full may take free lots. It may until this is called.
    pub fn let_grow(&mut self, may: bool) {
        self.fs.space.let_grow(may);
    }
}
