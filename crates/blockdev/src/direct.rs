//! Reads past the page cache (`O_DIRECT`): the device fills the reader's memory itself.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{AtFlags, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl, statx};

/// `STATX_DIOALIGN`: asks for the alignment that direct I/O needs (Linux 6.1).
const DIOALIGN: StatxFlags = StatxFlags::from_bits_retain(0x2000);
/// Alignment used if the device's own is not known: no device has larger sectors.
const USUAL_ALIGN_BYTES: usize = 4096;
/// Largest alignment accepted from the kernel.
const MOST_ALIGN_BYTES: usize = 1 << 16;
/// Bytes of one read, at most, if it goes through the bounce buffer.
const BOUNCE_BYTES: usize = 256 << 10;

thread_local! {
    /// Contains an aligned bounce buffer. Each thread keeps its own, because allocating one for
    /// each read takes longer than copying the bytes.
    static BOUNCE: RefCell<AlignedBytes> = const { RefCell::new(AlignedBytes::NONE) };
}

/// A buffer that contains aligned memory, into which the device can transfer.
#[derive(Debug, Default)]
pub(crate) struct AlignedBytes {
    memory: Vec<u8>,
    /// Bytes before the first aligned one.
    skipped: usize,
}

impl AlignedBytes {
    const NONE: Self = Self { memory: Vec::new(), skipped: 0 };

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.skipped..]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.skipped..]
    }

    /// Makes room for `len` aligned bytes.
    fn grow(&mut self, len: usize, align: usize) {
        if self.memory.len() < len + align {
            self.memory.resize(len + align, 0);
        }
        // `align_offset` may fail in theory; reads then fail, too.
        self.skipped = self.memory.as_ptr().align_offset(align).min(align);
    }
}

/// The alignment that direct reads of one file need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectReads {
    /// Addresses, offsets and lengths are multiples of this power of two.
    align_bytes: usize,
}

impl DirectReads {
    /// Switches `file` to direct I/O.
    ///
    /// # Errors
    /// `Unsupported` if its file system does not support it (older tmpfs, many network file
    /// systems), or the system's error.
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        // The kernel reports 0 if direct I/O is not supported.
        let asked = statx(file, c"", AtFlags::EMPTY_PATH, DIOALIGN).ok();
        let told = asked.filter(|it| it.stx_mask & DIOALIGN.bits() != 0);
        let align_bytes = match told {
            None => USUAL_ALIGN_BYTES,
            Some(told) => told.stx_dio_mem_align.max(told.stx_dio_offset_align) as usize,
        };
        if !align_bytes.is_power_of_two() || align_bytes > MOST_ALIGN_BYTES {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let refused = |error: rustix::io::Errno| match error {
            rustix::io::Errno::INVAL => io::ErrorKind::Unsupported.into(),
            error => io::Error::from(error),
        };
        let flags = fcntl_getfl(file)?;
        fcntl_setfl(file, flags | OFlags::DIRECT).map_err(refused)?;
        Ok(Self { align_bytes })
    }

    /// Addresses, offsets and lengths that are multiples of this power of two need no copy.
    pub(crate) const fn align_bytes(self) -> u64 {
        self.align_bytes as u64
    }

    /// `len` rounded up to whole units.
    pub(crate) const fn whole_units(self, len: usize) -> usize {
        len.next_multiple_of(self.align_bytes)
    }

    /// Memory into which `len` bytes can be read without a copy.
    pub(crate) fn memory(self, len: usize) -> AlignedBytes {
        let mut memory = AlignedBytes::default();
        memory.grow(self.whole_units(len), self.align_bytes);
        memory
    }

    /// Like [`FileExt::read_exact_at`], from any offset and into any memory.
    pub(crate) fn read_exact_at(
        self,
        file: &File,
        into: &mut [u8],
        offset_bytes: u64,
    ) -> io::Result<()> {
        let align = self.align_bytes;
        let within_unit = (offset_bytes % align as u64) as usize;
        let aligned = within_unit == 0
            && into.len().is_multiple_of(align)
            && into.as_ptr().align_offset(align) == 0;
        if aligned {
            return file.read_exact_at(into, offset_bytes);
        }
        let wanted = within_unit + into.len();
        let room = wanted.next_multiple_of(align).min(BOUNCE_BYTES);
        let mut memory = BOUNCE.take();
        memory.grow(room, align);
        let bounce = &mut memory.bytes_mut()[..room];
        let (mut rest, mut at, mut skip) = (into, offset_bytes - within_unit as u64, within_unit);
        while !rest.is_empty() {
            let units = (skip + rest.len()).next_multiple_of(align).min(room);
            let needed = (skip + rest.len()).min(units);
            fill(file, &mut bounce[..units], at, needed)?;
            let (now, later) = rest.split_at_mut(needed - skip);
            now.copy_from_slice(&bounce[skip..needed]);
            (rest, at, skip) = (later, at + units as u64, 0);
        }
        BOUNCE.set(memory);
        Ok(())
    }
}

/// Reads into `units`. At least the first `needed` bytes must arrive: a file need not end at a unit
/// boundary.
fn fill(file: &File, units: &mut [u8], at: u64, needed: usize) -> io::Result<()> {
    let mut done = 0;
    while done < needed {
        match file.read_at(&mut units[done..], at + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::{Caching, FileDevice};

    /// A device on a file system that supports direct I/O, where tests usually run.
    fn opened(bytes: &[u8]) -> FileDevice {
        let mut file = tempfile::NamedTempFile::new_in(".").unwrap();
        file.write_all(bytes).unwrap();
        let device = FileDevice::open(file.path()).unwrap();
        match device.with_caching(Caching::Direct) {
            Ok(device) => device,
            Err(error) => {
                println!("skipped: {error}");
                FileDevice::open(file.path()).unwrap()
            }
        }
    }

    crate::device_contract!(DirectReads, super::opened);

    #[test]
    fn any_offset_length_and_address_will_do() {
        let bytes: Vec<u8> = (0..600_003u32).map(|at| (at % 251) as u8).collect();
        let mut file = tempfile::tempfile_in(".").unwrap();
        file.write_all(&bytes).unwrap();
        let Ok(direct) = DirectReads::of(&file) else {
            println!("skipped: no direct I/O here");
            return;
        };
        let mut memory = vec![0; bytes.len() + 64];
        let ends = [0, 511, 4096, 12_288, 300_000, bytes.len()];
        for (begin, end) in ends.into_iter().flat_map(|begin| ends.map(|end| (begin, end))) {
            for shift in [0, 1] {
                let Some(len) = end.checked_sub(begin) else { continue };
                let into = &mut memory[shift..shift + len];
                into.fill(0);
                direct.read_exact_at(&file, into, begin as u64).unwrap();
                assert!(into == &bytes[begin..end], "{begin}..{end}, {shift} off");
            }
        }
        // Into aligned memory: no copy is made.
        let skipped = memory.as_ptr().align_offset(direct.align_bytes);
        let into = &mut memory[skipped..skipped + 16 * direct.align_bytes];
        direct.read_exact_at(&file, into, 8 * direct.align_bytes as u64).unwrap();
        assert!(into == &bytes[8 * direct.align_bytes..][..into.len()]);
        let past = direct.read_exact_at(&file, &mut [0; 100], bytes.len() as u64 - 50);
        assert!(past.is_err());
    }

    #[test]
    fn what_cannot_do_it_says_so() {
        // Files in /proc have no device.
        let error = DirectReads::of(&File::open("/proc/version").unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    }
}
