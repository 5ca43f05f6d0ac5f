//! A device that reports no holes, so that every byte is read.

use std::io;

use crate::{Medium, ReadBlocks};

/// `inner` without its holes. Some file systems reported holes for data that was written and not
/// yet flushed; reading it returns the right bytes.
#[derive(Clone, Debug)]
pub struct NoHoles<D>(pub D);

impl<D: ReadBlocks> ReadBlocks for NoHoles<D> {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset_bytes, into)
    }

    fn is_hole(&self, _offset_bytes: u64, _len_bytes: u64) -> bool {
        false
    }

    fn will_need(&self, offset_bytes: u64, len_bytes: u64) {
        self.0.will_need(offset_bytes, len_bytes);
    }

    fn will_need_in_sequence(&self, offset_bytes: u64, len_bytes: u64) {
        self.0.will_need_in_sequence(offset_bytes, len_bytes);
    }

    fn is_cached(&self, offset_bytes: u64) -> bool {
        self.0.is_cached(offset_bytes)
    }

    fn caches_ahead(&self) -> bool {
        self.0.caches_ahead()
    }

    fn medium(&self) -> Medium {
        self.0.medium()
    }
}

#[cfg(test)]
mod tests {
    crate::device_contract!(NoHoles, |bytes: &[u8]| crate::NoHoles(crate::MemDevice::new(
        bytes.to_vec()
    )));
}
