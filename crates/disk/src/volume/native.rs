//! The end of writing to a native file system: regions reserved, backups of descriptors refreshed, and the seal.

use std::collections::BTreeMap;
use std::io;

use floe_blockdev::{Noting, ReadBlocks, WriteBlocks};
use floe_ext4::alloc::Space;
use floe_ext4::cubes::stored;
use floe_ext4::inode_table::{LOST, desc_place};
use floe_ext4::journal::find_cubes;
use floe_ext4::tx::Tx;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::inode::Timestamp;
use floe_format::ext::superblock::{OFFSET_BYTES, STATE_VALID, Superblock};
use floe_format::features::Incompat;
use floe_format::native::identity::{FLAG_RESERVED, Identity};
use floe_format::native::is_locked;
use floe_format::native::lot::{LotRecord, lot_groups};
use floe_format::{GroupNr, InodeNr};

use super::{Volume, cubes};
use crate::caller::Caller;
use crate::op_error::OpError;
use crate::space::Pool;

/// Lets a pool use the regions and cubes of a native file system. Sub-superblocks that cannot be read set no limits; they and
/// journals are read from `optional`, the owners of lots from `device` but for those that are known.
pub(super) fn use_lots(
    device: &dyn ReadBlocks,
    optional: &dyn ReadBlocks,
    superblock: &Superblock,
    space: &mut Pool,
    known: &BTreeMap<u32, u32>,
) {
    if Identity::of(superblock).is_some() {
        let seed = superblock.features().metadata_csum().then(|| superblock.seed());
        space.use_regions(lot_groups(superblock), seed);
        let (geo, descs) = (space.groups().geometry().clone(), space.groups().descs().to_vec());
        let mut read = descs.clone();
        for lot in known.keys() {
            read.get_mut((lot * lot_groups(superblock)) as usize)
                .into_iter()
                .for_each(|desc| *desc = LOST);
        }
        let mut owners = cubes::owners(device, superblock, &geo, &read);
        owners.extend(known.iter().filter(|(_, cube)| **cube > 0));
        let subs = stored(optional, superblock, &geo, &descs, None);
        space.use_cubes(owners, Identity::is_coupled(superblock));
        for own in find_cubes(optional, superblock, &geo, &descs).usable {
            match own.cube {
                0 => space.note_logs(&own.lots, own.inode, own.journal.blocks),
                cube => space.note_journal(cube, own.inode, own.journal.blocks),
            }
        }
        for (cube, sub) in subs {
            space.limit_cube(cube, sub.policies.limit_blocks);
            space.log_data(cube, sub.policies.journal_mode);
            space.note_top(cube, sub.top_inode);
        }
    }
}

/// Breaks the seal: from now on reservation files may be empty. `own_files` are the inodes that the names `/.cubes/super` and
/// `/.cubes/fence` lead to: the superblock is not logged, so after a crash it may name others. All other fields of the superblock are as they stay while it
/// is in use.
pub(super) fn unseal(
    superblock: &mut Superblock,
    own_files: [u32; 2],
    is_coupled: bool,
    knows_couples: bool,
) {
    if let Some(identity) = Identity::of(superblock) {
        let flags = identity.flags & !FLAG_RESERVED;
        let [super_inode, fence_inode] = own_files;
        Identity { flags, super_inode, fence_inode, ..identity }.put(superblock);
        Identity::put_in_use(superblock, is_coupled);
        if knows_couples {
            Identity::put_couples_known(superblock);
        }
    }
}

/// The superblock of a volume, with the inodes of `/.cubes/super` and `/.cubes/fence` that their names lead to.
pub(super) fn with_super_inode(
    device: &dyn ReadBlocks,
    mut superblock: Superblock,
    space: &Pool,
) -> Superblock {
    let Some(identity) = Identity::of(&superblock) else { return superblock };
    let (geo, descs) = (space.groups().geometry(), space.groups().descs());
    let noting = Noting::new(device);
    let named = cubes::own_inodes(&noting, &superblock, geo, descs).unwrap_or_default();
    if noting.judge().is_err() {
        return superblock;
    }
    let (super_inode, fence_inode) =
        (named.0.map_or(0, |inode| inode.0), named.1.map_or(0, |inode| inode.0));
    if (super_inode, fence_inode) != (identity.super_inode, identity.fence_inode) {
        Identity { super_inode, fence_inode, ..identity }.put(&mut superblock);
    }
    superblock
}

/// Says that all regions are reserved, by which [`seal`] knows that it may seal.
pub(crate) fn settle(superblock: &mut Superblock) {
    if let Some(identity) = Identity::of(superblock) {
        let (flags, epoch) = (identity.flags | FLAG_RESERVED, identity.epoch.saturating_add(1));
        Identity { flags, epoch, ..identity }.put(superblock);
    }
}

impl Volume {
    /// Lots whose regions must be reserved ([`Volume::reserve_lot`]) before [`Volume::end_writing`], so that the file system
    /// can be sealed: those that were written, or all if others wrote since it was sealed. None in a stock file system.
    pub fn lots_to_reserve(&self) -> Vec<u32> {
        if self.was_sealed { self.fs.space.open_lots() } else { self.fs.space.lots().collect() }
    }

    /// The cube to whose lots an inode belongs; 0: the root cube. The journal of that cube has each change of the inode, and of
    /// its names (a change that others have a part of is in theirs, too).
    pub fn cube_of(&self, inode: InodeNr) -> u32 {
        self.fs.space.cube_of(inode)
    }

    /// Whether names and blocks may lead from one cube into another, because a system that does not know cubes has written.
    pub const fn is_coupled(&self) -> bool {
        self.fs.space.is_coupled()
    }

    /// Whether sub-superblocks tell which cubes are coupled; if not, somebody must look at all files.
    pub fn knows_couples(&self) -> bool {
        Identity::of(&self.fs.superblock).is_some() && self.knows_couples
    }

    /// The directory of a cube, unless its sub-superblock is lost.
    pub fn top_of_cube(&self, cube: u32) -> Option<InodeNr> {
        self.fs.space.top_of(cube)
    }

    /// Cubes whose list of orphans is damaged: it is left as it is, for a repair.
    pub fn damaged_orphans(&self) -> &[u32] {
        &self.orphans.damaged
    }

    /// Entries in lists of orphans that name something of another cube, with the cube whose list it is. They are left alone.
    pub fn stray_orphans(&self) -> &[(u32, InodeNr)] {
        &self.orphans.strays
    }

    /// Whether the file system has cubes besides the root's.
    pub fn has_cubes(&self) -> bool {
        self.fs.space.has_cubes()
    }

    /// Blocks of the metadata region of each lot, free or not, as its record has them: data are never put there.
    pub fn region_blocks(&self, device: &dyn ReadBlocks) -> Vec<u64> {
        let geo = self.geometry();
        let first_of = |lot: u32| GroupNr(lot.saturating_mul(geo.descs_per_block()));
        let region = |lot: u32| {
            let (block, at) = desc_place(first_of(lot), geo);
            let mut raw = vec![0; geo.desc_size as usize];
            let read = device.read_at(geo.offset_bytes(block).saturating_add(at as u64), &mut raw);
            read.ok().and_then(|()| LotRecord::of(&raw)).map_or(0, |record| record.region_blocks)
        };
        self.fs.space.lots().map(|lot| u64::from(region(lot))).collect()
    }

    /// Gives the free blocks of a lot's region to its reservation file. Blocks that were freed must be so for good
    /// ([`Volume::durable`]).
    ///
    /// # Errors
    /// The file or the bitmaps cannot be changed.
    pub fn reserve_lot(
        &mut self,
        tx: &mut dyn Tx,
        now: Timestamp,
        lot: u32,
    ) -> Result<(), OpError> {
        let epoch = Identity::of(&self.fs.superblock).map_or(0, |own| own.epoch.saturating_add(1));
        self.op(tx, &Caller::system(now), |op| {
            Ok(op.volume.fs.space.reserve_lot(&mut op.tx, lot, epoch)?)
        })
    }

    /// Copies the descriptors of lots to their backups, which no journal knows. `device` shows all changes, which must be
    /// durable. Descriptors that lead elsewhere than those in use were damaged meanwhile: their backups stay as they are.
    ///
    /// # Errors
    /// The device's error.
    pub fn back_up_descriptors(&self, device: &dyn WriteBlocks, lots: &[u32]) -> io::Result<()> {
        let geo = self.geometry();
        let per_block = geo.descs_per_block();
        let mut bytes = vec![0; geo.block_size as usize];
        for &lot in lots {
            let first = lot.saturating_mul(per_block);
            let (primary, _) = desc_place(GroupNr(first), geo);
            // A read that fails once is no reason to end.
            let at = geo.offset_bytes(primary);
            device.read_at(at, &mut bytes).or_else(|_| device.read_at(at, &mut bytes))?;
            if !self.leads_where_it_should(GroupNr(first), &bytes) {
                continue;
            }
            let others = first.saturating_add(1)..first.saturating_add(per_block);
            for group in others.filter(|group| *group < geo.group_count).map(GroupNr) {
                let backup = geo.group_desc_run(group);
                // A meta block group has its descriptors in one block.
                if backup.len_blocks == 1 && geo.meta_group_of(group) >= geo.first_meta_bg {
                    device.write_at(geo.offset_bytes(backup.start), &bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Whether a block with the descriptors from a group on has the tables and bitmaps that are in use.
    fn leads_where_it_should(&self, first: GroupNr, block: &[u8]) -> bool {
        let places = |desc: &GroupDesc| (desc.inode_table, desc.block_bitmap, desc.inode_bitmap);
        let known = self.fs.space.groups().descs().iter().skip(first.0 as usize);
        let stored = block.chunks_exact(self.geometry().desc_size as usize).map(GroupDesc::of);
        known.zip(stored).all(|(known, stored)| places(known) == places(&stored))
    }
}

/// Seals a native file system that was left with all regions reserved and an empty journal. Any other is left as it is.
///
/// # Errors
/// The device's error.
pub fn seal(device: &dyn WriteBlocks) -> io::Result<()> {
    let mut bytes = [0; Superblock::SIZE];
    let mut read = || device.read_at(OFFSET_BYTES, &mut bytes);
    // One failed read does not leave a file system unsealed.
    read().or_else(|_| read())?;
    let mut superblock = Superblock::decode(&bytes);
    let Some(identity) = Identity::of(&superblock) else { return Ok(()) };
    let recovers = superblock.features().incompat.contains(Incompat::RECOVER);
    let is_clean = superblock.state & STATE_VALID != 0 && Superblock::checksum_ok(&bytes);
    if identity.flags & FLAG_RESERVED == 0 || recovers || !is_clean {
        return Ok(());
    }
    if is_locked(&superblock) {
        return Ok(());
    }
    identity.put_sealed(&mut superblock);
    superblock.encode_with_checksum(&mut bytes);
    device.write_at(OFFSET_BYTES, &bytes)?;
    device.flush()
}
