//! After a system that does not know cubes has written: inodes and blocks of files move back into their cubes, and it is recorded which
//! cubes still share files, as a mount does it (`docs/cubes.md`).

use std::collections::BTreeSet;

use floe_check::cube::couples;
use floe_check::{Examination, Problem};
use floe_format::InodeNr;
use floe_format::ext::superblock::Superblock;
use floe_format::native::identity::Identity;

use super::settle::{is_sound, settle, settle_superblock};
use super::{RepairError, Session};
use crate::deed::Deed;
use crate::edit::{CubeEdit, Edit};
use crate::moves::MoveLog;
use crate::plan::Wanted;

/// Cubes that share files, and the record of that.
pub(super) struct Couples<'s> {
    /// Files that move, last of all.
    pub(super) moves: &'s MoveLog<'s>,
    /// Whether names and blocks may lead from one cube into another, as it was before the repair.
    pub(super) coupled: Option<bool>,
    /// Inodes that were given another number, when that was counted last.
    moved: usize,
    /// It was written once.
    is_tried: bool,
    /// It says what the last examination found.
    is_right: bool,
}

impl<'s> Couples<'s> {
    /// Nothing is known yet.
    pub(super) const fn of(moves: &'s MoveLog<'s>) -> Self {
        Self { moves, coupled: None, moved: 0, is_tried: false, is_right: false }
    }

    /// Whether another system may have put files into other cubes.
    pub(super) fn is_possible(&self) -> bool {
        self.coupled == Some(true)
    }

    /// Tells mounts that they need not look at all files, if the file system is coupled.
    pub(super) fn note(&self, superblock: &mut Superblock) {
        if self.is_right && Identity::is_coupled(superblock) {
            Identity::put_couples_known(superblock);
        }
    }
}

/// Whether another system has put a file into another cube.
pub(super) const fn entangles(problem: &Problem) -> bool {
    matches!(problem, Problem::CubeEntangledName { .. } | Problem::CubeEntangledBlocks { .. })
}

impl Session<'_> {
    /// Defers moves into cubes until nothing else is wanted and all is sound: the operations that make them trust what they read.
    /// First of all inodes move, those in directories that move later than these; then blocks. A move that failed, for want of room
    /// or because of other names, is tried again only after others have moved.
    pub(super) fn moves_at_the_end(
        &mut self,
        examination: &Examination<'_>,
        mut wanted: Wanted,
    ) -> Wanted {
        let of_inode = |edit: &Edit| matches!(edit, Edit::MoveInode { .. });
        if !wanted.keys().any(Edit::moves_files) {
            return wanted;
        }
        self.forget_old_failures();
        let failures = &self.attempts.failures;
        wanted.retain(|edit, cause| {
            !edit.moves_files()
                || !cause.as_ref().is_some_and(|problem| failures.contains_key(problem))
        });
        let may_move = self.judges_cubes(examination) && self.couples.moves.may_go_on();
        if !may_move || self.journal.dropped || !wanted.keys().all(Edit::moves_files) {
            wanted.retain(|edit, _| !edit.moves_files());
            return wanted;
        }
        if wanted.keys().any(of_inode) {
            wanted.retain(|edit, _| of_inode(edit));
            let all: BTreeSet<InodeNr> = wanted.keys().filter_map(Edit::inode).collect();
            let first = |cause: &Option<Problem>| match cause {
                Some(Problem::CubeEntangledName { dir, .. }) => !all.contains(dir),
                _ => true,
            };
            if wanted.values().any(first) {
                wanted.retain(|_, cause| first(cause));
            }
        }
        wanted
    }

    /// Makes the edits of one phase; moves are recorded.
    pub(super) fn make_with_moves(
        &mut self,
        examination: &Examination<'_>,
        edits: Wanted,
    ) -> Result<(), RepairError> {
        self.note_moves(&edits)?;
        self.make(examination, edits)?;
        Ok(self.couples.moves.judge()?)
    }

    /// Keeps all that is staged before the first move, as a file system that is clean but for files in other cubes; nothing moves any
    /// more once something else is staged.
    fn note_moves(&self, edits: &Wanted) -> Result<(), RepairError> {
        if !edits.keys().any(Edit::moves_files) {
            self.couples.moves.end();
            return Ok(());
        }
        if self.couples.moves.has_begun() {
            return Ok(());
        }
        let (now, believed) = (self.options.check.now_seconds, self.options.clock_believed);
        settle_superblock(self.staged, |sb| settle(sb, true, now, believed, true))?;
        self.couples.moves.begin(self.staged).map_err(|error| RepairError::Stage(error.into()))
    }

    /// All names of an inode may be in one cube once directories have moved.
    fn forget_old_failures(&mut self) {
        let has_moved = |deed: &&Deed| matches!(deed.edit, Edit::MoveInode { .. });
        let moved = self.attempts.deeds.iter().filter(has_moved).count();
        if moved > self.couples.moved {
            self.couples.moved = moved;
            let is_other =
                |problem: &Problem| !matches!(problem, Problem::CubeEntangledName { .. });
            self.attempts.failures.retain(|problem, _| is_other(problem));
            self.attempts.tries.retain(|problem, _| is_other(problem));
        }
    }

    /// Whether all that is known of cubes is right.
    fn judges_cubes(&self, examination: &Examination<'_>) -> bool {
        let is_hidden = self.staged.protects() && !self.staged.unreadable_offsets().is_empty();
        self.couples.is_possible()
            && self.options.cube.is_none()
            && is_sound(&examination.report)
            && !is_hidden
            && !self.hidden.hides_owners()
    }

    /// The changes of sub-superblocks that record which cubes share files, where any do: when nothing else is left to do. Not where a
    /// file may not be moved: then the next mount does both.
    pub(super) fn couplings(&mut self, examination: &Examination<'_>) -> Vec<Edit> {
        let report = &examination.report;
        let is_kept = |problem: &Problem| {
            entangles(problem) && self.decisions.decided.get(problem) == Some(&false)
        };
        let Some(cubes) = &examination.volume.cubes else { return Vec::new() };
        if !self.judges_cubes(examination) || report.found.iter().any(is_kept) {
            return Vec::new();
        }
        let least = couples(&report.found);
        if least.is_empty() {
            return Vec::new();
        }
        let numbers = cubes.numbers().into_iter();
        let changed = numbers.filter_map(|cube| {
            let (sub, coupled) = (cubes.current(cube)?, least.get(&cube).copied());
            let edit = CubeEdit::Couple(coupled);
            (sub.coupled != coupled).then_some(Edit::Cube { cube, edit })
        });
        let edits: Vec<Edit> = changed.collect();
        self.couples.is_right = edits.is_empty();
        if std::mem::replace(&mut self.couples.is_tried, true) { Vec::new() } else { edits }
    }
}
