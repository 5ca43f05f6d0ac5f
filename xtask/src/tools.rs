//! The programs in `tools/`, whose commands `cargo xtask` runs too: building this one needs no crate
//! of the product, and each of those is built only when it is asked for.

use std::ffi::OsString;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// A program in `tools/`.
pub(crate) struct Tool {
    /// Its package, and so the program's name.
    pub(crate) package: &'static str,
    about: &'static str,
    pub(crate) commands: &'static [&'static str],
}

/// All tools. A test of each one compares its commands with these.
pub(crate) const TOOLS: [Tool; 3] = [
    Tool {
        package: "floe-trials",
        about: "Trials beside e2fsck and other programs, with random damage and random load",
        commands: &[
            "differential",
            "fs-bench",
            "hdfs",
            "images",
            "mount-damage",
            "mount-ends",
            "mount-suite",
            "relay",
            "salvage-compare",
        ],
    },
    Tool {
        package: "floe-vm",
        about: "Linux in a guest: power failures, odd fields, LVM, faulty devices, a booting Debian",
        commands: &[
            "boot",
            "faulty-device",
            "kernel-load",
            "linux-fields",
            "online-lvm",
            "vm-host",
        ],
    },
    Tool {
        package: "floe-bench",
        about: "Measurements, and what they make: a tuned program, screenshots",
        commands: &[
            "ageing",
            "bench",
            "commits",
            "conflicts",
            "counts",
            "cube-checks",
            "cubes",
            "engines",
            "eta",
            "fs-memory",
            "fs-speed",
            "image-bench",
            "link-memory",
            "memory",
            "roofline",
            "same-content",
            "scaling",
            "screenshots",
            "shards",
            "simulate-schedule",
            "tenants",
            "tuned",
        ],
    },
];

/// The part of `cargo xtask --help` about the tools.
pub(crate) fn help() -> String {
    let mut text = "More chores (cargo xtask NAME --help):".to_owned();
    for tool in &TOOLS {
        text += &format!("\n  {}:\n    {}", tool.about, tool.commands.join(", "));
    }
    text
}

/// Runs a command of a tool.
pub(crate) fn run(words: &[OsString]) -> Result<()> {
    let name = words.first().and_then(|name| name.to_str()).context("no command")?;
    let tool = TOOLS.iter().find(|tool| tool.commands.contains(&name));
    let Some(tool) = tool else { bail!("no chore {name}; cargo xtask --help lists all") };
    run_in(tool.package, words)
}

/// Builds a tool and runs it with these words.
pub(crate) fn run_in(package: &str, words: &[OsString]) -> Result<()> {
    let status = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--package", package, "--"])
        .args(words)
        .status()
        .context("starting cargo")?;
    ensure!(status.success(), "{package} ended with {status}");
    Ok(())
}

/// Whether rustup has a toolchain, and the given program in it, if any.
pub(crate) fn has_toolchain(name: &str, program: &[&str]) -> bool {
    let asked = if program.is_empty() { &["cargo"][..] } else { program };
    let mut rustup = Command::new("rustup");
    rustup.arg("run").arg(name).args(asked).arg("--version");
    // Do not download a missing toolchain.
    rustup.env("RUSTUP_AUTO_INSTALL", "0").stdout(Stdio::null()).stderr(Stdio::null());
    rustup.status().is_ok_and(|status| status.success())
}
