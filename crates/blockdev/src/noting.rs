//! A device that remembers that it failed.

use std::io;

use floe_sync::{Mutex, PoisonError};

use crate::{Medium, ReadBlocks};

/// A device that notes the first read that fails, for callers of code that takes what it cannot read for damaged.
#[derive(Debug)]
pub struct Noting<D> {
    inner: D,
    first: Mutex<Option<io::Error>>,
}

impl<D> Noting<D> {
    /// `inner`, of which nothing failed yet.
    pub fn new(inner: D) -> Self {
        Self { inner, first: Mutex::new(None) }
    }

    /// The first error since the last call.
    ///
    /// # Errors
    /// That error.
    pub fn judge(&self) -> io::Result<()> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        first.map_or(Ok(()), Err)
    }
}

impl<D: ReadBlocks> ReadBlocks for Noting<D> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset_bytes, into).inspect_err(|error| {
            // A range past the end is no failure of the device.
            if error.kind() != io::ErrorKind::UnexpectedEof {
                let copy = match error.raw_os_error() {
                    Some(code) => io::Error::from_raw_os_error(code),
                    None => io::Error::new(error.kind(), error.to_string()),
                };
                let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
                first.get_or_insert(copy);
            }
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FailsAt, MemDevice, Strike};

    crate::device_contract!(Noting, |bytes: &[u8]| super::Noting::new(crate::MemDevice::new(
        bytes.to_vec()
    )));

    #[test]
    fn a_failure_is_noted_once_and_the_end_is_none() {
        let below = FailsAt::new(MemDevice::new(vec![0; 512]), 1, Strike::Once);
        below.arm(true);
        let device = Noting::new(&below);
        assert!(device.read_at(512, &mut [0]).is_err());
        device.judge().unwrap();
        assert!(device.read_at(0, &mut [0]).is_err());
        assert!(device.read_at(0, &mut [0]).is_ok());
        assert_eq!(device.judge().unwrap_err().raw_os_error(), Some(5));
        device.judge().unwrap();
    }
}
