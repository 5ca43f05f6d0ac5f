//! A device with space behind its end, in which rebuilt structures get block numbers of their own.

use std::io;

use floe_blockdev::ReadBlocks;

/// A device followed by zeroes. An overlay over it can stage blocks behind the end of the source.
pub(crate) struct Extended<'d> {
    source: &'d dyn ReadBlocks,
    size_bytes: u64,
}

impl<'d> Extended<'d> {
    /// `source`, with zeroes up to `size_bytes`. A source that is larger keeps its size.
    pub(crate) fn new(source: &'d dyn ReadBlocks, size_bytes: u64) -> Self {
        Self { source, size_bytes: size_bytes.max(source.size_bytes()) }
    }
}

impl ReadBlocks for Extended<'_> {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        let end = offset_bytes.checked_add(into.len() as u64);
        if end.is_none_or(|end| end > self.size_bytes) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let stored = self.source.size_bytes().saturating_sub(offset_bytes);
        // At most the length of `into`.
        let stored = stored.min(into.len() as u64) as usize;
        let (from_source, behind) = into.split_at_mut(stored);
        behind.fill(0);
        if from_source.is_empty() { Ok(()) } else { self.source.read_at(offset_bytes, from_source) }
    }

    fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        offset_bytes >= self.source.size_bytes() || self.source.is_hole(offset_bytes, len_bytes)
    }

    fn will_need(&self, offset_bytes: u64, len_bytes: u64) {
        if offset_bytes < self.source.size_bytes() {
            self.source.will_need(offset_bytes, len_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use floe_blockdev::MemDevice;

    use super::*;

    #[test]
    fn the_space_behind_the_end_is_zero() {
        let source = MemDevice::new(vec![7; 1000]);
        let device = Extended::new(&source, 4096);
        let mut bytes = [1; 200];
        device.read_at(900, &mut bytes).unwrap();
        assert_eq!((&bytes[..100], &bytes[100..]), (&[7; 100][..], &[0; 100][..]));
        device.read_at(3896, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 200]);
        assert!(device.read_at(3897, &mut bytes).is_err());
        assert!(device.read_at(u64::MAX, &mut bytes).is_err());
    }
}
