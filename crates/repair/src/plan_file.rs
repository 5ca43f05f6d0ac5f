//! Stores a staged repair in a file, to be written to the device later: `docs/plan-file.md`.
//!
//! The file holds each changed page with a hash of the content it replaces, and behind them writes and flushes of files that move
//! (`moves.rs`). Staging fails if the device differs from the examined one in any page to be written, in size or in its superblock.

mod moved;

use std::fs::File;
use std::hash::Hasher;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use floe_blockdev::{NewFile, Overlay, ReadBlocks, SpillOptions, WriteBlocks};
use floe_format::crc::crc32c;
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::commit::{self, CommitError, CommitOptions, Committed, superblock_of};
use crate::moves::Moves;
use crate::session::Repair;
use moved::Moved;

/// Magic number of a plan file.
pub const MAGIC: [u8; 8] = *b"FLOEPLAN";
const END: [u8; 8] = *b"FLOE END";
/// Version of the format with moves; without them a file has version 1.
pub const VERSION: u32 = 2;
const VERSION_WITHOUT_MOVES: u32 = 1;
const HEADER_BYTES: usize = 128;
const CHECKSUM_AT: usize = HEADER_BYTES - 4;
/// Offset, length, flags, hash of the old content.
const RECORD_BYTES: usize = 32;
/// Flag: the old content could not be read.
const UNREADABLE: u32 = 1;
/// Flag: the new content is the old one, and not in the file. Only before moves.
const SAME: u32 = 2;
const CLEAN: u32 = 1;
const REPAIRED: u32 = 2;
const MOVES_FILES: u32 = 4;

/// Header of a plan file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanHeader {
    /// Bytes of a page: the block size of the file system.
    pub page_bytes: u32,
    /// Bytes of the device, from the start of the file system.
    pub size_bytes: u64,
    /// Changed pages.
    pub pages: u64,
    /// Whether the file system will be clean.
    pub clean: bool,
    /// Whether any damage is repaired.
    pub repaired: bool,
    /// Whether files move into their cubes: their writes and flushes follow the pages.
    pub moves_files: bool,
    /// Records of those.
    records: u64,
    /// Findings left.
    pub left: u32,
    /// Number of changes, as in a report.
    pub changes: u64,
    /// UUID of the file system.
    pub uuid: [u8; 16],
    /// Hash of the old primary superblock; zeroes if it was unreadable.
    superblock: [u8; 16],
}

/// Why a plan file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanFileError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// Not a plan file, or a damaged one.
    #[error("{}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        what: &'static str,
    },
    /// A newer version made the file.
    #[error("{}: unknown format version {version} (supported: {VERSION_WITHOUT_MOVES} and {VERSION})", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The device is not the examined one, or has changed since.
    #[error(
        "the device has changed since the plan was made: {what}. Nothing was written; make \
         a new plan"
    )]
    Changed {
        /// The difference.
        what: String,
    },
    /// The device or the staging area failed.
    #[error("cannot stage the plan: {0}; nothing was written")]
    Stage(io::Error),
}

fn hash(bytes: &[u8]) -> [u8; 16] {
    let mut hasher = SipHasher24::new();
    hasher.write(bytes);
    hasher.finish128().as_bytes()
}

fn hash_of_superblock(device: &dyn ReadBlocks) -> [u8; 16] {
    superblock_of(device).map_or([0; 16], |bytes| hash(bytes.as_slice()))
}

impl PlanHeader {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        let version = if self.moves_files { VERSION } else { VERSION_WITHOUT_MOVES };
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.page_bytes.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.size_bytes.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.pages.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.superblock);
        let flags = (u32::from(self.clean) * CLEAN)
            | (u32::from(self.repaired) * REPAIRED)
            | (u32::from(self.moves_files) * MOVES_FILES);
        bytes[48..52].copy_from_slice(&flags.to_le_bytes());
        bytes[52..56].copy_from_slice(&self.left.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.changes.to_le_bytes());
        bytes[64..80].copy_from_slice(&self.uuid);
        bytes[80..88].copy_from_slice(&self.records.to_le_bytes());
        let sum = crc32c(!0, &bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes the header in `bytes`. `Err` describes the fault; `Ok(Err)` holds an unsupported
    /// version.
    fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Result<Self, u32>, &'static str> {
        if bytes[..8] != MAGIC {
            return Err("not a repair plan");
        }
        let version = u32_at(bytes, 8);
        if ![VERSION_WITHOUT_MOVES, VERSION].contains(&version) {
            return Ok(Err(version));
        }
        if u32_at(bytes, CHECKSUM_AT) != crc32c(!0, &bytes[..CHECKSUM_AT]) {
            return Err("the checksum of its header is wrong");
        }
        let flags = u32_at(bytes, 48);
        let header = Self {
            page_bytes: u32_at(bytes, 12),
            size_bytes: u64_at(bytes, 16),
            pages: u64_at(bytes, 24),
            superblock: sixteen(bytes, 32),
            clean: flags & CLEAN != 0,
            repaired: flags & REPAIRED != 0,
            moves_files: flags & MOVES_FILES != 0,
            left: u32_at(bytes, 52),
            changes: u64_at(bytes, 56),
            uuid: sixteen(bytes, 64),
            records: if version == VERSION { u64_at(bytes, 80) } else { 0 },
        };
        if header.moves_files != (version == VERSION) {
            return Err("it moves files as an older version of Floe did: make a new plan");
        }
        let size = header.page_bytes;
        if !(1024..=65536).contains(&size) || !size.is_power_of_two() {
            return Err("its page size is invalid");
        }
        Ok(Ok(header))
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |value, &byte| value << 8 | u32::from(byte))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

fn sixteen(bytes: &[u8], at: usize) -> [u8; 16] {
    std::array::from_fn(|index| bytes[at + index])
}

/// Saves a staged repair to a new file, and returns its header.
///
/// # Errors
/// [`PlanFileError`]: the file exists or cannot be written (a partial file is removed), or a staged
/// block cannot be read.
pub fn save(
    repair: &Repair<'_>,
    device: &dyn ReadBlocks,
    path: &Path,
) -> Result<PlanHeader, PlanFileError> {
    let new = new_file(path)?;
    let header = write(repair, device, new.file(), path)?;
    let failed = |source| PlanFileError::File { path: path.to_owned(), source };
    new.finish().map_err(failed)?;
    Ok(header)
}

/// Tests early whether a plan can be saved at `path`.
///
/// # Errors
/// [`PlanFileError::File`]: the path exists, or no file can be created there.
pub fn probe(path: &Path) -> Result<(), PlanFileError> {
    new_file(path).map(drop)
}

fn new_file(path: &Path) -> Result<NewFile, PlanFileError> {
    let failed = |source| PlanFileError::File { path: path.to_owned(), source };
    NewFile::create(path, 0o666, &MAGIC).map_err(failed)
}

fn write(
    repair: &Repair<'_>,
    device: &dyn ReadBlocks,
    file: &File,
    path: &Path,
) -> Result<PlanHeader, PlanFileError> {
    let failed = |source| PlanFileError::File { path: path.to_owned(), source };
    let staged = &repair.staged;
    let mut pages = Pages { page_bytes: staged.page_bytes(), size_bytes: device.size_bytes() };
    let mut changed = Vec::new();
    let moved = repair.moves.writes.as_ref().map(|moves| Moved::of(moves, staged, device));
    let moved = moved.transpose().map_err(PlanFileError::Stage)?;
    match &moved {
        Some(moved) => changed.extend_from_slice(&moved.pages),
        None => {
            for offset in staged.staged_offsets() {
                let (new, old) = pages.both(staged, device, offset)?;
                if old.as_ref() != Some(&new) {
                    changed.push(offset);
                }
            }
        }
    }
    let first = repair.moves.writes.as_ref().map_or(staged, |moves| &moves.first);
    let header = PlanHeader {
        // `page_bytes` came from a u32.
        page_bytes: staged.page_bytes() as u32,
        size_bytes: device.size_bytes(),
        pages: changed.len() as u64,
        clean: repair.is_clean(),
        repaired: repair.repaired(),
        moves_files: moved.is_some(),
        records: moved.as_ref().map_or(0, |moved| moved.records),
        left: u32::try_from(repair.left.len()).unwrap_or(u32::MAX),
        changes: repair.deeds.len() as u64,
        uuid: repair.after.superblock.uuid,
        superblock: hash_of_superblock(device),
    };
    let mut out = Hashed { inner: BufWriter::new(file), hasher: SipHasher24::new() };
    out.write_all(&header.encode()).map_err(failed)?;
    for offset in changed {
        let (mut new, old) = pages.both(first, device, offset)?;
        let mut record = [0; RECORD_BYTES];
        record[..8].copy_from_slice(&offset.to_le_bytes());
        // At most a page.
        record[8..12].copy_from_slice(&(new.len() as u32).to_le_bytes());
        let mut flags = if old.is_none() { UNREADABLE } else { 0 };
        if old.as_ref() == Some(&new) {
            flags |= SAME;
            new.clear();
        }
        record[12..16].copy_from_slice(&flags.to_le_bytes());
        record[16..].copy_from_slice(&old.map_or([0; 16], |old| hash(&old)));
        out.write_all(&record).and_then(|()| out.write_all(&new)).map_err(failed)?;
    }
    if let Some(moved) = &moved {
        moved.write(staged, |bytes| out.write_all(bytes)).map_err(failed)?;
    }
    let sum = out.hasher.finish128().as_bytes();
    let mut inner = out.inner;
    inner
        .write_all(&sum)
        .and_then(|()| inner.write_all(&END))
        .and_then(|()| inner.flush())
        .map_err(failed)?;
    Ok(header)
}

/// Reads pages from two devices.
struct Pages {
    page_bytes: u64,
    size_bytes: u64,
}

impl Pages {
    /// The staged page at `offset`, and the page on the device if readable.
    #[allow(clippy::type_complexity)] // a page and perhaps another
    fn both(
        &mut self,
        staged: &dyn ReadBlocks,
        device: &dyn ReadBlocks,
        offset: u64,
    ) -> Result<(Vec<u8>, Option<Vec<u8>>), PlanFileError> {
        // At most a page, whose size came from 32 bits.
        let len = self.page_bytes.min(self.size_bytes.saturating_sub(offset)) as usize;
        let (mut new, mut old) = (vec![0; len], vec![0; len]);
        staged.read_at(offset, &mut new).map_err(PlanFileError::Stage)?;
        let readable = device.read_at(offset, &mut old).is_ok();
        Ok((new, readable.then_some(old)))
    }
}

/// A stream that hashes all bytes passing through it.
struct Hashed<I> {
    inner: I,
    hasher: SipHasher24,
}

impl<W: Write> Hashed<W> {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.write(bytes);
        self.inner.write_all(bytes)
    }
}

impl<R: Read> Hashed<R> {
    fn read_exact(&mut self, into: &mut [u8]) -> io::Result<()> {
        self.inner.read_exact(into)?;
        self.hasher.write(into);
        Ok(())
    }
}

/// The content of a plan file, staged.
pub struct Planned<'d> {
    /// The file system after the repair.
    pub staged: Overlay<&'d dyn ReadBlocks>,
    moves: Option<Moves<&'d dyn ReadBlocks>>,
}

impl Planned<'_> {
    /// Writes it, as [`Repair::commit`] does.
    ///
    /// # Errors
    /// As [`crate::commit::commit`].
    pub fn commit(
        &self,
        device: &dyn WriteBlocks,
        options: &CommitOptions<'_>,
    ) -> Result<Committed, CommitError> {
        commit::write(&self.staged, self.moves.as_ref(), device, options)
    }
}

/// Stages the content of a plan file over `device`. On success the whole file has been verified.
///
/// # Errors
/// [`PlanFileError`]: the file is damaged, or the device has changed.
pub fn stage<'d>(
    path: &Path,
    device: &'d dyn ReadBlocks,
    staging_bytes: u64,
) -> Result<(PlanHeader, Planned<'d>), PlanFileError> {
    let failed = |source: io::Error| of_read(path, source);
    let file = File::open(path).map_err(failed)?;
    let mut input = Hashed { inner: BufReader::new(file), hasher: SipHasher24::new() };
    let mut bytes = [0; HEADER_BYTES];
    input.read_exact(&mut bytes).map_err(failed)?;
    let header = PlanHeader::decode(&bytes)
        .map_err(|what| damaged(path, what))?
        .map_err(|version| PlanFileError::Version { path: path.to_owned(), version })?;
    if header.size_bytes != device.size_bytes() {
        let (then, now) = (header.size_bytes, device.size_bytes());
        return Err(changed(format!("it had {then} bytes and has {now}")));
    }
    if header.superblock != hash_of_superblock(device) {
        return Err(changed("its superblock differs".to_owned()));
    }
    let spill = SpillOptions::in_temporary_folder(staging_bytes);
    let first = Overlay::with_spill(device, header.page_bytes, spill.clone());
    read_pages(path, &mut input, &header, &first)?;
    let planned = match header.moves_files {
        false => Planned { staged: first, moves: None },
        true => {
            let staged = Overlay::with_spill(device, header.page_bytes, spill.clone());
            let steps = moved::read(path, &mut input, &header, (&first, &staged), spill)?;
            Planned { staged, moves: Some(Moves { first, batches: vec![steps] }) }
        }
    };
    let sum = input.hasher.finish128().as_bytes();
    let mut end = [0; 24];
    input.inner.read_exact(&mut end).map_err(failed)?;
    if end[..16] != sum || end[16..] != END {
        return Err(damaged(path, "its checksum is wrong"));
    }
    if input.inner.read(&mut end).map_err(failed)? != 0 {
        return Err(damaged(path, "it has trailing bytes"));
    }
    Ok((header, planned))
}

/// Reads the pages, compares their old content, and stages the new one.
fn read_pages<R: Read>(
    path: &Path,
    input: &mut Hashed<R>,
    header: &PlanHeader,
    staged: &Overlay<&dyn ReadBlocks>,
) -> Result<(), PlanFileError> {
    let failed = |source: io::Error| of_read(path, source);
    let (page_bytes, device) = (u64::from(header.page_bytes), staged.base());
    let (mut next, mut old, mut new) = (0, Vec::new(), Vec::new());
    for _ in 0..header.pages {
        let mut record = [0; RECORD_BYTES];
        input.read_exact(&mut record).map_err(failed)?;
        let (offset, len, flags) = (u64_at(&record, 0), u32_at(&record, 8), u32_at(&record, 12));
        let whole = page_bytes.min(header.size_bytes.saturating_sub(offset));
        if offset < next
            || !offset.is_multiple_of(page_bytes)
            || u64::from(len) != whole
            || len == 0
        {
            return Err(damaged(path, "one of its pages is out of order"));
        }
        // At most the size of the device, so within u64.
        next = offset + whole;
        // At most a page.
        old.resize(whole as usize, 0);
        new.resize(whole as usize, 0);
        let is_same = flags & SAME != 0;
        if !is_same {
            input.read_exact(&mut new).map_err(failed)?;
        }
        if flags & UNREADABLE == 0 {
            device.read_at(offset, &mut old).map_err(PlanFileError::Stage)?;
            if hash(&old) != sixteen(&record, 16) {
                return Err(changed(format!("the block at byte {offset} differs")));
            }
        }
        if !is_same {
            staged.write_at(offset, &new).map_err(PlanFileError::Stage)?;
        }
    }
    Ok(())
}

fn of_read(path: &Path, source: io::Error) -> PlanFileError {
    match source.kind() {
        io::ErrorKind::UnexpectedEof => damaged(path, "it is truncated"),
        _ => PlanFileError::File { path: path.to_owned(), source },
    }
}

fn damaged(path: &Path, what: &'static str) -> PlanFileError {
    PlanFileError::Damaged { path: path.to_owned(), what }
}

fn changed(what: String) -> PlanFileError {
    PlanFileError::Changed { what }
}
