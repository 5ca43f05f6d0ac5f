//! Changes that could not reach the disk, and how programs learn of them.
//!
//! A change fails at a flush if the disk meets damage or cannot be read. Then it is lost, and with it each later change that
//! depends on it; all others are written. Memory then forgets what it has, so that programs see what the disk has. Each
//! inode that a lost change concerned has an error, which `fsync` and `close` report as Linux reports failed write-back:
//! once to each file that was open at the time, and once to one opened later if nobody was told before.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use floe_format::InodeNr;

use super::record::{Action, OwnedPlace, Record};
use crate::FsError;

/// The changes of one flush that are lost.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    /// Names that a lost change would have given, moved or taken away.
    names: HashSet<OwnedPlace>,
    /// Inodes whose number of names differs from memory's.
    renamed: HashSet<InodeNr>,
    /// Inodes that were never created.
    unborn: BTreeSet<InodeNr>,
    /// Files that lack content.
    contents: HashSet<InodeNr>,
    /// Why, by inode that a lost change concerns: the first cause.
    causes: BTreeMap<InodeNr, String>,
    /// The last cause, which is that of the changes that depend on it.
    last: String,
}

impl Losses {
    pub(crate) fn is_empty(&self) -> bool {
        self.causes.is_empty()
    }

    /// Whether a lost change concerns an inode.
    pub(crate) fn concern(&self, inode: InodeNr) -> bool {
        self.causes.contains_key(&inode)
    }

    /// Whether a change depends on a lost one: they share a name, or a file whose names they count, or the earlier one
    /// would have created what the later one changes. (An unlink behind a lost link would take the last name. Different
    /// names of one directory do not depend on each other.)
    pub(crate) fn take_along(&self, record: &Record) -> bool {
        let place = |place: &OwnedPlace| {
            self.names.contains(place) || self.unborn.contains(&place.directory)
        };
        let counted = |inode: &InodeNr| self.renamed.contains(inode) || self.unborn.contains(inode);
        match &record.action {
            Action::Create { place: at, .. } => place(at),
            Action::Link { inode, place: at }
            | Action::Unlink { inode, place: at }
            | Action::RemoveDirectory { inode, place: at } => place(at) || counted(inode),
            Action::Rename { moved, replaced, way, .. } => {
                let counted = counted(moved) || replaced.as_ref().is_some_and(counted);
                // A file may only replace another with its whole content.
                let whole = replaced.is_none() || !self.contents.contains(moved);
                place(&way.from) || place(&way.to) || counted || !whole
            }
            Action::Change { inode, .. }
            | Action::SetAttribute { inode, .. }
            | Action::Release { inode } => self.unborn.contains(inode),
        }
    }

    /// Whether the content of a file has nowhere to go, or lacks a part already.
    pub(crate) fn take_content(&self, inode: InodeNr) -> bool {
        self.unborn.contains(&inode) || self.contents.contains(&inode)
    }

    /// Notes that a change is lost: for a cause of its own, or because it depends on a lost one.
    pub(crate) fn add(&mut self, record: &Record, error: Option<&FsError>) {
        self.note(error);
        match &record.action {
            Action::Create { place, reserved, .. } => {
                self.unborn.insert(reserved.inode);
                self.lose(&[place], &[reserved.inode]);
            }
            Action::Link { inode, place }
            | Action::Unlink { inode, place }
            | Action::RemoveDirectory { inode, place } => {
                self.renamed.insert(*inode);
                self.lose(&[place], &[*inode]);
            }
            Action::Rename { moved, replaced, way, .. } => {
                self.renamed.extend([*moved]);
                self.renamed.extend(replaced);
                self.lose(&[&way.from, &way.to], &[&[*moved][..], replaced.as_slice()].concat());
            }
            Action::Change { inode, .. }
            | Action::SetAttribute { inode, .. }
            | Action::Release { inode } => self.lose(&[], &[*inode]),
        }
    }

    /// Notes that content of a file is lost, likewise.
    pub(crate) fn add_content(&mut self, inode: InodeNr, error: Option<&FsError>) {
        self.note(error);
        self.contents.insert(inode);
        self.lose(&[], &[inode]);
    }

    /// Notes that those who asked for something durable may find it by its old name alone, because the move of a directory is lost. It
    /// may lie elsewhere; memory does not know the names above a file.
    pub(crate) fn tell_of_moves(&mut self, moved: &[InodeNr], asked: &[InodeNr]) {
        let lost = moved.iter().find(|directory| self.renamed.contains(directory));
        let cause = lost.and_then(|directory| self.causes.get(directory)).cloned();
        let Some(cause) = cause else { return };
        for inode in asked {
            self.causes.entry(*inode).or_insert_with(|| cause.clone());
        }
    }

    /// Notes that the times of an inode are lost.
    pub(crate) fn add_times(&mut self, inode: InodeNr, error: &FsError) {
        self.note(Some(error));
        self.lose(&[], &[inode]);
    }

    fn note(&mut self, error: Option<&FsError>) {
        match error {
            // The disk does not know whose metadata it met.
            Some(FsError::Damaged { what, .. } | FsError::Unreadable { what, .. }) => {
                self.last.clone_from(what);
            }
            Some(other) => self.last = other.to_string(),
            None => {}
        }
    }

    fn lose(&mut self, places: &[&OwnedPlace], inodes: &[InodeNr]) {
        self.names.extend(places.iter().map(|place| (*place).clone()));
        let directories = places.iter().map(|place| place.directory);
        for inode in directories.chain(inodes.iter().copied()) {
            self.causes.entry(inode).or_insert_with(|| self.last.clone());
        }
    }
}

/// A file that a program opened, by a number of its own. Errors of writing are reported once to each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u64);

/// The errors of writing that programs are to learn of, by inode.
#[derive(Debug, Default)]
pub(crate) struct LateErrors {
    of_inodes: BTreeMap<InodeNr, LateError>,
    /// Inodes that were never created although programs know them. Their numbers are not used again.
    unborn: BTreeSet<InodeNr>,
    /// Those that nobody was told of who asks for all.
    untold: VecDeque<InodeNr>,
    /// How often changes were lost.
    times: u64,
}

#[derive(Debug)]
struct LateError {
    what: String,
    /// The first file that was opened after it.
    before: Handle,
    /// Whether anybody was told, and which of the files that were open.
    told: bool,
    told_to: BTreeSet<Handle>,
}

impl LateErrors {
    /// The number of a file that is opened: the `opened`th in this slot. Files that are opened after later losses have larger
    /// ones.
    pub(crate) const fn handle(&self, slot: u64, opened: u64) -> Handle {
        Handle(self.times << 40 | (slot & 0xff) << 32 | opened & 0xffff_ffff)
    }

    /// Takes note of losses.
    pub(crate) fn add(&mut self, losses: Losses) {
        self.times += 1;
        let next = self.handle(0, 0);
        self.unborn.extend(losses.unborn);
        for (inode, what) in losses.causes {
            self.untold.push_back(inode);
            let (told, told_to) = (false, BTreeSet::new());
            self.of_inodes.insert(inode, LateError { what, before: next, told, told_to });
        }
    }

    /// Whether changes of an inode are lost.
    pub(crate) fn concern(&self, inode: InodeNr) -> bool {
        self.of_inodes.contains_key(&inode)
    }

    /// Whether all losses were reported to those who ask for all.
    pub(crate) fn is_told(&self) -> bool {
        self.untold.is_empty()
    }

    /// `Err` for an inode that was never created.
    pub(crate) fn judge(&self, inode: InodeNr) -> Result<(), FsError> {
        if self.unborn.contains(&inode) { Err(self.error(inode, 0)) } else { Ok(()) }
    }

    /// Reports an error of writing of an inode to whom it is new. A file that closes is told, too, but may ask again.
    pub(crate) fn report(
        &mut self,
        inode: InodeNr,
        to: Option<Handle>,
        closes: bool,
    ) -> Result<(), FsError> {
        let Some(late) = self.of_inodes.get_mut(&inode) else { return Ok(()) };
        let told = match to.filter(|handle| *handle < late.before) {
            Some(handle) if closes => late.told_to.contains(&handle),
            Some(handle) => !late.told_to.insert(handle),
            None => late.told,
        };
        late.told |= !told && !closes;
        if told { Ok(()) } else { Err(self.error(inode, 0)) }
    }

    /// Reports all errors since the last call.
    pub(crate) fn report_all(&mut self) -> Result<(), FsError> {
        let others = self.untold.len().saturating_sub(1);
        let Some(inode) = self.untold.pop_front() else { return Ok(()) };
        self.untold.clear();
        Err(self.error(inode, others))
    }

    /// Says which changes are lost that no program was told of, whoever asked for all.
    pub(crate) fn say_unknown(&self) -> Result<(), FsError> {
        let is_unknown = |late: &LateError| !late.told && late.told_to.is_empty();
        let mut unknown = self.of_inodes.iter().filter(|(_, late)| is_unknown(late));
        let Some((inode, _)) = unknown.next() else { return Ok(()) };
        Err(self.error(*inode, unknown.count()))
    }

    fn error(&self, inode: InodeNr, others: usize) -> FsError {
        let what = self.of_inodes.get(&inode).map_or_else(String::new, |late| late.what.clone());
        FsError::Lost { inode, others, what }
    }
}
