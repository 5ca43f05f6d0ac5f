//! The calls of programs.

use std::collections::HashMap;

use floe_format::InodeNr;
use floe_format::ext::inode::FileType;
use floe_sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::caller::{Caller, Want};
use crate::directory::{AFTER_DOT, AFTER_DOT_DOT, Directory};
use crate::store::{SeekFor, Space, Store};
use crate::{Attributes, FsError};

/// Bytes of a name at most.
const MOST_NAME_BYTES: usize = 255;
/// Names of all directories that are kept in memory. All directories are dropped when there are more.
const MOST_NAMES: usize = 1 << 20;

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
    directories: Mutex<Directories>,
}

/// Directories in memory, and the number of their names.
#[derive(Debug, Default)]
struct Directories {
    by_inode: HashMap<InodeNr, Arc<Directory>>,
    names: usize,
}

impl<S: Store> FileSystem<S> {
    /// The file system that `store` keeps.
    pub fn new(store: S) -> Self {
        Self { store, directories: Mutex::default() }
    }

    fn directories(&self) -> MutexGuard<'_, Directories> {
        // What a panic of another thread leaves behind is a table of copies, at worst with too small a count.
        self.directories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn directory(&self, inode: InodeNr) -> Result<Arc<Directory>, FsError> {
        if let Some(directory) = self.directories().by_inode.get(&inode) {
            return Ok(Arc::clone(directory));
        }
        // Not under the lock: it may wait for the disk.
        let directory = Arc::new(self.store.directory(inode)?);
        let mut table = self.directories();
        if table.names > MOST_NAMES {
            *table = Directories::default();
        }
        // The names of one that another thread has read meanwhile count twice: it is dropped earlier.
        table.names += directory.len() + 1;
        table.by_inode.insert(inode, Arc::clone(&directory));
        Ok(directory)
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
        if name.len() > MOST_NAME_BYTES {
            return Err(FsError::NameTooLong);
        }
        let of_directory = self.store.attributes(directory)?;
        if of_directory.kind != FileType::Directory {
            return Err(FsError::NotADirectory);
        }
        self.judge(caller, Want::EXECUTE, &of_directory)?;
        if name == b"." {
            return Ok(of_directory);
        }
        let names = self.directory(directory)?;
        if name == b".." {
            return self.store.attributes(names.parent());
        }
        match (names.find(name), names.damage()) {
            (Some(entry), _) => self.named(directory, entry.inode),
            (None, None) => Err(FsError::NotFound),
            // The name may be among those that cannot be read: "there is none" would be a guess.
            (None, Some(what)) => Err(FsError::Damaged { inode: directory, what: what.to_owned() }),
        }
    }

    /// The attributes of an inode that a directory names. If it is not in use, the directory is damaged.
    fn named(&self, directory: InodeNr, inode: InodeNr) -> Result<Attributes, FsError> {
        self.store.attributes(inode).map_err(|error| match error {
            FsError::NotFound => {
                let what = format!("a name leads to {inode}, which is not in use");
                FsError::Damaged { inode: directory, what }
            }
            error => error,
        })
    }

    /// The attributes of an inode.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if it is not in use, and of reading it.
    pub fn attributes(&self, inode: InodeNr) -> Result<Attributes, FsError> {
        self.store.attributes(inode)
    }

    /// Whether the caller may do `want` with an inode, as `access` asks.
    ///
    /// # Errors
    /// [`FsError::AccessDenied`], and of reading it.
    pub fn access(&self, caller: &Caller, inode: InodeNr, want: Want) -> Result<(), FsError> {
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
        self.judge(caller, Want::READ, &self.store.attributes(inode)?)?;
        let directory = self.directory(inode)?;
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
        match directory.damage() {
            Some(what) => Err(FsError::Damaged { inode, what: what.to_owned() }),
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
        self.store.read(inode, offset_bytes, into)
    }

    /// The first byte from `offset_bytes` on that lies in data or in a hole, as `lseek` finds it.
    ///
    /// # Errors
    /// [`FsError::PastEnd`], and as [`FileSystem::read`].
    pub fn seek(&self, inode: InodeNr, offset_bytes: u64, what: SeekFor) -> Result<u64, FsError> {
        self.store.seek(inode, offset_bytes, what)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for everything else, and of reading it.
    pub fn target(&self, inode: InodeNr) -> Result<Vec<u8>, FsError> {
        self.store.target(inode)
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`], and of reading them.
    pub fn extended_attribute(&self, inode: InodeNr, name: &[u8]) -> Result<Vec<u8>, FsError> {
        let all = self.store.extended_attributes(inode)?;
        let found = all.into_iter().find(|attribute| attribute.name == name);
        found.map(|attribute| attribute.value).ok_or(FsError::NoAttribute)
    }

    /// The names of all extended attributes that have one for programs, sorted.
    ///
    /// # Errors
    /// Of reading them.
    pub fn extended_attribute_names(&self, inode: InodeNr) -> Result<Vec<Vec<u8>>, FsError> {
        let all = self.store.extended_attributes(inode)?;
        // A number in front stands for a namespace that Linux does not know.
        let known = |name: &Vec<u8>| !name.first().is_some_and(u8::is_ascii_digit);
        Ok(all.into_iter().map(|attribute| attribute.name).filter(known).collect())
    }

    /// Sizes of the whole file system.
    pub fn space(&self) -> Space {
        self.store.space()
    }
}
