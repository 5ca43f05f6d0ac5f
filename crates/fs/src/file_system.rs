//! The calls of programs.

use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::ext::xattr::acl::ACCESS;
use floe_sync::{Alone, Entered, Slots};

use crate::caller::{Caller, Want};
use crate::faults::Fault;
use crate::held::{Counted, Held, Unsettled};
use crate::op::{Applied, Op, OpKind};
use crate::store::{Space, Store};
use crate::{Attributes, FsError, Handle};

mod cubes;
mod paths;
mod reads;
mod taken;

pub use paths::{Follow, Stopped};
pub(crate) use taken::kept_time;

/// Bytes of a name at most.
const MOST_NAME_BYTES: usize = 255;

/// A name that a directory was listed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// The inode that it names.
    pub inode: InodeNr,
    /// The type that the entry states; `None` where entries have none.
    pub kind: Option<FileType>,
    /// The name, `.` and `..` among them.
    pub name: &'a [u8],
    /// Where to go on behind this name: above 0, below 2^63.
    pub cookie: u64,
}

/// Reads attributes of an inode.
type Read<'r> = &'r dyn Fn(InodeNr) -> Result<Attributes, FsError>;

/// The attributes of an inode that a directory names. If it is not in use, the directory is damaged.
fn named(directory: InodeNr, inode: InodeNr, read: Read<'_>) -> Result<Attributes, FsError> {
    match read(inode) {
        Ok(found) if found.links > 0 => Ok(found),
        Ok(_) | Err(FsError::NotFound) => {
            let what = format!("a name leads to {inode}, which is not in use");
            Err(FsError::Damaged { inode: directory, what, fault: Fault::DAMAGE })
        }
        Err(error) => Err(error),
    }
}

/// A file system that is in use. Shared by threads.
#[derive(Debug)]
pub struct FileSystem<S> {
    store: S,
    /// Entered by those who read, and by changes of a store that takes several at once; other changes are alone.
    gate: Slots<Held, Counted>,
    /// Something lost its last name since the counts were added up.
    unsettled: Unsettled,
}

impl<S: Store> FileSystem<S> {
    /// The file system that `store` keeps.
    pub fn new(store: S) -> Self {
        let gate = Slots::<Held, Counted>::default();
        let unsettled = Unsettled::of(gate.alone().parts().1);
        Self { store, gate, unsettled }
    }

    /// The store that holds the file system.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// The store, once nobody uses the file system any more.
    pub fn into_store(self) -> S {
        self.store
    }

    /// Keeps those away who must be alone, until the guard is dropped.
    pub(crate) fn reading(&self) -> Entered<'_, Held, Counted> {
        self.gate.enter()
    }

    /// Deletes inodes without names that nobody holds.
    fn settle(&self, alone: &mut Alone<'_, Held, Counted>) -> Result<(), FsError> {
        let (held, slots) = alone.parts();
        // Whoever notes something has entered, so nobody does now.
        self.unsettled.clear();
        let has_name = |inode| self.store.attributes(inode).is_ok_and(|found| found.links > 0);
        let mut unused = held.settle(slots, has_name);
        // A link gave it a name, or it is damaged, and stays where it is.
        unused.retain(|inode| !has_name(*inode));
        if unused.is_empty() {
            return Ok(());
        }
        let failed = self.store.release_all(&unused).into_iter().map(|(_, error)| error);
        // An orphan recorded for its cube stays one; whoever settles it did not ask for it.
        let mut failed = failed.filter(|error| !error.is_local());
        failed.next().map_or(Ok(()), Err)
    }

    /// As [`FileSystem::settle`], where nobody waits for the result but the next call.
    fn settle_now(&self) -> Result<(), FsError> {
        if self.store.is_read_only() {
            return Ok(());
        }
        self.settle(&mut self.gate.alone())
    }

    /// `Err` unless the caller may do `want` with an inode.
    fn judge(&self, caller: &Caller, want: Want, file: &Attributes) -> Result<(), FsError> {
        caller.may(want, file, || self.store.extended_attribute(file.inode, ACCESS))
    }

    /// The attributes of the file that a name in a directory leads to; `.` and `..` are names, too.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::NotADirectory`], [`FsError::NameTooLong`],
    /// [`FsError::AccessDenied`], and of reading either.
    pub fn look_up(
        &self,
        caller: &Caller,
        directory: InodeNr,
        name: &[u8],
    ) -> Result<Attributes, FsError> {
        self.guarded(directory, false, || {
            let _reading = self.reading();
            self.find(caller, directory, name)?.0.ok_or(FsError::NotFound)
        })
    }

    /// Looks a name up in a directory: the inode and its type, which suffice for a path. Cheaper than
    /// [`FileSystem::look_up`], which waits for changes of times and links.
    ///
    /// # Errors
    /// As [`FileSystem::look_up`].
    pub fn resolve(
        &self,
        caller: &Caller,
        directory: InodeNr,
        name: &[u8],
    ) -> Result<(InodeNr, FileType), FsError> {
        self.guarded(directory, false, || {
            let _reading = self.reading();
            let read = |inode| self.store.permissions(inode);
            let (found, _) = self.find_with(caller, directory, name, &read)?;
            found.map(|found| (found.inode, found.kind)).ok_or(FsError::NotFound)
        })
    }

    /// The attributes of what a name leads to, if there is one; and whether case does not count.
    fn find(
        &self,
        caller: &Caller,
        directory: InodeNr,
        name: &[u8],
    ) -> Result<(Option<Attributes>, bool), FsError> {
        self.find_with(caller, directory, name, &|inode| self.store.attributes(inode))
    }

    /// The same, by a way to read the attributes of what is found. Where directories above a cube are destroyed, their path
    /// leads to the cube.
    fn find_with(
        &self,
        caller: &Caller,
        directory: InodeNr,
        name: &[u8],
        read: Read<'_>,
    ) -> Result<(Option<Attributes>, bool), FsError> {
        match self.find_stored(caller, directory, name, read) {
            Err(error) => self
                .find_pinned(directory, name, read)
                .map_or(Err(error), |found| Ok((Some(found?), false))),
            found => found,
        }
    }

    fn find_stored(
        &self,
        caller: &Caller,
        directory: InodeNr,
        name: &[u8],
        read: Read<'_>,
    ) -> Result<(Option<Attributes>, bool), FsError> {
        if name.len() > MOST_NAME_BYTES {
            return Err(FsError::NameTooLong);
        }
        let mut of_directory = self.store.permissions(directory)?;
        if of_directory.links == 0 {
            return Err(FsError::NotFound);
        }
        if of_directory.kind != FileType::Directory {
            return Err(FsError::NotADirectory);
        }
        self.judge(caller, Want::EXECUTE, &of_directory)?;
        let folds = of_directory.flags.contains(InodeFlags::CASEFOLD);
        if name == b"." {
            of_directory = read(directory)?;
            return Ok((Some(of_directory), folds));
        }
        if name == b".." {
            let parent = self.store.parent(directory)?;
            self.judge_parent(directory, parent)?;
            return Ok((Some(read(parent)?), folds));
        }
        loop {
            let Some(inode) = self.store.find(directory, name)? else { return Ok((None, folds)) };
            self.judge_named(directory, name, inode)?;
            match named(directory, inode, read) {
                // Its last name went between the two looks.
                Err(FsError::Damaged { .. })
                    if self.store.find(directory, name)? != Some(inode) => {}
                found => return Ok((Some(found?), folds)),
            }
        }
    }

    /// As [`FileSystem::look_up`]; what is found is held until [`FileSystem::forget`], so that it stays when its last
    /// name goes. Also says whether the directory compares names without case.
    ///
    /// # Errors
    /// As [`FileSystem::look_up`], but for a missing name, which is `None`.
    pub fn look_up_and_hold(
        &self,
        caller: &Caller,
        directory: InodeNr,
        name: &[u8],
    ) -> Result<(Option<Attributes>, bool), FsError> {
        self.guarded(directory, false, || {
            let mut reading = self.reading();
            let (found, folds) = self.find(caller, directory, name)?;
            if let Some(found) = &found {
                reading.parts().1.add(found.inode, 1);
            }
            Ok((found, folds))
        })
    }

    /// Holds an inode that [`FileSystem::list`] has just named in a directory, or that has just got a name there, and returns its
    /// attributes.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if it is gone meanwhile or belongs to another cube, which [`FileSystem::look_up`] judges; and of
    /// reading it.
    pub fn hold(&self, directory: InodeNr, inode: InodeNr) -> Result<Attributes, FsError> {
        if self.store.gates().is_some_and(|gates| !gates.may_name(directory, inode)) {
            return Err(FsError::NotFound);
        }
        let found = self.attributes(inode)?;
        self.reading().parts().1.add(inode, 1);
        Ok(found)
    }

    /// Lets go of an inode that was held `count` times. If that was the last time and it has no name, it is deleted.
    ///
    /// # Errors
    /// The inode cannot be deleted; it stays an orphan until the next mount.
    pub fn forget(&self, inode: InodeNr, count: u64) -> Result<(), FsError> {
        let is_nameless = {
            let mut reading = self.reading();
            let (held, counted) = reading.parts();
            counted.add(inode, -i64::try_from(count).unwrap_or(i64::MAX));
            held.is_nameless(inode) || counted.has_nameless(inode) || counted.is_full()
        };
        if is_nameless { self.settle_now() } else { Ok(()) }
    }

    /// Whether an inode without a name is held, whose space comes free when its last user goes.
    pub fn has_nameless(&self) -> bool {
        // If a deletion fails, writing has ended, which the next change says.
        let _ = self.settle_now();
        self.reading().has_nameless()
    }

    /// Whether a directory compares names without case.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn folds(&self, directory: InodeNr) -> Result<bool, FsError> {
        let _reading = self.reading();
        Ok(self.store.attributes(directory)?.flags.contains(InodeFlags::CASEFOLD))
    }

    /// Makes a change, as Linux's ext4 would: times are cut to what inodes can tell, and an access list that is empty goes.
    /// A created inode is held, as by [`FileSystem::look_up_and_hold`]; its attributes come back. Those of a file that got a
    /// further name do not, because others change them meanwhile: [`FileSystem::hold`] tells them. The caller was judged already.
    ///
    /// # Errors
    /// The change is refused or fails: it is not made then, but a long write may have been made in part.
    pub fn apply(&self, op: &Op<'_>) -> Result<Option<Attributes>, FsError> {
        if self.store.is_read_only() {
            return Err(FsError::ReadOnly);
        }
        let op = &*self.taken(op)?;
        match self.guarded(op.kind.home(), true, || self.apply_inside(op)) {
            Err(FsError::NoAttribute) if taken::ends_list(&op.kind) => Ok(None),
            done => done,
        }
    }

    fn apply_inside(&self, op: &Op<'_>) -> Result<Option<Attributes>, FsError> {
        self.judge_places(op)?;
        if !self.store.takes_many() {
            let mut alone = self.gate.alone();
            let applied = self.store.apply(op)?;
            let new = self.note(op, &applied, alone.parts().1.swap_remove(0))?;
            self.settle(&mut alone)?;
            return Ok(new);
        }
        let mut freed = false;
        loop {
            let mut inside = self.gate.enter();
            match self.store.apply(op) {
                Err(error) if !freed && error.is_no_space() => {
                    drop(inside);
                    freed = true;
                    self.settle_now()?;
                }
                applied => {
                    let counted = inside.parts().1;
                    let new = self.note(op, &applied?, counted)?;
                    let full = counted.is_full();
                    drop(inside);
                    if full {
                        self.settle_now()?;
                    }
                    return Ok(new);
                }
            }
        }
    }

    /// Notes who holds what a change created, and what has no name any more. Returns the attributes of what got a name.
    fn note(
        &self,
        op: &Op<'_>,
        applied: &Applied,
        counted: &mut Counted,
    ) -> Result<Option<Attributes>, FsError> {
        let Applied { created, nameless } = *applied;
        if let Some(inode) = nameless {
            self.unsettled.note(counted);
            counted.note_nameless(inode);
        }
        let Some(inode) = created else { return Ok(None) };
        if let OpKind::CreateUnnamed { .. } = op.kind {
            counted.note_nameless(inode);
        }
        counted.add(inode, 1);
        self.store.attributes(inode).map(Some)
    }

    /// Makes all changes durable that were made before the call.
    ///
    /// # Errors
    /// The device failed; nothing is written any more then.
    pub fn sync(&self) -> Result<(), FsError> {
        self.settle_first()?;
        self.store.sync()
    }

    /// The same for whoever is to end the mount, who is told of all losses that no program learned of.
    ///
    /// # Errors
    /// As [`FileSystem::sync`]; [`FsError::Lost`], each time.
    pub fn sync_for_good(&self) -> Result<(), FsError> {
        self.settle_first()?;
        self.store.sync_for_good()
    }

    /// An inode without a name is an orphan on the disk until nobody holds it.
    fn settle_first(&self) -> Result<(), FsError> {
        if self.unsettled.is_any() { self.settle_now() } else { Ok(()) }
    }

    /// A number for a file that a program opens, by which it is told of changes that are lost.
    pub fn open(&self) -> Handle {
        self.store.open()
    }

    /// Makes durable what `fsync` of an inode promises (`docs/fsync.md`).
    ///
    /// # Errors
    /// As [`FileSystem::sync`]; [`FsError::Lost`] once to each open file, or once to callers who opened none.
    pub fn sync_inode(&self, inode: InodeNr, of: Option<Handle>) -> Result<(), FsError> {
        // Whatever this thread has unlinked goes with its name, and is no orphan first, unless somebody has it open.
        // (A thread of a mount may unlink, and another one forget; for the directory that the name was in, it counts, too.)
        let unlinked = self.gate.enter().parts().1.has_any_nameless()
            || self.unsettled.is_any() && self.is_directory(inode);
        if unlinked {
            self.settle_now()?;
        }
        self.guarded(inode, false, || self.store.sync_inode(inode))?;
        self.store.late_error(inode, of, false)
    }

    fn is_directory(&self, inode: InodeNr) -> bool {
        let _reading = self.reading();
        self.store.permissions(inode).is_ok_and(|found| found.kind == FileType::Directory)
    }

    /// Tells a file that is closed whether changes of its inode are lost.
    ///
    /// # Errors
    /// [`FsError::Lost`].
    pub fn close(&self, inode: InodeNr, of: Handle) -> Result<(), FsError> {
        self.store.late_error(inode, Some(of), true)
    }

    /// Does some of the work that waits; to be called several times a second.
    ///
    /// # Errors
    /// As [`FileSystem::sync`].
    pub fn tend(&self) -> Result<(), FsError> {
        self.settle_now()?;
        self.store.tend_cubes();
        self.store.tend()
    }

    /// Whether nothing can be changed.
    pub fn is_read_only(&self) -> bool {
        self.store.is_read_only()
    }

    /// The attributes of an inode. Where several changes are made at once, one that nobody holds may be seen for a moment
    /// after its last name is gone.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if it is not in use, and of reading it.
    pub fn attributes(&self, inode: InodeNr) -> Result<Attributes, FsError> {
        self.guarded(inode, false, || self.attributes_inside(inode))
    }

    fn attributes_inside(&self, inode: InodeNr) -> Result<Attributes, FsError> {
        self.attributes_stored(inode).or_else(|error| self.above(inode).ok_or(error))
    }

    fn attributes_stored(&self, inode: InodeNr) -> Result<Attributes, FsError> {
        let reading = self.reading();
        let found = self.store.attributes(inode)?;
        if found.links > 0 || reading.contains(inode) || self.store.takes_many() {
            return Ok(found);
        }
        drop(reading);
        // A slot may have counted it since the last sum.
        let mut alone = self.gate.alone();
        self.settle(&mut alone)?;
        if alone.contains(inode) { Ok(found) } else { Err(FsError::NotFound) }
    }

    /// Whether the caller may do `want` with an inode, as `access` asks.
    ///
    /// # Errors
    /// [`FsError::AccessDenied`], and of reading it.
    pub fn access(&self, caller: &Caller, inode: InodeNr, want: Want) -> Result<(), FsError> {
        self.guarded(inode, false, || {
            let _reading = self.reading();
            let found = self.store.attributes(inode);
            let found = found.or_else(|error| self.above(inode).ok_or(error))?;
            self.judge(caller, want, &found)
        })
    }

    /// Gives free blocks in a range of bytes back to whoever keeps the image, as `fstrim` asks: whole runs of so many bytes at
    /// least. Returns how many bytes. All changes are made durable first, so that what was deleted is free for good.
    ///
    /// # Errors
    /// [`FsError::Unsupported`] if the device cannot discard, [`FsError::ReadOnly`], and as [`FileSystem::sync`].
    pub fn trim(&self, bytes: std::ops::Range<u64>, least_bytes: u64) -> Result<u64, FsError> {
        if self.store.is_read_only() {
            return Err(FsError::ReadOnly);
        }
        self.settle_now()?;
        self.store.sync()?;
        self.store.trim(bytes, least_bytes)
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> u32 {
        self.store.block_bytes()
    }

    /// Sizes of the whole file system.
    pub fn space(&self) -> Space {
        // If a deletion fails, writing has ended, which the next change says.
        let _ = self.settle_now();
        self.store.space()
    }
}
