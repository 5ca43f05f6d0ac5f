//! A regular file or block device, read with positioned reads.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::{ReadBlocks, within};

/// A regular file or block device, opened for reading only.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    size_bytes: u64,
}

impl FileDevice {
    /// Opens `path` for reading.
    ///
    /// # Errors
    /// What the system said: no such file, no permission, not seekable.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        // A block device says 0 in its metadata; its end says the size of both kinds.
        let size_bytes = file.seek(SeekFrom::End(0))?;
        Ok(Self { file, size_bytes })
    }
}

impl ReadBlocks for FileDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        within(self.size_bytes, offset_bytes, into.len())?;
        self.file.read_exact_at(into, offset_bytes)
    }
}
