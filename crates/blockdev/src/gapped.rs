//! A device that lost a piece of its middle, with a gap in place of the piece.

use std::io;
use std::ops::Range;

use crate::{Medium, ReadBlocks, within};

/// A device whose bytes behind the gap lie too early, as in an image from which a piece was cut out. Reads find them where they were;
/// the gap itself cannot be read.
#[derive(Clone, Debug)]
pub struct Gapped<D> {
    inner: D,
    gap: Range<u64>,
}

impl<D: ReadBlocks> Gapped<D> {
    /// `inner`, with a gap of these bytes.
    pub const fn new(inner: D, gap: Range<u64>) -> Self {
        Self { inner, gap }
    }

    fn gap_bytes(&self) -> u64 {
        self.gap.end.saturating_sub(self.gap.start)
    }

    /// Where a range lies on the device below; `None` if the gap has any of it.
    fn below(&self, offset_bytes: u64, len_bytes: u64) -> Option<u64> {
        if self.gap.is_empty() || offset_bytes.saturating_add(len_bytes) <= self.gap.start {
            return Some(offset_bytes);
        }
        (offset_bytes >= self.gap.end).then(|| offset_bytes - self.gap_bytes())
    }
}

impl<D: ReadBlocks> ReadBlocks for Gapped<D> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes().saturating_add(self.gap_bytes())
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        within(self.size_bytes(), offset_bytes, into.len())?;
        let lost = || io::Error::other("the image lacks these bytes");
        let below = self.below(offset_bytes, into.len() as u64).ok_or_else(lost)?;
        self.inner.read_at(below, into)
    }

    fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        let below = self.below(offset_bytes, len_bytes);
        below.is_some_and(|below| self.inner.is_hole(below, len_bytes))
    }

    fn will_need(&self, offset_bytes: u64, len_bytes: u64) {
        if let Some(below) = self.below(offset_bytes, len_bytes) {
            self.inner.will_need(below, len_bytes);
        }
    }

    fn will_need_in_sequence(&self, offset_bytes: u64, len_bytes: u64) {
        if let Some(below) = self.below(offset_bytes, len_bytes) {
            self.inner.will_need_in_sequence(below, len_bytes);
        }
    }

    fn is_cached(&self, offset_bytes: u64) -> bool {
        self.below(offset_bytes, 1).is_some_and(|below| self.inner.is_cached(below))
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
    use crate::MemDevice;

    crate::device_contract!(Gapped, |bytes: &[u8]| super::Gapped::new(
        crate::MemDevice::new(bytes.to_vec()),
        5..5
    ));

    #[test]
    fn bytes_behind_the_gap_are_where_they_were() {
        let device = Gapped::new(MemDevice::new((0..20).collect()), 8..18);
        assert_eq!(device.size_bytes(), 30);
        let read = |offset, len| {
            let mut into = vec![0; len];
            device.read_at(offset, &mut into).ok().map(|()| into)
        };
        assert_eq!(read(5, 3), Some(vec![5, 6, 7]));
        assert_eq!(read(18, 3), Some(vec![8, 9, 10]));
        assert_eq!(read(29, 1), Some(vec![19]));
        for (offset, len) in [(5, 4), (8, 1), (17, 1), (17, 2), (0, 30), (29, 2)] {
            assert_eq!(read(offset, len), None, "{offset}, {len}");
        }
    }
}
