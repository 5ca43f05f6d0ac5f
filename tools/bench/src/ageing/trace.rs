//! Traces of reads, as they reach a device below a page cache that is empty at first.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use floe_blockdev::{ReadBlocks, Request};

const PAGE: u64 = 4096;
/// Bytes of a request, at most.
const MOST_BYTES: u64 = 1 << 20;

/// A page cache: each page is read from the device once.
#[derive(Debug, Default)]
pub(super) struct PageCache {
    pages: BTreeSet<u64>,
    requests: Vec<Request>,
}

impl PageCache {
    /// Notes a read, or a hint that it comes.
    pub(super) fn read(&mut self, offset: u64, len: u64) {
        for page in offset / PAGE..(offset + len).div_ceil(PAGE) {
            if !self.pages.insert(page) {
                continue;
            }
            match self.requests.last_mut() {
                Some(last)
                    if last.offset_bytes + last.len_bytes == page * PAGE
                        && last.len_bytes < MOST_BYTES =>
                {
                    last.len_bytes += PAGE;
                }
                _ => self.requests.push(Request::read(page * PAGE, PAGE)),
            }
        }
    }

    /// The requests that reached the device; those that follow each other are joined.
    pub(super) fn requests(&self) -> Vec<Request> {
        self.requests.clone()
    }
}

/// A device that writes down what is read.
pub(super) struct Traced<'d>(&'d dyn ReadBlocks, Mutex<PageCache>);

impl<'d> Traced<'d> {
    pub(super) fn new(device: &'d dyn ReadBlocks) -> Self {
        Self(device, Mutex::default())
    }

    fn cache(&self) -> MutexGuard<'_, PageCache> {
        self.1.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn requests(&self) -> Vec<Request> {
        self.cache().requests()
    }
}

impl ReadBlocks for Traced<'_> {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.cache().read(offset_bytes, into.len() as u64);
        self.0.read_at(offset_bytes, into)
    }

    fn will_need(&self, offset_bytes: u64, len_bytes: u64) {
        self.cache().read(offset_bytes, len_bytes);
    }

    fn is_cached(&self, offset_bytes: u64) -> bool {
        self.cache().pages.contains(&(offset_bytes / PAGE))
    }

    fn caches_ahead(&self) -> bool {
        true
    }
}

/// The reads of `e2fsck -fn` on an image, by strace; `None` if one of the programs is missing.
pub(super) fn of_e2fsck(image: &Path) -> Result<Option<Vec<Request>>> {
    let mut command = Command::new("strace");
    command.args(["-qq", "-y", "-e", "trace=pread64,preadv,read,lseek,fadvise64,readahead"]);
    command.args(["e2fsck", "-fn"]).arg(image);
    let Ok(output) = command.output() else { return Ok(None) };
    if output.status.code().is_none_or(|code| code > 7) {
        return Ok(None);
    }
    let name = image.file_name().and_then(|name| name.to_str()).context("the image has no name")?;
    let mut cache = PageCache::default();
    for line in String::from_utf8_lossy(&output.stderr).lines() {
        if let Some((offset, len)) = pread(line, name) {
            cache.read(offset, len);
        }
    }
    Ok(Some(cache.requests()))
}

/// Offset and length of a line such as `pread64(3</x/image>, "..."..., 4096, 8192) = 4096`, or of fadvise64.
fn pread(line: &str, name: &str) -> Option<(u64, u64)> {
    let (call, result) = line.rsplit_once(") = ")?;
    let (call_name, arguments) = call.split_once('(')?;
    if !arguments.contains(&format!("{name}>")) {
        return None;
    }
    let mut last = arguments.rsplit(", ");
    match call_name {
        "pread64" => {
            let offset = last.next()?.parse().ok()?;
            let read: u64 = result.split(' ').next()?.parse().ok()?;
            Some((offset, read))
        }
        "fadvise64" if last.next()? == "POSIX_FADV_WILLNEED" => {
            let len = last.next()?.parse().ok()?;
            Some((last.next()?.parse().ok()?, len))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_strace_are_understood() {
        let line = r#"pread64(3</tmp/a.img>, "\0, x"..., 1024, 8192) = 1024"#;
        assert_eq!(pread(line, "a.img"), Some((8192, 1024)));
        let line = "fadvise64(3</tmp/a.img>, 4096, 12288, POSIX_FADV_WILLNEED) = 0";
        assert_eq!(pread(line, "a.img"), Some((4096, 12288)));
        assert_eq!(pread(r#"pread64(4</lib/x>, "", 10, 0) = 10"#, "a.img"), None);
    }

    #[test]
    fn a_page_is_read_once() {
        let mut cache = PageCache::default();
        cache.read(4000, 200);
        cache.read(8192, 4096);
        cache.read(0, 4096);
        assert_eq!(cache.requests(), [Request::read(0, 12288)]);
    }
}
