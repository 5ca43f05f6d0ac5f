//! A device with space behind the file system, in which rebuilt structures get block numbers of
//! their own.

use std::io;

use floe_blockdev::ReadBlocks;

/// A device that is followed by zeroes from the end of its file system on. An overlay over it can
/// stage blocks there. If the device ends before its file system, the bytes between are unreadable.
pub(crate) struct Extended<'d> {
    source: &'d dyn ReadBlocks,
    /// The first byte behind both the source and its file system.
    end_bytes: u64,
    size_bytes: u64,
}

impl<'d> Extended<'d> {
    /// `source`, whose file system takes `used_bytes`, with zeroes up to `size_bytes`. A source that
    /// is larger keeps its size.
    pub(crate) fn new(source: &'d dyn ReadBlocks, used_bytes: u64, size_bytes: u64) -> Self {
        let end_bytes = used_bytes.max(source.size_bytes());
        Self { source, end_bytes, size_bytes: size_bytes.max(end_bytes) }
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
        let source_bytes = self.source.size_bytes();
        let ends_inside = end.is_some_and(|end| end > source_bytes);
        if ends_inside && offset_bytes < self.end_bytes && source_bytes < self.end_bytes {
            let text = format!("the device ends at byte {source_bytes}");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        let stored = source_bytes.saturating_sub(offset_bytes);
        // At most the length of `into`.
        let stored = stored.min(into.len() as u64) as usize;
        let (from_source, behind) = into.split_at_mut(stored);
        behind.fill(0);
        if from_source.is_empty() { Ok(()) } else { self.source.read_at(offset_bytes, from_source) }
    }

    fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        offset_bytes >= self.end_bytes || self.source.is_hole(offset_bytes, len_bytes)
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
        let device = Extended::new(&source, 900, 4096);
        let mut bytes = [1; 200];
        device.read_at(900, &mut bytes).unwrap();
        assert_eq!((&bytes[..100], &bytes[100..]), (&[7; 100][..], &[0; 100][..]));
        device.read_at(3896, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 200]);
        assert!(device.read_at(3897, &mut bytes).is_err());
        assert!(device.read_at(u64::MAX, &mut bytes).is_err());
    }

    #[test]
    fn what_the_device_lacks_is_unreadable() {
        let source = MemDevice::new(vec![7; 1000]);
        let device = Extended::new(&source, 2048, 4096);
        let mut bytes = [1; 100];
        for (offset, is_there) in
            [(900, true), (901, false), (1000, false), (1948, false), (2000, false), (2048, true)]
        {
            assert_eq!(device.read_at(offset, &mut bytes).is_ok(), is_there, "{offset}");
        }
    }
}
