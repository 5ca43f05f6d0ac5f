//! Compares two checks, which must agree.

use floe_check::Report;

/// The result of a check as text, without anything that depends on the clock.
pub(crate) fn describe(report: &Report) -> String {
    format!(
        "{:?}\n{:?}\n{:?}\n{:?}\n{:#?}\n{:?}\n{:?}\n{:?}\n{:?}",
        report.verdict(),
        report.superblock,
        report.used_backup,
        report.journal,
        report.found,
        report.totals,
        report.clusters_used,
        report.paths,
        report.rescanned_groups
    )
}
