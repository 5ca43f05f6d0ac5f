//! Moves of files into their cubes, as they reach the device: in transactions of the journals, behind all other repairs.
//!
//! Staged blocks are written in the order of the disk, which a repair may be killed in. Files that move cannot be written like that: places
//! that some leave are given to others. So moves are made in the staged file system as a mount makes them, through its journals, and each
//! write and flush of that is recorded. The commit first writes all other repairs; then it repeats what was recorded, in its order. A crash
//! at any write leaves what a crash of a mount leaves, and the next repair, mount or check recovers the journals.

mod stays;
mod steps;

use std::collections::BTreeSet;
use std::io;

use floe_blockdev::{Overlay, ReadBlocks, SpillOptions, WriteBlocks};
use floe_format::ext::superblock::OFFSET_BYTES as SUPERBLOCK_AT;
use floe_sync::{Mutex, MutexGuard, PoisonError};

use crate::failure::Failure;
pub use stays::{Left, Stays};
pub(crate) use steps::{Act, Steps};

/// The writes of a repair that moves files, in order: the staged blocks of `first`, the batches, and last whatever differs from the staged
/// result.
#[derive(Debug)]
pub struct Moves<D> {
    /// All that was staged before the first move.
    pub(crate) first: Overlay<D>,
    /// Writes and flushes from opening the journals to closing them; each leaves a clean file system.
    pub(crate) batches: Vec<Steps>,
}

/// The moves of a session, as they are made.
pub(crate) struct MoveLog<'d> {
    first: Overlay<&'d dyn ReadBlocks>,
    spill: SpillOptions,
    overwrite_unreadable: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    has_begun: bool,
    /// Something else was staged since.
    is_over: bool,
    batches: Vec<Steps>,
    /// A batch reached the staged blocks in part only.
    broken: Option<io::Error>,
    /// Why the journals could not be used.
    refused: Option<String>,
    /// Findings of files that stay.
    left: Vec<Left>,
}

/// A staged file system whose writes and flushes are recorded.
pub(crate) struct Recording<'a> {
    batch: &'a Overlay<&'a dyn ReadBlocks>,
    steps: Mutex<Steps>,
}

impl<D: ReadBlocks> Moves<D> {
    /// Bytes of all writes of the batches.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.batches.iter().map(Steps::written_bytes).sum()
    }

    /// Each primary superblock that the device has between the first and the last one, with those.
    pub(crate) fn superblocks(&self) -> io::Result<Vec<[u8; 1024]>> {
        let mut superblock = [0; 1024];
        self.first.read_at(SUPERBLOCK_AT, &mut superblock)?;
        let mut all = BTreeSet::from([superblock]);
        self.batches
            .iter()
            .try_for_each(|steps| steps.add_superblocks(&mut superblock, &mut all))?;
        Ok(all.into_iter().collect())
    }
}

impl<'d> MoveLog<'d> {
    pub(crate) fn new(
        device: &'d dyn ReadBlocks,
        page_bytes: u32,
        spill: &SpillOptions,
        overwrite_unreadable: bool,
    ) -> Self {
        // Moved bytes are held three times: in the batch, in its steps, and as staged.
        let spill = SpillOptions { budget_bytes: spill.budget_bytes / 4, ..spill.clone() };
        let first = Overlay::with_spill(device, page_bytes, spill.clone());
        Self { first, spill, overwrite_unreadable, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Changed by whole values.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing but moves was staged since the first of them.
    pub(crate) fn may_go_on(&self) -> bool {
        !self.state().is_over
    }

    /// Whether anything was kept for moves.
    pub(crate) fn has_begun(&self) -> bool {
        self.state().has_begun
    }

    /// Keeps what is staged so far, which is written before the first move.
    pub(crate) fn begin(&self, staged: &Overlay<&dyn ReadBlocks>) -> io::Result<()> {
        staged.copy_to(&self.first)?;
        self.state().has_begun = true;
        Ok(())
    }

    /// Something else is staged from now on: no more moves.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        state.is_over |= state.has_begun;
    }

    /// Lets something change the staged file system through its journals; `run` says whether that is kept. If it fails, nothing is
    /// changed.
    pub(crate) fn batch<T>(
        &self,
        staged: &Overlay<&dyn ReadBlocks>,
        run: impl FnOnce(&Recording<'_>) -> Result<(T, bool), Failure>,
    ) -> Result<T, Failure> {
        let base: &dyn ReadBlocks = staged;
        // Came from a u32.
        let page_bytes = staged.page_bytes() as u32;
        let batch = Overlay::with_spill(base, page_bytes, self.spill.clone());
        let batch = batch.protecting(self.overwrite_unreadable);
        let steps = Mutex::new(Steps::new(self.spill.clone()));
        let recording = Recording { batch: &batch, steps };
        let (made, is_kept) = run(&recording)?;
        if is_kept {
            let steps = recording.steps.into_inner().unwrap_or_else(PoisonError::into_inner);
            let copied = batch.copy_to(staged);
            let mut state = self.state();
            state.batches.push(steps);
            if let Err(error) = copied {
                state.broken = Some(error);
            }
        }
        Ok(made)
    }

    /// Notes why nothing can be moved.
    pub(crate) fn refuse(&self, why: String) {
        self.state().refused = Some(why);
    }

    /// Notes which files stay, and why.
    pub(crate) fn leave(&self, left: Vec<Left>) {
        self.state().left = left;
    }

    /// `Err` if a batch was staged in part.
    pub(crate) fn judge(&self) -> Result<(), Failure> {
        self.state().broken.take().map_or(Ok(()), |error| Err(error.into()))
    }

    /// The findings of files that stay, once.
    pub(crate) fn take_left(&self) -> Vec<Left> {
        std::mem::take(&mut self.state().left)
    }

    /// The writes, if anything moved and is kept; and why nothing was, if the journals could not be used.
    pub(crate) fn into_moving(
        self,
        is_kept: bool,
    ) -> (Option<Moves<&'d dyn ReadBlocks>>, Option<String>) {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let State { batches, refused, .. } = state;
        let has_moved = is_kept && !batches.is_empty();
        (has_moved.then_some(Moves { first: self.first, batches }), refused)
    }
}

impl Recording<'_> {
    fn steps(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadBlocks for Recording<'_> {
    fn size_bytes(&self) -> u64 {
        self.batch.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.batch.read_at(offset_bytes, into)
    }

    fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        self.batch.is_hole(offset_bytes, len_bytes)
    }
}

impl WriteBlocks for Recording<'_> {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        self.batch.write_at(offset_bytes, from)?;
        self.steps().write(offset_bytes, from)
    }

    fn flush(&self) -> io::Result<()> {
        self.steps().flush();
        Ok(())
    }
}
