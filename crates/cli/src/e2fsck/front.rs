//! Settings of a run that come from e2fsck's command line.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::time::Duration;

use floe_check::problem::Weight;
use floe_check::report::Cost;
use floe_check::{Problem, Report};
use floe_format::ext::superblock::STATE_VALID;
use floe_repair::{Deed, Repair};
use floe_report::human::size;
use floe_report::repair::Account;
use floe_sync::{Mutex, PoisonError};

use super::conf::Conf;
use super::progress::Lines;
use super::{brief, summary};
use crate::exit::Outcome;
use crate::terminal::signals;

/// Findings whose repair e2fsck does not count, because it makes it in passing.
const NO_REPAIRS: &[u32] = &[
    0x00_0031, // last-mount-time-in-future
    0x00_0032, // last-write-time-in-future
    0x00_0034, // dirhash-signedness-unset
    0x00_003b, // test-fs-flag-set
    0x00_003c, // last-mount-time-slightly-ahead
    0x00_003d, // last-write-time-slightly-ahead
    0x01_4006, // extent-tree-collapsible
    0x01_4007, // extent-tree-narrowable
    0x07_0012, // backup-superblock-differs
];

/// Some of these count for e2fsck where more is said than to check (`-D`, `-c`, `-l`, `-L`, `-b`, `-E bmap2extent`).
const REPAIRS_BESIDE_WORK: &[u32] = &[0x00_0031, 0x00_0032, 0x00_003b, 0x00_003c, 0x00_003d];

/// Additional or alternative output to Floe's own report, and rules for the exit code.
pub(crate) struct Front {
    /// The name of the file system in messages.
    pub(crate) name: String,
    /// For a repair, print console lines instead of the report.
    pub(crate) brief: bool,
    /// Print statistics.
    pub(crate) verbose: bool,
    /// Number of -t options.
    pub(crate) timing: u8,
    pub(crate) conf: Conf,
    /// Destination of the findings in JSON.
    pub(crate) problem_log: RefCell<Option<File>>,
    /// `-E check_encoding`.
    pub(crate) check_encoding: bool,
    /// Destination of -C.
    pub(crate) lines: Option<Mutex<Lines<File>>>,
    /// The file system is the root, mounted read-only: it is repaired anyway, and the system must
    /// then be rebooted.
    pub(crate) root: bool,
    /// More is asked for than a check, so that every repair counts.
    pub(crate) has_work: bool,
    /// Whether a cancelled run exits with 0: `allow_cancellation`, if no errors are recorded.
    pub(crate) may_cancel: bool,
}

/// The option for a memory limit, up to its value.
pub(crate) fn memory_option(front: Option<&Front>) -> &'static str {
    if front.is_some() { "-E memory=" } else { "--memory " }
}

/// Whether to print the estimate of a run with a memory limit: callers of e2fsck expect few lines.
pub(crate) fn tells_plan(front: Option<&Front>) -> bool {
    front.is_none_or(|front| front.verbose)
}

/// The exit code of a cancelled run.
pub(crate) fn cancel_code(front: Option<&Front>) -> u8 {
    if front.is_some_and(|front| front.may_cancel) { 0 } else { signals::CANCELLED }
}

impl Front {
    /// The exit bits of a repair: e2fsck's bit for repairs is dropped if anything is left. Nor does e2fsck count orphans.
    pub(crate) fn outcome(&self, repair: &Repair<'_>, journal_only: bool) -> Outcome {
        let recovers = journal_only || repair.skipped;
        let left = repair.left.iter().any(|(problem, _)| !self.tolerates(problem.row().code));
        let damaged = left || repair.halted.is_some();
        let was_damaged = repair.before.found.iter().any(|one| one.row().weight > Weight::Remark);
        // Later findings follow from the trees that were made flatter, then.
        let only_trees = !was_damaged && begins_with_trees(&repair.deeds);
        let first = only_trees.then(|| repair.before.found.iter().collect::<BTreeSet<_>>());
        let counts = |problem: &Problem| {
            first.as_ref().is_none_or(|first| first.contains(problem))
                && self.counts_as_repair(problem.row().code)
        };
        let mended = |deed: &Deed| !deed.extra && deed.problem.as_ref().is_none_or(counts);
        let done = repair.halted.is_none();
        // A check without findings also sets the clean flag again.
        let was_unclean = repair.before.superblock.state & STATE_VALID == 0;
        let mended =
            (was_unclean && !recovers) || (!repair.skipped && repair.deeds.iter().any(mended));
        Outcome {
            repaired: done && !damaged && mended,
            restart: self.root && done && !repair.deeds.is_empty(),
            damaged,
            ..Outcome::CLEAN
        }
    }

    /// Reports progress, from 0 to 1, on the descriptor of -C.
    pub(crate) fn tell(&self, share: f64) {
        if let Some(lines) = &self.lines {
            lines.lock().unwrap_or_else(PoisonError::into_inner).tell(share);
        }
    }

    /// The same for another thread; `None` without -C.
    pub(crate) fn teller(&self) -> Option<impl Fn(f64) + Sync + '_> {
        let lines = self.lines.as_ref()?;
        Some(move |share| lines.lock().unwrap_or_else(PoisonError::into_inner).tell(share))
    }

    /// Whether a finding that is left does not count as damage.
    pub(crate) fn tolerates(&self, code: u32) -> bool {
        self.conf.problems.get(&code).is_some_and(|of| of.no_ok)
    }

    /// Whether the repair of a finding counts as one.
    fn counts_as_repair(&self, code: u32) -> bool {
        let is_in_passing =
            NO_REPAIRS.contains(&code) && !(self.has_work && REPAIRS_BESIDE_WORK.contains(&code));
        !is_in_passing && !self.conf.problems.get(&code).is_some_and(|of| of.not_a_fix)
    }

    /// Prints the short account of a repair, if requested.
    pub(crate) fn account(&self, out: &mut impl Write, account: &Account<'_>) -> io::Result<()> {
        brief::write(out, &self.name, account, &self.conf)
    }

    /// The last output of each run: statistics, times, and the line for scripts.
    pub(crate) fn end(&self, out: &mut impl Write, report: &Report, cost: &Cost) -> io::Result<()> {
        if self.verbose {
            summary::statistics(out, report, self.conf.report_features)?;
        }
        if self.timing > 1 {
            for phase in &report.phases {
                writeln!(out, "{}: {}: {:.2} s", self.name, phase.name, seconds(phase.time))?;
            }
        }
        if self.timing > 0 {
            let memory = cost.peak_memory_bytes.map(size).unwrap_or_default();
            let (elapsed, read) = (seconds(cost.elapsed), size(cost.bytes_read));
            writeln!(out, "{}: {elapsed:.2} s, {memory} of memory, {read} read", self.name)?;
        }
        writeln!(out, "{}", summary::checked_line(&self.name, report))
    }

    /// Explains bit 2 of the exit code.
    pub(crate) fn restart(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "{}: this is the mounted root file system, and the kernel's cached metadata is now \
             stale. REBOOT THE SYSTEM NOW",
            self.name
        )
    }

    /// Writes the findings to the log that `e2fsck.conf` names. They are collected only if there is
    /// a log: for many findings that takes more time and memory than all other output.
    pub(crate) fn log_problems(&self, findings: impl FnOnce() -> serde_json::Value) {
        if let Some(file) = self.problem_log.borrow_mut().as_mut() {
            // As for the other log, errors are ignored.
            let _ = writeln!(file, "{:#}", findings());
        }
    }
}

/// Whether all that was done in the first round was to make extent trees flatter.
fn begins_with_trees(deeds: &[Deed]) -> bool {
    let round = deeds.iter().map(|deed| deed.round).min();
    let is_of_tree = |deed: &Deed| {
        matches!(
            deed.problem,
            Some(Problem::ExtentTreeCollapsible { .. } | Problem::ExtentTreeNarrowable { .. })
        )
    };
    deeds.iter().filter(|deed| Some(deed.round) == round).all(is_of_tree)
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
