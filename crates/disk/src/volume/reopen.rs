//! A volume in use is read anew.

use std::collections::BTreeMap;

use floe_blockdev::ReadBlocks;
use floe_ext4::alloc::FromBitmaps;
use floe_ext4::apart::Lots;
use floe_ext4::fs::{FileSystem, read_superblock};
use floe_ext4::group::Groups;
use floe_ext4::tx::Tx;
use floe_format::ext::inode::Timestamp;
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::{Geometry, GroupNr};

use super::{OpenError, Volume};
use crate::caller::Caller;
use crate::op_error::OpError;

impl Volume {
    /// Reads everything anew after an operation panicked or blocks were changed below the volume; all changes before must be
    /// durable. `device` shows them. Descriptors of lots that were damaged below the volume stay as they are in use.
    ///
    /// # Errors
    /// The volume cannot be opened; it is as before then, and must not be used any more.
    pub fn reopen(&mut self, device: &dyn ReadBlocks, tx: &mut dyn Tx) -> Result<(), OpError> {
        let (superblock, geometry) = read_superblock(device)?;
        let fs = FileSystem::of_sound(device, superblock.clone(), geometry.clone());
        let new = match fs {
            Ok(fs) if fs.1.keys().all(|cube| self.lost.contains_key(cube)) => Self::of(device, fs),
            // Nobody keeps the users of other cubes away.
            _ => self.beside_damage(device, superblock, geometry).ok_or(OpError::Stopped)?,
        };
        let mut new = new.map_err(|_| OpError::Stopped)?;
        (new.was_clean, new.enforced) = (self.was_clean, std::mem::take(&mut self.enforced));
        new.lost.append(&mut self.lost.clone());
        new.let_grow(self.fs.space.may_grow());
        new.fs.space.take_over(&mut self.fs.space);
        new.op(tx, &Caller::system(Timestamp::default()), |op| op.read_orphans())?;
        *self = new;
        Ok(())
    }

    /// The volume read from a device on which descriptors of some lots cannot be read or have a wrong checksum: those in use count.
    /// `None` if more is wrong.
    fn beside_damage(
        &self,
        device: &dyn ReadBlocks,
        superblock: Superblock,
        geometry: Geometry,
    ) -> Option<Result<Self, OpenError>> {
        let mut bytes = [0; Superblock::SIZE];
        device.read_at(OFFSET_BYTES, &mut bytes).ok()?;
        let lots = Lots::read(device, &superblock, &geometry)?;
        if !Superblock::checksum_ok(&bytes) || geometry.group_count != self.geometry().group_count {
            return None;
        }
        let (mut descs, per_lot) = (lots.descs.clone(), self.lot_groups().max(1));
        let mut owners = BTreeMap::new();
        for lot in (0..geometry.group_count.div_ceil(per_lot)).filter(|lot| lots.is_damaged(*lot)) {
            let first = self.fs.space.first_group(lot);
            owners.insert(lot, self.fs.space.cube_of_group(GroupNr(first.0)));
            let own = first.0 as usize..(first.0.saturating_add(per_lot) as usize).min(descs.len());
            descs.get_mut(own.clone())?.copy_from_slice(self.groups().get(own)?);
        }
        let groups = Groups::new(&superblock, geometry, descs);
        let fs = FileSystem { superblock, space: FromBitmaps::new(groups) };
        Some(Self::of_owned(device, fs, self.lost.clone(), owners))
    }
}
