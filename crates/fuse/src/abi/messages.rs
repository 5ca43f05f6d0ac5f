//! Fixed structures of messages.

use floe_format::layout;

layout! {
    /// Before every request (`fuse_in_header`).
    pub struct InHeader[40] little {
        /// Bytes of the request, this header included.
        0x00 len: u32,
        /// [`super::Opcode`] by number.
        0x04 opcode: u32,
        /// Which request the answer belongs to.
        0x08 unique: u64,
        /// The inode that it is about; 1 is the root.
        0x10 node: u64,
        /// The caller's user.
        0x18 uid: u32,
        /// The caller's group.
        0x1c gid: u32,
        /// The caller's process.
        0x20 pid: u32,
        /// Units of 8 bytes of extensions behind the request.
        0x24 total_extlen: u16,
    }
}

layout! {
    /// Before every answer (`fuse_out_header`).
    pub struct OutHeader[16] little {
        /// Bytes of the answer, this header included.
        0x00 len: u32,
        /// 0, or a negative number of an error, in two's complement.
        0x04 error: u32,
        /// Which request this is the answer to.
        0x08 unique: u64,
    }
}

layout! {
    /// The kernel's offer (`fuse_init_in`).
    pub struct InitIn[64] little {
        /// Major version.
        0x00 major: u32,
        /// Minor version.
        0x04 minor: u32,
        /// Bytes that the kernel wants to read ahead.
        0x08 max_readahead: u32,
        /// [`super::InitFlags`], low half.
        0x0c flags: u32,
        /// [`super::InitFlags`], high half.
        0x10 flags2: u32,
    }
}

layout! {
    /// The server's choice (`fuse_init_out`).
    pub struct InitOut[64] little {
        /// Major version.
        0x00 major: u32,
        /// Minor version.
        0x04 minor: u32,
        /// Bytes to read ahead at most.
        0x08 max_readahead: u32,
        /// [`super::InitFlags`], low half.
        0x0c flags: u32,
        /// Requests that nobody waits for, such as reading ahead, at most.
        0x10 max_background: u16,
        /// Above as many the device counts as busy.
        0x12 congestion_threshold: u16,
        /// Bytes of a write at most.
        0x14 max_write: u32,
        /// Nanoseconds of the unit of time stamps.
        0x18 time_gran: u32,
        /// Pages of a request at most.
        0x1c max_pages: u16,
        /// [`super::InitFlags`], high half.
        0x20 flags2: u32,
    }
}

layout! {
    /// `fuse_attr`.
    pub struct Attr[88] little {
        0x00 ino: u64,
        0x08 size: u64,
        0x10 blocks: u64,
        0x18 atime: u64,
        0x20 mtime: u64,
        0x28 ctime: u64,
        0x30 atimensec: u32,
        0x34 mtimensec: u32,
        0x38 ctimensec: u32,
        0x3c mode: u32,
        0x40 nlink: u32,
        0x44 uid: u32,
        0x48 gid: u32,
        0x4c rdev: u32,
        0x50 blksize: u32,
        0x54 flags: u32,
    }
}

layout! {
    /// `fuse_entry_out`, without the attributes behind it.
    pub struct EntryHead[40] little {
        0x00 nodeid: u64,
        0x08 generation: u64,
        0x10 entry_valid: u64,
        0x18 attr_valid: u64,
        0x20 entry_valid_nsec: u32,
        0x24 attr_valid_nsec: u32,
    }
}

layout! {
    /// `fuse_attr_out`, without the attributes behind it.
    pub struct AttrHead[16] little {
        0x00 attr_valid: u64,
        0x08 attr_valid_nsec: u32,
    }
}

layout! {
    /// `fuse_read_in`.
    pub struct ReadIn[40] little {
        0x00 fh: u64,
        0x08 offset: u64,
        0x10 size: u32,
    }
}

layout! {
    /// `fuse_release_in`.
    pub struct ReleaseIn[24] little {
        0x00 fh: u64,
        0x08 flags: u32,
    }
}

layout! {
    /// `fuse_getxattr_in`.
    pub struct GetxattrIn[8] little {
        0x00 size: u32,
    }
}

layout! {
    /// `fuse_lseek_in`.
    pub struct LseekIn[24] little {
        0x00 fh: u64,
        0x08 offset: u64,
        0x10 whence: u32,
    }
}

layout! {
    /// `fuse_ioctl_in`.
    pub struct IoctlIn[32] little {
        /// Handle.
        0x00 fh: u64,
        /// `FUSE_IOCTL_*`.
        0x08 flags: u32,
        /// The command.
        0x0c cmd: u32,
        /// The caller's argument, a number or an address.
        0x10 arg: u64,
        /// Bytes from the caller behind this.
        0x18 in_size: u32,
        /// Bytes for the caller at most.
        0x1c out_size: u32,
    }
}

layout! {
    /// `fuse_kstatfs`.
    pub struct Statfs[80] little {
        0x00 blocks: u64,
        0x08 bfree: u64,
        0x10 bavail: u64,
        0x18 files: u64,
        0x20 ffree: u64,
        0x28 bsize: u32,
        0x2c namelen: u32,
        0x30 frsize: u32,
    }
}

layout! {
    /// `fuse_dirent`, without the name behind it.
    pub struct Dirent[24] little {
        0x00 ino: u64,
        0x08 off: u64,
        0x10 namelen: u32,
        0x14 kind: u32,
    }
}

layout! {
    /// `fuse_statx_out`.
    pub struct StatxOut[288] little {
        0x00 attr_valid: u64,
        0x08 attr_valid_nsec: u32,
        0x0c flags: u32,
        0x20 mask: u32,
        0x24 blksize: u32,
        0x28 attributes: u64,
        0x30 nlink: u32,
        0x34 uid: u32,
        0x38 gid: u32,
        0x3c mode: u16,
        0x40 ino: u64,
        0x48 size: u64,
        0x50 blocks: u64,
        0x58 attributes_mask: u64,
        0x60 atime: u64,
        0x68 atime_nsec: u32,
        0x70 btime: u64,
        0x78 btime_nsec: u32,
        0x80 ctime: u64,
        0x88 ctime_nsec: u32,
        0x90 mtime: u64,
        0x98 mtime_nsec: u32,
        0xa0 rdev_major: u32,
        0xa4 rdev_minor: u32,
    }
}

layout! {
    /// `fuse_setattr_in`.
    pub struct SetattrIn[88] little {
        /// [`super::SetattrFields`].
        0x00 valid: u32,
        /// Handle.
        0x08 fh: u64,
        /// New size.
        0x10 size: u64,
        /// Last access, seconds since 1970 in two's complement.
        0x20 atime: u64,
        /// Last change of the content, likewise.
        0x28 mtime: u64,
        /// Last change of the inode, likewise.
        0x30 ctime: u64,
        /// Nanoseconds of the last access.
        0x38 atimensec: u32,
        /// Nanoseconds of the last change of the content.
        0x3c mtimensec: u32,
        /// Nanoseconds of the last change of the inode.
        0x40 ctimensec: u32,
        /// Type and permissions.
        0x44 mode: u32,
        /// Owner.
        0x4c uid: u32,
        /// Group.
        0x50 gid: u32,
    }
}

layout! {
    /// `fuse_mknod_in`.
    pub struct MknodIn[16] little {
        0x00 mode: u32,
        0x04 rdev: u32,
        0x08 umask: u32,
    }
}

layout! {
    /// `fuse_mkdir_in`.
    pub struct MkdirIn[8] little {
        0x00 mode: u32,
        0x04 umask: u32,
    }
}

layout! {
    /// `fuse_create_in`.
    pub struct CreateIn[16] little {
        0x00 flags: u32,
        0x04 mode: u32,
        0x08 umask: u32,
    }
}

layout! {
    /// `fuse_rename2_in`.
    pub struct Rename2In[16] little {
        0x00 newdir: u64,
        0x08 flags: u32,
    }
}

layout! {
    /// `fuse_write_in`.
    pub struct WriteIn[40] little {
        0x00 fh: u64,
        0x08 offset: u64,
        0x10 size: u32,
        0x14 flags: u32,
        0x20 open_flags: u32,
    }
}

layout! {
    /// `fuse_setxattr_in` as it is without `FUSE_SETXATTR_EXT`.
    pub struct SetxattrIn[8] little {
        0x00 size: u32,
        0x04 flags: u32,
    }
}

layout! {
    /// Follows it with `FUSE_SETXATTR_EXT`.
    pub struct SetxattrMore[8] little {
        0x00 setxattr_flags: u32,
    }
}

layout! {
    /// `fuse_forget_one`.
    pub struct ForgetOne[16] little {
        0x00 nodeid: u64,
        0x08 nlookup: u64,
    }
}

layout! {
    /// `fuse_copy_file_range_in`.
    pub struct CopyIn[56] little {
        0x00 fh_in: u64,
        0x08 off_in: u64,
        0x10 nodeid_out: u64,
        0x18 fh_out: u64,
        0x20 off_out: u64,
        0x28 len: u64,
        0x30 flags: u64,
    }
}

layout! {
    /// `fuse_fallocate_in`.
    pub struct FallocateIn[32] little {
        0x00 fh: u64,
        0x08 offset: u64,
        0x10 length: u64,
        0x18 mode: u32,
    }
}
