//! Queues of changes that wait for the disk, one for each cube, once the logs of slots are merged. Whoever flushes has its lock;
//! calls that change or read something need it only where they are alone.

use std::collections::BTreeSet;

use floe_format::InodeNr;
use floe_sync::atomic::{AtomicU64, Ordering};
use floe_sync::{Mutex, MutexGuard, PoisonError};

use super::absorb::{absorb, directories};
use super::apart::Apart;
use super::deletions::Deletions;
use super::log::Log;
use super::mnode::Mnode;
use super::own::Pool;
use super::pages::PAGE_BYTES;
use super::plan::plan_until;
use super::record::{Action, Record, Stamp};
use super::room::{Cost, Room};
use super::together::Fsyncs;
use super::{Limits, State};

/// Changes of a cube that wait.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    pub(crate) log: Log,
    pub(crate) room: Room,
    /// Files whose content the disk lacks in part.
    pub(crate) dirty: BTreeSet<InodeNr>,
    /// Inodes whose times on the disk may differ.
    pub(crate) unsettled: BTreeSet<InodeNr>,
    /// Promised numbers that came and went.
    pub(crate) returned: Vec<InodeNr>,
    pub(crate) deletions: Deletions,
    /// Changes that moved directories; some of them may have gone.
    pub(crate) moves: BTreeSet<Stamp>,
    /// A batch is on its way to the disk.
    pub(crate) flying: bool,
}

/// The changes of one cube that wait, and who takes them to the disk. A cube waits for no turn of another, and for no space of
/// another.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// One flush or passing change of the cube at a time.
    pub(crate) turn: Apart<Mutex<()>>,
    pub(crate) fsyncs: Apart<Fsyncs>,
    pending: Apart<Mutex<Pending>>,
    pub(crate) pool: Pool,
    pressure: Pressure,
}

/// How much waits, for all to see.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Pressure {
    records: AtomicU64,
    content_bytes: AtomicU64,
    /// How much keeps inodes in memory; some more than once.
    pinned: AtomicU64,
    /// Cubes with something that waits, in the sum of all.
    busy: AtomicU64,
}

impl Pressure {
    fn words(&self) -> [&AtomicU64; 3] {
        [&self.records, &self.content_bytes, &self.pinned]
    }

    /// Notes what waits for a cube, whose lock the caller has, also in the sum of all.
    fn note(&self, pending: &Pending, total: &Self) {
        let pages = pending.room.pages.max(0).cast_unsigned();
        let now = [pending.log.len() as u64, pages * PAGE_BYTES, pending.pinned() as u64];
        let before = self.words().map(|word| word.load(Ordering::Relaxed));
        for (at, (before, now)) in before.into_iter().zip(now).enumerate() {
            if before != now {
                self.words()[at].store(now, Ordering::Relaxed);
                total.words()[at].fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
            }
        }
        let is_busy = |words: [u64; 3]| words[..2].iter().any(|word| *word > 0);
        match (is_busy(before), is_busy(now)) {
            (false, true) => drop(total.busy.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(total.busy.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
    }

    /// Changes and bytes of content.
    pub(crate) fn get(&self) -> (u64, u64) {
        (self.records.load(Ordering::Relaxed), self.content_bytes.load(Ordering::Relaxed))
    }

    /// Cubes with something that waits; at least 1.
    pub(crate) fn busy(&self) -> u64 {
        self.busy.load(Ordering::Relaxed).max(1)
    }

    /// How much keeps inodes in memory; some more than once.
    pub(crate) fn pinned(&self) -> u64 {
        self.pinned.load(Ordering::Relaxed)
    }
}

impl Pending {
    /// Drops all that waits. The numbers that creations among it had taken are given back.
    pub(crate) fn drop_all(&mut self) {
        self.room.forget_waiting();
        self.returned.extend(self.log.born());
        self.log = Log::default();
        self.dirty.clear();
        self.deletions = Deletions::default();
        self.moves.clear();
        self.unsettled.clear();
        self.flying = false;
    }

    /// Whether the disk has all changes and all content, but for times.
    pub(crate) fn is_empty(&self) -> bool {
        self.log.len() == 0 && self.dirty.is_empty() && !self.flying
    }

    /// How much keeps inodes in memory; some more than once.
    pub(crate) fn pinned(&self) -> usize {
        self.log.len() + self.dirty.len() + self.unsettled.len()
    }

    /// Reserves what a change may take.
    pub(crate) fn take(&mut self, state: &State, record: &Record) {
        self.room.take(&Cost::of(record));
        count_name_bytes(state, record, 1);
    }

    /// Notes a change that moves a directory, which joins the log.
    pub(crate) fn note_move(&mut self, state: &State, stamp: Stamp, record: &Record) {
        let Action::Rename { moved, .. } = &record.action else { return };
        if state.get(*moved).is_some_and(Mnode::is_directory) {
            self.forget_moves(self.log.len());
            self.moves.insert(stamp);
        }
    }

    /// Forgets moves of directories that came and went, if more than so many are noted.
    fn forget_moves(&mut self, most: usize) {
        if self.moves.len() > most {
            self.moves.retain(|stamp| self.log.get(*stamp).is_some());
        }
    }

    /// The changes of inodes, with all on which they depend, and with each move of a directory: whoever makes a file durable finds
    /// it by its name of then, although a directory above it was moved.
    pub(crate) fn plan_with_moves(&mut self, inodes: &[InodeNr]) -> BTreeSet<Stamp> {
        self.forget_moves(0);
        let log = &self.log;
        let moved = |stamp: &Stamp| match log.get(*stamp).map(|record| &record.action) {
            Some(Action::Rename { moved, .. }) => Some((*moved, *stamp)),
            _ => None,
        };
        let own = inodes.iter().map(|inode| (*inode, log.last()));
        plan_until(log, self.moves.iter().filter_map(moved).chain(own).collect())
    }

    /// Gives that back.
    pub(crate) fn release(&mut self, state: &State, record: &Record) {
        release(&mut self.room, state, record);
    }

    /// Notes whether the content of a file waits, after it changed by so many pages.
    pub(crate) fn note_content(&mut self, state: &State, inode: InodeNr, pages: i64) {
        self.room.pages += pages;
        if state.get(inode).is_some_and(Mnode::is_dirty) {
            self.dirty.insert(inode);
        } else {
            self.dirty.remove(&inode);
        }
        self.room.files = self.dirty.len() as u64;
    }

    /// A file has no content any more, of which so many pages waited.
    pub(crate) fn forget_content(&mut self, inode: InodeNr, pages: u64) {
        self.room.pages -= pages.cast_signed();
        self.dirty.remove(&inode);
        self.room.files = self.dirty.len() as u64;
    }

    /// Takes all changes of an inode out that came and went and is gone for good; `false` if the disk must have one of them.
    pub(crate) fn absorb(&mut self, state: &State, inode: InodeNr) -> bool {
        let Self { log, room, unsettled, .. } = self;
        let mut noted = None;
        let absorbed = absorb(log, inode, |record| {
            release(room, state, record);
            directories(record, inode, |directory| {
                if noted.replace(directory) != Some(directory) {
                    unsettled.insert(directory);
                }
            });
        });
        if absorbed {
            self.unsettled.remove(&inode);
            self.returned.push(inode);
        }
        absorbed
    }

    /// Drops what changed of an inode after its last name went, as far as nobody sees it once the inode is deleted: the kernel sets times
    /// of a file before it forgets it, and the deletion would wait for that.
    pub(crate) fn drop_unseen(&mut self, state: &State, inode: InodeNr) {
        let is_unseen = |stamp: &Stamp| {
            self.log.get(*stamp).is_some_and(|record| match &record.action {
                Action::Change { change, .. } => {
                    let seen = [change.uid, change.gid, change.project];
                    seen.iter().all(Option::is_none) && change.flags.is_none()
                }
                _ => false,
            })
        };
        let unseen: Vec<Stamp> = self.log.of_mnode(inode).rev().take_while(is_unseen).collect();
        for stamp in unseen {
            if let Some(record) = self.log.remove(stamp) {
                self.release(state, &record);
            }
        }
    }

    /// Whether all of an inode is on the disk, once slots are merged.
    pub(crate) fn has_nothing_of(&self, node: &Mnode, inode: InodeNr) -> bool {
        !self.log.concerns(inode)
            && !self.unsettled.contains(&inode)
            && !node.is_in_flight()
            && !node.is_unborn()
            && !node.is_dirty()
    }

    /// Files whose content the disk lacks, up to so many pages or one more file.
    pub(crate) fn some_contents(&self, state: &State, most_pages: u64) -> Vec<InodeNr> {
        let mut pages = 0;
        let fits = |inode: &&InodeNr| {
            let fits = pages < most_pages;
            pages += state.get(**inode).map_or(0, |node| node.content.dirty_pages());
            fits
        };
        self.dirty.iter().take_while(fits).copied().collect()
    }
}

fn release(room: &mut Room, state: &State, record: &Record) {
    room.release(&Cost::of(record));
    count_name_bytes(state, record, -1);
}

fn count_name_bytes(state: &State, record: &Record, sign: i64) {
    let Some((directory, bytes)) = record.new_name() else { return };
    if let Some(node) = state.get(directory) {
        node.count_name_bytes(sign * bytes.cast_signed());
    }
}

impl State {
    /// The queue of a cube. Logs of slots are not merged here.
    pub(crate) fn pending(&self, cube: u32) -> MutexGuard<'_, Pending> {
        // A panic in a change ends all changes.
        self.queues.of(cube).pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets all see how much waits for a cube, whose lock the caller has.
    pub(crate) fn note_pressure(&self, cube: u32, pending: &Pending) {
        self.queues.of(cube).pressure.note(pending, &self.total);
    }

    /// Whether more than a part of what may wait does, and the part of it that a cube may have does for this one. Nobody who
    /// changes something in one cube writes what waits for others.
    pub(crate) fn is_pressed(&self, cube: u32, part: u64, limits: &Limits) -> bool {
        let presses = |(records, content_bytes): (u64, u64), part: u64| {
            records > limits.records as u64 / part || content_bytes > limits.content_bytes / part
        };
        if !presses(self.total.get(), part) {
            return false;
        }
        presses(self.queues.of(cube).pressure.get(), part.saturating_mul(self.total.busy()))
    }

    /// The cube of an inode; 0: the root cube.
    pub(crate) fn cube_of(&self, inode: InodeNr) -> u32 {
        self.gates.as_ref().map_or(0, |gates| gates.of_inode(inode))
    }
}
