//! Changes that wait for the disk, after the logs of slots are merged. Whoever flushes has its lock; calls that change or
//! read something need it only where they are alone.

use std::collections::BTreeSet;

use floe_format::InodeNr;
use floe_sync::atomic::{AtomicU64, Ordering};
use floe_sync::{MutexGuard, PoisonError};

use super::State;
use super::absorb::{absorb, directories};
use super::log::Log;
use super::mnode::Mnode;
use super::pages::PAGE_BYTES;
use super::record::Record;
use super::room::{Cost, Room};

/// Changes that wait.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) log: Log,
    pub(crate) room: Room,
    /// Files whose content the disk lacks in part.
    pub(crate) dirty: BTreeSet<InodeNr>,
    /// Inodes whose times on the disk may differ.
    pub(crate) unsettled: BTreeSet<InodeNr>,
    /// Promised numbers that came and went.
    pub(crate) returned: Vec<InodeNr>,
    /// A batch is on its way to the disk.
    pub(crate) flying: bool,
}

/// How much waits, for all to see.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Pressure {
    records: AtomicU64,
    content_bytes: AtomicU64,
}

impl Pressure {
    pub(crate) fn note(&self, pending: &Pending) {
        let pages = pending.room.pages.max(0).cast_unsigned();
        for (word, value) in
            [(&self.records, pending.log.len() as u64), (&self.content_bytes, pages * PAGE_BYTES)]
        {
            if word.load(Ordering::Relaxed) != value {
                word.store(value, Ordering::Relaxed);
            }
        }
    }

    /// Changes and bytes of content.
    pub(crate) fn get(&self) -> (u64, u64) {
        (self.records.load(Ordering::Relaxed), self.content_bytes.load(Ordering::Relaxed))
    }
}

impl Pending {
    pub(crate) fn new(room: Room) -> Self {
        let (log, dirty) = (Log::default(), BTreeSet::new());
        Self { log, room, dirty, unsettled: BTreeSet::new(), returned: Vec::new(), flying: false }
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
    /// The waiting changes. Logs of slots are not merged here.
    pub(crate) fn pending(&self) -> MutexGuard<'_, Pending> {
        // A panic in a change ends all changes.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
