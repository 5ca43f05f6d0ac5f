//! Content that a call needs of the disk, read while nobody is kept waiting for it.
//!
//! A thread that is inside keeps out whoever wants to be alone, and whoever waits for that keeps out all who come later. If it read
//! the disk there, all calls would wait for that, in whichever cube. So pages are read before, outside, and hold if nobody has been
//! alone meanwhile: pages leave memory only then, so one that is still absent was neither written nor dropped since, and the disk has
//! the same bytes of it. Otherwise the call reads them inside.

use std::ops::Range;

use floe_format::InodeNr;

use super::content::{Content, read_below};
use super::lower::Lower;
use super::pages::{PAGE, PAGE_BYTES, Page};
use super::status::Length;
use super::{MemFs, State};
use crate::op::OpKind;

/// Pages that are read at once.
const MOST_PAGES: u64 = 256;

/// Pages of a file.
#[derive(Debug)]
pub(super) struct Wanted {
    inode: InodeNr,
    pages: Range<u64>,
}

/// The content that the disk had of pages of a file.
#[derive(Debug)]
pub(super) struct Outside {
    start_bytes: u64,
    bytes: Vec<u8>,
    /// The version of the length, and when somebody was alone last.
    seen: u64,
    epoch: u64,
}

impl Outside {
    /// Whether absent pages have these bytes still.
    fn holds(&self, state: &State, length: &Length) -> bool {
        state.epochs.alone == self.epoch && length.version().is_still(self.seen)
    }

    /// Copies bytes from this one on, as many as there are and are asked for; `None` if that is not among them, or they do not hold any more.
    pub(super) fn copy(
        &self,
        state: &State,
        length: &Length,
        at: u64,
        into: &mut [u8],
    ) -> Option<usize> {
        let from = usize::try_from(at.checked_sub(self.start_bytes)?).ok()?;
        let rest = self.bytes.get(from..).filter(|rest| !rest.is_empty())?;
        let len = rest.len().min(into.len());
        into[..len].copy_from_slice(&rest[..len]);
        self.holds(state, length).then_some(len)
    }
}

impl Content {
    /// Keeps what was read of the disk, unless the size has changed since or there is a page.
    fn keep(&self, length: &Length, seen: u64, index: u64, bytes: &[u8; PAGE]) -> u64 {
        let Ok(locked) = self.locked(index) else { return 0 };
        let fits = locked.present().is_none() && length.version().is_still(seen);
        u64::from(fits && locked.fill(bytes))
    }

    /// The pages of a range of bytes of which memory has none and the disk may have some bytes, from the first to the last one, at
    /// most so many.
    pub(crate) fn absent(
        &self,
        length: &Length,
        bytes: Range<u64>,
        most_pages: u64,
    ) -> Option<Range<u64>> {
        let (size, valid) = length.get();
        let end = bytes.end.min(size).min(valid);
        let lacks = |index: &u64| self.page(*index).is_none_or(Page::is_absent);
        let pages = bytes.start / PAGE_BYTES..end.div_ceil(PAGE_BYTES);
        let first = pages.clone().find(lacks)?;
        let most = first.saturating_add(most_pages).min(pages.end);
        let last = (first..most).rev().find(lacks)?;
        Some(first..last + 1)
    }

    /// The same of a page that a write writes in part.
    pub(crate) fn absent_edge(&self, length: &Length, bytes: Range<u64>) -> Option<Range<u64>> {
        let edges = [bytes.start, bytes.end];
        let partial = edges.into_iter().filter(|edge| edge % PAGE_BYTES > 0);
        let mut absent = partial.filter_map(|edge| self.absent(length, edge..edge + 1, 1));
        // Behind the end there is nothing that stays.
        let stays =
            |page: &Range<u64>| page.start * PAGE_BYTES < bytes.start || length.size() > bytes.end;
        absent.find(stays)
    }

    /// Keeps pages that were read of the disk, but for those that are there, unless the size has changed since. Nobody has been alone
    /// since they were read. Returns how many are kept.
    pub(crate) fn keep_read(&self, length: &Length, seen: u64, first: u64, bytes: &[u8]) -> u64 {
        let (chunks, _) = bytes.as_chunks::<PAGE>();
        (first..).zip(chunks).map(|(index, chunk)| self.keep(length, seen, index, chunk)).sum()
    }
}

impl State {
    /// The pages that a read of these bytes needs of the disk.
    pub(super) fn wanted(&self, inode: InodeNr, bytes: Range<u64>) -> Option<Wanted> {
        let node = self.get(inode).filter(|node| node.may_keep_content())?;
        let pages = node.content.absent(&node.status.length, bytes, MOST_PAGES)?;
        Some(Wanted { inode, pages })
    }

    /// The page that a change needs of the disk because it writes it in part.
    pub(super) fn wanted_by(&self, kind: &OpKind<'_>) -> Option<Wanted> {
        let OpKind::Write { inode, offset_bytes, bytes } = *kind else { return None };
        let end = offset_bytes.checked_add(bytes.len() as u64)?;
        let node = self.get(inode).filter(|node| node.may_keep_content())?;
        let pages = node.content.absent_edge(&node.status.length, offset_bytes..end)?;
        Some(Wanted { inode, pages })
    }
}

impl<L: Lower> MemFs<L> {
    /// Reads pages of the disk. The caller is not inside.
    pub(super) fn read_outside(&self, wanted: &Wanted) -> Option<Outside> {
        let Wanted { inode, pages } = wanted;
        let start_bytes = pages.start * PAGE_BYTES;
        let (seen, epoch, valid) = {
            let state = self.state();
            let length = &state.get(*inode)?.status.length;
            let seen = length.version().seen();
            let (size, valid) = length.get();
            (seen, state.epochs.alone, size.min(valid))
        };
        let len = usize::try_from((pages.end - pages.start) * PAGE_BYTES).ok()?;
        let mut bytes = vec![0; len];
        let read = read_below(valid, start_bytes, &mut bytes, &|at, into: &mut [u8]| {
            let _reading = self.reading_below();
            self.lower.read(*inode, at, into)
        });
        // An error is met again by the call itself.
        read.ok().map(|()| Outside { start_bytes, bytes, seen, epoch })
    }

    /// Lets memory have pages, if they can be read and nothing of the file changes meanwhile. The caller is not inside.
    pub(super) fn bring(&self, wanted: &Wanted) {
        let Some(outside) = self.read_outside(wanted) else { return };
        let mut inside = self.state();
        let (state, own) = inside.parts();
        let Some(node) = state.get(wanted.inode) else { return };
        let length = &node.status.length;
        if outside.holds(state, length) {
            let (seen, bytes) = (outside.seen, &outside.bytes);
            own.kept_pages += node.content.keep_read(length, seen, wanted.pages.start, bytes);
        }
    }
}
