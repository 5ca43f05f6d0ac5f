//! Blocks that are held when writing ends, so that others put nothing there: the free ones of regions, and of cubes if somebody
//! asked for that (the fence, which is taken back when Floe writes again).

use floe_blockdev::WriteBlocks;
use floe_disk::ops::Caller;
use floe_format::GroupNr;

use super::Live;
use crate::error::twice;
use crate::{FsError, Timestamp};

impl<D: WriteBlocks> Live<'_, '_, D> {
    /// Asks that free blocks of all cubes are held for them ([`Volume::fence_lot`](floe_disk::volume::Volume::fence_lot)) when
    /// writing ends, because another system is to write next.
    pub fn ask_for_fence(&self) {
        self.gates.ask_for_fence();
    }

    /// Makes the fence, if that was asked for. Lots of a cube that has failed are left out: nothing of it is written.
    pub(super) fn fence(&self, now: Timestamp) -> Result<(), FsError> {
        if !self.gates.wants_fence() {
            return Ok(());
        }
        // Freed blocks are free for good after that.
        self.make_durable()?;
        let (caller, owners) = (Caller::system(now), self.work().volume.lot_owners());
        for (lot, cube) in owners.into_iter().filter(|(_, cube)| !self.gates.has_failed(*cube)) {
            while self.run_of(cube, |volume, tx| volume.fence_lot(tx, &caller, lot))? {}
        }
        self.tell_owners(&self.work());
        Ok(())
    }

    /// Gives back what the fence holds, and deletes it.
    pub(super) fn take_fence_back(&self, now: Timestamp) -> Result<(), FsError> {
        if !self.work().volume.has_fence() {
            return Ok(());
        }
        let caller = Caller::system(now);
        let orphan = loop {
            if let Some(orphan) = self.run_once(|volume, tx| volume.take_fence_back(tx, &caller))? {
                break orphan;
            }
        };
        self.finish_orphan(orphan, now)?;
        self.make_durable()?;
        self.tell_owners(&self.work());
        Ok(())
    }

    /// Gives the free blocks of regions to reservation files (native file systems).
    pub(super) fn reserve_regions(&self, now: Timestamp) -> Result<(), FsError> {
        let mut lots = self.work().volume.lots_to_reserve();
        if lots.is_empty() {
            return Ok(());
        }
        // Freed blocks are free for good after that.
        self.make_durable()?;
        let lot_groups = self.work().volume.lot_groups();
        // Lots of a cube that has failed stay as they are, for its repair.
        let mut left = Vec::new();
        for &lot in &lots {
            let cube = self.gates.of_group(GroupNr(lot.saturating_mul(lot_groups)));
            let done = match self.gates.has_failed(cube) {
                true => Err(FsError::CubeFailed { cube }),
                false => twice(|| self.run_of(cube, |volume, tx| volume.reserve_lot(tx, now, lot))),
            };
            match done {
                Err(error) if cube > 0 && error.is_local() => left.push(lot),
                other => other?,
            }
        }
        lots.retain(|lot| !left.contains(lot));
        self.make_durable()?;
        let copied = self.work().volume.back_up_descriptors(self.disk, &lots);
        copied.map_err(|error| FsError::Ended(error.to_string()))
    }
}
