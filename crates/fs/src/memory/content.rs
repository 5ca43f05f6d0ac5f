//! Content of a file in memory: what the disk has not got yet, and what was read or written lately.
//!
//! Readers copy [pages] without a lock. A write inside the file locks its pages, one at a time; a change of the size is made
//! under the lock of the size. Whoever changes the size does so before he looks for pages behind the new end, and whoever
//! brings a page looks at the size once he has its lock, so one of the two sees the other.
//!
//! [pages]: super::pages

use floe_sync::atomic::{Ordering, fence};
use floe_sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::flight::{BUFFER_BYTES, Buffers, Flight, Run};
use super::pages::{Locked, MOST_KEPT, PAGE, PAGE_BYTES, Page, Pages};
use super::status::Length;
use crate::store::SeekFor;
use crate::{FsError, Timestamp};

/// Reads bytes of the disk's content; returns how many there are.
pub(crate) type Below<'b> = &'b dyn Fn(u64, &mut [u8]) -> Result<usize, FsError>;

/// Finds data or a hole of the disk's content.
pub(crate) type SeekBelow<'b> = &'b dyn Fn(u64, SeekFor) -> Result<u64, FsError>;

/// Content of a file in memory, over that on the disk.
///
/// A byte comes from its page; else from the disk, if it lies below the valid bytes of [`Length`]; else it is zero. Bytes of
/// pages behind the end of the file are zeroes.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Content {
    pages: OnceLock<Box<Pages>>,
    resized: Mutex<Resized>,
}

/// How the size changed since the last flush. Whoever changes the size has its lock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Resized {
    /// The least size that the file had, if it was cut.
    pub(crate) cut: Option<u64>,
    /// The size differs from that of the last flush.
    pub(crate) resized: bool,
    /// Size of the file on the disk when the flush under way, if there is one, is over.
    pub(crate) stored_bytes: u64,
}

impl Resized {
    pub(crate) const fn is_any(&self) -> bool {
        self.resized || self.cut.is_some()
    }
}

/// Pages that a call brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Brought {
    /// Those for which space is reserved now.
    pub(crate) dirty: u64,
    /// Those for which memory was taken.
    pub(crate) kept: u64,
}

/// A write to a file.
#[derive(Clone, Copy)]
pub(crate) struct Write<'w> {
    pub(crate) offset_bytes: u64,
    pub(crate) bytes: &'w [u8],
    /// The size may grow: the caller has the lock of the size, and lets it grow behind the write.
    pub(crate) grows: bool,
    /// Size of the file on the disk.
    pub(crate) disk_bytes: u64,
}

impl Write<'_> {
    fn end(&self) -> u64 {
        self.offset_bytes + self.bytes.len() as u64
    }
}

/// Bytes of a page that lie in a file of this size.
const fn part_of(start: u64, size_bytes: u64) -> usize {
    let rest = size_bytes.saturating_sub(start);
    if rest < PAGE_BYTES { rest as usize } else { PAGE }
}

/// Fills in bytes of the disk's content, and zeroes behind those that are valid.
pub(crate) fn read_below(
    valid_bytes: u64,
    at: u64,
    into: &mut [u8],
    below: Below<'_>,
) -> Result<(), FsError> {
    let valid = valid_bytes.saturating_sub(at).min(into.len() as u64) as usize;
    let len = if valid == 0 { 0 } else { below(at, &mut into[..valid])? };
    into[len..].fill(0);
    Ok(())
}

impl Content {
    /// The content of a file that has so many bytes on the disk.
    pub(crate) fn new(stored_bytes: u64) -> Self {
        let resized = Resized { stored_bytes, ..Resized::default() };
        Self { pages: OnceLock::new(), resized: Mutex::new(resized) }
    }

    /// Locks the size. Behind the lock of the inode, before those of pages.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Resized> {
        // A panic in a change ends all changes.
        self.resized.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pages(&self) -> Option<&Pages> {
        self.pages.get().map(|pages| &**pages)
    }

    /// The pages of a file that is about to have some.
    pub(crate) fn begin(&self) -> &Pages {
        self.pages.get_or_init(Box::default)
    }

    /// Whether it ever had pages, or is about to have some.
    pub(crate) fn has_begun(&self) -> bool {
        self.pages.get().is_some()
    }

    /// Whether the disk lacks pages.
    pub(crate) fn is_dirty(&self) -> bool {
        let cells = self.pages().map(Pages::cells);
        cells.is_some_and(|cells| cells.iter().any(|cell| !cell.dirty().is_empty()))
    }

    /// Pages that the disk lacks; more, if some went.
    pub(crate) fn dirty_pages(&self) -> u64 {
        let cells = self.pages().map(Pages::cells).into_iter().flatten();
        cells.map(|cell| cell.dirty().len() as u64).sum()
    }

    /// Pages for which space is reserved.
    pub(crate) fn counted_pages(&self) -> u64 {
        self.pages().map_or(0, |pages| pages.count(|slot| slot.lock().dirt.counts()))
    }

    /// Pages for which memory was taken.
    pub(crate) fn kept_pages(&self) -> u64 {
        self.pages().map_or(0, |pages| pages.count(|slot| slot.page().is_some()))
    }

    /// Pages that take new blocks.
    pub(crate) fn fresh_pages(&self) -> u64 {
        let cells = self.pages().map(Pages::cells).into_iter().flatten();
        cells.map(|cell| cell.fresh.load(Ordering::Relaxed)).sum()
    }

    /// The last write since the times of the inode were set.
    pub(crate) fn last_write(&self) -> Option<Timestamp> {
        self.pages()?.last_write()
    }

    /// The inode has the times now.
    pub(crate) fn forget_times(&self) {
        if let Some(pages) = self.pages() {
            pages.forget_times();
        }
    }

    /// Fills `into` with bytes from `offset_bytes` on, as many as there are. Returns their number, and how many pages are
    /// kept for the next time.
    ///
    /// # Errors
    /// The disk cannot be read.
    pub(crate) fn read(
        &self,
        length: &Length,
        offset_bytes: u64,
        into: &mut [u8],
        below: Below<'_>,
    ) -> Result<(usize, u64), FsError> {
        let mut kept = 0;
        loop {
            let before = length.version().seen();
            let (size, valid) = length.get();
            let len = size.saturating_sub(offset_bytes).min(into.len() as u64) as usize;
            kept += self.read_part(length, valid, offset_bytes, &mut into[..len], below)?;
            // Someone who cuts the file meanwhile takes bytes away.
            if length.version().is_still(before) {
                return Ok((len, kept));
            }
        }
    }

    fn read_part(
        &self,
        length: &Length,
        valid: u64,
        offset_bytes: u64,
        into: &mut [u8],
        below: Below<'_>,
    ) -> Result<u64, FsError> {
        let end = offset_bytes + into.len() as u64;
        let (mut at, mut kept) = (offset_bytes, 0);
        while at < end {
            let index = at / PAGE_BYTES;
            let within = (at % PAGE_BYTES) as usize;
            let place = (at - offset_bytes) as usize;
            let len = (PAGE - within).min(into.len() - place);
            let part = &mut into[place..place + len];
            let page = self.page(index);
            if page.is_some_and(|page| page.read(within, part)) {
                at += len as u64;
            } else if at >= valid {
                part.fill(0);
                at += len as u64;
            } else if len < PAGE && !Pages::has_slot(index) {
                // Memory keeps no pages that far behind.
                read_below(valid, at, part, below)?;
                at += len as u64;
            } else if len < PAGE {
                kept += self.load(length, index, below)?;
                // Where it is gone again, its size changed, and all is read anew.
                let _ = self.page(index).is_some_and(|page| page.read(within, part));
                at += len as u64;
            } else {
                // Whole pages, at once as far as memory has none.
                let whole = (end - at) / PAGE_BYTES;
                let absent = |one: &u64| self.page(*one).is_none_or(Page::is_absent);
                let count = (index..index + whole).take_while(absent).count().max(1) as u64;
                let part = &mut into[place..place + (count * PAGE_BYTES) as usize];
                let seen = length.version().seen();
                read_below(valid, at, part, below)?;
                if count <= MOST_KEPT {
                    kept += self.keep_read(length, seen, index, part);
                }
                at += count * PAGE_BYTES;
            }
        }
        Ok(kept)
    }

    pub(super) fn page(&self, index: u64) -> Option<&Page> {
        self.pages()?.get(index)?.page()
    }

    /// Locks the slot of a page. Sizes that are looked at afterwards are those of now, or of whoever waits for the lock.
    pub(super) fn locked(&self, index: u64) -> Result<Locked<'_>, FsError> {
        let slot = self.begin().ensure(index).ok_or(FsError::TooLarge)?;
        let locked = slot.lock();
        fence(Ordering::SeqCst);
        Ok(locked)
    }

    /// Lets memory have a page. Returns how many were brought.
    fn load(&self, length: &Length, index: u64, below: Below<'_>) -> Result<u64, FsError> {
        let locked = self.locked(index)?;
        if locked.present().is_some() {
            return Ok(0);
        }
        let ((size, valid), start) = (length.get(), index * PAGE_BYTES);
        let mut page = [0; PAGE];
        read_below(valid, start, &mut page[..part_of(start, size)], below)?;
        Ok(u64::from(locked.fill(&page)))
    }

    /// Takes bytes; `false` if the file became too short for a write that may not let it grow. Returns which pages came in
    /// any case.
    ///
    /// # Errors
    /// The disk cannot be read, where a page is written in part; then nothing was taken.
    pub(crate) fn write(
        &self,
        length: &Length,
        write: Write<'_>,
        below: Below<'_>,
    ) -> Result<(bool, Brought), FsError> {
        let mut brought = Brought::default();
        let (first, last) = (write.offset_bytes / PAGE_BYTES, (write.end() - 1) / PAGE_BYTES);
        // Read first, so that an error leaves all as it is.
        for index in [first, last] {
            let start = index * PAGE_BYTES;
            let whole = write.offset_bytes <= start
                && (start + PAGE_BYTES <= write.end() || length.size() <= write.end());
            if !whole && self.page(index).is_none_or(Page::is_absent) {
                brought.kept += self.load(length, index, below)?;
            }
        }
        for index in first..=last {
            if !self.write_page(length, write, index, below, &mut brought)? {
                return Ok((false, brought));
            }
        }
        Ok((true, brought))
    }

    fn write_page(
        &self,
        length: &Length,
        write: Write<'_>,
        index: u64,
        below: Below<'_>,
        brought: &mut Brought,
    ) -> Result<bool, FsError> {
        let start = index * PAGE_BYTES;
        let from = write.offset_bytes.max(start);
        let to = write.end().min(start + PAGE_BYTES);
        let mut locked = self.locked(index)?;
        let (size, valid) = length.get();
        if to > size && !write.grows {
            return Ok(false);
        }
        let there = part_of(start, size);
        let within = (from - start) as usize;
        let bytes =
            &write.bytes[(from - write.offset_bytes) as usize..(to - write.offset_bytes) as usize];
        let is_new = if locked.present().is_some() {
            locked.write(None, within, bytes)
        } else if within == 0 && bytes.len() >= there {
            locked.replace(bytes)
        } else {
            let mut page = [0; PAGE];
            read_below(valid, start, &mut page[..there], below)?;
            locked.write(Some(&page), within, bytes)
        };
        brought.kept += u64::from(is_new);
        brought.dirty += u64::from(!locked.dirt.counts());
        if !locked.dirt.dirty {
            locked.dirt.dirty = true;
            let cell = self.begin().cell(index);
            cell.dirty().push(index);
            if start >= write.disk_bytes && !locked.dirt.fresh {
                locked.dirt.fresh = true;
                cell.fresh.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(true)
    }

    /// Sets the size. The caller has its lock. Returns for how many pages no space is reserved any more.
    pub(crate) fn resize(&self, length: &Length, size_bytes: u64, resized: &mut Resized) -> u64 {
        let (before, valid) = length.get();
        resized.resized |= size_bytes != before;
        if size_bytes >= before {
            // A caller that lets a file grow will write to it.
            self.begin();
            length.set(size_bytes, valid);
            return 0;
        }
        length.set(size_bytes, valid.min(size_bytes));
        fence(Ordering::SeqCst);
        resized.cut = Some(resized.cut.map_or(size_bytes, |cut| cut.min(size_bytes)));
        let Some(pages) = self.pages() else { return 0 };
        let mut gone = 0;
        pages.each(size_bytes.div_ceil(PAGE_BYTES), &mut |index, slot| {
            let was = slot.lock().clear();
            gone += u64::from(was.counts());
            if was.fresh {
                pages.cell(index).fresh.fetch_sub(1, Ordering::Relaxed);
            }
            true
        });
        if let Some(slot) = pages.get(size_bytes / PAGE_BYTES) {
            slot.lock().zero_from((size_bytes % PAGE_BYTES) as usize);
        }
        gone
    }

    /// Takes bytes that the disk lacks, in runs of at most a buffer. They stay readable here.
    pub(super) fn take_off(
        &self,
        length: &Length,
        resized: &mut Resized,
        buffers: &Arc<Buffers>,
    ) -> Flight {
        let (size_bytes, cut) = (length.size(), resized.cut.take());
        (resized.resized, resized.stored_bytes) = (false, size_bytes);
        let mut flight = Flight { cut, indices: Vec::new(), runs: Vec::new(), size_bytes };
        let Some(pages) = self.pages() else { return flight };
        let mut due: Vec<u64> =
            pages.cells().iter().flat_map(|cell| std::mem::take(&mut *cell.dirty())).collect();
        due.sort_unstable();
        due.dedup();
        for (nth, &index) in due.iter().enumerate() {
            let Some(slot) = pages.get(index) else { continue };
            let mut locked = slot.lock();
            let at = index * PAGE_BYTES;
            let len = part_of(at, size_bytes);
            // Some went, and some lie behind the end.
            if !locked.dirt.dirty || len == 0 {
                continue;
            }
            (locked.dirt.dirty, locked.dirt.flying) = (false, true);
            let goes_on = |run: &Run| run.end() == at && run.has_room(len);
            if !flight.runs.last().is_some_and(goes_on) {
                let neighbours = due[nth..].iter().zip(index..);
                let near =
                    neighbours.take(BUFFER_BYTES / PAGE).take_while(|(one, next)| *one == next);
                flight.runs.push(buffers.run(at, near.count() * PAGE));
            }
            if let (Some(run), Some(page)) = (flight.runs.last_mut(), locked.present()) {
                page.read(0, run.grow(len));
            }
            flight.indices.push(index);
        }
        flight
    }

    /// The disk has it. Returns for how many pages no space is reserved any more.
    pub(crate) fn landed(&self, length: &Length, resized: &Resized, flight: &Flight) -> u64 {
        let mut gone = 0;
        if let Some(pages) = self.pages() {
            for &index in &flight.indices {
                let Some(slot) = pages.get(index) else { continue };
                let mut locked = slot.lock();
                if !std::mem::take(&mut locked.dirt.flying) {
                    continue;
                }
                if std::mem::take(&mut locked.dirt.fresh) {
                    pages.cell(index).fresh.fetch_sub(1, Ordering::Relaxed);
                }
                gone += u64::from(!locked.dirt.counts());
            }
        }
        length.set(length.size(), resized.cut.unwrap_or(u64::MAX));
        gone
    }

    /// Gives back the memory of pages that the disk has; returns how many are left.
    pub(crate) fn drop_clean(&mut self) -> usize {
        let Some(pages) = self.pages.get_mut() else { return 0 };
        let left = pages.drop_clean();
        if left == 0 && pages.last_write().is_none() && !self.is_dirty() {
            self.pages.take();
        }
        left
    }

    /// The first byte from `offset_bytes` on that lies in data or in a hole. Pages that were written count as data.
    ///
    /// # Errors
    /// [`FsError::PastEnd`], and of the disk.
    pub(crate) fn seek(
        &self,
        length: &Length,
        offset_bytes: u64,
        what: SeekFor,
        below: SeekBelow<'_>,
    ) -> Result<u64, FsError> {
        let (size, valid) = length.get();
        if offset_bytes >= size {
            return Err(FsError::PastEnd);
        }
        let mut at = offset_bytes;
        while at < size {
            let next = self.next_written(at / PAGE_BYTES).unwrap_or(u64::MAX).max(at).min(size);
            if next == at {
                if what == SeekFor::Data {
                    return Ok(at);
                }
                at = (at / PAGE_BYTES + 1) * PAGE_BYTES;
                continue;
            }
            // Up to here the disk knows.
            let known = next.min(valid);
            if at < known {
                match below(at, what) {
                    Ok(found) if found < known => return Ok(found),
                    Ok(_) => {}
                    // The disk's file ends here: a hole.
                    Err(FsError::PastEnd) if what == SeekFor::Hole => return Ok(at),
                    Err(FsError::PastEnd) => {}
                    Err(error) => return Err(error),
                }
            }
            if known < next && what == SeekFor::Hole {
                return Ok(known.max(at));
            }
            at = next;
        }
        if what == SeekFor::Hole { Ok(size) } else { Err(FsError::PastEnd) }
    }

    /// Where the next page starts that a program wrote to.
    fn next_written(&self, from: u64) -> Option<u64> {
        let mut found = None;
        self.pages()?.each(from, &mut |index, slot| {
            let written = slot.page().is_some_and(Page::is_written);
            found = written.then_some(index * PAGE_BYTES);
            !written
        });
        found
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
