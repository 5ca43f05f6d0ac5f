//! How bytes move: small devices that stack.
//!
//! Every device answers [`ReadBlocks`]; those that may be written answer [`WriteBlocks`] too. The
//! checker is generic over [`ReadBlocks`] alone, so it cannot write.
//!
//! [`FileDevice`] reads a file or block device, [`WritableFile`] writes one, [`MemDevice`] is one in
//! memory, and [`image`] opens qcow2, VHD, VHDX, gzip and zstd. On them stand a [`Window`] (a
//! [partition](PartitionTable)), an [`Overlay`] of changes that are not written yet, [`Faulty`] and
//! [`Recorder`] for tests. [`UndoWriter`] and [`UndoFile`] save and restore what is written over.
//! `examples/try_and_undo.rs` uses all of that on a disk.
//!
//! ```
//! use floe_blockdev::{MemDevice, Overlay, ReadBlocks, Window, WriteBlocks};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let disk = MemDevice::new(vec![7; 16384]);
//! let partition = Window::new(&disk, 4096, Some(8192))?;
//! let staged = Overlay::new(&partition, 4096);
//! staged.write_at(10, &[1, 2, 3])?;
//!
//! let mut bytes = [0; 4];
//! staged.read_at(9, &mut bytes)?;
//! assert_eq!(bytes, [7, 1, 2, 3]);
//! disk.read_at(4096 + 9, &mut bytes)?;
//! assert_eq!(bytes, [7; 4], "only the overlay knows");
//! # Ok(())
//! # }
//! ```

use floe_sync::Arc;
use std::io;

mod cache_guest;
#[cfg(any(test, feature = "contract"))]
pub mod contract;
mod counted;
mod direct;
mod faulty;
mod file;
mod holes;
mod identify;
pub mod image;
mod in_use;
mod lanes;
mod mem;
mod new_file;
mod open;
mod overlay;
mod partition;
mod read_ahead;
mod read_plan;
mod recorder;
mod solid;
mod undo;
#[cfg(feature = "io-uring")]
mod uring;
mod window;
mod writable;

pub use counted::{Counted, ReadCounts};
pub use faulty::{Fault, FaultMix, Faulty};
pub use file::{Caching, FileDevice};
pub use identify::{Content, IDENTIFY_BYTES, identify};
pub use in_use::{DeviceNumber, Use, mounted_at, uses_of};
pub use mem::MemDevice;
pub use new_file::{NewFile, UNFINISHED};
pub use open::OpenError;
pub use overlay::{Overlay, SpillOptions, UnreadablePage};
pub use partition::{Partition, PartitionError, PartitionKind, PartitionTable, Scheme};
pub use read_plan::{Batch, JoinLimits, Part, PartBytes, ReadPlan};
pub use recorder::{Crash, Event, Recorder, SECTOR_BYTES, Span, Trace};
pub use solid::Solid;
pub use undo::{
    RestoreError, Restored, Saved, UndoFile, UndoReadError, UndoWriteError, UndoWriter,
    UndoWriterOptions,
};
pub use window::{Window, WindowError};
pub use writable::WritableFile;

/// A device that can be read at any byte, by many threads at once.
pub trait ReadBlocks: Send + Sync {
    /// Bytes of the device.
    fn size_bytes(&self) -> u64;

    /// Fills `into` with the bytes from `offset_bytes` on.
    ///
    /// # Errors
    /// `UnexpectedEof` if the range passes the end of the device (nothing useful is in `into`
    /// then), or what the system said.
    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()>;

    /// Whether a whole range is known to read as zeroes without reading it (a hole of a sparse
    /// file). `false` is always a right answer.
    fn is_hole(&self, _offset_bytes: u64, _len_bytes: u64) -> bool {
        false
    }

    /// Hint: this range will be read soon. A device may begin to read it in the background; nothing
    /// else changes.
    fn will_need(&self, _offset_bytes: u64, _len_bytes: u64) {}

    /// As [`ReadBlocks::will_need`], where what is read before leads up to this range. A device that sees
    /// by itself what is read in order, as the page cache does, need not be told.
    fn will_read_on(&self, _offset_bytes: u64, _len_bytes: u64) {}

    /// Whether the byte at an offset is known to be in memory, so that reading it waits for no device.
    /// `false` is always a right answer.
    fn is_at_hand(&self, _offset_bytes: u64) -> bool {
        false
    }
}

/// A device that can also be written.
pub trait WriteBlocks: ReadBlocks {
    /// Stores `from` at `offset_bytes`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the range passes the end of the device, or what the system said.
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()>;

    /// Makes everything written so far durable.
    ///
    /// # Errors
    /// What the system said.
    fn flush(&self) -> io::Result<()>;

    /// Bytes of the device now. Differs from [`ReadBlocks::size_bytes`], which never changes, once
    /// a file was cut or a volume was resized behind our back.
    ///
    /// # Errors
    /// What the system said.
    fn current_size_bytes(&self) -> io::Result<u64> {
        Ok(self.size_bytes())
    }

    /// Hint: the range is flushed, and the next read of it should ask the medium rather than a
    /// cache. Nothing changes where this cannot be done.
    fn forget(&self, _offset_bytes: u64, _len_bytes: u64) {}
}

/// What points at a device can be read as the device itself.
macro_rules! read_through {
    ($($pointer:ty),*) => { $(
        impl<D: ReadBlocks + ?Sized> ReadBlocks for $pointer {
            fn size_bytes(&self) -> u64 {
                (**self).size_bytes()
            }
            fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
                (**self).read_at(offset_bytes, into)
            }
            fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
                (**self).is_hole(offset_bytes, len_bytes)
            }
            fn will_need(&self, offset_bytes: u64, len_bytes: u64) {
                (**self).will_need(offset_bytes, len_bytes);
            }
            fn will_read_on(&self, offset_bytes: u64, len_bytes: u64) {
                (**self).will_read_on(offset_bytes, len_bytes);
            }
            fn is_at_hand(&self, offset_bytes: u64) -> bool {
                (**self).is_at_hand(offset_bytes)
            }
        }
    )* };
}

read_through!(&D, Arc<D>, Box<D>);

/// What points at a device can be written as the device itself.
macro_rules! write_through {
    ($($pointer:ty),*) => { $(
        impl<D: WriteBlocks + ?Sized> WriteBlocks for $pointer {
            fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
                (**self).write_at(offset_bytes, from)
            }
            fn flush(&self) -> io::Result<()> {
                (**self).flush()
            }
            fn current_size_bytes(&self) -> io::Result<u64> {
                (**self).current_size_bytes()
            }
            fn forget(&self, offset_bytes: u64, len_bytes: u64) {
                (**self).forget(offset_bytes, len_bytes);
            }
        }
    )* };
}

write_through!(&D, Box<D>);

/// The error of a range that passes the end of a device.
pub(crate) fn past_the_end() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "past the end of the device")
}

/// `Err` unless `len_bytes` from `offset_bytes` on lie inside a device of `size_bytes`.
pub(crate) fn within(size_bytes: u64, offset_bytes: u64, len_bytes: usize) -> io::Result<()> {
    let end = offset_bytes.checked_add(len_bytes as u64).ok_or_else(past_the_end)?;
    if end > size_bytes { Err(past_the_end()) } else { Ok(()) }
}
