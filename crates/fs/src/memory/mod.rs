//! The file system in memory: it answers from mnodes, logs changes, and lets the disk have them later, in batches.
//!
//! A change is judged and made in memory, and a [record] of it goes to the [log]. Records reach the disk every few
//! seconds, when there are too many of them, and when a program asks for it; then the [planner](plan) says which others must
//! go along. Content of files waits in pages ([content]). What came and went in between never reaches the disk ([absorb]).
//! No change that was accepted can fail later for lack of space ([room]).
//!
//! A change whose effects memory does not know (an access list, a directory that folds case, little space) *passes*: all on
//! which it depends is flushed, and the disk makes it at once. So does a change that memory would refuse for a rare reason:
//! the disk says why.
//!
//! Locks, in the order in which a thread takes them: `flushing` (one flush or passing change at a time), `state` (mnodes and
//! log; whoever changes it is alone, see [`Slots`]), `below` (readers of the disk apart from its changes). A flush holds
//! `state` only while it takes changes out of the log and when they are done, so that others go on in memory meanwhile.

mod absorb;
mod carry;
mod change;
mod content;
mod flush;
mod log;
mod losses;
mod lower;
mod mnode;
mod names;
mod null_disk;
mod numbers;
mod pass;
mod plan;
mod record;
mod room;
mod serve;

use std::collections::{BTreeSet, HashMap};
use std::ops::{Deref, DerefMut};

use floe_format::InodeNr;
use floe_sync::{Alone, Arc, Entered, Mutex, MutexGuard, PoisonError, Slots, thread};

use crate::op::{Applied, Op, OpKind};
use crate::{Attributes, Directory, FsError, Store};
use log::Log;
pub use losses::Handle;
use losses::LateErrors;
pub use lower::{Deed, Facts, Lower};
use mnode::{Lists, Mnode};
pub use null_disk::NullDisk;
use numbers::Numbers;
use record::{Record, Stamp};
use room::{Cost, Room};

/// How much may wait in memory.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Changes that wait before a program that makes another one flushes some itself.
    pub records: usize,
    /// Bytes of content that wait, likewise.
    pub content_bytes: u64,
    /// Inodes that are kept although the disk has all of them.
    pub clean_inodes: usize,
    /// Names of directories that are kept, likewise.
    pub clean_names: usize,
    /// Nothing waits: the disk makes each change at once, as it does anyway without a journal or with quotas.
    pub immediate: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            records: 1 << 15,
            content_bytes: 64 << 20,
            clean_inodes: 1 << 17,
            clean_names: 1 << 20,
            immediate: false,
        }
    }
}

/// A file system in memory over one that keeps it.
#[derive(Debug)]
pub struct MemFs<L> {
    lower: L,
    facts: Facts,
    limits: Limits,
    flushing: Mutex<()>,
    state: Slots<State, Own>,
    below: Slots<(), ()>,
}

/// What a slot has for itself.
#[derive(Debug, Default)]
struct Own {
    number: u64,
    /// Files that programs opened here.
    opened: u64,
}

/// What memory knows.
#[derive(Debug)]
struct State {
    nodes: HashMap<InodeNr, Mnode>,
    log: Log,
    room: Room,
    numbers: Numbers,
    /// Files whose content the disk lacks in part.
    dirty: BTreeSet<InodeNr>,
    /// Inodes whose times on the disk may differ.
    unsettled: BTreeSet<InodeNr>,
    /// Promised numbers that came and went.
    returned: Vec<InodeNr>,
    /// Names of all directories that are kept.
    names: usize,
    /// Why nothing is changed any more.
    ended: Option<String>,
    /// Changes that were lost.
    late: LateErrors,
    /// A thread is changing it, or panicked while it was.
    changing: bool,
}

impl State {
    fn judge(&self) -> Result<(), FsError> {
        self.ended.clone().map_or(Ok(()), |why| Err(FsError::Ended(why)))
    }

    /// Logs a change that was made in memory.
    fn push(&mut self, record: Record) -> Stamp {
        self.room.take(&Cost::of(&record));
        self.log.push(record)
    }

    /// Notes whether the content of a file waits, after it changed by so many pages.
    fn note_content(&mut self, inode: InodeNr, pages: i64) {
        self.room.pages = self.room.pages.saturating_add_signed(pages);
        if self.nodes.get(&inode).is_some_and(|node| node.content.is_dirty()) {
            self.dirty.insert(inode);
        } else {
            self.dirty.remove(&inode);
        }
        self.room.files = self.dirty.len() as u64;
    }

    /// Whether all of an inode is on the disk.
    fn is_clean(&self, inode: InodeNr) -> bool {
        !self.log.concerns(inode)
            && !self.unsettled.contains(&inode)
            && self
                .nodes
                .get(&inode)
                .is_none_or(|node| !node.in_flight && !node.unborn && !node.content.is_dirty())
    }

    /// Drops inodes that the disk has, where too many are kept.
    fn evict(&mut self, limits: &Limits) {
        if self.nodes.len() <= limits.clean_inodes && self.names <= limits.clean_names {
            return;
        }
        let clean: Vec<InodeNr> =
            self.nodes.keys().copied().filter(|inode| self.is_clean(*inode)).collect();
        for inode in clean {
            self.drop_node(inode);
        }
    }

    fn drop_node(&mut self, inode: InodeNr) {
        if let Some(node) = self.nodes.remove(&inode) {
            let names = node.names.map_or(0, |names| names.len() + 1);
            self.names = self.names.saturating_sub(names);
        }
    }
}

/// The state, alone.
struct Changing<'s>(Alone<'s, State, Own>);

impl Deref for Changing<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0
    }
}

impl DerefMut for Changing<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.0
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.0.changing = false;
        }
    }
}

impl<L: Lower> MemFs<L> {
    /// A file system in memory over `lower`, all of which it knows.
    pub fn new(lower: L, limits: Limits) -> Self {
        let mut facts = lower.facts();
        if limits.immediate {
            facts.immediate.get_or_insert("it was asked for");
        }
        let state = State {
            nodes: HashMap::new(),
            log: Log::default(),
            room: Room::new(lower.space(), &facts),
            numbers: Numbers::default(),
            dirty: BTreeSet::new(),
            unsettled: BTreeSet::new(),
            returned: Vec::new(),
            names: 0,
            ended: None,
            late: LateErrors::default(),
            changing: false,
        };
        let state: Slots<State, Own> = Slots::new(state);
        (0..).zip(state.alone().parts().1).for_each(|(number, own)| own.number = number);
        let (flushing, below) = (Mutex::default(), Slots::default());
        Self { lower, facts, limits, flushing, state, below }
    }

    /// Lets the disk have all that waits, and returns it; also whether changes are lost of which nobody was told yet. What
    /// is written is not durable before the disk's own end.
    ///
    /// # Errors
    /// [`FsError::Ended`]: the rest is lost.
    pub fn finish(self) -> Result<(L, Result<(), FsError>), FsError> {
        self.flush_all()?;
        let mut state = self.state_mut();
        state.numbers.give_back(&self.lower);
        let lost = state.late.report_all();
        drop(state);
        Ok((self.lower, lost))
    }

    /// The file system below.
    pub const fn lower(&self) -> &L {
        &self.lower
    }

    /// Changes that wait for the disk.
    pub fn waiting_records(&self) -> usize {
        self.state().log.len()
    }

    fn state(&self) -> Entered<'_, State, Own> {
        self.state.enter()
    }

    fn state_mut(&self) -> Changing<'_> {
        let mut state = self.state.alone();
        if state.changing {
            // A panic may have left a change half made, which must not reach the disk.
            let why = || "a thread panicked in a change".to_owned();
            state.ended.get_or_insert_with(why);
        }
        state.changing = true;
        Changing(state)
    }

    fn flushing(&self) -> MutexGuard<'_, ()> {
        self.flushing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reading_below(&self) -> Entered<'_, (), ()> {
        self.below.enter()
    }

    fn changing_below(&self) -> Alone<'_, (), ()> {
        self.below.alone()
    }

    /// Lets memory have an inode.
    fn load(&self, state: &mut State, inode: InodeNr) -> Result<(), FsError> {
        if state.nodes.contains_key(&inode) {
            return Ok(());
        }
        state.late.judge(inode)?;
        let attributes = {
            let _reading = self.reading_below();
            self.lower.attributes(inode)?
        };
        state.nodes.insert(inode, Mnode::loaded(attributes));
        Ok(())
    }

    /// Lets memory have the names of a directory.
    fn load_names(&self, state: &mut State, inode: InodeNr) -> Result<Arc<Directory>, FsError> {
        self.load(state, inode)?;
        let node = state.nodes.get_mut(&inode).ok_or(FsError::NotFound)?;
        if let Some(names) = &node.names {
            return Ok(Arc::clone(names));
        }
        if !node.is_directory() {
            return Err(FsError::NotADirectory);
        }
        let names = {
            let _reading = self.reading_below();
            self.lower.directory(inode)?
        };
        state.names += names.len() + 1;
        node.names = Some(Arc::clone(&names));
        Ok(names)
    }

    /// Reads the names of a directory, which memory keeps.
    fn with_names<T>(
        &self,
        inode: InodeNr,
        read: impl FnOnce(&Directory) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        let state = self.state();
        if let Some(names) = state.nodes.get(&inode).and_then(|node| node.names.as_ref()) {
            return read(names);
        }
        drop(state);
        read(&*Store::directory(self, inode)?)
    }

    /// Which access lists an inode has.
    fn load_lists(&self, state: &mut State, inode: InodeNr) -> Result<Lists, FsError> {
        self.load(state, inode)?;
        let node = state.nodes.get_mut(&inode).ok_or(FsError::NotFound)?;
        if let Some(lists) = node.lists {
            return Ok(lists);
        }
        let lists = {
            let _reading = self.reading_below();
            Lists::of(&self.lower.extended_attributes(inode)?)
        };
        node.lists = Some(lists);
        Ok(lists)
    }

    /// The attributes of an inode as programs see them.
    fn shown(&self, node: &Mnode) -> Attributes {
        node.shown(u64::from(self.lower.block_bytes()) * u64::from(self.facts.cluster_blocks))
    }

    /// Makes a change in memory; `None` if the disk must make it at once.
    fn defer(&self, state: &mut State, op: &Op<'_>) -> Result<Option<Applied>, FsError> {
        match &op.kind {
            OpKind::Create { place, new } => self.create(state, op, place, new),
            OpKind::Link { inode, place } => self.link(state, op, *inode, place),
            OpKind::Unlink(place) => self.unlink(state, op, place),
            OpKind::RemoveDirectory(place) => self.remove_directory(state, op, place),
            OpKind::Rename { from, to, mode } => self.rename(state, op, from, to, *mode),
            OpKind::Change { inode, size_bytes, change } => {
                self.change(state, op, *inode, *size_bytes, change)
            }
            OpKind::Write { inode, offset_bytes, bytes } => {
                self.write(state, op, *inode, *offset_bytes, bytes)
            }
            OpKind::CreateUnnamed { .. }
            | OpKind::Range { .. }
            | OpKind::SetAttribute { .. }
            | OpKind::RemoveAttribute { .. } => Ok(None),
        }
    }
}
