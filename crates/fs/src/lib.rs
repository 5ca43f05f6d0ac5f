//! An ext2, ext3 or ext4 file system as programs see one: names, attributes, contents. A library that needs no
//! mount; `floe-fuse` serves the same calls to the kernel.
//!
//! [`FileSystem`] has the calls. It stands on a [`Store`], which keeps the files: [`Image`] reads them from any
//! image, whatever its features, and never writes; [`Live`] reads and writes a [`Disk`], each change ([`Op`]) through
//! the journal. Nothing is global, all calls may come from many threads.
//!
//! ```no_run
//! use floe_blockdev::FileDevice;
//! use floe_check::{CheckOptions, view};
//! use floe_format::InodeNr;
//! use floe_fs::{Caller, FileSystem, Image};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = FileDevice::open("disk.img".as_ref())?;
//! // Replays the journal in memory.
//! let bytes = view(&device, &CheckOptions::default(), |files, _found| {
//!     let fs = FileSystem::new(Image::new(files));
//!     let user = Caller::User { uid: 1000, gid: 1000, groups: Vec::new() };
//!     let file = fs.look_up(&user, InodeNr::ROOT, b"hello.txt")?;
//!     let mut bytes = vec![0; usize::try_from(file.size_bytes).unwrap_or(0)];
//!     fs.read(file.inode, 0, &mut bytes).map(|_| bytes)
//! })??;
//! # drop(bytes);
//! # Ok(())
//! # }
//! ```

mod attributes;
mod caller;
mod cubes;
mod directories;
mod directory;
mod disk;
mod error;
mod faults;
mod file_system;
mod held;
mod image;
mod live;
mod memory;
mod op;
mod store;

pub use attributes::Attributes;
pub use caller::{Caller, Want};
pub use cubes::{CubeCall, Gates, Mode, Settings};
pub use directory::{AFTER_DOT, AFTER_DOT_DOT, Directory, Entry, NameHash};
pub use disk::{Disk, DiskError};
pub use error::FsError;
pub use faults::{Fault, OnError};
pub use file_system::{FileSystem, Listed};
pub use floe_disk::ops::{Change, NewInode, NewKind, RangeMode, RenameMode, Reserved, SetMode};
pub use floe_disk::volume::ErrorCode;
pub use floe_ext4::files::{Attribute, Timestamp};
pub use image::Image;
pub use live::Live;
pub use memory::{Deed, Facts, Handle, Limits, Lower, MemFs, NullDisk, Quotas};
pub use op::{Applied, Op, OpKind, Place};
pub use store::{SeekFor, Space, Store};

use std::time::{SystemTime, UNIX_EPOCH};

/// The time of the system.
pub fn now() -> Timestamp {
    // A clock before 1970 is taken for 1970.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    Timestamp { seconds, nanoseconds: since.subsec_nanos() }
}
