//! `cargo xtask faults`: lets more than 300 faults of all kinds happen in all structures of a cube, and the same where two
//! tenants share one.

use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Runs the tests that are ignored otherwise.
pub(crate) fn run() -> Result<()> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let status = Command::new(cargo)
        .args(["test", "-p", "floe-fs", "--test", "all", "--", "--ignored", "--nocapture"])
        .arg("three_hundred_faults_stay_in_their_cube")
        .status()
        .context("starting cargo")?;
    ensure!(status.success(), "a fault did not stay in its cube");
    Ok(())
}
