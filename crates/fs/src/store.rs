//! The storage interface below the file system.

use floe_ext4::files::Attribute;
use floe_format::InodeNr;
use floe_sync::Arc;

use crate::cubes::{CubeCall, Gates};
use crate::directory::{AFTER_DOT, AFTER_DOT_DOT, Entry};
use crate::op::{Applied, Op};
use crate::{Attributes, Directory, FsError, Handle, Listed, Timestamp};
use floe_format::ext::inode::FileType;

/// Which kind of stretch a seek looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekFor {
    /// Bytes that are stored.
    Data,
    /// A hole, as which the end of the file counts.
    Hole,
}

/// Sizes of a whole file system, as `statfs` tells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Blocks that files can have, taken or not.
    pub blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
    /// Free blocks that are not reserved for root.
    pub available_blocks: u64,
    /// Inodes.
    pub inodes: u64,
    /// Free inodes.
    pub free_inodes: u64,
}

/// Whatever keeps a file system: an image on a disk. May be shared by threads.
pub trait Store: Send + Sync {
    /// The attributes of an inode.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if the inode is not in use, [`FsError::Damaged`], [`FsError::Io`].
    fn attributes(&self, inode: InodeNr) -> Result<Attributes, FsError>;

    /// The attributes that say what an inode is and who may do what with it. Times, sizes and the number of links may be
    /// missing, but for the 0 links of one that is gone.
    ///
    /// # Errors
    /// As [`Store::attributes`].
    fn permissions(&self, inode: InodeNr) -> Result<Attributes, FsError> {
        self.attributes(inode)
    }

    /// All names of a directory. Parts that cannot be read are noted in [`Directory::damage`].
    ///
    /// # Errors
    /// As [`Store::attributes`], and [`FsError::NotADirectory`].
    fn directory(&self, inode: InodeNr) -> Result<Arc<Directory>, FsError>;

    /// The inode that a name in a directory leads to; not `.` nor `..`.
    ///
    /// # Errors
    /// As [`Store::directory`], and [`FsError::Damaged`] if the name may be in a part that cannot be read.
    fn find(&self, directory: InodeNr, name: &[u8]) -> Result<Option<InodeNr>, FsError> {
        find_in(&*self.directory(directory)?, directory, name)
    }

    /// The directory that `..` of a directory leads to.
    ///
    /// # Errors
    /// As [`Store::directory`].
    fn parent(&self, directory: InodeNr) -> Result<InodeNr, FsError> {
        Ok(self.directory(directory)?.parent())
    }

    /// Hands the names of a directory behind `cookie` to `take`, until that returns `false` or there are no more. `.` and
    /// `..` come first.
    ///
    /// # Errors
    /// As [`Store::directory`], and [`FsError::Damaged`] behind the names that can be read.
    fn list(
        &self,
        directory: InodeNr,
        cookie: u64,
        take: &mut dyn FnMut(Listed<'_>) -> bool,
    ) -> Result<(), FsError> {
        list_of(&*self.directory(directory)?, directory, cookie, take)
    }

    /// Fills `into` with the bytes of a regular file from `offset_bytes` on, as many as it has, and returns
    /// their number. Holes are zeroes.
    ///
    /// # Errors
    /// As [`Store::attributes`], and [`FsError::Invalid`] for what is no regular file, [`FsError::NoKey`].
    fn read(&self, inode: InodeNr, offset_bytes: u64, into: &mut [u8]) -> Result<usize, FsError>;

    /// The first byte from `offset_bytes` on that lies in data, or in a hole.
    ///
    /// # Errors
    /// As [`Store::read`], and [`FsError::PastEnd`].
    fn seek(&self, inode: InodeNr, offset_bytes: u64, what: SeekFor) -> Result<u64, FsError>;

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// As [`Store::attributes`], and [`FsError::Invalid`] for everything else.
    fn target(&self, inode: InodeNr) -> Result<Vec<u8>, FsError>;

    /// The extended attributes, sorted by name; access lists in the form of system calls.
    ///
    /// # Errors
    /// As [`Store::attributes`].
    fn extended_attributes(&self, inode: InodeNr) -> Result<Vec<Attribute>, FsError>;

    /// The value of an extended attribute; `None` if there is no such. Others may be unreadable.
    ///
    /// # Errors
    /// As [`Store::attributes`].
    fn extended_attribute(&self, inode: InodeNr, name: &[u8]) -> Result<Option<Vec<u8>>, FsError> {
        let all = self.extended_attributes(inode)?;
        let found = all.into_iter().find(|attribute| attribute.name == name);
        Ok(found.map(|attribute| attribute.value))
    }

    /// The names of the extended attributes, sorted, those among them whose values cannot be read.
    ///
    /// # Errors
    /// As [`Store::attributes`].
    fn extended_attribute_names(&self, inode: InodeNr) -> Result<Vec<Vec<u8>>, FsError> {
        Ok(self.extended_attributes(inode)?.into_iter().map(|attribute| attribute.name).collect())
    }

    /// Sizes of the whole file system.
    fn space(&self) -> Space;

    /// Bytes of a block.
    fn block_bytes(&self) -> u32;

    /// Whether nothing can be changed.
    fn is_read_only(&self) -> bool;

    /// Whether changes and reads may be made at the same time. Otherwise nobody reads while a change is made.
    fn takes_many(&self) -> bool {
        false
    }

    /// A time as inodes keep it.
    fn kept_time(&self, time: Timestamp) -> Timestamp {
        time
    }

    /// Makes a change, whole or not at all. It is durable after the next [`Store::sync`].
    ///
    /// # Errors
    /// The operation fails; [`FsError::ReadOnly`], [`FsError::Ended`].
    fn apply(&self, op: &Op<'_>) -> Result<Applied, FsError>;

    /// Deletes an inode whose last name is gone, once nobody uses it. Nothing happens to one with names.
    ///
    /// # Errors
    /// As [`Store::apply`].
    fn release(&self, inode: InodeNr) -> Result<(), FsError>;

    /// The same for several; returns which of them failed, and why.
    fn release_all(&self, inodes: &[InodeNr]) -> Vec<(InodeNr, FsError)> {
        let release = |inode: &InodeNr| Some((*inode, self.release(*inode).err()?));
        inodes.iter().filter_map(release).collect()
    }

    /// Makes all changes durable that were made before the call.
    ///
    /// # Errors
    /// [`FsError::Ended`], and what the device says. [`FsError::Lost`], once, if changes are lost that were accepted: all
    /// others are durable.
    fn sync(&self) -> Result<(), FsError>;

    /// Makes durable what `fsync` of an inode promises (`docs/fsync.md`): its content, its attributes, its names and those
    /// of the directories above that have no durable one; the names in it, if it is a directory.
    ///
    /// # Errors
    /// As [`Store::sync`].
    fn sync_inode(&self, _inode: InodeNr) -> Result<(), FsError> {
        self.sync()
    }

    /// A number for a file that a program opens.
    fn open(&self) -> Handle {
        Handle(0)
    }

    /// Reports changes of an inode that were accepted and are lost, once to each open file; `None` stands for a caller who
    /// opened none. A file that `closes` is told unless `fsync` told it already.
    ///
    /// # Errors
    /// [`FsError::Lost`].
    fn late_error(
        &self,
        _inode: InodeNr,
        _of: Option<Handle>,
        _closes: bool,
    ) -> Result<(), FsError> {
        Ok(())
    }

    /// The same as [`Store::sync`] for whoever is to end the mount: losses that a program was told of, by `fsync` of the file, are
    /// not told again.
    ///
    /// # Errors
    /// As [`Store::sync`]; [`FsError::Lost`], each time.
    fn sync_for_good(&self) -> Result<(), FsError> {
        self.sync()
    }

    /// Why nothing is written any more, if an error has ended that.
    fn why_ended(&self) -> Option<String> {
        None
    }

    /// The gates of the cubes, where there can be cubes.
    fn gates(&self) -> Option<&Gates> {
        None
    }

    /// Whether an inode itself says that a directory names it, and by this name; `false` where nothing is known.
    fn is_named(&self, _inode: InodeNr, _directory: InodeNr, _name: Option<&[u8]>) -> bool {
        false
    }

    /// Records damage that shows between objects, each of which can be read.
    fn note_damage(&self, _error: &FsError) {}

    /// Notes that an operation of a cube ended by a panic.
    fn note_panic(&self, _cube: u32, _what: &str) {}

    /// Answers a call about cubes.
    ///
    /// # Errors
    /// [`FsError::Unsupported`] where there are none; [`FsError::NoAttribute`] for an inode of the root cube.
    fn cube_call(&self, _call: &CubeCall<'_>) -> Result<Vec<u8>, FsError> {
        Err(FsError::Unsupported("cubes"))
    }

    /// Discards free blocks in a range of bytes, whole runs of so many bytes at least; returns how many bytes. Freed space
    /// is durable.
    ///
    /// # Errors
    /// [`FsError::Unsupported`] if the device cannot discard.
    fn trim(&self, _bytes: std::ops::Range<u64>, _least_bytes: u64) -> Result<u64, FsError> {
        Err(FsError::Unsupported("discarding free blocks"))
    }

    /// Sizes of the part of the file system that an inode may use, if that is less than the whole.
    fn space_of(&self, _inode: InodeNr) -> Option<Space> {
        None
    }

    /// Checks and repairs cubes for which that was asked for; returns those that were changed.
    fn tend_cubes(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Sets the time of the last access of an inode, and nothing else: the time of change stays.
    ///
    /// # Errors
    /// As [`Store::apply`].
    fn note_access(&self, _inode: InodeNr, _time: Timestamp) -> Result<(), FsError> {
        Ok(())
    }

    /// Does some of the work that waits, so that callers need not; called several times a second.
    ///
    /// # Errors
    /// As [`Store::sync`].
    fn tend(&self) -> Result<(), FsError> {
        Ok(())
    }
}

/// [`Store::find`] in a directory that was read.
pub(crate) fn find_in(
    names: &Directory,
    directory: InodeNr,
    name: &[u8],
) -> Result<Option<InodeNr>, FsError> {
    match names.find(name) {
        Some(entry) => Ok(Some(entry.inode)),
        // The name may be among those that cannot be read: "there is none" would be a guess.
        None => names.error(directory).map_or(Ok(None), Err),
    }
}

/// Hands `.` and `..` to `take`; `false` once that wants no more.
pub(crate) fn list_dots(
    inode: InodeNr,
    parent: InodeNr,
    cookie: u64,
    take: &mut dyn FnMut(Listed<'_>) -> bool,
) -> bool {
    let kind = Some(FileType::Directory);
    let dot = Listed { inode, kind, name: b".", cookie: AFTER_DOT };
    let dot_dot = Listed { inode: parent, kind, name: b"..", cookie: AFTER_DOT_DOT };
    [dot, dot_dot].into_iter().filter(|dot| dot.cookie > cookie).all(take)
}

/// [`Store::list`] of a directory that was read.
pub(crate) fn list_of(
    names: &Directory,
    inode: InodeNr,
    cookie: u64,
    take: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<(), FsError> {
    if !list_dots(inode, names.parent(), cookie, take) {
        return Ok(());
    }
    for (cookie, entry) in names.behind(cookie) {
        let Entry { inode, kind, name } = entry;
        if !take(Listed { inode: *inode, kind: *kind, name, cookie }) {
            return Ok(());
        }
    }
    names.error(inode).map_or(Ok(()), Err)
}
