//! Stages edits over a device that is never written.

#[cfg(all(test, feature = "shuttle"))]
mod interleavings;
mod spill;
mod unreadable;

use floe_sync::atomic::{AtomicUsize, Ordering};
use floe_sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use crate::{Medium, ReadBlocks, WriteBlocks, past_the_end, within};
use spill::Spill;
use unreadable::BadPages;
pub use unreadable::UnreadablePage;

/// A device whose writes stay in memory, or in a scratch file beyond a budget; the base below is
/// only read.
///
/// Changes are kept in pages of a fixed size, each either as bytes or as the offset in the base
/// from which the page now reads (40 bytes instead of a page, so that replaying a large journal
/// needs little memory). While nothing is staged, a read costs one atomic load more than a read of
/// the base.
#[derive(Debug)]
pub struct Overlay<D> {
    base: D,
    page_bytes: u64,
    size_bytes: u64,
    /// Pages in the map, so that reads of an empty overlay take no lock.
    staged: AtomicUsize,
    store: RwLock<Store>,
    /// The unreadable pages of the base: see [`Overlay::protecting`].
    bad_pages: Option<BadPages>,
}

/// Limits and place of an [`Overlay`]'s pages.
#[derive(Clone, Debug)]
pub struct SpillOptions {
    /// Bytes of pages kept in memory; more go to the scratch file.
    pub budget_bytes: u64,
    /// Folder of the scratch file, which is created on demand and never has a name.
    pub folder: PathBuf,
}

impl SpillOptions {
    /// `budget_bytes` in memory, the rest in the system's folder for temporary files (`TMPDIR`).
    pub fn in_temporary_folder(budget_bytes: u64) -> Self {
        Self { budget_bytes, folder: std::env::temp_dir() }
    }
}

/// The pages, in memory up to a budget.
#[derive(Debug)]
struct Store {
    pages: BTreeMap<u64, Page>,
    /// Bytes of the pages held in memory.
    held_bytes: u64,
    budget_bytes: u64,
    spill: Spill,
    /// Pages changed since [`Overlay::watch`]; `None` while changes are not recorded.
    changed: Option<BTreeSet<u64>>,
}

#[derive(Debug)]
enum Page {
    /// The page itself; the last page of a device may be shorter.
    Bytes(Box<[u8]>),
    /// The page lies in this slot of the scratch file.
    Spilled(u64),
    /// The page reads as the base does from this byte on.
    Copy(u64),
}

/// A part of one page: where it starts on the device, and its length.
struct Part {
    page: u64,
    within_page: u64,
    len: usize,
}

impl Store {
    /// Records that a page reads differently from now on, or may.
    fn note(&mut self, page: u64) {
        if let Some(changed) = &mut self.changed {
            changed.insert(page);
        }
    }

    /// Stores a page in place of the current one, which stays if that fails.
    fn put_bytes(&mut self, page: u64, bytes: Box<[u8]>) -> io::Result<()> {
        let old_bytes = match self.pages.get(&page) {
            Some(Page::Bytes(old)) => old.len() as u64,
            _ => 0,
        };
        let held_bytes = self.held_bytes - old_bytes + bytes.len() as u64;
        let content = if held_bytes <= self.budget_bytes {
            self.held_bytes = held_bytes;
            Page::Bytes(bytes)
        } else {
            let slot = self.spill.put(&bytes)?;
            self.held_bytes -= old_bytes;
            Page::Spilled(slot)
        };
        if let Some(Page::Spilled(slot)) = self.pages.insert(page, content) {
            self.spill.release(slot);
        }
        Ok(())
    }

    /// Makes a page read from the base.
    fn put_copy(&mut self, page: u64, source: u64) {
        match self.pages.insert(page, Page::Copy(source)) {
            Some(Page::Bytes(old)) => self.held_bytes -= old.len() as u64,
            Some(Page::Spilled(slot)) => self.spill.release(slot),
            Some(Page::Copy(_)) | None => {}
        }
    }
}

impl<D: ReadBlocks> Overlay<D> {
    /// An empty overlay that keeps everything in memory. `page_bytes` is the unit of staging, best
    /// the block size of the file system; 0 counts as 1024.
    pub fn new(base: D, page_bytes: u32) -> Self {
        Self::with_spill(base, page_bytes, SpillOptions::in_temporary_folder(u64::MAX))
    }

    /// An overlay with a memory budget; otherwise like [`Overlay::new`].
    pub fn with_spill(base: D, page_bytes: u32, options: SpillOptions) -> Self {
        let page_bytes = if page_bytes == 0 { 1024 } else { u64::from(page_bytes) };
        let size_bytes = base.size_bytes();
        let store = Store {
            pages: BTreeMap::new(),
            held_bytes: 0,
            budget_bytes: options.budget_bytes,
            spill: Spill::new(page_bytes, options.folder),
            changed: None,
        };
        let (staged, store) = (AtomicUsize::new(0), RwLock::new(store));
        Self { base, page_bytes, size_bytes, staged, store, bad_pages: None }
    }

    /// Limits and place of its pages, for another overlay.
    pub fn spill_options(&self) -> SpillOptions {
        let store = self.read_store();
        SpillOptions { budget_bytes: store.budget_bytes, folder: store.spill.folder().to_owned() }
    }

    /// The device below, without the edits.
    pub fn base(&self) -> &D {
        &self.base
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Whether nothing is staged.
    pub fn is_empty(&self) -> bool {
        self.staged.load(Ordering::Acquire) == 0
    }

    /// How many pages are staged.
    pub fn staged_pages(&self) -> usize {
        self.staged.load(Ordering::Acquire)
    }

    /// Bytes of the device at which each staged page starts, ascending.
    pub fn staged_offsets(&self) -> Vec<u64> {
        self.read_store().pages.keys().map(|page| page * self.page_bytes).collect()
    }

    /// The staged pages, as ranges of bytes of the device: ascending, not adjacent, and made of
    /// whole pages (the last may be shorter, at the end of the device). Read them through the
    /// overlay itself.
    pub fn staged_ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for &page in self.read_store().pages.keys() {
            let start = page * self.page_bytes;
            let end = start + self.page_len(page) as u64;
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => ranges.push(start..end),
            }
        }
        ranges
    }

    /// Writes each staged page to another device, in the order of their places.
    ///
    /// # Errors
    /// A page cannot be read or written.
    pub fn copy_to(&self, to: &dyn WriteBlocks) -> io::Result<()> {
        let mut page = Vec::new();
        for start in self.staged_offsets() {
            page.resize(self.page_len(start / self.page_bytes), 0);
            self.read_at(start, &mut page)?;
            to.write_at(start, &page)?;
        }
        Ok(())
    }

    /// Bytes of the pages in memory, and of those in the scratch file.
    pub fn held_bytes(&self) -> (u64, u64) {
        let store = self.read_store();
        (store.held_bytes, store.spill.held_bytes())
    }

    /// Makes the whole page that starts at `offset_bytes` read as the base does from `source_bytes`
    /// on. Later writes to the page start from that content.
    ///
    /// # Errors
    /// `InvalidInput` if `offset_bytes` is not the start of a page; `UnexpectedEof` if either page
    /// passes the end of the device; an [`UnreadablePage`] if one of them cannot be read and the
    /// overlay is [protecting](Overlay::protecting).
    pub fn stage_copy(&self, offset_bytes: u64, source_bytes: u64) -> io::Result<()> {
        if !offset_bytes.is_multiple_of(self.page_bytes) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not the start of a page"));
        }
        let page = offset_bytes / self.page_bytes;
        let len = self.page_len(page);
        within(self.size_bytes, offset_bytes, len)?;
        within(self.size_bytes, source_bytes, len)?;
        let mut store = self.write_store();
        if self.bad_pages.is_some() {
            let mut bytes = vec![0; len];
            self.read_base(source_bytes, &mut bytes)?;
            if self.protects() && !store.pages.contains_key(&page) {
                self.read_base(offset_bytes, &mut bytes)?;
            }
        }
        store.note(page);
        store.put_copy(page, source_bytes);
        self.staged.store(store.pages.len(), Ordering::Release);
        Ok(())
    }

    /// Copies the bytes of those pages that read from a part of the base for which `will_change`
    /// returns true. Call it before writing the base.
    ///
    /// # Errors
    /// If the base cannot be read or the scratch file cannot be written; the staged content is
    /// unchanged.
    pub fn settle(&self, will_change: impl Fn(Range<u64>) -> bool) -> io::Result<()> {
        let mut store = self.write_store();
        let reads_from = |(&page, content): (&u64, &Page)| match content {
            Page::Copy(source) => Some((page, *source, self.page_len(page))),
            Page::Bytes(_) | Page::Spilled(_) => None,
        };
        let due: Vec<_> = store
            .pages
            .iter()
            .filter_map(reads_from)
            .filter(|&(_, source, len)| will_change(source..source + len as u64))
            .collect();
        for (page, source, len) in due {
            let mut bytes = vec![0; len].into_boxed_slice();
            self.read_base(source, &mut bytes)?;
            store.put_bytes(page, bytes)?;
        }
        Ok(())
    }

    /// Starts recording changed pages, until [`Overlay::take_changed`].
    pub fn watch(&self) {
        self.write_store().changed = Some(BTreeSet::new());
    }

    /// Stops recording. Returns the offset of each page that was changed, or may have been, since
    /// [`Overlay::watch`]: ascending. `None` if nothing was recorded.
    pub fn take_changed(&self) -> Option<Vec<u64>> {
        let changed = self.write_store().changed.take()?;
        Some(changed.into_iter().map(|page| page * self.page_bytes).collect())
    }

    /// Drops all edits.
    pub fn clear(&self) {
        let mut store = self.write_store();
        let dropped = std::mem::take(&mut store.pages);
        dropped.keys().for_each(|page| store.note(*page));
        store.spill.clear();
        store.held_bytes = 0;
        self.staged.store(0, Ordering::Release);
    }

    /// Bytes of a page; the last page of the device may be shorter.
    fn page_len(&self, page: u64) -> usize {
        let start = page.saturating_mul(self.page_bytes);
        // At most page_bytes, which came from a u32.
        self.page_bytes.min(self.size_bytes.saturating_sub(start)) as usize
    }

    /// Ignores poisoning: a page is never half changed.
    fn read_store(&self) -> RwLockReadGuard<'_, Store> {
        self.store.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_store(&self) -> RwLockWriteGuard<'_, Store> {
        self.store.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The parts of a non-empty range, page by page.
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

    /// Reads from byte `within_page` of a page on.
    fn read_part(
        &self,
        spill: &Spill,
        content: &Page,
        within_page: u64,
        into: &mut [u8],
    ) -> io::Result<()> {
        match content {
            Page::Bytes(bytes) => {
                let start = usize::try_from(within_page).map_err(|_| past_the_end())?;
                let from = bytes.get(start..start + into.len()).ok_or_else(past_the_end)?;
                into.copy_from_slice(from);
                Ok(())
            }
            Page::Spilled(slot) => spill.get(*slot, within_page, into),
            Page::Copy(source) => self.read_base(source + within_page, into),
        }
    }

    /// Writes a part of one page.
    fn write_part(&self, store: &mut Store, part: &Part, from: &[u8]) -> io::Result<()> {
        // Less than page_bytes, which came from a u32.
        let start = part.within_page as usize;
        if let Some(Page::Bytes(page)) = store.pages.get_mut(&part.page) {
            page[start..start + part.len].copy_from_slice(from);
            return Ok(());
        }
        let mut page = vec![0; self.page_len(part.page)].into_boxed_slice();
        let is_part = part.len < page.len();
        match store.pages.get(&part.page) {
            Some(content) if is_part => self.read_part(&store.spill, content, 0, &mut page)?,
            None if is_part || self.protects() => {
                self.read_base(part.page * self.page_bytes, &mut page)?;
            }
            _ => {}
        }
        page[start..start + part.len].copy_from_slice(from);
        store.put_bytes(part.page, page)
    }

    /// Whether any page of a non-empty range is staged.
    fn touches(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        let last = offset_bytes.saturating_add(len_bytes - 1) / self.page_bytes;
        self.read_store().pages.range(offset_bytes / self.page_bytes..=last).next().is_some()
    }
}

impl<D: ReadBlocks> ReadBlocks for Overlay<D> {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        if self.is_empty() || into.is_empty() {
            return self.read_base(offset_bytes, into);
        }
        within(self.size_bytes, offset_bytes, into.len())?;
        let store = self.read_store();
        let (first, end) = (offset_bytes / self.page_bytes, offset_bytes + into.len() as u64);
        let mut staged = store.pages.range(first..=(end - 1) / self.page_bytes).peekable();
        let mut at = offset_bytes;
        // Between staged pages the base is read in one piece.
        while at < end {
            let from = (at - offset_bytes) as usize;
            let next = staged.peek().map_or(end, |(page, _)| (**page * self.page_bytes).max(at));
            if next > at {
                let upto = next.min(end);
                self.read_base(at, &mut into[from..(upto - offset_bytes) as usize])?;
                at = upto;
            } else if let Some((page, content)) = staged.next() {
                let start = page * self.page_bytes;
                let upto = start.saturating_add(self.page_bytes).min(end);
                let target = &mut into[from..(upto - offset_bytes) as usize];
                self.read_part(&store.spill, content, at - start, target)?;
                at = upto;
            }
        }
        Ok(())
    }

    fn will_need(&self, offset_bytes: u64, len_bytes: u64) {
        self.base.will_need(offset_bytes, len_bytes);
    }

    fn will_need_in_sequence(&self, offset_bytes: u64, len_bytes: u64) {
        self.base.will_need_in_sequence(offset_bytes, len_bytes);
    }

    fn is_cached(&self, offset_bytes: u64) -> bool {
        self.base.is_cached(offset_bytes)
    }

    fn caches_ahead(&self) -> bool {
        self.base.caches_ahead()
    }

    fn medium(&self) -> Medium {
        self.base.medium()
    }

    fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        let staged = len_bytes != 0 && !self.is_empty() && self.touches(offset_bytes, len_bytes);
        !staged && self.believes_hole(offset_bytes, len_bytes)
    }
}

impl<D: ReadBlocks> WriteBlocks for Overlay<D> {
    /// Stages bytes. If that fails half-way (the base cannot be read, the scratch file has no
    /// space), the pages before the failing one are staged; that page and those behind are
    /// unchanged.
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        within(self.size_bytes, offset_bytes, from.len())?;
        let mut rest = from;
        let mut store = self.write_store();
        let mut written = Ok(());
        for part in self.parts(offset_bytes, from.len()) {
            let (bytes, behind) = rest.split_at(part.len);
            rest = behind;
            store.note(part.page);
            written = self.write_part(&mut store, &part, bytes);
            if written.is_err() {
                break;
            }
        }
        self.staged.store(store.pages.len(), Ordering::Release);
        written
    }

    /// Does nothing: staged edits are not durable.
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

    mod with_nothing_in_memory {
        use crate::WriteBlocks;

        crate::device_contract!(writable Overlay, |bytes: &[u8]| {
            let overlay = crate::overlay::Overlay::with_spill(
                crate::MemDevice::new(vec![0x5a; bytes.len()]),
                1024,
                crate::overlay::SpillOptions::in_temporary_folder(0),
            );
            overlay.write_at(0, bytes).unwrap();
            assert_eq!(overlay.held_bytes().0, 0);
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
        /// Any edits read back as from a plain device, and the base never changes.
        #[test]
        fn edits_read_back(
            steps in proptest::collection::vec(step(), 1..12),
            at in 0..9000usize,
            budget_bytes in prop_oneof![Just(0), Just(u64::MAX), 0..9000u64],
        ) {
            let base: Vec<u8> = (0..9001u32).map(|index| ((index * 7) >> 3) as u8).collect();
            let options = SpillOptions::in_temporary_folder(budget_bytes);
            let overlay = Overlay::with_spill(MemDevice::new(base.clone()), 1024, options);
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
            let (in_memory, in_file) = overlay.held_bytes();
            prop_assert!(in_memory <= budget_bytes);
            prop_assert!(in_memory + in_file <= 10 * 1024);
            overlay.settle(|_| true).unwrap();
            overlay.read_at(at as u64, &mut read).unwrap();
            prop_assert!(read == model[at..], "settling changed what is read");
            let ranges = overlay.staged_ranges();
            prop_assert!(ranges.is_sorted_by(|a, b| a.end < b.start));
            let staged: u64 = ranges.iter().map(|range| range.end - range.start).sum();
            let pages = overlay.staged_offsets();
            prop_assert_eq!(staged, pages.iter().map(|at| 1024.min(9001 - at)).sum::<u64>());
            prop_assert!(pages.iter().all(|at| ranges.iter().any(|range| range.contains(at))));
            prop_assert_eq!(overlay.base().to_vec(), base);
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

    #[test]
    fn what_reads_from_the_base_is_settled_before_the_base_changes() {
        let base = MemDevice::new((0..4096u32).map(|index| (index / 1024) as u8).collect());
        let overlay = Overlay::new(&base, 1024);
        overlay.stage_copy(0, 2048).unwrap();
        overlay.stage_copy(1024, 3072).unwrap();
        overlay.settle(|range| range == (2048..3072)).unwrap();
        base.write_at(2048, &[9; 2048]).unwrap();
        let mut read = [0; 2048];
        overlay.read_at(0, &mut read).unwrap();
        assert_eq!((read[0], read[1023], read[1024], read[2047]), (2, 2, 9, 9));
    }

    #[test]
    fn slots_are_used_again() {
        let options = SpillOptions::in_temporary_folder(1024);
        let overlay = Overlay::with_spill(MemDevice::new(vec![0; 8192]), 1024, options);
        for round in 0..100u8 {
            overlay.write_at(0, &[round; 3000]).unwrap();
        }
        assert_eq!(overlay.held_bytes(), (1024, 2048));
        assert!(overlay.read_store().spill.file_bytes() <= 4096);
        overlay.stage_copy(0, 1024).unwrap();
        overlay.stage_copy(1024, 2048).unwrap();
        assert_eq!(overlay.held_bytes(), (0, 1024));
        overlay.write_at(1024, &[5; 1024]).unwrap();
        assert_eq!(overlay.held_bytes(), (1024, 1024));
        overlay.clear();
        assert_eq!(overlay.held_bytes(), (0, 0));
    }

    #[test]
    fn pages_that_change_are_noted_while_somebody_watches() {
        let overlay = Overlay::new(MemDevice::new(vec![1; 16 << 10]), 1024);
        overlay.write_at(0, &[2; 10]).unwrap();
        assert_eq!(overlay.take_changed(), None);
        overlay.watch();
        overlay.write_at(2040, &[3; 20]).unwrap();
        overlay.write_at(2041, &[3; 2]).unwrap();
        overlay.stage_copy(8 << 10, 0).unwrap();
        // Copying a page's bytes does not change its content.
        overlay.settle(|_| true).unwrap();
        assert_eq!(overlay.take_changed(), Some(vec![1024, 2048, 8 << 10]));
        overlay.write_at(0, &[4; 10]).unwrap();
        assert_eq!(overlay.take_changed(), None);
        overlay.watch();
        overlay.clear();
        assert_eq!(overlay.take_changed(), Some(vec![0, 1024, 2048, 8 << 10]));
    }

    #[test]
    fn a_scratch_file_that_cannot_be_made_is_an_error_and_loses_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let options = SpillOptions { budget_bytes: 1024, folder: folder.path().join("none") };
        let overlay = Overlay::with_spill(MemDevice::new(vec![0; 4096]), 1024, options);
        overlay.write_at(0, &[1; 1024]).unwrap();
        let error = overlay.write_at(1000, &[2; 100]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let mut read = [0; 2048];
        overlay.read_at(0, &mut read).unwrap();
        assert_eq!(
            (read[999], read[1000], read[1024]),
            (1, 2, 0),
            "the pages before the failure are staged"
        );
        overlay.write_at(0, &[3; 1024]).unwrap();
    }
}
