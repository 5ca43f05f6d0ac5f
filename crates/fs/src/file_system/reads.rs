//! Calls that read what an inode holds.

use floe_format::InodeNr;

use super::taken::judge_attribute_name;
use super::{FileSystem, Listed};
use crate::FsError;
use crate::caller::{Caller, Want};
use crate::store::{SeekFor, Store};

impl<S: Store> FileSystem<S> {
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
        self.guarded(inode, false, || {
            let _reading = self.reading();
            let listed = (|| {
                self.judge(caller, Want::READ, &self.store.permissions(inode)?)?;
                self.store.list(inode, cookie, &mut take)
            })();
            listed.or_else(|error| self.list_pinned(inode, cookie, &mut take).ok_or(error))
        })
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
        self.guarded(inode, false, || {
            let _reading = self.reading();
            self.store.read(inode, offset_bytes, into)
        })
    }

    /// The first byte from `offset_bytes` on that lies in data or in a hole, as `lseek` finds it.
    ///
    /// # Errors
    /// [`FsError::PastEnd`], and as [`FileSystem::read`].
    pub fn seek(&self, inode: InodeNr, offset_bytes: u64, what: SeekFor) -> Result<u64, FsError> {
        self.guarded(inode, false, || {
            let _reading = self.reading();
            self.store.seek(inode, offset_bytes, what)
        })
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for everything else, and of reading it.
    pub fn target(&self, inode: InodeNr) -> Result<Vec<u8>, FsError> {
        self.guarded(inode, false, || {
            let _reading = self.reading();
            self.store.target(inode)
        })
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoAttribute`]; for a name that no attribute can have [`FsError::Invalid`] or [`FsError::Unsupported`]; and of
    /// reading them.
    pub fn extended_attribute(&self, inode: InodeNr, name: &[u8]) -> Result<Vec<u8>, FsError> {
        self.guarded(inode, false, || {
            let _reading = self.reading();
            if let Some(value) = self.store.extended_attribute(inode, name)? {
                return Ok(value);
            }
            judge_attribute_name(name).and(Err(FsError::NoAttribute))
        })
    }

    /// The names of all extended attributes that have one for programs, sorted.
    ///
    /// # Errors
    /// The attributes cannot be read.
    pub fn extended_attribute_names(&self, inode: InodeNr) -> Result<Vec<Vec<u8>>, FsError> {
        let all = self.guarded(inode, false, || {
            let _reading = self.reading();
            self.store.extended_attribute_names(inode)
        })?;
        // A number in front stands for a namespace that Linux does not know.
        let known = |name: &Vec<u8>| !name.first().is_some_and(u8::is_ascii_digit);
        Ok(all.into_iter().filter(known).collect())
    }
}
