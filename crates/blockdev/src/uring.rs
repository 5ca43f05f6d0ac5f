//! Many reads in flight from one thread: io_uring.
//!
//! The one file of this workspace with `unsafe` code. It needs it because the kernel writes into
//! our memory after the system call has returned, which the type system cannot express. A [`Ring`]
//! owns that memory until the kernel reports completion. A build without the feature `io-uring` has
//! no such code.

#![allow(unsafe_code)] // see above

use std::fs::File;
use std::os::fd::AsRawFd;
use std::{fmt, io, mem};

use io_uring::{IoUring, Probe, opcode, types};

use crate::direct::AlignedBytes;

/// A read of a file.
#[derive(Debug)]
pub(crate) struct Read {
    /// Offset in the file.
    pub(crate) at: u64,
    /// Bytes wanted.
    pub(crate) len: usize,
    /// Bytes requested from the kernel.
    pub(crate) ask_bytes: usize,
    /// Receives the bytes; at least as large.
    pub(crate) memory: AlignedBytes,
}

/// Reads of one file that are in flight.
pub(crate) struct Ring {
    uring: IoUring,
    file: File,
    /// Reads that the kernel may be working on. Their index is their `user_data`.
    under_way: Box<[Option<Read>]>,
    /// Free indexes.
    free: Vec<u32>,
}

impl Ring {
    /// A ring for up to `depth` reads of `file` at a time.
    ///
    /// # Errors
    /// The system's error: without io_uring (Linux before 5.6), or if this process must not use it
    /// (`kernel.io_uring_disabled`, the seccomp filters of most containers).
    pub(crate) fn of(file: File, depth: u32) -> io::Result<Self> {
        let uring = IoUring::new(depth)?;
        let mut probe = Probe::new();
        uring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let under_way = (0..depth).map(|_| None).collect();
        Ok(Self { uring, file, under_way, free: (0..depth).rev().collect() })
    }

    /// Number of further reads that can be started.
    pub(crate) const fn room(&self) -> usize {
        self.free.len()
    }

    /// Whether no read is in flight.
    pub(crate) const fn is_idle(&self) -> bool {
        self.free.len() == self.under_way.len()
    }

    /// The offsets of the reads in flight.
    pub(crate) fn offsets(&self) -> impl Iterator<Item = u64> {
        self.under_way.iter().flatten().map(|read| read.at)
    }

    /// Queues a read. The next [`Ring::wait`] submits it.
    ///
    /// # Errors
    /// Returns the read, if there is no room, or if its memory is smaller than the request.
    pub(crate) fn begin(&mut self, read: Read) -> Result<(), Read> {
        let fits = read.memory.bytes().len() >= read.ask_bytes;
        let asked = u32::try_from(read.ask_bytes).ok().filter(|_| fits);
        let (Some(asked), Some(&index)) = (asked, self.free.last()) else { return Err(read) };
        let place = &mut self.under_way[index as usize];
        let read = place.insert(read);
        let memory = read.memory.bytes_mut().as_mut_ptr();
        let entry = opcode::Read::new(types::Fd(self.file.as_raw_fd()), memory, asked);
        let entry = entry.offset(read.at).build().user_data(index.into());
        // SAFETY: everything that the entry refers to stays valid until the kernel reports
        // completion of the read. The file stays open as long as `self` exists. The memory has
        // `asked` bytes on the heap, to which nothing else has a pointer. `under_way` owns it and
        // does not access it until `finished` takes it out after the completion; `drop` waits for
        // the completion, or leaks the memory. No other read has the index.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        match pushed {
            Ok(()) => {
                self.free.pop();
                Ok(())
            }
            // The queue has as many entries as indexes, so this cannot fail. The kernel does not
            // know of this read.
            Err(_) => place.take().map_or(Ok(()), Err),
        }
    }

    /// Submits the queued reads, and waits until a read completes or a signal arrives.
    ///
    /// # Errors
    /// The system's error; reads are still in flight then.
    pub(crate) fn wait(&mut self) -> io::Result<()> {
        match self.uring.submit_and_wait(1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    /// Hands out the completed reads, each with the number of bytes that arrived.
    pub(crate) fn finished(&mut self, mut each: impl FnMut(Read, io::Result<usize>)) {
        for entry in self.uring.completion() {
            let index = entry.user_data() as u32;
            let Some(read) = self.under_way.get_mut(index as usize).and_then(Option::take) else {
                continue;
            };
            self.free.push(index);
            let told = entry.result();
            each(read, usize::try_from(told).map_err(|_| io::Error::from_raw_os_error(-told)));
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        while !self.is_idle() {
            if self.wait().is_err() {
                // The kernel may write to this memory for as long as the process lives.
                self.under_way.iter_mut().for_each(|read| mem::forget(read.take()));
                return;
            }
            self.finished(|_, _| ());
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("room", &self.room()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::direct::DirectReads;

    /// The byte at an offset.
    fn byte_at(at: u64) -> u8 {
        (at % 251) as u8
    }

    /// A file of `len` bytes, and a ring for it; `None` where direct I/O or io_uring is not
    /// available.
    fn made(len: u64, depth: u32) -> Option<(DirectReads, Ring)> {
        let file = tempfile::tempfile_in(".").unwrap();
        file.write_all_at(&(0..len).map(byte_at).collect::<Vec<_>>(), 0).unwrap();
        file.sync_all().unwrap();
        let (Ok(way), Ok(ring)) = (DirectReads::of(&file), Ring::of(file, depth)) else {
            println!("skipped: no io_uring or no direct I/O here");
            return None;
        };
        Some((way, ring))
    }

    fn read(way: DirectReads, at: u64, len: usize) -> Read {
        Read { at, len, ask_bytes: way.whole_units(len), memory: way.memory(len) }
    }

    #[test]
    fn reads_come_back_with_what_stands_there() {
        let len = 256 * 4096;
        let Some((way, mut ring)) = made(len, 16) else { return };
        let (mut next, mut done) = (0, 0);
        while done < 256 {
            while next < 256 && ring.room() > 0 {
                // Out of order.
                let at = next * 97 % 256 * 4096;
                ring.begin(read(way, at, 4096)).unwrap();
                next += 1;
            }
            assert!(ring.offsets().count() + ring.room() == 16);
            ring.wait().unwrap();
            ring.finished(|read, bytes| {
                assert_eq!(bytes.unwrap(), 4096);
                let expected = (read.at..read.at + 4096).map(byte_at);
                assert!(read.memory.bytes()[..4096].iter().copied().eq(expected), "{}", read.at);
                done += 1;
            });
        }
        assert!(ring.is_idle());
    }

    #[test]
    fn what_does_not_fit_comes_back() {
        let Some((way, mut ring)) = made(1 << 16, 2) else { return };
        let small = Read { ask_bytes: 1 << 16, ..read(way, 0, 4096) };
        assert_eq!(
            ring.begin(small).unwrap_err().ask_bytes,
            1 << 16,
            "a request larger than its memory"
        );
        ring.begin(read(way, 0, 4096)).unwrap();
        ring.begin(read(way, 4096, 4096)).unwrap();
        assert_eq!(ring.begin(read(way, 8192, 4096)).unwrap_err().at, 8192, "no room");
        // Dropped with reads in flight, and one that was not submitted.
        ring.wait().unwrap();
        ring.finished(|_, _| ());
        ring.begin(read(way, 12_288, 4096)).unwrap();
    }

    #[test]
    fn what_is_not_there_does_not_come() {
        let Some((way, mut ring)) = made(8192 + 100, 4) else { return };
        for at in [8192, 1 << 20] {
            ring.begin(read(way, at, 4096)).unwrap();
        }
        let mut came = Vec::new();
        while !ring.is_idle() {
            ring.wait().unwrap();
            ring.finished(|read, bytes| came.push((read.at, bytes.unwrap())));
        }
        came.sort_unstable();
        assert_eq!(came, [(8192, 100), (1 << 20, 0)]);
    }
}
