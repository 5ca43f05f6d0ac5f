//! Floe's repair as the program that `floe_testkit::compare` judges.

use std::path::Path;

use anyhow::Result;
use floe_blockdev::ReadBlocks;
use floe_check::{CheckOptions, JournalUse};
use floe_repair::policy::Yes;
use floe_repair::{RepairOptions, repair};
use floe_testkit::Image;
use floe_testkit::tool::{self, Outcome};

/// Repairs the image at a path, as `floe fsck -fy` does.
pub(crate) fn program(path: &Path) -> Result<Outcome> {
    let image = Image::open(path)?;
    let check = CheckOptions {
        threads: 2,
        journal: JournalUse::Replay,
        now_seconds: i64::from(tool::NOW),
        ..CheckOptions::default()
    };
    let options = RepairOptions { check, random: [7; 16], ..RepairOptions::default() };
    let repaired = match repair(&image, &options, &mut Yes) {
        Ok(repaired) => repaired,
        Err(error) => {
            return Ok(Outcome { exit: Some(8), timed_out: false, text: error.to_string() });
        }
    };
    for range in repaired.staged.staged_ranges() {
        let mut bytes = vec![0; usize::try_from(range.end - range.start)?];
        repaired.staged.read_at(range.start, &mut bytes)?;
        image.write(range.start, &bytes)?;
    }
    let left = !repaired.is_clean() || !repaired.left.is_empty();
    let exit = i32::from(repaired.repaired()) | if left { 4 } else { 0 };
    Ok(Outcome { exit: Some(exit), timed_out: false, text: format!("left: {:?}", repaired.left) })
}
