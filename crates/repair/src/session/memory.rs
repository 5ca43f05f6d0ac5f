//! Divides the memory limit of a repair: a part for staged blocks, the rest for examinations and
//! findings. An estimate, like that of a check (`docs/memory.md`).

use floe_blockdev::SpillOptions;
use floe_check::{CheckError, CheckOptions, Examination, MemoryLimit, Observer};

use super::{RepairError, RepairOptions, Session};

/// Staged blocks may use 1/8 of the memory limit; the rest goes to a temporary file.
const STAGING_SHARE: u64 = 8;
/// Bytes that a repair keeps per finding: in the reports and in the lists of decisions, attempts
/// and changes; its edits; and the path of its inode.
const FINDING_BYTES: u64 = 1024;
/// Bytes of bookkeeping per staged block, wherever its content is.
const STAGED_BYTES: u64 = 64;

/// Bytes of staged blocks kept in memory.
fn staging_bytes(options: &RepairOptions<'_>) -> u64 {
    let share = options.memory_bytes.map_or(u64::MAX, |budget| budget / STAGING_SHARE);
    // An external journal has an overlay of its own.
    let overlays = 1 + u64::from(options.check.external_journal.is_some());
    options.staging_bytes.min(share) / overlays
}

/// Memory and folder of staged blocks.
pub(super) fn spill(options: &RepairOptions<'_>) -> SpillOptions {
    let spill = SpillOptions::in_temporary_folder(staging_bytes(options));
    match options.scratch {
        Some(folder) => SpillOptions { folder: folder.to_owned(), ..spill },
        None => spill,
    }
}

/// Bytes that examinations may use.
pub(super) fn examination_bytes(budget_bytes: u64) -> u64 {
    budget_bytes - budget_bytes / STAGING_SHARE
}

/// The memory limit that leaves this much for examinations.
const fn budget_for(examination_bytes: u64) -> u64 {
    examination_bytes.saturating_mul(STAGING_SHARE) / (STAGING_SHARE - 1) + STAGING_SHARE
}

/// Converts the error of an examination, expressing its limit as that of the whole repair.
pub(super) fn of_repair(error: CheckError) -> RepairError {
    match error {
        CheckError::OverBudget { phase, need_bytes, budget_bytes } => RepairError::OverBudget {
            phase,
            need_bytes: budget_for(need_bytes),
            budget_bytes: budget_for(budget_bytes),
        },
        error => RepairError::Check(error),
    }
}

impl<'s> Session<'s> {
    /// Options of the next examination, allowing for the memory that the repair already holds.
    pub(super) fn check_options(&self) -> CheckOptions<'s> {
        let staged = std::iter::once(self.staged).chain(self.journal_device);
        let places: u64 = staged.map(|overlay| overlay.staged_pages() as u64).sum();
        let findings = self.decisions.decided.len().max(self.attempts.tries.len()) as u64;
        let held_bytes = places * STAGED_BYTES + findings * FINDING_BYTES;
        // Later examinations need about as much.
        let check = self.options.check;
        let on_plan = check.observer.on_plan.filter(|_| self.rounds == 1);
        let memory = MemoryLimit { held_bytes, ..check.memory };
        CheckOptions { memory, observer: Observer { on_plan, ..check.observer }, ..check }
    }

    /// Bytes for findings that are new in this examination; the estimate covers the others.
    fn of_new_findings(&self, examination: &Examination<'_>) -> u64 {
        let found = &examination.report.found;
        let new = found.iter().filter(|problem| !self.decisions.decided.contains_key(*problem));
        new.count() as u64 * FINDING_BYTES
    }

    /// Fails if the findings do not fit the memory limit.
    pub(super) fn must_hold_findings(
        &self,
        examination: &Examination<'_>,
    ) -> Result<(), RepairError> {
        let (Some(plan), Some(budget_bytes)) =
            (&examination.report.plan, self.options.check.memory.limit_bytes)
        else {
            return Ok(());
        };
        let need_bytes = plan.estimate.total().saturating_add(self.of_new_findings(examination));
        if need_bytes <= budget_bytes {
            return Ok(());
        }
        let phase = "keeping all findings";
        Err(of_repair(CheckError::OverBudget { phase, need_bytes, budget_bytes }))
    }

    /// The error for an edit that needs evidence which an examination by fingerprints did not keep.
    pub(super) fn lacks_evidence(&self, examination: &Examination<'_>) -> RepairError {
        let plan = examination.report.plan.as_ref();
        let exact_bytes = plan.map_or(0, |plan| plan.exact_bytes);
        let need_bytes = exact_bytes.saturating_add(self.of_new_findings(examination));
        let budget_bytes = self.options.check.memory.limit_bytes.unwrap_or(u64::MAX);
        let phase = "recording everything in use";
        of_repair(CheckError::OverBudget { phase, need_bytes, budget_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_advised_does() {
        for need in [0, 1, 6, 7, 8, 1000, 16 << 20, (1 << 40) + 5] {
            let budget = budget_for(need);
            assert!(examination_bytes(budget) >= need, "{need}");
            assert!(examination_bytes(budget) <= need + 2 * STAGING_SHARE, "{need}");
        }
    }
}
