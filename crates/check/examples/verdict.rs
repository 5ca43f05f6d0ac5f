//! Checks images and prints what was found: `cargo run -p floe-check --example verdict -- disk.img`
//!
//! Damage is no error: it is a list of values with permanent codes. An error means that the check
//! could not look.

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;

use floe_blockdev::FileDevice;
use floe_check::{CheckOptions, check};

pub(crate) fn show(path: &Path, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let device = FileDevice::open(path)?;
    let report = check(&device, &CheckOptions::default())?;
    for problem in &report.found {
        let row = problem.row();
        let path = report.path_of(problem).unwrap_or_default();
        writeln!(out, "{:#08x} {} {path}: {problem}", row.code, row.severity.name())?;
    }
    writeln!(out, "{}: {} findings", report.verdict().name(), report.found.len())?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    for path in std::env::args().skip(1) {
        show(path.as_ref(), &mut io::stdout())?;
    }
    Ok(())
}
