//! The gates of cubes, and calls about them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use floe_disk::ops::panic_message;
use floe_format::InodeNr;

use super::FileSystem;
use crate::cubes::{CubeCall, pins};
use crate::faults::Fault;
use crate::op::{Op, OpKind, Place};
use crate::store::{Space, Store};
use crate::{Attributes, FsError, Listed};

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

    /// `Err` for a name that leads into another cube: damage of the directory that has it. Not so if the inode says that this is
    /// its name, because then the record of a lot may be wrong.
    pub(super) fn judge_named(
        &self,
        directory: InodeNr,
        name: &[u8],
        inode: InodeNr,
    ) -> Result<(), FsError> {
        let Some(gates) = self.store.gates() else { return Ok(()) };
        if gates.may_name(directory, inode) || self.store.is_named(inode, directory, Some(name)) {
            return Ok(());
        }
        // The files of `/.cubes/c0` lie in all cubes.
        let is_own = gates.of_inode(directory) == 0
            && self.store.parent(directory).is_ok_and(|parent| gates.may_name(parent, inode));
        if is_own {
            return Ok(());
        }
        let what = format!("a name leads to {inode}, which belongs to another cube");
        self.refuse(FsError::Damaged { inode: directory, what, fault: Fault::DAMAGE })
    }

    /// The same for `..`, which leads out of a cube from its own directory alone.
    pub(super) fn judge_parent(&self, directory: InodeNr, parent: InodeNr) -> Result<(), FsError> {
        let Some(gates) = self.store.gates() else { return Ok(()) };
        if gates.may_name(parent, directory) || self.store.is_named(directory, parent, None) {
            return Ok(());
        }
        let what = format!("'..' leads to {parent}, which belongs to another cube");
        self.refuse(FsError::Damaged { inode: directory, what, fault: Fault::DAMAGE })
    }

    /// The same for all names that a change takes away or replaces.
    pub(super) fn judge_places(&self, op: &Op<'_>) -> Result<(), FsError> {
        if self.store.gates().is_none_or(|gates| !gates.has_cubes()) {
            return Ok(());
        }
        let judge = |place: Place<'_>| match self.store.find(place.directory, place.name) {
            Ok(Some(inode)) => self.judge_named(place.directory, place.name, inode),
            // The change itself finds the fault.
            _ => Ok(()),
        };
        match op.kind {
            OpKind::Unlink(place) | OpKind::RemoveDirectory(place) => judge(place),
            OpKind::Rename { from, to, .. } => judge(from).and_then(|()| judge(to)),
            _ => Ok(()),
        }
    }

    fn refuse(&self, error: FsError) -> Result<(), FsError> {
        self.store.note_damage(&error);
        Err(error)
    }

    /// The attributes of a directory above a cube that cannot be read itself.
    pub(super) fn above(&self, inode: InodeNr) -> Option<Attributes> {
        let gates = self.store.gates().filter(|gates| gates.has_cubes())?;
        gates.pins().is_above(inode).then(|| pins::stand_in(inode))
    }

    /// The inode of a name in a directory above a cube, if it is on the way to the cube.
    pub(super) fn find_pinned(
        &self,
        directory: InodeNr,
        name: &[u8],
        read: &dyn Fn(InodeNr) -> Result<Attributes, FsError>,
    ) -> Option<Result<Attributes, FsError>> {
        let gates = self.store.gates().filter(|gates| gates.has_cubes())?;
        let inode = gates.pins().find(directory, name)?;
        if pins::is_stand_in(inode) {
            return Some(Ok(pins::stand_in(inode)));
        }
        let found = read(inode).or_else(|error| self.above(inode).ok_or(error));
        let is_unused = match &found {
            Ok(found) => found.links == 0,
            Err(error) => matches!(error, FsError::NotFound),
        };
        if !is_unused || gates.of_inode(inode) == 0 {
            return Some(found);
        }
        // Damage of the cube, not of the directory that names it.
        let what = "the directory of a cube, which is not in use,".to_owned();
        let error = FsError::Damaged { inode, what, fault: Fault::DAMAGE };
        self.store.note_damage(&error);
        Some(Err(error))
    }

    /// Lists the way to cubes in a directory above them that cannot be read itself.
    pub(super) fn list_pinned(
        &self,
        directory: InodeNr,
        cookie: u64,
        take: &mut dyn FnMut(Listed<'_>) -> bool,
    ) -> Option<()> {
        let gates = self.store.gates().filter(|gates| gates.has_cubes())?;
        let pins = gates.pins();
        pins.is_above(directory).then(|| pins.list(directory, cookie, take))
    }

    /// Names whose inode or content changed although no program asked for that, since the last call: whoever keeps what they
    /// lead to must forget it.
    pub fn take_stale(&self) -> Vec<(InodeNr, Vec<u8>)> {
        self.store.gates().map_or_else(Vec::new, |gates| gates.take_stale())
    }

    /// Lines for a log, since the last call: cubes that failed, repairs that were refused, files that moved.
    pub fn take_news(&self) -> Vec<String> {
        self.store.gates().map_or_else(Vec::new, |gates| gates.take_news())
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
