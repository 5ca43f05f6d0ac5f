//! Several devices as one, in stripes.

use std::io;

use floe_sync::atomic::{AtomicU64, Ordering};
use floe_sync::{spawn_scoped, thread};

use crate::{ReadBlocks, WriteBlocks, within};

/// Devices as one, in the layout of the device mapper's target `striped` (and of RAID 0): chunk after chunk, each on the next
/// device.
///
/// A flush reaches only those devices that were written since their last one.
#[derive(Debug)]
pub struct Striped<D> {
    parts: Vec<StripePart<D>>,
    chunk_bytes: u64,
    size_bytes: u64,
}

#[derive(Debug)]
struct StripePart<D> {
    device: D,
    /// Writes that have ended.
    written: AtomicU64,
    /// Those of them that a flush covers.
    flushed: AtomicU64,
}

/// Why devices cannot be striped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StripedError {
    /// There is no device, or chunks have no bytes.
    #[error("stripes need at least one device and one byte a chunk")]
    Nothing,
}

impl<D: ReadBlocks> Striped<D> {
    /// Stripes of `chunk_bytes` over devices in their order. Each gives as many whole chunks as the smallest one has.
    ///
    /// # Errors
    /// [`StripedError`].
    pub fn new(devices: Vec<D>, chunk_bytes: u64) -> Result<Self, StripedError> {
        let smallest = devices.iter().map(ReadBlocks::size_bytes).min();
        let chunks = smallest.and_then(|size| size.checked_div(chunk_bytes));
        let chunks = chunks.ok_or(StripedError::Nothing)?;
        let size_bytes = chunks.saturating_mul(chunk_bytes).saturating_mul(devices.len() as u64);
        let part =
            |device| StripePart { device, written: AtomicU64::new(0), flushed: AtomicU64::new(0) };
        Ok(Self { parts: devices.into_iter().map(part).collect(), chunk_bytes, size_bytes })
    }

    /// The devices, in order.
    pub fn devices(&self) -> impl Iterator<Item = &D> {
        self.parts.iter().map(|part| &part.device)
    }

    /// Device, byte on it, and bytes up to the end of the chunk, of a byte.
    fn place(&self, offset_bytes: u64) -> (usize, u64, u64) {
        let (chunk, within) = (offset_bytes / self.chunk_bytes, offset_bytes % self.chunk_bytes);
        let count = self.parts.len() as u64;
        // Below the number of devices.
        let device = (chunk % count) as usize;
        (device, chunk / count * self.chunk_bytes + within, self.chunk_bytes - within)
    }

    /// The pieces of a range that lies inside: device, byte on it, and range of the bytes.
    fn pieces(
        &self,
        offset_bytes: u64,
        len: usize,
    ) -> impl Iterator<Item = (&StripePart<D>, u64, std::ops::Range<usize>)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let left = len.checked_sub(done).filter(|left| *left > 0)?;
            let (device, at, rest) = self.place(offset_bytes + done as u64);
            let taken = usize::try_from(rest).map_or(left, |rest| rest.min(left));
            let range = done..done + taken;
            done += taken;
            Some((&self.parts[device], at, range))
        })
    }

    fn all_of(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        holds: impl Fn(&D, u64, u64) -> bool,
    ) -> bool {
        let end = offset_bytes.checked_add(len_bytes);
        let inside = end.is_some_and(|end| end <= self.size_bytes);
        let Ok(len) = usize::try_from(len_bytes) else { return false };
        inside
            && self
                .pieces(offset_bytes, len)
                .all(|(part, at, range)| holds(&part.device, at, range.len() as u64))
    }
}

impl<D: ReadBlocks> ReadBlocks for Striped<D> {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        within(self.size_bytes, offset_bytes, into.len())?;
        for (part, at, range) in self.pieces(offset_bytes, into.len()) {
            part.device.read_at(at, &mut into[range])?;
        }
        Ok(())
    }

    fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        self.all_of(offset_bytes, len_bytes, |device, at, len| device.is_hole(at, len))
    }
}

impl<D: WriteBlocks> StripePart<D> {
    fn is_dirty(&self) -> bool {
        self.written.load(Ordering::SeqCst) != self.flushed.load(Ordering::SeqCst)
    }

    /// Flushes the device, unless a flush covers all that was written.
    fn flush(&self) -> io::Result<()> {
        // Read before the flush begins: a write that ends meanwhile is not covered.
        let written = self.written.load(Ordering::SeqCst);
        if written != self.flushed.load(Ordering::SeqCst) {
            self.device.flush()?;
            self.flushed.fetch_max(written, Ordering::SeqCst);
        }
        Ok(())
    }
}

/// Flushes parts at the same time: together they take as long as the slowest.
fn flush_all<D: WriteBlocks>(parts: &[&StripePart<D>]) -> io::Result<()> {
    let Some((first, others)) = parts.split_first() else { return Ok(()) };
    if others.is_empty() {
        return first.flush();
    }
    thread::scope(|scope| {
        let begun: Vec<_> =
            others.iter().map(|part| (part, spawn_scoped(scope, || part.flush()))).collect();
        let mut done = first.flush();
        for (part, other) in begun {
            let flushed = match other {
                Ok(other) => {
                    other.join().unwrap_or_else(|_| Err(io::Error::other("a flush panicked")))
                }
                // No thread could be started for it.
                Err(_) => part.flush(),
            };
            done = done.and(flushed);
        }
        done
    })
}

impl<D: WriteBlocks> WriteBlocks for Striped<D> {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        within(self.size_bytes, offset_bytes, from.len())?;
        for (part, at, range) in self.pieces(offset_bytes, from.len()) {
            let written = part.device.write_at(at, &from[range]);
            // A write that failed may have reached the device in part.
            part.written.fetch_add(1, Ordering::SeqCst);
            written?;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let dirty: Vec<_> = self.parts.iter().filter(|part| part.is_dirty()).collect();
        flush_all(&dirty)
    }

    fn most_flushes(&self) -> usize {
        self.parts.iter().map(|part| part.device.most_flushes()).min().unwrap_or(1)
    }

    fn flush_range(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        let first = offset_bytes / self.chunk_bytes;
        let chunks = match len_bytes {
            0 => 0,
            len => offset_bytes.saturating_add(len - 1) / self.chunk_bytes - first + 1,
        };
        let count = self.parts.len() as u64;
        let touched = |at: usize| (at as u64 + count - first % count) % count < chunks;
        let dirty: Vec<_> = self.parts.iter().enumerate().collect();
        let dirty = dirty.into_iter().filter(|(at, part)| touched(*at) && part.is_dirty());
        flush_all(&dirty.map(|(_, part)| part).collect::<Vec<_>>())
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<bool> {
        let len = usize::try_from(len_bytes).map_err(|_| crate::past_the_end())?;
        within(self.size_bytes, offset_bytes, len)?;
        let mut all = true;
        for (part, at, range) in self.pieces(offset_bytes, len) {
            all &= part.device.discard(at, range.len() as u64)?;
            part.written.fetch_add(1, Ordering::SeqCst);
        }
        Ok(all)
    }

    fn forget(&self, offset_bytes: u64, len_bytes: u64) {
        let Ok(len) = usize::try_from(len_bytes) else { return };
        if within(self.size_bytes, offset_bytes, len).is_ok() {
            for (part, at, range) in self.pieces(offset_bytes, len) {
                part.device.forget(at, range.len() as u64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemDevice, Model, Modelled, Window};
    use std::time::{Duration, Instant};

    /// Three devices in chunks of 512 bytes, cut to the length of `bytes`.
    fn holding(bytes: &[u8]) -> Window<Striped<MemDevice>> {
        let each = bytes.len().div_ceil(3 * 512) * 512;
        let devices = (0..3).map(|_| MemDevice::new(vec![0; each])).collect();
        let striped = Striped::new(devices, 512).unwrap();
        striped.write_at(0, bytes).unwrap();
        Window::new(striped, 0, Some(bytes.len() as u64)).unwrap()
    }

    crate::device_contract!(writable Striped, super::holding);

    /// As the kernel's documentation of the target describes it.
    #[test]
    fn chunks_go_round_the_devices() {
        let devices = (0..3).map(|_| MemDevice::new(vec![0; 8 * 512 + 100])).collect();
        let striped = Striped::new(devices, 512).unwrap();
        assert_eq!(striped.size_bytes(), 3 * 8 * 512, "whole chunks");
        for chunk in 0..24u64 {
            striped.write_at(chunk * 512, &[chunk as u8 + 1; 512]).unwrap();
        }
        for (device, found) in striped.devices().enumerate() {
            for (row, chunk) in found.to_vec().chunks_exact(512).enumerate() {
                let expected = 3 * row + device + 1;
                assert!(chunk.iter().all(|&byte| usize::from(byte) == expected), "{row} {device}");
            }
        }
        assert!(Striped::new(Vec::<MemDevice>::new(), 512).is_err());
        assert!(Striped::new(vec![MemDevice::new(vec![0; 10])], 0).is_err());
    }

    fn slow() -> Striped<Modelled<MemDevice>> {
        let model = Model::flushes(Duration::from_millis(20));
        let device = || Modelled::new(MemDevice::new(vec![0; 4096]), &model).waiting();
        Striped::new(vec![device(), device(), device()], 512).unwrap()
    }

    #[test]
    fn r12_only_devices_written_since_are_flushed() {
        let striped = slow();
        let flushes = || striped.devices().map(Modelled::flushes).collect::<Vec<_>>();
        striped.flush().unwrap();
        assert_eq!(flushes(), [0, 0, 0]);
        striped.write_at(512, &[1; 512]).unwrap();
        striped.flush().unwrap();
        striped.flush().unwrap();
        assert_eq!(flushes(), [0, 1, 0]);
        striped.write_at(1000, &[1; 100]).unwrap();
        striped.flush_range(0, 1024).unwrap();
        assert_eq!(flushes(), [0, 2, 0], "the third one holds nothing of the range");
        striped.flush().unwrap();
        assert_eq!(flushes(), [0, 2, 1]);
        striped.write_at(0, &[1; 1536]).unwrap();
        striped.flush_range(0, 0).unwrap();
        striped.flush_range(512, 1024).unwrap();
        assert_eq!(flushes(), [0, 3, 2]);
        striped.flush_range(0, u64::MAX).unwrap();
        assert_eq!(flushes(), [1, 3, 2]);
    }

    #[test]
    fn devices_are_flushed_at_the_same_time() {
        let striped = slow();
        striped.write_at(0, &[1; 1536]).unwrap();
        let began = Instant::now();
        striped.flush().unwrap();
        assert!(began.elapsed() < Duration::from_millis(50), "{:?}", began.elapsed());
        assert!(striped.devices().all(|device| device.flushes() == 1));
    }
}
