//! What a commit has to write: staged pages that differ from the device, in order.

use std::ops::Range;

use floe_blockdev::{Overlay, ReadBlocks, WriteBlocks};
use floe_format::ext::jbd2::{JournalSuperblock, MAGIC, SUPERBLOCK_V1, SUPERBLOCK_V2};
use floe_format::ext::superblock::{OFFSET_BYTES as SUPERBLOCK_AT, Superblock};
use floe_format::geometry::{Geometry, Strictness};

use super::{CommitError, marked, superblock_of};

/// Most bytes that are compared, saved or written at once. A multiple of the size of every block.
const CHUNK_BYTES: u64 = 1 << 20;

/// Ranges of whole pages, ascending and apart from each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// Adds a range behind all others.
    pub(super) fn push(&mut self, range: Range<u64>) {
        match self.0.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.0.push(range),
        }
    }

    /// Adds a range that none of the others touches, wherever it belongs.
    fn insert(&mut self, range: Range<u64>) {
        let rest = self.0.split_off(self.0.partition_point(|other| other.end <= range.start));
        self.push(range);
        rest.into_iter().for_each(|other| self.push(other));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    /// Whether any byte of `other` is in one of the ranges.
    pub(super) fn touch(&self, other: &Range<u64>) -> bool {
        let next = self.0.partition_point(|range| range.end <= other.start);
        self.0.get(next).is_some_and(|range| range.start < other.end)
    }

    /// The ranges in pieces of at most [`CHUNK_BYTES`].
    pub(super) fn chunks(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().flat_map(|range| chunks(range.clone(), CHUNK_BYTES))
    }
}

fn chunks(range: Range<u64>, chunk_bytes: u64) -> impl Iterator<Item = Range<u64>> {
    // At most 1 MiB or a page, so it fits.
    range
        .clone()
        .step_by(chunk_bytes as usize)
        .map(move |start| start..range.end.min(start.saturating_add(chunk_bytes)))
}

/// Everything a commit has to write, by the time at which it may be written.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// All of it.
    pub(super) all: Ranges,
    /// What may be written at any time.
    pub(super) early: Ranges,
    /// Group descriptors behind the primary superblock. Written when all that they point to is
    /// durable, and because what they say decides how the rest is judged: as long as they are the
    /// old ones, a second repair decides as the first one did.
    pub(super) descriptors: Ranges,
    /// Superblocks of journals that are not empty on the device. Written only when everything else
    /// is durable: the recovered blocks must never be half written and the journal gone.
    pub(super) journals: Ranges,
    /// The page of the primary superblock: the very last.
    pub(super) superblock: Ranges,
    /// Starts of pages that cannot be read on the device.
    pub(super) unreadable: Vec<u64>,
    descriptor_table: Range<u64>,
}

impl Changes {
    /// Compares what is staged with the device.
    ///
    /// # Errors
    /// If the staged pages cannot be read.
    pub(super) fn find<D: ReadBlocks>(
        staged: &Overlay<D>,
        device: &dyn ReadBlocks,
    ) -> Result<Self, CommitError> {
        let mut changes = Self { descriptor_table: descriptor_table(staged), ..Self::default() };
        let (mut new, mut old) = (Vec::new(), Vec::new());
        let page_bytes = staged.page_bytes();
        let chunk_bytes = (CHUNK_BYTES / page_bytes).max(1) * page_bytes;
        let ranges = staged.staged_ranges();
        for chunk in ranges.into_iter().flat_map(|range| chunks(range, chunk_bytes)) {
            let len = (chunk.end - chunk.start) as usize;
            new.resize(len, 0);
            old.resize(len, 0);
            staged
                .read_at(chunk.start, &mut new)
                .map_err(|source| CommitError::Staged { source })?;
            let readable = device.read_at(chunk.start, &mut old).is_ok();
            let mut at = chunk.start;
            for new in new.chunks(page_bytes as usize) {
                let page = at..at + new.len() as u64;
                let within = (page.start - chunk.start) as usize..(page.end - chunk.start) as usize;
                let old = &mut old[within];
                at = page.end;
                // One bad sector makes the whole chunk unreadable: look page by page then.
                if !readable && device.read_at(page.start, old).is_err() {
                    changes.unreadable.push(page.start);
                    old.fill(0);
                    changes.add(page, old);
                } else if old != new {
                    changes.add(page, old);
                }
            }
        }
        changes.add_superblock(staged, device)?;
        Ok(changes)
    }

    /// A superblock that is as it was is written too if it must be changed for the time of writing:
    /// it gets back what was taken away.
    fn add_superblock<D: ReadBlocks>(
        &mut self,
        staged: &Overlay<D>,
        device: &dyn ReadBlocks,
    ) -> Result<(), CommitError> {
        let is_marked = superblock_of(device).is_some_and(|now| marked(&now).is_some());
        if self.all.is_empty() || !self.superblock.is_empty() || !is_marked {
            return Ok(());
        }
        let page_bytes = staged.page_bytes();
        let start = SUPERBLOCK_AT / page_bytes * page_bytes;
        let page = start..(start + page_bytes).min(staged.size_bytes());
        let mut bytes = vec![0; (page.end - page.start) as usize];
        staged
            .read_at(page.start, &mut bytes)
            // Staged, since otherwise it would read as what is on the device.
            .and_then(|()| staged.write_at(page.start, &bytes))
            .map_err(|source| CommitError::Staged { source })?;
        self.superblock.push(page.clone());
        self.all.insert(page);
        Ok(())
    }

    /// What can be saved of all that will be overwritten, in pieces.
    pub(super) fn saved_chunks(&self, page_bytes: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let unreadable = |at: u64| self.unreadable.binary_search(&at).is_ok();
        self.all.chunks().flat_map(move |chunk| {
            let hurt = self.unreadable.partition_point(|&at| at < chunk.start);
            let whole = self.unreadable.get(hurt).is_none_or(|&at| at >= chunk.end);
            let step_bytes = if whole { CHUNK_BYTES } else { page_bytes };
            chunks(chunk, step_bytes).filter(move |piece| whole || !unreadable(piece.start))
        })
    }

    fn add(&mut self, page: Range<u64>, old: &[u8]) {
        self.all.push(page.clone());
        if page.contains(&SUPERBLOCK_AT) {
            self.superblock.push(page);
        } else if is_busy_journal(old) {
            self.journals.push(page);
        } else if page.start < self.descriptor_table.end && self.descriptor_table.start < page.end {
            self.descriptors.push(page);
        } else {
            self.early.push(page);
        }
    }
}

/// Bytes of the descriptors that follow the primary superblock, without those of meta groups; empty
/// if the superblock is none.
fn descriptor_table(staged: &dyn ReadBlocks) -> Range<u64> {
    let geometry = superblock_of(staged)
        .and_then(|bytes| Geometry::new(&Superblock::decode(&bytes), Strictness::Relaxed).ok());
    geometry.map_or(0..0, |geometry| {
        let start = geometry.offset_bytes(geometry.primary_desc_block(0));
        let len = u64::from(geometry.first_meta_bg) * u64::from(geometry.block_size);
        start..start.saturating_add(len)
    })
}

/// Whether a block is the superblock of a journal that is to be replayed (`s_start` is not 0).
fn is_busy_journal(block: &[u8]) -> bool {
    let Some(superblock) = block.first_chunk() else { return false };
    let superblock = JournalSuperblock::decode(superblock);
    superblock.magic == MAGIC
        && [SUPERBLOCK_V1, SUPERBLOCK_V2].contains(&superblock.blocktype)
        && superblock.start != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_are_found() {
        let mut ranges = Ranges::default();
        for start in [0u64, 1, 2, 5, 9] {
            ranges.push(start * 1024..(start + 1) * 1024);
        }
        assert_eq!(ranges.0, [0..3072, 5120..6144, 9216..10240]);
        assert_eq!(ranges.bytes(), 5120);
        for (range, touched) in
            [(0..1, true), (3072..5120, false), (3072..5121, true), (10240..99999, false)]
        {
            assert_eq!(ranges.touch(&range), touched, "{range:?}");
        }
        for (start, expected) in [
            (3072, vec![0..4096, 5120..6144, 9216..10240]),
            (4096, vec![0..3072, 4096..6144, 9216..10240]),
            (8192, vec![0..3072, 5120..6144, 8192..10240]),
            (20480, vec![0..3072, 5120..6144, 9216..10240, 20480..21504]),
        ] {
            let mut ranges = ranges.clone();
            ranges.insert(start..start + 1024);
            assert_eq!(ranges.0, expected);
        }
        let mut ranges = Ranges::default();
        ranges.push(512..512 + 2 * CHUNK_BYTES + 1);
        let chunks: Vec<_> = ranges.chunks().collect();
        assert_eq!(chunks.len(), 3);
        assert_eq!(chunks[2], 512 + 2 * CHUNK_BYTES..512 + 2 * CHUNK_BYTES + 1);
    }
}
