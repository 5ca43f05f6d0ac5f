//! Decoding of requests that change the file system.

use bitflags::bitflags;
use rustix::fs::OFlags;

use super::InitFlags;
use super::messages::{
    CopyIn, CreateIn, FallocateIn, MkdirIn, MknodIn, Rename2In, SetattrIn, SetxattrIn,
    SetxattrMore, WriteIn,
};
use super::opcode::Opcode;
use super::request::name;

/// `FUSE_SETXATTR_ACL_KILL_SGID`.
const SETXATTR_ACL_KILL_SGID: u32 = 1;

bitflags! {
    /// Which fields of [`SetattrIn`] count (`FATTR_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SetattrFields: u32 {
        /// The mode.
        const MODE = 1 << 0;
        /// The owner.
        const UID = 1 << 1;
        /// The group.
        const GID = 1 << 2;
        /// The size.
        const SIZE = 1 << 3;
        /// The last access.
        const ATIME = 1 << 4;
        /// The last change of the content.
        const MTIME = 1 << 5;
        /// The last access is now.
        const ATIME_NOW = 1 << 7;
        /// The last change of the content is now.
        const MTIME_NOW = 1 << 8;
        /// The last change of the inode.
        const CTIME = 1 << 10;
        /// Set-user-ID and set-group-ID go.
        const KILL_SUIDGID = 1 << 11;
    }
}

bitflags! {
    /// The kind of a write (`FUSE_WRITE_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct WriteFlags: u32 {
        /// The kernel writes back what it kept: nobody knows any more who wrote it.
        const CACHE = 1 << 0;
        /// Set-user-ID and set-group-ID go.
        const KILL_SUIDGID = 1 << 2;
    }
}

/// A change that is asked for, and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// A new node of any kind but links and directories.
    Mknod {
        /// Its name.
        name: &'a [u8],
        /// Type and permissions.
        mode: u32,
        /// The number of a device, as the kernel packs it.
        device: u32,
        /// Permissions that are not given.
        umask: u32,
    },
    /// A new directory.
    Mkdir {
        /// Its name.
        name: &'a [u8],
        /// Permissions.
        mode: u32,
        /// Permissions that are not given.
        umask: u32,
    },
    /// A new symbolic link.
    Symlink {
        /// Its name.
        name: &'a [u8],
        /// Where it leads.
        target: &'a [u8],
    },
    /// A new regular file, opened; without a name it is a temporary one.
    Create {
        /// Its name.
        name: Option<&'a [u8]>,
        /// Permissions.
        mode: u32,
        /// Permissions that are not given.
        umask: u32,
        /// How it is opened: `O_*`.
        flags: u32,
    },
    /// A further name.
    Link {
        /// The inode that gets the name.
        node: u64,
        /// The name.
        name: &'a [u8],
    },
    /// A name goes.
    Unlink {
        /// The name.
        name: &'a [u8],
        /// It must be a directory's.
        directory: bool,
    },
    /// A name moves.
    Rename {
        /// The name.
        from: &'a [u8],
        /// Directory of the new name.
        directory: u64,
        /// The new name.
        to: &'a [u8],
        /// `RENAME_*`.
        flags: u32,
    },
    /// Fields of an inode change.
    Setattr(SetattrIn),
    /// Bytes for a file.
    Write {
        /// First byte.
        offset_bytes: u64,
        /// The bytes.
        bytes: &'a [u8],
        /// The kind of the write.
        flags: WriteFlags,
        /// The program passes the kernel's cache by (`O_DIRECT`).
        direct: bool,
    },
    /// An attribute is set.
    Setxattr {
        /// Its name.
        name: &'a [u8],
        /// Its value.
        value: &'a [u8],
        /// `XATTR_*`.
        flags: u32,
        /// An access list whose caller is not of the file's group, so that set-group-ID goes (`FUSE_SETXATTR_ACL_KILL_SGID`).
        drops_set_gid: bool,
    },
    /// An attribute goes.
    Removexattr {
        /// Its name.
        name: &'a [u8],
    },
    /// A range of a file is reserved, zeroed, freed or moved.
    Fallocate {
        /// First byte.
        offset_bytes: u64,
        /// Bytes.
        len_bytes: u64,
        /// `FALLOC_FL_*`.
        mode: u32,
    },
    /// Bytes of the file are copied to another one.
    Copy {
        /// First byte.
        offset_bytes: u64,
        /// The other file.
        to: u64,
        /// Where its first byte gets.
        to_bytes: u64,
        /// Bytes at most.
        len_bytes: u64,
        /// The answer has 64 bits.
        wide: bool,
    },
    /// One that is not served.
    Unserved(Opcode),
}

impl<'a> Change<'a> {
    /// Decodes the arguments behind the header; `None` if they are cut off.
    pub(super) fn decode(opcode: Opcode, body: &'a [u8], agreed: InitFlags) -> Option<Self> {
        Some(match opcode {
            Opcode::Mknod => {
                let (head, rest) = body.split_first_chunk()?;
                let MknodIn { mode, rdev, umask } = MknodIn::decode(head);
                Self::Mknod { name: name(rest)?, mode, device: rdev, umask }
            }
            Opcode::Mkdir => {
                let (head, rest) = body.split_first_chunk()?;
                let MkdirIn { mode, umask } = MkdirIn::decode(head);
                Self::Mkdir { name: name(rest)?, mode, umask }
            }
            Opcode::Symlink => {
                let (name, target) = two_names(body)?;
                Self::Symlink { name, target }
            }
            Opcode::Create | Opcode::Tmpfile => {
                let (head, rest) = body.split_first_chunk()?;
                let CreateIn { flags, mode, umask } = CreateIn::decode(head);
                let unnamed = opcode == Opcode::Tmpfile;
                let name = if unnamed { None } else { Some(name(rest)?) };
                Self::Create { name, mode, umask, flags }
            }
            Opcode::Link => {
                let (node, rest) = body.split_first_chunk()?;
                Self::Link { node: u64::from_le_bytes(*node), name: name(rest)? }
            }
            Opcode::Unlink => Self::Unlink { name: name(body)?, directory: false },
            Opcode::Rmdir => Self::Unlink { name: name(body)?, directory: true },
            Opcode::Rename => {
                let (directory, rest) = body.split_first_chunk()?;
                let (from, to) = two_names(rest)?;
                Self::Rename { from, directory: u64::from_le_bytes(*directory), to, flags: 0 }
            }
            Opcode::Rename2 => {
                let (head, rest) = body.split_first_chunk()?;
                let Rename2In { newdir, flags } = Rename2In::decode(head);
                let (from, to) = two_names(rest)?;
                Self::Rename { from, directory: newdir, to, flags }
            }
            Opcode::Setattr => Self::Setattr(SetattrIn::decode(body.first_chunk()?)),
            Opcode::Write => {
                let (head, rest) = body.split_first_chunk()?;
                let WriteIn { offset, size, flags, open_flags, .. } = WriteIn::decode(head);
                let bytes = rest.get(..usize::try_from(size).ok()?)?;
                let flags = WriteFlags::from_bits_truncate(flags);
                let direct = open_flags & OFlags::DIRECT.bits() != 0;
                Self::Write { offset_bytes: offset, bytes, flags, direct }
            }
            Opcode::Setxattr => Self::setxattr(body, agreed)?,
            Opcode::Removexattr => Self::Removexattr { name: name(body)? },
            Opcode::Fallocate => {
                let FallocateIn { offset, length, mode, .. } =
                    FallocateIn::decode(body.first_chunk()?);
                Self::Fallocate { offset_bytes: offset, len_bytes: length, mode }
            }
            Opcode::CopyFileRange | Opcode::CopyFileRange64 => {
                let CopyIn { off_in, nodeid_out, off_out, len, .. } =
                    CopyIn::decode(body.first_chunk()?);
                let wide = opcode == Opcode::CopyFileRange64;
                let (offset_bytes, to, to_bytes) = (off_in, nodeid_out, off_out);
                Self::Copy { offset_bytes, to, to_bytes, len_bytes: len, wide }
            }
            opcode => Self::Unserved(opcode),
        })
    }

    fn setxattr(body: &'a [u8], agreed: InitFlags) -> Option<Self> {
        let (head, rest) = body.split_first_chunk()?;
        let SetxattrIn { size, flags } = SetxattrIn::decode(head);
        let (own_flags, rest) = if agreed.contains(InitFlags::SETXATTR_EXT) {
            let (more, rest) = rest.split_first_chunk()?;
            (SetxattrMore::decode(more).setxattr_flags, rest)
        } else {
            (0, rest)
        };
        let drops_set_gid = own_flags & SETXATTR_ACL_KILL_SGID != 0;
        let name = name(rest)?;
        let value = rest.get(name.len() + 1..)?.get(..usize::try_from(size).ok()?)?;
        Some(Self::Setxattr { name, value, flags, drops_set_gid })
    }
}

/// Two names, one after the other, each with a zero byte behind it.
fn two_names(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let first = name(bytes)?;
    Some((first, name(bytes.get(first.len() + 1..)?)?))
}
