//! State private to a slot until it is merged with the others: a log of changes, space and numbers that it may use.

use floe_format::InodeNr;
use floe_sync::{Alone, Mutex, MutexGuard, PoisonError};

use super::evict::Share;
use super::lower::Lower;
use super::numbers::Numbers;
use super::quotas::Leases;
use super::record::{Record, Stamp};
use super::room::{Cost, Room};
use super::waiting::Pending;
use super::{MemFs, State};

/// Blocks that a slot takes at once where there are many.
const BLOCKS_PER_LEASE: u64 = 8192;
/// Inodes, likewise.
const INODES_PER_LEASE: u64 = 1024;
/// A slot takes at most this part of what is left.
const PART_PER_LEASE: u64 = 32;

/// State private to a slot.
#[derive(Debug, Default)]
pub(crate) struct Own {
    pub(crate) number: u64,
    /// The last change that was logged here: the next one has a later stamp, however coarse the clock is.
    pub(crate) last: Stamp,
    /// Files that programs opened here.
    pub(crate) opened: u64,
    /// Changes that were logged since the last merge of all that a slot has.
    pub(crate) logged: usize,
    /// The part of the leased space that they may take.
    pub(crate) room: Option<Room>,
    /// Numbers that the disk has promised.
    pub(crate) numbers: Numbers,
    /// Pages that came, less those that went, of those for which space is reserved.
    pub(crate) pages: i64,
    /// Quota leased to owners, where limits count.
    pub(crate) quota: Leases,
    /// Pages for which memory was taken.
    pub(crate) kept_pages: u64,
    /// Inodes that were created.
    pub(crate) born: usize,
    /// Names that were added.
    pub(crate) names: usize,
    /// Directories with long chains.
    pub(crate) crowded: Vec<InodeNr>,
}

/// The log of a slot until somebody merges the logs: behind locks of their own, so that whoever does keeps no reader
/// waiting.
#[derive(Debug, Default)]
pub(crate) struct Logged {
    /// Changes, in the order of their stamps.
    pub(crate) records: Vec<(Stamp, Record)>,
    /// Files whose content or size changed.
    pub(crate) changed: Vec<InodeNr>,
}

/// Space that no slot has leased.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Pool(Mutex<Free>);

#[derive(Clone, Copy, Debug, Default)]
struct Free {
    blocks: u64,
    inodes: u64,
}

impl Pool {
    fn set(&mut self, blocks: u64, inodes: u64) {
        *self.0.get_mut().unwrap_or_else(PoisonError::into_inner) = Free { blocks, inodes };
    }

    /// Takes so many blocks and inodes at least, or more; `None` if there are not as many.
    fn take(&self, blocks: u64, inodes: u64) -> Option<(u64, u64)> {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let part = |free: u64, most: u64, least: u64| least.max(most.min(free / PART_PER_LEASE));
        let blocks = part(free.blocks, BLOCKS_PER_LEASE, blocks);
        let inodes = part(free.inodes, INODES_PER_LEASE, inodes);
        free.blocks = free.blocks.checked_sub(blocks)?;
        // Blocks taken before a failure come back with the next merge.
        free.inodes = free.inodes.checked_sub(inodes)?;
        Some((blocks, inodes))
    }
}

impl Own {
    /// Takes what a change costs out of the lease.
    pub(crate) fn take(&mut self, record: &Record) {
        if let Some(room) = &mut self.room {
            room.take(&Cost::of(record));
        }
        self.logged += 1;
    }

    /// Whether what it has is to be merged.
    pub(super) fn is_full(&self, share: Share) -> bool {
        self.logged > share.records
            || self.born > share.records
            || self.keeps_many(share)
            || !self.crowded.is_empty()
    }

    /// Whether it has taken memory for many pages.
    pub(super) const fn keeps_many(&self, share: Share) -> bool {
        self.kept_pages > share.pages
    }

    /// Leases space until `fits` says that it is enough; at most once.
    pub(crate) fn lease(
        &mut self,
        state: &State,
        blocks: u64,
        inodes: u64,
        fits: impl Fn(&Room) -> bool,
    ) -> bool {
        let room = self.room.get_or_insert_with(|| state.pending().room.empty());
        if fits(room) {
            return true;
        }
        let Some((blocks, inodes)) = state.pool.take(blocks, inodes) else { return false };
        room.lease(blocks, inodes);
        fits(room)
    }
}

impl Pending {
    /// Merges what slots have logged.
    fn merge(&mut self, state: &State, logs: Vec<&mut Logged>) {
        let mut records = Vec::new();
        let mut changed = Vec::new();
        for logged in logs {
            records.append(&mut logged.records);
            changed.append(&mut logged.changed);
        }
        records.sort_unstable_by_key(|(stamp, _)| *stamp);
        for (stamp, record) in records {
            self.take(state, &record);
            self.log.insert(stamp, record);
        }
        // Whether there is content indeed is found out by who flushes: here the caller may have its locks.
        self.unsettled.extend(&changed);
        self.dirty.extend(&changed);
        self.room.files = self.dirty.len() as u64;
    }
}

impl<L: Lower> MemFs<L> {
    /// The waiting changes, with all that slots have logged. Other threads go on: a change that is logged while this one
    /// waits for the logs comes next time, and so does whatever depends on it.
    pub(super) fn gather<'s>(&self, state: &'s State) -> MutexGuard<'s, Pending> {
        let mut pending = state.pending();
        self.gather_into(state, &mut pending);
        pending
    }

    /// The same for whoever has what waits.
    pub(super) fn gather_into(&self, state: &State, pending: &mut Pending) {
        let mut logs = self.logs.alone();
        pending.merge(state, logs.parts().1);
        drop(logs);
        state.pressure.note(pending);
    }

    /// Merges all that slots have. Their leases end.
    pub(super) fn merge(&self, alone: &mut Alone<'_, State, Own>) {
        let (state, slots) = alone.parts();
        drop(self.gather(state));
        let mut crowded = Vec::new();
        for own in slots {
            crowded.append(&mut own.crowded);
            (own.room, own.logged) = (None, 0);
            let pending = state.pending.get_mut().unwrap_or_else(PoisonError::into_inner);
            pending.returned.extend(own.numbers.take_unused());
            pending.room.pages += std::mem::take(&mut own.pages);
            state.kept.pages += std::mem::take(&mut own.kept_pages);
            state.kept.names += std::mem::take(&mut own.names);
            state.nodes.count += std::mem::take(&mut own.born);
        }
        for inode in crowded {
            let Some(node) = state.nodes.get_mut(inode.0) else { continue };
            let before = node.name_count();
            if let Some(stripes) = node.stripes_mut() {
                stripes.rebuild();
            }
            let after = node.name_count();
            state.kept.names = (state.kept.names + after).saturating_sub(before);
        }
        state.nodes.grow(state.nodes.count);
        state.pressure.note(&state.pending());
    }
}

impl State {
    /// Lets slots lease what is free, after the room for changes was changed.
    pub(super) fn refill(&mut self) {
        let (blocks, inodes) = self.pending().room.left();
        self.pool.set(blocks, inodes);
    }
}
