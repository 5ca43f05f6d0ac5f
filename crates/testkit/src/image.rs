//! A private copy of an image in its own sparse file.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use floe_blockdev::{Overlay, ReadBlocks, WriteBlocks};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use tempfile::TempDir;

/// Chunk size in which contents are kept; a multiple of every relevant page size.
const PIECE_BYTES: usize = 4096;

/// The contents of an image without its holes; cheap to clone.
#[derive(Clone, Debug)]
pub struct Contents {
    size_bytes: u64,
    pieces: Arc<Vec<(u64, [u8; PIECE_BYTES])>>,
}

impl Contents {
    /// Reads an image file and drops chunks that are all zero.
    ///
    /// # Errors
    /// An I/O error.
    pub fn read(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
        let size_bytes = file.metadata()?.len();
        let offsets =
            data_runs(&file, size_bytes)?.into_iter().flat_map(|run| run.step_by(PIECE_BYTES));
        Self::gathered(size_bytes, offsets, |at, into| file.read_exact_at(into, at))
    }

    /// The contents of a device.
    ///
    /// # Errors
    /// An I/O error.
    pub fn of(device: &dyn ReadBlocks) -> Result<Self> {
        let size_bytes = device.size_bytes();
        let offsets = (0..size_bytes).step_by(PIECE_BYTES);
        Self::gathered(size_bytes, offsets, |at, into| device.read_at(at, into))
    }

    /// Reads the chunks at these offsets, and drops those that are all zero.
    fn gathered(
        size_bytes: u64,
        offsets: impl Iterator<Item = u64>,
        read_at: impl Fn(u64, &mut [u8]) -> io::Result<()>,
    ) -> Result<Self> {
        let mut pieces = Vec::new();
        let mut piece = [0; PIECE_BYTES];
        for offset in offsets {
            let wanted = PIECE_BYTES.min((size_bytes - offset) as usize);
            piece[wanted..].fill(0);
            read_at(offset, &mut piece[..wanted])?;
            if piece != [0; PIECE_BYTES] {
                pieces.push((offset, piece));
            }
        }
        Ok(Self { size_bytes, pieces: Arc::new(pieces) })
    }

    /// Bytes of the image.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Whether two contents are equal.
    pub fn same_as(&self, other: &Self) -> bool {
        self.size_bytes == other.size_bytes && self.pieces == other.pieces
    }

    /// Offsets of differing 4 KiB chunks, for a message.
    pub fn differences(&self, other: &Self) -> Vec<u64> {
        let mine: std::collections::BTreeMap<_, _> =
            self.pieces.iter().map(|(at, piece)| (*at, piece)).collect();
        let theirs: std::collections::BTreeMap<_, _> =
            other.pieces.iter().map(|(at, piece)| (*at, piece)).collect();
        let mut all: Vec<u64> = mine.keys().chain(theirs.keys()).copied().collect();
        all.sort_unstable();
        all.dedup();
        all.retain(|at| mine.get(at) != theirs.get(at));
        all
    }

    /// A new image with these contents, in its own file, which is removed with the image.
    ///
    /// # Errors
    /// No space, or no temporary folder.
    pub fn to_image(&self) -> Result<Image> {
        let image = Image::empty(self.size_bytes)?;
        self.write_over(&image)?;
        Ok(image)
    }

    /// Writes every nonzero chunk over an image of the same size.
    ///
    /// # Errors
    /// An I/O error.
    pub fn write_over(&self, image: &Image) -> Result<()> {
        self.write_at(image, 0)
    }

    /// The same at byte `start` of an image that is large enough.
    ///
    /// # Errors
    /// An I/O error.
    pub fn write_at(&self, image: &Image, start: u64) -> Result<()> {
        for (offset, piece) in self.pieces.iter() {
            let wanted = PIECE_BYTES.min((self.size_bytes - offset) as usize);
            image.write(start + offset, &piece[..wanted])?;
        }
        Ok(())
    }
}

/// An image file with random access. Its folder is removed with it.
#[derive(Debug)]
pub struct Image {
    file: File,
    path: PathBuf,
    size_bytes: u64,
    /// Kept for its `Drop`; `None` for an image that another owner removes.
    folder: Option<TempDir>,
}

impl Image {
    /// A new image that is a single hole.
    ///
    /// # Errors
    /// No temporary folder can be created.
    pub fn empty(size_bytes: u64) -> Result<Self> {
        let folder = crate::tool::scratch("floe-testkit-")?;
        let path = folder.path().join("image");
        File::create(&path)?.set_len(size_bytes)?;
        let mut image = Self::open(&path)?;
        image.folder = Some(folder);
        Ok(image)
    }

    /// A new image with the contents of a device.
    ///
    /// # Errors
    /// As [`Contents::of`] and [`Contents::to_image`].
    pub fn of(device: &dyn ReadBlocks) -> Result<Self> {
        Contents::of(device)?.to_image()
    }

    /// Opens an image file that outlives this value.
    ///
    /// # Errors
    /// An I/O error.
    pub fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .with_context(|| format!("opening {}", path.display()))?;
        let size_bytes = file.metadata()?.len();
        Ok(Self { file, path: path.to_owned(), size_bytes, folder: None })
    }

    /// Path of the image file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the image.
    pub fn size(&self) -> u64 {
        self.size_bytes
    }

    /// Fills `into` from `offset_bytes` on.
    ///
    /// # Errors
    /// The range exceeds the image, or an I/O error.
    pub fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<()> {
        self.file
            .read_exact_at(into, offset_bytes)
            .with_context(|| format!("reading {} bytes at {offset_bytes}", into.len()))
    }

    /// Stores `from` at `offset_bytes`; never extends the image.
    ///
    /// # Errors
    /// The range exceeds the image, or an I/O error.
    pub fn write(&self, offset_bytes: u64, from: &[u8]) -> Result<()> {
        self.write_at(offset_bytes, from)
            .with_context(|| format!("writing {} bytes at {offset_bytes}", from.len()))
    }

    /// Truncates the image, or extends it by a hole.
    ///
    /// # Errors
    /// An I/O error.
    pub fn set_size(&mut self, size_bytes: u64) -> Result<()> {
        self.file.set_len(size_bytes)?;
        self.size_bytes = size_bytes;
        Ok(())
    }

    /// A copy in its own file.
    ///
    /// # Errors
    /// As [`Contents::read`] and [`Contents::to_image`].
    pub fn copy(&self) -> Result<Self> {
        Contents::read(&self.path)?.to_image()
    }

    /// Writes the staged pages of an overlay over this image.
    ///
    /// # Errors
    /// An I/O error.
    pub fn write_staged<D: ReadBlocks>(&self, staged: &Overlay<D>) -> Result<()> {
        for range in staged.staged_ranges() {
            let mut bytes = vec![0; usize::try_from(range.end - range.start)?];
            staged.read_at(range.start, &mut bytes)?;
            self.write(range.start, &bytes)?;
        }
        Ok(())
    }

    /// A copy with the staged pages of an overlay applied.
    ///
    /// # Errors
    /// As [`Image::copy`] and [`Image::write_staged`].
    pub fn with_staged<D: ReadBlocks>(&self, staged: &Overlay<D>) -> Result<Self> {
        let copy = self.copy()?;
        copy.write_staged(staged)?;
        Ok(copy)
    }

    /// All bytes.
    ///
    /// # Errors
    /// An I/O error.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(self.size_bytes)?];
        for run in data_runs(&self.file, self.size_bytes)? {
            let place = usize::try_from(run.start)?..usize::try_from(run.end)?;
            self.read(run.start, &mut bytes[place])?;
        }
        Ok(bytes)
    }

    /// Keeps the file after this value is dropped, for inspection, and returns its path.
    pub fn keep(mut self) -> PathBuf {
        if let Some(folder) = self.folder.take() {
            // The path is already known; this only prevents the removal of the folder.
            let _ = folder.keep();
        }
        self.path.clone()
    }
}

impl ReadBlocks for Image {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset_bytes)
    }
}

impl WriteBlocks for Image {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        if offset_bytes.saturating_add(from.len() as u64) > self.size_bytes {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "past the end of the image"));
        }
        self.file.write_all_at(from, offset_bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// The runs of a file that are no holes, whole chunks of [`PIECE_BYTES`], in order and apart.
fn data_runs(file: &File, size_bytes: u64) -> Result<Vec<Range<u64>>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    while at < size_bytes {
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error).context("looking for data"),
        };
        let hole = seek(file, SeekFrom::Hole(data)).context("looking for a hole")?;
        at = hole.next_multiple_of(PIECE_BYTES as u64).min(size_bytes);
        runs.push(data - data % PIECE_BYTES as u64..at);
    }
    Ok(runs)
}
