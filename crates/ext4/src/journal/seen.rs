//! Sequence numbers in the log of transactions that are no longer needed.

use std::io;

use floe_blockdev::ReadBlocks;
use floe_format::Geometry;
use floe_format::ext::fast_commit::{FcRecords, FcTag};
use floe_format::ext::jbd2::{self, COMMIT_BLOCK, CommitBlock};

use super::locate::Journal;
use super::log::is_after;
use super::pieces::each_block;

/// The newest numbers in a journal, whether they are replayed or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The last transaction that has any block in the journal, fast commits included.
    pub sequence: u32,
    /// The latest commit, in seconds since 1970 and nanoseconds.
    pub commit_time: (u64, u32),
}

/// Scans the headers of all blocks of a journal for sequence numbers from `from` on.
///
/// A writer must continue after the last of them; otherwise a block left over from an unfinished
/// transaction, or a fast commit, would pass for a part of a new transaction with the same number.
/// Numbers that exceed `from` by more than the journal has blocks are ignored: they lie in blocks
/// that held other data before the journal was made.
///
/// # Errors
/// If a block cannot be read.
pub fn seen(
    device: &dyn ReadBlocks,
    geo: &Geometry,
    journal: &Journal,
    from: u32,
) -> io::Result<Seen> {
    let mut seen = Seen { sequence: from, commit_time: (0, 0) };
    let plausible = |number: u32| number.wrapping_sub(from) <= journal.blocks;
    let log_end = journal.blocks.saturating_sub(journal.fast_commit_blocks);
    let mut unread = None;
    each_block(device, journal, journal.superblock.first..journal.blocks, |at, block| {
        let block = match block {
            Ok(block) => block,
            Err(error) => {
                unread.get_or_insert(error);
                return;
            }
        };
        if at >= log_end {
            for record in FcRecords::new(block, geo.inode_size) {
                let (FcTag::Head { tid, .. } | FcTag::Tail { tid, .. }) = record.tag else {
                    continue;
                };
                if plausible(tid) && is_after(tid, seen.sequence) {
                    seen.sequence = tid;
                }
            }
            return;
        }
        let Some(header) = jbd2::header(block) else { return };
        if plausible(header.sequence) && is_after(header.sequence, seen.sequence) {
            seen.sequence = header.sequence;
        }
        if header.blocktype == COMMIT_BLOCK
            && let Some(bytes) = block.first_chunk()
        {
            let commit = CommitBlock::decode(bytes);
            seen.commit_time = seen.commit_time.max((commit.commit_sec, commit.commit_nsec));
        }
    });
    unread.map_or(Ok(seen), Err)
}
