//! Writes and flushes of files that move, in a plan file.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::Path;

use floe_blockdev::{Overlay, ReadBlocks, SpillOptions, WriteBlocks};

use super::{Hashed, PlanFileError, PlanHeader, RECORD_BYTES, damaged, of_read, u32_at, u64_at};
use crate::moves::{Act, Moves, Steps};

/// Kinds of records.
const WRITE: u32 = 1;
const FLUSH: u32 = 2;
/// A write behind all steps, of a page that was staged after the moves.
const LAST: u32 = 3;
/// Most bytes of a write.
const MOST_BYTES: u32 = 1 << 20;

/// The part of a plan about moves.
pub(super) struct Moved<'m, 'd> {
    moves: &'m Moves<&'d dyn ReadBlocks>,
    /// Bytes of the device at which each page begins that anything is written to.
    pub(super) pages: Vec<u64>,
    /// The ones among them that were staged after the moves.
    last: Vec<u64>,
    /// Records behind the pages.
    pub(super) records: u64,
}

impl<'m, 'd> Moved<'m, 'd> {
    pub(super) fn of(
        moves: &'m Moves<&'d dyn ReadBlocks>,
        staged: &Overlay<&'d dyn ReadBlocks>,
        device: &dyn ReadBlocks,
    ) -> io::Result<Self> {
        let page_bytes = staged.page_bytes();
        // Came from a u32.
        let reached = Overlay::with_spill(device, page_bytes as u32, moves.first.spill_options());
        moves.first.copy_to(&reached)?;
        let mut pages = BTreeSet::new();
        let mut records = 0;
        for steps in &moves.batches {
            steps.each::<io::Error>(|act| {
                records += 1;
                match act {
                    Act::Write(offset_bytes, bytes) => reached.write_at(offset_bytes, bytes),
                    Act::Flush => Ok(()),
                }
            })?;
            steps.add_pages(page_bytes, &mut pages);
        }
        let (mut before, mut after) = (Vec::new(), Vec::new());
        let mut last = Vec::new();
        for overlay in [&moves.first, staged] {
            pages.extend(overlay.staged_offsets().iter().map(|offset| offset / page_bytes));
        }
        let pages: Vec<u64> = pages.into_iter().map(|page| page * page_bytes).collect();
        for &offset in &pages {
            let len = len_of(page_bytes, staged.size_bytes(), offset);
            before.resize(len, 0);
            after.resize(len, 0);
            reached.read_at(offset, &mut before)?;
            staged.read_at(offset, &mut after)?;
            if before != after {
                last.push(offset);
            }
        }
        records += last.len() as u64;
        Ok(Self { moves, pages, last, records })
    }

    /// Writes the records.
    pub(super) fn write(
        &self,
        staged: &Overlay<&'d dyn ReadBlocks>,
        mut out: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut write = |kind: u32, offset_bytes: u64, bytes: &[u8]| {
            let mut record = [0; RECORD_BYTES];
            record[..8].copy_from_slice(&offset_bytes.to_le_bytes());
            // At most 1 MiB, or a page.
            record[8..12].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
            record[12..16].copy_from_slice(&kind.to_le_bytes());
            out(&record).and_then(|()| out(bytes))
        };
        for steps in &self.moves.batches {
            steps.each::<io::Error>(|act| match act {
                Act::Write(offset_bytes, bytes) => write(WRITE, offset_bytes, bytes),
                Act::Flush => write(FLUSH, 0, &[]),
            })?;
        }
        let mut bytes = Vec::new();
        for &offset in &self.last {
            bytes.resize(len_of(staged.page_bytes(), staged.size_bytes(), offset), 0);
            staged.read_at(offset, &mut bytes)?;
            write(LAST, offset, &bytes)?;
        }
        Ok(())
    }
}

fn len_of(page_bytes: u64, size_bytes: u64, offset: u64) -> usize {
    // At most a page, whose size came from 32 bits.
    page_bytes.min(size_bytes.saturating_sub(offset)) as usize
}

/// Reads the records; stages what they leave over `first` in `staged`.
pub(super) fn read<R: Read>(
    path: &Path,
    input: &mut Hashed<R>,
    header: &PlanHeader,
    (first, staged): (&Overlay<&dyn ReadBlocks>, &Overlay<&dyn ReadBlocks>),
    spill: SpillOptions,
) -> Result<Steps, PlanFileError> {
    let failed = |source: io::Error| of_read(path, source);
    first.copy_to(staged).map_err(PlanFileError::Stage)?;
    let mut steps = Steps::new(spill);
    let (mut is_last, mut bytes) = (false, Vec::new());
    for _ in 0..header.records {
        let mut record = [0; RECORD_BYTES];
        input.read_exact(&mut record).map_err(failed)?;
        let (offset, len, kind) = (u64_at(&record, 0), u32_at(&record, 8), u32_at(&record, 12));
        let end = offset.checked_add(u64::from(len));
        let is_within = end.is_some_and(|end| end <= header.size_bytes) && len <= MOST_BYTES;
        if !is_within || is_last && kind != LAST {
            return Err(damaged(path, "one of its writes is impossible"));
        }
        bytes.resize(len as usize, 0);
        input.read_exact(&mut bytes).map_err(failed)?;
        match kind {
            WRITE => steps.write(offset, &bytes).map_err(PlanFileError::Stage)?,
            FLUSH if len == 0 => steps.flush(),
            LAST => is_last = true,
            _ => return Err(damaged(path, "one of its writes is of no known kind")),
        }
        staged.write_at(offset, &bytes).map_err(PlanFileError::Stage)?;
    }
    Ok(steps)
}
