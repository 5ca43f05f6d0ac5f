//! Edits staged in memory over a device that stays as it is.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::{ReadBlocks, WriteBlocks, past_the_end, within};

/// A device whose writes stay in memory: the base below is only read.
///
/// Changes are kept by pages of a fixed size, each either as bytes or as the place in the base
/// that it now reads from (40 bytes a page instead of a page: a large journal costs little).
/// While nothing is staged, a read costs one atomic load more than a read of the base.
#[derive(Debug)]
pub struct Overlay<D> {
    base: D,
    page_bytes: u64,
    size_bytes: u64,
    /// Pages in the map, so that reads of an empty overlay take no lock.
    staged: AtomicUsize,
    pages: RwLock<BTreeMap<u64, Page>>,
}

#[derive(Clone, Debug)]
enum Page {
    /// The page itself; the last page of a device may be shorter.
    Bytes(Box<[u8]>),
    /// The page reads as what the base holds from this byte on.
    Copy(u64),
}

/// A part of one page: where it starts on the device, and its length.
struct Part {
    page: u64,
    within_page: u64,
    len: usize,
}

impl<D: ReadBlocks> Overlay<D> {
    /// An overlay that holds nothing yet. `page_bytes` is the unit of staging, best the block size
    /// of the file system; 0 counts as 1024.
    pub fn new(base: D, page_bytes: u32) -> Self {
        let page_bytes = if page_bytes == 0 { 1024 } else { u64::from(page_bytes) };
        let size_bytes = base.size_bytes();
        let (staged, pages) = (AtomicUsize::new(0), RwLock::default());
        Self { base, page_bytes, size_bytes, staged, pages }
    }

    /// The device below, without the edits.
    pub fn base(&self) -> &D {
        &self.base
    }

    /// Gives the device below back and drops the edits.
    pub fn into_base(self) -> D {
        self.base
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Whether nothing is staged.
    pub fn is_empty(&self) -> bool {
        self.staged.load(Ordering::Acquire) == 0
    }

    /// Bytes of the device at which each staged page starts, ascending.
    pub fn staged_offsets(&self) -> Vec<u64> {
        self.read_pages().keys().map(|page| page * self.page_bytes).collect()
    }

    /// Makes the whole page that starts at `offset_bytes` read as what the base holds from
    /// `source_bytes` on. Later changes of the same page go on from there.
    ///
    /// # Errors
    /// `InvalidInput` if `offset_bytes` is not the start of a page, `UnexpectedEof` if either page
    /// passes the end of the device.
    pub fn stage_copy(&self, offset_bytes: u64, source_bytes: u64) -> io::Result<()> {
        if !offset_bytes.is_multiple_of(self.page_bytes) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not the start of a page"));
        }
        let len = self.page_len(offset_bytes / self.page_bytes);
        within(self.size_bytes, offset_bytes, len)?;
        within(self.size_bytes, source_bytes, len)?;
        self.put(offset_bytes / self.page_bytes, Page::Copy(source_bytes));
        Ok(())
    }

    /// Drops all edits.
    pub fn clear(&self) {
        let mut pages = self.write_pages();
        pages.clear();
        self.staged.store(0, Ordering::Release);
    }

    fn put(&self, page: u64, content: Page) {
        let mut pages = self.write_pages();
        pages.insert(page, content);
        self.staged.store(pages.len(), Ordering::Release);
    }

    /// Bytes of a page: less at the end of the device.
    fn page_len(&self, page: u64) -> usize {
        let start = page.saturating_mul(self.page_bytes);
        // At most page_bytes, which came from a u32.
        self.page_bytes.min(self.size_bytes.saturating_sub(start)) as usize
    }

    /// A lock that a panicking thread left behind is taken over: a page is never half changed.
    fn read_pages(&self) -> RwLockReadGuard<'_, BTreeMap<u64, Page>> {
        self.pages.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_pages(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, Page>> {
        self.pages.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The parts of a range that is not empty, page by page.
    fn parts(&self, offset_bytes: u64, len: usize) -> impl Iterator<Item = Part> + use<D> {
        let page_bytes = self.page_bytes;
        let end = offset_bytes + len as u64;
        let mut at = offset_bytes;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (page, within_page) = (at / page_bytes, at % page_bytes);
            let len = (page_bytes - within_page).min(end - at);
            at += len;
            Some(Part { page, within_page, len: len as usize })
        })
    }

    fn read_part(&self, content: &Page, within_page: u64, into: &mut [u8]) -> io::Result<()> {
        match content {
            Page::Bytes(bytes) => {
                let start = usize::try_from(within_page).map_err(|_| past_the_end())?;
                let from = bytes.get(start..start + into.len()).ok_or_else(past_the_end)?;
                into.copy_from_slice(from);
                Ok(())
            }
            Page::Copy(source) => self.base.read_at(source + within_page, into),
        }
    }

    /// Whether any page of a range that is not empty is staged.
    fn touches(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        let last = offset_bytes.saturating_add(len_bytes - 1) / self.page_bytes;
        self.read_pages().range(offset_bytes / self.page_bytes..=last).next().is_some()
    }
}

impl<D: ReadBlocks> ReadBlocks for Overlay<D> {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        if self.is_empty() || into.is_empty() {
            return self.base.read_at(offset_bytes, into);
        }
        within(self.size_bytes, offset_bytes, into.len())?;
        let pages = self.read_pages();
        let (first, end) = (offset_bytes / self.page_bytes, offset_bytes + into.len() as u64);
        let mut staged = pages.range(first..=(end - 1) / self.page_bytes).peekable();
        let mut at = offset_bytes;
        // Between staged pages the base is read in one piece.
        while at < end {
            let from = (at - offset_bytes) as usize;
            let next = staged.peek().map_or(end, |(page, _)| (**page * self.page_bytes).max(at));
            if next > at {
                let upto = next.min(end);
                self.base.read_at(at, &mut into[from..(upto - offset_bytes) as usize])?;
                at = upto;
            } else if let Some((page, content)) = staged.next() {
                let start = page * self.page_bytes;
                let upto = start.saturating_add(self.page_bytes).min(end);
                let target = &mut into[from..(upto - offset_bytes) as usize];
                self.read_part(content, at - start, target)?;
                at = upto;
            }
        }
        Ok(())
    }

    fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        let staged = len_bytes != 0 && !self.is_empty() && self.touches(offset_bytes, len_bytes);
        !staged && self.base.is_hole(offset_bytes, len_bytes)
    }
}

impl<D: ReadBlocks> WriteBlocks for Overlay<D> {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        within(self.size_bytes, offset_bytes, from.len())?;
        let mut rest = from;
        let mut pages = self.write_pages();
        for part in self.parts(offset_bytes, from.len()) {
            let (bytes, behind) = rest.split_at(part.len);
            rest = behind;
            let page_len = self.page_len(part.page);
            let mut page = match pages.remove(&part.page) {
                Some(Page::Bytes(page)) => page,
                other if part.len < page_len => {
                    let mut page = vec![0; page_len].into_boxed_slice();
                    let source = match other {
                        Some(Page::Copy(source)) => source,
                        _ => part.page * self.page_bytes,
                    };
                    let read = self.base.read_at(source, &mut page);
                    if let Err(error) = read {
                        // What was there before must not be lost because of the failure.
                        other.map(|content| pages.insert(part.page, content));
                        return Err(error);
                    }
                    page
                }
                _ => vec![0; page_len].into_boxed_slice(),
            };
            // Less than page_bytes, which came from a u32.
            let start = part.within_page as usize;
            page[start..start + part.len].copy_from_slice(bytes);
            pages.insert(part.page, Page::Bytes(page));
        }
        self.staged.store(pages.len(), Ordering::Release);
        Ok(())
    }

    /// Does nothing: the edits live in memory.
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::MemDevice;

    crate::device_contract!(writable Overlay, |bytes: &[u8]| {
        super::Overlay::new(crate::MemDevice::new(bytes.to_vec()), 1024)
    });

    mod with_pages_staged {
        use crate::WriteBlocks;

        crate::device_contract!(Overlay, |bytes: &[u8]| {
            let overlay =
                crate::overlay::Overlay::new(crate::MemDevice::new(vec![0x5a; bytes.len()]), 1024);
            overlay.write_at(0, bytes).unwrap();
            overlay
        });
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write { at: u64, len: usize, byte: u8 },
        Copy { page: u64, source: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..9000u64, 1..3000usize, any::<u8>()).prop_map(|(at, len, byte)| Step::Write {
                at,
                len,
                byte
            }),
            (0..8u64, 0..8000u64).prop_map(|(page, source)| Step::Copy { page, source }),
        ]
    }

    proptest! {
        /// Any edits read back as they would from a plain device, and the base never changes.
        #[test]
        fn edits_read_back(steps in proptest::collection::vec(step(), 1..12), at in 0..9000usize) {
            let base: Vec<u8> = (0..9001u32).map(|index| ((index * 7) >> 3) as u8).collect();
            let overlay = Overlay::new(MemDevice::new(base.clone()), 1024);
            let mut model = base.clone();
            for step in steps {
                match step {
                    Step::Write { at, len, byte } => {
                        let len = len.min(9001 - at as usize);
                        overlay.write_at(at, &vec![byte; len]).unwrap();
                        model[at as usize..][..len].fill(byte);
                    }
                    Step::Copy { page, source } if source + 1024 <= 9001 => {
                        overlay.stage_copy(page * 1024, source).unwrap();
                        let copy = base[source as usize..][..1024].to_vec();
                        model[page as usize * 1024..][..1024].copy_from_slice(&copy);
                    }
                    Step::Copy { page, source } => {
                        prop_assert!(overlay.stage_copy(page * 1024, source).is_err());
                    }
                }
            }
            let mut read = vec![0; 9001 - at];
            overlay.read_at(at as u64, &mut read).unwrap();
            prop_assert!(read == model[at..]);
            prop_assert_eq!(overlay.into_base().to_vec(), base);
        }
    }

    #[test]
    fn a_staged_page_is_no_hole() {
        #[derive(Debug)]
        struct AllHole;
        impl ReadBlocks for AllHole {
            fn size_bytes(&self) -> u64 {
                1 << 40
            }
            fn read_at(&self, _: u64, into: &mut [u8]) -> io::Result<()> {
                into.fill(0);
                Ok(())
            }
            fn is_hole(&self, _: u64, _: u64) -> bool {
                true
            }
        }
        let overlay = Overlay::new(AllHole, 4096);
        assert!(overlay.is_hole(0, 1 << 40));
        overlay.write_at(8192 + 5, &[1]).unwrap();
        assert!(overlay.is_hole(0, 8192));
        assert!(!overlay.is_hole(0, 8193));
        assert!(overlay.is_hole(12288, 4096));
        assert_eq!(overlay.staged_offsets(), [8192]);
        overlay.clear();
        assert!(overlay.is_empty() && overlay.is_hole(0, 1 << 40));
    }
}
