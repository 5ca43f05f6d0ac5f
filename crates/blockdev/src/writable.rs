//! A regular file or block device that may be written: for building images, and for repair.
//!
//! Kept apart from [`crate::FileDevice`], so that what only reads has no code that could write.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::holes::is_hole_now;
use crate::open::{OpenError, open_seekable};
use crate::{ReadBlocks, WriteBlocks, within};

/// A regular file or block device, opened for reading and writing. Its size never changes.
#[derive(Debug)]
pub struct WritableFile {
    file: File,
    size_bytes: u64,
    has_holes: bool,
}

impl WritableFile {
    /// Opens what is at `path`, shared with others: for images.
    ///
    /// # Errors
    /// [`OpenError`] says which of the usual reasons it was.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::open_with(path, OpenOptions::new().read(true).write(true))
    }

    /// Opens what is at `path`; a block device is claimed, so that it can neither be mounted nor
    /// be claimed by another program until this is dropped (`O_EXCL`; without effect on files).
    ///
    /// # Errors
    /// [`OpenError::Busy`] if it is mounted or claimed already, or another of the usual reasons.
    pub fn open_exclusive(path: &Path) -> Result<Self, OpenError> {
        // Linux: without O_CREAT, O_EXCL claims a block device. The bits fit, being flags of open.
        let flags = OFlags::EXCL.bits().cast_signed();
        Self::open_with(path, OpenOptions::new().read(true).write(true).custom_flags(flags))
    }

    /// Makes a new sparse image of `size_bytes`, all zeroes.
    ///
    /// # Errors
    /// If something is at `path` already, or it cannot be made.
    pub fn create(path: &Path, size_bytes: u64) -> Result<Self, OpenError> {
        let wrap = |source| OpenError::new(path, source);
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).open(path).map_err(wrap)?;
        file.set_len(size_bytes).map_err(wrap)?;
        Ok(Self { file, size_bytes, has_holes: true })
    }

    fn open_with(path: &Path, how: &OpenOptions) -> Result<Self, OpenError> {
        let (mut file, metadata) = open_seekable(path, how)?;
        let size_bytes =
            file.seek(SeekFrom::End(0)).map_err(|source| OpenError::new(path, source))?;
        Ok(Self { file, size_bytes, has_holes: !metadata.file_type().is_block_device() })
    }
}

impl ReadBlocks for WritableFile {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        within(self.size_bytes, offset_bytes, into.len())?;
        self.file.read_exact_at(into, offset_bytes)
    }

    /// Asks the system each time: what is remembered could be filled by the next write.
    fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        self.has_holes && is_hole_now(&self.file, self.size_bytes, offset_bytes, len_bytes)
    }
}

impl WriteBlocks for WritableFile {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        within(self.size_bytes, offset_bytes, from.len())?;
        self.file.write_all_at(from, offset_bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(bytes: &[u8]) -> WritableFile {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let device = WritableFile::create(&path, bytes.len() as u64).unwrap();
        device.write_at(0, bytes).unwrap();
        device
    }

    crate::device_contract!(writable WritableFile, super::holding);

    #[test]
    fn a_filled_hole_is_no_hole() {
        let device = holding(&[]);
        assert!(!device.is_hole(0, 0));
        let dir = tempfile::tempdir().unwrap();
        let device = WritableFile::create(&dir.path().join("image"), 1 << 20).unwrap();
        let was_hole = device.is_hole(0, 4096);
        device.write_at(0, &[1; 4096]).unwrap();
        assert!(!device.is_hole(0, 4096), "was a hole before: {was_hole}");
    }

    #[test]
    fn create_never_replaces() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(WritableFile::create(file.path(), 1).is_err());
        assert!(WritableFile::open(file.path()).is_ok());
        assert!(WritableFile::open_exclusive(file.path()).is_ok());
    }
}
