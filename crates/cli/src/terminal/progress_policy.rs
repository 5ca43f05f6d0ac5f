//! A policy whose decisions tell the progress display how many examinations a repair will need.

use std::collections::BTreeMap;

use floe_check::{Problem, Report};
use floe_repair::SharedGroup;
use floe_repair::edit::Phase;
use floe_repair::plan::{Plan, plan};
use floe_repair::policy::{Decision, Policy, Sharing};

use crate::terminal::progress::Watch;

/// A wrapper around another policy.
pub(crate) struct ProgressPolicy<'w> {
    pub(crate) inner: &'w mut dyn Policy,
    pub(crate) watch: &'w Watch<'w>,
}

impl Policy for ProgressPolicy<'_> {
    fn decide(&mut self, problems: &[Problem], report: &Report) -> Decision {
        if let Some(progress) = self.watch.progress() {
            let round = progress.snapshot().round;
            progress.expect_rounds(round + looks_to_come(&report.found));
        }
        self.watch.aside(|| self.inner.decide(problems, report))
    }

    fn share(&mut self, group: &SharedGroup, report: &Report) -> Sharing {
        self.watch.aside(|| self.inner.share(group, report))
    }

    fn may_delete(&mut self, problem: &Problem) -> bool {
        self.watch.aside(|| self.inner.may_delete(problem))
    }
}

/// Expected examinations of a repair with findings, until the first one has ended: one that finds
/// the damage, one that finds consequences of its repair (names, counts), one as proof.
pub(crate) const USUAL_LOOKS: u32 = 3;

/// Further examinations if all of `found` is repaired: one after each phase whose edits affect
/// other findings, also for edits that follow from these; a last one proves the result.
fn looks_to_come(found: &[Problem]) -> u32 {
    let edits = found.iter().flat_map(|problem| match plan(problem) {
        Plan::Edits(edits) => edits,
        _ => Vec::new(),
    });
    let mut phases: BTreeMap<Phase, bool> = BTreeMap::new();
    let mut add = |phase: Phase, disturbs: bool| *phases.entry(phase).or_default() |= disturbs;
    for edit in edits {
        let disturbs = !edit.is_quiet();
        add(edit.phase(), disturbs);
        if disturbs && (Phase::Inodes..Phase::Counts).contains(&edit.phase()) {
            // The blocks in use have changed.
            add(Phase::Counts, false);
        }
    }
    let disturbing = phases.values().filter(|disturbs| **disturbs).count();
    let quiet_at_the_end = phases.values().last().is_some_and(|disturbs| !disturbs);
    // At most the number of phases.
    disturbing as u32 + u32::from(quiet_at_the_end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_format::{GroupNr, InodeNr};

    #[test]
    fn phases_that_disturb_others_need_a_look_each() {
        let size = Problem::InodeSizeWrong { inode: InodeNr(12), stored: 1, expected: 2 };
        let links = Problem::InodeLinkCountWrong { inode: InodeNr(12), stored: 3, counted: 2 };
        let count = Problem::GroupFreeBlockCountWrong { group: GroupNr(1), stored: 5, counted: 6 };
        assert_eq!(looks_to_come(&[]), 0);
        assert_eq!(looks_to_come(&[links.clone(), count.clone()]), 1, "links disturb nothing");
        assert_eq!(looks_to_come(&[size.clone(), links, count]), 2);
        // After the size of a file its blocks are recounted.
        assert_eq!(looks_to_come(&[size]), 2);
    }
}
