//! Reads that preserve the page cache: pages that others use stay, pages that these reads bring in
//! are dropped.

use floe_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt;

use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// `RWF_DONTCACHE` (Linux 6.14): the kernel drops the pages that this read brings in, and keeps
/// those that were cached before.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// Bytes that may accumulate in the page cache before they are dropped, if the kernel does not know
/// [`DONTCACHE`].
const GATHERED_BYTES: u64 = 64 << 20;

/// The state of one file whose reads preserve the page cache.
#[derive(Debug, Default)]
pub(crate) struct PreserveCache {
    /// The kernel does not know [`DONTCACHE`], or not for this file.
    refused: AtomicBool,
    /// Bytes read since pages were last dropped.
    gathered: AtomicU64,
}

impl PreserveCache {
    /// Like [`FileExt::read_exact_at`].
    pub(crate) fn read_exact_at(
        &self,
        file: &File,
        into: &mut [u8],
        offset_bytes: u64,
    ) -> io::Result<()> {
        let (mut rest, mut at) = (into, offset_bytes);
        while !rest.is_empty() && !self.refused.load(Ordering::Relaxed) {
            match preadv2(file, &mut [IoSliceMut::new(rest)], at, DONTCACHE) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    rest = rest.get_mut(read..).unwrap_or_default();
                    at += read as u64;
                }
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                    self.refused.store(true, Ordering::Relaxed);
                }
                Err(error) => return Err(error.into()),
            }
        }
        if rest.is_empty() {
            return Ok(());
        }
        file.read_exact_at(rest, at)?;
        self.drop_if_many(file, rest.len() as u64);
        Ok(())
    }

    /// Drops the file's pages, including those of other programs, if enough were read.
    fn drop_if_many(&self, file: &File, read_bytes: u64) {
        let before = self.gathered.fetch_add(read_bytes, Ordering::Relaxed);
        if before < GATHERED_BYTES && before + read_bytes >= GATHERED_BYTES {
            self.gathered.store(0, Ordering::Relaxed);
            self.forget(file);
        }
    }

    /// Drops the file's remaining pages.
    pub(crate) fn forget(&self, file: &File) {
        if self.refused.load(Ordering::Relaxed) {
            // A hint: if the kernel ignores it, pages stay cached for a while.
            let _ = fadvise(file, 0, None, Advice::DontNeed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Caching, FileDevice, ReadBlocks};

    /// The number of a file's pages that are cached, if util-linux's `fincore` can tell.
    fn cached_pages(path: &std::path::Path) -> Option<u64> {
        let program = std::process::Command::new("fincore");
        let output = { program }.args(["--noheadings", "--output", "PAGES"]).arg(path).output();
        String::from_utf8(output.ok()?.stdout).ok()?.trim().parse().ok()
    }

    /// A file of 256 pages that are on the disk. Only the first `kept` of them are cached.
    fn file(dir: &tempfile::TempDir, kept: usize) -> std::path::PathBuf {
        let path = dir.path().join("file");
        std::fs::write(&path, vec![7; 256 * 4096]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        fadvise(&file, 0, None, Advice::Random).unwrap();
        (0..kept).for_each(|page| file.read_exact_at(&mut [0; 4096], page as u64 * 4096).unwrap());
        path
    }

    #[test]
    fn what_was_read_goes_and_what_was_there_stays() {
        // On a disk-backed file system: on tmpfs the page cache is the file.
        let dir = tempfile::tempdir_in("/var/tmp").or_else(|_| tempfile::tempdir()).unwrap();
        let path = file(&dir, 16);
        if cached_pages(&path) != Some(16) {
            println!("skipped: fincore is missing, or the cache of this file system is special");
            return;
        }
        for refused in [false, true] {
            let device = FileDevice::open(&path).unwrap().with_caching(Caching::Preserve).unwrap();
            device.preserving().unwrap().refused.store(refused, Ordering::Relaxed);
            let mut bytes = vec![0; 64 << 10];
            for at in (0..256u64 * 4096).step_by(bytes.len()) {
                device.read_at(at, &mut bytes).unwrap();
                assert!(bytes.iter().all(|&byte| byte == 7));
            }
            let refused = device.preserving().unwrap().refused.load(Ordering::Relaxed);
            drop(device);
            // A kernel without `RWF_DONTCACHE` drops the pages of others, too.
            let left = cached_pages(&path).unwrap();
            assert!(if refused { left == 0 } else { (16..24).contains(&left) }, "{left} pages");
        }
    }

    #[test]
    fn reads_past_the_end_fail_either_way() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::open(file(&dir, 0)).unwrap();
        for refused in [false, true] {
            let cache = PreserveCache { refused: refused.into(), gathered: 0.into() };
            let past = cache.read_exact_at(&file, &mut [0; 8192], 255 * 4096);
            assert_eq!(past.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
            cache.read_exact_at(&file, &mut [0; 4096], 255 * 4096).unwrap();
            cache.read_exact_at(&file, &mut [], 1 << 40).unwrap();
        }
    }
}
