//! Fault injection by time: a device of which the n-th request fails.

use std::io;

use floe_sync::{Mutex, MutexGuard, PoisonError};
use rustix::io::Errno;

use crate::model::{Request, RequestKind};
use crate::recorder::SECTOR_BYTES;
use crate::{ReadBlocks, WriteBlocks};

/// The way in which a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strike {
    /// It fails, and does nothing. All others succeed.
    Once,
    /// As [`Strike::Once`], but the first half of the sectors of a write arrive.
    Half,
    /// It and all that follow fail: the device is gone.
    ForGood,
}

/// A device of which one request fails (`EIO`), or all from one on; requests are counted while it is armed. For tests that let
/// each request of a workload fail in turn.
#[derive(Debug)]
pub struct FailsAt<D> {
    inner: D,
    at: u64,
    strike: Strike,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    is_armed: bool,
    requests: u64,
    struck: Option<Request>,
    later: Vec<Request>,
}

impl<D> FailsAt<D> {
    /// `inner`, of which request `at` will fail, counted from 0 while the device is armed. It is not armed yet.
    pub fn new(inner: D, at: u64, strike: Strike) -> Self {
        Self { inner, at, strike, seen: Mutex::default() }
    }

    /// Begins to count requests, and to fail. With `false`, requests are not counted, and succeed, until it is called again.
    pub fn arm(&self, on: bool) {
        self.seen().is_armed = on;
    }

    /// Requests that were counted.
    pub fn requests(&self) -> u64 {
        self.seen().requests
    }

    /// The first request that failed.
    pub fn struck(&self) -> Option<Request> {
        self.seen().struck
    }

    /// Writes and flushes that were asked for after the first failure.
    pub fn later_changes(&self) -> Vec<Request> {
        self.seen().later.clone()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        // Figures alone: a panic leaves none half changed.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request; `Err` if it fails.
    fn pass(&self, request: Request) -> io::Result<()> {
        let mut seen = self.seen();
        if seen.struck.is_some() && request.kind != RequestKind::Read {
            seen.later.push(request);
        }
        if !seen.is_armed {
            return Ok(());
        }
        let number = seen.requests;
        seen.requests += 1;
        if number == self.at {
            seen.struck = Some(request);
        }
        let fails = number == self.at || self.strike == Strike::ForGood && number > self.at;
        if fails { Err(io::Error::from_raw_os_error(Errno::IO.raw_os_error())) } else { Ok(()) }
    }
}

impl<D: ReadBlocks> ReadBlocks for FailsAt<D> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.pass(Request::read(offset_bytes, into.len() as u64))?;
        self.inner.read_at(offset_bytes, into)
    }

    fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        self.inner.is_hole(offset_bytes, len_bytes)
    }
}

impl<D: WriteBlocks> WriteBlocks for FailsAt<D> {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        let passed = self.pass(Request::write(offset_bytes, from.len() as u64));
        if passed.is_err() && self.strike == Strike::Half {
            let half = from.len() / SECTOR_BYTES / 2 * SECTOR_BYTES;
            self.inner.write_at(offset_bytes, &from[..half])?;
        }
        passed?;
        self.inner.write_at(offset_bytes, from)
    }

    fn flush(&self) -> io::Result<()> {
        self.pass(Request::flush())?;
        self.inner.flush()
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

    /// One that is not armed behaves like the device below.
    fn unarmed(bytes: &[u8]) -> FailsAt<MemDevice> {
        FailsAt::new(MemDevice::new(bytes.to_vec()), 0, Strike::Once)
    }

    crate::device_contract!(writable FailsAt, super::unarmed);

    /// The outcomes of a read, two writes, a flush and a write; and what the device has then.
    fn outcomes(at: u64, strike: Strike) -> ([bool; 5], Vec<u8>, usize) {
        let device = FailsAt::new(MemDevice::new(vec![0; 4096]), at, strike);
        device.write_at(4095, &[1]).unwrap();
        device.arm(true);
        let done = [
            device.read_at(0, &mut [0]).is_ok(),
            device.write_at(0, &[2; 1024]).is_ok(),
            device.write_at(1024, &[3; 1024]).is_ok(),
            device.flush().is_ok(),
            device.write_at(2048, &[4; 1024]).is_ok(),
        ];
        assert_eq!(device.requests(), 5);
        let bytes = device.inner.to_vec();
        let firsts = [0, 512, 1024, 1536, 2048, 4095].map(|at| bytes[at]).to_vec();
        (done, firsts, device.later_changes().len())
    }

    #[test]
    fn the_request_fails_that_was_told_and_no_other() {
        let all = [true; 5];
        let but = |at: usize| std::array::from_fn(|number| number != at);
        assert_eq!(outcomes(9, Strike::Once), (all, vec![2, 2, 3, 3, 4, 1], 0));
        assert_eq!(outcomes(0, Strike::Once), (but(0), vec![2, 2, 3, 3, 4, 1], 4));
        assert_eq!(outcomes(1, Strike::Once), (but(1), vec![0, 0, 3, 3, 4, 1], 3));
        assert_eq!(outcomes(2, Strike::Half), (but(2), vec![2, 2, 3, 0, 4, 1], 2));
        assert_eq!(outcomes(3, Strike::Half), (but(3), vec![2, 2, 3, 3, 4, 1], 1));
        let gone = [true, true, false, false, false];
        assert_eq!(outcomes(2, Strike::ForGood), (gone, vec![2, 2, 0, 0, 0, 1], 2));
    }
}
