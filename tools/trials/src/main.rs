//! Trials of Floe beside e2fsck and programs that others wrote: `cargo xtask differential`,
//! `mount-suite` and others.

mod differential;
mod fs_bench;
mod fuzz_seeds;
mod hdfs;
mod images;
mod mount_damage;
mod mount_ends;
mod mount_suite;
mod mounted;
mod relay;
mod salvage_compare;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use floe_vm::linux_judge;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Trials of Floe")]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Compare Floe with e2fsck on randomly damaged images
    Differential(differential::Args),
    /// Measure loads on mounts by Linux, fuse2fs and Floe, and on the least that FUSE costs (needs
    /// root, cc and fuse2fs)
    FsBench(fs_bench::Args),
    /// Let a cube fail below a DataNode of Hadoop while clients work (needs root, java and mvn)
    Hdfs(hdfs::Args),
    /// Write the base images of the tests to a folder, optionally damaged
    Images(images::Args),
    /// Let a load use mounts of damaged images, and see whether they spread the damage (needs root)
    MountDamage(mount_damage::Args),
    /// End mounts in use by umount, signals and SIGKILL, and see whether anything is lost (needs root)
    MountEnds(mount_ends::Args),
    /// Let programs that others wrote use a mount (needs root; skips programs not installed)
    MountSuite(mount_suite::Args),
    /// Let Floe, Linux and e2fsck take turns at one file system, beside a model (needs root)
    Relay(relay::Args),
    /// Destroy metadata and compare the files that floe salvage, e2fsck, photorec, ext4magic and
    /// extundelete bring back
    SalvageCompare(salvage_compare::Args),
    /// Write the seeds of a fuzz target (used by `fuzz`)
    #[command(hide = true)]
    FuzzSeeds(fuzz_seeds::Args),
    /// The part of the Linux judge inside its guest
    #[command(hide = true)]
    GuestJudge(linux_judge::GuestArgs),
}

fn main() -> ExitCode {
    match run(Args::parse().chore) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("trials: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(chore: Chore) -> Result<()> {
    match chore {
        Chore::Differential(args) => differential::run(&args),
        Chore::FsBench(args) => fs_bench::run(&args),
        Chore::Hdfs(args) => hdfs::run(&args),
        Chore::Images(args) => images::run(&args),
        Chore::MountDamage(args) => mount_damage::run(&args),
        Chore::MountEnds(args) => mount_ends::run(&args),
        Chore::MountSuite(args) => mount_suite::run(&args),
        Chore::Relay(args) => relay::run(&args),
        Chore::SalvageCompare(args) => salvage_compare::run(&args),
        Chore::FuzzSeeds(args) => fuzz_seeds::run(&args),
        Chore::GuestJudge(args) => linux_judge::inside(&args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn xtask_knows_all_commands() {
        let listed = include_str!("../../../xtask/src/tools.rs");
        for command in super::Args::command().get_subcommands().filter(|at| !at.is_hide_set()) {
            assert!(listed.contains(&format!("\"{}\"", command.get_name())), "{command}");
        }
    }
}
