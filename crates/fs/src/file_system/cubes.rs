//! The gates of cubes, and calls about them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use floe_disk::ops::panic_message;
use floe_format::InodeNr;

use super::FileSystem;
use crate::FsError;
use crate::cubes::CubeCall;
use crate::store::{Space, Store};

impl<S: Store> FileSystem<S> {
    /// Runs a call in the cube of an inode, if that lets it in. A panic is caught here: it fails that cube, and no other.
    pub(super) fn guarded<T>(
        &self,
        inode: InodeNr,
        changes: bool,
        run: impl FnOnce() -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        let Some(gates) = self.store.gates() else { return run() };
        let cube = gates.of_inode(inode);
        let _inside = gates.enter(cube, changes)?;
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            let what = panic_message(&*panic);
            self.store.note_panic(cube, &what);
            Err(FsError::Panicked { what })
        })
    }

    /// Names whose inode or content changed although no program asked for that, since the last call: whoever keeps what they
    /// lead to must forget it.
    pub fn take_stale(&self) -> Vec<(InodeNr, Vec<u8>)> {
        self.store.gates().map_or_else(Vec::new, |gates| gates.take_stale())
    }

    /// Answers a call about cubes.
    ///
    /// # Errors
    /// As [`Store::cube_call`].
    pub fn cube_call(&self, call: &CubeCall<'_>) -> Result<Vec<u8>, FsError> {
        if self.store.gates().is_none() {
            return Err(FsError::NoAttribute);
        }
        if self.store.is_read_only() && call.changes() {
            return Err(FsError::ReadOnly);
        }
        if call.changed_directory().is_none() {
            return self.store.cube_call(call);
        }
        let mut alone = self.gate.alone();
        self.settle(&mut alone)?;
        self.store.cube_call(call)
    }

    /// Sizes of the part of the file system that an inode may use.
    pub fn space_of(&self, inode: InodeNr) -> Space {
        let _ = self.settle_now();
        self.store.space_of(inode).unwrap_or_else(|| self.store.space())
    }
}
