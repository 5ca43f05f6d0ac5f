//! A regular file or block device that may be written: for building images, and for repair.
//!
//! Separate from [`crate::FileDevice`], so that read-only code contains no writes.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;

use floe_sync::{Mutex, PoisonError};
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate, major, minor};
use rustix::io::Errno;

use crate::claim::{Access, Claim};
use crate::holes::is_hole_now;
use crate::open::{OpenError, open_seekable};
use crate::{ReadBlocks, WriteBlocks, past_the_end, send_zeroes, within};

/// Flushes at the same time.
const MOST_FLUSHES: usize = 4;

/// A regular file or block device, opened for reading and writing. Its size changes only by
/// [`grow`](Self::grow).
#[derive(Debug)]
pub struct WritableFile {
    file: File,
    size_bytes: u64,
    has_holes: bool,
    /// The same file opened again, for flushes at the same time: of an error while something is written, the system tells each
    /// opened file once, so two flushes of one could be told by turns.
    again: Mutex<Vec<File>>,
    most_flushes: usize,
    /// Keeps others out until this is dropped.
    _claim: Option<Claim>,
}

impl WritableFile {
    /// Opens the file at `path`, shared with others: for images.
    ///
    /// # Errors
    /// [`OpenError`] says why.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::open_with(path, OpenOptions::new().read(true).write(true))
    }

    /// Opens the file or device at `path` exclusively, until this is dropped: see [`Claim`].
    ///
    /// # Errors
    /// Those of [`Claim::new`], [`OpenError::ReadOnly`], or another [`OpenError`].
    pub fn open_exclusive(path: &Path) -> Result<Self, OpenError> {
        Self::open_exclusive_part(path, 0..u64::MAX)
    }

    /// The same for a range of the device, in bytes from its start. The caller writes no other
    /// bytes, which stay free for others.
    ///
    /// # Errors
    /// Those of [`open_exclusive`](Self::open_exclusive).
    pub fn open_exclusive_part(path: &Path, bytes: Range<u64>) -> Result<Self, OpenError> {
        let device = Self::open(path)?;
        let claim = Claim::new(path, bytes, Access::Writing)?;
        Ok(Self { _claim: Some(claim), ..device })
    }

    /// Extends an image file to `size_bytes`; a longer one stays as it is.
    ///
    /// # Errors
    /// The system's, such as for a block device, which cannot grow.
    pub fn grow(&mut self, size_bytes: u64) -> io::Result<()> {
        if self.size_bytes < size_bytes {
            self.file.set_len(size_bytes)?;
            self.size_bytes = size_bytes;
        }
        Ok(())
    }

    /// Makes a new sparse image of `size_bytes`, all zeroes.
    ///
    /// # Errors
    /// If a file is at `path` already, or none can be created.
    pub fn create(path: &Path, size_bytes: u64) -> Result<Self, OpenError> {
        let wrap = |source| OpenError::new(path, source);
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).open(path).map_err(wrap)?;
        file.set_len(size_bytes).map_err(wrap)?;
        Ok(Self::of(file, size_bytes, true))
    }

    fn open_with(path: &Path, how: &OpenOptions) -> Result<Self, OpenError> {
        let (mut file, metadata) = open_seekable(path, how)?;
        // A write-protected disk, or a read-only loop device, can be opened for writing all the
        // same.
        if is_read_only(&metadata) {
            return Err(OpenError::ReadOnly { path: path.to_owned() });
        }
        let size_bytes =
            file.seek(SeekFrom::End(0)).map_err(|source| OpenError::new(path, source))?;
        let has_holes = !metadata.file_type().is_block_device();
        Ok(Self::of(file, size_bytes, has_holes))
    }

    fn of(file: File, size_bytes: u64, has_holes: bool) -> Self {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let again = || OpenOptions::new().read(true).write(true).open(&path).ok();
        let again: Vec<File> = (1..MOST_FLUSHES).map_while(|_| again()).collect();
        let most_flushes = again.len() + 1;
        Self { file, size_bytes, has_holes, again: Mutex::new(again), most_flushes, _claim: None }
    }
}

/// Whether this is a block device that the kernel reports as read-only.
fn is_read_only(metadata: &Metadata) -> bool {
    let number = metadata.rdev();
    let file = format!("/sys/dev/block/{}:{}/ro", major(number), minor(number));
    metadata.file_type().is_block_device()
        && fs::read_to_string(file).is_ok_and(|text| text.trim() == "1")
}

impl WritableFile {
    /// Zeroes or frees a range; `false` if the file or device cannot do that.
    fn fallocated(&self, how: FallocateFlags, offset: u64, len: u64) -> io::Result<bool> {
        let end = offset.checked_add(len).filter(|end| *end <= self.size_bytes);
        end.ok_or_else(past_the_end)?;
        if len == 0 {
            return Ok(true);
        }
        match fallocate(&self.file, how | FallocateFlags::KEEP_SIZE, offset, len) {
            Ok(()) => Ok(true),
            // A block device answers EINVAL where a range is not of whole sectors.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NODEV) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
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

    /// Asks the system each time, because a cached hole could be filled by the next write.
    fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        self.has_holes && is_hole_now(&self.file, self.size_bytes, offset_bytes, len_bytes)
    }
}

impl WriteBlocks for WritableFile {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        within(self.size_bytes, offset_bytes, from.len())?;
        self.file.write_all_at(from, offset_bytes)
    }

    /// All but times: a file that has its blocks already costs the system below no commit of its own. All that leads to the data, its
    /// size too, is durable all the same.
    fn flush(&self) -> io::Result<()> {
        let again = || self.again.lock().unwrap_or_else(PoisonError::into_inner);
        let own = again().pop();
        let flushed = own.as_ref().unwrap_or(&self.file).sync_data();
        again().extend(own);
        flushed
    }

    fn most_flushes(&self) -> usize {
        self.most_flushes
    }

    fn write_zeroes(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        if self.fallocated(FallocateFlags::ZERO_RANGE, offset_bytes, len_bytes)? {
            return Ok(());
        }
        send_zeroes(self, offset_bytes, len_bytes)
    }

    /// A hole in a file; blocks of a device that can discard are free then, and read as zeroes.
    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<bool> {
        self.fallocated(FallocateFlags::PUNCH_HOLE, offset_bytes, len_bytes)
    }

    fn current_size_bytes(&self) -> io::Result<u64> {
        // Moves the file position, which nothing here uses.
        (&self.file).seek(SeekFrom::End(0))
    }

    fn forget(&self, offset_bytes: u64, len_bytes: u64) {
        // If the kernel ignores the hint, nothing visible changes.
        if let Some(len) = NonZeroU64::new(len_bytes) {
            let _ = fadvise(&self.file, offset_bytes, Some(len), Advice::DontNeed);
        }
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

    #[test]
    fn an_image_has_one_exclusive_owner() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let owner = WritableFile::open_exclusive(file.path()).unwrap();
        let error = WritableFile::open_exclusive(file.path()).expect_err("two owners");
        assert!(matches!(error, OpenError::Locked { .. }), "{error:?}");
        assert!(error.to_string().contains("another"), "{error}");
        // Programs that only read, and image builders, take no lock.
        assert!(WritableFile::open(file.path()).is_ok());
        drop(owner);
        assert!(WritableFile::open_exclusive(file.path()).is_ok());
    }

    #[test]
    fn a_file_that_was_cut_is_noticed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(8192).unwrap();
        let device = WritableFile::open_exclusive(file.path()).unwrap();
        let part = crate::Window::new(&device, 1000, Some(5000)).unwrap();
        for (now, in_part) in [(8192, 5000), (6000, 5000), (5000, 4000), (10, 0)] {
            file.as_file().set_len(now).unwrap();
            assert_eq!(device.current_size_bytes().unwrap(), now);
            assert_eq!(part.current_size_bytes().unwrap(), in_part);
        }
        assert_eq!((device.size_bytes(), part.size_bytes()), (8192, 5000));
    }

    #[test]
    fn what_is_forgotten_is_still_there() {
        let device = holding(&[7; 10_000]);
        device.flush().unwrap();
        device.forget(0, 10_000);
        device.forget(5, 0);
        device.forget(u64::MAX, u64::MAX);
        let mut read = [0; 10_000];
        device.read_at(0, &mut read).unwrap();
        assert_eq!(read, [7; 10_000]);
    }
}
