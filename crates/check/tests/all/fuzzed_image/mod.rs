//! Checks an image that a script of bytes has damaged. Shared by the test `fuzz_inputs` and by the
//! fuzz target `check_image` (`fuzz/`).
//!
//! For any damage, a check must not panic, must end, and must give the same answer for 1 and 2
//! threads.

use std::collections::BTreeMap;

use floe_blockdev::ReadBlocks;
use floe_check::{CheckError, CheckOptions, JournalUse, Problem, Report, check};
use floe_testkit::Profile;
use floe_testkit::damage::script::{Conditions, Stage, profile_of};

/// The stages used so far, one a profile, as building one takes a while.
#[derive(Default)]
pub(crate) struct Stages(BTreeMap<&'static str, Stage>);

impl Stages {
    /// Checks the image that `script` damages, and compares the answers for 1 and 2 threads.
    ///
    /// Panics where they differ, or where the base image cannot be built.
    #[allow(clippy::expect_used, reason = "a test stops where its images cannot be built")]
    pub(crate) fn check(&mut self, script: &[u8]) {
        let profile: Profile = profile_of(script);
        let stage = self
            .0
            .entry(profile.name())
            .or_insert_with(|| Stage::new(profile).expect("the base image is built"));
        stage
            .perform(script, |device, conditions| {
                let one = answer(device, conditions, 1);
                let two = answer(device, conditions, 2);
                // Written out only where they differ: there may be tens of thousands of findings.
                assert!(one == two, "1 thread and 2 differ:\n{one:#?}\n{two:#?}");
            })
            .expect("the image is damaged and set right again");
    }
}

/// Everything in an answer that must not depend on the number of threads: the findings, and the rest
/// as text.
type Answer = (Vec<Problem>, String);

fn answer(device: &dyn ReadBlocks, conditions: Conditions, threads: usize) -> Answer {
    let journal = if conditions.ignore_journal { JournalUse::Ignore } else { JournalUse::Replay };
    let options = CheckOptions { threads, journal, ..CheckOptions::default() };
    match check(device, &options) {
        Ok(report) => {
            let verdict = report.verdict();
            let Report { found, used_backup, totals, clusters_used, journal, paths, .. } = report;
            let rest = format!(
                "{verdict:?} {used_backup:?} {totals:?} {clusters_used} {journal:?} {paths:?}"
            );
            (found, rest)
        }
        // The text of a system's error may differ; what could not be read may not.
        Err(CheckError::Read { what, .. }) => (Vec::new(), format!("cannot read {what}")),
        Err(error) => (Vec::new(), format!("{error:?}")),
    }
}
