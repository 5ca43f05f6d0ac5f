//! The cubes of a native file system (`docs/cubes.md`): who owns each lot, by the records in the descriptors, and what the
//! sub-superblocks say.

use std::collections::{BTreeMap, BTreeSet};

use floe_blockdev::ReadBlocks;
use floe_ext4::cubes::{self, Copies};
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::native::cube::SubSuperblock;
use floe_format::native::identity::Identity;
use floe_format::native::lot::{LotRecord, is_desc_size};
use floe_format::{BlockNr, BlockRun, Geometry, GroupNr, InodeNr};
use floe_sync::Arc;

use crate::volume::Volume;

/// The owners of all lots, and the sub-superblocks of cubes.
#[derive(Clone, Debug, Default)]
pub struct CubeMap {
    /// Groups of a lot.
    lot_groups: u32,
    /// The owner of each lot; 0: the root cube.
    owners: Vec<u32>,
    /// Names and blocks may lead from one cube into another, because a system that does not know cubes has written.
    coupled: bool,
    /// Both copies of each sub-superblock; `None` if the blocks of `/.cubes/super` cannot be found.
    copies: Option<BTreeMap<u32, Copies>>,
    /// Directories of cubes.
    tops: BTreeSet<InodeNr>,
    /// Cubes whose directory is not known.
    topless: BTreeSet<u32>,
    /// Reservation files, which directories of the root cube name.
    reservations: BTreeSet<InodeNr>,
    /// The journals of cubes, which `/.cubes` names.
    journals: BTreeSet<InodeNr>,
    /// `/.cubes/super`, whose blocks lie in all cubes.
    super_file: InodeNr,
    /// `/.cubes/fence`, which holds free blocks of all cubes; 0: there is none.
    fence: InodeNr,
}

/// Facts from outside a cube that a check of the cube needs.
#[derive(Clone, Debug)]
pub struct OneCube {
    /// The owners of all lots.
    pub map: Arc<CubeMap>,
    /// Orphans in lots of the cube; sorted.
    pub orphans: Vec<InodeNr>,
}

impl CubeMap {
    /// Reads records and sub-superblocks. `None` where there is no cube.
    pub fn of(volume: &Volume<'_>) -> Option<Self> {
        Self::of_one(volume, |_| None)
    }

    /// The same, with the sub-superblock of one cube alone, which `only` finds by the owners of lots; of all without a number.
    pub(crate) fn of_one(
        volume: &Volume<'_>,
        only: impl FnOnce(&Self) -> Option<u32>,
    ) -> Option<Self> {
        let identity = Identity::of(&volume.superblock)?;
        let geometry = &volume.geometry;
        if !is_desc_size(geometry.desc_size) {
            return None;
        }
        let lot_groups = geometry.descs_per_block();
        let (super_file, fence) = own_files(volume, &identity);
        let is_backup = volume.doubts.used_backup.is_some();
        let coupled = is_coupled(volume.device, &volume.superblock, is_backup);
        let mut map = Self { lot_groups, super_file, fence, coupled, ..Self::default() };
        let mut bytes = Vec::new();
        for lot in 0..geometry.desc_blocks {
            let block = geometry.primary_desc_block(lot);
            let is_read = !volume.is_absent(block) && volume.read_block(block, &mut bytes).is_ok();
            let record = is_read.then(|| record_of(volume, lot, lot_groups, &bytes)).flatten();
            map.owners.push(record.as_ref().map_or(0, |record| record.cube));
            map.reservations.extend(record.map(|record| InodeNr(record.region_inode)));
        }
        let only = only(&map);
        map.copies = read_copies(volume, super_file, only);
        let numbers: BTreeSet<u32> = map.owners.iter().copied().filter(|cube| *cube > 0).collect();
        if numbers.is_empty() && map.copies.as_ref().is_none_or(BTreeMap::is_empty) {
            return None;
        }
        for cube in numbers {
            match map.current(cube) {
                Some(sub) => {
                    map.tops.insert(InodeNr(sub.top_inode));
                    map.journals.insert(InodeNr(sub.journal.inode));
                }
                None => drop(map.topless.insert(cube)),
            }
        }
        Some(map)
    }

    /// Whether names and blocks may lead from one cube into another.
    pub const fn is_coupled(&self) -> bool {
        self.coupled
    }

    /// The directory of a cube, if it lies in the cube.
    pub fn top_of(&self, geometry: &Geometry, cube: u32) -> Option<InodeNr> {
        let top = InodeNr(self.current(cube)?.top_inode);
        (self.of_inode(geometry, top) == cube).then_some(top)
    }

    /// Groups of a whole lot.
    pub const fn lot_groups(&self) -> u32 {
        self.lot_groups
    }

    /// Both copies of each sub-superblock; `None` if they cannot be found.
    pub const fn copies(&self) -> Option<&BTreeMap<u32, Copies>> {
        self.copies.as_ref()
    }

    /// The copy of a sub-superblock that counts.
    pub fn current(&self, cube: u32) -> Option<SubSuperblock> {
        cubes::current(cube, self.copies.as_ref()?.get(&cube)?)
    }

    /// The inode of `/.cubes/super`.
    pub const fn super_file(&self) -> InodeNr {
        self.super_file
    }

    /// Whether free blocks of cubes are held for them while another system may write.
    pub const fn has_fence(&self) -> bool {
        self.fence.0 > 0
    }

    /// The reservation files of all lots.
    pub const fn reservations(&self) -> &BTreeSet<InodeNr> {
        &self.reservations
    }

    /// The lots of a cube.
    pub fn lots_of(&self, cube: u32) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.owners).filter(move |(_, owner)| **owner == cube).map(|(lot, _)| lot)
    }

    /// Numbers of all cubes that own a lot, besides the root cube.
    pub fn numbers(&self) -> BTreeSet<u32> {
        self.owners.iter().copied().filter(|cube| *cube > 0).collect()
    }

    /// The cube that owns the lot of a group; 0: the root cube.
    pub fn of_group(&self, group: GroupNr) -> u32 {
        let lot = group.0.checked_div(self.lot_groups).unwrap_or(0);
        self.owners.get(lot as usize).copied().unwrap_or(0)
    }

    /// The cube of an inode.
    pub fn of_inode(&self, geometry: &Geometry, inode: InodeNr) -> u32 {
        geometry.place_of(inode).map_or(0, |(group, _)| self.of_group(group))
    }

    /// The cube of a block.
    pub fn of_block(&self, geometry: &Geometry, block: BlockNr) -> u32 {
        geometry.group_of(block).map_or(0, |group| self.of_group(group))
    }

    /// The cube of an inode and that of a run of its blocks, if they differ. Blocks of `/.cubes/super` and `/.cubes/fence` may
    /// lie in any.
    pub fn left_by(
        &self,
        geometry: &Geometry,
        inode: InodeNr,
        run: BlockRun,
    ) -> Option<(u32, u32)> {
        if inode == self.super_file || inode == self.fence || run.len_blocks == 0 {
            return None;
        }
        let own = self.of_inode(geometry, inode);
        let ends = [run.start, BlockNr(run.end().0 - 1)].map(|block| geometry.group_of(block));
        // Blocks outside of the file system are another finding.
        let [Some(first), Some(last)] = ends else { return None };
        let mut others = (first.0..=last.0).map(|group| self.of_group(GroupNr(group)));
        others.find(|other| *other != own).map(|other| (own, other))
    }

    /// Whether blocks of an inode lie in another cube although none may.
    pub fn is_outside(&self, geometry: &Geometry, inode: InodeNr, run: BlockRun) -> bool {
        !self.coupled && self.left_by(geometry, inode, run).is_some()
    }

    /// Whether a directory may name an inode: it lies in the same cube, is the directory or the journal of a cube, or is a
    /// reservation file.
    pub fn may_name(&self, geometry: &Geometry, dir: InodeNr, inode: InodeNr) -> bool {
        let (own, other) = (self.of_inode(geometry, dir), self.of_inode(geometry, inode));
        own == other
            || own == 0
                && (self.tops.contains(&inode)
                    || self.reservations.contains(&inode)
                    || self.journals.contains(&inode)
                    || self.topless.contains(&other))
    }
}

/// The record that the first descriptor of a lot with a valid one has.
fn record_of(volume: &Volume<'_>, lot: u32, lot_groups: u32, bytes: &[u8]) -> Option<LotRecord> {
    let groups = (lot.saturating_mul(lot_groups)..volume.geometry.group_count).map(GroupNr);
    let raws = bytes.chunks_exact(volume.geometry.desc_size as usize);
    groups
        .zip(raws)
        .filter(|(group, _)| !volume.doubts.distrusted.contains(group))
        .filter_map(|(_, raw)| LotRecord::of(raw))
        .find(|record| record.lot == lot)
}

/// `/.cubes/super` and `/.cubes/fence`: what the superblock names if it was the last to be written; else what the names lead to.
fn own_files(volume: &Volume<'_>, identity: &Identity) -> (InodeNr, InodeNr) {
    let named = (InodeNr(identity.super_inode), InodeNr(identity.fence_inode));
    if is_sealed(volume) {
        return named;
    }
    let files = volume.files();
    match cubes::own_inodes(&files, InodeNr(identity.home_inode)) {
        Ok((own, fence)) => {
            let theirs = |own: Option<InodeNr>, stated: InodeNr| match own.unwrap_or_default() {
                own if own != stated && !volume.is_own_file(own) && volume.is_own_file(stated) => {
                    stated
                }
                own => own,
            };
            (theirs(own, named.0), theirs(fence, named.1))
        }
        Err(_) => named,
    }
}

/// Whether names and blocks may lead from one cube into another. Only the primary superblock tells, also where `superblock`, which is in
/// use, `is_backup`: often the primary descriptors alone are damaged. They may if it is damaged itself.
pub fn is_coupled(device: &dyn ReadBlocks, superblock: &Superblock, is_backup: bool) -> bool {
    if !is_backup {
        return Identity::is_coupled(superblock);
    }
    let mut bytes = [0; Superblock::SIZE];
    let is_sound = device.read_at(OFFSET_BYTES, &mut bytes).is_ok()
        && Superblock::checksum_ok(&bytes)
        && Identity::of(&Superblock::decode(&bytes)).is_some();
    !is_sound || Identity::is_coupled(&Superblock::decode(&bytes))
}

/// Whether the primary superblock is in use, and nobody has written since Floe sealed it.
pub(crate) fn is_sealed(volume: &Volume<'_>) -> bool {
    volume.doubts.used_backup.is_none() && Identity::is_sealed(&volume.superblock)
}

/// Both copies of sub-superblocks; `None` if the map of their file is damaged.
fn read_copies(
    volume: &Volume<'_>,
    file: InodeNr,
    only: Option<u32>,
) -> Option<BTreeMap<u32, Copies>> {
    if file.0 == 0 {
        return Some(BTreeMap::new());
    }
    let files = volume.files();
    let node = files.node(file).ok().filter(|node| node.checksum_ok && node.in_use())?;
    let inode = node.inode();
    let mut read = |block| {
        let mut bytes = Vec::new();
        volume.read_block(block, &mut bytes).ok().map(|()| bytes)
    };
    let (words, flags) = (&inode.base.block, inode.flags());
    cubes::read_of(words, flags, &volume.geometry, only, &mut read).ok()
}
