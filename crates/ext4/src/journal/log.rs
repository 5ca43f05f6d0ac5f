//! Access to the blocks of a journal by number.

use std::io;
use std::ops::Range;

use floe_blockdev::{Overlay, ReadBlocks, WriteBlocks};
use floe_exec::Phase;
use floe_format::ext::jbd2;

use super::locate::Journal;

/// Reads blocks of the log.
#[derive(Clone, Copy)]
pub(crate) struct Log<'a> {
    /// The device that holds the journal.
    pub(crate) device: &'a dyn ReadBlocks,
    pub(crate) journal: &'a Journal,
    /// Counts each block read, for progress.
    pub(crate) phase: Option<&'a Phase>,
}

impl Log<'_> {
    /// Offset of a journal block on the device.
    pub(crate) fn offset_bytes(&self, log_block: u32) -> Option<u64> {
        self.journal.offset_bytes(log_block)
    }

    /// Reads one block of the journal; `into` must be one block long.
    pub(crate) fn read(&self, log_block: u32, into: &mut [u8]) -> io::Result<()> {
        let offset = self.offset_bytes(log_block).ok_or(io::ErrorKind::UnexpectedEof)?;
        if let Some(phase) = self.phase {
            phase.advance(1);
        }
        self.device.read_at(offset, into)
    }

    /// Stages the copy in block `at` of the log for the home block that begins at byte `to`. `content` is what was read of it; `None`: the
    /// log lies on the same device, and the copy is read from there later, as it is.
    pub(crate) fn stage<D: ReadBlocks>(
        &self,
        overlay: &Overlay<D>,
        (at, to): (u32, u64),
        is_escaped: bool,
        content: Option<&mut [u8]>,
    ) -> io::Result<()> {
        let Some(content) = content else {
            let from = self.offset_bytes(at).ok_or(io::ErrorKind::UnexpectedEof)?;
            return overlay.stage_copy(to, from);
        };
        if is_escaped {
            content[..4].copy_from_slice(&jbd2::MAGIC.to_be_bytes());
        }
        overlay.write_at(to, content)
    }
}

/// The circular part of a journal, in blocks of the journal: without its superblock and the
/// fast-commit area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    first: u32,
    end: u32,
}

impl Ring {
    /// Blocks `first..end`; `None` if that is empty.
    pub(crate) fn new(first: u32, end: u32) -> Option<Self> {
        (first < end).then_some(Self { first, end })
    }

    /// Blocks of the ring, at least 1.
    pub fn len_blocks(self) -> u32 {
        self.end - self.first
    }

    /// Its first block.
    pub fn first(self) -> u32 {
        self.first
    }

    /// Whether a block of the journal lies in the ring.
    pub fn contains(self, block: u32) -> bool {
        (self.first..self.end).contains(&block)
    }

    /// All blocks but one of the ring: those behind it, and those before it.
    pub(crate) fn but(self, block: u32) -> [Range<u32>; 2] {
        [block.saturating_add(1)..self.end, self.first..block]
    }

    /// All blocks of the ring, from one on.
    pub(crate) fn from(self, block: u32) -> [Range<u32>; 2] {
        [block..self.end, self.first..block]
    }

    /// Blocks of the ring from one on before another one.
    pub(crate) fn distance(self, from: u32, to: u32) -> u32 {
        if to >= from { to - from } else { self.len_blocks() - (from - to) }
    }

    /// The block `by` blocks behind `block`, wrapping around. `block` must lie in the ring.
    #[must_use]
    pub fn advance(self, block: u32, by: u32) -> u32 {
        let len = u64::from(self.len_blocks());
        let offset = u64::from(block.saturating_sub(self.first)) + u64::from(by);
        // Less than `len`, which fits a u32.
        self.first + (offset % len) as u32
    }
}

/// Whether transaction `a` comes after `b`; sequence numbers wrap around.
pub fn is_after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_wraps_as_often_as_it_must() {
        let ring = Ring::new(1, 5).unwrap();
        assert_eq!(ring.advance(1, 3), 4);
        assert_eq!(ring.advance(4, 1), 1);
        assert_eq!(ring.advance(4, 9), 1);
        assert_eq!(ring.advance(2, u32::MAX), 1);
        assert!(Ring::new(5, 5).is_none());
    }

    #[test]
    fn sequence_numbers_wrap() {
        assert!(is_after(2, 1) && !is_after(1, 1) && !is_after(1, 2));
        assert!(is_after(0, u32::MAX) && !is_after(u32::MAX, 0));
    }
}
