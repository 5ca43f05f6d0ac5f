//! An ext2, ext3 or ext4 file system as programs see one: names, attributes, contents. A library that needs no
//! mount; `floe-fuse` serves the same calls to the kernel.
//!
//! [`FileSystem`] has the calls. It stands on a [`Store`], which keeps the files: [`Image`] reads them from any
//! image, whatever its features, and never writes; [`Live`] reads and writes a [`Disk`], each change ([`Op`]) through
//! the journal. Nothing is global, all calls may come from many threads.
//!
//! # Reading an image
//!
//! ```no_run
//! use floe_blockdev::FileDevice;
//! use floe_check::{CheckOptions, view};
//! use floe_fs::{Caller, FileSystem, Follow, Image};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = FileDevice::open("disk.img".as_ref())?;
//! // Replays the journal in memory.
//! let bytes = view(&device, &CheckOptions::default(), |files, _found| {
//!     let fs = FileSystem::new(Image::new(files));
//!     let user = Caller::User { uid: 1000, gid: 1000, groups: Vec::new() };
//!     let (inode, _) = fs.find_path(&user, b"/home/hello.txt", Follow::Last)?;
//!     let mut bytes = vec![0; usize::try_from(fs.attributes(inode)?.size_bytes).unwrap_or(0)];
//!     fs.read(inode, 0, &mut bytes).map(|_| bytes)
//! })??;
//! # drop(bytes);
//! # Ok(())
//! # }
//! ```
//!
//! # Changing one
//!
//! [`MemFs`] answers from memory and lets the disk have changes later, within [`Limits::of_memory`] of memory. Here the disk is
//! an image in memory, too; [`floe_blockdev::WritableFile`] opens one in a file.
//!
//! ```
//! use floe_blockdev::MemDevice;
//! use floe_disk::mkfs::{self, Fresh, FsType, Options, Plan};
//! use floe_format::InodeNr;
//! use floe_fs::{
//!     Caller, Disk, FileSystem, Follow, FsError, Limits, Live, MemFs, NewInode, Op, OpKind, Place, Want, now,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = MemDevice::new(vec![0; 16 << 20]);
//! let fresh = Fresh { uuid: [1; 16], hash_seed: [2; 16], now: now() };
//! let params = Options::of_type(FsType::Ext4).params(16 << 20, None, &fresh)?;
//! mkfs::write(&Plan::new(&params)?, &device)?;
//!
//! let (disk, volume) = Disk::open(&device)?;
//! {
//!     let files = disk.files()?;
//!     let live = Live::new(&disk, &files, volume, now())?;
//!     let fs = FileSystem::new(MemFs::new(live, Limits::of_memory(64 << 20)));
//!
//!     // Several changes, on behalf of user 1000. Created inodes are held until `forget`.
//!     let op = |kind| Op { uid: 1000, gid: 1000, time: now(), kind };
//!     let place = |name| Place { directory: InodeNr::ROOT, name };
//!     let made = fs.apply_all([
//!         op(OpKind::Create { place: place(b"notes"), new: NewInode::regular(0o600) }),
//!         op(OpKind::Create { place: place(b"link"), new: NewInode::symlink(b"notes") }),
//!     ])?;
//!     let notes = made[0].ok_or(FsError::NotFound)?.inode;
//!     fs.apply(&op(OpKind::Write { inode: notes, offset_bytes: 0, bytes: b"text" }))?;
//!
//!     // By path, and only by those who may.
//!     let (user, other) = (1000, 1001);
//!     let caller = |uid| Caller::User { uid, gid: uid, groups: Vec::new() };
//!     let (inode, _) = fs.find_path(&caller(user), b"/link", Follow::Last)?;
//!     fs.access(&caller(user), inode, Want::READ)?;
//!     assert!(matches!(fs.access(&caller(other), inode, Want::READ), Err(FsError::AccessDenied)));
//!
//!     // A handle is told once if changes of its file are lost later.
//!     let handle = fs.open();
//!     fs.sync_inode(inode, Some(handle))?;
//!     fs.close(inode, handle)?;
//!     made.into_iter().flatten().try_for_each(|made| fs.forget(made.inode, 1))?;
//!
//!     // The end: the disk has everything, and says that it is clean.
//!     let (live, lost) = fs.into_store().finish()?;
//!     live.finish(now())?;
//!     lost?;
//! }
//! disk.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Callers
//!
//! Calls that find, list and judge take a [`Caller`]. [`FileSystem::apply`] does not judge: whoever calls it has asked
//! [`FileSystem::access`] for `WRITE` and `EXECUTE` of the directories that change, or `WRITE` of the file, and minds owners and
//! sticky directories himself, as the kernel does for a mount. [`Op::uid`] and [`Op::gid`] own what is created.
//!
//! # Threads
//!
//! All calls take `&self` and may come from any thread:
//!
//! ```
//! use floe_fs::{FileSystem, Limits, MemFs, NullDisk};
//!
//! fn shared<T: Send + Sync>(_: &T) {}
//! shared(&FileSystem::new(MemFs::new(NullDisk::new(100, 1000), Limits::default())));
//! ```
//!
//! Somebody has to call [`FileSystem::tend`] several times a second and [`FileSystem::sync`] every few seconds, if changes shall
//! reach the disk without an fsync. `floe mount` does; nothing here starts a thread.
//!
//! # Errors
//!
//! A call that fails has changed nothing, but for long writes ([`FileSystem::apply`]) and [`FsError::Lost`]. Those that a
//! program meets in normal work ([`FsError::NotFound`], [`FsError::Exists`], [`FsError::NoSpace`] ...) have the meaning of the
//! `errno` that `floe-fuse` turns them into. [`FsError::Damaged`] and [`FsError::Unreadable`] are about one object, and the
//! others can be used on. [`FsError::Lost`] says that changes which were accepted could not be written. After
//! [`FsError::Ended`] nothing can be changed any more; what was durable stays, and the journal is recovered when the image is
//! opened the next time.

#![warn(clippy::print_stderr, clippy::print_stdout)] // messages are the program's

mod access_time;
mod attributes;
mod by_number;
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

pub use access_time::AccessTimes;
pub use attributes::Attributes;
pub use caller::{Caller, Want};
pub use cubes::{CubeCall, Gates, Mode, Settings, Which};
pub use directory::{AFTER_DOT, AFTER_DOT_DOT, Directory, Entry, NameHash};
pub use disk::{Disk, DiskError};
pub use error::FsError;
pub use faults::{Fault, OnError};
pub use file_system::{FileSystem, Follow, Listed, Stopped};
pub use floe_disk::journal::Dependencies;
pub use floe_disk::ops::{Change, NewInode, NewKind, RangeMode, RenameMode, Reserved, SetMode};
pub use floe_disk::volume::ErrorCode;
pub use floe_ext4::files::{Attribute, Timestamp};
pub use image::Image;
pub use live::Live;
pub use memory::{Above, Carried, Deed, Facts, Handle, Limits, Lower, MemFs, NullDisk, Quotas};
pub use op::{Applied, Op, OpKind, Place};
pub use store::{SeekFor, Space, Store};

use rustix::time::{ClockId, clock_gettime};

/// The time of the system, from the clock that ticks a few hundred times a second, as Linux's own file systems have it. The
/// kernel stamps what it keeps of a mount's files with that one: a finer clock here would let a file that was written later have
/// the earlier time.
pub fn now() -> Timestamp {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    Timestamp { seconds: now.tv_sec, nanoseconds: u32::try_from(now.tv_nsec).unwrap_or(0) }
}
