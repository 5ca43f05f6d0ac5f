//! Who decides which findings are repaired: before anything is written.

use floe_check::problem::Weight;
use floe_check::{Problem, Report};

use crate::culprit::SharedGroup;

/// What is to be done about new findings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Repair those that are true, in the order asked.
    Each(Vec<bool>),
    /// Repair nothing, and end: this finding needs a person.
    Halt(Problem),
    /// Repair nothing, and end: a person wants it so.
    Quit,
}

/// What is to be done about blocks that several inodes claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Every owner gets its own copy.
    Clone,
    /// Those that the evidence convicts are deleted; without any, as `Clone`.
    DropCulprit,
    /// They stay shared: what follows of it stays damaged.
    Leave,
    /// Repair nothing, and end: a person wants it so.
    Quit,
}

/// Decides. Each finding is asked for once in a repair.
pub trait Policy {
    /// Says what to do about `problems`, which `report` found. All of them can be repaired.
    fn decide(&mut self, problems: &[Problem], report: &Report) -> Decision;

    /// Says what to do about a group of inodes that share blocks, which `report` found. Asked once for
    /// each group, and only with [`SharedBlocks::Ask`](crate::SharedBlocks::Ask).
    fn share(&mut self, _group: &SharedGroup, _report: &Report) -> Sharing {
        Sharing::Clone
    }

    /// Whether the file that `problem` is about may be deleted, after its repair found no room.
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

/// Repairs what is safe without a person (`--preen`): it goes on past remarks, and halts at damage
/// that it must not act on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Preen;

impl Policy for Preen {
    fn decide(&mut self, problems: &[Problem], _report: &Report) -> Decision {
        let needs_person = |problem: &&Problem| {
            let row = problem.row();
            !row.preen && row.weight > Weight::Remark
        };
        match problems.iter().find(needs_person) {
            Some(problem) => Decision::Halt(problem.clone()),
            None => Decision::Each(problems.iter().map(|problem| problem.row().preen).collect()),
        }
    }
}
