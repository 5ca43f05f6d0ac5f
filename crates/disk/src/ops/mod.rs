//! The operations on a [`Volume`](crate::volume::Volume): everything that a file system server asks of the disk.
//!
//! Every operation is a method of `Volume` that changes blocks of a transaction ([`Tx`](floe_ext4::tx::Tx)), as a whole or,
//! where it fails, not at all. A [`Caller`] names the user and the time. Rights (permission bits, sticky directories) are
//! the caller's to judge; what the inode itself forbids (immutable, append-only, encrypted, fs-verity) is judged here.
//!
//! Operations that may change more blocks than a transaction holds are taken in [`Step`]s: the inode is an orphan until the
//! last one, so that whoever opens the file system after a crash goes on.
//!
//! Data do not pass through the transaction: [`Volume::write`](crate::volume::Volume::write) puts them where they belong on the
//! device at once, and only the map of the file is in the transaction. So that no file shows what others left in its blocks,
//! the device is flushed before the transaction's commit (ordered data).
//!
//! A loop of a caller, for a volume without a journal:
//!
//! ```
//! use floe_blockdev::{MemDevice, WriteBlocks};
//! use floe_disk::mkfs::{self, Fresh, FsType, Options, Plan};
//! use floe_disk::ops::{Caller, NewInode, Step};
//! use floe_disk::volume::Volume;
//! use floe_ext4::tx::DirectTx;
//! use floe_format::InodeNr;
//! use floe_format::ext::inode::Timestamp;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = MemDevice::new(vec![0; 16 << 20]);
//! let now = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
//! let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now };
//! let params = Options::of_type(FsType::Ext4).params(16 << 20, None, &fresh)?;
//! mkfs::write(&Plan::new(&params)?, &device)?;
//!
//! let mut volume = Volume::open(&device)?;
//! let caller = Caller { uid: 1000, gid: 1000, time: now, may_use_reserve: false };
//! let mut tx = DirectTx::new(&device, volume.geometry().clone());
//! volume.begin_writing(&mut tx, now)?;
//!
//! // Any number of operations make one transaction ...
//! let dir = volume.create(&mut tx, &caller, InodeNr::ROOT, b"dir", &NewInode::directory(0o755))?;
//! let file = volume.create(&mut tx, &caller, dir, b"file", &NewInode::regular(0o644))?;
//! volume.write(&mut tx, &device, &caller, file, 0, b"hello")?;
//! // ... that is committed: data first, then metadata; what it freed may be used again once it is durable.
//! device.flush()?;
//! let epoch = volume.end_epoch();
//! tx.commit()?;
//! device.flush()?;
//! volume.durable(epoch);
//!
//! // A file whose last name goes is an orphan until nobody has it open and all steps are done.
//! let removed = volume.unlink(&mut tx, &caller, dir, b"file")?;
//! assert!(removed.last);
//! while volume.finish_orphan(&mut tx, &device, &caller, removed.inode)? == Step::More {
//!     // A journal would commit here.
//! }
//! volume.end_writing(&mut tx, now)?;
//! tx.commit()?;
//! device.flush()?;
//! # Ok(())
//! # }
//! ```

mod acl;
mod ahead;
mod attributes;
mod change;
mod content;
mod create;
mod credits;
mod cube_journal;
mod cubes;
mod directory;
mod fallocate;
mod fence;
mod journals;
mod names;
mod orphans;
mod quota;
mod recovered;
mod rehome;
mod rename;
mod space;
mod staged;
mod truncate;
mod untangle;
mod values;

pub use crate::caller::Caller;
pub use crate::op_error::{OpError, panic_message};
pub use ahead::{DataWrite, PlannedWrite, Plans, WrittenAhead};
pub use attributes::SetMode;
pub use change::Change;
pub use content::{Segment, SegmentKind};
pub use create::{NewInode, NewKind, Reserved};
pub use cubes::NewCube;
pub use fallocate::RangeMode;
pub use journals::FurtherJournal;
pub use names::{Named, Removed};
pub use recovered::{UnfinishedOrphans, finish_orphans};
pub use rename::{RenameMode, Renamed};
pub use truncate::Step;
pub use untangle::Moved;
