//! A device whose requests take the time of a model.

use std::io;
use std::time::Duration;

use floe_sync::{Mutex, MutexGuard, PoisonError, thread};

use super::{Model, Request, RequestKind, Simulation};
use crate::{Medium, ReadBlocks, WriteBlocks};

/// A device below which a [`Model`] counts simulated time, and requests by kind.
///
/// The time is that of the requests one after the other, so it is the same on every run with one thread. Threads that are to
/// wait for each other need [`Modelled::waiting`].
#[derive(Debug)]
pub struct Modelled<D> {
    inner: D,
    waits: bool,
    most_flushes: usize,
    medium: Medium,
    counted: Mutex<Counted>,
}

#[derive(Debug)]
struct Counted {
    simulation: Simulation,
    reads: u64,
    writes: u64,
    flushes: u64,
}

impl<D> Modelled<D> {
    /// `inner`, with no time passed.
    pub fn new(inner: D, model: &Model) -> Self {
        let simulation = Simulation::new(model, 1);
        let counted = Counted { simulation, reads: 0, writes: 0, flushes: 0 };
        let medium = model.medium();
        Self { inner, waits: false, most_flushes: 1, medium, counted: Mutex::new(counted) }
    }

    /// Lets each request also take its time in the thread that makes it: for tests in which threads wait for a device.
    #[must_use]
    pub fn waiting(self) -> Self {
        Self { waits: true, ..self }
    }

    /// Lets so many threads flush at the same time.
    #[must_use]
    pub fn with_flushes(self, most_flushes: usize) -> Self {
        Self { most_flushes, ..self }
    }

    /// Simulated time of all requests so far.
    pub fn elapsed(&self) -> Duration {
        self.counted().simulation.elapsed()
    }

    /// Reads so far.
    pub fn reads(&self) -> u64 {
        self.counted().reads
    }

    /// Writes so far.
    pub fn writes(&self) -> u64 {
        self.counted().writes
    }

    /// Flushes so far.
    pub fn flushes(&self) -> u64 {
        self.counted().flushes
    }

    /// The device below.
    pub const fn inner(&self) -> &D {
        &self.inner
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        // Figures alone: a panic leaves none half changed.
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self, request: Request) {
        let took = {
            let mut counted = self.counted();
            match request.kind {
                RequestKind::Read => counted.reads += 1,
                RequestKind::Write => counted.writes += 1,
                RequestKind::Flush => counted.flushes += 1,
            }
            counted.simulation.submit(request)
        };
        if self.waits && !took.is_zero() {
            thread::sleep(took);
        }
    }
}

impl<D: ReadBlocks> ReadBlocks for Modelled<D> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.pass(Request::read(offset_bytes, into.len() as u64));
        self.inner.read_at(offset_bytes, into)
    }

    fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        self.inner.is_hole(offset_bytes, len_bytes)
    }

    fn medium(&self) -> Medium {
        self.medium
    }
}

impl<D: WriteBlocks> WriteBlocks for Modelled<D> {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        self.pass(Request::write(offset_bytes, from.len() as u64));
        self.inner.write_at(offset_bytes, from)
    }

    fn flush(&self) -> io::Result<()> {
        // The time passes before the answer: a write that begins meanwhile is not covered.
        self.inner.flush()?;
        self.pass(Request::flush());
        Ok(())
    }

    fn most_flushes(&self) -> usize {
        self.most_flushes
    }

    fn current_size_bytes(&self) -> io::Result<u64> {
        self.inner.current_size_bytes()
    }

    fn forget(&self, offset_bytes: u64, len_bytes: u64) {
        self.inner.forget(offset_bytes, len_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;

    crate::device_contract!(
        writable Modelled,
        |bytes: &[u8]| crate::Modelled::new(
            crate::MemDevice::new(bytes.to_vec()),
            &crate::Model::ssd(),
        )
    );

    #[test]
    fn counts_time_and_requests() {
        let device = Modelled::new(MemDevice::new(vec![0; 8192]), &Model::ssd());
        device.read_at(0, &mut [0; 4096]).unwrap();
        device.write_at(4096, &[1; 4096]).unwrap();
        device.flush().unwrap();
        assert_eq!((device.reads(), device.writes(), device.flushes()), (1, 1, 1));
        let requests = [Request::read(0, 4096), Request::write(4096, 4096), Request::flush()];
        assert_eq!(device.elapsed(), Model::ssd().replay(requests));
    }

    #[test]
    fn a_device_that_waits_takes_its_time() {
        let model = Model::flushes(Duration::from_millis(5));
        let device = Modelled::new(MemDevice::new(vec![0; 10]), &model).waiting();
        let began = std::time::Instant::now();
        device.write_at(0, &[1]).unwrap();
        device.flush().unwrap();
        assert!(began.elapsed() >= Duration::from_millis(5));
    }
}
