//! State private to a slot until it is merged with the others: a log of changes, space and numbers that it may use.

use std::collections::BTreeSet;

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
use crate::by_number::ByNumber;

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
    /// Space in cubes.
    pub(crate) parts: Parts<OwnPart>,
    /// Numbers that the disk has promised.
    pub(crate) numbers: Numbers,
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

/// Space of a cube that a slot has for itself.
#[derive(Debug, Default)]
pub(crate) struct OwnPart {
    /// The space that is leased, and what changes may take of it.
    pub(crate) room: Option<Room>,
    /// Pages that came, less those that went, of those for which space is reserved.
    pub(crate) pages: i64,
}

/// Values for cubes, of which most slots have one: that of the root cube lies in place.
#[derive(Debug, Default)]
pub(crate) struct Parts<T> {
    root: T,
    others: ByNumber<u32, T>,
}

impl<T: Default> Parts<T> {
    /// The value of a cube.
    pub(crate) fn of(&mut self, cube: u32) -> &mut T {
        if cube == 0 { &mut self.root } else { self.others.entry(cube).or_default() }
    }

    /// The same, if somebody asked for it before.
    pub(crate) fn known(&self, cube: u32) -> Option<&T> {
        if cube == 0 { Some(&self.root) } else { self.others.get(&cube) }
    }

    /// Takes the value of a cube.
    fn take(&mut self, cube: u32) -> Option<T> {
        if cube == 0 { Some(std::mem::take(&mut self.root)) } else { self.others.remove(&cube) }
    }

    /// Cubes with a value, the root cube aside.
    fn others(&self) -> impl Iterator<Item = u32> {
        self.others.keys().copied()
    }
}

/// The log of a slot, by cube, until somebody merges the logs: behind locks of their own, so that whoever does keeps no reader
/// waiting.
pub(crate) type Logged = Parts<LoggedPart>;

/// The log of a slot for one cube.
#[derive(Debug, Default)]
pub(crate) struct LoggedPart {
    /// Changes, in the order of their stamps.
    pub(crate) records: Vec<(Stamp, Record)>,
    /// Files whose content or size changed.
    pub(crate) changed: Vec<InodeNr>,
}

/// Space of a cube that no slot has leased.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Pool(Mutex<Free>);

#[derive(Clone, Copy, Debug, Default)]
struct Free {
    blocks: u64,
    inodes: u64,
    /// When a thread was alone last: all leases ended then.
    epoch: u64,
}

impl Pool {
    /// Takes so many blocks and inodes at least, or more; `None` if there are not as many. `left` tells what is left, for the
    /// first one who asks in an epoch: nobody has leased anything by then.
    fn take(
        &self,
        epoch: u64,
        left: impl FnOnce() -> (u64, u64),
        (blocks, inodes): (u64, u64),
    ) -> Option<(u64, u64)> {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if free.epoch != epoch {
            let (blocks, inodes) = left();
            *free = Free { blocks, inodes, epoch };
        }
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
    /// Takes what a change of a cube costs out of the lease.
    pub(crate) fn take(&mut self, cube: u32, record: &Record) {
        if let Some(room) = &mut self.parts.of(cube).room {
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

    /// Leases space of a cube until `fits` says that it is enough; at most once.
    pub(crate) fn lease(
        &mut self,
        state: &State,
        cube: u32,
        needed: (u64, u64),
        fits: impl Fn(&Room) -> bool,
    ) -> bool {
        let room = self.parts.of(cube).room.get_or_insert_with(Room::leased);
        if fits(room) {
            return true;
        }
        let left = || state.pending(cube).room.left(state.sizes);
        let pool = &state.queues.of(cube).pool;
        let Some((blocks, inodes)) = pool.take(state.epochs.alone, left, needed) else {
            return false;
        };
        room.lease(blocks, inodes);
        fits(room)
    }
}

impl Pending {
    /// Merges what slots have logged of the cube.
    fn merge(&mut self, state: &State, logs: Vec<LoggedPart>) {
        let mut records = Vec::new();
        let mut changed = Vec::new();
        for mut logged in logs {
            records.append(&mut logged.records);
            changed.append(&mut logged.changed);
        }
        records.sort_unstable_by_key(|(stamp, _)| *stamp);
        for (stamp, record) in records {
            self.take(state, &record);
            self.note_move(state, stamp, &record);
            self.log.insert(stamp, record);
        }
        // Whether there is content indeed is found out by who flushes: here the caller may have its locks.
        self.unsettled.extend(&changed);
        self.dirty.extend(&changed);
        self.room.files = self.dirty.len() as u64;
    }
}

impl<L: Lower> MemFs<L> {
    /// The queue of a cube, with all that slots have logged of it. Other threads go on: a change that is logged while this one
    /// waits for the logs comes next time, and so does whatever depends on it.
    pub(super) fn gather<'s>(&self, state: &'s State, cube: u32) -> MutexGuard<'s, Pending> {
        let mut pending = state.pending(cube);
        self.gather_into(state, cube, &mut pending);
        pending
    }

    /// The same for whoever has what waits.
    pub(super) fn gather_into(&self, state: &State, cube: u32, pending: &mut Pending) {
        let mut logs = self.logs.alone();
        let slots = logs.parts().1.into_iter();
        pending.merge(state, slots.filter_map(|logged| logged.take(cube)).collect());
        drop(logs);
        state.note_pressure(cube, pending);
    }

    /// Merges all that slots have. Their leases end.
    pub(super) fn merge(&self, alone: &mut Alone<'_, State, Own>) {
        let (state, slots) = alone.parts();
        let mut cubes: BTreeSet<u32> = BTreeSet::from([0]);
        self.logs.alone().parts().1.iter().for_each(|logged| cubes.extend(logged.others()));
        slots.iter().for_each(|own| cubes.extend(own.parts.others()));
        cubes.iter().for_each(|cube| drop(self.gather(state, *cube)));
        let mut crowded = Vec::new();
        for own in slots {
            crowded.append(&mut own.crowded);
            own.logged = 0;
            for cube in &cubes {
                let Some(part) = own.parts.take(*cube) else { continue };
                state.pending(*cube).room.pages += part.pages;
            }
            for inode in own.numbers.take_unused() {
                state.pending(state.cube_of(inode)).returned.push(inode);
            }
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
        for cube in cubes {
            state.note_pressure(cube, &state.pending(cube));
        }
    }
}

impl State {
    /// Lets slots lease what is free, after the room for changes was changed. All their leases have ended.
    pub(super) const fn refill(&mut self) {
        self.epochs.alone += 1;
    }
}
