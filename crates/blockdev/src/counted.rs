//! A device that counts the reads made through it.

use floe_sync::atomic::{AtomicU64, Ordering};
use std::io;

use crate::per_thread::PerThread;
use crate::{Medium, ReadBlocks, WriteBlocks};

/// Reads made through a [`Counted`] device so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// Reads requested, failed ones included.
    pub reads: u64,
    /// Bytes of the reads that succeeded.
    pub bytes: u64,
}

/// A device that counts the reads made through it, for reports. Costs two additions a read, to
/// counters of the calling thread.
#[derive(Debug)]
pub struct Counted<D> {
    inner: D,
    counts: PerThread<Counts>,
}

/// The reads of one thread.
#[derive(Debug, Default)]
struct Counts {
    reads: AtomicU64,
    bytes: AtomicU64,
}

impl<D> Counted<D> {
    /// `inner`, with nothing counted yet.
    pub fn new(inner: D) -> Self {
        Self { inner, counts: PerThread::default() }
    }

    /// The counts so far. While other threads read, the two counters may disagree by some reads.
    pub fn counts(&self) -> ReadCounts {
        // Relaxed: the counters are for people, and order nothing.
        let sum = |of: fn(&Counts) -> &AtomicU64| {
            self.counts.all().map(|own| of(own).load(Ordering::Relaxed)).sum()
        };
        ReadCounts { reads: sum(|own| &own.reads), bytes: sum(|own| &own.bytes) }
    }

    /// The device below.
    pub const fn inner(&self) -> &D {
        &self.inner
    }
}

impl<D: ReadBlocks> ReadBlocks for Counted<D> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        let own = self.counts.mine();
        own.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.read_at(offset_bytes, into)?;
        own.bytes.fetch_add(into.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        self.inner.is_hole(offset_bytes, len_bytes)
    }

    fn will_need(&self, offset_bytes: u64, len_bytes: u64) {
        self.inner.will_need(offset_bytes, len_bytes);
    }

    fn will_need_in_sequence(&self, offset_bytes: u64, len_bytes: u64) {
        self.inner.will_need_in_sequence(offset_bytes, len_bytes);
    }

    fn is_cached(&self, offset_bytes: u64) -> bool {
        self.inner.is_cached(offset_bytes)
    }

    fn caches_ahead(&self) -> bool {
        self.inner.caches_ahead()
    }

    fn medium(&self) -> Medium {
        self.inner.medium()
    }
}

impl<D: WriteBlocks> WriteBlocks for Counted<D> {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset_bytes, from)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn current_size_bytes(&self) -> io::Result<u64> {
        self.inner.current_size_bytes()
    }

    fn forget(&self, offset_bytes: u64, len_bytes: u64) {
        self.inner.forget(offset_bytes, len_bytes);
    }

    fn write_batch(&self, pieces: &[(u64, &[u8])]) -> io::Result<()> {
        self.inner.write_batch(pieces)
    }

    fn write_zeroes(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        self.inner.write_zeroes(offset_bytes, len_bytes)
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<bool> {
        self.inner.discard(offset_bytes, len_bytes)
    }

    fn flush_range(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        self.inner.flush_range(offset_bytes, len_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;

    crate::device_contract!(
        writable Counted,
        |bytes: &[u8]| super::Counted::new(crate::MemDevice::new(bytes.to_vec()))
    );

    #[test]
    fn counts_what_was_read() {
        let device = Counted::new(MemDevice::new(vec![0; 1000]));
        device.read_at(0, &mut [0; 100]).unwrap();
        device.read_at(900, &mut [0; 50]).unwrap();
        device.read_at(990, &mut [0; 50]).unwrap_err();
        assert_eq!(device.counts(), ReadCounts { reads: 3, bytes: 150 });
    }
}
