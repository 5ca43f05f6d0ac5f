//! Batches of changes on their way to the disk.

use std::collections::BTreeSet;

use floe_disk::ops::Change;
use floe_format::InodeNr;
use floe_sync::thread;

use super::carry::survive;
use super::ends::{Unsettled, difference};
use super::flight::Flight;
use super::losses::Losses;
use super::lower::Lower;
use super::mnode::Mnode;
use super::pages::PAGE_BYTES;
use super::plan::plan;
use super::record::{Action, Record, Stamp};
use super::waiting::Pending;
use super::{MemFs, State, Turn};
use crate::cubes::Fate;
use crate::error::twice;
use crate::op::{Op, OpKind};
use crate::{Attributes, FsError, Timestamp};

/// Changes that a batch takes out of the log at once.
pub(super) const RECORDS_PER_BATCH: usize = 512;
/// Pages of content that a batch takes, or those of one file.
pub(super) const PAGES_PER_BATCH: u64 = 2048;

/// A batch: steps in the order in which the disk takes them.
pub(super) struct Batch {
    pub(super) steps: Vec<Step>,
    touched: BTreeSet<InodeNr>,
    born: BTreeSet<InodeNr>,
    /// Inodes to compare with the disk afterwards.
    compared: Vec<InodeNr>,
    /// Those whose changes somebody wants to be durable.
    asked: Vec<InodeNr>,
    /// Directories that it moves.
    moved: Vec<InodeNr>,
    /// Somebody waits until it is durable.
    pub(super) is_awaited: bool,
}

pub(super) enum Step {
    Record(Record),
    /// Content of a file, of which the disk has so many bytes.
    Content {
        inode: InodeNr,
        time: Timestamp,
        stored_bytes: u64,
        flight: Flight,
    },
}

/// The records of a batch.
#[derive(Default)]
pub(super) struct Choice {
    pub(super) records: BTreeSet<Stamp>,
    pub(super) contents: Vec<InodeNr>,
    /// Inodes whose times the disk is to have.
    pub(super) settle: Vec<InodeNr>,
    /// Those whose changes somebody wants to be durable.
    pub(super) asked: Vec<InodeNr>,
    /// Those of no others that changes concern.
    pub(super) only: bool,
}

impl Choice {
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.contents.is_empty() && self.settle.is_empty()
    }
}

impl Pending {
    /// Takes a batch out of the log. The changes are closed downward, so their order is all that the disk needs.
    pub(super) fn take_off(&mut self, state: &State, choice: Choice) -> Batch {
        let mut batch = Batch {
            steps: Vec::new(),
            touched: BTreeSet::new(),
            born: BTreeSet::new(),
            compared: choice.settle,
            asked: choice.asked,
            moved: Vec::new(),
            is_awaited: choice.only,
        };
        for stamp in &choice.records {
            let Some(record) = self.log.remove(*stamp) else { continue };
            if let (true, Action::Rename { moved, .. }) = (self.moves.remove(stamp), &record.action)
            {
                batch.moved.push(*moved);
            }
            match &record.action {
                // Whoever replaces a file wants the old content or the new one.
                Action::Rename { moved, replaced: Some(_), .. } => {
                    let _ = content_off(state, *moved, &mut batch);
                }
                Action::Create { reserved, .. } => drop(batch.born.insert(reserved.inode)),
                _ => {}
            }
            record.each_mnode(|mnode| {
                batch.touched.insert(mnode);
            });
            batch.steps.push(Step::Record(record));
        }
        for inode in &choice.contents {
            if !content_off(state, *inode, &mut batch) {
                self.note_content(state, *inode, 0);
            }
        }
        batch.touched.extend(&batch.compared);
        self.flying = true;
        let nodes = batch.touched.iter().filter_map(|inode| state.get(*inode));
        nodes.for_each(|node| node.set_in_flight(true));
        // Those that a change is not known to have reached the disk for.
        let there = |inode: &&InodeNr| state.get(**inode).is_some();
        self.unsettled.extend(batch.touched.iter().filter(there));
        if !choice.only {
            batch.compared = batch.touched.iter().copied().collect();
        }
        batch
    }

    /// The disk has a batch. Returns which inodes are gone for good.
    pub(super) fn land(&mut self, state: &State, batch: &Batch) -> Vec<InodeNr> {
        self.flying = false;
        let mut gone = Vec::new();
        for step in &batch.steps {
            match step {
                Step::Record(record) => {
                    self.release(state, record);
                    match &record.action {
                        Action::Create { reserved, .. } => {
                            if let Some(node) = state.get(reserved.inode) {
                                node.set_born();
                            }
                        }
                        Action::Release { inode } => {
                            self.unsettled.remove(inode);
                            gone.push(*inode);
                        }
                        _ => {}
                    }
                }
                Step::Content { inode, flight, .. } => {
                    let Some(node) = state.get(*inode) else { continue };
                    let resized = node.content.lock();
                    let pages = node.content.landed(&node.status.length, &resized, flight);
                    drop(resized);
                    node.set_disk_bytes(flight.size_bytes);
                    self.note_content(state, *inode, -pages.cast_signed());
                }
            }
        }
        let nodes = batch.touched.iter().filter_map(|inode| state.get(*inode));
        nodes.for_each(|node| node.set_in_flight(false));
        gone
    }
}

/// Lets a batch have the content of a file; nothing if its creation is not before it, or if there is none.
fn content_off(state: &State, inode: InodeNr, batch: &mut Batch) -> bool {
    let Some(node) = state.get(inode) else { return false };
    if !node.is_dirty() || node.is_unborn() && !batch.born.contains(&inode) {
        return false;
    }
    let time = node.folded().ctime;
    let mut resized = node.content.lock();
    let stored_bytes = resized.stored_bytes;
    let flight = node.content.take_off(&node.status.length, &mut resized, &state.kept.buffers);
    drop(resized);
    batch.touched.insert(inode);
    batch.steps.push(Step::Content { inode, time, stored_bytes, flight });
    true
}

impl<L: Lower> MemFs<L> {
    /// Lets the disk have a batch of a cube that `choose` makes up; `false` if it is empty.
    fn flush_batch(
        &self,
        turn: &Turn<'_>,
        choose: impl FnOnce(&State, &mut Pending) -> Choice,
    ) -> Result<bool, FsError> {
        let cube = turn.cube;
        match self.fate(turn) {
            Fate::Written => {}
            Fate::Held => return Ok(false),
            Fate::Dropped => {
                self.drop_waiting(turn);
                return Ok(false);
            }
        }
        let (batch, returned) = {
            let state = self.state();
            state.judge()?;
            let mut pending = self.gather(&state, cube);
            let mut choice = choose(&state, &mut pending);
            if choice.is_empty() {
                return Ok(false);
            }
            let Pending { log, deletions, .. } = &mut *pending;
            deletions.join(log, &mut choice.records);
            (pending.take_off(&state, choice), std::mem::take(&mut pending.returned))
        };
        returned.into_iter().for_each(|inode| self.lower.give_back(inode));
        let mut losses = Losses::default();
        let carried = self.carry(&batch, &mut losses, &|| self.fate(turn) == Fate::Dropped);
        carried.map_err(|error| self.end(&error))?;
        losses.tell_of_moves(&batch.moved, &batch.asked);
        if self.fate(turn) == Fate::Dropped {
            self.drop_waiting(turn);
            return Ok(false);
        }
        let (gone, there) = {
            let state = self.state();
            let mut pending = self.gather(&state, cube);
            let gone = pending.land(&state, &batch);
            pending.room.note(self.lower.room_in(cube));
            state.note_pressure(cube, &pending);
            let whole = |inode: &InodeNr| self.whole(&state, &mut pending, (cube, *inode));
            let there: Vec<Attributes> = batch.compared.iter().filter_map(whole).collect();
            (gone, there)
        };
        let mut settled = Vec::with_capacity(there.len());
        for before in there {
            if losses.concern(before.inode) {
                continue;
            }
            let now = self.compare(&before).map(|now| settled.push((before, now)));
            if let Err(what) = survive(now, before.inode, &mut losses) {
                self.end_cube(turn, what, losses)?;
                return Ok(false);
            }
        }
        if !losses.is_empty() {
            self.reconcile(turn, losses)?;
            return Ok(true);
        }
        let is_crowded = {
            let state = self.state();
            let mut pending = state.pending(cube);
            for (before, now) in settled {
                self.settle(&state, &mut pending, &before, now);
            }
            state.note_pressure(cube, &pending);
            state.keeps_much(&self.limits)
        };
        if is_crowded || !gone.is_empty() {
            let mut state = self.state_mut();
            gone.into_iter().for_each(|inode| state.drop_node(inode));
            state.evict(&self.limits);
        }
        Ok(true)
    }

    /// The attributes of an inode, if the disk has all of it. Whoever changes it has one of its locks until that is logged, so
    /// a change that is seen here is seen to wait.
    fn whole(
        &self,
        state: &State,
        pending: &mut Pending,
        (cube, inode): (u32, InodeNr),
    ) -> Option<Attributes> {
        let node = state.get(inode)?;
        let stripes = node.lock_names(inode);
        let guarded = (node.lock(), node.content.lock());
        let shown = node.shown();
        let dirty = guarded.1.is_any() || node.content.is_dirty();
        self.gather_into(state, cube, pending);
        drop((guarded, stripes));
        let whole = !pending.log.concerns(inode) && !node.is_unborn() && !dirty;
        (whole && shown.links > 0).then_some(shown)
    }

    /// The disk has these attributes: what memory had was the first, now it is the second, unless others changed it since.
    fn settle(&self, state: &State, pending: &mut Pending, before: &Attributes, now: Attributes) {
        let inode = before.inode;
        let Some(node) = state.get(inode) else { return };
        let stripes = node.lock_names(inode);
        let guarded = (node.lock(), node.content.lock());
        let shown = node.shown();
        let dirty = guarded.1.is_any() || node.content.is_dirty();
        self.gather_into(state, state.cube_of(inode), pending);
        if shown != *before || dirty || node.is_in_flight() || pending.log.concerns(inode) {
            return;
        }
        if shown != now {
            node.fold(&now);
            node.status.length.set(now.size_bytes, node.status.length.get().1);
            node.set_disk_bytes(now.size_bytes);
        }
        drop((guarded, stripes));
        pending.unsettled.remove(&inode);
    }

    /// Compares what memory has of an inode with the disk, and lets the disk have the times. Returns what the disk has.
    ///
    /// The records of an inode, applied, must have the effects that memory gave them; if they have not, one of the two is
    /// wrong, and to go on would lose something.
    pub(super) fn compare(&self, memory: &Attributes) -> Result<Attributes, Unsettled> {
        let inode = memory.inode;
        let disk = {
            let _reading = self.reading_below();
            twice(|| self.lower.attributes(inode))?
        };
        if let Some(what) = difference(memory, &disk) {
            return Err(Unsettled::Differs(inode, what));
        }
        let times = |one: &Attributes| (one.atime, one.mtime, one.ctime);
        if times(&disk) == times(memory) {
            return Ok(disk);
        }
        let change = Change {
            accessed: Some(memory.atime),
            modified: Some(memory.mtime),
            ..Change::default()
        };
        let kind = OpKind::Change { inode, size_bytes: None, change };
        let _changing = self.changing_below(inode);
        let op = Op { uid: 0, gid: 0, time: memory.ctime, kind };
        twice(|| self.lower.apply(&op))?;
        // Small inodes have no nanoseconds: what is stored counts.
        Ok(twice(|| self.lower.attributes(inode))?)
    }

    /// Makes all changes durable that were made before the call, but for those that are lost.
    pub(super) fn write_all(&self) -> Result<(), FsError> {
        self.flush_all()?;
        self.lower.sync()
    }

    /// Lets the disk have all changes that were made before the call.
    pub(super) fn flush_all(&self) -> Result<(), FsError> {
        self.queues.numbers().try_for_each(|cube| self.flush_all_of(cube, false))
    }

    /// The same for those of a cube; `is_taken`: for whoever has taken it away from its users.
    pub(super) fn flush_all_of(&self, cube: u32, is_taken: bool) -> Result<(), FsError> {
        let until = {
            let state = self.state();
            state.judge()?;
            self.gather(&state, cube).log.last()
        };
        let turn = || Turn { is_taken, ..self.turn(cube) };
        // Between two batches others may take their turn.
        let turns = |choose: &dyn Fn(&State, &mut Pending) -> Choice| {
            while self.flush_batch(&turn(), choose)? {
                thread::yield_now();
            }
            Ok::<(), FsError>(())
        };
        turns(&|_, pending| Choice {
            records: pending.log.oldest(until, RECORDS_PER_BATCH),
            ..Choice::default()
        })?;
        let mut dirty: BTreeSet<InodeNr> = self.state().pending(cube).dirty.clone();
        while !dirty.is_empty() {
            let (mut contents, mut pages) = (Vec::new(), 0);
            while pages < PAGES_PER_BATCH
                && let Some(inode) = dirty.pop_first()
            {
                let state = self.state();
                let count = state.get(inode).map_or(0, |node| node.content.dirty_pages());
                pages += count + 1;
                contents.push(inode);
            }
            self.flush_batch(&turn(), |state, pending| {
                // Those that were created since the cut go along.
                let unborn = |inode: &InodeNr| state.get(*inode).is_some_and(Mnode::is_unborn);
                let unborn = contents.iter().copied().filter(unborn);
                let records = plan(&pending.log, unborn);
                Choice { records, contents, ..Choice::default() }
            })?;
        }
        let settle: Vec<InodeNr> = self.state().pending(cube).unsettled.iter().copied().collect();
        for part in settle.chunks(RECORDS_PER_BATCH) {
            self.flush_batch(&turn(), |state, _| {
                let settle = part.iter().filter(|inode| state.get(**inode).is_some());
                Choice { settle: settle.copied().collect(), ..Choice::default() }
            })?;
        }
        Ok(())
    }

    /// Lets the disk have the changes of inodes of a cube, with all on which they depend.
    pub(super) fn flush_of(
        &self,
        turn: &Turn<'_>,
        inodes: impl IntoIterator<Item = InodeNr>,
    ) -> Result<(), FsError> {
        let inodes: Vec<InodeNr> = inodes.into_iter().collect();
        self.flush_batch(turn, |state, pending| {
            let records = pending.plan_with_moves(&inodes);
            let waits = |inode: &InodeNr| {
                pending.log.concerns(*inode)
                    || state.get(*inode).is_some_and(Mnode::is_dirty)
                    || pending.unsettled.contains(inode)
            };
            let settle: Vec<InodeNr> = inodes.iter().copied().filter(waits).collect();
            Choice { records, contents: settle.clone(), settle, asked: inodes, only: true }
        })?;
        Ok(())
    }

    /// Lets the disk have some changes if many wait.
    pub(super) fn flush_some(&self) -> Result<(), FsError> {
        self.queues.numbers().try_for_each(|cube| self.flush_until(cube, 2))
    }

    /// Lets the disk have changes of a cube until not more than a part of what may wait does.
    pub(super) fn flush_until(&self, cube: u32, part: u64) -> Result<(), FsError> {
        let is_pressed = || self.state().is_pressed(cube, part, &self.limits);
        while is_pressed() {
            if !self.flush_oldest(&self.turn(cube))? {
                // Only space that slots gave back can make a difference.
                drop(self.state_mut());
                if !is_pressed() || !self.flush_oldest(&self.turn(cube))? {
                    break;
                }
            }
            thread::yield_now();
        }
        Ok(())
    }

    /// Lets the disk have the oldest changes of a cube, or content, whichever presses; `false` if there are none.
    fn flush_oldest(&self, turn: &Turn<'_>) -> Result<bool, FsError> {
        self.flush_batch(turn, |state, pending| {
            let content_bytes = pending.room.pages.max(0).cast_unsigned() * PAGE_BYTES;
            if content_bytes <= self.limits.content_bytes / 2 / state.total.busy() {
                let records = pending.log.oldest(pending.log.last(), RECORDS_PER_BATCH);
                return Choice { records, ..Choice::default() };
            }
            let contents = pending.some_contents(state, PAGES_PER_BATCH);
            let records = plan(&pending.log, contents.iter().copied());
            Choice { records, contents, ..Choice::default() }
        })
    }
}
