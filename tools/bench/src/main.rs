//! Measurements of Floe, and what they make: `cargo xtask bench`, `memory`, `scaling` and others.

mod ageing;
mod bench;
mod commits;
mod conflicts;
mod counts;
mod cube_checks;
mod cubes;
mod engines;
mod eta;
mod fs_memory;
mod fs_speed;
mod image_bench;
mod link_memory;
mod measure;
mod memory;
mod roofline;
mod same_content;
mod scaling;
mod screenshots;
mod shards;
mod simulate;
mod tenants;
mod tuned;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Measurements of Floe")]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Age file systems of several layouts alike, and replay the reads of checks on models of devices
    Ageing(ageing::Args),
    /// Measure Floe, e2fsck and the roofline on large images
    Bench(bench::Args),
    /// Count changes that workers make durable in a second, beside the kernel's ext4 (for root), and their flushes
    Commits(commits::Args),
    /// Count pairs of commutative calls that touch the same memory (needs cc and ar)
    Conflicts(conflicts::Args),
    /// Compare what calls cost on a native file system and on a stock ext4: requests, bytes, flushes, instructions
    Counts(counts::Args),
    /// Time the check of one cube, of the whole file system, and of the same files in ext4, by size (for root)
    CubeChecks(cube_checks::Args),
    /// Make, mount and check many cubes on a sparse image (for root)
    Cubes(cubes::Args),
    /// Replay the reads of a check by io_uring and by blocking threads, beside Floe (needs strace
    /// and fio)
    Engines(engines::Args),
    /// Compare progress predictions with actual times
    Eta(eta::Args),
    /// Count the bytes that the file system in memory keeps for each inode and name, beside the kernel's slabs (needs root)
    FsMemory(fs_memory::Args),
    /// Measure calls of the file system in memory, in process, beside those of tmpfs
    FsSpeed(fs_speed::Args),
    /// Measure image builders: floe mkfs --from, mke2fs -d, genext2fs, tar onto a mount
    ImageBench(image_bench::Args),
    /// Measure the memory for counting links, by structure and inodes in use
    LinkMemory(link_memory::Args),
    /// Measure the memory of checks, by method, inodes in use and size; fit a formula; verify
    /// memory limits
    Memory(memory::Args),
    /// Only read, checksum and walk an image: the lower bound that `bench` compares with
    Roofline(roofline::Args),
    /// Measure checks of a native file system and of an ext4 with the same made-up files
    SameContent(same_content::Args),
    /// Count the work of each of many threads in a check, regardless of the machine's cores (needs
    /// valgrind and strace)
    Scaling(scaling::Args),
    /// Take screenshots of report pages for docs/images (needs chromium)
    Screenshots(screenshots::Args),
    /// Count the work of one check by many machines: of shards and of their merge
    Shards(shards::Args),
    /// Simulate the scheduling policies with more workers than this machine has cores
    SimulateSchedule(simulate::Args),
    /// Let SQLite and mail servers run in cubes and outside, on a model of a device whose flushes are slow
    Tenants(tenants::Args),
    /// Build the static program, optimised by a profile of checks and repairs (`make static`)
    Tuned(tuned::Args),
    /// Run one program and print its time and memory (used by `bench`)
    #[command(hide = true)]
    Measure(measure::Args),
    /// Read the ranges in a list (used by `bench --cold`)
    #[command(hide = true)]
    ReadSameBytes(bench::same_bytes::Args),
}

fn main() -> ExitCode {
    match run(Args::parse().chore) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(chore: Chore) -> Result<()> {
    match chore {
        Chore::Ageing(args) => ageing::run(&args),
        Chore::Bench(args) => bench::run(&args),
        Chore::Commits(args) => commits::run(&args),
        Chore::Conflicts(args) => conflicts::run(&args),
        Chore::Counts(args) => counts::run(&args),
        Chore::CubeChecks(args) => cube_checks::run(&args),
        Chore::Cubes(args) => cubes::run(&args),
        Chore::Engines(args) => engines::run(&args),
        Chore::Eta(args) => eta::run(&args),
        Chore::FsMemory(args) => fs_memory::run(&args),
        Chore::FsSpeed(args) => fs_speed::run(&args),
        Chore::ImageBench(args) => image_bench::run(&args),
        Chore::LinkMemory(args) => link_memory::run(&args),
        Chore::Memory(args) => memory::run(&args),
        Chore::Roofline(args) => roofline::run(&args),
        Chore::SameContent(args) => same_content::run(&args),
        Chore::Scaling(args) => scaling::run(&args),
        Chore::Screenshots(args) => screenshots::run(&args),
        Chore::Shards(args) => shards::run(&args),
        Chore::SimulateSchedule(args) => simulate::run(&args),
        Chore::Tenants(args) => tenants::run(&args),
        Chore::Tuned(args) => tuned::run(&args),
        Chore::Measure(args) => measure::run(&args),
        Chore::ReadSameBytes(args) => bench::same_bytes::run(&args),
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
