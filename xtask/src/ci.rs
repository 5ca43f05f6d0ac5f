//! `cargo xtask ci`: what continuous integration runs, in its order: quick things first.

use std::process::Command;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::tidy;

/// Runs every step; stops at the first that fails.
pub(crate) fn run() -> Result<()> {
    step("fmt", &["fmt", "--all", "--check"])?;
    tidy::run()?;
    step("clippy", &["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
    step("test", &["test", "--quiet", "--workspace"])?;
    step("doc", &["doc", "--quiet", "--workspace", "--no-deps"])
}

fn step(name: &str, args: &[&str]) -> Result<()> {
    let begin = Instant::now();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(args).env("RUSTDOCFLAGS", "-D warnings");
    ensure!(cargo.status()?.success(), "cargo {} failed", args.join(" "));
    println!("{name}: {:.1} s", begin.elapsed().as_secs_f64());
    Ok(())
}
