//! A batch of changes reaches the disk; where some of it cannot, all that does not depend on it does.

use std::collections::{BTreeMap, BTreeSet};

use floe_disk::ops::Change;
use floe_format::InodeNr;

use super::ends::Unsettled;
use super::flight::Run;
use super::flush::{Batch, Choice, PAGES_PER_BATCH, RECORDS_PER_BATCH, Step};
use super::losses::Losses;
use super::lower::{Carried, Deed, Lower};
use super::record::{Action, Record};
use super::{MemFs, State, Turn};
use crate::FsError;
use crate::cubes::{Fate, Gates};
use crate::op::{Op, OpKind};

impl Step {
    fn depends_on(&self, losses: &Losses) -> bool {
        match self {
            Self::Record(record) => losses.take_along(record),
            Self::Content { inode, .. } => losses.take_content(*inode),
        }
    }

    /// Notes that it is lost; without an error, because it depends on what is.
    fn lose(&self, losses: &mut Losses, error: Option<&FsError>) {
        match self {
            Self::Record(record) => losses.add(record, error),
            Self::Content { inode, .. } => losses.add_content(*inode, error),
        }
    }

    /// The changes of the disk that it takes.
    fn deeds(&self) -> Vec<Deed<'_>> {
        let Self::Content { inode, time, stored_bytes, flight } = self else {
            let Self::Record(record) = self else { return Vec::new() };
            return vec![record.deed()];
        };
        // Space was reserved for the one who wrote.
        let deed = |kind| Deed::Apply(Op { uid: 0, gid: 0, time: *time, kind });
        let resize = |size| {
            let (size_bytes, change) = (Some(size), Change::default());
            deed(OpKind::Change { inode: *inode, size_bytes, change })
        };
        let cut = flight.cut.filter(|cut| *cut < *stored_bytes);
        let runs = &flight.runs;
        let end = runs.last().map_or(0, Run::end);
        let stored = cut.unwrap_or(*stored_bytes).max(end);
        let writes = runs.iter().map(|run| {
            let (inode, offset_bytes, bytes) = (*inode, run.offset_bytes, run.bytes());
            deed(OpKind::Write { inode, offset_bytes, bytes })
        });
        let grown = (stored != flight.size_bytes).then(|| resize(flight.size_bytes));
        cut.map(resize).into_iter().chain(writes).chain(grown).collect()
    }
}

/// Bytes of content, and pieces of it, that the disk is asked for at once where there are cubes.
const BYTES_PER_STRETCH: usize = 1 << 20;
const WRITES_PER_STRETCH: usize = 128;

impl<L: Lower> MemFs<L> {
    /// The end of the changes from `at` on that the disk is asked for at once: those of other cubes go in between. Content comes
    /// first, because it can be written while others make changes.
    fn stretch(&self, deeds: &[Deed<'_>], at: usize) -> usize {
        if !self.lower.gates().is_some_and(Gates::has_cubes) {
            return deeds.len();
        }
        let (mut bytes, mut writes, mut others) = (0, 0, 0);
        let rest = deeds.iter().skip(at).take_while(|deed| {
            let written = deed.written_bytes();
            let fits = if written > 0 {
                others == 0 && bytes < BYTES_PER_STRETCH && writes < WRITES_PER_STRETCH
            } else {
                others += 1;
                true
            };
            (bytes, writes) = (bytes + written, writes + usize::from(written > 0));
            fits
        });
        at + rest.count()
    }

    /// Makes the changes of a batch on the disk, but for those that cannot be made and those that depend on them; none any
    /// more once `is_over` says so.
    ///
    /// # Errors
    /// [`FsError::Ended`]: nothing can be written any more.
    pub(super) fn carry(
        &self,
        batch: &Batch,
        losses: &mut Losses,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), FsError> {
        let (mut steps, mut deeds) = (Vec::new(), Vec::new());
        let erased = erased_with_names(&batch.steps);
        for (at, step) in batch.steps.iter().enumerate() {
            deeds.extend(step.deeds());
            steps.resize(deeds.len(), step);
            if let Some(inode) = erased.get(&at)
                && let Some(Deed::Apply(op)) = deeds.pop()
            {
                deeds.push(Deed::Erase(op, *inode));
            }
        }
        let (mut at, mut tried) = (0, None);
        while let Some(step) = steps.get(at).filter(|_| !is_over()) {
            if step.depends_on(losses) {
                step.lose(losses, None);
                at += 1;
                continue;
            }
            // Changes that depend on a lost one are found one by one.
            let end = if losses.is_empty() { self.stretch(&deeds, at) } else { at + 1 };
            let stretch = deeds.get(at..end).unwrap_or_default();
            // Nobody reads what is written here from the disk: memory has it until the batch has landed.
            let ahead = self.lower.write_ahead(stretch);
            let (made, done) = {
                let _changing =
                    self.changing_below(deeds.get(at).map_or(InodeNr::ROOT, Deed::home));
                self.lower.make(stretch, Carried { ahead, is_awaited: batch.is_awaited })
            };
            at += made;
            let Err(error) = done else { continue };
            let Some(step) = steps.get(at) else { continue };
            match (deeds.get(at), error) {
                (_, error @ FsError::Ended(_)) => return Err(error),
                // An accepted change is not lost to one failed read: a second one decides.
                (_, FsError::Unreadable { .. }) if tried != Some(at) => {
                    tried = Some(at);
                    continue;
                }
                // It stays an orphan, for `floe repair`.
                (Some(Deed::Release(_)), FsError::Damaged { .. } | FsError::Unreadable { .. }) => {}
                (_, error) => step.lose(losses, Some(&error)),
            }
            at += 1;
        }
        Ok(())
    }

    /// After some changes of a batch are lost: lets the disk have all others of the cube that wait, and memory what the disk has.
    /// Nobody changes anything meanwhile, because a change could depend on a lost one.
    pub(super) fn reconcile(&self, turn: &Turn<'_>, losses: Losses) -> Result<(), FsError> {
        self.write_alone(&mut self.state_mut(), turn, losses)
    }

    /// The same by a thread that is alone already. Without losses, too: whatever others change, all of the cube is written then.
    pub(super) fn write_alone(
        &self,
        state: &mut State,
        turn: &Turn<'_>,
        mut losses: Losses,
    ) -> Result<(), FsError> {
        let cube = turn.cube;
        let is_over = || self.fate(turn) == Fate::Dropped;
        match self.write_the_rest(state, cube, &mut losses, &is_over) {
            Err(Unsettled::Differs(inode, what)) if cube > 0 => {
                self.lower.note_panic(cube, &what);
                losses.add_times(inode, &FsError::Panicked { what });
                state.pending(cube).drop_all();
            }
            Err(Unsettled::Differs(_, what)) => return Err(state.end(&FsError::Ended(what))),
            Err(Unsettled::Failed(error)) => return Err(state.end(&error)),
            Ok(()) if is_over() => state.pending(cube).drop_all(),
            Ok(()) => {}
        }
        state.forget(cube);
        state.pending(cube).room.note(self.lower.room_in(cube));
        if !losses.is_empty() {
            state.late.add(losses);
        }
        Ok(())
    }

    fn write_the_rest(
        &self,
        state: &State,
        cube: u32,
        losses: &mut Losses,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), Unsettled> {
        loop {
            let mut pending = state.pending(cube);
            let records = pending.log.oldest(pending.log.last(), RECORDS_PER_BATCH);
            let contents = match records.is_empty() {
                true => pending.some_contents(state, PAGES_PER_BATCH),
                false => Vec::new(),
            };
            let choice = Choice { records, contents, ..Choice::default() };
            if choice.is_empty() || is_over() {
                break;
            }
            let batch = pending.take_off(state, choice);
            drop(pending);
            self.carry(&batch, losses, is_over)?;
            state.pending(cube).land(state, &batch);
        }
        let due: Vec<InodeNr> = state.pending(cube).unsettled.iter().copied().collect();
        for inode in due {
            let Some(found) = state.get(inode).map(|node| node.shown()) else { continue };
            if found.links > 0 && !losses.concern(inode) && !is_over() {
                let settled = self.compare(&found).map(drop);
                survive(settled, inode, losses)?;
            }
        }
        Ok(())
    }
}

/// Steps that take the last name of an inode which a later one deletes, with no other of that inode in between.
fn erased_with_names(steps: &[Step]) -> BTreeMap<usize, InodeNr> {
    let (mut open, mut erased) = (BTreeSet::new(), BTreeMap::new());
    for (at, step) in steps.iter().enumerate().rev() {
        match step {
            Step::Content { inode, .. } => drop(open.remove(inode)),
            Step::Record(Record { action: Action::Release { inode }, .. }) => {
                open.insert(*inode);
            }
            Step::Record(record) => {
                let taken = match &record.action {
                    Action::Unlink { inode, .. } | Action::RemoveDirectory { inode, .. } => {
                        Some(*inode)
                    }
                    Action::Rename { replaced, .. } => *replaced,
                    _ => None,
                };
                record.each_mnode(|inode| {
                    if open.remove(&inode) && taken == Some(inode) {
                        erased.insert(at, inode);
                    }
                });
            }
        }
    }
    erased
}

/// Notes that the times of an inode are lost, where that is all.
pub(super) fn survive(
    done: Result<(), Unsettled>,
    inode: InodeNr,
    losses: &mut Losses,
) -> Result<(), Unsettled> {
    match done {
        Err(Unsettled::Failed(error)) if !matches!(error, FsError::Ended(_)) => {
            losses.add_times(inode, &error);
            Ok(())
        }
        done => done,
    }
}
