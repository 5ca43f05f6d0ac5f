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
//! log), `below` (readers of the disk apart from its changes). A flush holds `state` only while it takes changes out of the
//! log and when they are done, so that others go on in memory meanwhile. The caller keeps reads and changes apart, as
//! [`FileSystem`](crate::FileSystem) does.

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

use std::collections::{BTreeSet, HashMap};

use floe_ext4::files::Attribute;
use floe_format::InodeNr;
use floe_format::ext::inode::FileType;
use floe_sync::atomic::{AtomicU64, Ordering};
use floe_sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::op::{Applied, Op, OpKind};
use crate::store::{SeekFor, Space, Store};
use crate::{Attributes, Directory, FsError};
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
    state: RwLock<State>,
    below: RwLock<()>,
    /// Files that programs opened.
    opened: AtomicU64,
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
        };
        let (state, flushing, below) = (RwLock::new(state), Mutex::default(), RwLock::default());
        Self { lower, facts, limits, flushing, state, below, opened: AtomicU64::new(0) }
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

    /// The file that a program opens next.
    fn next_handle(&self) -> Handle {
        Handle(self.opened.load(Ordering::SeqCst))
    }

    /// The file system below.
    pub const fn lower(&self) -> &L {
        &self.lower
    }

    /// Changes that wait for the disk.
    pub fn waiting_records(&self) -> usize {
        self.state().log.len()
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        // A panic in a change ends all changes, below.
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(|poisoned| {
            let mut state = poisoned.into_inner();
            // It may have left a change half made, which must not reach the disk.
            let why = || "a thread panicked in a change".to_owned();
            state.ended.get_or_insert_with(why);
            state
        })
    }

    fn flushing(&self) -> MutexGuard<'_, ()> {
        self.flushing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reading_below(&self) -> RwLockReadGuard<'_, ()> {
        self.below.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn changing_below(&self) -> RwLockWriteGuard<'_, ()> {
        self.below.write().unwrap_or_else(PoisonError::into_inner)
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

impl<L: Lower> Store for MemFs<L> {
    fn attributes(&self, inode: InodeNr) -> Result<Attributes, FsError> {
        if let Some(node) = self.state().nodes.get(&inode) {
            return Ok(self.shown(node));
        }
        let mut state = self.state_mut();
        self.load(&mut state, inode)?;
        state.nodes.get(&inode).map(|node| self.shown(node)).ok_or(FsError::NotFound)
    }

    fn directory(&self, inode: InodeNr) -> Result<Arc<Directory>, FsError> {
        if let Some(names) = self.state().nodes.get(&inode).and_then(|node| node.names.as_ref()) {
            return Ok(Arc::clone(names));
        }
        let mut state = self.state_mut();
        state.evict(&self.limits);
        self.load_names(&mut state, inode)
    }

    fn read(&self, inode: InodeNr, offset_bytes: u64, into: &mut [u8]) -> Result<usize, FsError> {
        let state = self.state();
        state.late.judge(inode)?;
        let below = |at: u64, into: &mut [u8]| {
            let _reading = self.reading_below();
            self.lower.read(inode, at, into)
        };
        match state.nodes.get(&inode).filter(|node| node.unborn || node.content.is_dirty()) {
            None => below(offset_bytes, into),
            Some(node) if node.is_directory() => Err(FsError::IsADirectory),
            Some(node) if node.attributes.kind != FileType::Regular => Err(FsError::Invalid),
            Some(node) => {
                let rest = node.attributes.size_bytes.saturating_sub(offset_bytes);
                let len = rest.min(into.len() as u64) as usize;
                node.content.read(offset_bytes, &mut into[..len], &below)?;
                Ok(len)
            }
        }
    }

    fn seek(&self, inode: InodeNr, offset_bytes: u64, what: SeekFor) -> Result<u64, FsError> {
        if !self.state().is_clean(inode) {
            // Where blocks lie is known once they are on the disk.
            self.flush_of(&self.flushing(), [inode])?;
        }
        let _reading = self.reading_below();
        self.lower.seek(inode, offset_bytes, what)
    }

    fn target(&self, inode: InodeNr) -> Result<Vec<u8>, FsError> {
        let state = self.state();
        state.late.judge(inode)?;
        let node = state.nodes.get(&inode);
        if let Some(target) = node.and_then(|node| node.target.as_ref()) {
            return Ok(target.to_vec());
        }
        if node.is_some_and(|node| node.unborn) {
            return Err(FsError::Invalid);
        }
        let _reading = self.reading_below();
        self.lower.target(inode)
    }

    fn extended_attributes(&self, inode: InodeNr) -> Result<Vec<Attribute>, FsError> {
        let state = self.state();
        state.late.judge(inode)?;
        if state.nodes.get(&inode).is_some_and(|node| node.unborn) {
            // Something new that has any passes.
            return Ok(Vec::new());
        }
        let _reading = self.reading_below();
        self.lower.extended_attributes(inode)
    }

    fn space(&self) -> Space {
        self.state().room.shown()
    }

    fn block_bytes(&self) -> u32 {
        self.lower.block_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.lower.is_read_only()
    }

    fn apply(&self, op: &Op<'_>) -> Result<Applied, FsError> {
        if self.facts.immediate.is_none() {
            let mut state = self.state_mut();
            state.judge()?;
            if let Some(applied) = self.defer(&mut state, op)? {
                drop(state);
                self.relieve()?;
                return Ok(applied);
            }
        }
        self.pass(op)
    }

    fn release(&self, inode: InodeNr) -> Result<(), FsError> {
        self.let_go(inode)
    }

    fn sync(&self) -> Result<(), FsError> {
        self.flush_all()?;
        self.lower.sync()?;
        self.state_mut().late.report_all()
    }

    fn sync_inode(&self, inode: InodeNr) -> Result<(), FsError> {
        self.flush_of(&self.flushing(), [inode])?;
        self.lower.sync()
    }

    fn open(&self) -> Handle {
        Handle(self.opened.fetch_add(1, Ordering::SeqCst))
    }

    fn late_error(&self, inode: InodeNr, of: Option<Handle>, closes: bool) -> Result<(), FsError> {
        if self.facts.immediate.is_some() {
            return Ok(());
        }
        self.state_mut().late.report(inode, of, closes)
    }

    fn tend(&self) -> Result<(), FsError> {
        self.flush_some()
    }
}
