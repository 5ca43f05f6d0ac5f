//! The messages of the kernel's FUSE protocol, version 7 (`include/uapi/linux/fuse.h`; the kernel's names in
//! backquotes).
//!
//! A message comes in the byte order of the machine. Floe serves little-endian machines only, and
//! [`crate::mount`] refuses the others.

mod change;
// `layout!` makes its structures and fields public.
#[allow(unreachable_pub)]
mod messages;
mod opcode;
mod reply;
mod request;

pub use change::{Change, SetattrFields, WriteFlags};
pub use messages::{InHeader, InitIn, InitOut, IoctlIn, OutHeader, SetattrIn};
pub use opcode::Opcode;
pub use reply::{
    DirectoryReply, ENTRY_BYTES, attributes, entry, extended_stat, opened, statfs, written,
};
pub(crate) use reply::{ask_again, device_of, forget, inode_of, stale_name, write_back};
pub use request::{Malformed, Operation, Request};

use bitflags::bitflags;

/// The major version, which has not changed since 2006.
pub const MAJOR: u32 = 7;
/// The newest minor version whose messages are known here (Linux 6.18).
pub const MINOR: u32 = 45;
/// The oldest minor version that is served: that of Linux 5.4, the first with [`InitFlags::MAX_PAGES`] and all
/// structures as they are now.
pub const OLDEST_MINOR: u32 = 31;

bitflags! {
    /// Features that kernel and server negotiate by `FUSE_INIT` (`FUSE_*`); the upper half travels as `flags2`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct InitFlags: u64 {
        /// Several reads of one file at a time.
        const ASYNC_READ = 1 << 0;
        /// The server knows `.` and `..` of every inode, as NFS needs it.
        const EXPORT_SUPPORT = 1 << 4;
        /// Writes of more than a page.
        const BIG_WRITES = 1 << 5;
        /// The server applies the umask, or the default access list instead of it.
        const DONT_MASK = 1 << 6;
        /// ioctl on directories.
        const HAS_IOCTL_DIR = 1 << 11;
        /// Directories can be read with attributes.
        const DO_READDIRPLUS = 1 << 13;
        /// The kernel decides when to read directories with attributes.
        const READDIRPLUS_AUTO = 1 << 14;
        /// Direct reads and writes go on at the same time.
        const ASYNC_DIO = 1 << 15;
        /// The kernel keeps what is written, and with it size and times, until it writes back.
        const WRITEBACK_CACHE = 1 << 16;
        /// `ENOSYS` for open means that no file need be opened or closed.
        const NO_OPEN_SUPPORT = 1 << 17;
        /// Several look-ups and readings of one directory at a time.
        const PARALLEL_DIROPS = 1 << 18;
        /// The kernel judges access lists.
        const POSIX_ACL = 1 << 20;
        /// Reading the device fails with `ECONNABORTED` after an abort.
        const ABORT_ERROR = 1 << 21;
        /// The server says how many pages a request has at most.
        const MAX_PAGES = 1 << 22;
        /// Targets of symbolic links are kept.
        const CACHE_SYMLINKS = 1 << 23;
        /// `ENOSYS` for opendir means that no directory need be opened or closed.
        const NO_OPENDIR_SUPPORT = 1 << 24;
        /// Cached data go only when the server says so.
        const EXPLICIT_INVAL_DATA = 1 << 25;
        /// The server takes set-user-ID and set-group-ID away when a file is written, cut or gets an owner.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// Requests that set an attribute have flags of their own behind those of the call.
        const SETXATTR_EXT = 1 << 29;
        /// Flags have an upper half.
        const INIT_EXT = 1 << 30;
        /// The mount may be mounted again with mapped ids; requests that create nothing come without the caller's then.
        const ALLOW_IDMAP = 1 << 40;
        /// Requests may come by io_uring.
        const OVER_IO_URING = 1 << 41;
        // Others may come from the kernel; they are not answered.
        const _ = !0;
    }
}
