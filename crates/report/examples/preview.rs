//! Stages a repair in memory and prints it; cannot write to the device:
//! `cargo run -p floe-report --example preview -- disk.img`
//!
//! The device is opened read-only. To carry the repair out, pass the staged repair and a writable
//! device to [`floe_repair::commit`].

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;

use floe_blockdev::FileDevice;
use floe_check::CheckOptions;
use floe_repair::policy::Yes;
use floe_repair::{RepairOptions, repair};
use floe_report::repair::human::{Style, write};
use floe_report::repair::{Account, Ending};

pub(crate) fn show(
    path: &Path,
    now_seconds: i64,
    mut out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let device = FileDevice::open(path)?;
    // The policy accepts everything. The time is the one a repair would store.
    let check = CheckOptions { now_seconds, ..CheckOptions::default() };
    let options = RepairOptions { check, ..RepairOptions::default() };
    let repair = repair(&device, &options, &mut Yes)?;
    let account = Account::new(&repair, &device, path.display().to_string(), Ending::DryRun);
    write(&mut out, &account, Style::default())?;
    writeln!(out, "{} pages would be written", repair.staged.staged_offsets().len())?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    for path in std::env::args().skip(1) {
        show(path.as_ref(), i64::try_from(now.as_secs())?, &mut io::stdout())?;
    }
    Ok(())
}
