//! A device that knows of no holes: every byte is read.

use std::io;

use crate::ReadBlocks;

/// `inner`, without its word on what is a hole. File systems were seen to call data a hole that had been
/// written and not yet reached the disk; whoever reads sees it.
#[derive(Clone, Debug)]
pub struct Solid<D>(pub D);

impl<D: ReadBlocks> ReadBlocks for Solid<D> {
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

    fn will_read_on(&self, offset_bytes: u64, len_bytes: u64) {
        self.0.will_read_on(offset_bytes, len_bytes);
    }

    fn is_at_hand(&self, offset_bytes: u64) -> bool {
        self.0.is_at_hand(offset_bytes)
    }
}

#[cfg(test)]
mod tests {
    crate::device_contract!(Solid, |bytes: &[u8]| crate::Solid(crate::MemDevice::new(
        bytes.to_vec()
    )));
}
