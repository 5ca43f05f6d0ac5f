//! Numbers of requests.

/// Declares requests by number, with whether they change the file system.
macro_rules! opcodes {
    ($($(#[$meta:meta])* $number:literal $name:ident $($changes:ident)?,)*) => {
        /// Operations that the kernel requests (`enum fuse_opcode`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Opcode {
            $($(#[$meta])* $name = $number,)*
        }

        impl Opcode {
            /// The request of a number; `None` for one that is not known.
            pub const fn of(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Whether it changes the file system, so that a read-only one refuses it.
            pub const fn changes(self) -> bool {
                match self {
                    $(Self::$name => opcodes!(@$($changes)?),)*
                }
            }
        }
    };
    (@changes) => { true };
    (@) => { false };
}

opcodes! {
    /// A name in a directory.
    1 Lookup,
    /// The kernel drops an inode; no answer.
    2 Forget,
    /// stat.
    3 Getattr,
    /// chmod, chown, truncate, utimes.
    4 Setattr changes,
    /// The target of a link.
    5 Readlink,
    /// A new symbolic link.
    6 Symlink changes,
    /// A new node of any kind.
    8 Mknod changes,
    /// A new directory.
    9 Mkdir changes,
    /// A name goes.
    10 Unlink changes,
    /// An empty directory goes.
    11 Rmdir changes,
    /// A name moves.
    12 Rename changes,
    /// A further name.
    13 Link changes,
    /// A file is opened.
    14 Open,
    /// Bytes of a file.
    15 Read,
    /// Bytes for a file.
    16 Write changes,
    /// Sizes of the file system.
    17 Statfs,
    /// The last descriptor of an open file is gone.
    18 Release,
    /// A file is made durable.
    20 Fsync,
    /// An attribute is set.
    21 Setxattr changes,
    /// The value of an attribute.
    22 Getxattr,
    /// The names of attributes.
    23 Listxattr,
    /// An attribute goes.
    24 Removexattr changes,
    /// A descriptor is closed.
    25 Flush,
    /// The first request.
    26 Init,
    /// A directory is opened.
    27 Opendir,
    /// Names of a directory.
    28 Readdir,
    /// The last descriptor of an open directory is gone.
    29 Releasedir,
    /// A directory is made durable.
    30 Fsyncdir,
    /// May the caller?
    34 Access,
    /// A new file, opened.
    35 Create changes,
    /// A caller does not want its answer any more; no answer.
    36 Interrupt,
    /// The last request.
    38 Destroy,
    /// ioctl.
    39 Ioctl,
    /// Several inodes are dropped; no answer.
    42 BatchForget,
    /// Blocks are allocated or freed.
    43 Fallocate changes,
    /// Names of a directory, with attributes.
    44 Readdirplus,
    /// A name moves, with flags.
    45 Rename2 changes,
    /// The next data or hole.
    46 Lseek,
    /// Bytes move between files.
    47 CopyFileRange changes,
    /// Everything is made durable.
    50 Syncfs,
    /// A new file without a name.
    51 Tmpfile changes,
    /// stat with the time of creation.
    52 Statx,
    /// Bytes move between files; the answer has 64 bits.
    53 CopyFileRange64 changes,
}
