//! Reads many blocks of a journal with few requests: a ring of a gigabyte has a quarter of a million blocks.

use std::io;
use std::ops::Range;

use floe_blockdev::ReadBlocks;

use super::locate::Journal;

/// Bytes of a request at most.
const PIECE_BYTES: u32 = 1 << 20;

/// Hands over each block of a range, in order, with its number in the journal. Blocks of a piece that cannot be read as a whole are read
/// one by one.
pub(super) fn each_block(
    device: &dyn ReadBlocks,
    journal: &Journal,
    range: Range<u32>,
    mut with: impl FnMut(u32, io::Result<&[u8]>),
) {
    let block_bytes = journal.block_size as usize;
    let most = (PIECE_BYTES / journal.block_size).max(1);
    let mut piece = vec![0; most.min(range.end.saturating_sub(range.start)) as usize * block_bytes];
    let mut at = range.start;
    while at < range.end {
        let run = run_from(journal, at, most.min(range.end - at));
        let start = journal.offset_bytes(at);
        let bytes = &mut piece[..run as usize * block_bytes];
        let is_read = start.is_some_and(|start| device.read_at(start, bytes).is_ok());
        for (block, bytes) in (at..).zip(bytes.chunks_mut(block_bytes)) {
            let read = match journal.offset_bytes(block) {
                Some(_) if is_read => Ok(()),
                Some(offset) => device.read_at(offset, bytes),
                None => Err(io::ErrorKind::UnexpectedEof.into()),
            };
            with(block, read.map(|()| &*bytes));
        }
        at += run;
    }
}

/// Blocks from one on that follow each other on the device, at least 1.
fn run_from(journal: &Journal, first: u32, most: u32) -> u32 {
    let Some(start) = journal.offset_bytes(first) else { return 1 };
    let follows = |by: &u32| {
        let offset = start.checked_add(u64::from(*by) * u64::from(journal.block_size));
        offset.is_some() && journal.offset_bytes(first + by) == offset
    };
    (1..most).find(|by| !follows(by)).unwrap_or(most)
}

#[cfg(test)]
mod tests {
    use floe_blockdev::{Counted, FailsAt, MemDevice, Strike};
    use floe_format::ext::jbd2::JournalSuperblock;

    use super::super::event::JournalPlace;
    use super::*;

    const BLOCKS: u32 = 5000;

    /// A journal on a device of its own.
    fn journal() -> Journal {
        Journal {
            place: JournalPlace::External,
            superblock: JournalSuperblock::decode(&[0; 1024]),
            blocks: BLOCKS,
            fast_commit_blocks: 0,
            needs_replay: true,
            block_size: 1024,
            cut: None,
            is_native: false,
            damage: None,
            since_seconds: 0,
            map: None,
        }
    }

    #[test]
    fn every_block_comes_once_and_requests_are_few() {
        let bytes: Vec<u8> = (0..BLOCKS).flat_map(|at| [(at % 251) as u8; 1024]).collect();
        let device = Counted::new(MemDevice::new(bytes));
        let mut next = 3;
        each_block(&device, &journal(), 3..BLOCKS + 2, |at, block| {
            assert_eq!((at, block.is_ok()), (next, at < BLOCKS), "past the end nothing is read");
            assert!(block.is_err() || block.unwrap() == [(at % 251) as u8; 1024]);
            next += 1;
        });
        assert_eq!(next, BLOCKS + 2);
        assert_eq!(device.counts().reads, 5, "a megabyte each");
    }

    #[test]
    fn a_piece_that_cannot_be_read_is_read_block_by_block() {
        let device = FailsAt::new(MemDevice::new(vec![7; 5_120_000]), 1, Strike::Once);
        device.arm(true);
        let mut unread = 0;
        each_block(&device, &journal(), 0..BLOCKS, |_, block| unread += u32::from(block.is_err()));
        assert_eq!((unread, device.requests()), (0, 5 + 1024));
        let gone = FailsAt::new(MemDevice::new(vec![7; 5_120_000]), 3, Strike::ForGood);
        gone.arm(true);
        each_block(&gone, &journal(), 0..BLOCKS, |_, block| unread += u32::from(block.is_err()));
        assert_eq!(unread, BLOCKS - 3 * 1024);
    }
}
