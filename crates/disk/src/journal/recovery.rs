//! Recovery: what a log holds goes home, then the log is emptied, then the superblock says so. Each step is flushed
//! before the next one begins, so that recovery can be cut off anywhere and begun again.

use std::io;
use std::ops::Range;

use floe_blockdev::{Overlay, ReadBlocks, WriteBlocks};
use floe_ext4::fs::FileSystem;
use floe_ext4::journal::{self, Journal, JournalEvent, Seen};
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::features::{Compat, Incompat};

use super::JournalError;

/// What recovery did.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Transactions replayed.
    pub transactions: u32,
    /// Blocks replayed, each copy counted.
    pub blocks: u64,
    /// Tags of fast commits replayed.
    pub fast_commit_tags: u64,
    /// The newest numbers in the log, where it was recovered: a writer goes on behind them.
    pub seen: Option<Seen>,
}

/// Finds the journal of a file system.
pub(crate) fn find(device: &dyn ReadBlocks, fs: &FileSystem) -> Result<Journal, JournalError> {
    let (geometry, groups) = (fs.geometry(), fs.space.groups.descs());
    if !geometry.features.compat.contains(Compat::HAS_JOURNAL) {
        return Err(JournalError::Absent);
    }
    let (journal, events) = journal::find(device, &fs.superblock, geometry, groups, None);
    let external = |event: &JournalEvent| matches!(event, JournalEvent::ExternalNotFound { .. });
    match journal {
        Some(journal) => Ok(journal),
        None if events.iter().any(external) => {
            Err(JournalError::Unsupported("it lies on another device"))
        }
        None => Err(JournalError::Damaged(events)),
    }
}

/// Recovers a file system from its journal by the rules of Linux and e2fsck, fast commits included, if it needs that.
/// Orphans are left to whoever opens it.
///
/// # Errors
/// [`JournalError::Absent`] and [`JournalError::Unsupported`]; [`JournalError::Damaged`] if any part of the log cannot be
/// replayed (nothing is written then); [`JournalError::Io`], after which recovery can be begun again.
pub fn recover<D: WriteBlocks>(device: &D) -> Result<Recovered, JournalError> {
    let fs = FileSystem::open(device).map_err(JournalError::FileSystem)?;
    let geometry = fs.geometry();
    let journal = find(device, &fs)?;
    let replay = journal::replay(device, geometry, &journal, None);
    let failed = |event: &JournalEvent| {
        matches!(event, JournalEvent::RecoveryFailed(_) | JournalEvent::TransactionCorrupt { .. })
    };
    if replay.events.iter().any(failed) {
        return Err(JournalError::Damaged(replay.events));
    }
    let mut recovered = Recovered {
        transactions: replay.transactions,
        blocks: replay.blocks,
        fast_commit_tags: replay.fast_commit_tags,
        seen: None,
    };
    if journal.needs_replay {
        let seen = journal::seen(device, geometry, &journal, journal.superblock.sequence);
        recovered.seen = Some(seen.map_err(JournalError::io("reading the log"))?);
    }
    if !replay.overlay.is_empty() {
        let log_superblock = journal.offset_bytes(0);
        let log_superblock =
            log_superblock.ok_or(JournalError::Unsupported("it has no superblock"))?;
        write(device, &replay.overlay, log_superblock)
            .map_err(JournalError::io("writing what the journal held"))?;
    }
    Ok(recovered)
}

/// Writes what recovery staged: all but the two superblocks' last word, the emptied log, the recovered superblock.
fn write<D: WriteBlocks>(device: &D, staged: &Overlay<&D>, log_superblock: u64) -> io::Result<()> {
    let ranges = staged.staged_ranges();
    // Pages that read from the log keep their bytes, should a damaged log name its own blocks.
    staged.settle(|read| {
        ranges.iter().any(|written| read.start < written.end && written.start < read.end)
    })?;
    let page = staged.page_bytes();
    let of = |offset: u64| offset / page * page..offset / page * page + page;
    let (log_page, own_page) = (of(log_superblock), of(OFFSET_BYTES));
    for range in ranges {
        for start in (range.start..range.end).step_by(page as usize) {
            let end = range.end.min(start + page);
            let mut bytes = read(staged, start..end)?;
            if start == log_page.start {
                continue;
            }
            if start == own_page.start {
                still_needs_recovery(&mut bytes[(OFFSET_BYTES - start) as usize..]);
            }
            device.write_at(start, &bytes)?;
        }
    }
    device.flush()?;
    device.write_at(log_page.start, &read(staged, log_page)?)?;
    device.flush()?;
    let end = OFFSET_BYTES + 1024;
    device.write_at(OFFSET_BYTES, &read(staged, OFFSET_BYTES..end)?)?;
    device.flush()
}

fn read<D: ReadBlocks>(staged: &Overlay<D>, range: Range<u64>) -> io::Result<Vec<u8>> {
    // A page, or the superblock.
    let mut bytes = vec![0; (range.end - range.start) as usize];
    staged.read_at(range.start, &mut bytes)?;
    Ok(bytes)
}

/// As long as the log is not empty, the superblock must not look recovered: Linux would drop the log.
fn still_needs_recovery(bytes: &mut [u8]) {
    let Some(bytes) = bytes.first_chunk_mut() else { return };
    let mut superblock = Superblock::decode(bytes);
    superblock.feature_incompat |= Incompat::RECOVER.bits();
    superblock.encode_with_checksum(bytes);
}
