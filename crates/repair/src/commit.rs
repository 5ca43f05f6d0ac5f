//! Writing what is staged: undo data first, then the blocks, then the superblock.
//!
//! The order of writes, with a flush at the end of each step:
//!
//! 1. the undo file, complete, under its name; until here the device is untouched
//! 2. the superblock as it was, but for "unmounted cleanly"
//! 3. every changed block that the next steps do not name
//! 4. the group descriptors behind the primary superblock
//! 5. superblocks of journals that were waiting to be replayed
//! 6. the block of the primary superblock, as staged, once the rest reads back as written
//!
//! `docs/safety.md` says why, and which tests show it.

mod changes;
mod error;
mod mark;

use std::path::Path;

use floe_blockdev::{Overlay, ReadBlocks, UndoWriter, UndoWriterOptions, WriteBlocks};
use floe_exec::{Interrupt, Phase};
use floe_format::ext::superblock::OFFSET_BYTES as SUPERBLOCK_AT;

use changes::{Changes, Ranges};
pub use error::CommitError;
pub(crate) use mark::marked;

/// What a session saw of a device when it opened it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    size_bytes: u64,
    /// The primary superblock; `None` if it could not be read.
    superblock: Option<Box<[u8; 1024]>>,
}

impl Seen {
    /// Looks at the device. To be done before anything else of it is read.
    pub fn of(device: &dyn ReadBlocks) -> Self {
        Self { size_bytes: device.size_bytes(), superblock: superblock_of(device) }
    }

    /// `Err` if the device is not what it was.
    fn still(&self, device: &dyn WriteBlocks) -> Result<(), CommitError> {
        let now_bytes =
            device.current_size_bytes().map_err(|source| CommitError::Size { source })?;
        if now_bytes < self.size_bytes {
            return Err(CommitError::Shrank { was_bytes: self.size_bytes, now_bytes });
        }
        if self.superblock == superblock_of(&device) {
            Ok(())
        } else {
            Err(CommitError::ChangedMeanwhile)
        }
    }
}

/// The primary superblock; `None` if it cannot be read.
pub(crate) fn superblock_of(device: &dyn ReadBlocks) -> Option<Box<[u8; 1024]>> {
    let mut bytes = Box::new([0; 1024]);
    device.read_at(SUPERBLOCK_AT, bytes.as_mut_slice()).ok().map(|()| bytes)
}

/// Where old bytes are saved.
#[derive(Clone, Copy, Debug)]
pub struct UndoTarget<'a> {
    /// A path at which nothing is yet.
    pub path: &'a Path,
    /// Byte of the whole device at which the file system begins: what `e2undo` has to add.
    pub fs_offset_bytes: u64,
}

/// How a commit is made.
#[derive(Clone, Copy, Debug)]
pub struct CommitOptions<'a> {
    /// What the session saw when it opened the device.
    pub seen: &'a Seen,
    /// Where old bytes are saved; `None`: nowhere, and there is no way back.
    pub undo: Option<UndoTarget<'a>>,
    /// Whether blocks may be written whose old bytes cannot be read, and so not be saved. Writing
    /// often mends a bad sector.
    pub overwrite_unreadable: bool,
    /// A wish to stop is obeyed up to the first write to the device, and then only noted.
    pub interrupt: Option<&'a Interrupt>,
    /// Counts bytes written.
    pub progress: Option<&'a Phase>,
}

/// What a commit did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// Bytes that differed and were written.
    pub bytes: u64,
    /// Bytes of the undo file; 0 without one.
    pub undo_bytes: u64,
    /// Bytes of the device at which pages begin that could not be read before they were written:
    /// the undo file names them and is without them.
    pub not_saved: Vec<u64>,
}

/// Writes the staged pages that differ from the device, and reads them back.
///
/// `staged` lies over `device`: both begin where the file system does. Pages that hold what the
/// device holds are not written, but for that of a superblock which calls the file system clean: it
/// does not while the rest is being written. If nothing differs, nothing is done: no undo file is
/// made.
///
/// # Errors
/// [`CommitError`]; [`CommitError::nothing_written`] tells whether the device was touched.
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
    // Pages that read from elsewhere on the device get bytes of their own before that changes.
    staged
        .settle(|range| changes.all.touch(&range))
        .map_err(|source| CommitError::Staged { source })?;
    let undo_bytes = match &options.undo {
        Some(undo) => save(staged, &device, &changes, undo)?,
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
    writing.mark(&changes)?;
    writing.write(&changes.early)?;
    writing.write(&changes.descriptors)?;
    writing.write(&changes.journals)?;
    for ranges in [&changes.early, &changes.descriptors, &changes.journals] {
        writing.verify(ranges)?;
    }
    writing.write(&changes.superblock)?;
    writing.verify(&changes.superblock)?;
    Ok(Committed { bytes: writing.done_bytes, undo_bytes, not_saved: changes.unreadable })
}

/// Writes the undo file. Returns its bytes.
fn save<D: ReadBlocks>(
    staged: &Overlay<D>,
    device: &dyn ReadBlocks,
    changes: &Changes,
    undo: &UndoTarget<'_>,
) -> Result<u64, CommitError> {
    let superblock = superblock_of(staged).ok_or_else(|| CommitError::Staged {
        source: std::io::Error::other("the staged superblock cannot be read"),
    })?;
    let options = UndoWriterOptions {
        // Came from a u32.
        block_bytes: staged.page_bytes() as u32,
        fs_offset_bytes: undo.fs_offset_bytes,
        superblock_after: *superblock,
    };
    let mut writer = UndoWriter::create(undo.path, &options)?;
    let mut old = Vec::new();
    for chunk in changes.saved_chunks(staged.page_bytes()) {
        old.resize((chunk.end - chunk.start) as usize, 0);
        device
            .read_at(chunk.start, &mut old)
            .map_err(|source| CommitError::Read { offset_bytes: chunk.start, source })?;
        writer.save(chunk.start, &old)?;
    }
    writer.not_saved(&changes.unreadable)?;
    Ok(writer.finish()?)
}

/// Takes away an undo file of this commit, which wrote nothing.
fn remove(undo: Option<&UndoTarget<'_>>) {
    if let Some(undo) = undo {
        // If it stays, it undoes nothing: the device is as it says.
        let _ = std::fs::remove_file(undo.path);
    }
}

/// The device being written.
struct Writing<'c, D> {
    staged: &'c Overlay<D>,
    device: &'c dyn WriteBlocks,
    options: &'c CommitOptions<'c>,
    done_bytes: u64,
}

impl<D: ReadBlocks> Writing<'_, D> {
    /// Makes the device say that it is not clean, durably. Not needed if a single block is written.
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

    /// Reads ranges back, from the medium where that is possible.
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

    /// The place is for the message: what was written before it may be lost too.
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
