//! Many reads under way at a time from one thread: io_uring.
//!
//! The one place in Floe with `unsafe` code, and there only because the kernel writes into memory of ours after the
//! call that asked for it has come back, which no type can say. A [`Ring`] owns that memory until the kernel has told
//! that it is done. A build without the feature `io-uring` has no such code.

#![allow(unsafe_code)] // see above

use std::fs::File;
use std::os::fd::AsRawFd;
use std::{fmt, io, mem};

use io_uring::{IoUring, Probe, opcode, types};

use crate::direct::AlignedBytes;

/// A read of a file.
#[derive(Debug)]
pub(crate) struct Read {
    /// Where it begins in the file.
    pub(crate) at: u64,
    /// Bytes that are wanted.
    pub(crate) len: usize,
    /// Bytes that are asked for.
    pub(crate) ask_bytes: usize,
    /// Takes what comes: as much at least.
    pub(crate) memory: AlignedBytes,
}

/// Reads of one file that are under way.
pub(crate) struct Ring {
    uring: IoUring,
    file: File,
    /// Those that the kernel may be at work on. Their index is their name.
    under_way: Box<[Option<Read>]>,
    /// Indexes of no read.
    free: Vec<u32>,
}

impl Ring {
    /// For up to `depth` reads of `file` at a time.
    ///
    /// # Errors
    /// What the system said: that it has no io_uring (Linux before 5.6), or that this process must not use it
    /// (`kernel.io_uring_disabled`, the filters of most containers).
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

    /// How many more reads may be begun.
    pub(crate) const fn room(&self) -> usize {
        self.free.len()
    }

    /// Whether nothing is under way.
    pub(crate) const fn is_idle(&self) -> bool {
        self.free.len() == self.under_way.len()
    }

    /// Where the reads that are under way begin.
    pub(crate) fn offsets(&self) -> impl Iterator<Item = u64> {
        self.under_way.iter().flatten().map(|read| read.at)
    }

    /// Takes a read, of which the kernel is told with the next [`Ring::wait`].
    ///
    /// # Errors
    /// The read, if there is no room, or if it has less memory than it asks for.
    pub(crate) fn begin(&mut self, read: Read) -> Result<(), Read> {
        let fits = read.memory.bytes().len() >= read.ask_bytes;
        let asked = u32::try_from(read.ask_bytes).ok().filter(|_| fits);
        let (Some(asked), Some(&index)) = (asked, self.free.last()) else { return Err(read) };
        let place = &mut self.under_way[index as usize];
        let read = place.insert(read);
        let memory = read.memory.bytes_mut().as_mut_ptr();
        let entry = opcode::Read::new(types::Fd(self.file.as_raw_fd()), memory, asked);
        let entry = entry.offset(read.at).build().user_data(index.into());
        // SAFETY: what the entry names stays valid until the kernel has told that the read is done. The file is open
        // as long as `self` is there. The memory has `asked` bytes on the heap, to which nobody else has a pointer;
        // it belongs to `under_way`, where it is not looked at, until `finished` takes it out on the kernel's word,
        // and `drop` waits for that word, or gives the memory up for good. The index is that of no other read.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        match pushed {
            Ok(()) => {
                self.free.pop();
                Ok(())
            }
            // As many entries as indexes: there is always one. The kernel does not know of this read.
            Err(_) => place.take().map_or(Ok(()), Err),
        }
    }

    /// Tells the kernel of what was begun, and waits until a read is done, or a signal came.
    ///
    /// # Errors
    /// What the system said; reads are under way all the same.
    pub(crate) fn wait(&mut self) -> io::Result<()> {
        match self.uring.submit_and_wait(1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    /// Hands out the reads that are done, each with the number of bytes that came.
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
                // The kernel may write there for as long as the process lives.
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

    /// What stands at an offset.
    fn byte_at(at: u64) -> u8 {
        (at % 251) as u8
    }

    /// A file of `len` bytes, and a ring for it; `None` where one of the two is not to be had.
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
                // In no order.
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
        assert_eq!(ring.begin(small).unwrap_err().ask_bytes, 1 << 16, "more than its memory");
        ring.begin(read(way, 0, 4096)).unwrap();
        ring.begin(read(way, 4096, 4096)).unwrap();
        assert_eq!(ring.begin(read(way, 8192, 4096)).unwrap_err().at, 8192, "no room");
        // Dropped with reads under way, and one that the kernel was not told of.
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
