//! The file system in memory: it answers from mnodes, logs changes, and lets the disk have them later, in batches.
//!
//! A change is judged and made in memory, and a [record] of it goes to the [log]. Records reach the disk every few
//! seconds, when there are too many of them, and when a program asks for it; then the [planner](plan) says which others must
//! go along. Content of files waits in pages ([content]). Inodes created and removed in between never reach the disk
//! ([absorb]). No change that was accepted can fail later for lack of space ([room]).
//!
//! A change whose effects memory does not know (an access list, a directory that folds case, little space) *passes*: all on
//! which it depends is flushed, and the disk makes it at once. So does a change that memory would refuse for a rare reason:
//! the disk says why.
//!
//! Each cube has a queue of its own ([`Queue`]): a log, reservations, and a turn of whoever takes them to the disk. No change
//! concerns two cubes; one that might passes. A cube that fails keeps or drops what waits in its own queue.
//!
//! Locks, in the order in which a thread takes them: turns of queues by the numbers of their cubes (one flush or passing change of
//! a cube at a time), `state` (who must not have others beside him is alone there, see [`Slots`]; all others enter), the
//! [pool](own) of a cube, what [waits](waiting) for it, `moving` (one directory gets another parent at a time), those of stripes,
//! inodes and pages, `logs` (what slots have logged), `below` (readers of the disk apart from its changes). A flush is alone only
//! where it drops inodes, so that others go on in memory meanwhile.

mod absorb;
pub(crate) mod apart;
mod attempt;
mod bring;
mod carry;
mod chains;
mod change;
mod content;
mod crossing;
mod deletions;
mod departures;
mod ends;
mod evict;
mod extended;
mod flight;
mod flush;
mod follow;
#[cfg(all(test, feature = "shuttle"))]
mod interleavings;
mod locks;
mod log;
mod losses;
mod lower;
mod mnode;
mod names;
mod null_disk;
mod numbers;
mod own;
mod pages;
mod pass;
mod plan;
mod quotas;
mod record;
mod rename;
mod room;
mod serve;
mod short;
mod status;
mod stripes;
mod table;
mod together;
mod waiting;

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::time::Instant;

use floe_format::InodeNr;
use floe_sync::{
    Alone, Arc, Entered, Mutex, MutexGuard, OnceLock, PoisonError, Slots, before_waiting,
    give_turn, thread,
};

use crate::FsError;
use crate::cubes::Gates;
use crate::cubes::by_cube::ByCube;
use apart::Apart;
use crossing::Crossings;
use evict::{Kept, Share};
use extended::Extended;
pub use losses::Handle;
use losses::LateErrors;
pub use lower::{Above, Carried, Deed, Facts, Lower};
use mnode::{Lists, Mnode, Names};
pub use null_disk::NullDisk;
use own::{Logged, Own};
use quotas::Accounts;
pub use quotas::Quotas;
use record::Stamp;
use room::Sizes;
use stripes::Stripes;
use table::Table;
use waiting::{Pressure, Queue};

/// Bits of a stamp that number its slot.
const SLOT_BITS: u32 = 6;

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
    /// Bytes of content that are kept, likewise.
    pub clean_bytes: u64,
    /// Nothing waits: the disk makes each change at once, as it does anyway without a journal or where cubes share files.
    pub immediate: bool,
}

/// A file system in memory over one that keeps it.
#[derive(Debug)]
pub struct MemFs<L> {
    lower: L,
    facts: Facts,
    limits: Limits,
    share: Share,
    queues: Arc<ByCube<Queue>>,
    state: Slots<State, Own>,
    logs: Slots<(), Logged>,
    below: Slots<(), ()>,
    crossings: Apart<Crossings>,
    /// The lock of those who give a directory another parent, and the last such change.
    moving: Apart<Mutex<Stamp>>,
}

/// The state in memory.
#[derive(Debug)]
struct State {
    nodes: Table<Mnode>,
    /// Changes that wait, by cube, and the sum of them.
    queues: Arc<ByCube<Queue>>,
    total: Pressure,
    gates: Option<Arc<Gates>>,
    accounts: Accounts,
    sizes: Sizes,
    epochs: Epochs,
    /// When the file system began, for stamps.
    began: Instant,
    kept: Kept,
    /// Why nothing is changed any more.
    ended: Option<String>,
    /// Changes that were lost.
    late: LateErrors,
    /// A thread is changing it, or panicked while it was.
    changing: bool,
}

/// Counts of what ends whatever threads noted before.
#[derive(Clone, Copy, Debug, Default)]
struct Epochs {
    /// How often a thread was alone: all leases end then.
    alone: u64,
    /// How often an inode in memory got other flags, which says more of names than where they lead: [`Sort`](stripes::Sort).
    flagged: u32,
}

impl State {
    fn judge(&self) -> Result<(), FsError> {
        self.ended.clone().map_or(Ok(()), |why| Err(FsError::Ended(why)))
    }

    fn node(&mut self, inode: InodeNr) -> Result<&mut Mnode, FsError> {
        self.nodes.get_mut(inode.0).ok_or(FsError::NotFound)
    }

    fn get(&self, inode: InodeNr) -> Option<&Mnode> {
        self.nodes.get(inode.0)
    }

    /// A stamp of this slot: later than those of all changes that ended before the caller took its locks, which have these
    /// last stamps. The clock never goes back, and a thread that waited for a lock reads it afterwards.
    fn stamp(&self, slot: u64, lasts: impl IntoIterator<Item = Stamp>) -> Stamp {
        let last = lasts.into_iter().fold(Stamp::default(), Stamp::max);
        loop {
            let nanoseconds = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let stamp = Stamp(nanoseconds << SLOT_BITS | slot);
            // Two slots may read the same time, but never add one: that would be ahead of the clock.
            if stamp > last {
                return stamp;
            }
        }
    }
}

/// The right to take changes of a cube to the disk.
struct Turn<'f> {
    cube: u32,
    /// For whoever has taken the cube away from its users.
    is_taken: bool,
    _turn: MutexGuard<'f, ()>,
}

/// The state, alone.
struct Changing<'s>(Alone<'s, State, Own>);

impl Changing<'_> {
    /// Gives all numbers back that the disk has promised and that nobody took.
    fn give_back(&mut self, lower: &impl Lower) {
        let (state, slots) = self.0.parts();
        slots.into_iter().for_each(|own| own.numbers.give_back(lower));
        for cube in state.queues.numbers() {
            state.pending(cube).returned.drain(..).for_each(|inode| lower.give_back(inode));
        }
    }
}

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
        self.0.refill();
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
        let gates = lower.shared_gates();
        let queues = Arc::new(ByCube::new(gates.as_ref().is_some_and(|gates| gates.has_lots())));
        let state = State {
            nodes: Table::default(),
            queues: Arc::clone(&queues),
            total: Pressure::default(),
            gates,
            accounts: Accounts::default(),
            sizes: Sizes::of(lower.block_bytes(), &facts),
            epochs: Epochs::default(),
            began: Instant::now(),
            kept: Kept::default(),
            ended: None,
            late: LateErrors::default(),
            changing: false,
        };
        state.pending(0).room.note(lower.room_in(0));
        // A cube takes a lot only where nothing that waits needs its space.
        lower.let_grow(false);
        let state: Slots<State, Own> = Slots::new(state);
        let mut alone = state.alone();
        alone.refill();
        (0..).zip(alone.parts().1).for_each(|(number, own)| own.number = number);
        let share = limits.share(alone.parts().1.len());
        drop(alone);
        let (logs, below, moving) = (Slots::default(), Slots::default(), Apart::default());
        let crossings = Apart::default();
        Self { lower, facts, limits, share, queues, state, logs, below, crossings, moving }
    }

    /// Lets the disk have all that waits, and returns it; also whether changes are lost of which nobody was told yet. What
    /// is written is not durable before the disk's own end.
    ///
    /// # Errors
    /// [`FsError::Ended`]: the rest is lost.
    pub fn finish(self) -> Result<(L, Result<(), FsError>), FsError> {
        self.flush_all()?;
        let mut state = self.state_mut();
        state.give_back(&self.lower);
        let lost = state.late.report_all();
        drop(state);
        self.lower.let_grow(true);
        Ok((self.lower, lost))
    }

    /// Whether the disk makes each change at once. While cubes share files it does, because changes of one concern others.
    fn is_immediate(&self) -> bool {
        let is_coupled = |gates: &Gates| gates.has_cubes() && gates.is_coupled();
        self.facts.immediate.is_some() || self.lower.gates().is_some_and(is_coupled)
    }

    /// The same for the changes of a cube.
    fn is_immediate_in(&self, cube: u32) -> bool {
        self.is_immediate() || self.lower.gates().is_some_and(|gates| !gates.lets_wait(cube))
    }

    /// The cube of an inode; 0: the root cube.
    fn cube_of(&self, inode: InodeNr) -> u32 {
        self.lower.gates().map_or(0, |gates| gates.of_inode(inode))
    }

    /// The file system below.
    pub const fn lower(&self) -> &L {
        &self.lower
    }

    /// Changes that wait for the disk.
    pub fn waiting_records(&self) -> usize {
        let state = self.state_mut();
        state.queues.numbers().map(|cube| state.pending(cube).log.len()).sum()
    }

    fn state(&self) -> Entered<'_, State, Own> {
        self.state.enter()
    }

    fn state_mut(&self) -> Changing<'_> {
        let mut state = self.state.alone();
        self.merge(&mut state);
        if state.changing {
            // A panic may have left a change half made, which must not reach the disk.
            let why = || "a thread panicked in a change".to_owned();
            state.ended.get_or_insert_with(why);
        }
        state.changing = true;
        Changing(state)
    }

    /// Waits until nobody else takes changes of a cube to the disk.
    fn turn(&self, cube: u32) -> Turn<'_> {
        // A flushed change goes to the disk, or another thread flushes.
        before_waiting();
        let turn = &self.queues.of(cube).turn;
        let turn = turn.try_lock().unwrap_or_else(|_| {
            give_turn();
            turn.lock().unwrap_or_else(PoisonError::into_inner)
        });
        Turn { cube, is_taken: false, _turn: turn }
    }

    /// The same for several cubes. Each thread waits for them in the order of their numbers.
    fn turns(&self, cubes: &BTreeSet<u32>) -> Vec<Turn<'_>> {
        cubes.iter().map(|cube| self.turn(*cube)).collect()
    }

    /// Waits until no other thread gives a directory another parent.
    fn moving(&self) -> MutexGuard<'_, Stamp> {
        self.moving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reading_below(&self) -> Entered<'_, (), ()> {
        before_waiting();
        self.below.enter()
    }

    /// Lets memory have an inode.
    fn load<'s>(&self, state: &'s mut State, inode: InodeNr) -> Result<&'s mut Mnode, FsError> {
        if state.get(inode).is_none() {
            state.late.judge(inode)?;
            let attributes = {
                let _reading = self.reading_below();
                self.lower.attributes(inode)?
            };
            state.nodes.insert(inode.0, Mnode::loaded(attributes));
            state.nodes.count += 1;
            let count = state.nodes.count;
            state.nodes.grow(count);
        }
        state.node(inode)
    }

    /// Lets memory have the names of a directory.
    fn load_names<'s>(&self, state: &'s mut State, inode: InodeNr) -> Result<&'s Names, FsError> {
        let node = self.load(state, inode)?;
        if !node.is_directory() {
            return Err(FsError::NotADirectory);
        }
        if node.names.get().is_none_or(Names::is_unread) {
            let before = node.name_count();
            let names = {
                let _reading = self.reading_below();
                self.lower.directory(inode)?
            };
            let plain = !names.folds() && names.damage().is_none();
            let links = node.status.read().links;
            node.names = OnceLock::from(if plain {
                Names::Plain(Stripes::of(&names, self.facts.hash, links))
            } else {
                Names::Odd(names)
            });
            let count = node.name_count();
            state.kept.names = state.kept.names.saturating_sub(before);
            state.note_names(inode, count, &self.limits);
        }
        state.get(inode).and_then(|node| node.names.get()).ok_or(FsError::NotFound)
    }

    /// Which access lists an inode has.
    fn load_lists(&self, state: &mut State, inode: InodeNr) -> Result<Lists, FsError> {
        let node = self.load(state, inode)?;
        if let Some(lists) = node.lists.get() {
            return Ok(*lists);
        }
        let lists = {
            let _reading = self.reading_below();
            Lists::of(&self.lower.extended_attribute_names(inode)?)
        };
        node.lists = OnceLock::from(lists);
        Ok(lists)
    }

    /// Lets memory have the extended attributes of an inode.
    fn load_extended(&self, state: &mut State, inode: InodeNr) -> Result<(), FsError> {
        let node = self.load(state, inode)?;
        if node.is_own || node.extended.get().is_some() {
            return Ok(());
        }
        let all = {
            let _reading = self.reading_below();
            self.lower.extended_attributes(inode)?
        };
        let names = all.iter().map(|attribute| &attribute.name);
        node.lists = OnceLock::from(Lists::of(names));
        node.extended = Apart(OnceLock::from(Box::new(Extended::of(&all))));
        Ok(())
    }

    /// Reads the names of a directory, which memory keeps from now on.
    fn with_names<T>(
        &self,
        inode: InodeNr,
        read: impl FnOnce(&Names) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        let state = self.state();
        let names = state.get(inode).and_then(|node| node.names.get());
        if let Some(names) = names.filter(|names| !names.is_unread()) {
            return read(names);
        }
        drop(state);
        let mut state = self.state_mut();
        state.evict(&self.limits);
        read(self.load_names(&mut state, inode)?)
    }
}
