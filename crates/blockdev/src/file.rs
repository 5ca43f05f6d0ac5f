//! A regular file or block device, read with positioned reads.

use floe_sync::OnceLock;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use rustix::fs::{Advice, fcntl_getfl, fcntl_setfl};
use rustix::io::{ReadWriteFlags, preadv2};

use crate::direct::DirectReads;
use crate::holes::HoleMap;
use crate::open::{OpenError, open_seekable};
use crate::per_thread::{self, PerThread};
use crate::preserve_cache::PreserveCache;
use crate::read_ahead::{self, ReadAhead};
use crate::{Medium, ReadBlocks, within};

/// Bytes of one hint, at most. Linux silently leaves out what passes its limit of readahead, which is 128 KiB at least unless somebody
/// lowered it.
const HINT_BYTES: u64 = 128 << 10;

/// A regular file or block device, opened for reading only: there is no way from here to a write.
///
/// Each read is a `pread` without a lock, on a descriptor that the calling thread opened for
/// itself: a shared descriptor would make threads contend for its reference count and readahead
/// state. Holes of a sparse file are looked up once and cached ([`ReadBlocks::is_hole`]), on the
/// assumption that nobody fills them while the device is open.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    size_bytes: u64,
    sector_bytes: Option<u32>,
    /// `None` for block devices, which report no holes.
    holes: Option<HoleMap>,
    way: Way,
    /// The per-thread slot whose thread reads `file` itself.
    home: usize,
    /// `file`, opened again by each other thread that reads; `None` if that failed.
    of_threads: PerThread<OnceLock<Option<File>>>,
}

/// How reads of a [`FileDevice`] treat the system's page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Caching {
    /// The usual way: reads use cached pages, leave theirs in the cache, and prefetch through it.
    #[default]
    Shared,
    /// The page cache stays as it was: reads use cached pages, and drop the pages that they bring
    /// in. Before Linux 6.14 they instead drop all pages of the file now and then, including those
    /// of other programs. Nothing is prefetched, because prefetched pages would stay.
    Preserve,
    /// Reads bypass the page cache (`O_DIRECT`). Prefetched bytes go to at most 4 MiB of memory of
    /// this process; dedicated threads read them.
    Direct,
}

impl Caching {
    /// Upper limit of the memory that reads need in this process, besides the buffers they fill.
    pub const fn memory_bytes(self) -> u64 {
        match self {
            Self::Shared | Self::Preserve => 0,
            Self::Direct => read_ahead::MEMORY_BYTES,
        }
    }
}

/// [`Caching`] with its state.
#[derive(Debug)]
enum Way {
    Shared,
    Preserve(PreserveCache),
    Direct(DirectReads, Ahead),
}

/// Prefetches, from the first hint on; `None` if no thread can be started.
type Ahead = OnceLock<Option<ReadAhead>>;

impl FileDevice {
    /// Opens the regular file or block device at `path` for reading.
    ///
    /// # Errors
    /// [`OpenError`] says why.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let (mut file, metadata) = open_seekable(path, OpenOptions::new().read(true))?;
        // The metadata of a block device give size 0; seeking to the end works for both kinds.
        let size_bytes =
            file.seek(SeekFrom::End(0)).map_err(|source| OpenError::new(path, source))?;
        let is_block_device = metadata.file_type().is_block_device();
        let sector_bytes =
            is_block_device.then(|| rustix::fs::ioctl_blksszget(&file).ok()).flatten();
        let holes = (!is_block_device).then(|| HoleMap::new(size_bytes));
        Ok(Self::of(file, size_bytes, sector_bytes, holes))
    }

    /// A device of a regular file that is already open for reading, perhaps one without a name.
    ///
    /// # Errors
    /// The system's error.
    pub fn of_file(mut file: File) -> io::Result<Self> {
        let size_bytes = file.seek(SeekFrom::End(0))?;
        let holes = Some(HoleMap::new(size_bytes));
        Ok(Self::of(file, size_bytes, None, holes))
    }

    fn of(file: File, size_bytes: u64, sector_bytes: Option<u32>, holes: Option<HoleMap>) -> Self {
        let (way, home, of_threads) = (Way::Shared, per_thread::slot(), PerThread::default());
        Self { file, size_bytes, sector_bytes, holes, way, home, of_threads }
    }

    /// Whether this is a block device rather than an image file.
    pub const fn is_block_device(&self) -> bool {
        self.holes.is_none()
    }

    /// Bytes of a logical sector, if this is a block device that reports it. Partition tables count
    /// in these.
    pub const fn sector_bytes(&self) -> Option<u32> {
        self.sector_bytes
    }

    /// Sets how reads treat the page cache from now on.
    ///
    /// # Errors
    /// `Unsupported` if the file system or device does not support it, or the system's error.
    pub(crate) fn with_caching(mut self, caching: Caching) -> io::Result<Self> {
        self.way = match caching {
            Caching::Shared => Way::Shared,
            Caching::Preserve => Way::Preserve(PreserveCache::default()),
            Caching::Direct => Way::Direct(DirectReads::of(&self.file)?, Ahead::new()),
        };
        Ok(self)
    }

    #[cfg(test)]
    pub(crate) const fn preserving(&self) -> Option<&PreserveCache> {
        match &self.way {
            Way::Preserve(cache) => Some(cache),
            Way::Shared | Way::Direct(..) => None,
        }
    }

    /// The calling thread's descriptor.
    fn own(&self) -> &File {
        if per_thread::slot() == self.home {
            return &self.file;
        }
        let opened = self.of_threads.mine().get_or_init(|| again(&self.file).ok());
        opened.as_ref().unwrap_or(&self.file)
    }

    /// Hint: this range will be read soon. The kernel may start reading it now, in the background.
    pub fn will_need(&self, offset_bytes: u64, len_bytes: u64) {
        let end = offset_bytes.saturating_add(len_bytes).min(self.size_bytes);
        let mut at = offset_bytes;
        while at < end {
            let len = HINT_BYTES.min(end - at);
            self.advise(at, len, Advice::WillNeed);
            at += len;
        }
    }

    /// Hint: this range will not be read again, so its cached pages may be dropped. 0 bytes mean
    /// "to the end". Keeps a check of a huge device from evicting the cached pages of all other
    /// programs.
    pub fn forget(&self, offset_bytes: u64, len_bytes: u64) {
        self.advise(offset_bytes, len_bytes, Advice::DontNeed);
    }

    /// Prefetches a range if reads bypass the cache.
    fn read_ahead(&self, offset_bytes: u64, len_bytes: u64) {
        let end = offset_bytes.saturating_add(len_bytes).min(self.size_bytes);
        if let (Way::Direct(way, ahead), Some(len_bytes)) =
            (&self.way, end.checked_sub(offset_bytes))
        {
            let start = || ReadAhead::of(again(&self.file)?, *way);
            if let Some(ahead) = ahead.get_or_init(|| start().ok()) {
                ahead.announce(offset_bytes, len_bytes);
            }
        }
    }

    fn advise(&self, offset_bytes: u64, len_bytes: u64, advice: Advice) {
        // If the kernel ignores the hint, nothing visible changes.
        let _ = rustix::fs::fadvise(&self.file, offset_bytes, NonZeroU64::new(len_bytes), advice);
    }
}

impl ReadBlocks for FileDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        within(self.size_bytes, offset_bytes, into.len())?;
        let file = self.own();
        match &self.way {
            Way::Shared => file.read_exact_at(into, offset_bytes),
            Way::Preserve(cache) => cache.read_exact_at(file, into, offset_bytes),
            Way::Direct(direct, ahead) => {
                let ahead = ahead.get().and_then(Option::as_ref);
                if ahead.is_some_and(|ahead| ahead.take(offset_bytes, into)) {
                    return Ok(());
                }
                direct.read_exact_at(file, into, offset_bytes)
            }
        }
    }

    fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        // Each thread asks on its own descriptor, because the question moves the file position, for
        // which threads would contend.
        self.holes.as_ref().is_some_and(|holes| holes.covers(self.own(), offset_bytes, len_bytes))
    }

    fn will_need(&self, offset_bytes: u64, len_bytes: u64) {
        match &self.way {
            Way::Shared => Self::will_need(self, offset_bytes, len_bytes),
            // Prefetched pages would stay in the cache.
            Way::Preserve(_) => {}
            Way::Direct(..) => self.read_ahead(offset_bytes, len_bytes),
        }
    }

    fn will_need_in_sequence(&self, offset_bytes: u64, len_bytes: u64) {
        self.read_ahead(offset_bytes, len_bytes);
    }

    fn is_cached(&self, offset_bytes: u64) -> bool {
        // Linux before 4.14, and file systems that cannot tell, return an error: then the answer is
        // "unknown".
        let mut byte = [0];
        let into = &mut [io::IoSliceMut::new(&mut byte)];
        matches!(self.way, Way::Shared)
            && preadv2(self.own(), into, offset_bytes, ReadWriteFlags::NOWAIT) == Ok(1)
    }

    fn caches_ahead(&self) -> bool {
        matches!(self.way, Way::Shared)
    }

    fn medium(&self) -> Medium {
        self.file.metadata().map_or(Medium::Unknown, |metadata| Medium::of(&metadata))
    }
}

/// Opens `file` again with the same flags, through `/proc/self/fd`, because its path may name
/// something else by now.
fn again(file: &File) -> io::Result<File> {
    let own = OpenOptions::new().read(true).open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    fcntl_setfl(&own, fcntl_getfl(file)?)?;
    Ok(own)
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        if let Way::Preserve(cache) = &self.way {
            cache.forget(&self.file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    fn opened(bytes: &[u8]) -> FileDevice {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        FileDevice::open(file.path()).unwrap()
    }

    crate::device_contract!(FileDevice, super::opened);

    #[test]
    fn a_sparse_file_of_16_tib_is_cheap() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let tib = 1u64 << 40;
        // The largest file on ext4 with 4 KiB blocks ends one block below 16 TiB; other file
        // systems allow more.
        let size_bytes = 16 * tib - 8192;
        if let Err(error) = file.as_file().set_len(size_bytes) {
            println!("skipped: no 16 TiB sparse file here: {error}");
            return;
        }
        file.as_file().write_all_at(&[7; 4096], 5 * tib).unwrap();
        let device = FileDevice::open(file.path()).unwrap();
        assert_eq!(device.size_bytes(), size_bytes);
        assert!(!device.is_hole(5 * tib, 4096));
        assert!(!device.is_hole(0, size_bytes));
        assert!(!device.is_hole(size_bytes - 4096, 8192), "a range past the end counted as a hole");
        assert!(!device.is_hole(u64::MAX, u64::MAX));
        if !device.is_hole(0, 4096) {
            println!("skipped: this file system tells of no holes");
            return;
        }
        assert!(device.is_hole(0, 5 * tib));
        assert!(!device.is_hole(0, 5 * tib + 1));
        let started = std::time::Instant::now();
        // One query for each MiB: 16 Mi queries must not become 16 Mi system calls.
        let data_mib = (0..size_bytes >> 20)
            .step_by(16)
            .filter(|mib| !device.is_hole(mib << 20, 1 << 20))
            .count();
        assert_eq!(data_mib, 1);
        assert!(started.elapsed().as_secs() < 20, "took {:?}", started.elapsed());
        assert!(device.holes.as_ref().unwrap().known_runs() <= 4);
    }

    #[test]
    fn what_is_not_in_memory_is_not_at_hand() {
        let file = tempfile::NamedTempFile::new_in(".").unwrap();
        file.as_file().write_all_at(&[7; 65536], 0).unwrap();
        file.as_file().sync_all().unwrap();
        let device = FileDevice::open(file.path()).unwrap();
        device.forget(0, 0);
        device.advise(0, 0, Advice::Random);
        let before = device.is_cached(32768);
        device.read_at(32768, &mut [0; 512]).unwrap();
        if before || !device.is_cached(32768) {
            println!("skipped: this file system keeps all in memory, or cannot tell");
            return;
        }
        assert!(!device.is_cached(0) && !device.is_cached(61440));
        assert!(!device.is_cached(65536) && !device.is_cached(u64::MAX), "past the end");
        let direct = device.with_caching(Caching::Preserve).unwrap();
        assert!(!direct.is_cached(32768), "a range counted as cached without prefetching");
    }

    #[test]
    fn every_thread_reads_what_was_opened_though_its_path_names_another_file() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, vec![7; 65536]).unwrap();
        for caching in [Caching::Shared, Caching::Preserve, Caching::Direct] {
            std::fs::write(&path, vec![7; 65536]).unwrap();
            let Ok(device) = FileDevice::open(&path).unwrap().with_caching(caching) else {
                println!("skipped: nothing is read past the cache here");
                continue;
            };
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, vec![8; 65536]).unwrap();
            floe_sync::thread::scope(|scope| {
                for thread in 0..8 {
                    let device = &device;
                    scope.spawn(move || {
                        let mut into = vec![0; 4096];
                        device.read_at(thread * 4096, &mut into).unwrap();
                        assert!(into.iter().all(|&byte| byte == 7));
                        assert!(device.read_at(65536, &mut into).is_err());
                    });
                }
            });
            let opened = device.of_threads.all().filter_map(OnceLock::get).collect::<Vec<_>>();
            assert!(!opened.is_empty(), "other threads read");
            let flags = |file| fcntl_getfl(file).unwrap();
            for own in opened.into_iter().flatten() {
                assert_eq!(flags(own), flags(&device.file), "{caching:?}");
                assert_ne!(own.as_raw_fd(), device.file.as_raw_fd());
            }
        }
    }

    #[test]
    fn what_cannot_be_opened_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let open = |name: &str| FileDevice::open(&dir.path().join(name));
        assert!(matches!(open("nothing"), Err(OpenError::NotFound { .. })));
        assert!(matches!(open("."), Err(OpenError::IsDirectory { .. })));
        std::fs::write(dir.path().join("file"), b"x").unwrap();
        assert!(matches!(open("file/below"), Err(OpenError::NotFound { .. })));
        let _socket = UnixListener::bind(dir.path().join("socket")).unwrap();
        assert!(matches!(open("socket"), Err(OpenError::NotSeekable { kind: "socket", .. })));
        let null = FileDevice::open(Path::new("/dev/null"));
        assert!(matches!(null, Err(OpenError::IsCharacterDevice { .. })));
        let made = std::process::Command::new("mkfifo").arg(dir.path().join("pipe")).status();
        if made.is_ok_and(|status| status.success()) {
            // Opening a pipe would wait for a writer forever.
            assert!(matches!(open("pipe"), Err(OpenError::NotSeekable { kind: "pipe", .. })));
        }
        let message = open("nothing").unwrap_err().to_string();
        assert!(message.contains("nothing") && message.contains("no such"), "{message}");
    }

    #[test]
    fn a_file_that_shrinks_while_open_is_an_error_and_no_panic() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(8192).unwrap();
        let device = FileDevice::open(file.path()).unwrap();
        file.as_file().set_len(1024).unwrap();
        let error = device.read_at(4096, &mut [0; 4096]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
