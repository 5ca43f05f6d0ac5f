//! Writes staged changes: the undo file first, then the blocks, then the superblock.
//!
//! The order of writes, each step ending with a flush:
//!
//! 1. the complete undo file, under its final name; the device is untouched until then
//! 2. with multiple-mount protection, the mark of a checker, which the last step takes away
//! 3. the old superblock with the "cleanly unmounted" flag cleared
//! 4. every changed block that no later step names
//! 5. the group descriptors after the primary superblock
//! 6. superblocks of journals that needed recovery
//! 7. the block of the primary superblock, as staged, once the rest reads back as written
//!
//! Files that move into their cubes follow: each write and flush that their journals made, in that order, and then steps 3 to 7 for whatever
//! was staged later, at least the superblock (`moves.rs`).
//!
//! `docs/safety.md` gives the reasons and names the tests.

mod changes;
mod error;
mod mark;

use std::path::Path;

use floe_blockdev::{Overlay, ReadBlocks, UndoWriter, UndoWriterOptions, WriteBlocks};
use floe_exec::{Interrupt, Phase};
use floe_format::ext::superblock::OFFSET_BYTES as SUPERBLOCK_AT;

use crate::moves::{Act, Moves, Steps};
use crate::multi_mount::{Marked, MmpBlock};
use crate::session::Repair;

use changes::{Changes, Ranges};
pub use error::CommitError;
pub(crate) use mark::marked;

/// Size and superblock of a device at the time a session opened it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    size_bytes: u64,
    /// The primary superblock; `None` if it could not be read.
    superblock: Option<Box<[u8; 1024]>>,
    /// The block against multiple mounts.
    mmp: Option<MmpBlock>,
}

impl Seen {
    /// Records size and superblock. Must run before anything else reads the device.
    pub fn of(device: &dyn ReadBlocks) -> Self {
        Self {
            size_bytes: device.size_bytes(),
            superblock: superblock_of(device),
            mmp: MmpBlock::of(device),
        }
    }

    /// Fails if size or superblock of the device changed since.
    fn still(&self, device: &dyn WriteBlocks) -> Result<(), CommitError> {
        let now_bytes =
            device.current_size_bytes().map_err(|source| CommitError::Size { source })?;
        if now_bytes < self.size_bytes {
            return Err(CommitError::Shrank { was_bytes: self.size_bytes, now_bytes });
        }
        if self.superblock != superblock_of(&device) {
            return Err(CommitError::ChangedMeanwhile);
        }
        if self.mmp != MmpBlock::now(device) {
            return Err(CommitError::OtherMachine);
        }
        Ok(())
    }
}

/// The primary superblock; `None` if it cannot be read.
pub(crate) fn superblock_of(device: &dyn ReadBlocks) -> Option<Box<[u8; 1024]>> {
    let mut bytes = Box::new([0; 1024]);
    device.read_at(SUPERBLOCK_AT, bytes.as_mut_slice()).ok().map(|()| bytes)
}

/// Destination for the old bytes.
#[derive(Clone, Copy, Debug)]
pub struct UndoTarget<'a> {
    /// A path that must not exist yet.
    pub path: &'a Path,
    /// Byte of the whole device at which the file system begins: the offset that `e2undo` must be
    /// given.
    pub fs_offset_bytes: u64,
}

/// Options of a commit.
#[derive(Clone, Copy, Debug)]
pub struct CommitOptions<'a> {
    /// Size and superblock recorded when the session opened the device.
    pub seen: &'a Seen,
    /// Destination for the old bytes; `None`: they are not saved, and the commit cannot be undone.
    pub undo: Option<UndoTarget<'a>>,
    /// Allows blocks to be overwritten although their old bytes cannot be read and therefore not be
    /// saved. A write often makes a bad sector readable again.
    pub overwrite_unreadable: bool,
    /// Honoured until the first write to the device; after that, only recorded.
    pub interrupt: Option<&'a Interrupt>,
    /// Counts bytes written.
    pub progress: Option<&'a Phase>,
}

impl<'a> CommitOptions<'a> {
    /// Without an undo file; nobody interrupts or watches; what cannot be read is not written over.
    pub const fn of(seen: &'a Seen) -> Self {
        Self { seen, undo: None, overwrite_unreadable: false, interrupt: None, progress: None }
    }
}

/// Result of a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// All bytes that were written to the device: those that differed, what went through the journals for files that moved, and
    /// marks that the file system is in use.
    pub bytes: u64,
    /// Bytes of the undo file; 0 without one.
    pub undo_bytes: u64,
    /// Device offsets of pages that were unreadable before they were overwritten: the undo file
    /// lists them, but lacks their content.
    pub not_saved: Vec<u64>,
}

impl Repair<'_> {
    /// Writes the repair to its device: staged pages as [`commit()`] does, and files that move in the transactions of their journals.
    ///
    /// # Errors
    /// As [`commit()`].
    pub fn commit(
        &self,
        device: &dyn WriteBlocks,
        options: &CommitOptions<'_>,
    ) -> Result<Committed, CommitError> {
        write(&self.staged, self.moves.writes.as_ref(), device, options)
    }
}

/// Writes the staged pages that differ from the device, and reads them back. For a repair, in which files may move: [`Repair::commit`].
///
/// `staged` is an overlay over `device`; both begin where the file system does. Pages equal to
/// those of the device are not written, except the page of a superblock that calls the file system
/// clean, because that flag is cleared during the commit. If no page differs, nothing is written
/// and no undo file is made.
///
/// # Errors
/// [`CommitError`]; [`CommitError::nothing_written`] says whether the device was touched.
pub fn commit<D: ReadBlocks>(
    staged: &Overlay<D>,
    device: &dyn WriteBlocks,
    options: &CommitOptions<'_>,
) -> Result<Committed, CommitError> {
    write(staged, None, device, options)
}

/// The same, where files may move.
pub(crate) fn write<D: ReadBlocks>(
    staged: &Overlay<D>,
    moves: Option<&Moves<D>>,
    device: &dyn WriteBlocks,
    options: &CommitOptions<'_>,
) -> Result<Committed, CommitError> {
    let hold = options.interrupt.map(Interrupt::hold).transpose();
    let _hold = hold.map_err(|_| CommitError::Interrupted)?;
    options.seen.still(device)?;
    let first = moves.map_or(staged, |moves| &moves.first);
    let changes = Changes::find(first, &device)?;
    let with_moves = moves.map(|moves| changes.with_moves(moves, staged, &device)).transpose()?;
    let all = with_moves.as_ref().unwrap_or(&changes);
    if all.all.is_empty() {
        return Ok(Committed::default());
    }
    if let (Some(&offset_bytes), false) = (all.unreadable.first(), options.overwrite_unreadable) {
        return Err(CommitError::Unreadable { offset_bytes, pages: all.unreadable.len() });
    }
    // Staged copies of other device blocks must be read before those blocks are overwritten.
    staged
        .settle(|range| all.all.touch(&range))
        .map_err(|source| CommitError::Staged { source })?;
    let undo_bytes = match &options.undo {
        Some(undo) => save((staged, moves), &device, all, undo, options.seen.mmp.as_ref())?,
        None => 0,
    };
    if options.interrupt.is_some_and(Interrupt::asked) {
        remove(options.undo.as_ref());
        return Err(CommitError::Interrupted);
    }
    if let Some(phase) = options.progress {
        phase.expect(changes.all.bytes() + moves.map_or(0, Moves::written_bytes));
    }
    let mut writing = Writing { staged: first, device, options, done_bytes: 0 };
    let marked = Marked::new(device, options.seen.mmp.clone(), true);
    let marked = marked.map_err(|source| writing.failed(SUPERBLOCK_AT, source))?;
    writing.device = &marked;
    if !changes.all.is_empty() {
        writing.write_all(&changes)?;
    }
    if let Some(moves) = moves {
        moves.batches.iter().try_for_each(|steps| writing.repeat(steps))?;
        writing.staged = staged;
        writing.finish(all)?;
    }
    marked.end().map_err(|source| writing.failed(SUPERBLOCK_AT, source))?;
    let bytes = writing.done_bytes + marked.own_bytes();
    Ok(Committed { bytes, undo_bytes, not_saved: all.unreadable.clone() })
}

/// Writes the undo file and returns its size in bytes.
fn save<D: ReadBlocks>(
    (staged, moves): (&Overlay<D>, Option<&Moves<D>>),
    device: &dyn ReadBlocks,
    changes: &Changes,
    undo: &UndoTarget<'_>,
    place: Option<&MmpBlock>,
) -> Result<u64, CommitError> {
    let superblock = superblock_of(staged).ok_or_else(|| CommitError::Staged {
        source: std::io::Error::other("the staged superblock cannot be read"),
    })?;
    let options = UndoWriterOptions {
        // `page_bytes` came from a u32.
        block_bytes: staged.page_bytes() as u32,
        fs_offset_bytes: undo.fs_offset_bytes,
        superblock_after: *superblock,
    };
    let mut writer = UndoWriter::create(undo.path, &options)?;
    let (mut old, mut new) = (Vec::new(), Vec::new());
    let mmp = place.map(|place| place.start_bytes()..place.start_bytes() + place.block_bytes);
    let is_fixed = |at: u64| mmp.as_ref().is_none_or(|page| !page.contains(&at));
    for chunk in changes.saved_chunks(staged.page_bytes(), mmp.clone()) {
        old.resize((chunk.end - chunk.start) as usize, 0);
        new.resize(old.len(), 0);
        device
            .read_at(chunk.start, &mut old)
            .map_err(|source| CommitError::Read { offset_bytes: chunk.start, source })?;
        staged.read_at(chunk.start, &mut new).map_err(|source| CommitError::Staged { source })?;
        writer.save_both(chunk.start, &old, &new, is_fixed)?;
    }
    writer.not_saved(&changes.unreadable)?;
    if let Some(moves) = moves {
        let between = moves.superblocks().map_err(|source| CommitError::Staged { source })?;
        writer.in_between(&between)?;
    }
    Ok(writer.finish()?)
}

/// Removes the undo file of a commit that wrote nothing to the device.
fn remove(undo: Option<&UndoTarget<'_>>) {
    if let Some(undo) = undo {
        // A leftover file is harmless: undoing it would change nothing.
        let _ = std::fs::remove_file(undo.path);
    }
}

/// A device in the middle of a commit.
struct Writing<'c, D> {
    staged: &'c Overlay<D>,
    device: &'c dyn WriteBlocks,
    options: &'c CommitOptions<'c>,
    done_bytes: u64,
}

impl<D: ReadBlocks> Writing<'_, D> {
    /// Writes staged changes, with a flush behind each step.
    fn write_all(&mut self, changes: &Changes) -> Result<(), CommitError> {
        self.mark(changes)?;
        self.write(&changes.early)?;
        self.write(&changes.descriptors)?;
        self.write(&changes.journals)?;
        for ranges in [&changes.early, &changes.descriptors, &changes.journals] {
            self.verify(ranges)?;
        }
        self.write(&changes.superblock)?;
        self.verify(&changes.superblock)
    }

    /// Repeats writes and flushes in their order.
    fn repeat(&mut self, steps: &Steps) -> Result<(), CommitError> {
        let mut at = SUPERBLOCK_AT;
        let done = steps.each(|act| match act {
            Act::Write(offset_bytes, bytes) => {
                at = offset_bytes;
                self.device.write_at(offset_bytes, bytes)?;
                self.count(bytes.len());
                Ok(())
            }
            Act::Flush => self.device.flush(),
        });
        done.and_then(|()| self.device.flush()).map_err(|source| self.failed(at, source))
    }

    /// Writes whatever differs from the staged result, which `all` are the pages of: what was staged behind the moves, and what the
    /// device has lost of them.
    fn finish(&mut self, all: &Changes) -> Result<(), CommitError> {
        for chunk in all.all.chunks() {
            self.device.forget(chunk.start, chunk.end - chunk.start);
        }
        let rest = Changes::find(self.staged, &self.device);
        let rest =
            rest.map_err(|error| self.failed(SUPERBLOCK_AT, std::io::Error::other(error)))?;
        if rest.all.is_empty() { Ok(()) } else { self.write_all(&rest) }
    }

    fn count(&mut self, bytes: usize) {
        self.done_bytes += bytes as u64;
        if let Some(phase) = self.options.progress {
            phase.advance(bytes as u64);
        }
    }

    /// Clears the clean flag on the device and flushes. Skipped if the commit writes only one
    /// block.
    fn mark(&mut self, changes: &Changes) -> Result<(), CommitError> {
        if changes.superblock.bytes() == changes.all.bytes() {
            return Ok(());
        }
        match superblock_of(&self.device).and_then(|superblock| marked(&superblock)) {
            Some(superblock) => {
                self.write_bytes(SUPERBLOCK_AT, &superblock)?;
                self.done_bytes += superblock.len() as u64;
                self.flush(SUPERBLOCK_AT)
            }
            None => Ok(()),
        }
    }

    /// Writes ranges of staged bytes and flushes them.
    fn write(&mut self, ranges: &Ranges) -> Result<(), CommitError> {
        let mut bytes = Vec::new();
        let mut last = None;
        for chunk in ranges.chunks() {
            bytes.resize((chunk.end - chunk.start) as usize, 0);
            self.staged
                .read_at(chunk.start, &mut bytes)
                .map_err(|source| self.failed(chunk.start, source))?;
            self.write_bytes(chunk.start, &bytes)?;
            self.count(bytes.len());
            last = Some(chunk.start);
        }
        last.map_or(Ok(()), |last| self.flush(last))
    }

    /// Reads ranges back, bypassing the page cache if possible, and compares them.
    fn verify(&self, ranges: &Ranges) -> Result<(), CommitError> {
        let (mut staged, mut written) = (Vec::new(), Vec::new());
        for chunk in ranges.chunks() {
            let len = (chunk.end - chunk.start) as usize;
            staged.resize(len, 0);
            written.resize(len, 0);
            self.device.forget(chunk.start, len as u64);
            self.staged
                .read_at(chunk.start, &mut staged)
                .and_then(|()| self.device.read_at(chunk.start, &mut written))
                .map_err(|source| self.failed(chunk.start, source))?;
            if staged != written {
                let undo = self.undo();
                return Err(CommitError::Verify { offset_bytes: chunk.start, undo });
            }
        }
        Ok(())
    }

    fn write_bytes(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), CommitError> {
        self.device
            .write_at(offset_bytes, bytes)
            .map_err(|source| self.failed(offset_bytes, source))
    }

    /// `offset_bytes` is for the message only: earlier writes may be lost too.
    fn flush(&self, offset_bytes: u64) -> Result<(), CommitError> {
        self.device.flush().map_err(|source| self.failed(offset_bytes, source))
    }

    fn failed(&self, offset_bytes: u64, source: std::io::Error) -> CommitError {
        let (done_bytes, undo) = (self.done_bytes, self.undo());
        CommitError::Write { offset_bytes, done_bytes, undo, source }
    }

    fn undo(&self) -> error::WayBack {
        let undo = self.options.undo.map(|undo| undo.path.to_owned());
        error::WayBack { undo, has_begun: self.done_bytes > 0 }
    }
}
