//! Checks the images named on the command line and prints what was found: the library in 20 lines.

use floe_blockdev::FileDevice;
use floe_check::{CheckOptions, check};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for path in std::env::args().skip(1) {
        let device = FileDevice::open(path.as_ref())?;
        match check(&device, &CheckOptions::default()) {
            Ok(report) => {
                println!("{path}: {} findings", report.found.len());
                for problem in &report.found {
                    println!("  {:#08x} {}: {problem}", problem.row().code, problem.row().id);
                }
            }
            Err(error) => println!("{path}: {error}"),
        }
    }
    Ok(())
}
