//! Writes and flushes in their order.

use std::collections::BTreeSet;
use std::io;

use floe_blockdev::{Piece, Scratch, SpillOptions};
use floe_format::ext::superblock::OFFSET_BYTES as SUPERBLOCK_AT;

/// Most bytes of writes that are joined because they follow each other.
const MOST_JOINED: usize = 1 << 20;
/// Bytes of a superblock.
const SUPERBLOCK_BYTES: u64 = 1024;

#[derive(Clone, Copy, Debug)]
enum Step {
    Write { offset_bytes: u64, piece: Piece },
    Flush,
}

/// Writes and flushes in their order.
#[derive(Debug)]
pub(crate) struct Steps {
    all: Vec<Step>,
    bytes: Scratch,
    written_bytes: u64,
}

/// Something to be done to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act<'a> {
    /// To write bytes from this byte on.
    Write(u64, &'a [u8]),
    /// To make everything before durable.
    Flush,
}

impl Steps {
    pub(crate) fn new(spill: SpillOptions) -> Self {
        Self { all: Vec::new(), bytes: Scratch::new(spill), written_bytes: 0 }
    }

    /// Records a write.
    pub(crate) fn write(&mut self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        let piece = self.bytes.put(from)?;
        self.all.push(Step::Write { offset_bytes, piece });
        self.written_bytes += from.len() as u64;
        Ok(())
    }

    /// Records a flush; one behind another makes no difference.
    pub(crate) fn flush(&mut self) {
        if matches!(self.all.last(), Some(Step::Write { .. })) {
            self.all.push(Step::Flush);
        }
    }

    /// Bytes of all writes.
    pub(crate) const fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Does everything in its order. Writes that follow each other in time and place are one.
    pub(crate) fn each<E: From<io::Error>>(
        &self,
        mut act: impl FnMut(Act<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut start, mut joined) = (0, Vec::new());
        for step in &self.all {
            match *step {
                Step::Write { offset_bytes, piece } => {
                    let follows = start + joined.len() as u64 == offset_bytes
                        && joined.len() + piece.len() <= MOST_JOINED;
                    if !follows && !joined.is_empty() {
                        act(Act::Write(start, &joined))?;
                        joined.clear();
                    }
                    if joined.is_empty() {
                        start = offset_bytes;
                    }
                    self.bytes.append_to(piece, &mut joined)?;
                }
                Step::Flush => {
                    if !joined.is_empty() {
                        act(Act::Write(start, &joined))?;
                        joined.clear();
                    }
                    act(Act::Flush)?;
                }
            }
        }
        if joined.is_empty() { Ok(()) } else { act(Act::Write(start, &joined)) }
    }

    /// Adds the numbers of pages that are written.
    pub(crate) fn add_pages(&self, page_bytes: u64, pages: &mut BTreeSet<u64>) {
        for step in &self.all {
            if let Step::Write { offset_bytes, piece } = step
                && !piece.is_empty()
            {
                let last = (offset_bytes + piece.len() as u64 - 1) / page_bytes;
                pages.extend(offset_bytes / page_bytes..=last);
            }
        }
    }

    /// Brings the primary superblock to what the steps leave, and adds each one in between.
    pub(crate) fn add_superblocks(
        &self,
        superblock: &mut [u8; 1024],
        all: &mut BTreeSet<[u8; 1024]>,
    ) -> io::Result<()> {
        let place = SUPERBLOCK_AT..SUPERBLOCK_AT + SUPERBLOCK_BYTES;
        let mut bytes = Vec::new();
        for step in &self.all {
            let Step::Write { offset_bytes, piece } = *step else { continue };
            let start = offset_bytes.max(place.start);
            let end = (offset_bytes + piece.len() as u64).min(place.end);
            if start >= end {
                continue;
            }
            bytes.clear();
            self.bytes.append_to(piece, &mut bytes)?;
            // All lie in the piece, and in the superblock.
            let from = (start - offset_bytes) as usize..(end - offset_bytes) as usize;
            let to = (start - place.start) as usize..(end - place.start) as usize;
            superblock[to].copy_from_slice(&bytes[from]);
            all.insert(*superblock);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_that_follow_each_other_are_one() {
        let mut steps = Steps::new(SpillOptions::in_temporary_folder(6));
        steps.flush();
        for (at, bytes) in [(10, &b"abc"[..]), (13, b"de"), (4, b"xyz"), (15, b"f")] {
            steps.write(at, bytes).unwrap();
        }
        steps.flush();
        steps.flush();
        steps.write(16, b"g").unwrap();
        let mut seen = Vec::new();
        steps
            .each::<io::Error>(|act| {
                seen.push(match act {
                    Act::Write(at, bytes) => (at, bytes.to_vec()),
                    Act::Flush => (0, Vec::new()),
                });
                Ok(())
            })
            .unwrap();
        let of = |at, bytes: &[u8]| (at, bytes.to_vec());
        let all = [of(10, b"abcde"), of(4, b"xyz"), of(15, b"f"), of(0, b""), of(16, b"g")];
        assert_eq!(seen, all);
        assert_eq!(steps.written_bytes(), 10);
        let mut pages = BTreeSet::new();
        steps.add_pages(5, &mut pages);
        assert_eq!(pages.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
    }

    #[test]
    fn every_superblock_in_between_is_known() {
        let mut steps = Steps::new(SpillOptions::in_temporary_folder(0));
        steps.write(0, &[1; 1025]).unwrap();
        steps.write(2047, &[2; 9]).unwrap();
        steps.write(2048, &[3]).unwrap();
        let (mut superblock, mut all) = ([0; 1024], BTreeSet::new());
        steps.add_superblocks(&mut superblock, &mut all).unwrap();
        let mut first = [0; 1024];
        first[0] = 1;
        let mut second = first;
        second[1023] = 2;
        assert_eq!(superblock, second);
        assert_eq!(all, BTreeSet::from([first, second]));
    }
}
