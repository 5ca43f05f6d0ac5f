//! `e2fsck.conf` takes precedence over the policy.

use floe_check::problem::{Row, Weight};
use floe_check::{Problem, Report};
use floe_repair::policy::{Decision, Policy};

use super::conf::Conf;

/// Codes of superblock times in the future.
const CLOCK: [u32; 4] = [0x00_0031, 0x00_0032, 0x00_003c, 0x00_003d];
/// The code of the test file system flag.
const TEST_FLAG: u32 = 0x00_003b;

/// A policy, overruled by a file for some kinds of findings.
pub(crate) struct Configured<'c> {
    /// The policy for all other findings.
    pub(crate) inner: &'c mut dyn Policy,
    pub(crate) conf: &'c Conf,
    /// Whether `inner` is the policy of -p.
    pub(crate) preen: bool,
    /// Whether the clock is trusted.
    pub(crate) clock_believed: bool,
}

/// The file's setting for a finding.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    Yes,
    No,
    Halt,
    Nothing,
}

impl Configured<'_> {
    fn said(&self, row: &Row) -> Said {
        if !self.clock_believed && CLOCK.contains(&row.code)
            || !self.conf.clear_test_fs_flag && row.code == TEST_FLAG
        {
            return Said::No;
        }
        let Some(of) = self.conf.problems.get(&row.code) else { return Said::Nothing };
        match (of.force_no, of.preen_ok) {
            (true, _) => Said::No,
            (false, Some(true)) if self.preen => Said::Yes,
            (false, Some(false)) if self.preen && row.weight > Weight::Remark => Said::Halt,
            (false, Some(false)) if self.preen => Said::No,
            _ => Said::Nothing,
        }
    }
}

impl Policy for Configured<'_> {
    fn decide(&mut self, problems: &[Problem], report: &Report) -> Decision {
        let said: Vec<Said> = problems.iter().map(|problem| self.said(problem.row())).collect();
        if let Some(at) = said.iter().position(|said| *said == Said::Halt) {
            return Decision::Halt(problems[at].clone());
        }
        let open = problems.iter().zip(&said).filter(|(_, said)| **said == Said::Nothing);
        let open: Vec<Problem> = open.map(|(problem, _)| problem.clone()).collect();
        let answers = match self.inner.decide(&open, report) {
            Decision::Each(answers) => answers,
            other => return other,
        };
        let mut answers = answers.into_iter();
        let each = said.into_iter().map(|said| match said {
            Said::Yes => true,
            Said::No | Said::Halt => false,
            // There is one answer per question.
            Said::Nothing => answers.next().unwrap_or(false),
        });
        Decision::Each(each.collect())
    }

    fn may_delete(&mut self, problem: &Problem) -> bool {
        self.said(problem.row()) != Said::No && self.inner.may_delete(problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_check::CheckOptions;
    use floe_format::InodeNr;
    use floe_repair::policy::Preen;
    use floe_testkit::{Profile, build, tool};

    #[test]
    fn the_file_overrules() {
        if tool::missing() {
            return;
        }
        let image = build::base(Profile::by_name("ext2-1k").unwrap()).unwrap();
        let report = floe_check::check(&image, &CheckOptions::default()).unwrap();
        let unattached = Problem::UnattachedInode { inode: InodeNr(14), links: 1 };
        let links = Problem::InodeLinkCountWrong { inode: InodeNr(12), stored: 3, counted: 2 };
        let test_flag = Problem::TestFsFlagSet;
        let decide = |text: &str, problems: &[Problem]| {
            let conf = Conf::parse(text).unwrap();
            let mut inner = Preen;
            let (inner, conf) = (&mut inner as &mut dyn Policy, &conf);
            let clock_believed = false;
            let mut policy = Configured { inner, conf, preen: true, clock_believed };
            policy.decide(problems, &report)
        };
        let code = unattached.row().code;
        assert_eq!(code, 0x04_0002);
        let both = [links.clone(), unattached.clone()];
        assert_eq!(decide("", &both), Decision::Halt(unattached.clone()));
        let yes = "[problems]\n0x040002 = {\npreen_ok = true\n}\n";
        assert_eq!(decide(yes, &both), Decision::Each(vec![true, true]));
        let never = "[problems]\n0x040002 = {\npreen_ok = true\nforce_no = true\n}\n";
        assert_eq!(decide(never, &both), Decision::Each(vec![true, false]));
        let no = "[problems]\n0x040003 = {\npreen_ok = false\n}\n";
        assert_eq!(decide(no, std::slice::from_ref(&links)), Decision::Halt(links.clone()));
        let future = Problem::LastMountTimeInFuture { stored: 2, now: 1 };
        let others = [future, test_flag, links];
        assert_eq!(decide("", &others), Decision::Each(vec![false, true, true]));
        let keep = "[options]\nclear_test_fs_flag = false\n";
        assert_eq!(decide(keep, &others), Decision::Each(vec![false, false, true]));
    }
}
