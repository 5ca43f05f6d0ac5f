//! Eviction: what memory keeps although the disk has it, up to limits.
//!
//! A hand goes round the table of inodes and drops what the disk has, down to seven eighths of a limit, so that dropping costs
//! as much as bringing. Readers write nothing, so nobody knows who was read last: the hand takes what it meets. Inodes of
//! which something waits stay; [`Limits::records`] bounds those.

use floe_format::InodeNr;
use floe_sync::Arc;

use super::flight::Buffers;
use super::pages::PAGE_BYTES;
use super::{Limits, State};

/// Buckets of the table that the hand passes between two looks.
const STEP: usize = 16;

/// Bytes of an inode in memory with its place in the table, rather too many: `cargo xtask fs-memory` measures them.
const BYTES_PER_INODE: u64 = 800;
/// Bytes of a name of usual length, likewise.
const BYTES_PER_NAME: u64 = 176;
/// Bytes of a change that waits, with the inodes that it keeps in memory.
const BYTES_PER_RECORD: u64 = 2 * BYTES_PER_INODE + 512;

impl Limits {
    /// The memory of the default limits.
    pub const DEFAULT_MEMORY_BYTES: u64 = 512 << 20;

    /// Limits under which a file system in memory takes about so many bytes: for inodes and names that are kept, changes that
    /// wait, content that waits and is copied on its way to the disk, and content that is kept. Memory that the disk below
    /// takes for its journal and its groups comes on top, and a single directory may have more names than fit while it is
    /// in use.
    ///
    /// Below 1 MiB they are those of 1 MiB.
    pub fn of_memory(bytes: u64) -> Self {
        let bytes = bytes.max(1 << 20);
        let count = |part: u64, each: u64| usize::try_from(part / each).unwrap_or(usize::MAX);
        Self {
            records: count(bytes / 8, BYTES_PER_RECORD),
            // On its way to the disk there are two copies of it.
            content_bytes: bytes / 8,
            clean_inodes: count(bytes / 4, BYTES_PER_INODE),
            clean_names: count(bytes / 4, BYTES_PER_NAME),
            clean_bytes: bytes / 16,
            immediate: false,
        }
    }

    /// The part of what may wait or be kept that each of so many slots may have before all are merged.
    pub(super) fn share(&self, slots: usize) -> Share {
        let slots = slots.max(1);
        let pages = self.content_bytes.min(self.clean_bytes) / PAGE_BYTES / (2 * slots as u64);
        let records = self.records.min(self.clean_inodes) / (2 * slots);
        Share { records: records.clamp(16, 1024), pages: pages.clamp(16, 1024) }
    }
}

impl Default for Limits {
    /// Those of [`Limits::DEFAULT_MEMORY_BYTES`].
    fn default() -> Self {
        Self::of_memory(Self::DEFAULT_MEMORY_BYTES)
    }
}

/// How much a slot may have before it is merged with the others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// Changes, new inodes.
    pub(super) records: usize,
    /// Pages for which memory was taken.
    pub(super) pages: u64,
}

/// The names, inodes and content that are kept, as far as slots are merged.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Names of all directories, each with some for the directory itself.
    pub(super) names: usize,
    /// Pages for which memory was taken.
    pub(super) pages: u64,
    /// The last directory with more names than half of all that may be kept: it stays while it is the last, because whoever
    /// uses it would read all of it again for each name.
    large: Option<InodeNr>,
    /// The bucket that the hand looks at next.
    hand: usize,
    /// The amounts left when the hand last came round without success: it goes again when there is an eighth more, or when
    /// half of what waited then has reached the disk.
    left: Amounts,
    pinned: u64,
    /// Buffers for content on its way to the disk.
    pub(super) buffers: Arc<Buffers>,
}

/// Inodes, names and pages without those that wait.
#[derive(Clone, Copy, Debug, Default)]
struct Amounts {
    inodes: u64,
    names: u64,
    pages: u64,
}

impl Amounts {
    const fn of(limits: &Limits) -> Self {
        Self {
            inodes: limits.clean_inodes as u64,
            names: limits.clean_names as u64,
            pages: limits.clean_bytes / PAGE_BYTES,
        }
    }

    fn each(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            inodes: of(self.inodes, other.inodes),
            names: of(self.names, other.names),
            pages: of(self.pages, other.pages),
        }
    }

    /// Whether any of them is more than another's.
    const fn exceeds(self, other: Self) -> bool {
        self.inodes > other.inodes || self.names > other.names || self.pages > other.pages
    }
}

impl State {
    fn amounts(&self) -> Amounts {
        let waiting = self.total.get().1 / PAGE_BYTES;
        Amounts {
            inodes: self.nodes.count as u64,
            names: self.kept.names as u64,
            pages: self.kept.pages.saturating_sub(waiting),
        }
    }

    /// Whether memory keeps more than it may, as far as slots are merged.
    pub(super) fn keeps_much(&self, limits: &Limits) -> bool {
        let most = Amounts::of(limits);
        let still = 2 * self.total.pinned() >= self.kept.pinned;
        let mark = most.each(self.kept.left, |most, left| match still {
            true => most.max(left + most / 8),
            false => most,
        });
        self.amounts().exceeds(mark)
    }

    /// Drops what the disk has, where too much is kept. All slots are merged.
    pub(super) fn evict(&mut self, limits: &Limits) {
        if !self.keeps_much(limits) {
            return;
        }
        let most = Amounts::of(limits);
        let low = most.each(most, |most, _| most - most / 8);
        let buckets = self.nodes.buckets();
        for _ in 0..buckets.div_ceil(STEP) {
            let now = self.amounts();
            if !now.exceeds(low) {
                self.kept.left = Amounts::default();
                return;
            }
            let from = self.kept.hand % buckets;
            self.kept.hand = from + STEP;
            for inode in self.nodes.keys(from..(from + STEP).min(buckets)) {
                self.evict_one(InodeNr(inode), now, low);
            }
        }
        (self.kept.left, self.kept.pinned) = (self.amounts(), self.total.pinned());
    }

    /// Drops an inode, or what it has too much of.
    fn evict_one(&mut self, inode: InodeNr, now: Amounts, low: Amounts) {
        let Some(node) = self.nodes.get(inode.0) else { return };
        let helps = now.inodes > low.inodes || now.names > low.names && node.is_directory();
        let may_go = self.kept.large != Some(inode);
        let waits = || !self.pending(self.cube_of(inode)).has_nothing_of(node, inode);
        if helps && may_go && !waits() {
            self.drop_node(inode);
            return;
        }
        if now.pages > low.pages
            && let Some(node) = self.nodes.get_mut(inode.0)
        {
            let before = node.content.kept_pages();
            let gone = before.saturating_sub(node.drop_clean() as u64);
            self.kept.pages = self.kept.pages.saturating_sub(gone);
        }
    }

    /// Notes that memory has the names of a directory now.
    pub(super) fn note_names(&mut self, inode: InodeNr, names: usize, limits: &Limits) {
        self.kept.names += names;
        if names > limits.clean_names / 2 {
            self.kept.large = Some(inode);
        }
    }

    pub(super) fn drop_node(&mut self, inode: InodeNr) {
        if let Some(mut node) = self.nodes.remove(inode.0) {
            self.nodes.count -= 1;
            self.kept.names = self.kept.names.saturating_sub(node.name_count());
            self.kept.pages = self.kept.pages.saturating_sub(node.content.kept_pages());
        }
    }

    /// Nothing is kept any more.
    pub(super) fn keep_nothing(&mut self) {
        self.kept = Kept::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_memory_add_up_to_it() {
        for bytes in [1u64 << 20, 64 << 20, 1 << 40] {
            let limits = Limits::of_memory(bytes);
            let all = limits.records as u64 * BYTES_PER_RECORD
                + 2 * limits.content_bytes
                + limits.clean_inodes as u64 * BYTES_PER_INODE
                + limits.clean_names as u64 * BYTES_PER_NAME
                + limits.clean_bytes;
            assert!(all <= bytes && all > bytes / 8 * 7, "{all} of {bytes}");
        }
        let least = Limits::of_memory(0).share(64);
        assert!(least.records >= 16 && least.pages >= 16);
    }
}
