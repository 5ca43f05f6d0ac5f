//! The calls of programs.

use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_sync::{PoisonError, RwLock, RwLockReadGuard};

use crate::caller::{Caller, Want};
use crate::directory::{AFTER_DOT, AFTER_DOT_DOT};
use crate::faults::Fault;
use crate::held::Held;
use crate::op::{Applied, Op, OpKind};
use crate::store::{SeekFor, Space, Store};
use crate::{Attributes, FsError, Handle};

/// Bytes of a name at most.
const MOST_NAME_BYTES: usize = 255;

/// A name that a directory was listed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// What it names.
    pub inode: InodeNr,
    /// The type that the entry states; `None` where entries have none.
    pub kind: Option<FileType>,
    /// The name, `.` and `..` among them.
    pub name: &'a [u8],
    /// Where to go on behind this name: above 0, below 2^63.
    pub cookie: u64,
}

/// A file system that is in use. Shared by threads.
#[derive(Debug)]
pub struct FileSystem<S> {
    store: S,
    /// Shared by those who read, held alone by a change.
    gate: RwLock<()>,
    held: Held,
}

impl<S: Store> FileSystem<S> {
    /// The file system that `store` keeps.
    pub fn new(store: S) -> Self {
        Self { store, gate: RwLock::default(), held: Held::default() }
    }

    /// What keeps the file system.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// The store, once nobody uses the file system any more.
    pub fn into_store(self) -> S {
        self.store
    }

    /// Keeps changes away until the guard is dropped.
    fn reading(&self) -> RwLockReadGuard<'_, ()> {
        // It guards no value that a panic could leave half changed.
        self.gate.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// `Err` unless the caller may do `want` with an inode.
    fn judge(&self, caller: &Caller, want: Want, file: &Attributes) -> Result<(), FsError> {
        caller.may(want, file, || self.store.extended_attributes(file.inode))
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
        let _reading = self.reading();
        self.find(caller, directory, name)?.0.ok_or(FsError::NotFound)
    }

    /// The attributes of what a name leads to, if there is one; and whether case does not count.
    fn find(
        &self,
        caller: &Caller,
        directory: InodeNr,
        name: &[u8],
    ) -> Result<(Option<Attributes>, bool), FsError> {
        if name.len() > MOST_NAME_BYTES {
            return Err(FsError::NameTooLong);
        }
        let of_directory = self.store.attributes(directory)?;
        if of_directory.links == 0 {
            return Err(FsError::NotFound);
        }
        if of_directory.kind != FileType::Directory {
            return Err(FsError::NotADirectory);
        }
        self.judge(caller, Want::EXECUTE, &of_directory)?;
        let folds = of_directory.flags.contains(InodeFlags::CASEFOLD);
        if name == b"." {
            return Ok((Some(of_directory), folds));
        }
        let names = self.store.directory(directory)?;
        if name == b".." {
            return Ok((Some(self.store.attributes(names.parent())?), folds));
        }
        match (names.find(name), names.fault()) {
            (Some(entry), _) => Ok((Some(self.named(directory, entry.inode)?), folds)),
            (None, None) => Ok((None, folds)),
            // The name may be among those that cannot be read: "there is none" would be a guess.
            (None, Some((what, fault))) => {
                Err(FsError::Damaged { inode: directory, what: what.to_owned(), fault })
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
        let _reading = self.reading();
        let (found, folds) = self.find(caller, directory, name)?;
        if let Some(found) = &found {
            self.held.add(found.inode);
        }
        Ok((found, folds))
    }

    /// Holds an inode that [`FileSystem::list`] has just named, and returns its attributes.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if it is gone meanwhile, and of reading it.
    pub fn hold(&self, inode: InodeNr) -> Result<Attributes, FsError> {
        let _reading = self.reading();
        let found = self.store.attributes(inode)?;
        if found.links == 0 && !self.held.contains(inode) {
            return Err(FsError::NotFound);
        }
        self.held.add(inode);
        Ok(found)
    }

    /// Lets go of an inode that was held `count` times. If that was the last time and it has no name, it is deleted.
    ///
    /// # Errors
    /// The inode cannot be deleted; it stays an orphan until the next mount.
    pub fn forget(&self, inode: InodeNr, count: u64) -> Result<(), FsError> {
        if !self.held.drop_some(inode, count) {
            return Ok(());
        }
        let _alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        // Nobody can have found it since: it has no name.
        self.store.release(inode)
    }

    /// Whether an inode without a name is held, whose space comes free when its last user goes.
    pub fn has_nameless(&self) -> bool {
        self.held.has_nameless()
    }

    /// Whether a directory compares names without case.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn folds(&self, directory: InodeNr) -> Result<bool, FsError> {
        let _reading = self.reading();
        Ok(self.store.attributes(directory)?.flags.contains(InodeFlags::CASEFOLD))
    }

    /// Makes a change. What is created is held, as by [`FileSystem::look_up_and_hold`]; its attributes come back. The
    /// caller was judged already.
    ///
    /// # Errors
    /// The change is refused or fails: it is not made then, but a long write may have been made in part.
    pub fn apply(&self, op: &Op<'_>) -> Result<Option<Attributes>, FsError> {
        if self.store.is_read_only() {
            return Err(FsError::ReadOnly);
        }
        let _alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        let Applied { created, nameless } = self.store.apply(op)?;
        if let OpKind::Link { inode, .. } = op.kind {
            self.held.note_named(inode);
        }
        if let Some(inode) = nameless
            && !self.held.note_nameless(inode)
        {
            self.store.release(inode)?;
        }
        let new = match (&op.kind, created) {
            (OpKind::Link { inode, .. }, _) => Some(*inode),
            (_, created) => created,
        };
        let Some(inode) = new else { return Ok(None) };
        if let OpKind::CreateUnnamed { .. } = op.kind {
            self.held.add_nameless(inode);
        } else {
            self.held.add(inode);
        }
        self.store.attributes(inode).map(Some)
    }

    /// Makes all changes durable that were made before the call.
    ///
    /// # Errors
    /// The device failed; nothing is written any more then.
    pub fn sync(&self) -> Result<(), FsError> {
        self.store.sync()
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
        self.store.sync_inode(inode)?;
        self.store.late_error(inode, of, false)
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
        self.store.tend()
    }

    /// Whether nothing can be changed.
    pub fn is_read_only(&self) -> bool {
        self.store.is_read_only()
    }

    /// The attributes of an inode that a directory names. If it is not in use, the directory is damaged.
    fn named(&self, directory: InodeNr, inode: InodeNr) -> Result<Attributes, FsError> {
        match self.store.attributes(inode) {
            Ok(found) if found.links > 0 => Ok(found),
            Ok(_) | Err(FsError::NotFound) => {
                let what = format!("a name leads to {inode}, which is not in use");
                Err(FsError::Damaged { inode: directory, what, fault: Fault::DAMAGE })
            }
            Err(error) => Err(error),
        }
    }

    /// The attributes of an inode.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if it is not in use, and of reading it.
    pub fn attributes(&self, inode: InodeNr) -> Result<Attributes, FsError> {
        let _reading = self.reading();
        let found = self.store.attributes(inode)?;
        let is_there = found.links > 0 || self.held.contains(inode);
        if is_there { Ok(found) } else { Err(FsError::NotFound) }
    }

    /// Whether the caller may do `want` with an inode, as `access` asks.
    ///
    /// # Errors
    /// [`FsError::AccessDenied`], and of reading it.
    pub fn access(&self, caller: &Caller, inode: InodeNr, want: Want) -> Result<(), FsError> {
        let _reading = self.reading();
        self.judge(caller, want, &self.store.attributes(inode)?)
    }

    /// Hands the names of a directory behind `cookie` to `take`, until that returns `false` or there are no
    /// more; 0 is the start. Names that come and go meanwhile may be seen or not, all others are seen once.
    ///
    /// # Errors
    /// [`FsError::NotADirectory`], [`FsError::AccessDenied`], of reading it. Names of a damaged directory
    /// that can be read are handed over first.
    pub fn list(
        &self,
        caller: &Caller,
        inode: InodeNr,
        cookie: u64,
        mut take: impl FnMut(Listed<'_>) -> bool,
    ) -> Result<(), FsError> {
        let _reading = self.reading();
        self.judge(caller, Want::READ, &self.store.attributes(inode)?)?;
        let directory = self.store.directory(inode)?;
        let kind = Some(FileType::Directory);
        let dot = Listed { inode, kind, name: b".", cookie: AFTER_DOT };
        let parent = directory.parent();
        let dot_dot = Listed { inode: parent, kind, name: b"..", cookie: AFTER_DOT_DOT };
        let dots = [dot, dot_dot].into_iter().filter(|dot| dot.cookie > cookie);
        let entries = directory.behind(cookie).map(|(cookie, entry)| Listed {
            inode: entry.inode,
            kind: entry.kind,
            name: &entry.name,
            cookie,
        });
        for listed in dots.chain(entries) {
            if !take(listed) {
                return Ok(());
            }
        }
        match directory.fault() {
            Some((what, fault)) => Err(FsError::Damaged { inode, what: what.to_owned(), fault }),
            None => Ok(()),
        }
    }

    /// Fills `into` with the bytes of a regular file from `offset_bytes` on, as many as it has, and returns
    /// their number. Permissions are judged when a file is opened ([`FileSystem::access`]), not here.
    ///
    /// # Errors
    /// [`FsError::IsADirectory`], [`FsError::Invalid`], [`FsError::NoKey`], of reading.
    pub fn read(
        &self,
        inode: InodeNr,
        offset_bytes: u64,
        into: &mut [u8],
    ) -> Result<usize, FsError> {
        let _reading = self.reading();
        self.store.read(inode, offset_bytes, into)
    }

    /// The first byte from `offset_bytes` on that lies in data or in a hole, as `lseek` finds it.
    ///
    /// # Errors
    /// [`FsError::PastEnd`], and as [`FileSystem::read`].
    pub fn seek(&self, inode: InodeNr, offset_bytes: u64, what: SeekFor) -> Result<u64, FsError> {
        let _reading = self.reading();
        self.store.seek(inode, offset_bytes, what)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for everything else, and of reading it.
    pub fn target(&self, inode: InodeNr) -> Result<Vec<u8>, FsError> {
        let _reading = self.reading();
        self.store.target(inode)
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`], and of reading them.
    pub fn extended_attribute(&self, inode: InodeNr, name: &[u8]) -> Result<Vec<u8>, FsError> {
        let _reading = self.reading();
        let all = self.store.extended_attributes(inode)?;
        let found = all.into_iter().find(|attribute| attribute.name == name);
        found.map(|attribute| attribute.value).ok_or(FsError::NoAttribute)
    }

    /// The names of all extended attributes that have one for programs, sorted.
    ///
    /// # Errors
    /// The attributes cannot be read.
    pub fn extended_attribute_names(&self, inode: InodeNr) -> Result<Vec<Vec<u8>>, FsError> {
        let _reading = self.reading();
        let all = self.store.extended_attributes(inode)?;
        // A number in front stands for a namespace that Linux does not know.
        let known = |name: &Vec<u8>| !name.first().is_some_and(u8::is_ascii_digit);
        Ok(all.into_iter().map(|attribute| attribute.name).filter(known).collect())
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> u32 {
        self.store.block_bytes()
    }

    /// Sizes of the whole file system.
    pub fn space(&self) -> Space {
        self.store.space()
    }
}
