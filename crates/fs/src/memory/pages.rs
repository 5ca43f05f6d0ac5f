//! Pages of a file in memory, which readers copy without writing anything, and which threads that write different ones change
//! at the same time.
//!
//! Pages lie in a tree of numbers that only grows beside others. A writer locks the slot of its page; the lock and what a
//! flush knows of the page lie apart from what readers touch. A page that goes is marked so, and its memory is given back by
//! somebody who is alone.

use floe_sync::atomic::{AtomicU64, Ordering};
use floe_sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::apart::Apart;
use super::status::Version;
use crate::Timestamp;

/// Bytes of a page, whatever the block size of the disk. Few where interleavings are explored, because each word counts.
pub(crate) const PAGE_BYTES: u64 = if cfg!(feature = "shuttle") { 32 } else { 4096 };
pub(crate) const PAGE: usize = PAGE_BYTES as usize;
const WORDS: usize = PAGE / 8;
const ZEROES: &[u8; PAGE] = &[0; PAGE];

/// Pages that are kept of those that a read brings at once. Whoever reads more has a cache, as the kernel has in front of a mount,
/// or a buffer of his own; to keep them here, too, takes that memory again, and longer than to read them.
pub(crate) const MOST_KEPT: u64 = 16;

/// Slots of a leaf, and cells of a file.
const SLOTS: usize = 4;
/// Children of an inner node.
const FAN: usize = 16;
/// Trees, each with one level more than the one before: the last has leaves up to 16^7.
const ROOTS: usize = 7;

/// Nobody has written or read it since it went.
const ABSENT: u64 = 0;
/// It has what the disk has.
const FILLED: u64 = 1;
/// A program wrote to it.
const WRITTEN: u64 = 2;

/// A page.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Page {
    version: Version,
    state: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Page {
    fn absent() -> Box<Self> {
        let words = std::array::from_fn(|_| AtomicU64::new(0));
        Box::new(Self { version: Version::default(), state: AtomicU64::new(ABSENT), words })
    }

    /// Copies bytes out of it; `false` if it is absent.
    pub(crate) fn read(&self, within: usize, into: &mut [u8]) -> bool {
        self.version.read(|| {
            let there = self.state.load(Ordering::Relaxed) != ABSENT;
            if there {
                self.copy_out(within, into);
            }
            there
        })
    }

    pub(crate) fn is_absent(&self) -> bool {
        self.state.load(Ordering::Acquire) == ABSENT
    }

    /// Whether a program wrote to it, so that it is no hole.
    pub(crate) fn is_written(&self) -> bool {
        self.state.load(Ordering::Acquire) == WRITTEN
    }

    fn copy_out(&self, within: usize, into: &mut [u8]) {
        let (mut word, mut at) = (within / 8, within % 8);
        let mut rest = into;
        while !rest.is_empty() {
            if at == 0 {
                let (chunks, tail) = rest.as_chunks_mut::<8>();
                for (chunk, from) in chunks.iter_mut().zip(&self.words[word..]) {
                    *chunk = from.load(Ordering::Relaxed).to_ne_bytes();
                }
                word += chunks.len();
                rest = tail;
                if rest.is_empty() {
                    return;
                }
            }
            let bytes = self.words[word].load(Ordering::Relaxed).to_ne_bytes();
            let len = (8 - at).min(rest.len());
            let (part, tail) = rest.split_at_mut(len);
            part.copy_from_slice(&bytes[at..at + len]);
            (rest, word, at) = (tail, word + 1, 0);
        }
    }

    /// The owner of the slot's lock copies bytes in.
    fn copy_in(&self, within: usize, from: &[u8]) {
        let (mut word, mut at) = (within / 8, within % 8);
        let mut rest = from;
        while !rest.is_empty() {
            if at == 0 {
                let (chunks, tail) = rest.as_chunks::<8>();
                for (chunk, into) in chunks.iter().zip(&self.words[word..]) {
                    into.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
                }
                word += chunks.len();
                rest = tail;
                if rest.is_empty() {
                    return;
                }
            }
            let mut bytes = self.words[word].load(Ordering::Relaxed).to_ne_bytes();
            let len = (8 - at).min(rest.len());
            bytes[at..at + len].copy_from_slice(&rest[..len]);
            self.words[word].store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
            (rest, word, at) = (&rest[len..], word + 1, 0);
        }
    }
}

/// State of a page for a flush.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dirt {
    /// The disk lacks something of it.
    pub(crate) dirty: bool,
    /// It is on its way to the disk.
    pub(crate) flying: bool,
    /// It counts as one that takes new blocks.
    pub(crate) fresh: bool,
}

impl Dirt {
    /// Whether space is reserved for it.
    pub(crate) const fn counts(self) -> bool {
        self.dirty || self.flying
    }
}

/// The place of a page.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    page: OnceLock<Box<Page>>,
    dirt: Apart<Mutex<Dirt>>,
}

/// A slot that is locked.
pub(crate) struct Locked<'s> {
    slot: &'s Slot,
    pub(crate) dirt: MutexGuard<'s, Dirt>,
}

impl Slot {
    pub(crate) fn page(&self) -> Option<&Page> {
        self.page.get().map(|page| &**page)
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        let dirt = self.dirt.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { slot: self, dirt }
    }
}

impl Locked<'_> {
    /// The page, if there is one.
    pub(crate) fn present(&self) -> Option<&Page> {
        self.slot.page().filter(|page| !page.is_absent())
    }

    /// Lets the page be these bytes, and zeroes behind them. Returns whether memory was taken for it.
    pub(crate) fn replace(&self, bytes: &[u8]) -> bool {
        self.set(WRITTEN, |page| {
            page.copy_in(0, bytes);
            page.copy_in(bytes.len(), &ZEROES[bytes.len()..]);
        })
    }

    /// Replaces bytes. Absent bytes become `base` first. Returns whether memory was taken for the page.
    pub(crate) fn write(&self, base: Option<&[u8; PAGE]>, within: usize, bytes: &[u8]) -> bool {
        self.set(WRITTEN, |page| {
            if let Some(base) = base {
                page.copy_in(0, base);
            }
            page.copy_in(within, bytes);
        })
    }

    /// Lets an absent page be what the disk has.
    pub(crate) fn fill(&self, with: &[u8; PAGE]) -> bool {
        self.set(FILLED, |page| page.copy_in(0, with))
    }

    fn set(&self, state: u64, copy: impl FnOnce(&Page)) -> bool {
        let is_new = self.slot.page.get().is_none();
        let page = self.slot.page.get_or_init(Page::absent);
        page.version.begin();
        copy(page);
        page.state.store(state, Ordering::Release);
        page.version.end();
        is_new
    }

    /// Zeroes a page from here on, if it is there.
    pub(crate) fn zero_from(&self, within: usize) {
        if let Some(page) = self.present() {
            page.version.begin();
            page.copy_in(within, &ZEROES[within..]);
            page.version.end();
        }
    }

    /// Lets the page go. Returns what was known of it.
    pub(crate) fn clear(&mut self) -> Dirt {
        if let Some(page) = self.present() {
            page.version.begin();
            page.state.store(ABSENT, Ordering::Release);
            page.version.end();
        }
        std::mem::take(&mut *self.dirt)
    }
}

/// State shared by writers of pages whose numbers end alike.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Cell {
    /// The last write, packed; 0 for none since the times of the inode were set.
    time: AtomicU64,
    /// Pages that take new blocks.
    pub(crate) fresh: AtomicU64,
    /// Pages that became dirty since the last flush; some may be clean again.
    dirty: Mutex<Vec<u64>>,
}

impl Cell {
    pub(crate) fn dirty(&self) -> MutexGuard<'_, Vec<u64>> {
        self.dirty.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Seconds before 1970 that a packed time can have.
const EARLIEST: i64 = 1 << 31;

/// A time of ext4 in one word, in order, never 0: 34 bits of seconds, 30 of nanoseconds.
pub(crate) fn pack(time: Timestamp) -> u64 {
    let seconds = time.seconds.clamp(1 - EARLIEST, (1 << 34) - EARLIEST - 1) + EARLIEST;
    seconds.cast_unsigned() << 30 | u64::from(time.nanoseconds)
}

pub(crate) fn unpack(word: u64) -> Option<Timestamp> {
    let seconds = (word >> 30).cast_signed() - EARLIEST;
    (word != 0).then_some(Timestamp { seconds, nanoseconds: word as u32 & ((1 << 30) - 1) })
}

type Leaf = [Slot; SLOTS];
type Child = OnceLock<Box<Node>>;

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "most nodes are leaves, which need the room")]
enum Node {
    Inner([Child; FAN]),
    Leaf(Leaf),
}

impl Node {
    fn inner() -> Box<Self> {
        Box::new(Self::Inner([const { OnceLock::new() }; FAN]))
    }

    fn leaf() -> Box<Self> {
        Box::new(Self::Leaf(Leaf::default()))
    }
}

/// The pages of a file.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    cells: [Cell; SLOTS],
    first: Leaf,
    roots: [Child; ROOTS],
}

/// The tree of a leaf's number above 0: that with as many digits.
const fn root_of(leaf: u64) -> usize {
    (leaf.ilog2() / FAN.ilog2()) as usize
}

const fn digit(leaf: u64, level: usize) -> usize {
    (leaf >> (level as u32 * FAN.ilog2())) as usize & (FAN - 1)
}

impl Pages {
    pub(crate) fn cell(&self, index: u64) -> &Cell {
        &self.cells[index as usize % SLOTS]
    }

    pub(crate) const fn cells(&self) -> &[Cell; SLOTS] {
        &self.cells
    }

    /// Notes the time of a write to a page.
    pub(crate) fn touch(&self, index: u64, time: Timestamp) {
        self.cell(index).time.fetch_max(pack(time), Ordering::AcqRel);
    }

    /// The last write since the times of the inode were set.
    pub(crate) fn last_write(&self) -> Option<Timestamp> {
        unpack(self.cells.iter().map(|cell| cell.time.load(Ordering::Acquire)).max()?)
    }

    /// The inode has the times now.
    pub(crate) fn forget_times(&self) {
        self.cells.iter().for_each(|cell| cell.time.store(0, Ordering::Release));
    }

    /// The slot of a page, if there is one.
    pub(crate) fn get(&self, index: u64) -> Option<&Slot> {
        let (leaf, slot) = (index / SLOTS as u64, index as usize % SLOTS);
        if leaf == 0 {
            return Some(&self.first[slot]);
        }
        let root = root_of(leaf);
        let mut node = self.roots.get(root)?.get()?;
        for level in (0..=root).rev() {
            let Node::Inner(children) = &**node else { return None };
            node = children[digit(leaf, level)].get()?;
        }
        if let Node::Leaf(leaf) = &**node { Some(&leaf[slot]) } else { None }
    }

    /// Whether there can be a slot of a page: within the first 4 TiB of a file.
    pub(crate) const fn has_slot(index: u64) -> bool {
        index / (SLOTS as u64) < (FAN as u64).pow(ROOTS as u32)
    }

    /// The slot of a page; `None` if it can have none.
    pub(crate) fn ensure(&self, index: u64) -> Option<&Slot> {
        let (leaf, slot) = (index / SLOTS as u64, index as usize % SLOTS);
        if leaf == 0 {
            return Some(&self.first[slot]);
        }
        let root = root_of(leaf);
        let mut node = self.roots.get(root)?.get_or_init(Node::inner);
        for level in (0..=root).rev() {
            let Node::Inner(children) = &**node else { return None };
            let new = if level == 0 { Node::leaf } else { Node::inner };
            node = children[digit(leaf, level)].get_or_init(new);
        }
        if let Node::Leaf(leaf) = &**node { Some(&leaf[slot]) } else { None }
    }

    /// Calls `visit` for the slots from a page on, in order, until it returns `false`.
    pub(crate) fn each(&self, from: u64, visit: &mut dyn FnMut(u64, &Slot) -> bool) {
        let go_on = each_of(&self.first, 0, from, visit);
        let _ = go_on
            && self.roots.iter().enumerate().all(|(level, root)| {
                root.get().is_none_or(|node| each_below(node, level, 0, from, visit))
            });
    }

    /// Slots that `counts` holds for.
    pub(crate) fn count(&self, counts: impl Fn(&Slot) -> bool) -> u64 {
        let mut count = 0;
        self.each(0, &mut |_, slot| {
            count += u64::from(counts(slot));
            true
        });
        count
    }

    /// Gives back the memory of pages that the disk has; returns how many are left.
    pub(crate) fn drop_clean(&mut self) -> usize {
        let roots = self.roots.iter_mut().filter_map(OnceLock::get_mut);
        drop_of(&mut self.first) + roots.map(|node| drop_below(node)).sum::<usize>()
    }
}

fn each_of(leaf: &Leaf, number: u64, from: u64, visit: &mut dyn FnMut(u64, &Slot) -> bool) -> bool {
    let all = (number * SLOTS as u64..).zip(leaf);
    all.filter(|(index, _)| *index >= from).all(|(index, slot)| visit(index, slot))
}

/// The same for the leaves below a node whose children differ in this digit; the digits above it are `number`.
fn each_below(
    node: &Node,
    level: usize,
    number: u64,
    from: u64,
    visit: &mut dyn FnMut(u64, &Slot) -> bool,
) -> bool {
    let Node::Inner(children) = node else { return true };
    for (digit, child) in (0..).zip(children) {
        let Some(child) = child.get() else { continue };
        let number = number * FAN as u64 + digit;
        // The first leaf behind the child.
        let end = (number + 1) << (level as u32 * FAN.ilog2());
        if end * SLOTS as u64 <= from {
            continue;
        }
        let go_on = match &**child {
            Node::Leaf(leaf) => each_of(leaf, number, from, visit),
            inner @ Node::Inner(_) => each_below(inner, level - 1, number, from, visit),
        };
        if !go_on {
            return false;
        }
    }
    true
}

fn drop_of(leaf: &mut Leaf) -> usize {
    let mut left = 0;
    for slot in leaf {
        let dirt = *slot.dirt.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !dirt.counts() {
            slot.page.take();
        }
        left += usize::from(slot.page.get().is_some());
    }
    left
}

fn drop_below(node: &mut Node) -> usize {
    match node {
        Node::Leaf(leaf) => drop_of(leaf),
        Node::Inner(children) => {
            children.iter_mut().filter_map(OnceLock::get_mut).map(|node| drop_below(node)).sum()
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn slots_are_found_and_visited_in_order(
            pages in prop::collection::btree_set(prop_oneof![0u64..40, 0u64..1 << 28], 1..40),
            from in prop_oneof![0u64..40, 0u64..1 << 28],
        ) {
            let mut all = Pages::default();
            for &page in &pages {
                prop_assert_eq!(all.get(page).is_some(), page < 4 || pages.range(..page).any(|one| one / 4 == page / 4));
                all.ensure(page).unwrap().lock().write(None, 0, &page.to_ne_bytes());
            }
            let mut seen = Vec::new();
            all.each(from, &mut |index, slot| {
                if let Some(page) = slot.page() {
                    let mut bytes = [0; 8];
                    assert!(page.read(0, &mut bytes) && u64::from_ne_bytes(bytes) == index);
                    seen.push(index);
                }
                true
            });
            let wanted: Vec<u64> = pages.range(from..).copied().collect();
            prop_assert_eq!(seen, wanted);
            let dirty = *pages.first().unwrap();
            all.get(dirty).unwrap().lock().dirt.flying = true;
            prop_assert_eq!(all.drop_clean(), 1);
        }

        #[test]
        fn bytes_go_in_and_out_anywhere(
            parts in prop::collection::vec((0usize..PAGE, 1usize..100, 1u8..), 1..20),
        ) {
            let (all, mut model) = (Pages::default(), [0u8; PAGE]);
            let slot = all.get(1).unwrap();
            for (at, len, byte) in parts {
                let end = (at + len).min(PAGE);
                model[at..end].fill(byte);
                slot.lock().write(None, at, &model[at..end]);
                let (mut bytes, page) = (vec![0; end - at], slot.page().unwrap());
                prop_assert!(page.read(at, &mut bytes) && bytes == model[at..end]);
                prop_assert!(page.read(0, &mut bytes) && bytes == model[..end - at]);
            }
        }

        #[test]
        fn packed_times_keep_their_order(one in -(1i64 << 31) + 1..15_000_000_000, more in 0i64..2, ns in 0u32..1_000_000_000) {
            let time = |seconds, nanoseconds| Timestamp { seconds, nanoseconds };
            let (one, other) = (time(one, ns), time(one + more, 999_999_999));
            prop_assert_eq!(unpack(pack(one)), Some(one));
            prop_assert_eq!(pack(one) <= pack(other), one <= other);
        }
    }
}
