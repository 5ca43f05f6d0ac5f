//! Block devices that stack.
//!
//! Every device implements [`ReadBlocks`]; writable ones implement [`WriteBlocks`], too. The
//! checker is generic over [`ReadBlocks`] alone, so it cannot write.
//!
//! [`FileDevice`] reads a file or block device, [`WritableFile`] writes one, [`MemDevice`] keeps
//! one in memory, and [`image`] opens qcow2, VHD, VHDX, gzip and zstd. These can be stacked on top:
//! a [`Window`] (a [partition](PartitionTable)), [`Striped`], an [`Overlay`] of staged changes, and
//! for tests [`Faulty`], [`Recorder`] and [`Modelled`]. [`UndoWriter`] and [`UndoFile`] save and restore overwritten bytes.
//! `examples/try_and_undo.rs` uses all of them on a disk.
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

#![warn(clippy::print_stderr, clippy::print_stdout)] // messages are the program's

use floe_sync::Arc;
use std::io;

mod claim;
#[cfg(any(test, feature = "contract"))]
pub mod contract;
mod counted;
mod direct;
mod fails_at;
mod faulty;
mod file;
mod gapped;
mod holes;
mod identify;
pub mod image;
mod in_use;
mod medium;
mod mem;
mod model;
mod new_file;
mod no_holes;
mod noting;
mod open;
mod overlay;
mod partition;
mod per_thread;
mod preserve_cache;
mod read_ahead;
mod read_plan;
mod recorder;
mod scratch;
mod stack;
mod striped;
mod this_host;
mod undo;
#[cfg(feature = "io-uring")]
mod uring;
mod window;
mod writable;

pub use claim::{Access, Claim};
pub use counted::{Counted, ReadCounts};
pub use fails_at::{FailsAt, Strike};
pub use faulty::{Fault, FaultMix, Faulty};
pub use file::{Caching, FileDevice};
pub use gapped::Gapped;
pub use identify::{Content, IDENTIFY_BYTES, SIGNATURE_BYTES, identify, is_foreign_disk_image};
pub use in_use::{Place, Use, mount_over, mounted_at, places_of, uses_of, uses_of_part};
pub use medium::Medium;
pub use mem::MemDevice;
pub use model::{Head, Model, Modelled, Request, RequestKind, Simulation};
pub use new_file::{NewFile, UNFINISHED};
pub use no_holes::NoHoles;
pub use noting::Noting;
pub use open::{OpenError, open_at_once};
pub use overlay::{Overlay, SpillOptions, UnreadablePage};
pub use partition::{Partition, PartitionError, PartitionKind, PartitionTable, Scheme};
pub use read_plan::{Batch, JoinLimits, Part, PartBytes, ReadPlan};
pub use recorder::{Crash, Event, Recorder, SECTOR_BYTES, Span, Trace};
pub use scratch::{Piece, Scratch};
pub use stack::DeviceNumber;
pub use striped::{Striped, StripedError};
pub use this_host::{host_name, this_boot};
pub use undo::{
    RestoreError, Restored, Saved, UndoFile, UndoReadError, UndoWriteError, UndoWriter,
    UndoWriterOptions,
};
pub use window::{Window, WindowError};
pub use writable::WritableFile;

/// A device with random access for reads, by many threads at once.
pub trait ReadBlocks: Send + Sync {
    /// Bytes of the device.
    fn size_bytes(&self) -> u64;

    /// Fills `into` with the bytes from `offset_bytes` on.
    ///
    /// `UnexpectedEof` if the range passes the end of the device (the content of `into` is then
    /// unspecified), or the system's error.
    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()>;

    /// Whether a whole range is known to be a hole, and so reads as zeroes. `false` is always a
    /// correct answer.
    fn is_hole(&self, _offset_bytes: u64, _len_bytes: u64) -> bool {
        false
    }

    /// Hint: this range will be read soon. A device may prefetch it in the background; nothing else
    /// changes.
    fn will_need(&self, _offset_bytes: u64, _len_bytes: u64) {}

    /// Like [`ReadBlocks::will_need`], for a range that continues a sequential read. A device whose
    /// layer below prefetches sequential reads by itself, as the page cache does, may ignore it.
    fn will_need_in_sequence(&self, _offset_bytes: u64, _len_bytes: u64) {}

    /// Whether the byte at an offset is known to be in memory, so that reading it waits for no
    /// device. `false` is always a correct answer.
    fn is_cached(&self, _offset_bytes: u64) -> bool {
        false
    }

    /// Whether ranges that [`ReadBlocks::will_need`] announces stay in memory until they are read, however many there are, and
    /// without costing this process any: as in the page cache. `false` is always a correct answer.
    fn caches_ahead(&self) -> bool {
        false
    }

    /// The medium that the bytes lie on, as far as the system knows.
    fn medium(&self) -> Medium {
        Medium::Unknown
    }
}

/// A device that can also be written.
pub trait WriteBlocks: ReadBlocks {
    /// Stores `from` at `offset_bytes`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the range passes the end of the device, or the system's error.
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()>;

    /// Makes everything written so far durable.
    ///
    /// # Errors
    /// The system's error.
    fn flush(&self) -> io::Result<()>;

    /// Bytes of the device now. Differs from [`ReadBlocks::size_bytes`], which never changes, if
    /// another process truncated the file or resized the volume.
    ///
    /// # Errors
    /// The system's error.
    fn current_size_bytes(&self) -> io::Result<u64> {
        Ok(self.size_bytes())
    }

    /// Hint: the range is flushed, and the next read of it should reach the medium instead of a
    /// cache. May be ignored.
    fn forget(&self, _offset_bytes: u64, _len_bytes: u64) {}

    /// Stores several pieces, each as by [`WriteBlocks::write_at`], in any order. After an error
    /// some of them may be stored.
    ///
    /// # Errors
    /// As [`WriteBlocks::write_at`].
    fn write_batch(&self, pieces: &[(u64, &[u8])]) -> io::Result<()> {
        pieces.iter().try_for_each(|(offset_bytes, from)| self.write_at(*offset_bytes, from))
    }

    /// Makes a range read as zeroes, without sending them where the device can do that.
    ///
    /// # Errors
    /// As [`WriteBlocks::write_at`].
    fn write_zeroes(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        send_zeroes(self, offset_bytes, len_bytes)
    }

    /// Says that nobody needs the bytes of a range: reads may give anything until it is written
    /// again. Returns whether the device took notice.
    ///
    /// # Errors
    /// As [`WriteBlocks::write_at`].
    fn discard(&self, _offset_bytes: u64, _len_bytes: u64) -> io::Result<bool> {
        Ok(false)
    }

    /// How many threads may flush at once without waiting for each other. If a flush fails, each that runs then, or begins later,
    /// and that was to write the same fails, too.
    fn most_flushes(&self) -> usize {
        1
    }

    /// Makes what was written to a range so far durable, and perhaps more.
    ///
    /// # Errors
    /// As [`WriteBlocks::flush`].
    fn flush_range(&self, _offset_bytes: u64, _len_bytes: u64) -> io::Result<()> {
        self.flush()
    }
}

/// Writes zeroes, at most 1 MiB at a time.
pub(crate) fn send_zeroes<D: WriteBlocks + ?Sized>(
    device: &D,
    offset_bytes: u64,
    len_bytes: u64,
) -> io::Result<()> {
    let end = offset_bytes.checked_add(len_bytes).filter(|end| *end <= device.size_bytes());
    let end = end.ok_or_else(past_the_end)?;
    // At most 1 MiB, so it fits.
    let zeroes = vec![0; len_bytes.min(1 << 20) as usize];
    let mut at = offset_bytes;
    while at < end {
        let len = (end - at).min(1 << 20) as usize;
        device.write_at(at, &zeroes[..len])?;
        at += len as u64;
    }
    Ok(())
}

/// Pointers to a device are devices.
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
            fn will_need_in_sequence(&self, offset_bytes: u64, len_bytes: u64) {
                (**self).will_need_in_sequence(offset_bytes, len_bytes);
            }
            fn is_cached(&self, offset_bytes: u64) -> bool {
                (**self).is_cached(offset_bytes)
            }
            fn caches_ahead(&self) -> bool {
                (**self).caches_ahead()
            }
            fn medium(&self) -> Medium {
                (**self).medium()
            }
        }
    )* };
}

read_through!(&D, Arc<D>, Box<D>);

/// Pointers to a writable device are writable devices.
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
            fn write_batch(&self, pieces: &[(u64, &[u8])]) -> io::Result<()> {
                (**self).write_batch(pieces)
            }
            fn write_zeroes(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
                (**self).write_zeroes(offset_bytes, len_bytes)
            }
            fn discard(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<bool> {
                (**self).discard(offset_bytes, len_bytes)
            }
            fn flush_range(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
                (**self).flush_range(offset_bytes, len_bytes)
            }
            fn most_flushes(&self) -> usize {
                (**self).most_flushes()
            }
        }
    )* };
}

write_through!(&D, Arc<D>, Box<D>);

/// The error of a range that passes the end of a device.
pub(crate) fn past_the_end() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "past the end of the device")
}

/// `Err` unless `len_bytes` from `offset_bytes` on lie inside a device of `size_bytes`.
pub(crate) fn within(size_bytes: u64, offset_bytes: u64, len_bytes: usize) -> io::Result<()> {
    let end = offset_bytes.checked_add(len_bytes as u64).ok_or_else(past_the_end)?;
    if end > size_bytes { Err(past_the_end()) } else { Ok(()) }
}
