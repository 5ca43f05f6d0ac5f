//! Options of tests that accept all repairs and compare the staged result of two runs.

use floe_check::{CheckOptions, JournalUse};
use floe_repair::RepairOptions;
use floe_testkit::tool;

/// Two threads, a fixed clock and fixed random bytes.
pub(crate) fn options() -> RepairOptions<'static> {
    let check = CheckOptions {
        threads: 2,
        journal: JournalUse::Replay,
        now_seconds: i64::from(tool::NOW),
        ..CheckOptions::default()
    };
    RepairOptions { check, random: [7; 16], ..RepairOptions::default() }
}
