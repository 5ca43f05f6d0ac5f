//! Bytes of a file that the disk has not got yet.

use std::collections::BTreeMap;

use floe_sync::Arc;

use crate::FsError;

/// Bytes of a page, whatever the block size of the disk.
pub(crate) const PAGE_BYTES: u64 = 4096;

type Page = [u8; PAGE_BYTES as usize];

/// Reads bytes of the disk's content; returns how many there are.
pub(crate) type Below<'b> = &'b dyn Fn(u64, &mut [u8]) -> Result<usize, FsError>;

/// What memory has of a file's content over what the disk has. The size is the mnode's.
///
/// A byte comes from its page; else from the disk, if it lies below `valid_bytes`; else it is zero. Bytes of pages behind
/// the end of the file are zeroes.
#[derive(Debug)]
pub(crate) struct Content {
    pages: BTreeMap<u64, Arc<Page>>,
    /// Where the disk's bytes stop counting.
    valid_bytes: u64,
    /// The least size that the file had since its last flush, if it was cut.
    cut: Option<u64>,
    /// The size differs from that of the last flush.
    resized: bool,
}

/// Content on its way to the disk.
#[derive(Debug)]
pub(crate) struct Flight {
    /// The disk's content is cut to this size first.
    pub(crate) cut: Option<u64>,
    pages: Vec<(u64, Arc<Page>)>,
    /// The size of the file.
    pub(crate) size_bytes: u64,
}

impl Content {
    /// The content of a file that is whole on the disk.
    pub(crate) const fn on_disk() -> Self {
        Self { pages: BTreeMap::new(), valid_bytes: u64::MAX, cut: None, resized: false }
    }

    /// The content of a new file.
    pub(crate) const fn new_file() -> Self {
        Self { pages: BTreeMap::new(), valid_bytes: 0, cut: None, resized: false }
    }

    /// Whether the disk lacks anything.
    pub(crate) fn is_dirty(&self) -> bool {
        !self.pages.is_empty() || self.cut.is_some() || self.resized
    }

    /// Pages in memory.
    pub(crate) fn page_count(&self) -> u64 {
        self.pages.len() as u64
    }

    /// Pages in memory behind the disk's end of the file.
    pub(crate) fn pages_from(&self, disk_bytes: u64) -> u64 {
        self.pages.range(disk_bytes.div_ceil(PAGE_BYTES)..).count() as u64
    }

    /// Bytes of the disk that still count, of so many.
    pub(crate) fn kept_bytes(&self, disk_bytes: u64) -> u64 {
        disk_bytes.min(self.valid_bytes)
    }

    /// Fills `into` with bytes from `offset_bytes` on, all of which lie in the file.
    ///
    /// # Errors
    /// The disk cannot be read.
    pub(crate) fn read(
        &self,
        offset_bytes: u64,
        into: &mut [u8],
        below: Below<'_>,
    ) -> Result<(), FsError> {
        let end = offset_bytes + into.len() as u64;
        let mut at = offset_bytes;
        while at < end {
            let next = self.pages.range(at / PAGE_BYTES..).next();
            let page_start = next.map_or(end, |(index, _)| (index * PAGE_BYTES).min(end));
            let place = (at - offset_bytes) as usize;
            if page_start > at {
                let part = &mut into[place..(page_start - offset_bytes) as usize];
                self.read_below(at, part, below)?;
                at = page_start;
                continue;
            }
            let Some((index, page)) = next else { break };
            let within = (at - index * PAGE_BYTES) as usize;
            let len = (PAGE_BYTES as usize - within).min(into.len() - place);
            into[place..place + len].copy_from_slice(&page[within..within + len]);
            at += len as u64;
        }
        Ok(())
    }

    fn read_below(&self, at: u64, into: &mut [u8], below: Below<'_>) -> Result<(), FsError> {
        let valid = self.valid_bytes.saturating_sub(at).min(into.len() as u64) as usize;
        let len = if valid == 0 { 0 } else { below(at, &mut into[..valid])? };
        into[len..].fill(0);
        Ok(())
    }

    /// Takes bytes at `offset_bytes`. The file's size was `size_bytes` before; the caller lets it grow. Returns how many
    /// pages were added.
    ///
    /// # Errors
    /// The disk cannot be read, where a page is written in part; then nothing was taken.
    pub(crate) fn write(
        &mut self,
        offset_bytes: u64,
        bytes: &[u8],
        size_bytes: u64,
        below: Below<'_>,
    ) -> Result<u64, FsError> {
        let end = offset_bytes + bytes.len() as u64;
        let (first, last) = (offset_bytes / PAGE_BYTES, (end - 1) / PAGE_BYTES);
        // Read first, so that an error leaves all as it is.
        let mut fresh: BTreeMap<u64, Page> = BTreeMap::new();
        for index in [first, last] {
            let (start, stop) = (index * PAGE_BYTES, (index + 1) * PAGE_BYTES);
            let whole = offset_bytes <= start && (stop <= end || size_bytes <= end);
            if !whole && !self.pages.contains_key(&index) && !fresh.contains_key(&index) {
                let mut page = [0; PAGE_BYTES as usize];
                let len = size_bytes.saturating_sub(start).min(PAGE_BYTES) as usize;
                self.read_below(start, &mut page[..len], below)?;
                fresh.insert(index, page);
            }
        }
        let before = self.page_count();
        for index in first..=last {
            let start = index * PAGE_BYTES;
            let from = offset_bytes.max(start);
            let to = end.min(start + PAGE_BYTES);
            let page = self.pages.entry(index).or_insert_with(|| {
                Arc::new(fresh.remove(&index).unwrap_or([0; PAGE_BYTES as usize]))
            });
            // A page on its way to the disk stays as it is; this is another one.
            Arc::make_mut(page)[(from - start) as usize..(to - start) as usize].copy_from_slice(
                &bytes[(from - offset_bytes) as usize..(to - offset_bytes) as usize],
            );
        }
        self.resized |= end > size_bytes;
        Ok(self.page_count() - before)
    }

    /// Sets the size, which was `before_bytes`. Returns how many pages went.
    pub(crate) fn resize(&mut self, size_bytes: u64, before_bytes: u64) -> u64 {
        self.resized |= size_bytes != before_bytes;
        if size_bytes >= before_bytes {
            return 0;
        }
        let before = self.page_count();
        drop(self.pages.split_off(&size_bytes.div_ceil(PAGE_BYTES)));
        if let Some(page) = self.pages.get_mut(&(size_bytes / PAGE_BYTES)) {
            Arc::make_mut(page)[(size_bytes % PAGE_BYTES) as usize..].fill(0);
        }
        self.cut = Some(self.cut.map_or(size_bytes, |cut| cut.min(size_bytes)));
        self.valid_bytes = self.valid_bytes.min(size_bytes);
        before - self.page_count()
    }

    /// What the disk lacks. It stays readable here until [`Content::landed`].
    pub(crate) fn take_off(&mut self, size_bytes: u64) -> Flight {
        let pages = self.pages.iter().map(|(index, page)| (*index, Arc::clone(page))).collect();
        self.resized = false;
        Flight { cut: self.cut.take(), pages, size_bytes }
    }

    /// The disk has it: drops what did not change meanwhile. Returns how many pages went.
    pub(crate) fn landed(&mut self, flight: &Flight) -> u64 {
        let before = self.page_count();
        for (index, page) in &flight.pages {
            if self.pages.get(index).is_some_and(|now| Arc::ptr_eq(now, page)) {
                self.pages.remove(index);
            }
        }
        self.valid_bytes = self.cut.unwrap_or(u64::MAX);
        before - self.page_count()
    }
}

impl Flight {
    /// Runs of neighbouring pages with their offsets, up to the end of the file, each of at most so many bytes and a page.
    pub(crate) fn runs(&self, most_bytes: usize) -> Vec<(u64, Vec<u8>)> {
        let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
        for (index, page) in &self.pages {
            let at = index * PAGE_BYTES;
            let len = self.size_bytes.saturating_sub(at).min(PAGE_BYTES) as usize;
            if len == 0 {
                break;
            }
            let goes_on = |(start, run): &&mut (u64, Vec<u8>)| {
                at == *start + run.len() as u64 && run.len() < most_bytes
            };
            match runs.last_mut().filter(goes_on) {
                Some((_, run)) => run.extend_from_slice(&page[..len]),
                None => runs.push((at, page[..len].to_vec())),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Act {
        Write(u64, usize),
        Resize(u64),
        TakeOff,
        Land,
    }

    fn act() -> impl Strategy<Value = Act> {
        let offset = prop_oneof![0u64..40_000, (0u64..10).prop_map(|page| page * PAGE_BYTES)];
        prop_oneof![
            4 => (offset.clone(), 1usize..10_000).prop_map(|(at, len)| Act::Write(at, len)),
            2 => offset.prop_map(Act::Resize),
            1 => Just(Act::TakeOff),
            2 => Just(Act::Land),
        ]
    }

    /// Lets the disk, a plain buffer, have a flight.
    fn land(disk: &RefCell<Vec<u8>>, flight: &Flight) {
        let mut disk = disk.borrow_mut();
        if let Some(cut) = flight.cut
            && (cut as usize) < disk.len()
        {
            disk.truncate(cut as usize);
        }
        for (at, bytes) in flight.runs(8192) {
            let end = at as usize + bytes.len();
            if disk.len() < end {
                disk.resize(end, 0);
            }
            disk[at as usize..end].copy_from_slice(&bytes);
        }
        disk.resize(flight.size_bytes as usize, 0);
    }

    proptest! {
        /// Whatever is written, cut and flushed in any order, reads see the content that a plain buffer has, and the disk
        /// has it after the last flush.
        #[test]
        fn reads_and_flushes_see_what_was_written(
            before in 0usize..30_000, acts in prop::collection::vec(act(), 1..40),
        ) {
            let mut model: Vec<u8> = (0..before).map(|at| (at % 251) as u8 + 1).collect();
            let disk = RefCell::new(model.clone());
            let below = |at: u64, into: &mut [u8]| {
                let disk = disk.borrow();
                let rest = disk.get(at as usize..).unwrap_or_default();
                let len = rest.len().min(into.len());
                into[..len].copy_from_slice(&rest[..len]);
                Ok(len)
            };
            let (mut content, mut flight, mut pages) = (Content::on_disk(), None::<Flight>, 0);
            for (turn, act) in acts.into_iter().chain([Act::Land, Act::TakeOff, Act::Land]).enumerate() {
                match act {
                    Act::Write(at, len) => {
                        let bytes = vec![(turn % 255) as u8 + 1; len];
                        pages += content.write(at, &bytes, model.len() as u64, &below).unwrap();
                        let end = at as usize + len;
                        if model.len() < end { model.resize(end, 0); }
                        model[at as usize..end].copy_from_slice(&bytes);
                    }
                    Act::Resize(size) => {
                        pages -= content.resize(size, model.len() as u64);
                        model.resize(size as usize, 0);
                    }
                    Act::TakeOff if flight.is_none() => {
                        flight = Some(content.take_off(model.len() as u64));
                    }
                    Act::TakeOff => {}
                    Act::Land => {
                        if let Some(flight) = flight.take() {
                            land(&disk, &flight);
                            pages -= content.landed(&flight);
                        }
                    }
                }
                let mut seen = vec![0xee; model.len()];
                content.read(0, &mut seen, &below).unwrap();
                prop_assert!(seen == model, "turn {turn}");
                prop_assert_eq!(pages, content.page_count());
            }
            prop_assert!(!content.is_dirty());
            prop_assert!(*disk.borrow() == model);
        }
    }
}
