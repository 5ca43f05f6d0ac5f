//! Policies: decide which findings are repaired, before anything is written.

use floe_check::problem::Weight;
use floe_check::{Problem, Report};
use floe_format::features::Incompat;

use crate::shared_owners::SharedGroup;

/// Decision about new findings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Repair the findings whose flag is true; same order as the request.
    Each(Vec<bool>),
    /// Repair nothing and stop: this finding needs a person.
    Halt(Problem),
    /// Repair nothing and stop: the user asked for it.
    Quit,
}

/// Decision about blocks that several inodes claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Give every owner its own copy.
    Clone,
    /// Delete the owners that the evidence convicts; if there are none, as `Clone`.
    DropCulprit,
    /// Leave the blocks shared, and the damage that follows from it.
    Leave,
    /// Repair nothing and stop: the user asked for it.
    Quit,
}

/// Decides which findings to repair. Asked about each finding once per repair.
pub trait Policy {
    /// Decides about `problems`, which `report` found. All of them can be repaired.
    fn decide(&mut self, problems: &[Problem], report: &Report) -> Decision;

    /// Decides about a group of inodes that share blocks according to `report`. Asked once per
    /// group, and only with [`SharedBlocks::Ask`](crate::SharedBlocks::Ask).
    fn share(&mut self, _group: &SharedGroup, _report: &Report) -> Sharing {
        Sharing::Clone
    }

    /// Whether the file of `problem` may be deleted after its repair ran out of space.
    fn may_delete(&mut self, _problem: &Problem) -> bool {
        false
    }
}

/// Repairs everything (`--yes`).
#[derive(Clone, Copy, Debug, Default)]
pub struct Yes;

impl Policy for Yes {
    fn decide(&mut self, problems: &[Problem], _report: &Report) -> Decision {
        Decision::Each(vec![true; problems.len()])
    }

    fn may_delete(&mut self, _problem: &Problem) -> bool {
        true
    }
}

/// Makes the repairs that need no person (`--preen`): continues past remarks, and halts at damage
/// that it must not repair.
#[derive(Clone, Copy, Debug, Default)]
pub struct Preen;

impl Policy for Preen {
    fn decide(&mut self, problems: &[Problem], report: &Report) -> Decision {
        let is_used = report.superblock.features().incompat.contains(Incompat::RECOVER);
        // The log may be sound, and hold the only copy of the latest changes.
        let gives_up_log = |problem: &Problem| {
            is_used
                && matches!(
                    problem,
                    Problem::JournalInodeInvalid { .. } | Problem::JournalSuperblockCorrupt { .. }
                )
        };
        let needs_person = |problem: &&Problem| {
            let row = problem.row();
            (!row.preen && row.weight > Weight::Remark) || gives_up_log(problem)
        };
        match problems.iter().find(needs_person) {
            Some(problem) => Decision::Halt(problem.clone()),
            None => Decision::Each(problems.iter().map(|problem| problem.row().preen).collect()),
        }
    }
}
