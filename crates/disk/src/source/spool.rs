//! Random access to archives: plain files in place, all others in an unnamed temporary file.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use floe_archive::{Archive, ArchiveError, ArchiveFault, BLOCK_BYTES};
use floe_blockdev::image::{self, ImageError, ImageOptions};
use floe_blockdev::{Caching, FileDevice, ReadBlocks};

use super::SourceError;

/// Formats that are recognised but not unpacked: the first bytes, the program that writes them, and one that unpacks them.
const PACKINGS: [(&[u8], &str, &str); 7] = [
    (b"\xfd7zXZ\0", "xz", "xz"),
    (b"BZh", "bzip2", "bzip2"),
    (b"LZIP", "lzip", "lzip"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4"),
    (b"\x89LZO\0", "lzop", "lzop"),
    (b"\x1f\x9d", "compress", "gzip"),
    (b"\x5d\0\0", "lzma", "xz"),
];

/// An open archive.
pub struct Spooled {
    /// Its path, for messages.
    pub path: PathBuf,
    device: Box<dyn ReadBlocks>,
}

impl Spooled {
    /// Opens an archive; unpacks gzip and zstd into `scratch`, a folder for temporary files.
    ///
    /// # Errors
    /// [`SourceError::Unpack`].
    pub fn open(path: &Path, scratch: &Path) -> Result<Self, SourceError> {
        let file = FileDevice::open(path).map_err(|error| unpack_error(path, error.into()))?;
        Self::of(file, path, scratch)
    }

    /// The error for a fault of the archive: where it begins otherwise than archives do, perhaps how it is packed.
    pub(super) fn fault(&self, source: ArchiveError) -> SourceError {
        let path = self.path.clone();
        let mut head = [0; 6];
        let is_none = source.offset_bytes == 0
            && (matches!(source.fault, ArchiveFault::Checksum) || self.size_bytes() < BLOCK_BYTES);
        let len = head.len().min(self.size_bytes() as usize);
        if is_none && self.read_at(0, &mut head[..len]).is_ok() {
            let known = PACKINGS.iter().find(|(magic, _, _)| head.starts_with(magic));
            if let Some((_, by, program)) = known {
                return SourceError::Packed { path, by, program };
            }
        }
        SourceError::Archive { path, source }
    }

    fn of(file: FileDevice, path: &Path, scratch: &Path) -> Result<Self, SourceError> {
        // No other format is looked for: an archive is not a disk image.
        let packing = image::packing_of(&file);
        let packing =
            packing.map_err(|source| SourceError::Read { path: path.to_owned(), source })?;
        if packing.is_none() {
            return Ok(Self { path: path.to_owned(), device: Box::new(file) });
        }
        let options = ImageOptions {
            format: packing,
            scratch: scratch.to_owned(),
            caching: Caching::Shared,
            before_unpacking: &|_| {},
        };
        // The file is already open and may have no path, so any existing path will do.
        let opened = image::open_file(file, scratch, &options);
        let device = opened.map_err(|error| unpack_error(path, error))?.device;
        Ok(Self { path: path.to_owned(), device })
    }
}

/// Copies all of standard input (or another stream) to an unnamed file in `scratch`, and opens
/// that.
///
/// # Errors
/// [`SourceError::Read`] if it cannot be read or stored, [`SourceError::Unpack`].
pub fn standard_input(input: &mut dyn Read, scratch: &Path) -> Result<Spooled, SourceError> {
    let path = Path::new("standard input");
    let file = keep(input, scratch)
        .map_err(|source| SourceError::Read { path: path.to_owned(), source })?;
    Spooled::of(file, path, scratch)
}

fn keep(input: &mut dyn Read, scratch: &Path) -> io::Result<FileDevice> {
    let mut file = tempfile::tempfile_in(scratch)?;
    io::copy(input, &mut file)?;
    FileDevice::of_file(file)
}

impl Archive for Spooled {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.device.read_at(offset_bytes, into)
    }
}

fn unpack_error(path: &Path, source: ImageError) -> SourceError {
    SourceError::Unpack { path: path.to_owned(), source }
}
