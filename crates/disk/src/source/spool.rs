//! Random access to archives: plain files in place, all others in an unnamed temporary file.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use floe_archive::Archive;
use floe_blockdev::image::{self, Format, ImageError, ImageOptions};
use floe_blockdev::{Caching, FileDevice, ReadBlocks};

use super::SourceError;

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

    fn of(file: FileDevice, path: &Path, scratch: &Path) -> Result<Self, SourceError> {
        let mut magic = [0; 4];
        let is_long = file.size_bytes() >= 4;
        if is_long {
            file.read_at(0, &mut magic)
                .map_err(|source| SourceError::Read { path: path.to_owned(), source })?;
        }
        let format = match magic {
            [0x1f, 0x8b, ..] => Format::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd] => Format::Zstd,
            // No other format is detected: an archive is not a disk image.
            _ => return Ok(Self { path: path.to_owned(), device: Box::new(file) }),
        };
        let options = ImageOptions {
            format: Some(format),
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
