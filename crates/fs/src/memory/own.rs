//! What a slot has for itself until it is merged with the others: a log of changes, space and numbers that it may use.

use floe_format::InodeNr;
use floe_sync::{Mutex, PoisonError};

use super::State;
use super::numbers::Numbers;
use super::record::{Record, Stamp};
use super::room::{Cost, Room};

/// Changes that a slot logs before they are merged with those of others.
const MOST_RECORDS: usize = 1024;
/// Pages that a slot takes memory for before somebody looks whether there are too many.
const MOST_PAGES: u64 = 1024;
/// Blocks that a slot takes at once where there are many.
const BLOCKS_PER_LEASE: u64 = 8192;
/// Inodes, likewise.
const INODES_PER_LEASE: u64 = 1024;
/// A slot takes at most this part of what is left.
const PART_PER_LEASE: u64 = 32;

/// What a slot has for itself.
#[derive(Debug, Default)]
pub(crate) struct Own {
    pub(crate) number: u64,
    /// Files that programs opened here.
    pub(crate) opened: u64,
    /// Changes, in the order of their stamps.
    records: Vec<(Stamp, Record)>,
    /// What they may take of the space that is leased.
    pub(crate) room: Option<Room>,
    /// Numbers that the disk has promised.
    pub(crate) numbers: Numbers,
    /// Files whose content or size changed.
    pub(crate) changed: Vec<InodeNr>,
    /// Pages that came and went, of those for which space is reserved.
    pub(crate) pages: u64,
    pub(crate) pages_gone: u64,
    /// Pages for which memory was taken.
    pub(crate) kept_pages: u64,
    /// Inodes that were created.
    pub(crate) born: usize,
    /// Names that were added.
    pub(crate) names: usize,
    /// Directories with long chains.
    pub(crate) crowded: Vec<InodeNr>,
}

/// Space that no slot has leased.
#[derive(Debug, Default)]
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
        // What a failure takes of the blocks comes back with the next merge.
        free.inodes = free.inodes.checked_sub(inodes)?;
        Some((blocks, inodes))
    }
}

impl Own {
    /// Logs a change for which there is room.
    pub(crate) fn push(&mut self, stamp: Stamp, record: Record) {
        if let Some(room) = &mut self.room {
            room.take(&Cost::of(&record));
        }
        self.records.push((stamp, record));
    }

    /// The last change of this slot, if it has this stamp.
    pub(crate) fn last_of(&mut self, stamp: Stamp) -> Option<&mut Record> {
        let last = self.records.last_mut().filter(|(last, _)| *last == stamp);
        last.map(|(_, record)| record)
    }

    /// Notes that the content of a file changed.
    pub(crate) fn note_content(&mut self, inode: InodeNr) {
        if self.changed.last() != Some(&inode) {
            self.changed.push(inode);
        }
    }

    /// Whether what it has is to be merged.
    pub(crate) fn is_full(&self) -> bool {
        self.records.len() > MOST_RECORDS
            || self.changed.len() > MOST_RECORDS
            || self.born > MOST_RECORDS
            || self.keeps_many()
            || !self.crowded.is_empty()
    }

    /// Whether it has taken memory for many pages.
    pub(crate) const fn keeps_many(&self) -> bool {
        self.kept_pages > MOST_PAGES
    }

    /// Leases space until `fits` says that it is enough; at most once.
    pub(crate) fn lease(
        &mut self,
        state: &State,
        blocks: u64,
        inodes: u64,
        fits: impl Fn(&Room) -> bool,
    ) -> bool {
        let room = self.room.get_or_insert_with(|| state.room.empty());
        if fits(room) {
            return true;
        }
        let Some((blocks, inodes)) = state.pool.take(blocks, inodes) else { return false };
        room.lease(blocks, inodes);
        fits(room)
    }
}

impl State {
    /// Merges what slots have. Their leases end.
    pub(super) fn merge(&mut self, slots: Vec<&mut Own>) {
        let mut records = Vec::new();
        let (mut crowded, mut changed) = (Vec::new(), Vec::new());
        for own in slots {
            records.append(&mut own.records);
            changed.append(&mut own.changed);
            crowded.append(&mut own.crowded);
            own.room = None;
            self.returned.extend(own.numbers.take_unused());
            let (came, gone) =
                (std::mem::take(&mut own.pages), std::mem::take(&mut own.pages_gone));
            self.room.pages = (self.room.pages + came).saturating_sub(gone);
            self.kept_pages += std::mem::take(&mut own.kept_pages);
            self.names += std::mem::take(&mut own.names);
            self.nodes.count += std::mem::take(&mut own.born);
        }
        records.sort_unstable_by_key(|(stamp, _)| *stamp);
        for (stamp, record) in records {
            self.room.take(&Cost::of(&record));
            self.log.insert(stamp, record);
        }
        for inode in changed {
            self.unsettled.insert(inode);
            self.note_content(inode, 0);
        }
        for inode in crowded {
            let Some(node) = self.nodes.get_mut(inode.0) else { continue };
            let before = node.name_count();
            if let Some(stripes) = node.stripes_mut() {
                stripes.rebuild();
            }
            self.names = (self.names + node.name_count()).saturating_sub(before);
        }
        self.nodes.grow(self.nodes.count);
    }

    /// Lets slots lease what is free, after the room for changes was changed.
    pub(super) fn refill(&mut self) {
        let (blocks, inodes) = self.room.left();
        self.pool.set(blocks, inodes);
    }
}
