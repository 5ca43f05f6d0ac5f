//! After a system that does not know cubes has written: blocks of files move back into their cubes, and it is recorded which cubes
//! still share files, as a mount does it (`docs/cubes.md`).

use floe_check::cube::couples;
use floe_check::{Examination, Problem, Report};
use floe_format::ext::superblock::Superblock;
use floe_format::native::identity::Identity;

use super::Session;
use super::settle::is_sound;
use crate::edit::{CubeEdit, Edit};
use crate::plan::Wanted;

/// Cubes that share files, and the record of that.
#[derive(Default)]
pub(super) struct Couples {
    /// Whether names and blocks may lead from one cube into another, as it was before the repair.
    pub(super) coupled: Option<bool>,
    /// It was written once.
    is_tried: bool,
    /// It says what the last examination found.
    is_right: bool,
}

impl Couples {
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

/// Whether cubes share files.
pub(super) fn is_entangled(report: &Report) -> bool {
    let entangled = |problem: &Problem| {
        matches!(problem, Problem::CubeEntangledName { .. } | Problem::CubeEntangledBlocks { .. })
    };
    report.found.iter().any(entangled)
}

impl Session<'_> {
    /// Defers the moves of blocks until nothing else is wanted and all is sound: the operations that make them trust what they read.
    /// A file that found no room is not tried again.
    pub(super) fn moves_at_the_end(
        &self,
        examination: &Examination<'_>,
        mut wanted: Wanted,
    ) -> Wanted {
        let is_move = |edit: &Edit| matches!(edit, Edit::MoveHome { .. });
        if !wanted.keys().any(is_move) {
            return wanted;
        }
        let failures = &self.attempts.failures;
        wanted.retain(|edit, cause| {
            !is_move(edit) || !cause.as_ref().is_some_and(|problem| failures.contains_key(problem))
        });
        let may = self.judges_cubes(examination) && wanted.keys().all(is_move);
        wanted.retain(|edit, _| may || !is_move(edit));
        wanted
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
            matches!(problem, Problem::CubeEntangledBlocks { .. })
                && self.decisions.decided.get(problem) == Some(&false)
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
