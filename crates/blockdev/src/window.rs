//! A part of a device, presented as a device.

use std::io;

use crate::{Medium, ReadBlocks, WriteBlocks, past_the_end, within};

/// Why a part of a device cannot be a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// It begins at or past the end.
    #[error("offset {offset_bytes} is not inside the device, which has {size_bytes} bytes")]
    StartsPastEnd {
        /// Offset requested.
        offset_bytes: u64,
        /// Bytes of the device below.
        size_bytes: u64,
    },
}

/// The bytes of another device from an offset on: `--offset`, or a partition.
#[derive(Clone, Debug)]
pub struct Window<D> {
    inner: D,
    offset_bytes: u64,
    len_bytes: u64,
}

impl<D: ReadBlocks> Window<D> {
    /// At most `len_bytes` of `inner` from `offset_bytes` on; `None` means all that follow. A
    /// window that would pass the end is truncated there, because a truncated image is still worth
    /// a check.
    ///
    /// # Errors
    /// If it begins at or past the end of `inner`. Offset 0 is always allowed.
    pub fn new(inner: D, offset_bytes: u64, len_bytes: Option<u64>) -> Result<Self, WindowError> {
        let size_bytes = inner.size_bytes();
        if offset_bytes >= size_bytes && offset_bytes != 0 {
            return Err(WindowError::StartsPastEnd { offset_bytes, size_bytes });
        }
        let rest_bytes = size_bytes - offset_bytes;
        let len_bytes = len_bytes.map_or(rest_bytes, |len| len.min(rest_bytes));
        Ok(Self { inner, offset_bytes, len_bytes })
    }

    /// Where the window begins, in bytes of the device below.
    pub const fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// The device below.
    pub const fn inner(&self) -> &D {
        &self.inner
    }
}

impl<D> Window<D> {
    /// Whether a whole range lies in the window.
    fn holds(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        offset_bytes.checked_add(len_bytes).is_some_and(|end| end <= self.len_bytes)
    }
}

impl<D: ReadBlocks> ReadBlocks for Window<D> {
    fn size_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        within(self.len_bytes, offset_bytes, into.len())?;
        // The range lies in the window, and the window in the device: no overflow.
        self.inner.read_at(self.offset_bytes + offset_bytes, into)
    }

    fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        self.holds(offset_bytes, len_bytes)
            && self.inner.is_hole(self.offset_bytes + offset_bytes, len_bytes)
    }

    fn will_need(&self, offset_bytes: u64, len_bytes: u64) {
        if self.holds(offset_bytes, len_bytes) {
            self.inner.will_need(self.offset_bytes + offset_bytes, len_bytes);
        }
    }

    fn will_need_in_sequence(&self, offset_bytes: u64, len_bytes: u64) {
        if self.holds(offset_bytes, len_bytes) {
            self.inner.will_need_in_sequence(self.offset_bytes + offset_bytes, len_bytes);
        }
    }

    fn is_cached(&self, offset_bytes: u64) -> bool {
        offset_bytes < self.len_bytes && self.inner.is_cached(self.offset_bytes + offset_bytes)
    }

    fn caches_ahead(&self) -> bool {
        self.inner.caches_ahead()
    }

    fn medium(&self) -> Medium {
        self.inner.medium()
    }
}

impl<D: WriteBlocks> WriteBlocks for Window<D> {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        within(self.len_bytes, offset_bytes, from.len())?;
        self.inner.write_at(self.offset_bytes + offset_bytes, from)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn most_flushes(&self) -> usize {
        self.inner.most_flushes()
    }

    /// Less than the window's size only if the device below now ends inside it.
    fn current_size_bytes(&self) -> io::Result<u64> {
        let inner_bytes = self.inner.current_size_bytes()?;
        Ok(inner_bytes.saturating_sub(self.offset_bytes).min(self.len_bytes))
    }

    fn forget(&self, offset_bytes: u64, len_bytes: u64) {
        if self.holds(offset_bytes, len_bytes) {
            self.inner.forget(self.offset_bytes + offset_bytes, len_bytes);
        }
    }

    fn write_zeroes(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        if !self.holds(offset_bytes, len_bytes) {
            return Err(past_the_end());
        }
        self.inner.write_zeroes(self.offset_bytes + offset_bytes, len_bytes)
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<bool> {
        if !self.holds(offset_bytes, len_bytes) {
            return Err(past_the_end());
        }
        self.inner.discard(self.offset_bytes + offset_bytes, len_bytes)
    }

    fn flush_range(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        self.inner.flush_range(self.offset_bytes.saturating_add(offset_bytes), len_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;

    /// With bytes on both sides, which must never be read.
    fn framed(bytes: &[u8]) -> Window<MemDevice> {
        let mut all = vec![0xee; 777];
        all.extend_from_slice(bytes);
        all.extend([0xee; 333]);
        Window::new(MemDevice::new(all), 777, Some(bytes.len() as u64)).unwrap()
    }

    crate::device_contract!(writable Window, super::framed);

    #[test]
    fn writes_stay_inside() {
        let window = framed(&[0; 10]);
        window.write_at(0, &[1; 10]).unwrap();
        assert!(window.write_at(1, &[1; 10]).is_err());
        let all = window.inner().to_vec();
        assert_eq!(all.iter().filter(|&&byte| byte == 1).count(), 10);
        assert_eq!((all[776], all[777], all[786], all[787]), (0xee, 1, 1, 0xee));
    }

    #[test]
    fn a_window_is_cut_at_the_end_and_never_begins_there() {
        let device = || MemDevice::new(vec![0; 100]);
        let size = |offset, len| Window::new(device(), offset, len).map(|w| w.size_bytes());
        assert_eq!(size(0, None), Ok(100));
        assert_eq!(size(40, None), Ok(60));
        assert_eq!(size(40, Some(20)), Ok(20));
        assert_eq!(size(40, Some(u64::MAX)), Ok(60));
        assert!(size(100, None).is_err());
        assert!(size(u64::MAX, Some(u64::MAX)).is_err());
        assert!(Window::new(MemDevice::new(vec![]), 0, None).is_ok());
        let window = Window::new(device(), 40, None).unwrap();
        assert!(!window.is_hole(u64::MAX, 2));
    }
}
