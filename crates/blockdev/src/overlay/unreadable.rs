//! Pages of the base that cannot be read: an overlay can remember them, and refuse to stage over them.

use floe_sync::atomic::{AtomicUsize, Ordering};
use floe_sync::{PoisonError, RwLock};
use std::collections::BTreeSet;
use std::io;

use super::Overlay;
use crate::{ReadBlocks, WriteBlocks};

/// Bytes that a disk reads or fails to read at once, as far as can be known from outside.
const SECTOR_BYTES: usize = 512;

/// The page of a base that an [`Overlay`] could not read. It is inside the [`io::Error`] of whatever
/// needed it: see [`UnreadablePage::of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("block {page} of the device cannot be read")]
pub struct UnreadablePage {
    /// Its number, counted in pages of the overlay: that of the block, where a page is a block.
    pub page: u64,
    /// Byte of the device at which it begins.
    pub offset_bytes: u64,
}

impl UnreadablePage {
    /// The page that an error is about; `None` if it is about anything else.
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }
}

/// What an overlay knows of unreadable pages of its base.
#[derive(Debug)]
pub(super) struct Minder {
    overwrite: bool,
    /// So that reads of a sound base take no lock.
    count: AtomicUsize,
    pages: RwLock<BTreeSet<u64>>,
}

impl Minder {
    fn first_known(&self, first: u64, last: u64) -> Option<u64> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let pages = self.pages.read().unwrap_or_else(PoisonError::into_inner);
        pages.range(first..=last).next().copied()
    }

    fn remember(&self, page: u64) {
        let mut pages = self.pages.write().unwrap_or_else(PoisonError::into_inner);
        pages.insert(page);
        self.count.store(pages.len(), Ordering::Release);
    }
}

impl<D: ReadBlocks> Overlay<D> {
    /// The same overlay, which from now on remembers each page of the base that cannot be read: a page
    /// that failed once fails at once afterwards, as reading a dying disk again may cost what is left of
    /// it. Unless `overwrite` says so, nothing can be staged over such a page, and over no page without
    /// reading it once.
    #[must_use]
    pub fn protecting(mut self, overwrite: bool) -> Self {
        let (count, pages) = (AtomicUsize::new(0), RwLock::new(BTreeSet::new()));
        self.minder = Some(Minder { overwrite, count, pages });
        self
    }

    /// Whether staging over pages that cannot be read is refused.
    pub fn protects(&self) -> bool {
        self.minder.as_ref().is_some_and(|minder| !minder.overwrite)
    }

    /// Pages of the base that could not be read so far, as bytes of the device at which they begin:
    /// ascending, whether something was staged over them or not. Empty unless they are
    /// [remembered](Overlay::protecting).
    pub fn unreadable_offsets(&self) -> Vec<u64> {
        let Some(minder) = &self.minder else { return Vec::new() };
        let pages = minder.pages.read().unwrap_or_else(PoisonError::into_inner);
        pages.iter().map(|page| page * self.page_bytes).collect()
    }

    /// Gives the page with `offset_bytes` bytes of its own if it cannot be read and may be overwritten:
    /// those of the sectors that can be read, and zeroes. A page that can be read stays as it is.
    ///
    /// # Errors
    /// That nothing can be staged.
    pub fn stage_readable_sectors(&self, offset_bytes: u64) -> io::Result<()> {
        let page = offset_bytes / self.page_bytes;
        let mut bytes = vec![0; self.page_len(page)];
        let start = page * self.page_bytes;
        if self.protects() || self.read_at(start, &mut bytes).is_ok() {
            return Ok(());
        }
        for (at, sector) in (start..).step_by(SECTOR_BYTES).zip(bytes.chunks_mut(SECTOR_BYTES)) {
            if self.base.read_at(at, sector).is_err() {
                sector.fill(0);
            }
        }
        self.write_at(start, &bytes)
    }

    /// Reads from the base.
    pub(super) fn read_base(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        let Some(minder) = self.minder.as_ref().filter(|_| !into.is_empty()) else {
            return self.base.read_at(offset_bytes, into);
        };
        let first = offset_bytes / self.page_bytes;
        let last = offset_bytes.saturating_add(into.len() as u64 - 1) / self.page_bytes;
        if let Some(page) = minder.first_known(first, last) {
            return Err(self.unreadable(page));
        }
        match self.base.read_at(offset_bytes, into) {
            Ok(()) => Ok(()),
            // Past the end there is nothing that could come back.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(error),
            Err(_) => self.look_closer(minder, first, last, offset_bytes, into),
        }
    }

    /// Finds the pages for which a read failed; if there are none any more, it is made again.
    fn look_closer(
        &self,
        minder: &Minder,
        first: u64,
        last: u64,
        offset_bytes: u64,
        into: &mut [u8],
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        for page in first..=last {
            bytes.resize(self.page_len(page), 0);
            if self.base.read_at(page * self.page_bytes, &mut bytes).is_err() {
                minder.remember(page);
            }
        }
        match minder.first_known(first, last) {
            Some(page) => Err(self.unreadable(page)),
            None => self.base.read_at(offset_bytes, into),
        }
    }

    fn unreadable(&self, page: u64) -> io::Error {
        let offset_bytes = page * self.page_bytes;
        io::Error::other(UnreadablePage { page, offset_bytes })
    }
}

#[cfg(test)]
mod tests {
    use floe_format::BlockNr;

    use super::*;
    use crate::{Counted, Fault, Faulty, MemDevice};

    crate::device_contract!(writable Overlay, |bytes: &[u8]| {
        super::Overlay::new(crate::MemDevice::new(bytes.to_vec()), 1024).protecting(false)
    });

    fn bad(blocks: &[u64]) -> Counted<Faulty<MemDevice>> {
        let faults = blocks.iter().map(|&block| (BlockNr(block), Fault::Unreadable));
        Counted::new(Faulty::new(MemDevice::new(vec![1; 8 << 10]), 1024, faults))
    }

    fn page_of<T: std::fmt::Debug>(result: io::Result<T>) -> u64 {
        UnreadablePage::of(&result.unwrap_err()).unwrap().page
    }

    #[test]
    fn what_cannot_be_read_cannot_be_staged_over() {
        let overlay = Overlay::new(bad(&[2, 5]), 1024).protecting(false);
        assert!(overlay.protects() && overlay.unreadable_offsets().is_empty());
        // Whole pages, parts of pages, and pages that read from elsewhere.
        assert_eq!(page_of(overlay.write_at(2 << 10, &[9; 1024])), 2);
        assert_eq!(page_of(overlay.write_at(2100, &[9; 10])), 2);
        assert_eq!(page_of(overlay.stage_copy(5 << 10, 0)), 5);
        assert_eq!(page_of(overlay.stage_copy(0, 5 << 10)), 5);
        assert!(overlay.is_empty());
        assert_eq!(overlay.unreadable_offsets(), [2 << 10, 5 << 10]);
        // What was staged before the bad page stays, as with any other failure.
        assert_eq!(page_of(overlay.write_at(1 << 10, &[9; 3072])), 2);
        assert_eq!(overlay.staged_offsets(), [1 << 10]);
        overlay.stage_readable_sectors(2 << 10).unwrap();
        assert_eq!(overlay.staged_offsets(), [1 << 10], "it is protected");
    }

    #[test]
    fn a_page_that_failed_once_is_not_read_again() {
        let overlay = Overlay::new(bad(&[2]), 1024).protecting(false);
        let mut bytes = vec![0; 8 << 10];
        assert_eq!(page_of(overlay.read_at(0, &mut bytes)), 2);
        let reads = overlay.base().counts().reads;
        assert_eq!(page_of(overlay.read_at(2 << 10, &mut bytes[..1])), 2);
        assert_eq!(page_of(overlay.write_at(2 << 10, &[0; 1024])), 2);
        assert_eq!(overlay.base().counts().reads, reads);
        overlay.read_at(3 << 10, &mut bytes[..1024]).unwrap();
        // Past the end nothing is unreadable.
        let error = overlay.read_at(8 << 10, &mut bytes[..1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(overlay.unreadable_offsets(), [2 << 10]);
    }

    #[test]
    fn by_permission_it_is_staged_over_as_a_whole() {
        let overlay = Overlay::new(bad(&[2, 3]), 1024).protecting(true);
        // The rest of the page would be made up.
        assert_eq!(page_of(overlay.write_at(2100, &[9; 10])), 2);
        overlay.write_at(2 << 10, &[9; 1024]).unwrap();
        let mut bytes = [0; 1024];
        overlay.read_at(2 << 10, &mut bytes).unwrap();
        assert_eq!(bytes, [9; 1024]);
        assert_eq!(overlay.unreadable_offsets(), [2 << 10]);
    }

    #[test]
    fn sectors_that_can_be_read_are_kept() {
        let faults = [(BlockNr(5), Fault::Unreadable)];
        let device = Faulty::new(MemDevice::new(vec![7; 8 << 10]), 512, faults);
        let overlay = Overlay::new(device, 1024).protecting(true);
        overlay.stage_readable_sectors(2100).unwrap();
        overlay.stage_readable_sectors(0).unwrap();
        assert_eq!(overlay.staged_offsets(), [2 << 10]);
        let mut bytes = [0; 1024];
        overlay.read_at(2 << 10, &mut bytes).unwrap();
        assert!(bytes[..512].iter().all(|&byte| byte == 7));
        assert!(bytes[512..].iter().all(|&byte| byte == 0));
    }
}
