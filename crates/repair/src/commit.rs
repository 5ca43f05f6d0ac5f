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
//! `docs/safety.md` gives the reasons and names the tests.

mod changes;
mod error;
mod mark;

use std::path::Path;

use floe_blockdev::{Overlay, ReadBlocks, UndoWriter, UndoWriterOptions, WriteBlocks};
use floe_exec::{Interrupt, Phase};
use floe_format::ext::superblock::OFFSET_BYTES as SUPERBLOCK_AT;

use crate::multi_mount::{Marked, MmpBlock};

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

/// Result of a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// Bytes that differed from the device and were written.
    pub bytes: u64,
    /// Bytes of the undo file; 0 without one.
    pub undo_bytes: u64,
    /// Device offsets of pages that were unreadable before they were overwritten: the undo file
    /// lists them, but lacks their content.
    pub not_saved: Vec<u64>,
}

/// Writes the staged pages that differ from the device, and reads them back.
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
    let hold = options.interrupt.map(Interrupt::hold).transpose();
    let _hold = hold.map_err(|_| CommitError::Interrupted)?;
    options.seen.still(device)?;
    let changes = Changes::find(staged, &device)?;
    if changes.all.is_empty() {
        return Ok(Committed::default());
    }
    if let (Some(&offset_bytes), false) = (changes.unreadable.first(), options.overwrite_unreadable)
    {
        return Err(CommitError::Unreadable { offset_bytes, pages: changes.unreadable.len() });
    }
    // Staged copies of other device blocks must be read before those blocks are overwritten.
    staged
        .settle(|range| changes.all.touch(&range))
        .map_err(|source| CommitError::Staged { source })?;
    let undo_bytes = match &options.undo {
        Some(undo) => save(staged, &device, &changes, undo, options.seen.mmp.as_ref())?,
        None => 0,
    };
    if options.interrupt.is_some_and(Interrupt::asked) {
        remove(options.undo.as_ref());
        return Err(CommitError::Interrupted);
    }
    if let Some(phase) = options.progress {
        phase.expect(changes.all.bytes());
    }
    let mut writing = Writing { staged, device, options, done_bytes: 0 };
    let marked = Marked::new(device, options.seen.mmp.clone(), true);
    let marked = marked.map_err(|source| writing.failed(SUPERBLOCK_AT, source))?;
    writing.device = &marked;
    writing.mark(&changes)?;
    writing.write(&changes.early)?;
    writing.write(&changes.descriptors)?;
    writing.write(&changes.journals)?;
    for ranges in [&changes.early, &changes.descriptors, &changes.journals] {
        writing.verify(ranges)?;
    }
    writing.write(&changes.superblock)?;
    writing.verify(&changes.superblock)?;
    marked.end().map_err(|source| writing.failed(SUPERBLOCK_AT, source))?;
    Ok(Committed { bytes: writing.done_bytes, undo_bytes, not_saved: changes.unreadable })
}

/// Writes the undo file and returns its size in bytes.
fn save<D: ReadBlocks>(
    staged: &Overlay<D>,
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
    /// Clears the clean flag on the device and flushes. Skipped if the commit writes only one
    /// block.
    fn mark(&self, changes: &Changes) -> Result<(), CommitError> {
        if changes.superblock.bytes() == changes.all.bytes() {
            return Ok(());
        }
        match superblock_of(&self.device).and_then(|superblock| marked(&superblock)) {
            Some(superblock) => {
                self.write_bytes(SUPERBLOCK_AT, &superblock)?;
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
            self.done_bytes += bytes.len() as u64;
            if let Some(phase) = self.options.progress {
                phase.advance(bytes.len() as u64);
            }
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
        error::WayBack(self.options.undo.map(|undo| undo.path.to_owned()))
    }
}
