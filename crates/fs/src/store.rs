//! What the file system asks of whatever keeps it.

use floe_ext4::files::Attribute;
use floe_format::InodeNr;
use floe_sync::Arc;

use crate::op::{Applied, Op};
use crate::{Attributes, Directory, FsError, Handle};

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

    /// All names of a directory. Parts that cannot be read are noted in [`Directory::damage`].
    ///
    /// # Errors
    /// As [`Store::attributes`], and [`FsError::NotADirectory`].
    fn directory(&self, inode: InodeNr) -> Result<Arc<Directory>, FsError>;

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

    /// Sizes of the whole file system.
    fn space(&self) -> Space;

    /// Bytes of a block.
    fn block_bytes(&self) -> u32;

    /// Whether nothing can be changed.
    fn is_read_only(&self) -> bool;

    /// Makes a change, whole or not at all. It is durable after the next [`Store::sync`]. Nobody reads meanwhile.
    ///
    /// # Errors
    /// The operation fails; [`FsError::ReadOnly`], [`FsError::Ended`].
    fn apply(&self, op: &Op<'_>) -> Result<Applied, FsError>;

    /// Deletes an inode whose last name is gone, once nobody uses it. Nothing happens to one with names.
    ///
    /// # Errors
    /// As [`Store::apply`].
    fn release(&self, inode: InodeNr) -> Result<(), FsError>;

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

    /// Does some of the work that waits, so that callers need not; called several times a second.
    ///
    /// # Errors
    /// As [`Store::sync`].
    fn tend(&self) -> Result<(), FsError> {
        Ok(())
    }
}
