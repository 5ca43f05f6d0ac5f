//! Cubes of a native file system: made, changed and removed while nobody else uses the file system.

use floe_blockdev::WriteBlocks;
use floe_disk::ops::{Caller, NewCube};
use floe_format::InodeNr;
use floe_format::native::cube::Policies;

use super::Live;
use crate::FsError;

impl<D: WriteBlocks> Live<'_, '_, D> {
    /// Makes a cube in one transaction; returns its number. See [`Volume::create_cube`](floe_disk::volume::Volume::create_cube).
    ///
    /// # Errors
    /// Nothing was changed then.
    pub fn create_cube(&self, caller: &Caller, new: &NewCube<'_>) -> Result<u32, FsError> {
        let cube = self.run(|volume, tx| volume.create_cube(tx, caller, new))?;
        self.sync_all()?;
        Ok(cube)
    }

    /// Changes how a cube is to behave, in one transaction.
    ///
    /// # Errors
    /// Nothing was changed then.
    pub fn set_cube(&self, caller: &Caller, cube: u32, policies: Policies) -> Result<(), FsError> {
        self.run(|volume, tx| volume.set_cube(tx, caller, cube, policies))?;
        self.sync_all()
    }

    /// Removes a cube in one transaction; `place` is the directory and name of its directory, which must be empty. Without it
    /// the directory stays, with all its files, in the root cube.
    ///
    /// # Errors
    /// Nothing was changed then.
    pub fn remove_cube(
        &self,
        caller: &Caller,
        cube: u32,
        place: Option<(InodeNr, &[u8])>,
    ) -> Result<(), FsError> {
        let removed = self.run(|volume, tx| volume.remove_cube(tx, caller, cube, place))?;
        // Its journal is deleted when nothing of it is needed any more.
        self.sync_all()?;
        if removed.is_none_or(|removed| removed.last) {
            self.finish_orphans(caller.time)?;
        }
        self.sync_all()
    }

    fn sync_all(&self) -> Result<(), FsError> {
        crate::store::Store::sync(self)
    }
}
