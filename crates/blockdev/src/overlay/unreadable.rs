//! Unreadable pages of the base: an overlay can remember them, and refuse to stage over them.

use floe_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use floe_sync::{PoisonError, RwLock};
use std::collections::BTreeSet;
use std::io;

use super::Overlay;
use crate::{ReadBlocks, WriteBlocks};

/// The unit in which a disk reads or fails to read, as far as can be known from outside.
const SECTOR_BYTES: usize = 512;

/// The page of a base that an [`Overlay`] could not read, wrapped in the [`io::Error`] of the
/// operation that needed it: see [`UnreadablePage::of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("block {page} of the device cannot be read")]
pub struct UnreadablePage {
    /// Its number, in pages of the overlay; equals the block number if a page is a block.
    pub page: u64,
    /// Byte of the device at which it begins.
    pub offset_bytes: u64,
}

impl UnreadablePage {
    /// The unreadable page that caused an error; `None` for any other error.
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }
}

/// The known unreadable pages of the base.
#[derive(Debug)]
pub(super) struct BadPages {
    overwrite: bool,
    /// Number of pages, so that reads of an intact base take no lock.
    count: AtomicUsize,
    pages: RwLock<BTreeSet<u64>>,
    /// A range was taken for zeroes because the base reports it as a hole.
    believed_hole: AtomicBool,
    /// Holes are read instead.
    reads_holes: AtomicBool,
}

impl BadPages {
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
    /// The same overlay, which from now on remembers each page of the base that cannot be read. A
    /// page that failed once fails immediately afterwards, because reading it again may damage a
    /// dying disk further. Unless `overwrite` is set, staging over such a page is refused, and
    /// staging over any page reads it first.
    #[must_use]
    pub fn protecting(mut self, overwrite: bool) -> Self {
        let (count, pages) = (AtomicUsize::new(0), RwLock::new(BTreeSet::new()));
        let (believed_hole, reads_holes) = (AtomicBool::new(false), AtomicBool::new(false));
        self.bad_pages = Some(BadPages { overwrite, count, pages, believed_hole, reads_holes });
        self
    }

    /// Whether staging over pages that cannot be read is refused.
    pub fn protects(&self) -> bool {
        self.bad_pages.as_ref().is_some_and(|bad_pages| !bad_pages.overwrite)
    }

    /// The offset of each page of the base that could not be read so far: ascending, whether it was
    /// staged over or not. Empty unless the overlay is [protecting](Overlay::protecting).
    pub fn unreadable_offsets(&self) -> Vec<u64> {
        let Some(bad_pages) = &self.bad_pages else { return Vec::new() };
        let pages = bad_pages.pages.read().unwrap_or_else(PoisonError::into_inner);
        pages.iter().map(|page| page * self.page_bytes).collect()
    }

    /// From now on, reads ranges that the base reports as holes instead of taking them for zeroes.
    /// Returns whether any hole was taken for zeroes before; `false` for an overlay that is not
    /// [protecting](Overlay::protecting).
    pub fn read_holes(&self) -> bool {
        self.bad_pages.as_ref().is_some_and(|bad_pages| {
            !bad_pages.reads_holes.swap(true, Ordering::Relaxed)
                && bad_pages.believed_hole.load(Ordering::Relaxed)
        })
    }

    pub(super) fn believes_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        let Some(bad_pages) = &self.bad_pages else {
            return self.base.is_hole(offset_bytes, len_bytes);
        };
        let is_hole = !bad_pages.reads_holes.load(Ordering::Relaxed)
            && self.base.is_hole(offset_bytes, len_bytes);
        if is_hole {
            bad_pages.believed_hole.store(true, Ordering::Relaxed);
        }
        is_hole
    }

    /// If the page at `offset_bytes` cannot be read and may be overwritten, stages its readable
    /// sectors, with zeroes in place of the others. A page that can be read is unchanged.
    ///
    /// # Errors
    /// If nothing can be staged.
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
        let Some(bad_pages) = self.bad_pages.as_ref().filter(|_| !into.is_empty()) else {
            return self.base.read_at(offset_bytes, into);
        };
        let first = offset_bytes / self.page_bytes;
        let last = offset_bytes.saturating_add(into.len() as u64 - 1) / self.page_bytes;
        if let Some(page) = bad_pages.first_known(first, last) {
            return Err(self.unreadable(page));
        }
        match self.base.read_at(offset_bytes, into) {
            Ok(()) => Ok(()),
            // Past the end there is nothing to protect.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(error),
            Err(_) => self.look_closer(bad_pages, first, last, offset_bytes, into),
        }
    }

    /// Finds the unreadable pages of a failed read. If all can be read now, repeats the read.
    fn look_closer(
        &self,
        bad_pages: &BadPages,
        first: u64,
        last: u64,
        offset_bytes: u64,
        into: &mut [u8],
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        for page in first..=last {
            bytes.resize(self.page_len(page), 0);
            if self.base.read_at(page * self.page_bytes, &mut bytes).is_err() {
                bad_pages.remember(page);
            }
        }
        match bad_pages.first_known(first, last) {
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
        // As with any other failure, pages staged before the unreadable one stay.
        assert_eq!(page_of(overlay.write_at(1 << 10, &[9; 3072])), 2);
        assert_eq!(overlay.staged_offsets(), [1 << 10]);
        overlay.stage_readable_sectors(2 << 10).unwrap();
        assert_eq!(overlay.staged_offsets(), [1 << 10], "the unreadable page is not staged");
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
        // A read past the end is not an unreadable page.
        let error = overlay.read_at(8 << 10, &mut bytes[..1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(overlay.unreadable_offsets(), [2 << 10]);
    }

    #[test]
    fn by_permission_it_is_staged_over_as_a_whole() {
        let overlay = Overlay::new(bad(&[2, 3]), 1024).protecting(true);
        // The rest of the page would be invented.
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
