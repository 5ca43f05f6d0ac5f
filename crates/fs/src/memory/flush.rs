//! Batches of changes on their way to the disk.

use std::collections::BTreeSet;

use floe_disk::ops::Change;
use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_sync::{MutexGuard, thread};

use super::carry::survive;
use super::content::Flight;
use super::losses::Losses;
use super::lower::Lower;
use super::pages::PAGE_BYTES;
use super::plan::plan;
use super::record::{Action, Record, Stamp};
use super::room::Cost;
use super::table::Table;
use super::{MemFs, State};
use crate::op::{Op, OpKind};
use crate::{Attributes, FsError, Timestamp};

/// Changes that a batch takes out of the log at once.
pub(super) const RECORDS_PER_BATCH: usize = 512;
/// Pages of content that a batch takes, or those of one file.
pub(super) const PAGES_PER_BATCH: u64 = 2048;

/// Bytes of one write to the disk.
const MOST_WRITTEN: usize = 1 << 20;

/// A batch: steps in the order in which the disk takes them.
pub(super) struct Batch {
    pub(super) steps: Vec<Step>,
    touched: BTreeSet<InodeNr>,
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

/// What a batch is made of.
#[derive(Default)]
pub(super) struct Choice {
    pub(super) records: BTreeSet<Stamp>,
    pub(super) contents: Vec<InodeNr>,
    /// Inodes whose times the disk is to have.
    pub(super) settle: Vec<InodeNr>,
}

impl Choice {
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.contents.is_empty() && self.settle.is_empty()
    }
}

impl State {
    /// Takes a batch out of the log. The changes are closed downward, so their order is all that the disk needs.
    pub(super) fn take_off(&mut self, choice: &Choice) -> Batch {
        let mut batch = Batch { steps: Vec::new(), touched: BTreeSet::new() };
        for stamp in &choice.records {
            let Some(record) = self.log.remove(*stamp) else { continue };
            if let Action::Rename { moved, replaced: Some(_), .. } = &record.action {
                // Whoever replaces a file wants the old content or the new one.
                self.content_off(*moved, &mut batch);
            }
            record.each_mnode(|mnode| {
                batch.touched.insert(mnode);
            });
            batch.steps.push(Step::Record(record));
        }
        for inode in &choice.contents {
            self.content_off(*inode, &mut batch);
        }
        batch.touched.extend(&choice.settle);
        for inode in &batch.touched {
            if let Some(node) = self.nodes.get_mut(inode.0) {
                node.in_flight = true;
            }
        }
        // Those that a change is not known to have reached the disk for.
        let there = |inode: &&InodeNr| self.nodes.get(inode.0).is_some();
        self.unsettled.extend(batch.touched.iter().filter(there));
        batch
    }

    /// Lets a batch have the content of a file; nothing if its creation is not before it.
    fn content_off(&mut self, inode: InodeNr, batch: &mut Batch) {
        let born_later = |state: &Self| {
            let first = state.log.of_mnode(inode).next().and_then(|stamp| state.log.get(stamp));
            first.is_some_and(|record| {
                matches!(&record.action, Action::Create { reserved, .. } if reserved.inode == inode)
            })
        };
        if !self.dirty.contains(&inode) || born_later(self) {
            return;
        }
        let Some(node) = self.nodes.get_mut(inode.0) else { return };
        let time = node.folded().ctime;
        let flight = {
            let mut guarded = node.lock();
            node.content.take_off(&node.status.length, &mut guarded.resized, MOST_WRITTEN)
        };
        let size_bytes = flight.size_bytes;
        let stored_bytes = std::mem::replace(&mut node.stored_bytes, size_bytes);
        batch.touched.insert(inode);
        batch.steps.push(Step::Content { inode, time, stored_bytes, flight });
    }

    /// The disk has a batch. Returns the attributes of those that are on the disk now, to be compared.
    pub(super) fn land(&mut self, batch: &Batch) -> Vec<Attributes> {
        for step in &batch.steps {
            match step {
                Step::Record(record) => {
                    self.room.release(&Cost::of(record));
                    match &record.action {
                        Action::Create { reserved, .. } => {
                            if let Some(node) = self.nodes.get_mut(reserved.inode.0) {
                                node.unborn = false;
                                node.target = None;
                            }
                        }
                        Action::Release { inode } => {
                            self.unsettled.remove(inode);
                            self.drop_node(*inode);
                        }
                        _ => {}
                    }
                }
                Step::Content { inode, flight, .. } => {
                    if let Some(node) = self.nodes.get_mut(inode.0) {
                        let resized = node.lock().resized;
                        let pages = node.content.landed(&node.status.length, &resized, flight);
                        self.note_content(*inode, -pages.cast_signed());
                    }
                }
            }
        }
        let mut there = Vec::new();
        for inode in &batch.touched {
            let waits = self.log.concerns(*inode);
            let Some(node) = self.nodes.get_mut(inode.0) else { continue };
            node.in_flight = false;
            let shown = node.shown();
            let dirty = node.is_dirty();
            if !waits && !node.unborn && !dirty && shown.links > 0 {
                there.push(shown);
            }
        }
        there
    }

    /// Files whose content the disk lacks, up to so many pages or one more file.
    pub(super) fn some_contents(&self, most_pages: u64) -> Vec<InodeNr> {
        let mut pages = 0;
        let fits = |inode: &&InodeNr| {
            let fits = pages < most_pages;
            pages += self.get(**inode).map_or(0, |node| node.content.dirty_pages());
            fits
        };
        self.dirty.iter().take_while(fits).copied().collect()
    }

    /// Ends all changes: what memory has and what the disk has may differ for good.
    pub(super) fn end(&mut self, error: &FsError) -> FsError {
        let why = format!("changes that were accepted cannot be written: {error}");
        FsError::Ended(self.ended.get_or_insert(why).clone())
    }

    /// Forgets all inodes; the disk has what there is to know of them.
    pub(super) fn forget_all(&mut self) {
        self.nodes = Table::default();
        self.dirty.clear();
        self.unsettled.clear();
        (self.names, self.kept_pages) = (0, 0);
        (self.room.pages, self.room.files) = (0, 0);
    }

    /// The disk has these attributes: what memory had was the first, now it is the second.
    fn settle(&mut self, before: &Attributes, now: Attributes) {
        let waits = self.log.concerns(before.inode);
        let Some(node) = self.nodes.get_mut(before.inode.0) else { return };
        let dirty = node.is_dirty();
        if node.shown() == *before && !waits && !dirty && !node.in_flight {
            node.set_stored(&now);
            self.unsettled.remove(&before.inode);
        }
    }
}

impl<L: Lower> MemFs<L> {
    /// Lets the disk have a batch that `choose` makes up; `false` if it is empty.
    fn flush_batch(
        &self,
        turn: &MutexGuard<'_, ()>,
        choose: impl FnOnce(&mut State) -> Choice,
    ) -> Result<bool, FsError> {
        let (batch, returned) = {
            let mut state = self.state_mut();
            state.judge()?;
            let choice = choose(&mut state);
            if choice.is_empty() {
                return Ok(false);
            }
            (state.take_off(&choice), std::mem::take(&mut state.returned))
        };
        returned.into_iter().for_each(|inode| self.lower.give_back(inode));
        let mut losses = Losses::default();
        self.carry(&batch, &mut losses).map_err(|error| self.end(&error))?;
        let there = {
            let mut state = self.state_mut();
            let there = state.land(&batch);
            state.room.note(self.lower.space());
            there
        };
        let mut settled = Vec::with_capacity(there.len());
        for before in there {
            if losses.concern(before.inode) {
                continue;
            }
            let now = self.compare(&before).map(|now| settled.push((before, now)));
            survive(now, before.inode, &mut losses).map_err(|error| self.end(&error))?;
        }
        if !losses.is_empty() {
            self.reconcile(turn, losses)?;
            return Ok(true);
        }
        let mut state = self.state_mut();
        for (before, now) in settled {
            state.settle(&before, now);
        }
        state.evict(&self.limits);
        Ok(true)
    }

    fn end(&self, error: &FsError) -> FsError {
        self.state_mut().end(error)
    }

    /// Compares what memory has of an inode with the disk, and lets the disk have the times. Returns what the disk has.
    ///
    /// The records of an inode, applied, must have the effects that memory gave them; if they have not, one of the two is
    /// wrong, and to go on would lose something.
    pub(super) fn compare(&self, memory: &Attributes) -> Result<Attributes, FsError> {
        let inode = memory.inode;
        let disk = {
            let _reading = self.reading_below();
            self.lower.attributes(inode)?
        };
        let same = |one: &Attributes| {
            // Memory does not follow how directories grow, nor what maps take.
            let size = if one.kind == FileType::Directory { 0 } else { one.size_bytes };
            let flags = one.flags.difference(InodeFlags::INDEX);
            let numbers = (one.generation, one.links, one.uid, one.gid, one.project);
            (one.kind, one.permissions, numbers, size, flags)
        };
        if same(&disk) != same(memory) {
            let (memory, disk) = (same(memory), same(&disk));
            let what = format!("memory and disk differ in {inode}: {memory:?} and {disk:?}");
            return Err(FsError::Ended(what));
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
        let _changing = self.changing_below();
        self.lower.apply(&Op { uid: 0, gid: 0, time: memory.ctime, kind })?;
        // Small inodes have no nanoseconds: what is stored counts.
        self.lower.attributes(inode)
    }

    /// Lets the disk have all changes that were made before the call.
    pub(super) fn flush_all(&self) -> Result<(), FsError> {
        let until = {
            let state = self.state_mut();
            state.judge()?;
            state.log.last()
        };
        // Between two batches others may take their turn.
        let turns = |choose: &dyn Fn(&mut State) -> Choice| {
            while self.flush_batch(&self.flushing(), choose)? {
                thread::yield_now();
            }
            Ok::<(), FsError>(())
        };
        turns(&|state| Choice {
            records: state.log.oldest(until, RECORDS_PER_BATCH),
            ..Choice::default()
        })?;
        let mut dirty: BTreeSet<InodeNr> = self.state_mut().dirty.clone();
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
            self.flush_batch(&self.flushing(), |state| {
                // Those that were created since the cut wait for the next time.
                let records = plan(
                    &state.log,
                    contents
                        .iter()
                        .copied()
                        .filter(|inode| state.get(*inode).is_some_and(|node| node.unborn)),
                );
                Choice { records, contents, settle: Vec::new() }
            })?;
        }
        let settle: Vec<InodeNr> = self.state().unsettled.iter().copied().collect();
        for part in settle.chunks(RECORDS_PER_BATCH) {
            self.flush_batch(&self.flushing(), |state| {
                let settle = part.iter().filter(|inode| state.get(**inode).is_some());
                Choice { settle: settle.copied().collect(), ..Choice::default() }
            })?;
        }
        Ok(())
    }

    /// Lets the disk have the changes of inodes, with all on which they depend.
    pub(super) fn flush_of(
        &self,
        turn: &MutexGuard<'_, ()>,
        inodes: impl IntoIterator<Item = InodeNr>,
    ) -> Result<(), FsError> {
        let inodes: Vec<InodeNr> = inodes.into_iter().collect();
        self.flush_batch(turn, |state| Choice {
            records: plan(&state.log, inodes.iter().copied()),
            contents: inodes.iter().copied().filter(|inode| state.dirty.contains(inode)).collect(),
            settle: inodes.iter().copied().filter(|one| state.unsettled.contains(one)).collect(),
        })?;
        Ok(())
    }

    /// Lets the disk have some changes if many wait.
    pub(super) fn flush_some(&self) -> Result<(), FsError> {
        while self.is_pressed(2) {
            self.flush_oldest(&self.flushing())?;
            thread::yield_now();
        }
        Ok(())
    }

    /// Whether more than a part of what may wait does.
    pub(super) fn is_pressed(&self, part: u64) -> bool {
        let state = self.state();
        state.log.len() as u64 > self.limits.records as u64 / part
            || state.room.pages * PAGE_BYTES > self.limits.content_bytes / part
    }

    /// Lets the disk have the oldest changes, or content, whichever presses.
    pub(super) fn flush_oldest(&self, turn: &MutexGuard<'_, ()>) -> Result<(), FsError> {
        self.flush_batch(turn, |state| {
            if state.room.pages * PAGE_BYTES <= self.limits.content_bytes / 2 {
                let records = state.log.oldest(state.log.last(), RECORDS_PER_BATCH);
                return Choice { records, ..Choice::default() };
            }
            let contents = state.some_contents(PAGES_PER_BATCH);
            let records = plan(&state.log, contents.iter().copied());
            Choice { records, contents, settle: Vec::new() }
        })?;
        Ok(())
    }
}
