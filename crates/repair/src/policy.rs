//! Who decides which findings are repaired: before anything is written.

use floe_check::problem::Weight;
use floe_check::{Problem, Report};

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

/// Decides. Each finding is asked for once in a repair.
pub trait Policy {
    /// Says what to do about `problems`, which `report` found. All of them can be repaired.
    fn decide(&mut self, problems: &[Problem], report: &Report) -> Decision;

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
