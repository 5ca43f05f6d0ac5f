//! The options of tests that repair all and compare what two repairs wrote.

use floe_check::{CheckOptions, JournalUse};
use floe_repair::RepairOptions;
use floe_testkit::tool;

/// Two threads, a clock that stands still, and numbers that are drawn the same each time.
pub(crate) fn options() -> RepairOptions<'static> {
    let check = CheckOptions {
        threads: 2,
        journal: JournalUse::Replay,
        now_seconds: i64::from(tool::NOW),
        ..CheckOptions::default()
    };
    RepairOptions { check, random: [7; 16], ..RepairOptions::default() }
}
