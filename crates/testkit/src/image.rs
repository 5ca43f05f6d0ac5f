//! A private copy of an image in a sparse file of its own.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use floe_blockdev::{Overlay, ReadBlocks, WriteBlocks};
use tempfile::TempDir;

/// Bytes of the pieces in which contents are kept; a multiple of every page size that matters.
const PIECE_BYTES: usize = 4096;

/// The contents of an image without its holes; cheap to clone.
#[derive(Clone, Debug)]
pub struct Contents {
    size_bytes: u64,
    pieces: Arc<Vec<(u64, [u8; PIECE_BYTES])>>,
}

impl Contents {
    /// Reads an image file and forgets pieces that are zero throughout.
    ///
    /// # Errors
    /// What the system said.
    pub fn read(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
        let size_bytes = file.metadata()?.len();
        let mut pieces = Vec::new();
        let mut piece = [0; PIECE_BYTES];
        for offset in (0..size_bytes).step_by(PIECE_BYTES) {
            piece.fill(0);
            let wanted = PIECE_BYTES.min((size_bytes - offset) as usize);
            file.read_exact_at(&mut piece[..wanted], offset)?;
            if piece.iter().any(|&byte| byte != 0) {
                pieces.push((offset, piece));
            }
        }
        Ok(Self { size_bytes, pieces: Arc::new(pieces) })
    }

    /// Bytes of the image.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Whether two contents are the same bytes.
    pub fn same_as(&self, other: &Self) -> bool {
        self.size_bytes == other.size_bytes && self.pieces == other.pieces
    }

    /// Offsets of pieces (of 4 KiB) that differ, for a message.
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

    /// A new image with these contents, in a file of its own that goes when the image goes.
    ///
    /// # Errors
    /// No space or no temporary folder.
    pub fn to_image(&self) -> Result<Image> {
        let image = Image::empty(self.size_bytes)?;
        self.write_over(&image)?;
        Ok(image)
    }

    /// Writes every piece that is not zero throughout over an image of the same size.
    ///
    /// # Errors
    /// What the system said.
    pub fn write_over(&self, image: &Image) -> Result<()> {
        self.write_at(image, 0)
    }

    /// The same at byte `start` of an image that has room for it.
    ///
    /// # Errors
    /// What the system said.
    pub fn write_at(&self, image: &Image, start: u64) -> Result<()> {
        for (offset, piece) in self.pieces.iter() {
            let wanted = PIECE_BYTES.min((self.size_bytes - offset) as usize);
            image.write(start + offset, &piece[..wanted])?;
        }
        Ok(())
    }
}

/// An image file that can be read and written at any byte. Its folder is removed with it.
#[derive(Debug)]
pub struct Image {
    file: File,
    path: PathBuf,
    size_bytes: u64,
    /// Kept for its `Drop`; `None` for an image that belongs to someone else.
    folder: Option<TempDir>,
}

impl Image {
    /// A new image that is one hole.
    ///
    /// # Errors
    /// No temporary folder.
    pub fn empty(size_bytes: u64) -> Result<Self> {
        let folder = crate::tool::scratch("floe-testkit-")?;
        let path = folder.path().join("image");
        File::create(&path)?.set_len(size_bytes)?;
        let mut image = Self::open(&path)?;
        image.folder = Some(folder);
        Ok(image)
    }

    /// An image that stays when this value goes.
    ///
    /// # Errors
    /// What the system said.
    pub fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .with_context(|| format!("opening {}", path.display()))?;
        let size_bytes = file.metadata()?.len();
        Ok(Self { file, path: path.to_owned(), size_bytes, folder: None })
    }

    /// Where the image lies.
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
    /// The range passes the end, or what the system said.
    pub fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<()> {
        self.file
            .read_exact_at(into, offset_bytes)
            .with_context(|| format!("reading {} bytes at {offset_bytes}", into.len()))
    }

    /// Stores `from` at `offset_bytes`; never makes the image longer.
    ///
    /// # Errors
    /// The range passes the end, or what the system said.
    pub fn write(&self, offset_bytes: u64, from: &[u8]) -> Result<()> {
        self.write_at(offset_bytes, from)
            .with_context(|| format!("writing {} bytes at {offset_bytes}", from.len()))
    }

    /// Cuts the image (or makes it longer by a hole).
    ///
    /// # Errors
    /// What the system said.
    pub fn set_size(&mut self, size_bytes: u64) -> Result<()> {
        self.file.set_len(size_bytes)?;
        self.size_bytes = size_bytes;
        Ok(())
    }

    /// A copy in a file of its own.
    ///
    /// # Errors
    /// As [`Contents::read`] and [`Contents::to_image`].
    pub fn copy(&self) -> Result<Self> {
        Contents::read(&self.path)?.to_image()
    }

    /// Writes what an overlay holds over this image.
    ///
    /// # Errors
    /// What the system said.
    pub fn write_staged<D: ReadBlocks>(&self, staged: &Overlay<D>) -> Result<()> {
        for range in staged.staged_ranges() {
            let mut bytes = vec![0; usize::try_from(range.end - range.start)?];
            staged.read_at(range.start, &mut bytes)?;
            self.write(range.start, &bytes)?;
        }
        Ok(())
    }

    /// A copy with what an overlay holds.
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
    /// What the system said.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(self.size_bytes)?];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Keeps the file after this value has gone, for a look at it, and says where it lies.
    pub fn keep(mut self) -> PathBuf {
        if let Some(folder) = self.folder.take() {
            // The path is already known; only the folder's removal is called off.
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
