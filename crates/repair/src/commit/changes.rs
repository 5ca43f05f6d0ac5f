//! The pages that a commit has to write, in the order of the steps.

use std::collections::BTreeSet;
use std::ops::Range;

use floe_blockdev::{Overlay, ReadBlocks, WriteBlocks};
use floe_format::ext::jbd2::{JournalSuperblock, MAGIC, SUPERBLOCK_V1, SUPERBLOCK_V2};
use floe_format::ext::superblock::{OFFSET_BYTES as SUPERBLOCK_AT, Superblock};
use floe_format::geometry::{Geometry, Strictness};

use super::{CommitError, marked, superblock_of};
use crate::moves::Moves;

/// Maximum bytes compared, saved or written at once. A multiple of every block size.
const CHUNK_BYTES: u64 = 1 << 20;

/// Ranges of whole pages: ascending, disjoint and not adjacent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// Appends a range that lies after all others.
    pub(super) fn push(&mut self, range: Range<u64>) {
        match self.0.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.0.push(range),
        }
    }

    /// Inserts a range that touches no other one.
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

    /// Whether any range overlaps `other`.
    pub(super) fn touch(&self, other: &Range<u64>) -> bool {
        let next = self.0.partition_point(|range| range.end <= other.start);
        self.0.get(next).is_some_and(|range| range.start < other.end)
    }

    /// Splits the ranges into chunks of at most [`CHUNK_BYTES`].
    pub(super) fn chunks(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().flat_map(|range| chunks(range.clone(), CHUNK_BYTES))
    }
}

fn chunks(range: Range<u64>, chunk_bytes: u64) -> impl Iterator<Item = Range<u64>> {
    // A chunk has at most 1 MiB, or is one page, so its length fits.
    range
        .clone()
        .step_by(chunk_bytes as usize)
        .map(move |start| start..range.end.min(start.saturating_add(chunk_bytes)))
}

/// All ranges of a commit, by the step that writes them.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// All changed pages.
    pub(super) all: Ranges,
    /// Pages with no constraint on their order.
    pub(super) early: Ranges,
    /// Group descriptors after the primary superblock. Written once everything they point to is
    /// durable, because they decide how the rest is judged: while the old ones are in place, a
    /// second repair makes the same decisions as the first.
    pub(super) descriptors: Ranges,
    /// Superblocks of journals that still need recovery on the device. Written only once everything
    /// else is durable: emptying the journal earlier would lose blocks that are only half written.
    pub(super) journals: Ranges,
    /// The page of the primary superblock, written last.
    pub(super) superblock: Ranges,
    /// Device offsets of pages that cannot be read.
    pub(super) unreadable: Vec<u64>,
    descriptor_table: Range<u64>,
}

impl Changes {
    /// Compares the staged pages with the device.
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
                // One bad sector makes the read of the whole chunk fail, so retry page by page.
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

    /// The same with all pages that moves write, and those that are staged behind them. They are of no step.
    ///
    /// # Errors
    /// As [`Changes::find`].
    pub(super) fn with_moves<D: ReadBlocks>(
        &self,
        moves: &Moves<D>,
        staged: &Overlay<D>,
        device: &dyn ReadBlocks,
    ) -> Result<Self, CommitError> {
        let (page_bytes, size_bytes) = (staged.page_bytes(), staged.size_bytes());
        let mut pages = BTreeSet::new();
        moves.batches.iter().for_each(|steps| steps.add_pages(page_bytes, &mut pages));
        let behind = Self::find(staged, device)?;
        for ranges in [&self.all, &behind.all] {
            for range in &ranges.0 {
                pages.extend(range.start / page_bytes..range.end.div_ceil(page_bytes));
            }
        }
        let mut all = Self { unreadable: self.unreadable.clone(), ..Self::default() };
        let mut old = Vec::new();
        for page in pages {
            let start = page * page_bytes;
            let range = start..start.saturating_add(page_bytes).min(size_bytes);
            if !self.all.touch(&range) {
                // At most a page.
                old.resize((range.end - range.start) as usize, 0);
                if device.read_at(start, &mut old).is_err() {
                    all.unreadable.push(start);
                }
            }
            all.all.push(range);
        }
        all.unreadable.sort_unstable();
        Ok(all)
    }

    /// Adds an unchanged superblock too if the commit clears its clean flag, because the flag must
    /// be restored.
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
            // Stage the bytes, because otherwise a read would return the modified ones on the
            // device.
            .and_then(|()| staged.write_at(page.start, &bytes))
            .map_err(|source| CommitError::Staged { source })?;
        self.superblock.push(page.clone());
        self.all.insert(page);
        Ok(())
    }

    /// The ranges to save in the undo file, in chunks: those of the changes, and the page that carries the mark meanwhile.
    pub(super) fn saved_chunks(
        &self,
        page_bytes: u64,
        marked: Option<Range<u64>>,
    ) -> impl Iterator<Item = Range<u64>> + '_ {
        let unreadable = |at: u64| self.unreadable.binary_search(&at).is_ok();
        let mut all = self.all.clone();
        marked.filter(|page| !all.touch(page)).into_iter().for_each(|page| all.insert(page));
        let chunks_of_all: Vec<_> = all.chunks().collect();
        chunks_of_all.into_iter().flat_map(move |chunk| {
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

/// Byte range of the descriptors that follow the primary superblock, without those of meta block
/// groups; empty if the superblock is invalid.
fn descriptor_table(staged: &dyn ReadBlocks) -> Range<u64> {
    let geometry = superblock_of(staged)
        .and_then(|bytes| Geometry::new(&Superblock::decode(&bytes), Strictness::Relaxed).ok());
    geometry.map_or(0..0, |geometry| {
        let start = geometry.offset_bytes(geometry.primary_desc_block(0));
        let len = u64::from(geometry.first_meta_bg) * u64::from(geometry.block_size);
        start..start.saturating_add(len)
    })
}

/// Whether a block is the superblock of a journal that needs recovery (`s_start` is not 0).
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
